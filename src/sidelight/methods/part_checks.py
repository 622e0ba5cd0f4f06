"""A recipe with a wrong part is refused when it is made, in one line: what was expected, and what came."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING

from sidelight.clipping import Clip, Diagonal, Features, Projection
from sidelight.errors import InputError
from sidelight.methods.part import (
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
from sidelight.methods.state_checks import check_methods
from sidelight.privacy.events import check_relation
from sidelight.samplers import FixedSize, FullBatch, Poisson

if TYPE_CHECKING:
    from sidelight.methods.recipe import Recipe

__all__ = ["KINDS", "check_finish", "check_names", "check_recipe"]

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
    if not (_number(recipe.momentum) and 0 <= recipe.momentum < 1):
        raise InputError(f"momentum must be in [0, 1), not {recipe.momentum!r}")
    if recipe.steps is not None and not (_number(recipe.steps, Integral) and recipe.steps >= 1):
        raise InputError(f"steps must be a whole number of at least 1, not {recipe.steps!r}")
    for name in ("expected_batch_size", "step_size"):
        value = getattr(recipe, name)
        if value is not None and not (_number(value) and value > 0 and math.isfinite(value)):
            raise InputError(f"{name} must be a positive number, not {value!r}")
    _check_words(recipe.name, recipe.extended, recipe.departs)
    check_relation(recipe.default_relation)


def _check_words(name: object, extended: object, departs: object) -> None:
    if not isinstance(name, str):
        raise InputError(f"name must be a text, not {name!r}")
    if not isinstance(extended, bool):
        raise InputError(f"extended must be True or False, not {extended!r}")
    if not (isinstance(departs, tuple) and all(isinstance(line, str) for line in departs)):
        raise InputError(f"departs must be a tuple of texts, not {departs!r}")


def check_names(given: Iterable[str], known: tuple[str, ...]) -> None:
    """Raise InputError for a name that is not a field of a recipe."""
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(f"a recipe has no {name!r}.{hint} It has: {', '.join(known)}")


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
        return f"a {name} was given, and one part is taken"
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
    if isinstance(value, Diagonal | Features | Projection):
        return f"{name} is the metric of one step: write a MetricRule whose state returns it from at"
    if isinstance(value, Poisson | FixedSize | FullBatch):
        return f"{name} is a sampler; the recipe makes it from expected_batch_size= and the relation"
    hint = f"{kind} and return it from begin" if field == "clip" and isinstance(value, Clip) else kind
    return f"{name} is none: derive it from {hint} (sidelight.methods)"


def _number(value: object, kind: type = Real) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
