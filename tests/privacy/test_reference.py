"""The PLD accountant against the truth: never below it, and never far above.

`inversion.json` holds the true ε of 360 random plans (sampling rates 1e-4 … 1, noise multipliers 0.5 … 10, 1
to 10⁷ steps, δ of 1e-15 … 1e-5), by a method that shares nothing with ours; see `inversion`.
"""

import json
import math
import random
from dataclasses import replace
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from tests.privacy import inversion
from tests.privacy.inversion import Inversion, Mixture, Plan, RandomizedResponse, Sampled

from sidelight.privacy import accountants, conversions, events, pld, tilting
from sidelight.report.tradeoff import trade_off

AR, RO = "add-or-remove-one", "replace-one"


def stored() -> list[tuple[Plan, dict[str, float]]]:
    rows = json.loads(inversion.FILE.read_text())
    return [
        (
            Plan(**{k: v for k, v in row.items() if k != "epsilon"}),
            {w: float(e) for w, e in row["epsilon"].items()},
        )
        for row in rows
    ]


ROWS = stored()
SAMPLED = [(plan, truth) for plan, truth in ROWS if not plan.has_closed_form]
FINITE = [(plan, truth) for plan, truth in SAMPLED if 0 < max(truth.values()) < math.inf]


def event_of(plan: Plan) -> tuple[events.Event, str]:
    if plan.kind == "without-replacement":
        rate = Fraction(plan.q).limit_denominator(10**9)
        return events.repeat(events.fixed_size(rate.denominator, rate.numerator, plan.z), plan.steps), RO
    return events.repeat(events.poisson(plan.q, plan.z), plan.steps), AR


def ours(plan: Plan) -> float:
    event, relation = event_of(plan)
    return accountants.epsilon(event, delta=plan.delta, relation=relation)


def never_below(rows: list[tuple[Plan, dict[str, float]]]) -> None:
    """The contract."""
    accountants._epsilon_composed.cache_clear()  # of answers from before a fault was planted
    for plan, truth in rows:
        found = ours(plan)
        assert found >= max(truth.values()) * (1 - 1e-14), plan
        if plan.has_closed_form:
            assert inversion.closed_form(plan, found) <= plan.delta, plan


def at_most_one_percent_above(rows: list[tuple[Plan, dict[str, float]]]) -> None:
    accountants._epsilon_composed.cache_clear()
    for plan, truth in rows:
        assert ours(plan) <= 1.01 * max(truth.values()), plan


def test_there_are_plans_of_every_kind():
    assert len(ROWS) >= 300
    assert {plan.kind for plan, _ in ROWS} == set(inversion.KINDS)
    assert sum(plan.steps > 1e5 for plan, _ in FINITE) > 50
    assert sum(plan.delta < 1e-12 for plan, _ in FINITE) > 50


@pytest.mark.parametrize("part", range(6))
def test_never_below_the_truth_and_at_most_one_percent_above(part):
    for plan, truth in ROWS[part::6]:
        never_below([(plan, truth)])
        assert ours(plan) <= 1.01 * max(truth.values()), plan


def test_the_stored_truth_is_the_truth():
    """A few of them anew, others each time: along the contour, and the closed forms."""
    choice = random.SystemRandom()
    quick = [row for row in FINITE if row[0].steps >= 300]
    closed = [row for row in ROWS if row[0].has_closed_form]
    for plan, truth in choice.sample(quick, 8) + choice.sample(closed, 4):
        again = inversion.true_epsilons(plan)
        assert again.keys() == truth.keys(), plan
        for way, epsilon in truth.items():
            assert again[way] == pytest.approx(epsilon, rel=1e-8), plan


def test_the_inversion_agrees_with_what_is_known_in_closed_form():
    plan = Plan("gaussian", 1.0, 3.0, 40, 1e-13)
    assert inversion.of_plan(plan, "gaussian").epsilon() == pytest.approx(
        inversion.true_epsilons(plan)["gaussian"], rel=1e-11
    )
    with mp.workdps(30):  # φ of a sampled step, by mpmath's own quadrature
        q, mu, s = mp.mpf("0.03"), mp.mpf("0.7"), mp.mpc(9, 14)
        loss = lambda x: mp.log1p(q * mp.expm1(mu * x - mu * mu / 2))  # noqa: E731
        remove = mp.quad(lambda x: mp.npdf(x) * mp.exp((1 + s) * loss(x)), mp.linspace(-12, 20, 33))
        add = mp.quad(lambda x: mp.npdf(x) * mp.exp(-s * loss(x)), mp.linspace(-14, 20, 35))
        for way, exact in (("remove", remove), ("add", add)):
            found = complex(Sampled(way, 0.03, 0.7, 20.0).log_moment(np.array([9 + 14j]))[0])
            assert np.exp(found) == pytest.approx(complex(exact), rel=1e-12)


def test_each_direction_is_a_bound_and_tight():
    both = [row for row in FINITE if len(row[1]) == 2]
    for plan, truth in both[:: max(1, len(both) // 40)]:
        repeated = [(pld.poisson_curve(plan.q, 1 / plan.z), plan.steps)]
        sides = pld.totals(repeated, pld.choose_step(repeated))
        for side, way in zip(sides, ("remove", "add"), strict=True):
            assert truth[way] <= pld._epsilon(side, plan.delta) <= truth[way] * 1.01, (plan, way)


def test_delta_is_a_bound_and_tight():
    """At the true ε, δ is not below the plan's; 1 % of ε are some λε·1 % of δ."""
    for plan, truth in FINITE[::12]:
        event, relation = event_of(plan)
        found = accountants.delta(event, epsilon=max(truth.values()), relation=relation)
        assert plan.delta * (1 - 1e-6) <= found <= plan.delta * 1.1, plan


def test_the_attackers_curve_is_a_bound():
    rows = [row for row in FINITE if row[0].delta > 1e-9 and row[0].steps > 1000]
    for plan, truth in rows[::12]:
        event, relation = event_of(plan)
        epsilon = max(truth.values())
        ahead, back = accountants.divergences(event, np.array([0.0, epsilon]), relation)
        worse = max(ahead[1], back[1])
        assert plan.delta * (1 - 1e-6) <= worse <= plan.delta * 1.2, plan
        # A test of power p at level α shows δ ≥ p − e^ε·α: the curve allows all that the truth allows.
        alpha = plan.delta * math.exp(-epsilon) if epsilon < 500 else 0.0
        assert trade_off(event, relation=relation).power(alpha) >= plan.delta * (1 - 1e-6)


COMPOSED = [
    (
        events.compose(
            events.repeat(events.poisson(0.01, 2.0), 5000), events.repeat(events.poisson(0.001, 0.8), 10**5)
        ),
        [(("remove", 0.01, 0.5), 5000), (("remove", 0.001, 1.25), 10**5)],
        AR,
    ),
    (
        events.compose(
            events.repeat(events.poisson(0.001, 2.0), 10**6),
            events.gaussian(5.0),
            events.repeat(events.MixtureOfSensitivities((5.0, 10.0, 20.0), (0.2, 0.3, 0.5)), 30),
        ),
        [
            (("remove", 0.001, 0.5), 10**6),
            (Mixture((0.2,), (1.0,)), 1),
            (Mixture((0.2, 0.1, 0.05), (0.2, 0.3, 0.5)), 30),
        ],
        AR,
    ),
    (
        events.compose(
            events.repeat(events.fixed_size(1000, 3, 1.5), 20_000),
            events.repeat(events.ApproximateDp(0.1, 0), 40),
        ),
        [(("without-replacement", 0.003, 1 / 1.5), 20_000), (RandomizedResponse(0.1), 40)],
        RO,
    ),
    (
        events.repeat(events.MixtureOfSensitivities((50.0, 100.0), (0.3, 0.7)), 10**5),
        [(Mixture((0.02, 0.01), (0.3, 0.7)), 10**5)],
        RO,
    ),
]


@pytest.mark.parametrize("delta", [1e-6, 1e-10, 1e-14])
@pytest.mark.parametrize(
    "event,laws,relation", COMPOSED, ids=["two-rates", "mixed", "replace-one", "mixture"]
)
def test_compositions_of_different_events_are_bounds_and_tight(event, laws, relation, delta):
    exact = [(Sampled(*law, law[2] + 13) if isinstance(law, tuple) else law, count) for law, count in laws]
    truth = Inversion(exact, delta).epsilon()
    assert truth <= accountants.epsilon(event, delta=delta, relation=relation) <= truth * 1.01


@pytest.mark.parametrize("relation", [AR, RO])
@pytest.mark.parametrize("q,steps,epsilon,delta", [(0.001, 10**6, 1.0, 1e-12), (0.02, 3000, 4.0, 1e-8)])
def test_calibrated_noise_keeps_the_budget_in_truth(relation, q, steps, epsilon, delta):
    z = accountants.noise_multiplier(
        epsilon=epsilon, delta=delta, sampling_probability=q, steps=steps, relation=relation
    )
    plan = Plan("poisson" if relation == AR else "without-replacement", q, z, steps, delta)
    assert 0.99 * epsilon < max(inversion.true_epsilons(plan).values()) <= epsilon


def test_what_costs_next_to_nothing_costs_nothing_and_what_costs_too_much_is_infinite():
    nothing = Plan("poisson", 1e-4, 10.0, 2, 1e-5)
    assert 2 * inversion.closed_form(replace(nothing, steps=1), 0.0) < nothing.delta
    assert ours(nothing) == 0
    for plan in (Plan("poisson", 0.3, 0.5, 10**7, 1e-5), Plan("without-replacement", 0.5, 1.0, 4000, 1e-12)):
        assert max(inversion.true_epsilons(plan).values()) == ours(plan) == math.inf


# ---------------------------------------------------------------------------------------------------
# planted faults

LONG = [
    (Plan("poisson", 0.00145, 2.38, 10**6, 1e-12), {"remove": 4.466122}),
    (Plan("poisson", 0.00117, 3.84, 2 * 10**6, 1e-11), {"remove": 2.854097}),
]


def test_plans_that_were_understated():
    never_below(LONG)
    at_most_one_percent_above(LONG)


def test_contract_catches_a_transform_without_tilt(monkeypatch):
    monkeypatch.setattr(tilting.LossSum, "slope_for_delta", lambda self, delta: 0.0)
    never_below(LONG)  # it is still a bound, since errors are added, and says little
    with pytest.raises(AssertionError):
        at_most_one_percent_above(LONG)


def test_contract_catches_a_direction_left_out(monkeypatch):
    both = pld.totals
    monkeypatch.setattr(pld, "totals", lambda repeated, step: both(repeated, step)[-1:])
    with pytest.raises(AssertionError):
        never_below(LONG)


def test_contract_catches_a_curve_that_is_slightly_too_low(monkeypatch):
    exact = pld.gaussian_delta_bound
    monkeypatch.setattr(pld, "gaussian_delta_bound", lambda e, mu: exact(e, mu) * (1 - 1e-3))
    accountants._curve.cache_clear()
    with pytest.raises(AssertionError):
        never_below(LONG)
    monkeypatch.undo()
    accountants._curve.cache_clear()


def test_contract_catches_rounding_of_a_single_release(monkeypatch):
    rows = [row for row in ROWS if row[0].kind == "gaussian"]
    monkeypatch.setattr(conversions, "gaussian_delta_bound", conversions.gaussian_delta)
    monkeypatch.setattr(accountants, "_UP", 1 - 1e-12)
    with pytest.raises(AssertionError):
        never_below(rows)
