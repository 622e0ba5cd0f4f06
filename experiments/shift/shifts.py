"""Eight ways in which public rows differ from private ones, and one split of each table for all of them.

Rows are shuffled by `sample(frac=1, random_state=repeat)`. The last 20 % are held out. Of the others, the
first that are of the shift's kind are public and the rest is private: so the private and the held-out rows
are of all kinds. Without a shift the first rows are public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from experiments import datasets
from experiments.peers.splits import toy
from experiments.public_pays import tables
from experiments.public_pays.tables import TARGET, Split
from sidelight.data.schema import Schema

MOST_ROWS = {"flights late": 60_000, "sst2": 25_000}
PUBLIC = {"adult": 1_000, "flights late": 1_600, "ipums-br": 1_000, "sst2": 1_600, "toy": 400}
DECLARED_BY = 3_000  # rows that stand in for what somebody who knows the table declares
TEXT = {"text": "text:hashed-256"}
NOISY = 0.3  # of the public labels are turned around

Rows = Callable[[pd.DataFrame], pd.Series]
Change = Callable[[pd.DataFrame, np.random.Generator], pd.DataFrame]


@dataclass(frozen=True)
class Shift:
    """A table, and what its public rows are.

    Args:
        words: what the public rows are, for the page.
        kind: the rows that may be public; None: any.
        change: what happens to the public rows afterwards.
    """

    table: str
    words: str
    kind: Rows | None = None
    change: Change | None = None


def _turned(frame: pd.DataFrame, which: Any) -> pd.DataFrame:
    other = frame[TARGET].map({"yes": "no", "no": "yes"})
    return frame.assign(**{TARGET: np.where(which, other, frame[TARGET])})


def _qnli(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    other = pd.read_parquet(datasets.folder() / "qnli_dev.parquet").sample(
        len(frame), random_state=int(rng.integers(2**31))
    )
    return pd.DataFrame({"text": other.sentence.to_numpy(), TARGET: _words(other.label.to_numpy() == 1)})


def _words(yes: Any) -> Any:
    return np.where(np.asarray(yes), "yes", "no").astype(object)


SHIFTS = {
    "adult, education": Shift("adult", "people without any college", lambda rows: rows.education_num <= 9),
    "adult, age": Shift("adult", "people below 30", lambda rows: rows.age < 30),
    "adult, sex": Shift("adult", "women", lambda rows: rows.sex == "Female"),
    "adult, flipped": Shift("adult", "every label is wrong", change=lambda rows, rng: _turned(rows, True)),
    "adult, noisy": Shift(
        "adult",
        f"{100 * NOISY:.0f} % of the labels are wrong",
        change=lambda rows, rng: _turned(rows, rng.random(len(rows)) < NOISY),
    ),
    "flights, month": Shift("flights late", "flights in January", lambda rows: rows.month == 1),
    "IPUMS, region": Shift("ipums-br", "people in the Northeast of Brazil", lambda rows: rows.x1 == 1),
    "SST-2, corpus": Shift("sst2", "sentences of Wikipedia: do they answer a question?", change=_qnli),
}
TOY = {"toy, job": Shift("toy", "nurses", lambda rows: rows.job == "nurse")}


@lru_cache(maxsize=1)
def _table(name: str) -> pd.DataFrame:
    if name == "toy":
        return toy(regression=False)
    if name == "sst2":
        found = datasets.load_table("sst2")
        found = found[found.split == "train"]
        return pd.DataFrame({"text": found.sentence.to_numpy(), TARGET: _words(found.label == 1)})
    frame = tables.table(name)
    frame = frame.assign(**{TARGET: frame[TARGET].str.removeprefix("class ")})
    return frame.rename(columns=lambda column: str(column).replace("-", "_"))


@lru_cache(maxsize=2)
def _shuffled(name: str, repeat: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    frame = _table(name).sample(frac=1, random_state=repeat)
    frame = frame[: MOST_ROWS.get(name, len(frame))].reset_index(drop=True)
    train = int(0.8 * len(frame))
    return frame[:train], frame[train:]


def declared(name: str) -> Schema:
    """What somebody who knows the table would write down, the same for every shift and split."""
    rows = _shuffled(name, 0)[0][-DECLARED_BY:]
    return Schema.learn(rows, TARGET, types=TEXT if name == "sst2" else {})


def split(shift: Shift, repeat: int, *, shifted: bool) -> Split:
    """Public rows of the shift's kind; without it the first rows."""
    train, test = _shuffled(shift.table, repeat)
    kind = shift.kind(train).to_numpy() if shifted and shift.kind else np.ones(len(train), dtype=bool)
    public = np.flatnonzero(kind)[: PUBLIC[shift.table]]
    chosen = train.iloc[public]
    if shifted and shift.change:
        chosen = shift.change(chosen, np.random.default_rng(repeat))
    return Split(chosen, train.drop(train.index[public]), test, regression=False)
