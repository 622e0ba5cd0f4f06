"""auto chooses from public quantities, says why, and stays within the budget."""

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.contracts.neighbors import rows_with_score
from tests.private_values import value_of

from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.errors import AssumptionError
from sidelight.losses import get_loss
from sidelight.methods.auto import (
    PrivateSelection,
    auto,
    correct_predictions,
    worth_of_public,
)
from sidelight.methods.baselines import fit_public
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.task import Task
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise


class Book:
    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def charge(self, event: events.Event) -> None:
        self.events.append(event)


def a_task(n=2000, p=6, n_public=20, *, loss="hinge", epsilon=1.0, seed=0, regression=False) -> Task:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + n_public, p))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    z = X @ np.linspace(1, -1, p)
    y = np.clip(z, -1, 1) if regression else np.where(z >= 0, 1.0, -1.0)
    return Task(
        rows=PrivateRows(X[:n], y[:n], max_norm=1.0),
        public=PublicRows(X[n:], y[n:]),
        loss=get_loss(loss),
        epsilon=epsilon,
        delta=1e-6,
        relation="replace-one",
        target_bound=1.0 if regression else None,
    )


def chosen(task: Task, **options) -> tuple[str, str]:
    method, reasons = auto(**options).choose(task)
    return method.name, " | ".join(reasons)


def test_without_public_records_it_needs_none():
    assert chosen(a_task(n_public=0))[0] == "dp_sgd"  # the hinge has no second derivative
    for loss, name in (("logistic", "dp_newton"), ("square", "dp_newton")):
        chose, reasons = chosen(a_task(n_public=0, loss=loss, regression=loss == "square"))
        assert chose == name and "no public records" in reasons
    assert chosen(a_task(n_public=0, loss="logistic", p=201))[0] == "dp_sgd"


def test_without_public_records_slopes_are_clipped_where_the_loss_is_steeper_than_at_zero():
    for loss, share in (("logistic", 0.5), ("square", 0.5), ("huber", 1.0)):
        method, _ = auto().choose(a_task(n_public=0, loss=loss, regression=loss == "square"))
        assert method.slope_share == share


def test_with_public_records_it_weighs_them_by_precision():
    name, reasons = chosen(a_task())
    assert name == "precision_weighting" and "only_public was considered" in reasons
    assert chosen(a_task(loss="square", regression=True))[0] == "precision_weighting"


def test_drowned_in_noise_it_tells_that_public_records_win():
    name, reasons = chosen(a_task(n=50, epsilon=0.01))
    assert name == "only_public" and "no budget is spent" in reasons


def test_a_plentiful_budget_for_few_parameters_is_partly_spent_on_a_choice():
    name, reasons = chosen(a_task(n=60_000, p=3, epsilon=2.0))
    assert name == "private_selection" and "selected" in reasons
    assert chosen(a_task(n=60_000, p=6, epsilon=2.0))[0] == "precision_weighting"


def test_public_records_count_the_more_the_more_there_are_and_the_stronger_the_noise():
    few, many = a_task(n_public=20), a_task(n_public=200)
    assert worth_of_public(many) > 5 * worth_of_public(few)
    assert worth_of_public(replace(few, epsilon=0.1)) > 10 * worth_of_public(few)
    # Without noise a public record is worth as much as a private one.
    assert worth_of_public(replace(few, epsilon=1e3)) == pytest.approx(20 / 2000, rel=0.05)
    assert chosen(replace(many, epsilon=0.01))[0] == "only_public"


def test_the_weight_that_is_used_is_the_one_that_was_chosen_by():
    task = a_task(n_public=200)
    kappa = worth_of_public(task)
    weight = auto().plan(task).details["weight"]
    assert weight == pytest.approx(kappa / (1 + kappa), rel=1e-6)


def test_public_alone_is_judged_as_only_public_fits_it():
    """On a sorted table, and with the regularization that only_public has."""
    task = a_task(n=5000, n_public=200, epsilon=1.0)
    order = np.argsort(task.public.y)
    public = PublicRows(task.public.X[order], task.public.y[order])
    told = float(
        re.search(r"accuracy ([\d.]+)\s% in 5 folds of 200", chosen(replace(task, public=public))[1]).group(1)
    )
    w = fit_public(task)[0]
    assert told / 100 > ((task.public.X @ w >= 0) == (task.public.y > 0)).mean() - 0.05


@pytest.mark.parametrize(
    "change", [{"n": 60_000, "p": 3, "epsilon": 2.0}, {}, {"n_public": 0}, {"loss": "logistic"}]
)
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_plan_and_what_is_charged_are_within_the_budget(change, relation):
    task = replace(a_task(**change), relation=relation)
    method = auto()
    plan = method.plan(task)
    assert accountants.epsilon(plan.event, delta=1e-6, relation=relation) <= task.epsilon * (1 + 1e-9)
    book = Book()
    fitted = method.run(task, plan, account=book, noise=Noise(1))
    assert events.elementary(events.compose(*book.events)) == events.elementary(plan.event)
    assert np.isfinite(fitted.coef).all()
    assert plan.details["reasons"][-1] in fitted.notes


def test_the_choice_does_not_depend_on_private_rows():
    task = a_task()
    other = replace(task, rows=PrivateRows(np.full((2000, 6), np.nan), np.ones(2000), max_norm=1.0))
    first, second = auto().plan(task), auto().plan(other)
    assert first.details == second.details and first.event == second.event


def test_it_learns_with_a_moderate_budget():
    task = a_task(n=5000, epsilon=1.0)
    fitted = auto().run(task, auto().plan(task), account=Book(), noise=Noise(3))
    test = np.random.default_rng(9).normal(size=(2000, 6))
    assert np.mean((test @ fitted.coef[0] >= 0) == (test @ np.linspace(1, -1, 6) >= 0)) > 0.93


def test_every_choice_can_be_planned_before_the_rows_are_read():
    """Through the estimator, whose plan sees no private record."""
    from sidelight.estimators import PrivateClassifier

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 3))
    y = X[:, 0] > 0
    model = PrivateClassifier(epsilon=2.0, delta=1e-6, public_model=None, random_state=1)
    model.fit(X[50:], y[50:], X_public=X[:50], y_public=y[:50])
    assert model.privacy_.details["chosen"] == "private_selection"
    assert any(note.startswith("selected privately") for note in model.privacy_.details["notes"])
    assert np.mean(model.predict(X) == y) > 0.95


class TestSelection:
    def candidates(self):
        return PrivateSelection(((dp_sgd(steps=8), 0.0), (dp_sgd(steps=8), 3.0)))

    def test_scores_move_by_at_most_one_record(self):
        rng = np.random.default_rng(2)
        X, y = rng.normal(size=(40, 3)) / 4, np.where(rng.random(40) < 0.5, 1.0, -1.0)
        models = rng.normal(size=(5, 3)) * [[1e-9], [1], [1], [1], [1e9]]

        def scores(rows, labels):
            task = replace(a_task(), rows=PrivateRows(rows, labels, max_norm=1.0))
            return value_of(correct_predictions(replace(task, relation="replace-one"), models))

        base = scores(X, y)
        assert base == pytest.approx(((X @ models.T >= 0) == (y[:, None] > 0)).sum(axis=0))
        moved = [
            np.abs(scores(np.vstack([X[1:], x]), np.append(y[1:], s)) - base).max()
            for x in models
            for s in (1, -1)
        ]
        assert 0 < max(moved) <= 1

    def test_the_losers_are_paid_for(self):
        task = a_task()
        plan = self.candidates().plan(task)
        counts = events.elementary(plan.event)
        assert sum(c for e, c in counts.items() if isinstance(e, events.Gaussian)) == 16
        assert sum(isinstance(e, events.ZeroConcentrated) for e in counts) == 1

    def test_it_picks_the_better_candidate(self):
        task = a_task(n=20_000, epsilon=3.0)
        bad = dp_sgd(steps=8, step_size=1e-9)
        plan = (method := PrivateSelection(((bad, 0.0), (dp_sgd(steps=8), 0.0)))).plan(task)
        fitted = method.run(task, plan, account=Book(), noise=Noise(1))
        assert np.linalg.norm(fitted.coef) > 1e-3

    def test_regression_is_refused(self):
        with pytest.raises(AssumptionError, match="two classes"):
            self.candidates().plan(a_task(loss="square", regression=True))


def test_rounding_of_a_score_of_0_moves_no_score():
    """BLAS rounds by place: after some null rows, records changed from correct to wrong."""
    w, X = rows_with_score(0.0)

    def score(nulls):
        rows = PrivateRows(np.vstack([np.zeros((nulls, len(w))), X]), np.ones(nulls + len(X)), max_norm=1.0)
        return value_of(correct_predictions(replace(a_task(), rows=rows), 1e3 * w[None]))

    assert max(abs(score(nulls) - score(0)) for nulls in range(1, 6)) < 1e-3
