"""Whether a part, and the state that it makes, have the methods that a run calls: one line if not.

Parts are checked when the recipe is made. States exist only after `begin`, which a plan calls before anything
is charged.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import TypeVar

from sidelight.clipping import Clip, Metric
from sidelight.errors import InputError
from sidelight.methods.part import Part, Start, State

__all__ = ["check_clip", "check_methods", "check_metric", "check_start", "check_state"]

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


def check_start(start: Start, params: object) -> None:
    """The first parameters are an array or a tensor."""
    if not hasattr(params, "shape"):
        raise InputError(f"{_name(start)} must return the first parameters, not {_kind(params)}")


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
