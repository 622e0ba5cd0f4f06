"""OnlyPub, NonPriv and Majority."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare
from tests.methods.convex_tools import AR, RO, Account, accuracy, rows_of, task_of
from tests.private_values import value_of

from sidelight import PrivateRegressor
from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError, InputError, NotPrivateWarning
from sidelight.losses import Hinge, Logistic
from sidelight.methods.baselines import (
    _gumbel_scale,
    majority,
    non_private,
    only_public,
    public_strength,
    solve,
)
from sidelight.methods.task import Task
from sidelight.oracles.linear.row_sums import label_counts
from sidelight.privacy import events
from sidelight.privacy.noise import Noise
from sidelight.solvers import reuse


def fit(method, task, seed=0, account=None):
    return method.run(task, method.plan(task), account=account or Account(), noise=Noise(seed))


@pytest.mark.parametrize("loss", ["logistic", "hinge", "huber", "square", "softmax"])
def test_only_public_is_blind_to_private_records(loss):
    account = Account()
    one = fit(only_public(), task_of(loss, seed=0), account=account)
    other = fit(only_public(), task_of(loss, seed=1))
    assert (one.coef == other.coef).all()
    assert account.events == []


@pytest.mark.parametrize("loss", ["logistic", "huber", "square", "softmax"])
def test_only_public_solves_its_problem(loss):
    task = task_of(loss)
    strength = only_public().plan(task).details["regularization"]
    want = reuse(task.loss, task.public.X, task.public.y, np.zeros(task.dimension), strength / 2)
    assert fit(only_public(), task).coef.ravel() == pytest.approx(want, abs=1e-3 * np.abs(want).max())
    given = replace(task, regularization=0.05)
    want = reuse(task.loss, task.public.X, task.public.y, np.zeros(task.dimension), 0.025)
    assert fit(only_public(), given).coef.ravel() == pytest.approx(want, abs=1e-5)


def test_only_public_takes_the_regularization_that_held_out_rows_ask_for():
    """Labels that the features tell apart ask for little; labels that are noise ask for much."""
    task = task_of("logistic")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4)) / 4
    clear = PublicRows(X, np.where(X[:, 0] >= 0, 1.0, -1.0))
    noise = PublicRows(X, np.where(rng.random(400) < 0.5, 1.0, -1.0))
    weak, strong = (public_strength(replace(task, public=public)) for public in (clear, noise))
    assert weak <= 0.01 / 400 and strong >= 10 / 400
    right = fit(only_public(), replace(task, public=clear)).coef[0] @ X.T
    assert ((right >= 0) == (clear.y > 0)).mean() > 0.97


def test_the_sharply_huberized_hinge_is_nearly_the_hinge():
    X, y = rows_of(300, 4)
    w = solve([PublicRows(X, y)], Hinge(), 0.01)
    exact = reuse(Hinge(), X, y, np.zeros(4), 0.005)

    def value(w):
        return Hinge().value(X @ w, y).mean() + 0.005 * w @ w

    assert value(w) - value(exact) < 3e-4


def test_only_public_needs_public_records():
    task = task_of()
    empty = Task(task.rows, PublicRows.empty(4), task.loss, 1.0, 1e-6, RO)
    with pytest.raises(InputError, match="needs public"):
        only_public().plan(empty)
    strange = Task(task.rows, PublicRows(np.ones((2, 4)), np.array([1.0, 3.0])), Logistic(), 1.0, 1e-6, RO)
    with pytest.raises(InputError, match="y_public"):
        only_public().plan(strange)


def test_non_private_warns_and_is_charged_as_such():
    task, account = task_of(n=500), Account()
    with pytest.warns(NotPrivateWarning, match="no guarantee"):
        fitted = fit(non_private(), task, account=account)
    assert account.events == [events.NonPrivate()]
    assert not non_private().private
    assert accuracy(fitted.coef, *rows_of(500, 4, 3)) > 0.93


def unbalanced(n=40, ones=30, classes=None):
    X, _ = rows_of(n, 3)
    return X, np.where(np.arange(n) < ones, 1.0, 0.0 if classes else -1.0)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("relation", [AR, RO])
def test_private_majority_is_an_exponential_mechanism(loss, relation):
    X, y = unbalanced(12, 7, classes=loss == "softmax")
    task = task_of(loss, X=X, y=y, p=3, relation=relation, epsilon=0.5)
    plan = majority(labels="private").plan(task)
    counts = np.array([5.0, 7.0, 0.0] if loss == "softmax" else [5.0, 7.0])
    weights = np.exp((0.5 if relation == AR else 0.25) * counts)
    noise, won = Noise(3), np.zeros(len(counts))
    method = majority(labels="private")
    for _ in range(2000):
        coef = method.run(task, plan, account=Account(), noise=noise).coef
        won[np.argmax(coef[:, -1]) if loss == "softmax" else int(coef[0, -1] > 0)] += 1
    assert chisquare(won, 2000 * weights / weights.sum()).pvalue > 1e-4


@pytest.mark.parametrize("relation", [AR, RO])
def test_private_majority_stays_within_epsilon(relation):
    """The exact odds of the mechanism on neighbors, from the counts and the scale that it uses."""

    def odds(y):
        task = task_of(X=rows_of(len(y), 3)[0], y=y, p=3, relation=relation, epsilon=0.8)
        counts = value_of(label_counts(task.rows, np.array([-1, 1]), relation=task.relation))
        return counts / _gumbel_scale(task) - np.log(np.exp(counts / _gumbel_scale(task)).sum())

    y = np.where(np.arange(9) < 5, 1.0, -1.0)
    other = y[1:] if relation == AR else np.concatenate([[-1.0], y[1:]])
    assert 0.3 < np.abs(odds(y) - odds(other)).max() <= 0.8


def test_majority_from_public_labels_is_free_and_constant():
    account = Account()
    task = task_of(n=10)
    public = PublicRows(*unbalanced(40, 10))
    task = Task(task_of(p=3).rows, public, task.loss, 1.0, 1e-6, RO)
    fitted = fit(majority(), task, account=account)
    assert account.events == []
    assert (np.sign(rows_of(50, 3)[0] @ fitted.coef[0]) == -1).all()


def test_null_records_have_no_vote():
    X, y = unbalanced(30, 10, classes=True)
    X = X.copy()
    X[10:] = np.nan  # all of class 0: unusable
    task = task_of("softmax", X=X, y=y, p=3)
    assert value_of(label_counts(task.rows, np.arange(3), relation=task.relation)).tolist() == [
        0.0,
        10.0,
        0.0,
    ]


def test_a_constant_needs_an_intercept_and_labels():
    with pytest.raises(AssumptionError, match="regression"):
        majority().plan(task_of("square"))
    task = task_of(p=3)
    flat = PublicRows(task.public.X * np.array([1.0, 1.0, 0.0]), task.public.y)
    with pytest.raises(AssumptionError, match="intercept"):
        majority().plan(Task(task.rows, flat, task.loss, 1.0, 1e-6, RO))
    with pytest.raises(InputError, match="labels"):
        majority(labels="none").plan(task)


def test_without_privacy_the_ridge_is_tuned_so_that_it_is_a_ceiling() -> None:
    """Rows of many features are short, and λ = 1/n is strong for them: private models were ahead of it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6_000, 60))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = 4 * X @ rng.normal(size=60) + 0.1 * rng.normal(size=6_000)
    found = {}
    for regularization in (0.0, 1 / 3_000):
        model = PrivateRegressor("non_private", epsilon=1.0, bounds=(-1, 1), target_bounds=(-15, 15))
        model.set_params(regularization=regularization)
        with pytest.warns(NotPrivateWarning):
            found[regularization] = model.fit(X[:3_000], y[:3_000]).predict(X[3_000:])
    errors = [float(((guess - y[3_000:]) ** 2).mean()) for guess in found.values()]
    assert errors[0] < 0.7 * errors[1] and errors[0] < 0.012
