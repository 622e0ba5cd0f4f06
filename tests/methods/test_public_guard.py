"""Public rows that are of another kind lose their weight, and are left alone if they are far off."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.blocks import in_blocks
from tests.contracts import replay
from tests.methods.convex_tools import Account
from tests.methods.test_auto import a_task

from sidelight.audit.subjects import REPLACE, neighboring, scene
from sidelight.data.rows import PublicRows, contents
from sidelight.errors import PrivacyWarning
from sidelight.methods import public_guard
from sidelight.methods.auto import auto
from sidelight.methods.dp_newton import DpNewton
from sidelight.methods.measured_shift import Chance, MeasuredShift
from sidelight.methods.precision import precision_weighting
from sidelight.methods.public_guard import UNUSED, PublicGuard
from sidelight.methods.task import Fitted, Task
from sidelight.privacy import events
from sidelight.privacy.noise import Noise

pytestmark = pytest.mark.filterwarnings("ignore:public and private records disagree")
GUARDED = PublicGuard(precision_weighting(steps=12), DpNewton(slope_share=0.5))


def turned(task: Task) -> Task:
    """With wrong public labels."""
    return replace(task, public=PublicRows(task.public.X, -task.public.y))


def fit(method: PublicGuard, task: Task, account: Account | None = None) -> Fitted:
    return method.run(task, method.plan(task), account=account or Account(), noise=Noise(0))


def accuracy(fitted: Fitted, task: Task) -> float:
    fresh = a_task(n=4000, p=task.p, n_public=1, loss="logistic", seed=9)
    return float(np.mean(np.sign(contents(fresh.rows).X @ fitted.coef[0]) == contents(fresh.rows).y))


def test_ratio_is_one_by_chance_and_grows_with_a_shift() -> None:
    rng = np.random.default_rng(0)
    p, n, m, steps, spread, std = 60, 4000, 200, 16, 0.3, 0.01
    chance = Chance(noise=p * std**2, records=spread, n=n, batch=n, m=m, dimension=p)
    found: dict[float, list[float]] = {0.0: [], 5.0: []}
    for shift, ratios in found.items():
        for _ in range(200):
            state = MeasuredShift(1.0, chance)
            apart = rng.normal(size=p) * np.sqrt(spread / p * (1 / n + (1 + shift) / m))
            for _ in range(steps):
                state.observe(apart + std * rng.normal(size=p), np.zeros(p))
            ratios.append(state.ratio)
    assert np.mean(np.array(found[0.0]) == 1.0) > 0.9
    assert 4.0 < np.mean(found[5.0]) < 6.0


def test_weight_falls_with_the_ratio() -> None:
    state = MeasuredShift(2.0, Chance(noise=0.0, records=1.0, n=1000, batch=1000, m=10, dimension=4))
    before = state.weight_at(0)
    state.observe(np.full(4, 3.0), np.zeros(4))
    assert state.weight_at(0) < before / 10 and "far apart" in state.notes[0]


def test_wrong_labels_are_noticed_and_cost_little() -> None:
    task = a_task(n=20_000, n_public=200, loss="logistic")
    good = fit(GUARDED, task)
    with pytest.warns(PrivacyWarning, match="disagree"):
        bad = fit(GUARDED, turned(task))
    assert UNUSED not in good.found and bad.found[UNUSED]
    assert "disagree" in bad.notes[0]
    assert accuracy(bad, task) > accuracy(good, task) - 0.02


def test_few_public_rows_of_the_same_kind_are_used() -> None:
    """Fewer than features, too: they must be further off than chance explains."""
    assert UNUSED not in fit(GUARDED, a_task(n=20_000, p=40, n_public=25, loss="logistic")).found


def test_auto_guards_its_weighting_and_takes_no_public_row_for_the_scale() -> None:
    method, _ = auto().choose(a_task(n_public=200, loss="logistic"))
    assert isinstance(method, PublicGuard) and method.name == "precision_weighting"
    method, _ = auto().choose(a_task(n_public=200, loss="hinge"))
    assert not isinstance(method, PublicGuard)


def test_public_rows_are_not_given_up_where_private_ones_determine_no_model() -> None:
    """The noise leaves private gradients worth fewer than a row has features."""
    few = a_task(n=2_000, p=100, n_public=60, loss="logistic", epsilon=0.1)
    assert not isinstance(auto().choose(few)[0], PublicGuard)
    assert isinstance(auto().choose(replace(few, epsilon=5.0))[0], PublicGuard)


@pytest.mark.parametrize("wrong", [False, True])
def test_both_ways_release_what_the_plan_says(wrong: bool) -> None:
    task = a_task(n=20_000, n_public=200, loss="logistic")
    task = turned(task) if wrong else task
    account = Account()
    fit(GUARDED, task, account)
    charged = sum((events.elementary(event) for event in account.events), Counter())
    assert charged == events.elementary(GUARDED.plan(task).event)


@pytest.mark.parametrize("relation", ["add-or-remove-one", REPLACE])
@pytest.mark.parametrize("loss", ["logistic", "square", "softmax"])
def test_neighbors_move_no_sum_by_more_than_it_declares(
    loss: str, relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_guard, "_far", lambda loop, task: True)
    method = PublicGuard(precision_weighting(steps=6), DpNewton())
    tape = replay.assert_private(method, scene(loss, n_public=20), relation, at_least=0.2)
    assert len(tape.calls) == 6


def test_a_choice_by_private_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what follows the first step depends on the records themselves."""
    first, others = neighboring(scene("logistic", n_public=20), REPLACE)
    rows = contents(first.task(REPLACE).rows).X

    def peeked(loop: object, task: Task) -> bool:
        return not np.array_equal(contents(task.rows).X, rows)

    monkeypatch.setattr(public_guard, "_far", peeked)
    method = PublicGuard(precision_weighting(steps=6), DpNewton())
    tape = replay.record(method, first.task(REPLACE))
    with pytest.raises((AssertionError, ValueError)):  # other releases than those that were recorded
        replays = [replay.record(method, other.task(REPLACE), like=tape) for other in others]
        replay.assert_neighbors(tape, replays, at_least=0.0)


@pytest.mark.parametrize("wrong", [False, True])
def test_rows_in_blocks_give_the_same_model(wrong: bool) -> None:
    task = a_task(n=3000, n_public=200, loss="logistic", epsilon=4.0)
    task = turned(task) if wrong else task
    X, y = contents(task.rows).X, contents(task.rows).y
    models = []
    for rows in (task.rows, in_blocks(X, y, 700)):
        given = replace(task, rows=rows)
        plan = GUARDED.plan(given)
        models.append(GUARDED.run(given, plan, account=Account(), noise=replay.SilentNoise(0)))
    assert (UNUSED in models[0].found) == wrong
    np.testing.assert_allclose(models[0].coef, models[1].coef, atol=1e-4)
