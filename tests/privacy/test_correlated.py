"""Correlated runs as events: exact sensitivity, what they cost, and what is refused.

`correlated_plans.json` holds the ε of 66 plans as jax_privacy 2.0 gives them (its events and sensitivities,
by the PLD accountant of dp-accounting): turns that are sampled, turns of everyone, batches of limited size.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidelight.errors import BudgetExceeded, InputError, PrivacyConditionError, RelationError
from sidelight.privacy import accountants, correlated, events, filters
from sidelight.privacy.correlated import CorrelatedGaussian, reduced
from sidelight.privacy.strategies import Strategy, inverse_square_root

AR, RO = "add-or-remove-one", "replace-one"
ROWS = json.loads((Path(__file__).parent / "correlated_plans.json").read_text())


def event_of(row: dict) -> CorrelatedGaussian:
    q, largest = row["sampling_probability"], row["largest"]
    full = correlated.overflow(row["records"], sampling_probability=q, largest=largest) if largest else 0.0
    return CorrelatedGaussian(
        row["noise_multiplier"], row["coefficients"], row["inverse"], row["steps"], row["separation"],
        row["participations"], q, full,
    )  # fmt: skip


def plain(**changes: object) -> CorrelatedGaussian:
    fields = {
        "noise_multiplier": 2.0, "coefficients": (1.0, 0.5), "inverse": 0, "steps": 12, "separation": 3,
        "participations": 4, "sampling_probability": 0.1, "overflow": 0.0,
    }  # fmt: skip
    return CorrelatedGaussian(**{**fields, **changes})


# ---------------------------------------------------------------------------------------------------
# sensitivity


def matrix(strategy: Strategy, steps: int) -> np.ndarray:
    column = strategy.column(steps)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def by_all_patterns(strategy: Strategy, steps: int, separation: int, participations: int) -> float:
    C = matrix(strategy, steps)
    gram, best = np.abs(C.T @ C), 0.0
    for count in range(1, participations + 1):
        for pattern in itertools.combinations(range(steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(pattern)):
                best = max(best, float(gram[np.ix_(pattern, pattern)].sum()))
    return math.sqrt(best)


@settings(max_examples=80, deadline=None)
@given(
    rest=st.lists(st.floats(-1, 1), max_size=3),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4)),
    kind=st.sampled_from(["any", "falling", "inverse"]),
)
def test_sensitivity_is_the_largest_over_all_patterns(rest, shape, kind):
    steps, separation, participations = shape
    if kind == "falling":
        rest = sorted((abs(c) for c in rest), reverse=True)
    strategy = Strategy((1.0, *rest))
    if kind == "inverse":
        strategy = inverse_square_root(len(rest) + 1, np.array([1.0, -1.0]))
    found = strategy.sensitivity(steps=steps, separation=separation, participations=participations)
    truth = by_all_patterns(strategy, steps, separation, participations)
    assert found >= truth * (1 - 1e-12)
    if kind != "any" or strategy.bands <= separation:
        assert found == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("bands", [2, 4, 16])
@pytest.mark.parametrize("contraction", [0.0, 0.3])
def test_the_computed_column_of_an_inverse_is_within_its_bound(bands, contraction):
    strategy, steps = inverse_square_root(bands, np.array([1.0, contraction - 1.9, 0.9])), 400
    with mp.workdps(60):
        own, exact = [mp.mpf(c) for c in strategy.coefficients], [mp.mpf(1)]
        for t in range(1, steps):
            exact.append(-mp.fsum(own[j] * exact[t - j] for j in range(1, min(bands, t + 1))))
        off = max(abs(mp.mpf(c) - e) for c, e in zip(strategy.column(steps), exact, strict=True))
    assert off <= strategy._column_error(steps) < 1e-6


def test_a_strategy_that_grows_without_limit_hides_nothing():
    grows = Strategy((1.0, 3.0, 5.0), inverse=True)
    assert grows.sensitivity(steps=5000, separation=10, participations=3) == math.inf


def test_a_column_and_its_inverse_multiply_to_one():
    for strategy in (Strategy((1.0, 0.6, 0.3)), inverse_square_root(4, np.array([1.0, -1.9, 0.9]))):
        product = np.convolve(strategy.column(20), strategy.weights(20))[:20]
        assert np.allclose(product, np.eye(1, 20)[0], atol=1e-12)


def test_the_inverse_square_root_of_sums_has_its_known_bands():
    assert inverse_square_root(4, np.array([1.0, -1.0])).coefficients == (1.0, -0.5, -0.125, -0.0625)


# ---------------------------------------------------------------------------------------------------
# cost


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{row['kind']}" for i, row in enumerate(ROWS)])
def test_epsilon_agrees_with_jax_privacy(row):
    found = accountants.epsilon(event_of(row), delta=row["delta"], relation=AR)
    crowded = row["kind"] == "limited" and event_of(row).overflow * row["steps"] > 0.1 * row["delta"]
    if crowded:  # a union bound over turns, where theirs composes each
        assert found > row["epsilon"]
    else:
        assert found == pytest.approx(row["epsilon"], rel=0.01)


def test_at_least_fifty_plans_are_compared_closely():
    close = [row for row in ROWS if row["kind"] != "limited"]
    assert len(close) >= 50


def test_one_band_without_turns_is_dp_sgd():
    event = plain(coefficients=(1.0,), separation=1, participations=12)
    plan = events.repeat(events.poisson(0.1, 2.0), 12)
    assert accountants.epsilon(event, delta=1e-5, relation=AR) == pytest.approx(
        accountants.epsilon(plan, delta=1e-5, relation=AR)
    )


def test_everyone_in_turn_is_one_gaussian():
    event = plain(sampling_probability=1.0)
    reach = math.sqrt(4 * (1 + 0.25))
    assert accountants.gdp(event) == pytest.approx(reach / 2.0)
    assert accountants.epsilon(event, delta=1e-5, relation=RO) == pytest.approx(
        accountants.epsilon(events.gaussian(2.0 / reach), delta=1e-5, relation=RO)
    )


def test_a_limit_costs_at_least_its_overflow():
    free, limited = plain(), plain(overflow=1e-7)
    assert accountants.delta(limited, epsilon=1.0, relation=AR) >= accountants.delta(
        free, epsilon=1.0, relation=AR
    )
    with pytest.raises(InputError):
        plain(overflow=0.3)
    assert accountants.epsilon(plain(overflow=1e-5), delta=1e-5, relation=AR) == math.inf


def test_overflow_is_that_others_fill_the_batch():
    exact = sum(math.comb(20, k) * 0.1**k * 0.9 ** (20 - k) for k in range(5, 21))
    found = correlated.overflow(20, sampling_probability=0.1, largest=5)
    assert exact <= found <= exact * (1 + 1e-6)
    assert correlated.overflow(4, sampling_probability=0.1, largest=5) == 0.0


def test_events_that_differ_in_anything_cost_their_own():
    base = accountants.epsilon(plain(), delta=1e-5, relation=AR)
    more = [
        plain(steps=24, participations=8),
        plain(coefficients=(1.0, 0.9)),
        plain(sampling_probability=0.2),
    ]
    assert all(accountants.epsilon(one, delta=1e-5, relation=AR) > base for one in more)


@pytest.mark.parametrize(
    "changes", [{"separation": 1}, {"inverse": 1}, {"coefficients": (1.0, 0.5, 0.2, 0.1)}]
)
def test_sampled_turns_that_are_not_proved_are_refused_by_every_accountant(changes):
    event = plain(**changes)
    for ask in (
        lambda: accountants.epsilon(event, delta=1e-5, relation=AR),
        lambda: accountants.rdp(event, orders=[2.0], relation=AR),
        lambda: filters.RenyiFilter(epsilon=1, delta=1e-5, order=16, relation=AR).admit(event),
        lambda: filters.GaussianFilter(epsilon=1, delta=1e-5, relation=AR).admit(event),
    ):
        with pytest.raises(PrivacyConditionError, match="not proved"):
            ask()


def test_sampled_turns_are_refused_under_replace_one():
    with pytest.raises(RelationError):
        accountants.epsilon(plain(), delta=1e-5, relation=RO)


def test_filters_price_a_run_as_what_it_is_reduced_to():
    event, everyone = plain(noise_multiplier=30.0), plain(noise_multiplier=30.0, sampling_probability=1.0)
    for order in (16.0, 32.0):
        meter = filters.RenyiFilter(epsilon=1, delta=1e-5, order=order, relation=AR)
        assert meter.cost(event) == meter.cost(reduced(event))
    gaussian = filters.GaussianFilter(epsilon=1, delta=1e-5, relation=AR)
    assert gaussian.cost(everyone) == gaussian.cost(reduced(everyone))
    with pytest.raises(BudgetExceeded):
        gaussian.admit(plain(noise_multiplier=0.5, sampling_probability=1.0))
    budget = filters.Budget.new(epsilon=2.0, delta=1e-5, relation=AR)
    assert budget.spent([event]).rdp == budget.spent([reduced(event)]).rdp


def test_a_limited_run_is_priced_as_its_sampled_turns_and_the_leak():
    budget = filters.Budget.new(epsilon=4.0, delta=1e-6, relation=AR)
    free, limited = plain(noise_multiplier=3.0), plain(noise_multiplier=3.0, overflow=1e-8)
    spent = budget.spent([limited])
    assert spent.rdp == budget.spent([free]).rdp
    assert spent.leak == pytest.approx(4e-8)
    tally = filters.Tally(budget)
    tally.add(limited)
    assert tally.spent().leak == pytest.approx(4e-8) and tally.spent().rdp == spent.rdp
    tally.add(limited, -1)
    assert tally.spent() == filters.Tally(budget).spent()
    assert budget.used(spent) == budget.used(budget.spent([free])) < 4


def test_an_event_is_stored_and_described():
    event = plain(overflow=1e-9)
    assert events.from_json(json.loads(json.dumps(events.to_json(event)))) == event
    for word in ("12 steps", "2 bands", "4 turns", "q=0.1"):
        assert word in events.describe(event)


def test_sums_of_an_event_inside_of_others_are_reduced():
    event = events.compose(events.repeat(plain(), 2), events.gaussian(5.0))
    assert events.elementary(reduced(event)) == events.elementary(
        events.compose(events.repeat(reduced(plain()), 2), events.gaussian(5.0))
    )
