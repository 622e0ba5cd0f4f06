"""Methods, and what a recipe of your own is made of.

    from sidelight.methods import ConstantNoise, Flat, PublicGradient, Recipe, dp_sgd

Methods are functions of `sidelight` as well: `sidelight.dp_sgd(...)`. Names load on first use.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from sidelight.lazy_names import homes_of, load

if TYPE_CHECKING:
    from sidelight.arrays import Vector
    from sidelight.clipping import Clip, Details, Diagonal, Features, Metric, Projection, ThinFeatures
    from sidelight.methods.adadps import SecondMoments
    from sidelight.methods.adamix import QuantileClip, Subspace
    from sidelight.methods.coupling import NoiseWeight, PooledWeight, TheoremWeight, Weight
    from sidelight.methods.declare import DECLARATIONS, METHODS, Declaration, get_method, method
    from sidelight.methods.dope_sgd import OpenStart, PublicGradient, Warm
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
        FixedStep,
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

if TYPE_CHECKING:  # methods: begin
    from sidelight.methods.adadps import adadps
    from sidelight.methods.adamix import adamix
    from sidelight.methods.adassp import adassp
    from sidelight.methods.auto import auto
    from sidelight.methods.baselines import majority, non_private, only_public
    from sidelight.methods.boosted_adassp import boosted_adassp
    from sidelight.methods.coupling import coupling, sample_mechanism
    from sidelight.methods.dope_sgd import dope_sgd
    from sidelight.methods.dp_agd import agd_avg, dp_agd
    from sidelight.methods.dp_newton import dp_newton
    from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private, sgd_adv
    from sidelight.methods.dpmd import dpmd
    from sidelight.methods.hessian_mixing import hessian_mixing
    from sidelight.methods.objective_perturbation import amp, objective_perturbation
    from sidelight.methods.output_perturbation import output_perturbation
    from sidelight.methods.pmt import pmt
    from sidelight.methods.pnsgd import pnsgd
    from sidelight.methods.ppsgd import ppsgd
    from sidelight.methods.precision import precision_weighting
    from sidelight.methods.public_whitening import public_whitening
    from sidelight.methods.rsgd_ar import nsgd, rsgd_ar
# methods: end

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
    "FixedStep",
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
    "OpenStart",
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

# This list of methods and the one above are written by `make tables`, from their declarations.
__all__ += [
    # methods: begin
    "adadps",
    "adamix",
    "adassp",
    "agd_avg",
    "amp",
    "auto",
    "boosted_adassp",
    "coupling",
    "dope_sgd",
    "dp_agd",
    "dp_newton",
    "dp_sgd",
    "dpmd",
    "full_private",
    "hessian_mixing",
    "majority",
    "non_private",
    "nsgd",
    "objective_perturbation",
    "only_private",
    "only_public",
    "output_perturbation",
    "pmt",
    "pnsgd",
    "ppsgd",
    "precision_weighting",
    "public_whitening",
    "rsgd_ar",
    "sample_mechanism",
    "sgd_adv",
    # methods: end
]

_HOMES = homes_of(__file__)


def __getattr__(name: str) -> object:
    value = globals()[name] = load(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """A method has the name of its file. The package gives the method; `sys.modules` has the file."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and _HOMES.get(name) == value.__name__:  # it was just imported
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
