"""Sequences of 35 words as records, and the words that a model knows; both without a look at private text.

The paper takes the 8,000 most frequent words of the whole training text, private sequences included, and
charges nothing for it. Here they are counted in text that nobody asks to protect: the public sequences, and
the articles of the validation part, which are used for nothing else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments import datasets

__all__ = ["LENGTH", "UNKNOWN", "WORDS", "Pair", "Split", "split"]

WORDS, LENGTH, PUBLIC_SHARE = 8000, 35, 0.04
BEGIN, UNKNOWN = 0, 1  # before the first word; any word that is not known
TEST_EVERY = 8  # one test sequence in so many is scored: 877 of them

Pair = tuple[Tensor, Tensor]  # the words so far, and the next ones
Sequences = NDArray[np.object_]  # one row a record, of words


@dataclass(frozen=True)
class Split:
    """Records of one seed. `public` is WikiText's own, or sentences of films."""

    private: Pair
    public: Pair
    test: Pair
    unknown: float  # the share of the test words that the model does not know


@cache
def _text(part: str) -> list[str]:
    frame = datasets.wikitext2()
    lines = "".join(frame.text[frame.split == part]).split("\n")
    return [word for line in lines for word in [*line.split(), "<eos>"]]


@cache
def _sentences() -> list[str]:
    """SST-2's training sentences, one after the other: another corpus."""
    frame = datasets.sst2()
    lines = frame.sentence[frame.split == "train"].drop_duplicates()
    return [word for line in lines for word in [*line.split(), "<eos>"]]


def _rows(words: list[str]) -> Sequences:
    count = len(words) // LENGTH
    return np.array(words[: count * LENGTH], dtype=object).reshape(count, LENGTH)


def _pair(rows: Sequences, numbers: dict[str, int]) -> Pair:
    """A record is alone: its first word follows BEGIN, and not the record before it."""
    flat = [numbers.get(word, UNKNOWN) for word in rows.reshape(-1)]
    targets = torch.tensor(flat, dtype=torch.long).reshape(rows.shape)
    inputs = torch.cat([targets.new_full((len(rows), 1), BEGIN), targets[:, :-1]], 1)
    return inputs, targets


def split(seed: int, *, public: str = "wikitext", scale: int = 1) -> Split:
    """Private, public and test records; `scale` keeps one in so many, to try everything out."""
    train, test = _rows(_text("train"))[::scale], _rows(_text("test"))[:: TEST_EVERY * scale]
    order = np.random.default_rng([seed, 4]).permutation(len(train))
    count = round(PUBLIC_SHARE * len(train))
    own, private = train[np.sort(order[:count])], train[np.sort(order[count:])]
    if public == "sst2":
        films = _rows(_sentences())
        own = films[np.sort(np.random.default_rng([seed, 5]).permutation(len(films))[:count])]
    counts = Counter(own.reshape(-1)) + Counter(_text("valid"))
    known = [word for word, _ in counts.most_common() if word != "<unk>"][: WORDS - 2]
    numbers = {word: place + 2 for place, word in enumerate(known)}
    tested = _pair(test, numbers)
    return Split(
        _pair(private, numbers), _pair(own, numbers), tested,
        unknown=float((tested[1] == UNKNOWN).double().mean()),
    )  # fmt: skip
