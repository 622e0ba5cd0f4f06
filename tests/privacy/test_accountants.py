"""What events cost, cross-checked against dp-accounting and Opacus, and its properties."""

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from sidelight.errors import InputError, PrivacyConditionError, RelationError
from sidelight.privacy import accountants, conversions, events, pld

AR, RO = "add-or-remove-one", "replace-one"
GRID = [
    (0.002, 0.8, 1000),
    (0.01, 1.0, 300),
    (0.05, 0.8, 20),
    (0.2, 3.0, 100),
    (0.5, 5.0, 50),
    (0.01, 0.5, 1),
]


@functools.cache
def reference_pld(q, z, steps, pessimistic):
    one = reference.from_gaussian_mechanism(
        z, sampling_prob=q, pessimistic_estimate=pessimistic, use_connect_dots=pessimistic
    )
    return one.self_compose(steps)


@pytest.mark.parametrize("q,z,steps", GRID)
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_pld_agrees_with_dp_accounting_and_never_understates(q, z, steps, delta):
    event = events.repeat(events.poisson(q, z), steps)
    ours = accountants.epsilon(event, delta=delta, relation=AR)
    assert reference_pld(q, z, steps, False).get_epsilon_for_delta(delta) <= ours
    assert ours == pytest.approx(reference_pld(q, z, steps, True).get_epsilon_for_delta(delta), rel=2e-3)


@pytest.mark.parametrize("q,z,steps", GRID)
def test_rdp_is_never_below_pld(q, z, steps):
    event = events.repeat(events.poisson(q, z), steps)
    by_pld = accountants.epsilon(event, delta=1e-6, relation=AR)
    assert accountants.epsilon(event, delta=1e-6, relation=AR, accountant="rdp") >= by_pld


@pytest.mark.parametrize("q,z,steps", GRID)
def test_agreement_with_opacus(q, z, steps):
    analysis = pytest.importorskip("opacus.accountants.analysis.rdp", reason="Opacus is not installed")
    event = events.repeat(events.poisson(q, z), steps)
    orders = [2, 3, 4, 8, 16, 32, 64]
    theirs = analysis.compute_rdp(q=q, noise_multiplier=z, steps=steps, orders=orders)
    assert accountants.rdp(event, orders=orders, relation=AR) == pytest.approx(theirs, rel=1e-6)
    epsilon, _ = analysis.get_privacy_spent(orders=orders, rdp=theirs, delta=1e-6)
    assert accountants.epsilon(event, delta=1e-6, relation=AR) <= epsilon


def test_fractional_orders_are_bounds():
    """The chord between integer orders is above dp-accounting's series for fractional ones, and near it."""
    from dp_accounting.rdp import RdpAccountant

    orders = [1.5, 2.5, 3.5]
    exact = RdpAccountant(orders).compose(events.poisson(0.02, 1.5)).rdp
    ours = accountants.rdp(events.poisson(0.02, 1.5), orders=orders, relation=AR)
    assert (ours >= exact).all()
    assert ours == pytest.approx(exact, rel=0.3)


def test_fixed_size_sampling_dominates_a_simulated_worst_case():
    """One record of weight ±C among zeros, m=2, s=1: the exact pair is a two-component mixture."""
    z, q = 1.0, 0.5
    x = np.linspace(-12, 12, 200001)

    def density(mean):
        return np.exp(-((x - mean) ** 2) / (2 * (2 * z) ** 2)) / (2 * z * math.sqrt(2 * math.pi))

    p, other = q * density(1) + (1 - q) * density(0), q * density(-1) + (1 - q) * density(0)
    for epsilon in (0.0, 0.1, 0.5, 1.0):
        exact = trapezoid(np.maximum(p - math.exp(epsilon) * other, 0), x)
        bound = accountants.delta(events.fixed_size(2, 1, z), epsilon=epsilon, relation=RO)
        assert exact <= bound * (1 + 1e-6)


def test_a_mixture_composes_with_every_other_event():
    mixture = events.MixtureOfSensitivities((1.0, 2.0, 4.0), (0.2, 0.3, 0.5))
    others = {
        AR: [events.poisson(0.01, 1.0), events.ObjectivePerturbation(0.1, 0.2, 1)],
        RO: [events.fixed_size(100, 1, 1.0), events.ObjectivePerturbation(0.1, 0.2, 2)],
    }
    both = [
        events.gaussian(2.0),
        events.ZeroConcentrated(0.05),
        events.TruncatedConcentrated(0.02, 40.0),
        events.RenyiBound(16, 0.1),
        events.ApproximateDp(0.2, 1e-7),
        mixture,
    ]
    for relation, special in others.items():
        for other in special + both:
            total = accountants.epsilon(events.compose(mixture, other), delta=1e-5, relation=relation)
            parts = [accountants.epsilon(e, delta=0.5e-5, relation=relation) for e in (mixture, other)]
            alone = accountants.epsilon(mixture, delta=1e-5, relation=relation)
            assert alone < total <= sum(parts) * (1 + 1e-6)


def test_a_mixture_of_equal_sensitivities_is_a_gaussian():
    mixture = events.repeat(events.MixtureOfSensitivities((2.0, 2.0), (0.5, 0.5)), 5)
    plain = events.repeat(events.gaussian(2.0), 5)
    assert accountants.epsilon(mixture, delta=1e-6, relation=RO) == pytest.approx(
        accountants.epsilon(plain, delta=1e-6, relation=RO), rel=2e-3
    )


def test_objective_perturbation_is_never_cheaper_than_its_gaussian():
    for rank, relation in ((1, AR), (2, RO)):
        event = events.ObjectivePerturbation(0.05, 0.3, rank)
        assert accountants.epsilon(event, delta=1e-6, relation=relation) > conversions.gaussian_epsilon(
            1e-6, 0.3
        )
        twice = accountants.epsilon(events.repeat(event, 2), delta=1e-6, relation=relation)
        assert twice <= accountants.epsilon(
            events.repeat(event, 2), delta=1e-6, relation=relation, accountant="rdp"
        )


MIXED = [
    (events.poisson(0.1, 1.0), RO),
    (events.fixed_size(100, 10, 1.0), AR),
    (events.ObjectivePerturbation(0.1, 0.2, 1), RO),
    (events.ObjectivePerturbation(0.1, 0.2, 2), AR),
]


def relations_never_mix(accountant: str) -> None:
    """The contract: an event is not priced under a relation that it was not analyzed under."""
    accountants._curve.cache_clear()
    accountants.rdp_of.cache_clear()
    for event, relation in MIXED:
        try:
            cost = accountants.epsilon(event, delta=1e-5, relation=relation, accountant=accountant)
        except (RelationError, PrivacyConditionError):
            continue
        raise AssertionError(f"{events.describe(event)} was priced at {cost} under {relation}")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_relations_never_mix(accountant):
    relations_never_mix(accountant)


@pytest.mark.parametrize("check", ["check_sampling", "check_rank"])
def test_contract_catches_mixed_relations(check, monkeypatch):
    monkeypatch.setattr(accountants, check, lambda event, relation: None)
    with pytest.raises(AssertionError, match="was priced"):
        relations_never_mix("pld")
    monkeypatch.undo()
    relations_never_mix("pld")


def test_an_unknown_relation_or_event_is_named():
    with pytest.raises(RelationError, match="replace-one"):
        accountants.epsilon(events.gaussian(1.0), delta=1e-5, relation="swap")
    laplace = events.dp_event.LaplaceDpEvent(1.0)
    with pytest.raises(PrivacyConditionError, match="Laplace"):
        accountants.epsilon(laplace, delta=1e-5, relation=AR)
    with pytest.raises(InputError, match="delta"):
        accountants.epsilon(events.gaussian(1.0), delta=0.0, relation=AR)


def test_a_whole_number_is_an_epsilon():
    mixture = events.MixtureOfSensitivities((1.0, 2.0), (0.5, 0.5))
    assert accountants.delta(mixture, epsilon=1, relation=RO) == accountants.delta(
        mixture, epsilon=1.0, relation=RO
    )


def test_nothing_costs_nothing_and_no_noise_costs_everything():
    assert accountants.epsilon(events.NoOp(), delta=1e-5, relation=AR) == 0
    assert accountants.epsilon(events.NonPrivate(), delta=1e-5, relation=AR) == math.inf
    both = events.compose(events.gaussian(1.0), events.NonPrivate())
    assert accountants.epsilon(both, delta=1e-5, relation=AR) == math.inf
    assert accountants.delta(both, epsilon=1.0, relation=AR) == 1.0


def test_a_very_small_delta_is_left_to_rdp():
    event = events.repeat(events.poisson(0.01, 1.0), 100)
    assert accountants.epsilon(event, delta=1e-30, relation=AR) == accountants.epsilon(
        event, delta=1e-30, relation=AR, accountant="rdp"
    )


@pytest.mark.parametrize("q,z,steps", [(0.01, 0.01, 10**6), (0.5, 0.005, 3), (1e-4, 0.02, 10**5)])
def test_next_to_no_noise_is_no_guarantee_and_no_crash(q, z, steps):
    assert accountants.epsilon(events.repeat(events.poisson(q, z), steps), delta=1e-6, relation=AR) > 100


def test_more_steps_than_a_convolution_can_hold_are_left_to_rdp():
    event = events.repeat(events.poisson(1e-4, 5.0), 10**9)
    assert accountants.epsilon(event, delta=1e-6, relation=AR) == accountants.epsilon(
        event, delta=1e-6, relation=AR, accountant="rdp"
    )


def test_the_clt_accountant_is_not_offered():
    with pytest.raises(InputError, match="accountant"):
        accountants.epsilon(events.gaussian(1.0), delta=1e-5, relation=AR, accountant="clt")
    for module in (accountants, conversions, pld):
        assert not [name for name in dir(module) if "clt" in name.lower()]


sampled = st.tuples(st.floats(0.001, 0.5), st.floats(0.5, 20.0), st.integers(1, 200))


@settings(max_examples=20, deadline=None)
@given(sampled, st.floats(1.02, 3.0))
def test_more_noise_fewer_steps_less_sampling_cost_less(plan, factor):
    q, z, steps = plan

    def cost(q, z, n):
        return accountants.epsilon(events.repeat(events.poisson(q, z), n), delta=1e-6, relation=AR)

    base = cost(q, z, steps)
    slack = 1 + 2e-3
    assert cost(q, z * factor, steps) <= base * slack
    assert cost(q / factor, z, steps) <= base * slack
    assert cost(q, z, steps + 5) * slack >= base


@settings(max_examples=25, deadline=None)
@given(sampled, st.floats(1.0, 20.0))
def test_composition_is_at_most_the_sum_and_at_least_each_part(plan, z):
    q, noise, steps = plan
    first, second = events.repeat(events.poisson(q, noise), steps), events.gaussian(z)

    def e(event, delta):
        return accountants.epsilon(event, delta=delta, relation=AR)

    total = e(events.compose(first, second), 1e-6)
    assert total <= (e(first, 5e-7) + e(second, 5e-7)) * (1 + 2e-3)
    assert total * (1 + 2e-3) >= max(e(first, 1e-6), e(second, 1e-6))


@settings(max_examples=30, deadline=None)
@given(sampled, st.floats(0.05, 5.0))
def test_delta_inverts_epsilon(plan, epsilon):
    q, z, steps = plan
    event = events.repeat(events.poisson(q, z), steps)
    delta = accountants.delta(event, epsilon=epsilon, relation=AR)
    if 1e-9 < delta < 0.5:
        assert accountants.epsilon(event, delta=delta, relation=AR) == pytest.approx(
            epsilon, rel=1e-3, abs=1e-6
        )


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-3, 20), st.floats(1e-9, 0.2))
def test_conversions_round_trip_on_the_safe_side(epsilon, delta):
    mu = conversions.gdp_mu(epsilon, delta)
    assert conversions.gaussian_delta(epsilon, mu) <= delta
    assert conversions.gaussian_epsilon(delta, mu) == pytest.approx(epsilon, rel=1e-9, abs=1e-12)
    for totals in ("paper", "tight"):
        rho, omega = conversions.tcdp_totals(epsilon, delta, totals=totals)
        assert conversions.tcdp_to_dp(rho, omega * (1 + 1e-9), delta) <= epsilon * (1 + 1e-9)
    for order in (1.5, 3, 20):
        budget = conversions.rdp_budget(order, epsilon, delta)
        if budget > 0:
            assert conversions.rdp_to_dp(order, budget, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.01, 8.0), st.floats(0.0, 30.0))
def test_gaussian_delta_matches_direct_integration(mu, epsilon):
    x = np.linspace(-12, 12 + mu, 40001)
    p, q = np.exp(-((x - mu) ** 2) / 2), np.exp(-(x**2) / 2)
    exact = trapezoid(np.maximum(p - np.exp(epsilon) * q, 0), x) / math.sqrt(2 * math.pi)
    assert conversions.gaussian_delta(epsilon, mu) == pytest.approx(exact, rel=1e-3, abs=1e-12)
