"""A recipe with a wrong part is refused in one line: what was expected, and what came.

Fields are checked when the recipe is made, what the parts make when it plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, TypeVar

from sidelight.arrays import Vector
from sidelight.errors import InputError, nearest, positive, whole

if TYPE_CHECKING:
    from sidelight.methods.recipe import Recipe

from sidelight.methods.part_kinds import (
    BatchRule,
    ClipRule,
    FinishRule,
    MetricRule,
    Mix,
    NoiseRule,
    Origin,
    Part,
    Start,
    State,
    StepRule,
)

# field: (what it takes, for instance, whether None leaves it out)
KINDS: dict[str, tuple[type[Part], str, bool]] = {
    "start": (Start, "Cold()", False),
    "origin": (Origin, "PublicGradient()", True),
    "metric": (MetricRule, "SecondMoments()", True),
    "clip": (ClipRule, "Flat(1.0)", False),
    "noise": (NoiseRule, "ConstantNoise()", False),
    "mix": (Mix, "Weight(0.5)", False),
    "finish": (FinishRule, "MeanLastHalf()", False),
    "batch": (BatchRule, "SqrtBatch()", False),
    "step": (StepRule, "NoiseAware()", False),
}


def check_recipe(recipe: Recipe) -> None:
    """Raise InputError at the first field that cannot be meant."""
    for field in KINDS:
        _check_part(field, getattr(recipe, field))
    if recipe.public_rows not in ("guide", "private", "unused"):
        raise InputError(f"public_rows is 'guide', 'private' or 'unused', not {recipe.public_rows!r}")
    momentum: object = recipe.momentum
    if isinstance(momentum, bool) or not (isinstance(momentum, Real) and 0 <= float(momentum) < 1):
        raise InputError(f"momentum must be in [0, 1), not {momentum!r}")
    whole("steps", recipe.steps, optional=True)
    for name in ("expected_batch_size", "step_size"):
        positive(name, getattr(recipe, name), optional=True)
    for name, kind in (("name", str), ("departs", tuple), ("extended", bool), ("clip_pool", bool)):
        if not isinstance(value := getattr(recipe, name), kind):
            raise InputError(f"{name} must be a {kind.__name__}, not {value!r}")


def check_names(given: Iterable[str], known: tuple[str, ...]) -> None:
    """Raise InputError for a name that is not a field of a recipe."""
    for name in given:
        if name not in known:
            raise InputError(f"a recipe has no {name!r}.{nearest(name, known)} It has: {', '.join(known)}")


def check_finish(inner: object) -> None:
    """The finish inside another one, which has to be of one model."""
    _check_part("finish", inner)
    if isinstance(inner, FinishRule) and not inner.single:
        name = type(inner).__name__
        raise InputError(f"{name} makes an ensemble of several models, but the outer finish takes one model")


def _check_part(field: str, value: object) -> None:
    kind, example, optional = KINDS[field]
    if isinstance(value, kind) or (optional and value is None):
        return
    article = "an" if field == "origin" else "a"
    raise InputError(f"{field}= takes {article} {field} part, for instance {example}; {_what(field, value)}")


def _what(field: str, value: object) -> str:
    """What came instead, and what to do."""
    name = type(value).__name__
    if isinstance(value, type):
        other = f" of parts for {value.kind}=" if issubclass(value, Part) and value.kind != field else ""
        return f"{value.__name__} is a class{other}: write {value.__name__}()"
    if isinstance(value, Part):
        return f"{name} is a part for {value.kind}="
    if value is None or isinstance(value, int | float | str):
        return f"it was {value!r}"
    if callable(value) and hasattr(value, "__name__"):
        return f"{value.__name__} is a function: call it, or write a part"
    return f"{name} is not one: derive it from {KINDS[field][0].__name__} (sidelight.methods)"


# ---------------------------------------------------------------------------------------------------
# what parts make, when a plan asks them with zeros: before anything is charged

S = TypeVar("S", bound=State)


def check_state(maker: Part, state: S, base: type) -> S:
    """The state that a part made, if it is one of its kind; what it keeps is read once."""
    if not isinstance(state, base):
        hint = "" if state is None else f"; derive it from {base.__name__} (sidelight.methods)"
        raise InputError(
            f"{type(maker).__name__}.begin must return a {base.__name__}, not {_kind(state)}{hint}"
        )
    state.state_dict()
    return state


def check_like(call: str, value: object, params: Vector) -> None:
    """What a part returns has one number for every parameter."""
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != tuple(params.shape):
        what = _kind(value) if shape is None else f"an array of shape {tuple(shape)}"
        raise InputError(f"{call} must return one number for each parameter, not {what}")


def _kind(value: object) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
