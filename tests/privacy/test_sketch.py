"""Gaussian sketches: the curve of their event, the pairs that it dominates, and the door that draws them."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import gammainc, gammaincc

from sidelight.errors import PrivacyConditionError
from sidelight.privacy import accountants, events, pld
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum, release_sketch

AR, RO = "add-or-remove-one", "replace-one"
BOTH: tuple[Any, ...] = (AR, RO)


class Book:
    def __init__(self) -> None:
        self.charged: list[events.Event] = []

    def charge(self, event: events.Event) -> None:
        self.charged.append(event)


# ---------------------------------------------------------------------------------------------------
# the curve


def exact(rows: int, growth: float, epsilon: float) -> tuple[Any, Any]:
    """H of k × N(0, 1+w) against k × N(0, 1), and the other way, in 50 digits."""
    with mpmath.workdps(50):
        half, w, e = mpmath.mpf(rows) / 2, mpmath.mpf(growth), mpmath.mpf(epsilon)
        middle = half * mpmath.log1p(w)
        x, y = (e + middle) * (1 + w) / w, max(middle - e, mpmath.mpf(0)) * (1 + w) / w
        above = lambda t: mpmath.gammainc(half, t, mpmath.inf, regularized=True)  # noqa: E731
        below = lambda t: mpmath.gammainc(half, 0, t, regularized=True)  # noqa: E731
        grow = mpmath.exp(e)
        return above(x / (1 + w)) - grow * above(x), below(y) - grow * below(y / (1 + w))


@pytest.mark.parametrize(("rows", "growth"), [(1, 0.5), (30, 0.05), (150, 1e-3), (2000, 1e-4), (40, 3.0)])
def test_the_curve_is_above_the_exact_one_and_next_to_it(rows: int, growth: float) -> None:
    curve = pld.sketch_curve(rows, growth)
    for epsilon in np.array([0.0, 0.5, 1.0, 3.0, 6.0]) * curve.deviation:
        for side, truth in zip((curve.forward, curve.backward), exact(rows, growth, epsilon), strict=True):
            found = float(side(np.array([epsilon]))[0])
            assert found >= truth
            assert found <= float(truth) * (1 + 1e-6) + 1e-13


def test_incomplete_gamma_functions_are_as_right_as_the_curve_takes_them() -> None:
    for half in (0.5, 25.0, 75.0, 1000.0, 40_000.0):
        for z in (-6.0, -1.0, 0.5, 4.0, 11.0):
            x = half + z * math.sqrt(half)
            if x <= 0:
                continue
            with mpmath.workdps(40):
                above = mpmath.gammainc(half, x, mpmath.inf, regularized=True)
                below = mpmath.gammainc(half, 0, x, regularized=True)
                assert abs(gammaincc(half, x) / above - 1) < 5e-12
                assert abs(gammainc(half, x) / below - 1) < 5e-12


@pytest.mark.parametrize("relation", BOTH)
def test_sketches_of_the_same_records_are_one_with_more_rows(relation: Any) -> None:
    """The rows are independent: composition by Fourier transform against one closed form."""
    split = events.repeat(events.GaussianSketch(30, 0.02), 4)
    whole = events.GaussianSketch(120, 0.02)
    costs = [accountants.epsilon(event, delta=1e-6, relation=relation) for event in (whole, split)]
    assert costs[0] <= costs[1] * (1 + 1e-3) and costs[1] <= costs[0] * (1 + 1e-3)


@pytest.mark.parametrize("relation", BOTH)
def test_the_renyi_bound_is_above_and_not_far(relation: Any) -> None:
    event = events.GaussianSketch(100, 0.01)
    tight = accountants.epsilon(event, delta=1e-6, relation=relation)
    assert tight <= accountants.epsilon(event, delta=1e-6, relation=relation, accountant="rdp") < 1.2 * tight


def test_a_replaced_record_costs_more_than_one_added_and_less_than_two() -> None:
    event = events.GaussianSketch(100, 0.01)
    added, replaced = (accountants.epsilon(event, delta=1e-6, relation=relation) for relation in BOTH)
    assert 1.2 * added < replaced < 2 * added


def test_a_smaller_growth_costs_less() -> None:
    costs = [
        accountants.epsilon(events.GaussianSketch(50, w), delta=1e-6, relation=AR) for w in (0.01, 0.02, 0.04)
    ]
    assert costs == sorted(costs)


# ---------------------------------------------------------------------------------------------------
# what it dominates: covariances of neighboring records


def renyi(one: np.ndarray, other: np.ndarray, order: float) -> float:
    """D_a of N(0, one) from N(0, other)."""
    mixed = order * other + (1 - order) * one
    if np.linalg.eigvalsh(mixed)[0] <= 0:
        return math.inf
    logs = [np.linalg.slogdet(matrix)[1] for matrix in (mixed, one, other)]
    return float(-(logs[0] - (1 - order) * logs[1] - order * logs[2]) / (2 * (order - 1)))


def largest_share(relation: Any, *, claimed: float, order: float = 8.0) -> float:
    """The divergence of sketches of neighbors over what the event says; ridge 20, rows of norm 1."""
    rng, ridge, worst = np.random.default_rng(0), 20.0, 0.0
    event = events.GaussianSketch(1, claimed)
    bound = accountants.rdp(event, orders=(order,), relation=relation)[0]
    for trial in range(200):
        p, n = 3, int(rng.integers(0, 5))
        base = rng.standard_normal((n, p)) * rng.choice([0.0, 0.2, 1.0])
        base /= np.maximum(1, np.linalg.norm(base, axis=1, keepdims=True))
        first, second = (v / np.linalg.norm(v) for v in rng.standard_normal((2, p)))
        if trial % 4 == 0:
            second = second - (second @ first) * first  # orthogonal records are the furthest apart
            second /= np.linalg.norm(second)
        common = base.T @ base + ridge * np.eye(p)
        with_ = common + np.outer(first, first)
        other = common + (np.outer(second, second) if relation == RO else 0)
        worst = max(worst, renyi(with_, other, order), renyi(other, with_, order))
    return worst / float(bound)


@pytest.mark.parametrize("relation", BOTH)
def test_the_event_dominates_sketches_of_neighboring_records(relation: Any) -> None:
    assert 0.99 < largest_share(relation, claimed=1 / 20) <= 1 + 1e-9


@pytest.mark.parametrize("relation", BOTH)
def test_contract_catches_a_growth_that_is_too_small(relation: Any) -> None:
    assert largest_share(relation, claimed=1 / 22) > 1.1


# ---------------------------------------------------------------------------------------------------
# the door


def drawn(matrix: np.ndarray, *, ridge: float = 5.0, seed: int = 0, **changes: Any) -> np.ndarray:
    options = {"event": events.GaussianSketch(40, 1 / 5), "relation": AR, "sensitivity": 1.0, **changes}
    moment = BoundedSum(matrix, sensitivity=options["sensitivity"], relation=options["relation"])
    out = release_sketch(moment, ridge=ridge, event=options["event"], account=Book(), noise=Noise(seed))
    return np.asarray(out.numpy())


def test_the_matrix_has_the_law_of_a_sketch() -> None:
    """Against rows that are mixed for real, SX + √ridge·N: the same means and the same variances."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3)) * np.array([1.0, 0.5, 0.1])
    ours = np.array([drawn(X.T @ X, seed=seed) for seed in range(600)])
    mixed = [rng.standard_normal((40, 60)) @ X + math.sqrt(5.0) * rng.standard_normal((40, 3)) for _ in ours]
    theirs = np.array([rows.T @ rows for rows in mixed])
    error = theirs.std(axis=0) / math.sqrt(len(ours))
    np.testing.assert_array_less(np.abs(ours.mean(axis=0) - 40 * (X.T @ X + 5 * np.eye(3))), 4 * error)
    np.testing.assert_array_less(np.abs(ours.mean(axis=0) - theirs.mean(axis=0)), 5.5 * error)
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), rtol=0.15)


def test_a_sketch_is_the_one_that_its_event_describes() -> None:
    eye, root = np.eye(3), math.sqrt(2)
    drawn(eye)
    drawn(eye, sensitivity=root, relation=RO)  # two orthogonal records of length 1
    for change in (
        {"ridge": 4.99}, {"ridge": math.nan}, {"ridge": 0.0}, {"sensitivity": 1.01},
        {"sensitivity": 1.01 * root, "relation": RO}, {"event": events.gaussian(1.0)},
    ):  # fmt: skip
        with pytest.raises(PrivacyConditionError):
            drawn(eye, **change)


def test_a_matrix_that_is_not_finite_or_not_positive_is_sketched_in_silence() -> None:
    for value in (np.full((2, 2), np.nan), np.diag([np.inf, 1.0]), -np.eye(2)):
        out = drawn(value)
        assert np.isfinite(out).all() and np.linalg.eigvalsh(out)[0] > 0


def test_noise_of_a_seed_depends_on_what_it_hides() -> None:
    here, again, there = drawn(np.eye(3)), drawn(np.eye(3)), drawn(np.eye(3) * (1 + 1e-12))
    np.testing.assert_array_equal(here, again)
    assert np.abs(here - there).max() > 1
