"""Random allocation: bounds by convex order against direct integration, simulation, and the run itself."""

from __future__ import annotations

import json
import math

import attr
import numpy as np
import pytest
from scipy.special import ndtr
from tests.privacy.test_correlated_attacks import excess

from sidelight.errors import InputError, RelationError
from sidelight.methods import BandedNoise, dp_sgd
from sidelight.privacy import accountants, events, filters
from sidelight.privacy.allocation import allocation_curve
from sidelight.privacy.conversions import gaussian_delta_bound
from sidelight.privacy.correlated import AllocatedGaussian, CorrelatedGaussian, reduced, without_sampling
from sidelight.privacy.strategies import Strategy
from sidelight.privacy.turns import Turns

AR, RO = "add-or-remove-one", "replace-one"
EPSILONS = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 1.5])


def call(strike: np.ndarray, mu: float) -> np.ndarray:
    """E(Y − k)₊ for Y = exp(μX − μ²/2); E(k − Y)₊ = it − 1 + k."""
    k = np.maximum(strike, 1e-300)
    d = (-np.log(k) + mu * mu / 2) / mu
    return np.where(strike <= 0, 1 - strike, ndtr(d) - k * ndtr(d - mu))


def exact(mu: float, bins: int, epsilon: float) -> tuple[float, float]:
    """Both divergences: all but one of the Y on a grid of Gauss's nodes, the last one in closed form."""
    x = np.linspace(-12, 12, 1201)
    weight = np.exp(-x * x / 2)
    weight /= weight.sum()
    y = np.exp(mu * x - mu * mu / 2)
    others, chance = np.zeros(1), np.ones(1)
    for _ in range(bins - 1):
        others = np.add.outer(others, y).ravel()
        chance = np.multiply.outer(chance, weight).ravel()
    t = math.exp(epsilon)
    forward = call(bins * t - others, mu) / bins
    strike = bins / t - others
    backward = t / bins * (call(strike, mu) - 1 + strike)
    return float(chance @ forward), float(chance @ np.maximum(backward, 0))


@pytest.mark.parametrize("bins", [2, 3])
@pytest.mark.parametrize("mu", [0.3, 0.7, 1.2])
def test_the_bound_is_close_above_direct_integration(mu, bins):
    curve = allocation_curve(mu, bins)
    for epsilon in EPSILONS:
        truth = exact(mu, bins, float(epsilon))
        for side, found in zip((curve.forward, curve.backward), truth, strict=True):
            bound = float(side(np.array([epsilon]))[0])
            assert found * (1 - 1e-9) - 1e-12 <= bound <= found * 1.02 + 2e-4 * mu


@pytest.mark.parametrize(("mu", "bins"), [(0.5, 40), (1.0, 20), (1.5, 8), (2.5, 6)])
def test_the_bound_is_above_simulation_and_at_most_that_of_a_known_place(mu, bins):
    rng = np.random.default_rng(0)
    ratio = np.exp(mu * rng.normal(size=(200_000, bins)) - mu * mu / 2).mean(axis=1)
    curve = allocation_curve(mu, bins)
    for epsilon in EPSILONS:
        at = np.array([epsilon])
        for side, beyond in (
            (curve.forward, np.maximum(ratio - math.exp(epsilon), 0)),
            (curve.backward, np.maximum(1 - math.exp(epsilon) * ratio, 0)),
        ):
            error = float(beyond.std()) / math.sqrt(len(beyond))
            bound = float(side(at)[0])
            assert float(beyond.mean()) - 5 * error <= bound <= float(gaussian_delta_bound(epsilon, mu))


@pytest.mark.parametrize("mu", [8.0, 36.0, 45.0])
@pytest.mark.parametrize("bins", [2, 7])
def test_no_mass_is_lost_next_to_0_where_noise_is_tiny(mu, bins):
    """A record that is found for certain: most of Y lies below any number that a computer knows."""
    curve, at = allocation_curve(mu, bins), np.array([0.0, 5.0])
    for side in (curve.forward, curve.backward):
        assert (side(at) >= 0.99).all()


def test_curves_fall_and_stay_bounds_far_out():
    curve, at = allocation_curve(0.8, 30), np.linspace(0, 12, 200)
    for side in (curve.forward, curve.backward):
        values = side(at)
        assert (values >= 0).all() and values[-1] < 1e-6
        assert (values <= np.asarray(gaussian_delta_bound(at, 0.8))).all()


# ---------------------------------------------------------------------------------------------------
# runs


RUNS = {
    "bands fill half of a cycle": Turns(1.0, 4, 12, Strategy((1.0, 0.7)), secret=True),
    "one band": Turns(1.0, 5, 10, Strategy((1.0,)), secret=True),
    "a rest": Turns(1.0, 5, 13, Strategy((1.0, -0.6)), secret=True),
    "the last columns are cut off": Turns(1.0, 6, 8, Strategy((1.0, 0.8, 0.5)), secret=True),
}


@pytest.mark.parametrize("name", RUNS)
def test_no_observer_tells_more_than_the_event(name):
    turns = RUNS[name]
    event = turns.run(10, 1.3)
    assert isinstance(reduced(event), AllocatedGaussian)
    assert excess(turns, 1.3, None, event) < 5


def test_a_place_that_is_seen_tells_more():
    turns = RUNS["one band"]
    assert excess(turns, 1.3, 0, turns.run(10, 1.3)) > 8


def test_groups_that_overlap_would_promise_too_much():
    """As many bins as places, though bands overlap."""
    turns, z = Turns(1.0, 4, 12, Strategy((1.0, 0.9)), secret=True), 1.3
    wrong = AllocatedGaussian(z / math.sqrt(3 * 1.81), 4)
    bound = accountants.delta(wrong, epsilon=0.3, relation=AR)
    assert bound < accountants.delta(turns.run(10, z), epsilon=0.3, relation=AR)


def test_it_costs_less_than_turns_that_may_be_seen():
    secret = Turns(1.0, 20, 100, Strategy((1.0, 0.5)), secret=True)
    seen = attr.evolve(secret.run(10, 5.0), secret=0)
    cost = [accountants.epsilon(e, delta=1e-5, relation=AR) for e in (secret.run(10, 5.0), seen)]
    assert cost[0] < 0.7 * cost[1]
    assert without_sampling(secret.run(10, 5.0)) == reduced(seen)


def test_it_is_refused_where_it_is_not_proved():
    event = RUNS["one band"].run(10, 1.3)
    for relation_fault in (
        lambda: accountants.epsilon(event, delta=1e-5, relation=RO),
        lambda: accountants.rdp(event, orders=[2.0], relation=RO),
        lambda: Turns(1.0, 5, 10, Strategy((1.0,)), None, RO, secret=True),
        lambda: Turns(0.5, 5, 10, Strategy((1.0,)), secret=True),
    ):
        with pytest.raises(RelationError):
            relation_fault()
    with pytest.raises(InputError, match="secret places"):
        CorrelatedGaussian(1.0, (1.0, -0.5), 1, 10, 5, 2, secret=1)


def test_it_is_stored_described_and_filtered():
    run = RUNS["one band"].run(10, 6.0)
    for event in (run, reduced(run)):
        assert events.from_json(json.loads(json.dumps(events.to_json(event)))) == event
        assert "secret" in events.describe(event)
    budget = filters.Budget.new(epsilon=2.0, delta=1e-5, relation=AR)
    assert all(math.isfinite(r) for r in budget.spent([run]).rdp)


def test_it_composes_with_other_releases():
    event = AllocatedGaussian(1.0, 20)
    alone = accountants.epsilon(event, delta=1e-5, relation=AR)
    both = accountants.epsilon(events.compose(event, events.gaussian(30.0)), delta=1e-5, relation=AR)
    assert alone * 0.999 < both < alone + 0.1


def test_only_those_who_leave_sampling_open_count_on_secret_places():
    from sidelight.audit.subjects import scene

    def planned(**options):
        recipe = dp_sgd(steps=12, expected_batch_size=44 / 6, noise=BandedNoise(bands=2, **options))
        return recipe.plan(scene("logistic").task(AR))

    secret, seen = planned(cycle=6), planned(cycle=6, sampled=False)
    assert secret.event.secret == 1 and seen.event.secret == 0
    assert secret.details["noise_multiplier"] < seen.details["noise_multiplier"]
