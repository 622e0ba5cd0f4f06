"""The best of several private runs: what it costs, and what of the other runs is seen."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import sidelight
from sidelight import PrivateClassifier, tune
from sidelight.errors import BudgetExceeded, InputError, SidelightError
from sidelight.methods import BandedNoise, dp_sgd, majority, ppsgd
from sidelight.methods.leaf_boosting import WithLeaves
from sidelight.methods.objective_perturbation import PerturbedObjective
from sidelight.methods.tuned import Tuned
from sidelight.observers import Callback
from sidelight.privacy import accountants, events, selections
from sidelight.privacy.events import BestOf
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise

AR = "add-or-remove-one"
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(1500, 4))
Y = (X @ [1.0, -2.0, 0.5, 1.0] > 0).astype(int)
CANDIDATES = [dp_sgd(steps=10, step_size=size) for size in (1e-4, 1.0)]


def of(mu: float, shape: float, expected: float = 5.0) -> BestOf:
    return BestOf((events.gaussian(1 / mu),), shape, selections.gamma_for(expected, shape))


def model(method: object, **options: object) -> PrivateClassifier:
    return PrivateClassifier(
        **{"epsilon": 3.0, "delta": 1e-5, "method": method, "classes": [0, 1], "bounds": (-1, 1), **options}
    )


def density_of_best(event: BestOf, at: np.ndarray, mean: float) -> np.ndarray:
    """Of the largest of K Gaussians: Q(y)·f′(Q(≤ y))."""
    above = norm.sf(at - mean)
    slope = event.expected * ((event.gamma + (1 - event.gamma) * above) / event.gamma) ** (-event.shape - 1)
    return np.asarray(norm.pdf(at - mean) * slope)


@pytest.mark.parametrize("shape", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("mu", [0.2, 1.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_bound_is_above_the_truth_for_a_score_that_is_the_release(shape, mu, sign):
    event, at = of(mu, shape), np.linspace(-14, 14, 400_001)
    ours, theirs = density_of_best(event, at, sign * mu), density_of_best(event, at, 0.0)
    step = at[1] - at[0]
    assert ours.sum() * step == pytest.approx(1, abs=1e-6)
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0):
        for one, other in ((ours, theirs), (theirs, ours)):
            truth = float(np.maximum(one - math.exp(epsilon) * other, 0).sum() * step)
            assert accountants.delta(event, epsilon=epsilon, relation=AR) >= truth * (1 - 1e-6) - 1e-12


def worst_order(event: BestOf, mu: float, cut: float) -> float:
    """ε of the best of K Gaussians, exactly, by a score that ranks x > cut first and the rest from below.

    What is next after x > cut is where the neighbor is least likely, and there its chance of being beaten
    has risen most.
    """
    at = np.linspace(-12, 12, 60_001)
    above = at > cut
    first = np.where(above, norm.sf(at), norm.sf(cut) + norm.cdf(at))
    second = np.where(above, norm.sf(at - mu), norm.sf(cut - mu) + norm.cdf(at - mu))
    mine, theirs = (
        norm.pdf(at - mean) * (event.gamma / (event.gamma + (1 - event.gamma) * p)) ** (event.shape + 1)
        for mean, p in ((0.0, first), (mu, second))
    )
    scale = event.expected * (at[1] - at[0])
    return float(
        brentq(lambda e: scale * float(np.maximum(mine - math.exp(e) * theirs, 0).sum()) - 1e-5, 0, 30)
    )


@pytest.mark.parametrize(("shape", "most"), [(0.0, 1.04), (1.0, 1.05)])
def test_no_bound_for_every_score_can_be_much_lower(shape, most):
    event = of(0.5, shape)
    truth = max(worst_order(event, 0.5, cut) for cut in np.linspace(-1, 2, 13))
    bound = accountants.epsilon(event, delta=1e-5, relation=AR)
    assert truth <= bound <= most * truth


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_the_profile_costs_less_than_the_renyi_bound(shape):
    event = of(0.5, shape)
    tight = accountants.epsilon(event, delta=1e-5, relation=AR)
    renyi = accountants.epsilon(event, delta=1e-5, relation=AR, accountant="rdp")
    once = accountants.epsilon(event.events[0], delta=1e-5, relation=AR)
    assert once < tight < 0.9 * renyi


def test_it_composes_with_other_releases():
    event = of(0.5, 0.0)
    alone = accountants.epsilon(event, delta=1e-5, relation=AR)
    both = accountants.epsilon(events.compose(event, events.gaussian(20.0)), delta=1e-5, relation=AR)
    assert alone < both < alone + 0.2


@pytest.mark.parametrize("shape", [0.0, 1.0, 3.0])
def test_the_number_of_runs_has_its_law(shape):
    event, noise = of(0.5, shape, expected=4.0), Noise(3)
    counts = np.array([selections.draw_count(event, noise) for _ in range(20_000)])
    assert counts.min() == 1 and counts.mean() == pytest.approx(4.0, rel=0.05)
    first = (1 - event.gamma) / math.log(1 / event.gamma) if shape == 0 else None
    if first is not None:
        assert np.mean(counts == 1) == pytest.approx(first, abs=0.015)


@pytest.mark.parametrize(("shape", "expected"), [(20.0, 200.0), (5.0, 2000.0), (0.0, 50.0)])
def test_the_number_of_runs_has_its_law_where_one_run_is_rare(shape, expected):
    event, noise = of(0.5, shape, expected=expected), Noise(3)
    counts = np.array([selections.draw_count(event, noise) for _ in range(1000)])
    spread = counts.std() / math.sqrt(len(counts))
    assert abs(counts.mean() - expected) < 5 * spread + 0.01 * expected


@pytest.mark.parametrize("shape", [0.0, 5e-324, 1e-200, 1e-17, 3e-16, 1e-14, 1e-8, 1e-3, 1.0, 20.0])
@pytest.mark.parametrize("gamma", [1e-6, 0.05, 0.5, 0.999])
def test_the_law_is_that_of_many_digits(shape, gamma):
    event = BestOf((events.gaussian(1.0),), shape, gamma)
    with mp.workdps(700):  # γ^η is 1 to hundreds of digits where η is tiny
        g, eta = mp.mpf(gamma), mp.mpf(shape)
        expected = (1 / g - 1) / mp.log(1 / g) if not shape else eta * (1 - g) / (g * (1 - g**eta))
        once = (1 - g) / mp.log(1 / g) if not shape else eta * (1 - g) / (g**-eta - 1)
        assert event.expected == pytest.approx(float(expected), rel=1e-14)
        assert event.once == pytest.approx(float(once), rel=1e-12)


class Given:
    """A source that gives one number."""

    def __init__(self, number: float) -> None:
        self.generator, self._number = self, number

    def random(self) -> float:
        return self._number


@pytest.mark.parametrize("shape", [0.0, 1e-17, 3e-16, 1.0, 20.0])
@pytest.mark.parametrize("gamma", [0.02, 0.5])
def test_the_count_that_is_drawn_is_the_quantile_of_the_law(shape, gamma):
    event = BestOf((events.gaussian(1.0),), shape, gamma)
    with mp.workdps(60):
        g, below, k = mp.mpf(gamma), mp.mpf(0), 0
        mass = (1 - g) / mp.log(1 / g) if shape < 1e-10 else shape * (1 - g) / (g**-shape - 1)
        while 1 - below > 1e-9 and k < 3000:
            k += 1
            low, below = below, below + mass
            mass *= (1 - g) * (mp.mpf(shape) + k) / (k + 1)
            if float(below - low) > 1e-9:
                middle = Given(float((low + below) / 2))
                assert selections.draw_count(event, middle) == k  # type: ignore[arg-type]
    assert selections.draw_count(event, Given(1 - 2**-53)) < 50 * max(1, shape) / gamma  # type: ignore[arg-type]


def test_an_event_is_stored_and_described():
    event = of(0.5, 1.0)
    assert events.from_json(events.to_json(event)) == event
    assert "best of 5 runs" in events.describe(event)


def test_a_fit_is_one_event_within_the_budget_and_finds_the_better_candidate():
    right = []
    for seed in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = model(tune(CANDIDATES, expected_runs=8.0), random_state=seed).fit(X, Y)
        stated = fitted.privacy_
        assert stated.epsilon <= 3.0 * (1 + 1e-6)
        assert sum(isinstance(part, BestOf) for part in events.elementary(stated.plan)) == 1
        right.append(any("2: dp_sgd" in note for note in stated.details["notes"]))
    assert sum(right) >= 3


def test_a_ledger_is_charged_once_and_refuses_the_next(tmp_path: Path):
    ledger = Ledger.create(tmp_path / "ledger.db")
    ledger.register("people", epsilon=3.2, delta=1e-5, relation=AR)
    model(tune(CANDIDATES), ledger=ledger, dataset="people", delta=None).fit(X, Y)
    assert len(ledger.charges("people")) == 1
    with pytest.raises(BudgetExceeded):
        model(tune(CANDIDATES), ledger=ledger, dataset="people", delta=None).fit(X, Y)


def test_nothing_is_heard_of_runs_that_lose():
    heard: list[object] = []
    fitted = model(tune(CANDIDATES, expected_runs=8.0)).fit(
        X, Y, observers=[Callback(lambda *a, **k: heard.append((a, k)))]
    )
    assert len(fitted.history_) <= 11 and len(heard) <= 12


def test_runs_that_fail_lose_silently(monkeypatch):
    honest = Tuned._once
    monkeypatch.setattr(
        Tuned,
        "_once",
        lambda self, task, plan, k, noise: None if k == 1 else honest(self, task, plan, k, noise),
    )
    fitted = model(tune(CANDIDATES, expected_runs=6.0), random_state=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert any("1: dp_sgd" in note for note in fitted.fit(X, Y).privacy_.details["notes"])
        except SidelightError as error:
            assert "every run" in str(error)


def test_correlated_runs_may_be_candidates():
    method = dp_sgd(steps=12, expected_batch_size=100, noise=BandedNoise(bands=3, sampled=True))
    fitted = model(tune([method, *CANDIDATES], expected_runs=3.0)).fit(X, Y)
    assert fitted.privacy_.epsilon <= 3.0 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tune([]), "candidates"),
        (lambda: tune(CANDIDATES, expected_runs=1.0), "above 1"),
        (lambda: tune(CANDIDATES, shape=-1.0), "shape"),
        (lambda: tune(CANDIDATES, shape=1e3), "shape"),
        (lambda: tune([tune(CANDIDATES)]), "plan of their own"),
        (lambda: tune(["non_private"]), "private methods"),
        (
            lambda: model(tune([ppsgd(planned_steps=4)])).fit(X, Y, X_public=X[:50], y_public=Y[:50]),
            "fixed plan",
        ),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(make, message):
    with pytest.raises(SidelightError, match=message):
        make()


@pytest.mark.parametrize("what", ["persons", "trees"])
def test_what_no_score_can_be_had_for_is_refused_before_the_charge(what, tmp_path: Path):
    ledger, (method, given) = Ledger.create(tmp_path / "ledger.db"), {
        "persons": (CANDIDATES[0], {"persons": np.arange(len(X)) // 2}),
        "trees": (WithLeaves(CANDIDATES[0], least_worth=1.0, sure_worth=1.0), {}),
    }[what]  # fmt: skip
    ledger.register("people", epsilon=3.2, delta=1e-5, relation=AR)
    public = {"X_public": X[:400], "y_public": Y[:400]}
    with pytest.raises(InputError, match=r"trees|per person"):
        model(tune([method]), ledger=ledger, dataset="people", delta=None).fit(X, Y, **public, **given)
    assert not ledger.charges("people")


@dataclass(frozen=True)
class Misspelt(PerturbedObjective):
    """A method of one's own, with a mistake in its run."""

    name: ClassVar[str] = "misspelt"

    def run(self, task, plan, *, account, noise):
        return task.rows.sums  # there is no such attribute


def test_a_mistake_in_a_candidate_is_one_error_before_the_charge(tmp_path: Path):
    ledger = Ledger.create(tmp_path / "ledger.db")
    ledger.register("people", epsilon=3.2, delta=1e-5, relation=AR)
    with pytest.raises(InputError, match="misspelt fails on rows of zeros"):
        model(
            tune([CANDIDATES[0], Misspelt()]), loss="logistic", ledger=ledger, dataset="people", delta=None
        ).fit(X, Y)
    assert not ledger.charges("people")


def test_tune_is_a_name_of_the_package():
    assert "tune" in sidelight.__all__


def test_a_candidate_that_asks_for_its_budget_while_it_runs_gets_that_of_one_run() -> None:
    """Otherwise its noise would be too small for its plan: every run is refused after the charge."""
    fitted = model(tune([majority(labels="private")]), random_state=0).fit(X, Y)
    assert fitted.privacy_.epsilon <= 3.0
