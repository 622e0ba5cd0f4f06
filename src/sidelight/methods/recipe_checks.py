"""A recipe with a wrong part is refused in one line: what was expected, and what came.

Fields and methods of parts are checked when the recipe is made, the states that they make when it plans.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from numbers import Real
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar

from sidelight.arrays import Vector
from sidelight.clipping import Clip, Metric
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
        raise InputError(f"{name} makes an ensemble of several models, and the finish around it takes one")


def _check_part(field: str, value: object) -> None:
    kind, example, optional = KINDS[field]
    if isinstance(value, kind):
        return check_methods(value, kind)
    if optional and value is None:
        return None
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
# the methods that a run calls. Parts are checked when the recipe is made. States exist only after `begin`,
# which a plan calls before anything is charged.

S = TypeVar("S", bound=State)


def check_methods(value: Part | State, base: type) -> None:
    """Raise InputError for a method that is missing, or that cannot be called as the base class's is."""
    kind: type = type(value)
    complaint = _complaint(kind, base.__name__)
    if complaint is not None:
        raise InputError(complaint)


def check_state(maker: Part, state: S, base: type) -> S:
    """The state that a part made, if it is one of its kind with all methods."""
    if not isinstance(state, base):
        hint = "" if state is None else f"; derive it from {base.__name__} (sidelight.methods)"
        raise InputError(f"{_name(maker)}.begin must return a {base.__name__}, not {_kind(state)}{hint}")
    check_methods(state, base)
    kept: object = state.kept
    if not isinstance(kept, tuple | list):
        raise InputError(f"kept of {_name(state)} must be a tuple of names, not {kept!r}")
    for name in kept:
        if not hasattr(state, name):
            raise InputError(f"{_name(state)} names {name!r} in kept, and has no such attribute after begin")
    return state


def check_start(start: Start, params: object, dimension: int) -> None:
    """The first parameters are an array or a tensor of as many numbers."""
    shape = getattr(params, "shape", None)
    if shape is None or tuple(shape) != (dimension,):
        what = _kind(params) if shape is None else f"an array of shape {tuple(shape)}"
        raise InputError(f"{_name(start)} must return the first parameters, {dimension} numbers, not {what}")


def check_like(call: str, value: object, params: Vector) -> None:
    """What a part returns has one number for every parameter."""
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != tuple(params.shape):
        what = _kind(value) if shape is None else f"an array of shape {tuple(shape)}"
        raise InputError(f"{call} must return one number for each parameter, not {what}")


def check_multiplier(state: State, multiplier: object) -> None:
    """What a noise state returns for a step is a number, or None at the end of the run."""
    if multiplier is None or (isinstance(multiplier, Real) and float(multiplier) >= 0):
        return
    raise InputError(f"{_name(state)}.at must return a noise multiplier, or None to end, not {multiplier!r}")


def check_clip(state: State, clip: Clip | object) -> None:
    """What a clip state returns for a step has a bound and factors."""
    if isinstance(clip, type) or not isinstance(clip, Clip):
        raise InputError(f"{_name(state)}.at must return a clip, for instance Flat(1.0), not {_kind(clip)}")


def check_metric(state: State, metric: Metric | object) -> None:
    """What a metric state returns for a step is a linear map, or None."""
    fits = hasattr(metric, "apply") and hasattr(metric, "lift") and not isinstance(metric, type)
    if metric is not None and not fits:
        example = "for instance Diagonal(scale)"
        raise InputError(f"{_name(state)}.at must return a metric, {example}, or None, not {_kind(metric)}")


@functools.cache
def _complaint(kind: type, base: str) -> str | None:
    """What is wrong with this class; None if nothing."""
    for ancestor in kind.__mro__:
        for name, declared in vars(ancestor).items():
            if not getattr(declared, "__isabstractmethod__", False):
                continue
            defined = inspect.getattr_static(kind, name)
            called = f"{name}{_arguments(declared)}" if isinstance(declared, FunctionType) else name
            if getattr(defined, "__isabstractmethod__", False):
                return f"{kind.__name__} does not define {called}, which a {base} needs"
            if not _accepts(defined, declared):
                return f"{kind.__name__}.{name} is called as {called}, and takes {_arguments(defined)}"
    return None


def _accepts(defined: object, declared: object) -> bool:
    """Whether a method can be called with the arguments of another one."""
    if not (isinstance(defined, FunctionType) and isinstance(declared, FunctionType)):
        return True  # a property, or an attribute in its place
    parameters = inspect.signature(declared).parameters.values()
    positional = [None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_name = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(defined).bind(*positional, **by_name)
    except TypeError:
        return False
    return True


def _arguments(method: object) -> str:
    """(setting, params), as an author writes them."""
    if not isinstance(method, FunctionType):
        return "()"
    parameters = list(inspect.signature(method).parameters.values())[1:]
    plain = [p.replace(annotation=p.empty, default=p.empty) for p in parameters]
    return str(inspect.Signature(plain))


def _name(value: object) -> str:
    return type(value).__name__


def _kind(value: object) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
