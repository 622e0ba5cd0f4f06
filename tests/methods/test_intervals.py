"""Intervals of predictions: bounded by one record, inside the budget, and true."""

from pathlib import Path

import numpy as np
import pytest
from tests.contracts.neighbors import assert_bounded, largest_move

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.data.rows import PrivateRows
from sidelight.errors import InputError
from sidelight.losses import get_loss
from sidelight.methods.intervals import intervals_of
from sidelight.oracles.linear import score_counts
from sidelight.oracles.linear.score_counts import count_residuals
from sidelight.privacy.ledger import Ledger

AT = np.array([0.1, 0.3, 0.9, 2.0])
HOSTILE = [
    ((1e300, -1e300, 1.0), 1.0), ((np.nan, 0.0, 1.0), -1.0), ((np.inf, 1.0, 1.0), 1.0),
    ((9.0, -9.0, 1.0), -1.0),
    ((0.0, 0.0, 0.0), 1.0), ((1.0, 1.0, 1.0), np.nan), ((1.0, 0.0, 1.0), 0.99999995), ((1.0, 0.0, 1.0), 0.2),
]  # fmt: skip


def records(n: int = 12):
    rng = np.random.default_rng(0)
    return [(tuple(rng.normal(size=3)), float(rng.uniform(-1, 1))) for _ in range(n)]


def counted(relation: str):
    loss = get_loss("square")

    def summed(chosen):
        X, y = (np.array(part, dtype=float) for part in zip(*chosen, strict=True))
        rows = PrivateRows(X, y, max_norm=1.0, admits=loss.admits)
        return count_residuals(rows, np.array([[3.0, -2.0, 1.0]]), AT, relation=relation, clipped=True)

    return summed


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_one_record_moves_the_counts_at_most_by_their_sensitivity(relation: str) -> None:
    assert assert_bounded(counted(relation), records(), HOSTILE, relation=relation) > 0.5


def test_contract_catches_a_clipped_record_that_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_counts, "_beyond", lambda y: -4.0 * (np.abs(y) == 1))
    assert largest_move(counted("replace-one"), records(), HOSTILE) > np.sqrt(2)


def data(n: int, seed: int):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 4))
    return X, 10 * X[:, 0] + 5 * np.abs(X[:, 1]) + 2 * rng.standard_t(5, size=n)


@pytest.fixture(scope="module")
def model() -> PrivateRegressor:
    return PrivateRegressor(epsilon=1.0, delta=1e-6, random_state=0).fit(*data(12_000, 0), *data(200, 1))


def share_within(model: PrivateRegressor, coverage: float) -> float:
    X, y = data(20_000, 2)
    low, high = model.predict_interval(X, coverage).T
    return float(((low <= y) & (y <= high)).mean())


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_intervals_cover_what_they_say(model: PrivateRegressor, coverage: float) -> None:
    assert model.intervals_ is not None and model.intervals_.source == "private"
    assert share_within(model, coverage) == pytest.approx(coverage, abs=0.025)


def test_the_counts_are_in_the_plan_and_can_be_left_out(model: PrivateRegressor) -> None:
    assert model.privacy_.epsilon <= 1.0
    assert [line for line in model.history_ if line.get("released") == "counts of residuals"]
    other = PrivateRegressor(epsilon=1.0, delta=1e-6, intervals=False).fit(*data(12_000, 0), *data(200, 1))
    assert not [line for line in other.history_ if line.get("released") == "counts of residuals"]
    assert other.intervals_ is not None and other.intervals_.source == "public"
    assert share_within(other, 0.9) > 0.85


def test_small_budgets_have_public_intervals_and_none_without_public_rows() -> None:
    small = PrivateRegressor(epsilon=0.1, random_state=0).fit(*data(500, 0), *data(60, 1))
    assert small.intervals_ is not None and small.intervals_.source == "public"
    alone = PrivateRegressor(epsilon=0.1, bounds=(-1, 1), target_bounds=(-20, 20)).fit(*data(500, 0))
    with pytest.raises(InputError, match="residuals"):
        alone.predict_interval(data(5, 3)[0])


@pytest.mark.parametrize("coverage", [0, 1, 1.5, float("nan")])
def test_a_coverage_is_a_share(model: PrivateRegressor, coverage: float) -> None:
    with pytest.raises(InputError, match="coverage"):
        model.predict_interval(data(5, 3)[0], coverage)


def test_intervals_are_saved(model: PrivateRegressor, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    again, X = PrivateRegressor.load(tmp_path / "m"), data(5, 3)[0]
    np.testing.assert_array_equal(again.predict_interval(X), model.predict_interval(X))


def test_a_tail_that_was_clipped_is_as_long_as_the_public_one() -> None:
    beyond = np.concatenate([np.linspace(0.9, 0.05, 20), [0.05]])
    public = np.concatenate([np.full(95, 0.5), [2.0, 3.0, 4.0, 5.0, 6.0]])
    found = intervals_of(beyond, public, 1.0)
    assert found is not None and found.half_width(0.99) > 3 and found.half_width(0.5) < 1


def test_a_ledger_pays_for_them_in_one_charge(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "l.ledger")
    book.register("d", epsilon=1.0, delta=1e-6, relation="replace-one")
    PrivateRegressor(epsilon=1.0, ledger=book, dataset="d").fit(*data(12_000, 0), *data(200, 1))
    assert len(book.charges("d")) == 1


def test_classes_have_no_intervals() -> None:
    assert not hasattr(PrivateClassifier(epsilon=1.0), "predict_interval")
