"""A thin metric is the whitening matrix that it stands for, and never measures a row too short."""

import sys

import numpy as np
import pytest
import scipy.sparse as sp
from tests.private_values import value_of

from sidelight.clipping import Features, ThinFeatures
from sidelight.data.rows import PrivateRows
from sidelight.errors import InputError
from sidelight.losses import Logistic
from sidelight.methods.parts import Flat
from sidelight.methods.public_whitening import Whitening
from sidelight.oracles.linear.linear_oracle import LinearOracle
from sidelight.oracles.linear.row_lengths import ThinLengths


def rows_of(m: int, p: int, seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).normal(size=(m, p))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def thin(X, monkeypatch, **options) -> ThinFeatures:
    monkeypatch.setattr(sys.modules[Whitening.__module__], "_WRITTEN_OUT", 1)
    metric = Whitening.metric(X, **options)
    assert isinstance(metric, ThinFeatures)
    return metric


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_it_is_the_matrix_of_whitening(unit, sparse, monkeypatch):
    X = rows_of(7, 30)
    whole = Whitening.metric(X, unit=unit, ridge=0.3)
    assert isinstance(whole, Features)
    metric = thin(sp.csr_array(X) if sparse else X, monkeypatch, unit=unit, ridge=0.3)
    v = np.random.default_rng(1).normal(size=60)
    assert metric.apply(v) == pytest.approx(whole.apply(v), rel=1e-9, abs=1e-12)
    assert metric.lift(v) == pytest.approx(whole.lift(v), rel=1e-9, abs=1e-12)
    image = X @ whole.matrix.T
    assert metric.gram(X) == pytest.approx(image @ image.T, rel=1e-9, abs=1e-12)
    assert metric.lengths(X) == pytest.approx(np.linalg.norm(image, axis=1))


def test_in_the_span_nothing_else_is_left(monkeypatch):
    X = rows_of(5, 30)
    metric = thin(X, monkeypatch, unit=True, span=True)
    outside = np.random.default_rng(1).normal(size=30)
    outside -= np.linalg.lstsq(X.T, outside, rcond=None)[0] @ X
    assert np.linalg.norm(metric.apply(outside)) < 1e-12 * np.linalg.norm(outside)
    inside = X[0]
    assert np.linalg.norm(metric.apply(inside)) > 0.3


@pytest.mark.parametrize("span", [True, False])
@pytest.mark.parametrize("scale", [1e-100, 1e-6, 1.0])
def test_no_row_is_measured_too_short(span, scale, monkeypatch):
    """Rows in the span of the public ones, outside of it and between."""
    public = rows_of(6, 40)
    metric = thin(public, monkeypatch, unit=True, span=span, ridge=1e-4)
    rng = np.random.default_rng(2)
    inside = rng.normal(size=(50, 6)) @ public
    X = np.vstack([inside, inside + 1e-9 * rng.normal(size=(50, 40)), rng.normal(size=(50, 40))])
    X *= scale / np.linalg.norm(X, axis=1, keepdims=True)
    rows = PrivateRows(X, np.ones(150), max_norm=1.0)
    oracle = LinearOracle(rows, Logistic())
    block = next(oracle._reader.blocks())
    measured = ThinLengths(metric, 150, 40)(block, np.ones(150))
    R, core = public.astype(np.longdouble), metric.core.astype(np.longdouble)
    exact = X.astype(np.longdouble) * metric.floor + (X.astype(np.longdouble) @ R.T) @ core @ R
    true = np.sqrt((exact**2).sum(axis=1))
    assert (measured >= true).all()
    assert (measured[100:] <= true[100:] * (1 + 1e-4) + 1e-150).all() or span


@pytest.mark.parametrize("relation, moves", [("add-or-remove-one", 1), ("replace-one", 2)])
def test_one_record_moves_a_sum_by_no_more_than_the_clip_norm(relation, moves, monkeypatch):
    public, X = rows_of(6, 40), rows_of(80, 40, seed=3)
    metric = thin(public, monkeypatch, unit=True, ridge=1e-3)
    y = np.where(np.arange(80) % 2 == 0, 1.0, -1.0)
    w = np.random.default_rng(4).normal(size=40)

    def total(X, y):
        oracle = LinearOracle(PrivateRows(X, y, max_norm=1.0), Logistic(), unit_under=metric)
        return oracle.clipped_sum(w, clip=Flat(0.35), metric=metric, relation=relation)

    first = total(X, y)
    assert first.sensitivity == pytest.approx(moves * 0.35)
    worst = 0.0
    for row in (*public, *X[:5], np.zeros(40), np.full(40, np.nan), np.full(40, 1e38)):
        for label in (1.0, -1.0, np.nan):
            others = [total(np.vstack([X[1:], row]), np.append(y[1:], label))]
            if relation == "add-or-remove-one":
                others = [total(np.vstack([X, row]), np.append(y, label)), total(X[1:], y[1:])]
            worst = max(worst, *(float(np.linalg.norm(value_of(o) - value_of(first))) for o in others))
    assert 0.2 < worst <= first.sensitivity


def test_a_core_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="m × m"):
        ThinFeatures(rows_of(4, 9), np.eye(3), 1.0)
    with pytest.raises(InputError, match="floor"):
        ThinFeatures(rows_of(4, 9), np.eye(4), -1.0)
