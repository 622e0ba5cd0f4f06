"""Mistakes that only a state can show: refused by the plan, before the charge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sidelight.audit.subjects import ADD_REMOVE, scene
from sidelight.errors import InputError
from sidelight.methods.part_kinds import ClipRule, ClipState, FinishRule, MetricRule, MetricState, Start
from sidelight.methods.parts import ConstantNoise, Flat, Last
from sidelight.methods.recipe import Recipe


class Bare:
    """A clip that is no state."""

    def at(self, *_: Any) -> Any:
        return Flat(1.0)


class Returns(ClipRule):
    """A clip rule that begins with whatever it is given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def begin(self, setting: Any, params: Any) -> Any:
        return self.state


class NoAt(ClipState):
    pass


class Forgetful(ClipState):
    kept = ("clip_nrom",)

    def at(self, *_: Any) -> Any:
        return Flat(1.0)


class Text(Forgetful):
    kept = "clip_norm"  # type: ignore[assignment]


class Number(ClipState):
    def at(self, *_: Any) -> Any:
        return 1.0


class ReturnsMetric(MetricRule):
    def begin(self, setting: Any, params: Any) -> Any:
        return NumberMetric()


class NumberMetric(MetricState):
    def at(self, *_: Any) -> Any:
        return np.ones(3)


class Nowhere(Start):
    def __call__(self, setting: Any) -> Any: ...


class NoTuple(ConstantNoise):
    def plan(self, setting: Any) -> Any:
        return super().plan(setting)[0]


class ReturnsFinish(FinishRule):
    def begin(self, setting: Any) -> Any:
        return Last()


LATER: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"clip": Returns(None)}, "Returns.begin must return a ClipState, not None"),
    "a clip that is no state": (
        {"clip": Returns(Bare())},
        "Returns.begin must return a ClipState, not a Bare; derive it from ClipState (sidelight.methods)",
    ),
    "a class": ({"clip": Returns(NoAt)}, "Returns.begin must return a ClipState, not the class NoAt"),
    "no at": (
        {"clip": Returns(NoAt())},
        "NoAt does not define at(step, params, metric, origin), which a ClipState needs",
    ),
    "a misspelled attribute": (
        {"clip": Returns(Forgetful())},
        "Forgetful names 'clip_nrom' in kept, and has no such attribute after begin",
    ),
    "a text in kept": ({"clip": Returns(Text())}, "kept of Text must be a tuple of names, not 'clip_norm'"),
    "a number for a clip": (
        {"clip": Returns(Number())},
        "Number.at must return a clip, for instance Flat(1.0), not a float",
    ),
    "an array for a metric": (
        {"metric": ReturnsMetric()},
        "NumberMetric.at must return a metric, for instance Diagonal(scale), or None, not a ndarray",
    ),
    "no parameters": ({"start": Nowhere()}, "Nowhere must return the first parameters, 4 numbers, not None"),
    "an event alone": ({"noise": NoTuple()}, "NoTuple.plan must return (event, whether"),
    "a finish rule": ({"finish": ReturnsFinish()}, "begin must return a FinishState, not a Last"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), LATER.values(), ids=LATER)
def test_a_wrong_state_is_refused_in_one_line_by_the_plan(changes: dict[str, Any], line: str) -> None:
    recipe = Recipe(clip=Flat(), noise=ConstantNoise()).with_parts(**changes)
    with pytest.raises(InputError) as caught:
        recipe.plan(scene().task(ADD_REMOVE))
    assert line in str(caught.value) and "\n" not in str(caught.value)
