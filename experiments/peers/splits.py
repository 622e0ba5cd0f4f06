"""The tables of the comparison as frames, and one split of each for everybody.

Rows are shuffled by `sample(frac=1, random_state=repeat)`: the first are public, those up to 80 % private,
the rest is held out. What a column is, its range and its categories are known from the public rows alone.
Newer tables have the splits of `experiments.public_pays`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments import datasets

TARGET = "target"
CLASSES = ("adult", "ipums-br", "magic04", "skin", "kddcup99")
NUMBERS = ("cadata", "stability")
NEW = ("flights late", "flights carrier", "satellite", "poker", "bike", "traffic", "flights delay")
NEW_NUMBERS = ("bike", "traffic", "flights delay")
MANY_CLASSES = ("satellite", "poker", "flights carrier")
APART = ("stable grid", "dear houses", "adult, sex", "digits 3 and 8")  # no constant was found on these
TOYS = ("toy classes", "toy numbers")  # for the quick version
MOST_ROWS = 100_000  # of skin and KDD Cup 99, which have more
PUBLIC = {"adult": 225}
PUBLIC_SHARE, LEAST_PUBLIC = 0.005, 30
MOST_CATEGORIES = 50  # of a column, by their number of public rows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """Frames with a column `target`: a text, or a number."""

    public: pd.DataFrame
    private: pd.DataFrame
    test: pd.DataFrame
    regression: bool

    @property
    def labels(self) -> list[str]:
        """Of the classes, in the order of their codes: "no" before "yes"."""
        return sorted(
            {str(one) for part in (self.public, self.private, self.test) for one in part[TARGET].unique()}
        )

    def target(self, frame: pd.DataFrame) -> Any:
        """The targets of a part: numbers, or codes of classes from 0 on."""
        if self.regression:
            return frame[TARGET].to_numpy(float)
        return np.searchsorted(self.labels, frame[TARGET].astype(str).to_numpy())

    def features(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.drop(columns=TARGET)

    @property
    def texts(self) -> list[str]:
        """The columns of categories; the others are numbers."""
        found = self.features(self.public)
        return [name for name in found if not pd.api.types.is_numeric_dtype(found[name])]


def is_regression(name: str) -> bool:
    return name in (*NUMBERS, *NEW_NUMBERS, TOYS[1])


def public_rows(name: str, rows: int) -> int:
    return PUBLIC.get(name, max(LEAST_PUBLIC, round(PUBLIC_SHARE * rows)))


@lru_cache(maxsize=2)
def split(name: str, repeat: int) -> Split:
    if name in NEW:
        from experiments.public_pays import tables  # which imports this file

        return tables.split(name, repeat)
    frame = table(name).sample(frac=1, random_state=repeat)[:MOST_ROWS].reset_index(drop=True)
    public, train = public_rows(name, len(frame)), int(0.8 * len(frame))
    return Split(frame[:public], frame[public:train], frame[train:], is_regression(name))


@lru_cache(maxsize=1)
def table(name: str) -> pd.DataFrame:
    """A table with its original columns, and the target under one name."""
    if name in TOYS:
        return toy(regression=name == TOYS[1])
    if name == "adult":
        frame = datasets.load_table("adult-raw").drop(columns="split")
        return _with_target(frame.drop(columns="income"), _words(frame.income == ">50K"))
    if name == "kddcup99":
        frame = datasets.load_table("kddcup99")
        return _with_target(frame.drop(columns="label"), _words(frame.label != "normal"))
    if name in APART:
        return _apart(name)
    data = datasets.load(name)
    names = data.feature_names or tuple(f"x{k}" for k in range(data.X.shape[1]))
    frame = pd.DataFrame({column: data.X[:, k] for k, column in enumerate(names)})
    return _with_target(frame, data.y if name in NUMBERS else _words(data.y > 0))


def _apart(name: str) -> pd.DataFrame:
    """Other questions to tables of the comparison, and one to pictures of half the height and width."""
    if name == "adult, sex":
        frame = datasets.load_table("adult-raw").drop(columns="split")
        return _with_target(frame.drop(columns=["sex", "relationship"]), _words(frame.sex == "Male"))
    if name == "digits 3 and 8":
        digits = datasets.mnist()
        some = np.isin(digits.y, (3, 8))
        X = digits.X[some].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)
        frame = pd.DataFrame({f"x{k}": X[:, k] for k in range(196)})
        return _with_target(frame, _words(digits.y[some] == 3))
    data = datasets.load("stability" if name == "stable grid" else "cadata")
    frame = pd.DataFrame({f"x{k}": data.X[:, k] for k in range(data.X.shape[1])})
    return _with_target(frame, _words(data.y < 0 if name == "stable grid" else data.y > np.median(data.y)))


def _words(yes: Any) -> Any:
    return np.where(np.asarray(yes), "yes", "no").astype(object)


def _with_target(frame: pd.DataFrame, target: Any) -> pd.DataFrame:
    """Numbers as 64 bits, everything else as text."""
    columns = {}
    for name in frame:
        column = frame[name]
        if pd.api.types.is_integer_dtype(column):
            columns[name] = column.to_numpy(np.int64)
        elif pd.api.types.is_numeric_dtype(column):
            columns[name] = column.to_numpy(np.float64)
        else:
            columns[name] = column.astype(str).to_numpy(object)
    return pd.DataFrame(columns).assign(**{TARGET: target})


def toy(*, regression: bool, rows: int = 6000) -> pd.DataFrame:
    """Two numbers and a category, to try everything out."""
    rng = np.random.default_rng(7)
    age, pay = rng.integers(18, 90, rows), rng.lognormal(3, 0.5, rows)
    job = rng.choice(np.array(["nurse", "smith", "clerk"], dtype=object), rows)
    z = age + 20 * (job == "smith") + rng.normal(0, 9, rows)
    return pd.DataFrame({"age": age, "pay": pay, "job": job, TARGET: z if regression else _words(z > 65)})


def scaled(data: Split) -> tuple[Array, Array, Array]:
    """Public, private and test rows as matrices.

    Numbers go from −1 to 1 by the public range and are clipped; a missing one is the public mean. Each
    public category has a column, the most frequent ones if there are many.
    """
    parts = (data.public, data.private, data.test)
    texts = set(data.texts)
    blocks: list[list[Array]] = [[], [], []]
    for name in data.features(data.public):
        known = data.public[name]
        if name in texts:
            values = sorted(known.astype(str).value_counts().index[:MOST_CATEGORIES])
            for place, part in zip(blocks, parts, strict=True):
                codes = pd.Index(values).get_indexer(part[name].astype(str))
                place.append((codes[:, None] == np.arange(len(values))).astype(float))
            continue
        low, high = float(known.min()), float(known.max())
        for place, part in zip(blocks, parts, strict=True):
            if high > low:
                inside = (part[name].fillna(known.mean()).to_numpy(float) - low) / (high - low)
                place.append(np.clip(2 * inside[:, None] - 1, -1, 1))
    public, private, test = (np.hstack(place) for place in blocks)
    return public, private, test
