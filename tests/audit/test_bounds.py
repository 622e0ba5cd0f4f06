"""The bounds themselves: against vectors, and against mechanisms whose ε is known exactly."""

import numpy as np
import pytest
from tests.privacy.vectors import VECTORS

from sidelight.audit.result import (
    Claim,
    Separation,
    lower_rate,
    one_run_epsilon,
    rates_epsilon,
    separate,
    upper_rate,
)
from sidelight.audit.runs import count_correct
from sidelight.errors import InputError
from sidelight.privacy import conversions, events

DELTA = 1e-5
REPEATS = 40


@pytest.mark.parametrize("name", ["O1", "O2", "O3", "O4"])
def test_one_run_bound_agrees_with_its_vector(name: str) -> None:
    given, expected = VECTORS[name]["inputs"], VECTORS[name]["outputs"]
    found = one_run_epsilon(
        canaries=given["m"], guesses=given["guesses"], correct=given["correct"], delta=given["delta"],
        significance=given["significance"],
    )  # fmt: skip
    assert found == pytest.approx(expected["eps_lower"], rel=1e-6, abs=1e-12)


def test_rates_are_clopper_and_pearsons() -> None:
    """Textbook values: 0 of 10 and 10 of 10 at 97.5 %, and 5 of 10."""
    assert upper_rate(0, 10, 0.025) == pytest.approx(0.308498, abs=1e-6)
    assert lower_rate(10, 10, 0.025) == pytest.approx(1 - 0.308498, abs=1e-6)
    assert lower_rate(5, 10, 0.025) == pytest.approx(0.187086, abs=1e-6)
    assert lower_rate(0, 10, 0.025) == 0 and upper_rate(10, 10, 0.025) == 1


def test_rates_prove_the_epsilon_of_randomized_response() -> None:
    for epsilon in (0.1, 1.0, 3.0):
        truth = np.exp(epsilon) / (1 + np.exp(epsilon))
        assert rates_epsilon(truth, 1 - truth, 0.0) == pytest.approx(epsilon)
        assert rates_epsilon(truth, 1 - truth, 0.1) < epsilon
    assert rates_epsilon(0.5, 0.5, 0.0) == 0
    assert rates_epsilon(1.0, 0.0, DELTA) > 50


def test_counts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="correct"):
        one_run_epsilon(canaries=10, guesses=11, correct=1, delta=DELTA)


def audited_once(rng: np.random.Generator, mu: float, canaries: int = 1000) -> float:
    coins = rng.random(canaries) < 0.5
    scores = mu * coins + rng.standard_normal(canaries)
    guesses = canaries // 10
    correct = count_correct(scores, coins, guesses)
    return one_run_epsilon(canaries=canaries, guesses=guesses, correct=correct, delta=DELTA)


def audited_often(rng: np.random.Generator, mu: float, claimed: float, runs: int = 400) -> Separation:
    claim = Claim(events.gaussian(1 / claimed), "add-or-remove-one", DELTA)
    return separate(rng.standard_normal(runs), mu + rng.standard_normal(runs), claim)


@pytest.mark.parametrize(("epsilon", "least"), [(1.0, 0.1), (4.0, 1.2)])
def test_one_run_is_below_the_true_epsilon_and_not_far(epsilon: float, least: float) -> None:
    rng, mu = np.random.default_rng(0), conversions.gdp_mu(epsilon, DELTA)
    bounds = np.array([audited_once(rng, mu) for _ in range(REPEATS)])
    assert (bounds <= epsilon).mean() >= 0.95
    assert bounds.mean() > least


def test_one_run_catches_a_quarter_of_the_noise() -> None:
    rng, mu = np.random.default_rng(1), conversions.gdp_mu(1.0, DELTA)
    assert np.mean([audited_once(rng, 4 * mu) > 1.0 for _ in range(20)]) > 0.9


@pytest.mark.parametrize(("epsilon", "least"), [(4.0, 0.6), (8.0, 1.5)])
def test_many_runs_are_below_the_true_epsilon_and_not_far(epsilon: float, least: float) -> None:
    rng, mu = np.random.default_rng(2), conversions.gdp_mu(epsilon, DELTA)
    found = [audited_often(rng, mu, mu) for _ in range(REPEATS)]
    bounds = np.array([one.lower_bound for one in found])
    assert (bounds <= epsilon).mean() >= 0.95
    assert bounds.mean() > least
    assert not any(one.refuted for one in found)


def test_many_runs_catch_half_of_the_noise() -> None:
    """At δ = 1e-5 the bound alone does not see it; the claimed curve does."""
    rng, mu = np.random.default_rng(3), conversions.gdp_mu(4.0, DELTA)
    found = [audited_often(rng, 2 * mu, mu, runs=600) for _ in range(10)]
    assert np.mean([one.refuted for one in found]) >= 0.9
    assert np.mean([one.lower_bound for one in found]) < 4.0


def test_a_useless_score_proves_nothing() -> None:
    rng = np.random.default_rng(4)
    found = [audited_often(rng, 0.0, 1.0) for _ in range(10)]
    assert max(one.lower_bound for one in found) < 0.5 and not any(one.refuted for one in found)


def test_scores_that_give_the_world_away_prove_much() -> None:
    claim = Claim(events.gaussian(1.0), "add-or-remove-one", DELTA)
    found = separate(np.zeros(400), np.ones(400), claim)
    assert found.refuted and found.lower_bound > 4
