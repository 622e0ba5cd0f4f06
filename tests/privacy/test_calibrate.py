"""The least noise: safe, least, monotone, fast where it counts, possible everywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning
from sidelight.privacy import accountants, events
from sidelight.privacy.accountants import default_delta, resolve_delta

AR, RO = "add-or-remove-one", "replace-one"


def cost(z: float, *, q: float, steps: int, delta: float, relation: str = AR) -> float:
    make = accountants.step_event(sampling_probability=q, relation=relation)
    return accountants.epsilon(events.repeat(make(z), steps), delta=delta, relation=relation)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.005, 0.6), st.integers(1, 500), st.floats(0.05, 10.0), st.sampled_from([AR, RO]))
def test_calibrate_then_account_is_within_budget_and_least(q, steps, epsilon, relation):
    z = accountants.noise_multiplier(
        epsilon=epsilon, delta=1e-6, sampling_probability=q, steps=steps, relation=relation
    )
    assert cost(z, q=q, steps=steps, delta=1e-6, relation=relation) <= epsilon
    if z > 0.021:
        assert cost(z * (1 - 2e-3), q=q, steps=steps, delta=1e-6, relation=relation) > epsilon


@settings(max_examples=5, deadline=None)
@given(st.floats(0.005, 0.3), st.integers(1, 300), st.floats(0.1, 5.0), st.floats(1.05, 3.0))
def test_monotone_in_budget_and_plan(q, steps, epsilon, factor):
    def z(**change):
        plan = {"epsilon": epsilon, "sampling_probability": q, "steps": steps, "delta": 1e-6} | change
        return accountants.noise_multiplier(relation=AR, **plan)

    grid = 1 + 3e-4
    assert z(epsilon=epsilon * factor) <= z() * grid
    assert z(steps=int(steps * factor) + 1) * grid >= z()
    assert z(sampling_probability=q / factor) <= z() * grid
    assert z(delta=1e-5) <= z() * grid


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("q,steps", [(1e-4, 1), (1e-4, 10**6), (0.3, 10**6), (1.0, 10**6), (0.01, 100)])
def test_the_whole_range_works(q, steps, epsilon):
    z = accountants.noise_multiplier(
        epsilon=epsilon, delta=1e-6, sampling_probability=q, steps=steps, relation=AR
    )
    assert 0.9 * epsilon < cost(z, q=q, steps=steps, delta=1e-6) <= epsilon * (1 + 1e-9)


def test_answers_are_cached():
    accountants.noise_multiplier.cache_clear()
    for _ in range(2):
        accountants.noise_multiplier(epsilon=1.0, delta=1e-5, sampling_probability=0.1, steps=10, relation=AR)
    assert accountants.noise_multiplier.cache_info().hits == 1


def test_any_family_of_events_can_be_calibrated():
    def family(z):
        return events.compose(events.gaussian(3 * z), events.MixtureOfSensitivities((z, 2 * z), (0.5, 0.5)))

    z = accountants.least(family, epsilon=1.0, delta=1e-6, relation=RO)
    assert 0.99 < accountants.epsilon(family(z), delta=1e-6, relation=RO) <= 1.0


def test_bad_plans_are_refused():
    good = {"epsilon": 1.0, "delta": 1e-5, "relation": AR}
    for bad in (
        {"epsilon": 0.0},
        {"epsilon": 1e300},
        {"epsilon": float("nan")},
        {"delta": 0.0},
        {"delta": 1.0},
        {"steps": 0},
        {"steps": 1.5},
        {"sampling_probability": 0.0},
        {"sampling_probability": 1.1},
    ):
        with pytest.raises(InputError):
            accountants.noise_multiplier(**{**good, **bad})
    with pytest.raises(PrivacyConditionError, match="fixed-size"):
        accountants.noise_multiplier(**good, sampling_probability=0.1, sampling="fixed-size")


def test_a_budget_that_no_noise_meets_is_refused():
    with pytest.raises(PrivacyConditionError, match="noise"):
        accountants.least(
            lambda z: events.compose(events.gaussian(z), events.ApproximateDp(2.0, 0.0)),
            epsilon=1.0,
            delta=1e-6,
            relation=AR,
        )


def test_the_default_delta_is_well_below_one_record() -> None:
    for n in (1, 10, 1000, 10**6, 10**9):
        assert resolve_delta(None, n) == default_delta(n) <= 1e-5
        assert n * default_delta(n) <= 0.01 + 1e-12  # what docs/officers.md asks for
    assert default_delta(10**6) == pytest.approx(1e-8)


def test_a_delta_that_a_record_in_the_open_satisfies_warns() -> None:
    assert resolve_delta(1e-3, 999) == 1e-3
    with pytest.warns(PrivacyWarning, match="1/n"):
        assert resolve_delta(1e-3, 1000) == 1e-3
    for delta in (0.0, 1.0, -1e-5, float("nan")):
        with pytest.raises(InputError, match="delta must"):
            resolve_delta(delta, 10)
