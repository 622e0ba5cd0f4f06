"""Probabilities: a scale that is found where it was planted, and counts that are paid for."""

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from tests.contracts import replay
from tests.methods.convex_tools import Account, rows_of, task_of

from sidelight.audit.subjects import ADD_REMOVE, REPLACE
from sidelight.errors import AssumptionError, NotPrivateWarning
from sidelight.estimators import PrivateClassifier
from sidelight.methods.auto import auto
from sidelight.methods.baselines import fit_public, non_private, only_public
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.precision import precision_weighting
from sidelight.methods.probabilities import GapCounts, WithProbabilities, fit_scale
from sidelight.privacy import accountants, events
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise

NEAR_ONE = (0.0, 0.25)
RNG = np.random.default_rng(0)


def world(n: int, seed: int, *, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Five features and labels whose log-odds are linear in them."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 5))
    W = np.random.default_rng(99).normal(size=(classes, 5)) * 3
    chance = softmax(X @ W.T, axis=1)
    return X, (rng.random((n, 1)) > chance.cumsum(axis=1)).sum(axis=1)


def calibration_error(chance: np.ndarray, truth: np.ndarray) -> float:
    parts = np.array_split(np.argsort(chance), 10)
    return float(sum(len(p) * abs(chance[p].mean() - truth[p].mean()) for p in parts) / len(truth))


# ---------------------------------------------------------------------------------------------------
# the fit


@pytest.mark.parametrize("planted", [0.1, 1.0, 7.0])
def test_a_planted_scale_is_found_by_public_records(planted: float) -> None:
    z = RNG.normal(size=4000) * 2
    y = np.where(RNG.random(4000) < expit(z), 1.0, -1.0)
    assert fit_scale(expected=NEAR_ONE, public=(z / planted, y)) == pytest.approx(planted, rel=0.1)


@pytest.mark.parametrize("planted", [0.2, 4.0])
def test_a_planted_temperature_is_found_for_many_classes(planted: float) -> None:
    z = RNG.normal(size=(4000, 4)) * 2
    y = (RNG.random((4000, 1)) > softmax(z, axis=1).cumsum(axis=1)).sum(axis=1).astype(float)
    assert fit_scale(expected=NEAR_ONE, public=(z / planted, y)) == pytest.approx(planted, rel=0.1)


@pytest.mark.parametrize("planted", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("std", [0.0, 40.0])
def test_a_planted_scale_is_found_by_noisy_counts(planted: float, std: float) -> None:
    gap = np.concatenate([[0.0], 2.0 ** np.arange(-6, 3, 0.5)])
    size = np.full(len(gap), 2000.0)
    right = size * expit(gap)
    noise = std * RNG.normal(size=(2, len(gap)))
    counts = GapCounts(gap / planted, right + noise[0], size - right + noise[1], max(std, 1e-6))
    assert fit_scale(expected=NEAR_ONE, counts=counts) == pytest.approx(planted, rel=0.15)


def test_the_scale_is_that_of_the_least_log_loss_where_no_scale_is_true() -> None:
    """Scores that are log-odds near 0 and far too large beyond: what a model of the wrong shape has."""
    gap = np.concatenate([[0.0], 2.0 ** np.arange(-4, 4, 0.25)])
    size = np.full(len(gap), 5000.0)
    right = size * expit(np.minimum(gap, 1.5))
    grid = np.exp(np.linspace(-3, 1, 401))
    losses = [
        float((right * np.logaddexp(0, -a * gap) + (size - right) * np.logaddexp(0, a * gap)).sum())
        for a in grid
    ]
    counts = GapCounts(gap, right, size - right, 20.0)
    best = grid[int(np.argmin(losses))]
    assert fit_scale(expected=NEAR_ONE, counts=counts) == pytest.approx(best, rel=0.03)


def test_counts_that_are_noise_alone_say_nothing() -> None:
    """Of empty cells the noise must not look like undecided records, which would pull the scale to 0."""
    gap = 2.0 ** np.arange(-10, 4, 0.5)
    found = [
        fit_scale(expected=NEAR_ONE, counts=GapCounts(gap, *(50 * RNG.normal(size=(2, len(gap)))), std=50.0))
        for _ in range(40)
    ]
    assert abs(np.median(np.log(found))) < 0.15


def test_noise_at_gaps_where_no_record_is_does_not_pull_the_scale_down() -> None:
    """Counts are weighted by what public rows lead one to expect, not by their own noise."""
    gap = 2.0 ** np.arange(-6, 8, 0.5)
    size = np.where(gap < 4, 400.0, 0.0)
    right, found = size * expit(gap), []
    for _ in range(40):
        noise = 60 * RNG.normal(size=(2, len(gap)))
        counts = GapCounts(gap, right + noise[0], size - right + noise[1], 60.0, size)
        found.append(np.log(fit_scale(expected=(0.0, 0.5), counts=counts)))
    assert abs(np.mean(found)) < 0.08 and np.std(found) < 0.3


def test_a_model_that_noise_kept_near_its_start_is_expected_to_be_too_small() -> None:
    """With next to no information but the noise, d weights from n′ gradients are shrunk by 1 + d/n′. Public
    rows that have a share s of the weight are gradients without noise, and have a scale of their own."""
    scales = {}
    for epsilon in (0.01, 0.1, 100.0):
        task = task_of("logistic", n=400, n_public=15, epsilon=epsilon)
        method = WithProbabilities(precision_weighting(steps=4))
        plan = method.plan(task)
        worth, share = plan.details["noise_worth"], plan.details["weight"]
        assert isinstance(worth, float) and isinstance(share, float)
        fitted = method.run(task, plan, account=Account(), noise=Noise(0))
        own, public = (np.std(task.public.X @ w.T) for w in (fitted.coef, fit_public(task)))
        expected = (1 - share) * (np.log1p((1 - share) * task.dimension / worth) - 0.3)
        scales[epsilon] = np.log(fitted.scale) - expected - share * np.log(public / own)
    assert list(scales.values()) == pytest.approx(3 * [0.0], abs=0.02)


def test_a_few_separable_records_do_not_make_the_model_certain() -> None:
    z, y = np.linspace(-1, 1, 40), np.sign(np.linspace(-1, 1, 40))
    assert fit_scale(expected=NEAR_ONE, public=(z, y), weight=0.5) < 100
    assert fit_scale(expected=NEAR_ONE) == pytest.approx(1.0, rel=1e-3)


# ---------------------------------------------------------------------------------------------------
# the plan


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("method", [auto(), precision_weighting(), dp_sgd(momentum=0.8, steps=16)])
def test_method_and_counts_together_cost_the_budget(relation: Any, epsilon: float, method: Any) -> None:
    task = task_of(relation=relation, n=4000, p=6, epsilon=epsilon)
    plan = WithProbabilities(method, source="private").plan(task)
    cost = accountants.epsilon(plan.event, delta=task.delta, relation=relation)
    assert cost <= epsilon * (1 + 1e-9)
    assert cost > 0.98 * epsilon
    z = plan.details["noise_multiplier_counts"]
    assert events.gaussian(z) in events.elementary(plan.event)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
def test_counts_keep_every_promise_of_a_release(loss: str, relation: Any) -> None:
    method = WithProbabilities(precision_weighting(steps=4), source="private")
    task = task_of(loss, relation=relation, n=60)
    X, y = rows_of(60, kind=task.loss.task)
    X[3] = -X[3] if relation == REPLACE else np.nan  # a null record is one that is not there
    tape = replay.record(method, task)
    other = replay.record(method, task_of(loss, relation=relation, X=X, y=y), like=tape)
    assert replay.assert_within_sensitivity(tape, other) > 0
    replay.assert_same_outside(tape, other)
    replay.assert_plan_covers(tape, task)


def test_the_counts_are_in_the_history_and_the_ledger() -> None:
    X, y = world(3000, 0)
    ledger = Ledger.in_memory()
    ledger.register("people", relation=REPLACE, epsilon=1.0, delta=1e-6)
    model = PrivateClassifier(epsilon=1.0, delta=1e-6, ledger=ledger, dataset="people", classes=[0, 1])
    model.fit(X, y, *world(60, 1))
    assert model.history_[-2]["released"] == "score counts"
    (charge,) = ledger.charges("people")
    assert events.elementary(charge.event) == events.elementary(model.privacy_.plan)
    assert any(note.startswith("probabilities: scaled by") for note in model.privacy_.details["notes"])


def test_a_plan_that_is_not_gaussian_leaves_the_scale_to_public_records() -> None:
    task = task_of(n=500, relation=ADD_REMOVE, n_public=40)
    sampled = dp_sgd(expected_batch_size=50, steps=5)
    method = WithProbabilities(sampled, source="private")
    assert method.plan(task).event == sampled.plan(task).event
    fitted = method.run(task, method.plan(task), account=Account(), noise=Noise(0))
    assert "40 public rows" in fitted.notes[-1]
    with pytest.raises(AssumptionError, match="Gaussian"):
        WithProbabilities(sampled, source="private", required=True).plan(task)


def test_a_budget_too_small_to_share_is_spent_on_training_alone() -> None:
    task = task_of(n=500, relation=ADD_REMOVE, n_public=40, epsilon=1e-9)
    method = WithProbabilities(dp_sgd(steps=5), source="private")
    assert method.plan(task).event == dp_sgd(steps=5).plan(task).event
    with pytest.raises(AssumptionError, match="nothing for training"):
        WithProbabilities(dp_sgd(steps=5), source="private", required=True).plan(task)


def test_a_private_selection_leaves_the_scale_to_public_records() -> None:
    """auto selects among candidates where features are few and budget is plenty: that is no Gaussian plan."""
    task = task_of(n=4000, p=4, epsilon=8.0)
    plan = WithProbabilities(auto(), source="private").plan(task)
    assert plan.details["chosen"] == "private_selection"
    assert "noise_multiplier_counts" not in plan.details
    assert plan.event == auto().plan(task).event  # and none of the budget is kept for counts


def test_public_records_alone_spend_nothing_and_read_nothing_private() -> None:
    task = task_of(n=500, n_public=50)
    method = WithProbabilities(only_public(), source="private")
    account = Account()
    method.run(task, method.plan(task), account=account, noise=Noise(0))
    assert account.events == []


def test_a_named_method_is_trained_as_without_probabilities() -> None:
    task = task_of(n=500, n_public=50)
    method = dp_sgd(steps=4, momentum=0.5)
    plain = method.run(task, method.plan(task), account=Account(), noise=Noise(3))
    scaled = WithProbabilities(method)
    assert repr(scaled) == repr(method)
    fitted = scaled.run(task, scaled.plan(task), account=Account(), noise=Noise(3))
    np.testing.assert_array_equal(plain.coef, fitted.coef)


# ---------------------------------------------------------------------------------------------------
# the model


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("public", [12, 200])
def test_probabilities_of_the_default_are_true(classes: int, public: int) -> None:
    X, y = world(12_000, 0, classes=classes)
    Xt, yt = world(8_000, 1, classes=classes)
    common: dict[str, Any] = {"epsilon": 1.0, "bounds": (-1, 1), "classes": range(classes)}

    def error(method: str, calibration: str | None, seed: int) -> float:
        model = PrivateClassifier(method, calibration=calibration, random_state=seed, **common)
        chance = model.fit(X, y, *world(public, 2, classes=classes)).predict_proba(Xt)
        np.testing.assert_allclose(chance.sum(axis=1), 1)
        np.testing.assert_array_equal(model.classes_[chance.argmax(axis=1)], model.predict(Xt))
        return calibration_error(chance.max(axis=1), chance.argmax(axis=1) == yt)

    # By noise alone an error varies from 0.014 to 0.036 with 12 public rows of four classes.
    assert np.mean([error("auto", "auto", seed) for seed in range(3)]) < 0.03
    if public == 200:
        assert error("public_whitening", None, 0) > 0.05  # planted by the method: its scores are too small


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_probabilities_of_many_classes_are_no_worse_than_those_of_public_rows_alone(epsilon: float) -> None:
    """Public rows have 60 to 85 % of the weight, and private counts are mostly noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(6, size=7_200)
    X = np.clip(0.15 * rng.normal(size=(6, 100))[y] + 0.4 * rng.normal(size=(7_200, 100)), -1, 1)
    losses = {}
    for method in ("auto", "only_public"):
        model = PrivateClassifier(method, epsilon=epsilon, classes=range(6), bounds=(-1, 1), random_state=0)
        model.set_params(compare_with_public=False).fit(X[200:3_200], y[200:3_200], X[:200], y[:200])
        chance = model.predict_proba(X[3_200:])
        losses[method] = -np.log(chance[np.arange(4_000), y[3_200:]]).mean()
    assert losses["auto"] < losses["only_public"] + 0.005


@pytest.mark.parametrize("loss", ["hinge", "huber", "logistic", "softmax"])
def test_every_loss_has_probabilities(loss: str) -> None:
    X, y = world(6_000, 0)
    Xt, yt = world(4_000, 1)
    model = PrivateClassifier(loss=loss, epsilon=2.0, bounds=(-1, 1), random_state=0)
    chance = model.fit(X, y, *world(100, 2)).predict_proba(Xt)[:, 1]
    assert calibration_error(chance, yt) < 0.04


def test_the_exact_minimum_of_a_proper_loss_is_not_scaled() -> None:
    X, y = world(500, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        model = PrivateClassifier(non_private(), epsilon=1.0, bounds=(-1, 1)).fit(X, y, *world(50, 1))
    assert model.probability_scale_ == 1.0
