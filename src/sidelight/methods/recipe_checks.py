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
from sidelight.clipping import Clip, Diagonal, Features, Metric, Projection, ThinFeatures
from sidelight.errors import InputError, nearest, positive, whole
from sidelight.privacy.events import FixedSize, FullBatch, Poisson

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

__all__ = [
    "KINDS",
    "check_clip",
    "check_finish",
    "check_like",
    "check_methods",
    "check_metric",
    "check_multiplier",
    "check_names",
    "check_recipe",
    "check_start",
    "check_state",
]

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
    _check_words(recipe.name, recipe.departs)
    for name in ("extended", "clip_pool"):
        if not isinstance(value := getattr(recipe, name), bool):
            raise InputError(f"{name} must be True or False, not {value!r}")


def _check_words(name: object, departs: object) -> None:
    if not isinstance(name, str):
        raise InputError(f"name must be a text, not {name!r}")
    if not (isinstance(departs, tuple) and all(isinstance(line, str) for line in departs)):
        raise InputError(f"departs must be a tuple of texts, not {departs!r}")


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
        return _class(field, value)
    if value is None or isinstance(value, bool):
        return f"{value} was given"
    if isinstance(value, Part):
        return f"{name} is a part for {value.kind}="
    if isinstance(value, State):
        return f"{name} is the state of a part while it runs; pass the part that makes it"
    if isinstance(value, int | float | str):
        return f"{value!r} is a {'text' if isinstance(value, str) else 'number'}"
    if isinstance(value, list | tuple | set | dict):
        return f"a {name} was given, but only one part is taken"
    if hasattr(value, "plan") and hasattr(value, "run"):
        return f"{getattr(value, 'name', name)} is a whole method; take a part of it"
    if callable(value) and hasattr(value, "__name__"):
        return f"{value.__name__} is a function: call it, or write a part"
    return _almost(field, value)


def _class(field: str, value: type) -> str:
    name = value.__name__
    if issubclass(value, Part) and value.kind != field:
        return f"{name} is a class, and of parts for {value.kind}="
    return f"{name} is a class: write {name}()"


def _almost(field: str, value: object) -> str:
    """Something that a part returns, or that only looks like one."""
    name, kind = type(value).__name__, KINDS[field][0].__name__
    if isinstance(value, Diagonal | Features | ThinFeatures | Projection):
        return f"{name} is the metric of one step: write a MetricRule whose state returns it from at"
    if isinstance(value, Poisson | FixedSize | FullBatch):
        return f"{name} is a sampler; the recipe makes it from expected_batch_size= and the relation"
    hint = f"{kind} and return it from begin" if field == "clip" and isinstance(value, Clip) else kind
    return f"{name} is not one: derive it from {hint} (sidelight.methods)"


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
