"""The tables, in two halves that were fixed before the first run, and one split of each for everybody.

Rows are shuffled by `sample(frac=1, random_state=repeat)`: the first are public, those up to 80 % private,
the rest is held out.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from experiments import datasets
from experiments.peers import splits
from experiments.peers.splits import TARGET as TARGET
from experiments.peers.splits import Split as Split

DEVELOPED = ("flights late", "adult", "magic04", "cadata", "bike", "stability", "satellite")
SCORED_ONCE = ("flights delay", "traffic", "ipums-br", "skin", "kddcup99", "poker", "flights carrier")
TOY = "toy numbers"
REGRESSIONS = ("cadata", "bike", "stability", "flights delay", "traffic", TOY)
MOST_ROWS = {"skin": 100_000, "kddcup99": 100_000}
PUBLIC = {"adult": 225, "flights late": 1_600, "flights delay": 583, "flights carrier": 1_600}
ROWS = {  # of a split, for the page
    "flights late": 327_346, "adult": 48_842, "magic04": 19_020, "cadata": 20_640, "bike": 17_379,
    "stability": 10_000, "satellite": 6_435, "flights delay": 327_346, "traffic": 48_204, "ipums-br": 38_000,
    "skin": 100_000, "kddcup99": 100_000, "poker": 99_998, "flights carrier": 336_776,
}  # fmt: skip
LEAST_PUBLIC, PUBLIC_SHARE = 200, 0.005
_AFTERWARDS = ["dep_time", "dep_delay", "arr_time", "air_time"]  # known only when a flight has left


@lru_cache(maxsize=1)
def split(name: str, repeat: int) -> Split:
    frame = table(name).sample(frac=1, random_state=repeat)
    frame = frame[: MOST_ROWS.get(name, len(frame))].reset_index(drop=True)
    public = PUBLIC.get(name, max(LEAST_PUBLIC, round(PUBLIC_SHARE * len(frame))))
    train = int(0.8 * len(frame))
    return Split(frame[:public], frame[public:train], frame[train:], name in REGRESSIONS)


@lru_cache(maxsize=1)
def table(name: str) -> pd.DataFrame:
    """A table with its columns, and the target under one name: a number, or a text."""
    if name.startswith("flights"):
        return _flights(name)
    if name in ("bike", "traffic", "satellite", "poker"):
        frame = datasets.load_table(name)
        last = {"bike": "cnt", "traffic": "traffic_volume"}.get(name, frame.columns[-1])
        return _with_target(frame.drop(columns=last), frame[last], regression=name in REGRESSIONS)
    return splits.table(name)


def _flights(name: str) -> pd.DataFrame:
    frame = datasets.load_table("flights")
    if name == "flights carrier":
        return _with_target(frame.drop(columns=["carrier", "flight", "tailnum"]), frame.carrier)
    frame = frame[frame.arr_delay.notna()]
    if name == "flights delay":
        return _with_target(frame.drop(columns="arr_delay"), frame.arr_delay, regression=True)
    late = pd.Series(np.where(frame.arr_delay > 15, "yes", "no"), index=frame.index)
    return _with_target(frame.drop(columns=["arr_delay", *_AFTERWARDS]), late)


def _with_target(frame: pd.DataFrame, target: pd.Series, *, regression: bool = False) -> pd.DataFrame:
    values = target.astype(float) if regression else target.map(lambda one: f"class {one}")
    return frame.assign(**{TARGET: values})
