from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.contracts.replay import Nothing, SilentNoise
from tests.methods.bench import setting
from tests.privacy.vectors import vector

from sidelight.audit.subjects import ADD_REMOVE, scene
from sidelight.errors import InputError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.parts import BestOnPublic, Ema, Last, MeanLast, MeanLastHalf, MeanTail, Reuse
from sidelight.solvers import reuse


def finished(rule: Any, weights: Any, where: Any = None) -> Any:
    state = rule.begin(where or setting(2, batch=1.0))
    for w in weights[1:]:
        state.add(np.array(w))
    return state.result(np.array(weights[0]))


def test_means_of_iterates() -> None:
    inputs, outputs, rtol = vector("I6")
    weights = inputs["weights"]
    np.testing.assert_allclose(
        finished(MeanLast(inputs["n_last"]), weights), outputs["mean_last_n"], rtol=rtol
    )
    from_the_start = Ema(inputs["ema_decay"], corrected=False)
    np.testing.assert_allclose(finished(from_the_start, weights), outputs["ema"], rtol=rtol)
    np.testing.assert_array_equal(finished(Last(), weights), weights[-1])
    half = replace(setting(2, batch=1.0), steps=4)
    np.testing.assert_allclose(finished(MeanLastHalf(), weights, half), np.mean(weights[-2:], axis=0))


def test_a_moving_average_forgets_the_start() -> None:
    """Without correction the start kept a weight of 0.9 after 97 steps of decay 0.999."""
    weights = [[50.0]] + [[1.0]] * 97
    np.testing.assert_allclose(finished(Ema(0.999), weights), [1.0])
    np.testing.assert_allclose(finished(Ema(0.5), [[50.0], [1.0], [4.0]]), [(0.5 + 4.0) / 1.5])


@pytest.mark.parametrize(
    "rule", [Last(), MeanLast(3), MeanLastHalf(), Ema(0.9), MeanTail(), BestOnPublic()], ids=str
)
def test_without_a_step_the_start_is_the_answer(rule: Any) -> None:
    np.testing.assert_array_equal(finished(rule, [[1.0, 2.0]]), [1.0, 2.0])


def scored(best: list[float], steps: int = 4) -> Any:
    """A setting whose held-out public records like parameters near `best`."""

    def losses(params: Any) -> Any:
        return np.abs(params - np.array(best)).sum() * np.array([0.9, 1.0, 1.1])

    return SimpleNamespace(steps=steps, problem=SimpleNamespace(held_out_losses=losses))


PATH = [[0.0, 0.0], [8.0, 0.0], [4.0, 0.0], [6.0, 0.0], [10.0, 0.0]]


@pytest.mark.parametrize(
    ("best", "found"),
    [([0.0, 0.0], "the start"), ([10.0, 0.0], "Last()"), ([8.0, 0.0], "MeanTail(share=0.5)"),
     ([5.0, 0.0], "half-way")],
)  # fmt: skip
def test_held_out_public_records_choose_the_finish(best: list[float], found: str) -> None:
    rule, where = BestOnPublic((Last(), MeanTail(0.5))), scored(best)
    state = rule.begin(where)
    for w in PATH[1:]:
        state.add(np.array(w))
    saved = state.state_dict()
    np.testing.assert_allclose(state.result(np.array(PATH[0])), best)
    assert state.notes[0].startswith(f"finish: {found}")
    again = rule.begin(where)
    again.load_state_dict(saved)
    np.testing.assert_allclose(again.result(np.array(PATH[0])), best)


def test_the_start_must_be_clearly_better() -> None:
    noisy = [np.array([1.0, 3.0, 1.0, 3.0]), np.array([3.1, 1.1, 3.1, 1.1])]  # of the start, and of the rest
    problem = SimpleNamespace(held_out_losses=lambda params: noisy[int(params.any())])
    state = BestOnPublic().begin(SimpleNamespace(steps=2, problem=problem))  # type: ignore[arg-type]
    for _ in range(2):
        state.add(np.ones(2))
    np.testing.assert_array_equal(state.result(np.zeros(2)), [1, 1])


def test_without_held_out_records_it_is_the_first_finish() -> None:
    np.testing.assert_allclose(
        finished(BestOnPublic((MeanTail(0.5), Last())), PATH, replace(setting(2, batch=1.0), steps=4)), [8, 0]
    )
    with pytest.raises(InputError, match="finish"):
        BestOnPublic(())


def test_reuse_refits_what_the_inner_rule_gives() -> None:
    task = scene().task(ADD_REMOVE)
    inner = MeanLast(2)
    plain, reused = (dp_sgd(steps=4, step_size=0.5, finish=rule) for rule in (inner, Reuse(0.2, inner)))
    results = [
        r.run(task, r.plan(task), account=Nothing(), noise=SilentNoise(0)).coef[0] for r in (plain, reused)
    ]
    expected = reuse(task.loss, task.public.X, task.public.y, results[0], 0.2)
    np.testing.assert_allclose(results[1], expected)


def test_senseless_rules_are_refused_before_the_charge() -> None:
    task = scene().task(ADD_REMOVE)
    for rule in (MeanLast(0), Ema(1.0), Reuse(0.0), MeanTail(0.0)):
        with pytest.raises(InputError):
            dp_sgd(steps=2, finish=rule).plan(task)
