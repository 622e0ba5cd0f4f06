"""Tune an encoder on public texts with labels, at no budget.

    tune_encoder("minilm", public_texts, public_labels, "tuned")
    PrivateClassifier(epsilon=1, text={"review": "tuned"}).fit(…)

The blocks of a transformer are trained to classify PUBLIC texts; a private linear model then uses their
features as those of any public encoder. No private text is read and nothing is charged. Give the private fit
other public texts than these, a third of them, say: the encoder has learned the labels of its own, so its
features look better on them than they are.

A held-out fifth of the public texts chooses the step size.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import InputError, MissingDependency, one_of
from sidelight.features.encoders import MOST_CHARACTERS, PACKAGED
from sidelight.features.pretrained import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    TransformerEncoder,
    _quiet,
    packaged_folder,
)

if TYPE_CHECKING:
    import torch


RATES = (1e-4, 2e-4)
_MIN_TEXTS = 20  # texts
_APART = 5  # one text in so many chooses the step size
_POOLING = "1_Pooling"


class _Texts(NamedTuple):
    """Tokens of public texts, and the numbers of their labels."""

    tokens: list[list[int]]
    labels: NDArray[np.int64]

    def only(self, places: NDArray[np.intp]) -> _Texts:
        return _Texts([self.tokens[place] for place in places], self.labels[places])


class _Settings(NamedTuple):
    first: bool  # pools the first token, and not the mean
    classes: int
    epochs: float
    batch: int
    half: bool
    seed: int


def tune_encoder(
    encoder: str | os.PathLike[str],
    texts: Sequence[str],
    labels: Sequence[object] | NDArray[Any],
    folder: str | os.PathLike[str],
    *,
    epochs: float = 2.0,
    batch_size: int = 32,
    max_tokens: int = 128,
    dtype: Literal["float32", "bfloat16"] = "float32",
    random_state: int = 0,
) -> TransformerEncoder:
    """Train the blocks of a transformer on public texts with labels, and write it to a new folder.

    Guarantee: none is needed, and none is given.
    Assumes: texts and labels are public, and were not chosen by looking at private records.

    Args:
        encoder: "minilm", or the folder of a model of `transformers`.
        texts, labels: public ones; labels are classes, of any type.
        folder: where to write; it must not exist.
        epochs: passes over the texts, by AdamW with a step size that falls to nothing.
        max_tokens: how many tokens of a text are used, here and by the returned encoder.
        dtype: "bfloat16" halves the time on processors that compute in it; weights stay float32.

    Token and position embeddings stay fixed, since few texts would change only the tokens that they contain.
    """
    out = Path(folder)
    if os.path.lexists(out):
        raise InputError(f"{out} exists; name a new folder for the tuned encoder")
    one_of("dtype", dtype, ("float32", "bfloat16"))
    if not 0 < epochs <= 100 or type(batch_size) is not int or not 1 <= batch_size <= 4096:
        raise InputError("epochs must be above 0 and at most 100, batch_size a whole number from 1 to 4096")
    if encoder == "wordllama" or str(encoder).startswith("hashed"):
        raise InputError(f"{encoder} has no layers to train: only a transformer can be tuned")
    source = packaged_folder(os.fspath(encoder)) if encoder in PACKAGED else Path(encoder)
    before = _opened(source, os.fspath(encoder), max_tokens, random_state)
    names, numbers = _classes(texts, labels)
    tokens = [one.ids for one in before._tokenizer.encode_batch([text[:MOST_CHARACTERS] for text in texts])]
    data = _Texts(tokens, numbers)
    how = _Settings(before._first, len(names), epochs, batch_size, dtype == "bfloat16", random_state)
    model: Any = before._model
    start = {name: value.clone() for name, value in model.state_dict().items()}
    scores = {rate: _tried(model, start, data, rate, how) for rate in RATES}
    rate = max(RATES, key=lambda one: scores[one])
    model.load_state_dict(start)
    _train(model, data, rate, how)
    told = {
        "tuned_from": before.name, "sha256": before.sha256, "texts": len(data.tokens), "classes": names,
        "epochs": epochs, "batch_size": batch_size, "step_size": rate,
        "held_out_accuracy": {f"{one:g}": round(score, 4) for one, score in scores.items()},
    }  # fmt: skip
    _write(model, source, out, told)
    return TransformerEncoder(out, max_tokens=max_tokens, dtype=dtype)


def _opened(source: Path, name: str, max_tokens: int, seed: int) -> TransformerEncoder:
    """With a seed: parts that the folder lacks, such as a pooler that nothing uses, are drawn at random."""
    try:
        import torch
    except ImportError:
        raise MissingDependency(
            "to tune an encoder needs PyTorch and transformers: pip install torch transformers"
        ) from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TransformerEncoder(source, max_tokens=max_tokens, name=name)


def _classes(
    texts: Sequence[str], labels: Sequence[object] | NDArray[Any]
) -> tuple[list[str], NDArray[np.int64]]:
    """The classes by name, and the number of each text's; of public texts, so that errors may speak."""
    odd = next((place for place, text in enumerate(texts) if not isinstance(text, str)), None)
    if odd is not None:
        raise InputError(f"text number {odd} is {type(texts[odd]).__name__}; public texts must be strings")
    if len(texts) != len(labels):
        raise InputError(f"{len(texts):,} texts and {len(labels):,} labels; each text needs one")
    named = [str(label) for label in labels]
    missing = sum(label is None or label != label for label in labels)
    if missing:
        raise InputError(f"{missing:,} public labels are missing; leave these texts out")
    names = sorted(set(named))
    if len(texts) < _MIN_TEXTS or len(names) < 2 or len(names) > len(texts) // 2:
        raise InputError(
            f"{len(texts):,} public texts of {len(names):,} classes: to tune an encoder needs at least "
            f"{_MIN_TEXTS} texts and two classes, with two texts per class on average"
        )
    place = {name: number for number, name in enumerate(names)}
    return names, np.array([place[name] for name in named], dtype=np.int64)


def _tried(model: Any, start: dict[str, torch.Tensor], data: _Texts, rate: float, how: _Settings) -> float:
    """The accuracy on a fifth of the texts, after training on the others."""
    order = np.random.default_rng(how.seed).permutation(len(data.tokens))
    apart, rest = np.split(order, [max(1, len(order) // _APART)])
    model.load_state_dict(start)
    head = _train(model, data.only(rest), rate, how)
    return _accuracy(model, head, data.only(apart), how)


def _train(model: Any, data: _Texts, rate: float, how: _Settings) -> torch.nn.Linear:
    """AdamW on random batches of public texts; the head is discarded for features."""
    import torch

    steps = max(1, round(how.epochs * len(data.tokens) / how.batch))
    random = np.random.default_rng(how.seed)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(how.seed)  # dropout of public texts
        head = torch.nn.Linear(model.config.hidden_size, how.classes)
        torch.nn.init.zeros_(head.weight)
        weights = [*_trained(model), *head.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        model.train()
        for _ in range(steps):
            places = random.choice(len(data.tokens), min(how.batch, len(data.tokens)), replace=False)
            batch = data.only(places)
            scores = head(_pooled(model, batch.tokens, how))
            loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.labels))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
        model.eval().requires_grad_(False)
    return head


def _trained(model: Any) -> list[torch.nn.Parameter]:
    """Everything but the tables of words and positions."""
    import torch

    tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    model.requires_grad_(True)
    for table in tables:
        table.requires_grad_(False)
    return [p for p in model.parameters() if p.requires_grad]


def _pooled(model: Any, tokens: list[list[int]], how: _Settings) -> torch.Tensor:
    """The mean of the last hidden states over a text's own tokens, or the first: as the encoder pools."""
    import torch

    longest = max(1, max(map(len, tokens)))
    ids, there = torch.zeros(len(tokens), longest, dtype=torch.long), torch.zeros(len(tokens), longest)
    for row, some in enumerate(tokens):
        ids[row, : len(some)] = torch.tensor(some, dtype=torch.long)
        there[row, : max(1, len(some))] = 1
    with torch.autocast("cpu", torch.bfloat16, enabled=how.half, cache_enabled=False):
        states = model(input_ids=ids, attention_mask=there.long()).last_hidden_state.float()
    if how.first:
        return states[:, 0]  # type: ignore[no-any-return]
    mean: torch.Tensor = (states * there[:, :, None]).sum(1) / there.sum(1, keepdim=True)
    return mean


def _accuracy(model: Any, head: torch.nn.Linear, data: _Texts, how: _Settings) -> float:
    import torch

    right = 0
    with torch.inference_mode():
        for low in range(0, len(data.tokens), 64):
            some = data.only(np.arange(low, min(low + 64, len(data.tokens))))
            guess = head(_pooled(model, some.tokens, how)).argmax(1).numpy()
            right += int((guess == some.labels).sum())
    return right / len(data.tokens)


def _write(model: Any, source: Path, out: Path, told: dict[str, object]) -> None:
    """The whole folder or nothing."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as made:
            new = Path(made) / out.name
            with _quiet():
                model.save_pretrained(new)
            shutil.copyfile(source / TOKENIZER, new / TOKENIZER)
            if (source / _POOLING / CONFIG).exists():
                (new / _POOLING).mkdir()
                shutil.copyfile(source / _POOLING / CONFIG, new / _POOLING / CONFIG)
            (new / "tuning.json").write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
            if not (new / WEIGHTS).exists():
                raise InputError(f"{out}: a model whose weights need several files cannot be an encoder")
            new.rename(out)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or 'output failed'}") from None
