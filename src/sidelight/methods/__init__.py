"""Methods, and what a recipe of your own is made of.

    from sidelight.methods import ConstantNoise, Flat, PublicGradient, Recipe

The methods themselves are functions of `sidelight`: `sidelight.dp_sgd(...)`. Names load on first use.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from sidelight.moved import homes_of, load

if TYPE_CHECKING:
    from sidelight.arrays import Vector
    from sidelight.clipping import Clip, Details, Diagonal, Features, Metric, Projection, ThinFeatures
    from sidelight.methods.adadps import SecondMoments
    from sidelight.methods.adamix import QuantileClip, Subspace
    from sidelight.methods.coupling import NoiseWeight, PooledWeight, TheoremWeight, Weight
    from sidelight.methods.declare import DECLARATIONS, METHODS, Declaration, get_method, method
    from sidelight.methods.dope_sgd import PublicGradient, Warm
    from sidelight.methods.dp_sgd import AdvancedComposition
    from sidelight.methods.dpmd import Cosine, Mirror
    from sidelight.methods.part import (
        BatchRule,
        ClipRule,
        ClipState,
        FinishRule,
        FinishState,
        FixedClip,
        MetricRule,
        MetricState,
        Mix,
        MixState,
        NoiseRule,
        NoiseState,
        Origin,
        Part,
        Setting,
        Start,
        State,
        StepRule,
    )
    from sidelight.methods.parts import (
        AllRecords,
        Automatic,
        BestOnPublic,
        Cold,
        ConstantNoise,
        Ema,
        FixedNoise,
        Flat,
        Last,
        MeanLast,
        MeanLastHalf,
        MeanTail,
        NoiseAware,
        PrivateOnly,
        Reuse,
        SqrtBatch,
    )
    from sidelight.methods.ppsgd import GrowingBudget, ShrinkingClip
    from sidelight.methods.precision import (
        AsFarAsWorth,
        GradientAtZero,
        LengthKept,
        Precision,
        PublicSolution,
    )
    from sidelight.methods.public_whitening import PublicScaleClip, Whitening
    from sidelight.methods.recipe import Recipe
    from sidelight.methods.task import Fitted, Method, Plan, Task
    from sidelight.problems.base import Constants, Guide, Problem

__all__ = [
    "DECLARATIONS",
    "METHODS",
    "AdvancedComposition",
    "AllRecords",
    "AsFarAsWorth",
    "Automatic",
    "BatchRule",
    "BestOnPublic",
    "Clip",
    "ClipRule",
    "ClipState",
    "Cold",
    "ConstantNoise",
    "Constants",
    "Cosine",
    "Declaration",
    "Details",
    "Diagonal",
    "Ema",
    "Features",
    "FinishRule",
    "FinishState",
    "Fitted",
    "FixedClip",
    "FixedNoise",
    "Flat",
    "GradientAtZero",
    "GrowingBudget",
    "Guide",
    "Last",
    "LengthKept",
    "MeanLast",
    "MeanLastHalf",
    "MeanTail",
    "Method",
    "Metric",
    "MetricRule",
    "MetricState",
    "Mirror",
    "Mix",
    "MixState",
    "NoiseAware",
    "NoiseRule",
    "NoiseState",
    "NoiseWeight",
    "Origin",
    "Part",
    "Plan",
    "PooledWeight",
    "Precision",
    "PrivateOnly",
    "Problem",
    "Projection",
    "PublicGradient",
    "PublicScaleClip",
    "PublicSolution",
    "QuantileClip",
    "Recipe",
    "Reuse",
    "SecondMoments",
    "Setting",
    "ShrinkingClip",
    "SqrtBatch",
    "Start",
    "State",
    "StepRule",
    "Subspace",
    "Task",
    "TheoremWeight",
    "ThinFeatures",
    "Vector",
    "Warm",
    "Weight",
    "Whitening",
    "get_method",
    "method",
]

_HOMES = homes_of(__file__)
_RENAMED = {"Alone": "PrivateOnly"}  # since 0.1; the old name works for one more version


def __getattr__(name: str) -> object:
    if name in _RENAMED:
        warnings.warn(f"{name} is now {_RENAMED[name]} (sidelight.methods)", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    value = globals()[name] = load(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
