"""Texts through the public encoder, once: rows for linear models, and what its last block sees.

    features  (n, 384)          as `sidelight.features.TransformerEncoder` makes them
    states    (tokens, 384)     the input of the last block, float16, at most 32 tokens a text, joined;
                                or that of the lowest one (`words`)
    ends      (n,)              where the states of each text end

What is below is frozen in the tables, so its output is a function of the text and the public weights alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sidelight.features import TransformerEncoder, encode_texts, open_encoder
from sidelight.features.pretrained import packaged_folder

MOST_TOKENS = 32
_ROWS = 16


@dataclass(frozen=True, eq=False)
class Encoded:
    """A dataset after its encoder."""

    features: NDArray[np.float32]
    states: NDArray[np.float16]
    ends: NDArray[np.int64]
    seconds: float  # of processor time


def encoder() -> TransformerEncoder:
    """MiniLM in bfloat16, which processors with such instructions compute twice as fast."""
    return TransformerEncoder(
        packaged_folder("minilm"), max_tokens=MOST_TOKENS, dtype="bfloat16", name="minilm"
    )


def encoded(name: str, texts: list[str], folder: Path) -> Encoded:
    """From a file, if this was done before."""
    file = folder / f"{name}.npz"
    if not file.exists():
        made = encode(encoder(), texts)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(
            file, features=made.features, states=made.states, ends=made.ends, seconds=np.array(made.seconds)
        )
    with np.load(file) as stored:
        return Encoded(stored["features"], stored["states"], stored["ends"], float(stored["seconds"]))


def other_features(name: str, texts: list[str]) -> tuple[NDArray[np.float32], float]:
    """Rows of all texts by another encoder, and the seconds that it took."""
    start = time.process_time()
    rows = encode_texts(open_encoder(name), texts)
    return rows, time.process_time() - start


@torch.inference_mode()
def encode(model: TransformerEncoder, texts: list[str]) -> Encoded:
    """One forward pass of every text, in blocks of equal length."""
    start = time.process_time()
    tokens = [one.ids for one in model._tokenizer.encode_batch(texts)]
    lengths = np.array([len(ids) for ids in tokens])
    ends = np.cumsum(lengths)
    features = np.zeros((len(texts), model.dimension), dtype=np.float32)
    states = np.zeros((int(ends[-1]), model.dimension), dtype=np.float16)
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        for some in np.split(places, range(_ROWS, len(places), _ROWS)):
            ids = np.zeros((_ROWS, length), dtype=np.int64)
            ids[: len(some)] = [tokens[place] for place in some]
            out = model._model(input_ids=torch.from_numpy(ids), output_hidden_states=True)
            last = out.last_hidden_state.float().mean(dim=1)
            features[some] = torch.nn.functional.normalize(last).numpy()[: len(some)]
            before = out.hidden_states[-2].to(torch.float16).numpy()
            for row, place in zip(before, some, strict=False):
                states[ends[place] - length : ends[place]] = row
    return Encoded(features, states, ends, time.process_time() - start)


def words(texts: list[str]) -> Encoded:
    """What the lowest block is given: the table of words, positions, and their norm. Without features."""
    model = encoder()
    table: Any = model._model.embeddings
    tokens = [one.ids for one in model._tokenizer.encode_batch(texts)]
    ends = np.cumsum([len(ids) for ids in tokens])
    with torch.inference_mode():
        rows = [table(input_ids=torch.tensor([ids]))[0].to(torch.float16) for ids in tokens]
    return Encoded(np.zeros((0, 0), np.float32), torch.cat(rows).numpy(), ends, 0.0)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Texts, labels, and which are for training. Of pairs, all first texts come before all second ones."""

    texts: list[str]
    y: NDArray[np.int64]
    train: NDArray[np.intp]
    test: NDArray[np.intp]
    pairs: bool = False


def paired(made: Encoded) -> Encoded:
    """Rows of pairs (u, v), which are for features alone: u × v and |u − v|, of length 1."""
    u, v = np.split(made.features, 2)
    both = np.concatenate([u * v, np.abs(u - v)], axis=1)
    both /= np.maximum(np.linalg.norm(both, axis=1, keepdims=True), 1e-12)
    return Encoded(both, made.states[:0], made.ends[:0], made.seconds)


def sst2() -> Dataset:
    """To test: GLUE's development part (872), as in the paper, and the Treebank's test part (1,821)."""
    frame = _read("sst2.parquet")
    return Dataset(
        frame["sentence"].tolist(),
        frame["label"].to_numpy(dtype=np.int64),
        np.flatnonzero(frame["split"] == "train"),
        np.flatnonzero(frame["split"] != "train"),
    )


def qnli() -> Dataset:
    """5,463 pairs of the development part, of which every fourth is to test."""
    frame = _read("qnli_dev.parquet")
    texts = [*frame["question"], *frame["sentence"]]
    held = np.arange(len(frame)) % 4 == 0
    y = frame["label"].to_numpy(dtype=np.int64)
    return Dataset(texts, y, np.flatnonzero(~held), np.flatnonzero(held), pairs=True)


DATASETS = {"sst2": sst2, "qnli": qnli}


def _read(name: str) -> pd.DataFrame:
    return pd.read_parquet(Path(os.environ["SIDELIGHT_DATA"]) / name)
