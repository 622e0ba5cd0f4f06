from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts.replay import Nothing, SilentNoise
from tests.contracts.scenes import ADD_REMOVE, scene
from tests.methods.bench import setting
from tests.privacy.vectors import vector

from sidelight import finish
from sidelight.errors import InputError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.finishing import Ema, Last, MeanLast, MeanLastHalf, Reuse


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
    np.testing.assert_allclose(finished(Ema(inputs["ema_decay"]), weights), outputs["ema"], rtol=rtol)
    np.testing.assert_array_equal(finished(Last(), weights), weights[-1])
    half = replace(setting(2, batch=1.0), steps=4)
    np.testing.assert_allclose(finished(MeanLastHalf(), weights, half), np.mean(weights[-2:], axis=0))


@pytest.mark.parametrize("rule", [Last(), MeanLast(3), MeanLastHalf(), Ema(0.9)], ids=str)
def test_without_a_step_the_start_is_the_answer(rule: Any) -> None:
    np.testing.assert_array_equal(finished(rule, [[1.0, 2.0]]), [1.0, 2.0])


def test_reuse_refits_what_the_inner_rule_gives() -> None:
    task = scene().task(ADD_REMOVE)
    inner = MeanLast(2)
    plain, reused = (dp_sgd(steps=4, step_size=0.5, finish=rule) for rule in (inner, Reuse(0.2, inner)))
    results = [
        r.run(task, r.plan(task), account=Nothing(), noise=SilentNoise(0)).coef[0] for r in (plain, reused)
    ]
    expected = finish.reuse(task.loss, task.public.X, task.public.y, results[0], 0.2)
    np.testing.assert_allclose(results[1], expected)


def test_senseless_rules_are_refused_before_the_charge() -> None:
    task = scene().task(ADD_REMOVE)
    for rule in (MeanLast(0), Ema(1.0), Reuse(0.0)):
        with pytest.raises(InputError):
            dp_sgd(steps=2, finish=rule).plan(task)
