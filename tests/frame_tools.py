"""Frames with columns of every type, in pandas and in polars."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.methods.output_perturbation import output_perturbation

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

LIBRARIES = ("pandas", "polars")
FAST = output_perturbation(iterations=3)
KINDS = {
    "age": "number",
    "pay": "number",
    "children": "number",
    "price": "number",
    "insured": "boolean",
    "smokes": "boolean",
    "job": "category",
    "level": "category",
    "zip": "code",
    "born": "date",
    "seen": "date",
    "opens": "date",
    "note": "ignore",
}


def mixed(rows: int, seed: int = 0) -> Any:
    """Every type of column; `sick`, in yes and no, depends on age, job, born and smokes."""
    rng = np.random.default_rng(seed)
    days = rng.integers(0, 3000, rows)
    seen = pd.Timestamp("2018-01-01") + pd.to_timedelta(rng.integers(0, 10**8, rows), "s")
    gaps = rng.random((rows, 3)) < 0.2
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows),
            "pay": np.where(gaps[:, 0], np.nan, rng.normal(3, 1, rows).round(2)),
            "children": pd.array(rng.integers(0, 12, rows), dtype="Int64"),
            "price": [Decimal(int(x)).scaleb(-2) for x in rng.integers(100, 999, rows)],
            "insured": rng.random(rows) < 0.5,
            "smokes": pd.array(rng.random(rows) < 0.5, dtype="boolean"),
            "job": pd.Series(rng.choice(["nurse", "smith", "clerk"], rows)).mask(gaps[:, 1]),
            "level": pd.Categorical(rng.choice(["low", "high"], rows)),
            "zip": [f"0{x}" for x in rng.integers(1000, 1010, rows)],
            "born": [datetime.date(1950, 1, 1) + datetime.timedelta(int(d)) for d in days],
            "seen": seen.where(~gaps[:, 2]),
            "opens": [datetime.time(int(h), 30) for h in rng.integers(0, 24, rows)],
            "note": [f"a text of five words {x}" for x in rng.integers(0, 10**9, rows)],
        }
    )
    frame.loc[:2, ["children", "smokes"]] = pd.NA
    score = frame.age + 15 * (frame.job == "smith") + days / 150 + 8 * frame.smokes.fillna(False).astype(int)
    frame["sick"] = np.where(score + rng.normal(0, 4, rows) > 68, "yes", "no")
    return frame


def split(frame: Any, library: str) -> tuple[Any, Any]:
    """Features and targets, as frames and series of a library."""
    X, y = frame.drop(columns="sick").reset_index(drop=True), frame["sick"].reset_index(drop=True)
    if library == "pandas":
        return X, y
    return to_polars(X), to_polars(y.to_frame())["sick"]


def to_polars(frame: Any) -> Any:
    return pytest.importorskip("polars").from_pandas(frame)


def classifier(**changes: Any) -> PrivateClassifier:
    return PrivateClassifier(FAST, **{"random_state": 0, "epsilon": 5.0, "delta": 1e-6, **changes})


def regressor(**changes: Any) -> PrivateRegressor:
    return PrivateRegressor(FAST, **{"random_state": 0, "epsilon": 5.0, "delta": 1e-6, **changes})


PRIVATE, PUBLIC, NEW = mixed(600), mixed(150, seed=1), mixed(400, seed=2)


def fitted(library: str = "pandas", **changes: Any) -> PrivateClassifier:
    return classifier(**changes).fit(*split(PRIVATE, library), *split(PUBLIC, library))
