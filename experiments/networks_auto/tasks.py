"""The problems: private and public records, test records, and a network for them.

The rules of `auto` were developed on `DEVELOPED`, without their test records. `SCORED_ONCE` was run when they
were fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from torch import Tensor, nn

from experiments import datasets
from experiments.coupling_table3.columns import Cnn
from experiments.coupling_table3.digits import Pair, invented, mnist, split, warped
from experiments.deep_tables.problems import model_of, problem
from experiments.public_pays.tables import TARGET, table

__all__ = ["DEVELOPED", "SCORED_ONCE", "TASKS", "Task", "mlp"]

DEVELOPED = ("magic", "adult", "cifar features", "sst2 hashed", "mnist small", "mnist")
SCORED_ONCE = ("satellite", "flights late", "skin", "characters")

_SEEN = 3  # public sentences that a word must be in
_LETTERS = " abcdefghijklmnopqrstuvwxyz"  # any other character is the last of the classes
_WINDOW = 12  # characters from which the next one is predicted


@dataclass(frozen=True)
class Task:
    """One problem on one split."""

    private: Pair
    public: Pair
    test: Pair
    model: nn.Module
    augment: Callable[[Tensor], Tensor] | None = None


def _cnn() -> nn.Module:
    return Cnn().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def mlp(width: int, classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, classes))


def _mnist(seed: int, *, augmented: bool) -> Task:
    """3,000 public images, 57,000 private ones, and the CNN of the Coupling paper."""
    train, test = mnist()
    private, public = split(train, 0.05, seed=seed)
    return Task(private, public, test, _cnn(), warped if augmented else None)


def _mnist_rows(seed: int) -> Task:
    """The same images as rows of 784 numbers, and one hidden layer."""
    parts = _mnist(seed, augmented=False)
    private, public, test = (
        (images.flatten(1), y) for images, y in (parts.private, parts.public, parts.test)
    )
    return Task(private, public, test, mlp(784, 10))


def _adult(seed: int) -> Task:
    """a9a: 123 binary features. 1,000 public rows, 31,561 private ones."""
    data = datasets.a9a()

    def pair(X: Any, y: Any) -> Pair:
        return torch.from_numpy(np.asarray(X, dtype=np.float32)), torch.from_numpy((y > 0).astype(np.int64))

    private, public = split(pair(data.X, data.y), 1000 / len(data.y), seed=seed)
    return Task(private, public, pair(data.X_test, data.y_test), mlp(data.X.shape[1]))


def _magic(seed: int) -> Task:
    """MAGIC: 10 numbers, standardized by 1,000 public rows; 14,216 private ones, a fifth to test."""
    data = datasets.magic()
    rows, labels = np.asarray(data.X, dtype=np.float32), (np.asarray(data.y) > 0).astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    public, test, private = np.split(order, [1000, 1000 + len(order) // 5])
    center, width = rows[public].mean(axis=0), rows[public].std(axis=0)
    scaled = ((rows - center) / width).clip(-5, 5)

    def pair(some: Any) -> Pair:
        return torch.from_numpy(scaled[some]), torch.from_numpy(labels[some])

    return Task(pair(private), pair(public), pair(test), mlp(rows.shape[1]))


def _sst2(seed: int) -> Task:
    """Bags of words: those of three public sentences at least. 3,000 public sentences, 64,349 private."""
    frame = datasets.sst2()
    train, test = frame[frame.split == "train"], frame[frame.split == "test"]
    order = np.random.default_rng(seed).permutation(len(train))
    public, private = train.iloc[order[:3000]], train.iloc[order[3000:]]
    counts = Counter(word for text in public.sentence for word in set(text.split()))
    places = {word: k for k, word in enumerate(sorted(w for w, c in counts.items() if c >= _SEEN))}
    bags = [_bags(part, places) for part in (private, public, test)]
    return Task(bags[0], bags[1], bags[2], mlp(len(places)))


def _bags(part: Any, places: dict[str, int]) -> Pair:
    """One row a sentence, of length 1; words that are not public are not seen."""
    rows = torch.zeros(len(part), len(places))
    for k, text in enumerate(part.sentence):
        rows[k, sorted({places[word] for word in text.split() if word in places})] = 1.0
    rows /= rows.norm(dim=1, keepdim=True).clamp(min=1.0)
    return rows, torch.from_numpy(part.label.to_numpy().astype(np.int64))


def _sst2_hashed(seed: int) -> Task:
    """The same sentences as 512 hashed counts of words, of length 1: 2,000 public, 20,000 private."""
    frame = datasets.sst2()
    train, test = frame[frame.split == "train"], frame[frame.split == "test"]
    order = np.random.default_rng(seed).permutation(len(train))[:22_000]
    hashed = HashingVectorizer(n_features=512, alternate_sign=False)

    def pair(part: Any) -> Pair:
        rows = hashed.transform(part.sentence).toarray().astype(np.float32)
        return torch.from_numpy(rows), torch.from_numpy(part.label.to_numpy().astype(np.int64))

    public, private = train.iloc[order[:2_000]], train.iloc[order[2_000:]]
    return Task(pair(private), pair(public), pair(test), mlp(512))


class Letters(nn.Module):
    """An LSTM over characters, and scores of the next one."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        kinds = len(_LETTERS) + 1
        self.embed = nn.Embedding(kinds, 16)
        self.lstm, self.last = nn.LSTM(16, width, batch_first=True), nn.Linear(width, kinds)

    def forward(self, characters: Tensor) -> Tensor:
        found: Tensor = self.last(self.lstm(self.embed(characters))[0][:, -1])
        return found


def _characters(seed: int) -> Task:
    """The next character of 12, once in each sentence of SST-2: 2,000 public ones, 20,000 private."""
    frame = datasets.sst2()
    train, test = frame[frame.split == "train"], frame[frame.split == "test"]
    long = train.sentence[train.sentence.str.len() > _WINDOW]
    order = np.random.default_rng(seed).permutation(len(long))[:22_000]
    places = np.random.default_rng([seed, 1])

    def pair(texts: Any) -> Pair:
        lows = [int(places.integers(len(text) - _WINDOW)) for text in texts]
        cut = [text[low : low + _WINDOW + 1].lower() for text, low in zip(texts, lows, strict=True)]
        numbers = torch.tensor([[_LETTERS.find(one) % (len(_LETTERS) + 1) for one in text] for text in cut])
        return numbers[:, :-1].contiguous(), numbers[:, -1].contiguous()

    public, private = long.iloc[order[:2_000]], long.iloc[order[2_000:]]
    return Task(
        pair(private), pair(public), pair(test.sentence[test.sentence.str.len() > _WINDOW]), Letters()
    )


def _mnist_small(seed: int) -> Task:
    """1,000 public images, 12,000 private ones, and the CNN of the Coupling paper."""
    task = _mnist(seed, augmented=False)
    (x, y), (px, py) = task.private, task.public
    return replace(task, private=(x[:12_000], y[:12_000]), public=(px[:1_000], py[:1_000]))


def _cifar_features(seed: int) -> Task:
    """256 features of images (`experiments.deep_tables`): 2,000 public images, 10,000 private ones."""
    found = problem("cifar", seed)
    return Task(found.private, found.pool, found.test, model_of("cifar", seed))


def _table(name: str, public: int, most: int, seed: int) -> Task:
    """Numbers standardized by the public rows, and an indicator for each public category."""
    frame = table(name).sample(frac=1, random_state=seed)[:most].reset_index(drop=True)
    target = frame.pop(TARGET)
    kinds = sorted(target.unique())
    numbers = frame.select_dtypes("number")
    scaled = (numbers - numbers[:public].mean()) / numbers[:public].std().replace(0, 1)
    parts = [scaled.fillna(0).clip(-5, 5).to_numpy(np.float32)]
    for name in frame.columns.difference(numbers.columns):
        known = frame[name][:public].value_counts().index[:50]
        parts.append((frame[name].to_numpy()[:, None] == known.to_numpy()[None]).astype(np.float32))
    rows = torch.from_numpy(np.concatenate(parts, axis=1))
    labels = torch.from_numpy(target.map({kind: k for k, kind in enumerate(kinds)}).to_numpy(np.int64))
    test = public + int(0.8 * (len(rows) - public))
    cut = (slice(public, test), slice(0, public), slice(test, None))
    private, known, rest = ((rows[some].clone(), labels[some].clone()) for some in cut)
    return Task(private, known, rest, mlp(rows.shape[1], len(kinds)))


def _skin(seed: int) -> Task:
    """Three colors: 300 public pixels, 20,000 private ones."""
    data = datasets.skin()
    order = np.random.default_rng(seed).permutation(len(data.y))[:25_300]
    rows = torch.from_numpy(data.X[order].astype(np.float32)) / 128 - 1
    labels = torch.from_numpy((data.y[order] > 0).astype(np.int64))
    cut = (slice(300, 20_300), slice(0, 300), slice(20_300, None))
    private, public, test = ((rows[some].clone(), labels[some].clone()) for some in cut)
    return Task(private, public, test, mlp(3))


def _small(seed: int) -> Task:
    """Invented images, to try everything out."""
    train, test = invented()
    private, public = split(train, 0.4, seed=seed)
    width = train[0][0].numel()
    return Task(
        private, public, test, nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 10))
    )


TASKS: dict[str, Callable[[int], Task]] = {
    "mnist": lambda seed: _mnist(seed, augmented=False),
    "mnist, augmented": lambda seed: _mnist(seed, augmented=True),
    "mnist rows": _mnist_rows,
    "adult": _adult,
    "magic": _magic,
    "sst2": _sst2,
    "sst2 hashed": _sst2_hashed,
    "mnist small": _mnist_small,
    "cifar features": _cifar_features,
    "satellite": lambda seed: _table("satellite", 300, 10_000, seed),
    "flights late": lambda seed: _table("flights late", 1_000, 40_000, seed),
    "skin": _skin,
    "characters": _characters,
    "invented": _small,
}
