"""The attacker's curve: exact where that is known, and never optimistic."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from sidelight.errors import RelationError
from sidelight.privacy import accountants, conversions, events
from sidelight.report import tradeoff
from sidelight.report.tradeoff import trade_off

ADD, REPLACE = events.RELATIONS
ALPHAS = np.concatenate([[0.0], np.geomspace(1e-8, 0.5, 60), np.linspace(0.51, 1, 30)])
EVENTS = [
    (events.gaussian(2.0), ADD),
    (events.repeat(events.poisson(0.05, 1.0), 100), ADD),
    (events.poisson(0.1, 0.8), ADD),
    (events.repeat(events.fixed_size(100, 10, 2.0), 20), REPLACE),
    (events.MixtureOfSensitivities((1.0, 5.0), (0.1, 0.9)), REPLACE),
    (events.TruncatedConcentrated(0.02, 30.0), REPLACE),
    (events.RenyiBound(8.0, 0.5), ADD),
    (events.ZeroConcentrated(0.05), ADD),
    (events.ApproximateDp(1.0, 1e-5), ADD),
    (events.ObjectivePerturbation(0.05, 0.2, 2), REPLACE),
    (events.compose(events.ObjectivePerturbation(0.05, 0.2, 2), events.gaussian(50.0)), REPLACE),
    (events.compose(events.repeat(events.gaussian(30.0), 12), events.ZeroConcentrated(0.01)), ADD),
]
IDS = [events.describe(event)[:40] for event, _ in EVENTS]


def test_gaussian_curve_is_the_most_powerful_test() -> None:
    bound = trade_off(events.repeat(events.gaussian(4.0), 4), relation=ADD)
    assert bound.power(ALPHAS) == pytest.approx(norm.sf(norm.isf(ALPHAS) - 0.5), abs=1e-12)
    assert bound.advantage == pytest.approx(2 * norm.cdf(0.25) - 1, abs=1e-12)
    assert bound.right_guesses == pytest.approx(norm.cdf(0.25), abs=1e-12)


def test_curve_of_delta_gives_the_same_for_a_gaussian() -> None:
    bound = tradeoff._from_curve(events.gaussian(2.0), ADD)
    exact = trade_off(events.gaussian(2.0), relation=ADD)
    difference = bound.power(ALPHAS) - exact.power(ALPHAS)
    assert difference.min() >= -1e-12 and difference.max() < 1e-5


def test_sampled_gaussian_is_tight_and_covers_both_orders() -> None:
    q, mu = 0.1, 1.25
    bound = trade_off(events.poisson(q, 1 / mu), relation=ADD)
    t = np.linspace(-6, 8, 3000)
    with_record, without = (1 - q) * norm.sf(t) + q * norm.sf(t - mu), norm.sf(t)
    found = bound.power(without) - with_record  # accuse when x is large: is the record in?
    absent = bound.power(1 - with_record) - (1 - without)  # accuse when x is small: is it out?
    assert found.min() >= -1e-12 and absent.min() >= -1e-12
    # The worse order is attained: the bound is the larger of the two, not their sum.
    other = np.interp(without, np.sort(1 - with_record), np.sort(1 - without))
    assert np.abs(bound.power(without) - np.maximum(with_record, other)).max() < 1e-4
    assert bound.advantage == pytest.approx((with_record - without).max(), abs=1e-5)


def test_randomized_response_is_exact() -> None:
    e, d = 1.0, 1e-3
    bound = trade_off(events.ApproximateDp(e, d), relation=ADD)
    exact = np.minimum(math.exp(e) * ALPHAS + d, 1 - math.exp(-e) * (1 - ALPHAS - d)).clip(ALPHAS, 1)
    assert bound.power(ALPHAS) == pytest.approx(exact, abs=1e-9)
    assert (bound.power(ALPHAS) >= exact - 1e-12).all()


@pytest.mark.parametrize(("event", "relation"), EVENTS, ids=IDS)
def test_power_is_a_bound_that_rises_and_keeps_the_stated_guarantee(
    event: events.Event, relation: events.Relation
) -> None:
    bound = trade_off(event, relation=relation)
    power = bound.power(ALPHAS)
    assert np.isfinite(power).all() and (power >= ALPHAS).all() and (power <= 1).all()
    assert (np.diff(power) >= -1e-12).all()
    assert (power - ALPHAS).max() <= bound.advantage + 1e-9
    for delta in (1e-3, 1e-6):
        epsilon = accountants.epsilon(event, delta=delta, relation=relation)
        if math.isinf(epsilon):  # of (1, 1e-5)-DP nothing is known at a smaller δ
            continue
        assert (power <= math.exp(epsilon) * ALPHAS + delta + 1e-3 * ALPHAS + 1e-9).all()


@pytest.mark.parametrize(
    "event",
    [
        events.RenyiBound(8.0, 8 * 0.02),
        events.TruncatedConcentrated(0.02, 30.0),
        events.ZeroConcentrated(0.02),
    ],
    ids=["renyi", "tcdp", "zcdp"],
)
def test_certificates_of_a_gaussian_never_promise_more_than_it_keeps(event: events.Event) -> None:
    """A Gaussian of μ²/2 = 0.02 has all three certificates, so their bounds lie above its own curve."""
    truth = trade_off(events.gaussian(1 / math.sqrt(2 * 0.02)), relation=ADD)
    bound = trade_off(event, relation=ADD)
    assert (bound.power(ALPHAS) >= truth.power(ALPHAS) - 1e-12).all()
    assert truth.advantage <= bound.advantage < 0.2  # and they say something: (ε, δ) alone would give more


def test_binary_renyi_divergence() -> None:
    p, q, a = np.array([0.3]), np.array([0.1]), np.array([[2.0]])
    exact = math.log(0.3**2 / 0.1 + 0.7**2 / 0.9)
    assert tradeoff._coins(p, q, a) == pytest.approx(np.array([[exact]]))


def test_nothing_and_everything() -> None:
    nothing = trade_off(events.NoOp(), relation=ADD)
    assert nothing.power(ALPHAS) == pytest.approx(ALPHAS) and nothing.advantage == 0
    everything = trade_off(events.NonPrivate(), relation=ADD)
    assert (everything.power(ALPHAS) == 1).all() and everything.advantage == 1


def test_more_steps_than_a_convolution_can_hold_are_bounded_by_renyi() -> None:
    event = events.repeat(events.poisson(1e-5, 2.0), accountants._MOST_STEPS + 1)
    bound = trade_off(event, relation=ADD)
    assert 0 < bound.advantage < 0.1
    assert (bound.power(ALPHAS) >= ALPHAS).all()


def test_advantage_is_delta_at_zero() -> None:
    event = events.repeat(events.poisson(0.05, 1.0), 100)
    bound = trade_off(event, relation=ADD)
    assert bound.advantage == pytest.approx(accountants.delta(event, epsilon=0.0, relation=ADD), rel=1e-6)
    assert conversions.gaussian_delta(0.0, 0.5) == trade_off(events.gaussian(2.0), relation=ADD).advantage


def test_an_event_that_is_not_analyzed_under_a_relation_is_refused() -> None:
    with pytest.raises(RelationError):
        trade_off(events.poisson(0.1, 1.0), relation=REPLACE)
