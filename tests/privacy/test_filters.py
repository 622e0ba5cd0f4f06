"""Filters never admit past the budget, and say what was asked and what is left."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidelight.errors import BudgetExceeded, PrivacyConditionError
from sidelight.privacy import accountants, events, filters

AR, RO = "add-or-remove-one", "replace-one"
BUDGET = {"epsilon": 1.0, "delta": 1e-5}


def every_filter() -> list[filters.Filter]:
    return [
        filters.RenyiFilter(order=16, relation=AR, **BUDGET),
        filters.GaussianFilter(relation=AR, **BUDGET),
        filters.TruncatedConcentratedFilter(relation=AR, **BUDGET),
        filters.TruncatedConcentratedFilter(relation=AR, totals="tight", **BUDGET),
    ]


@pytest.mark.parametrize("filter_", every_filter(), ids=lambda f: type(f).__name__)
def test_the_certificate_is_the_budget(filter_):
    assert accountants.epsilon(filter_.certificate, delta=1e-5, relation=AR) <= 1.0 + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.0, 60.0), min_size=1, max_size=60), st.integers(0, 3))
def test_never_past_the_budget(noises, which):
    """Whatever is asked, the admitted events together cost at most the budget, in the filter's own unit and
    by exact accounting of the list."""
    filter_ = every_filter()[which]
    admitted = []
    for z in noises:
        event = events.gaussian(z)
        fits = filter_.admits(event)
        try:
            filter_.admit(event)
            admitted.append(event)
            assert fits
        except BudgetExceeded:
            assert not fits
    assert filter_.spent <= filter_.total
    if admitted:
        assert accountants.epsilon(events.compose(*admitted), delta=1e-5, relation=AR) <= 1.0 + 1e-9


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 0.2), st.floats(0.8, 8.0)), min_size=1, max_size=40))
def test_never_past_the_budget_with_sampling(steps):
    filter_ = filters.RenyiFilter(order=16, relation=AR, **BUDGET)
    admitted = []
    for q, z in steps:
        if filter_.admits(events.poisson(q, z)):
            filter_.admit(events.poisson(q, z))
            admitted.append(events.poisson(q, z))
    if admitted:
        total = events.compose(*admitted)
        assert accountants.epsilon(total, delta=1e-5, relation=AR, accountant="rdp") <= 1.0


@pytest.mark.parametrize("filter_", every_filter(), ids=lambda f: type(f).__name__)
def test_an_exhausted_filter_refuses_and_keeps_its_state(filter_):
    while filter_.admits(events.gaussian(12.0)):
        filter_.admit(events.gaussian(12.0))
    before = filter_.spent
    with pytest.raises(BudgetExceeded, match="is left"):
        filter_.admit(events.gaussian(12.0))
    assert filter_.spent == before <= filter_.total


def test_many_small_steps_are_summed_exactly():
    filter_ = filters.GaussianFilter(relation=AR, **BUDGET)
    z = math.sqrt(20000) / filter_.mu
    count = 0
    while count < 20010 and filter_.admits(events.gaussian(z)):
        filter_.admit(events.gaussian(z))
        count += 1
        if count == 300:  # the rest by arithmetic: fsum of n equal costs
            break
    assert filter_.spent == pytest.approx(300 / 20000 * filter_.total, rel=1e-12)


def test_the_gaussian_filter_takes_no_sampled_step():
    with pytest.raises(BudgetExceeded):
        filters.GaussianFilter(relation=AR, **BUDGET).admit(events.poisson(0.01, 100.0))


def test_the_tcdp_filter_checks_every_condition():
    filter_ = filters.TruncatedConcentratedFilter(relation=RO, **BUDGET)
    filter_.admit(events.fixed_size(1000, 10, 20.0))
    with pytest.raises(PrivacyConditionError, match="rho_s_range"):
        filter_.admit(events.fixed_size(1000, 10, 1.0))
    with pytest.raises(PrivacyConditionError, match="q_range"):
        filter_.admit(events.fixed_size(1000, 500, 20.0))
    with pytest.raises(PrivacyConditionError, match="omega_out"):
        filter_.admit(events.fixed_size(1000, 90, 3.0))
    with pytest.raises(PrivacyConditionError, match="orders below"):
        filter_.admit(events.TruncatedConcentrated(1e-5, 3.0))


def test_an_order_that_cannot_give_the_budget_is_refused():
    with pytest.raises(PrivacyConditionError, match="larger order"):
        filters.RenyiFilter(order=2, relation=AR, **BUDGET)


def test_best_order_admits_most():
    event = events.poisson(0.05, 2.0)
    best = filters.best_order(event, relation=AR, **BUDGET)

    def copies(a):
        return filters.RenyiFilter(order=a, relation=AR, **BUDGET)

    count = {a: copies(a).total / copies(a).cost(event) for a in (best - 2, best, best + 2)}
    assert count[best] == max(count.values())
