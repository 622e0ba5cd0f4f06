"""Encoded private rows are bounded where they are: one copy of them, and never the user's own array."""

from typing import Any

import numpy as np
import pytest

from sidelight.data.coordinates import Bounds, Coordinates, bound_rows
from sidelight.data.rows import PrivateRows, contents
from sidelight.estimators import PrivateClassifier
from sidelight.tables import fit_tables

pd = pytest.importorskip("pandas")


def frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {f"job{k}": rng.choice([f"{k}{letter}" for letter in "abcdefgh"], rows) for k in range(12)}
    z = rng.normal(size=rows)
    return pd.DataFrame({**columns, "z": z, "target": np.where(z + rng.normal(size=rows) > 0, "yes", "no")})


def test_rows_bounded_in_place_are_the_same_rows() -> None:
    rng = np.random.default_rng(0)
    wide = np.zeros((500, 8), dtype=np.float32)
    X = wide[:, :5]
    X[:] = rng.normal(size=X.shape)
    X[3, 1], X[4, 2] = np.nan, np.inf
    bounds = Bounds(np.full(5, -1.0), np.full(5, 2.0), np.full(5, 0.5))
    extra = rng.uniform(-1, 1, (500, 2))
    apart = bound_rows(X.copy(), bounds, extra=extra)
    placed = bound_rows(X, bounds, extra=extra, in_place=True)
    assert placed is wide and np.array_equal(placed, apart) and not placed[3].any()


def test_a_view_without_enough_room_is_copied() -> None:
    wide = np.ones((4, 6), dtype=np.float32)
    bounded = bound_rows(wide[:, :2], Bounds(np.zeros(2), np.ones(2), np.zeros(2)), in_place=True)
    assert (wide == 1).all() and bounded.shape == (4, 3)


def test_arrays_and_frames_of_users_are_not_touched() -> None:
    rng = np.random.default_rng(0)
    everything = rng.uniform(-1, 1, (2000, 6))
    X, y = everything[:, :5], (everything[:, 0] > 0).astype(int)
    before = everything.copy()
    public = {"X_public": X[:30].copy(), "y_public": y[:30]}  # too few for a guide: one column more in all
    PrivateClassifier(epsilon=1.0, random_state=0).fit(X, y, **public)
    assert np.array_equal(everything, before)
    table = frame(500, 0)
    kept = table.copy(deep=True)
    fit_tables(table, frame(60, 1), target="target", epsilon=1.0, random_state=0)
    pd.testing.assert_frame_equal(table, kept)


def test_a_fit_of_a_frame_holds_one_copy_of_the_encoded_records(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[bool] = []
    of_target = Coordinates.of_target

    def seen(self: Coordinates, X: np.ndarray, *args: Any, **options: Any) -> PrivateRows:
        rows = of_target(self, X, *args, **options)
        shared.append(np.shares_memory(X, contents(rows)[0]))
        return rows

    monkeypatch.setattr(Coordinates, "of_target", seen)
    fit_tables(frame(500, 0), frame(60, 1), target="target", epsilon=1.0, random_state=0)
    assert shared and all(shared)
