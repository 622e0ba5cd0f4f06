"""Trees on a line learn what it cannot, inside the plan, and are dropped if they do not help."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.blocks import in_blocks
from tests.contracts import replay
from tests.methods.convex_tools import Account

from sidelight.audit.replay import replay_neighbors
from sidelight.audit.subjects import ADD_REMOVE, REPLACE, Linear, neighboring, scene
from sidelight.data.leaves import ColumnGroup
from sidelight.data.persons import PersonRows, Persons
from sidelight.data.rows import PrivateRows, PublicRows, contents
from sidelight.losses import Logistic, Loss, Softmax, Square
from sidelight.methods import leaf_boosting
from sidelight.methods.auto import auto
from sidelight.methods.baselines import only_public
from sidelight.methods.leaf_boosting import WithLeaves, beyond_lines, grow_splits, leaf_gains
from sidelight.methods.precision import precision_weighting
from sidelight.methods.probabilities import ScaledFit, WithProbabilities
from sidelight.methods.task import Fitted, Task
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise

ALWAYS = WithLeaves(precision_weighting(steps=2), rounds=3, least_worth=0.0, sure_worth=0.0)


def world(n: int, seed: int, *, bent: float = 1.5, kind: str = "binary") -> tuple[np.ndarray, np.ndarray]:
    """Five features, a line, and `bent` times the sign of a product, which no line sees."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 5))
    f = bent * np.sign(X[:, 0] * X[:, 1]) + X[:, 2]
    if kind == "regression":
        y = np.clip(f / 4 + 0.1 * rng.standard_normal(n), -1, 1)
    elif kind == "multiclass":
        y = np.argmax(np.stack([f, -f, X[:, 3]], axis=1) + rng.gumbel(size=(n, 3)), axis=1).astype(float)
    else:
        y = np.where(rng.random(n) < 1 / (1 + np.exp(-f)), 1.0, -1.0)
    return np.hstack([X, np.ones((n, 1))]) / 3, y


def task(loss: Loss, *, n: int = 20_000, epsilon: float = 1.0, bent: float = 1.5, **changes: Any) -> Task:
    X, y = world(n, 0, bent=bent, kind=loss.task)
    public = PublicRows(*world(300, 1, bent=bent, kind=loss.task))
    made = Task(
        PrivateRows(X, y, max_norm=1.0), public, loss, epsilon, 1e-6, REPLACE,
        target_bound=1.0 if loss.task == "regression" else None,
    )  # fmt: skip
    return replace(made, **changes)


def fit(method: WithLeaves, task: Task, noise: Noise | None = None) -> Fitted:
    return method.run(task, method.plan(task), account=Account(), noise=noise or Noise(0))


def mean_loss(fitted: Fitted, loss: Loss, *, bent: float = 1.5, trees: bool = True) -> float:
    X, y = world(4000, 2, bent=bent, kind=loss.task)
    z = X @ fitted.coef.T
    if trees and fitted.leaves is not None:
        z = z + fitted.leaves.scores(X)
    labels = y.astype(int) if loss.task == "multiclass" else y
    return float(loss.value(z if loss.outputs > 1 else z[:, 0], labels).mean())


# ---------------------------------------------------------------------------------------------------
# what it learns


def test_wrong_public_labels_do_not_set_the_scale_that_trees_start_from() -> None:
    """Private records set it; with the public one, trees learn a scale in place of an effect."""
    X, y = world(300, 1)
    given = task(Logistic(), epsilon=2.0, public=PublicRows(X, -y))
    line = WithProbabilities(auto(), source="private")
    alone = line.run(given, line.plan(given), account=Account(), noise=Noise(0))
    fitted = fit(WithLeaves(line), given)
    assert isinstance(fitted, ScaledFit) and isinstance(alone, ScaledFit)
    assert fitted.leaves is not None and fitted.scale == 1.0
    length = alone.scale * np.linalg.norm(alone.coef)
    assert 0.7 * length < np.linalg.norm(fitted.coef) < 1.4 * length


@pytest.mark.parametrize("loss", [Logistic(), Square(), Softmax(3)], ids=lambda loss: loss.name)
def test_trees_learn_what_a_line_cannot(loss: Loss) -> None:
    fitted = fit(WithLeaves(auto()), task(loss, epsilon=2.0))
    assert fitted.leaves is not None
    assert mean_loss(fitted, loss) < 0.93 * mean_loss(fitted, loss, trees=False)
    assert any("trees" in note for note in fitted.notes)


def test_trees_that_find_nothing_are_weak_or_dropped() -> None:
    fitted = fit(WithLeaves(auto()), task(Logistic(), n=5000, bent=0.0))
    line = fit(WithLeaves(auto(), least_worth=np.inf), task(Logistic(), n=5000, bent=0.0))
    assert line.leaves is None
    assert mean_loss(fitted, Logistic(), bent=0.0) < mean_loss(line, Logistic(), bent=0.0) + 0.005


def test_trees_that_raise_the_loss_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_boosting, "leaf_gains", lambda sizes, **_: -np.diag(0.02 / sizes))
    fitted = fit(WithLeaves(auto()), task(Logistic()))
    assert fitted.leaves is None
    assert any("did not lower" in note for note in fitted.notes)


def test_trees_of_pure_chance_are_dropped_though_records_flatter_them() -> None:
    """Labels without any pattern: each record lowers its own loss, and what that sums up to is known."""
    rng = np.random.default_rng(3)
    X, _ = world(3000, 0)
    labels = rng.choice([-1.0, 1.0], 3000)
    public = PublicRows(world(300, 1)[0], rng.choice([-1.0, 1.0], 300))
    given = task(Logistic(), rows=PrivateRows(X, labels, max_norm=1.0), public=public, epsilon=50.0)
    fitted = fit(WithLeaves(precision_weighting(steps=8), rounds=10), given)
    (gain,) = [entry for entry in fitted.history if entry.get("released") == "gain by the trees"]
    assert fitted.leaves is None, gain


def test_leaf_gains_are_a_newton_step_without_noise_and_shrink_with_it() -> None:
    prior, sizes = np.eye(4) + 0.5, np.array([10.0, 20.0, 30.0, 40.0])
    exact = leaf_gains(sizes, prior=prior, std=1e-4, steps=10.0)
    np.testing.assert_allclose(exact, np.diag(1 / sizes / 10), atol=1e-6)
    noisy = leaf_gains(sizes, prior=prior, std=1e4, steps=10.0)
    np.testing.assert_allclose(noisy, prior * sizes / 1e8, rtol=1e-3)


def test_splits_keep_categories_together_and_leave_constants_out() -> None:
    rng = np.random.default_rng(0)
    place = rng.integers(0, 4, 200)
    X = np.hstack([np.eye(4)[place], rng.uniform(-1, 1, (200, 1)), np.zeros((200, 1)), np.ones((200, 1))])
    groups = (ColumnGroup((0, 1, 2, 3), "subset"), ColumnGroup((4,), "sum"), ColumnGroup((5,)))
    splits = grow_splits(PublicRows(X, np.sign(X[:, 4])), groups, Logistic(), intercept=True)
    assert 5 not in splits.columns
    lengths = np.diff(splits.starts)
    assert {1, 2, 3} <= set(lengths)
    answers = splits.answers(X, np.arange(len(splits)))
    assert ((answers.mean(axis=1) > 0) & (answers.mean(axis=1) < 1)).all()
    same = [answers[:, place == k] for k in range(4)]
    chosen = np.isin(splits.sets, [k for k in range(len(lengths)) if splits.columns[splits.starts[k]] < 4])
    assert all((part[chosen] == part[chosen][:, :1]).all() for part in same)


# ---------------------------------------------------------------------------------------------------
# what it costs


def test_the_plan_is_the_method_and_the_trees_and_uses_the_budget() -> None:
    method, given = WithLeaves(auto()), task(Logistic())
    plan = method.plan(given)
    cost = accountants.epsilon(plan.event, delta=given.delta, relation=given.relation)
    assert 0.99 * given.epsilon < cost <= given.epsilon
    account = Account()
    method.run(given, plan, account=account, noise=Noise(0))
    assert events.elementary(events.compose(*account.events)) == events.elementary(plan.event)


@pytest.mark.parametrize("changes", [{"epsilon": 0.05}, {"public": PublicRows.empty(6)}])
def test_without_budget_or_public_rows_it_is_the_method_alone(changes: Any) -> None:
    given = task(Logistic(), **changes)
    assert WithLeaves(auto()).plan(given).event == auto().plan(given).event
    assert fit(WithLeaves(auto()), given).leaves is None


def test_public_rows_that_no_column_tells_apart_give_no_trees_and_no_failed_run() -> None:
    """Bounds in another unit: all values are at one end, and the same but for the ninth digit."""
    X, y = world(300, 1)
    near = np.hstack([1e-9 * X[:, :5] - 0.2, X[:, 5:]])
    given = task(Logistic(), epsilon=4.0, public=PublicRows(near, y))
    fitted = fit(WithLeaves(precision_weighting(steps=2)), given)
    assert fitted.leaves is None
    alone = precision_weighting(steps=2).plan(given)
    assert WithLeaves(precision_weighting(steps=2)).plan(given).event == alone.event


def test_few_records_have_trees_if_public_rows_show_that_a_line_is_not_enough() -> None:
    assert beyond_lines(task(Logistic()).public, Logistic())
    assert not beyond_lines(task(Logistic(), bent=0.0).public, Logistic())
    assert fit(WithLeaves(auto()), task(Logistic(), n=20_000)).leaves is not None
    straight = task(Logistic(), n=20_000, bent=0.0)
    assert WithLeaves(auto()).plan(straight).event == auto().plan(straight).event


def test_a_method_that_reads_nothing_has_no_trees() -> None:
    fitted = fit(WithLeaves(only_public()), task(Logistic()))
    assert fitted.leaves is None


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("loss", ["logistic", "square", "softmax"])
def test_neighbors_move_no_sum_by_more_than_it_declares(loss: str, relation: Any) -> None:
    tape = replay.assert_private(ALWAYS, scene(loss, n_public=60), relation, at_least=0.2)
    assert len(tape.calls) == 2 + 3 + 1


def test_the_audit_sees_the_releases() -> None:
    subject = Linear(ALWAYS, REPLACE, 3.0, 1e-5, base=scene(n_public=60))
    result = replay_neighbors(subject, seeds=1, release_runs=40)
    assert result.passed, result.findings
    assert result.details["releases"] >= 6


@pytest.mark.parametrize("fault", ["private counts", "no root of K", "unclipped"])
def test_a_planted_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidelight.oracles.linear import leaf_sums

    first, others = neighboring(scene("square", n_public=60), REPLACE)
    if fault == "private counts":  # as divisor: the values then depend on records that nobody released
        masses = leaf_boosting._masses
        held: list[np.ndarray] = []

        def counted(bits: Any, tree: Any) -> Any:
            answers = held[-1]
            return masses(answers, tree)

        begun = leaf_sums._Subject._begun

        def spy(self: Any, rows: Any) -> Any:
            held.append(self.splits.answers(contents(rows).X, np.arange(len(self.splits))))
            return begun(self, rows)

        monkeypatch.setattr(leaf_boosting, "_masses", counted)
        monkeypatch.setattr(leaf_sums._Subject, "_begun", spy)
    elif fault == "no root of K":
        monkeypatch.setattr(leaf_sums, "_factor", lambda relation: 2 / np.sqrt(8))
    else:
        monkeypatch.setattr(leaf_sums, "_BOUND_SHARE", 1e6)
    tape = replay.record(ALWAYS, first.task(REPLACE))
    replays = [replay.record(ALWAYS, other.task(REPLACE), like=tape) for other in others]
    seen = "depend on a record|leaves changed" if fault == "private counts" else "moved a private sum"
    with pytest.raises(AssertionError, match=seen):
        replay.assert_neighbors(tape, replays, at_least=0.0)


# ---------------------------------------------------------------------------------------------------
# where records lie


def test_rows_in_blocks_give_the_same_trees() -> None:
    given = task(Logistic(), n=3000)
    X, y = world(3000, 0)
    method = WithLeaves(precision_weighting(steps=4), rounds=4, least_worth=0.0, sure_worth=0.0)
    together = fit(method, given, replay.SilentNoise(0))
    apart = fit(method, replace(given, rows=in_blocks(X, y, 700)), replay.SilentNoise(0))
    assert together.leaves is not None and apart.leaves is not None
    np.testing.assert_allclose(together.leaves.values, apart.leaves.values, atol=1e-5)


def test_persons_with_one_row_each_are_records() -> None:
    given = task(Logistic(), n=3000)
    X, y = world(3000, 0)
    people = PersonRows(X, y, persons=Persons(np.arange(3000), 3000), max_norm=1.0)
    method = WithLeaves(precision_weighting(steps=4), rounds=4, least_worth=0.0, sure_worth=0.0)
    records, persons = (
        fit(method, replace(given, rows=rows), replay.SilentNoise(0)) for rows in (given.rows, people)
    )
    assert records.leaves is not None and persons.leaves is not None
    np.testing.assert_allclose(records.leaves.values, persons.leaves.values, atol=1e-5)
