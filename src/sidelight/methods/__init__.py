"""Methods, and what a recipe of your own is made of.

    from sidelight.methods import ConstantNoise, Flat, PublicGradient, Recipe, dp_sgd

A method has the name of its file, and the package gives the method: `sidelight.methods.dp_sgd(...)`.
"""

from __future__ import annotations

from sidelight.arrays import Vector
from sidelight.clipping import Clip, Details, Diagonal, Features, Metric, Projection, ThinFeatures
from sidelight.methods.adadps import SecondMoments, adadps
from sidelight.methods.adamix import QuantileClip, Subspace, adamix
from sidelight.methods.adassp import adassp
from sidelight.methods.auto import auto
from sidelight.methods.baselines import majority, non_private, only_public
from sidelight.methods.boosted_adassp import boosted_adassp
from sidelight.methods.correlated_noise import BandedNoise
from sidelight.methods.coupling import (
    NoiseWeight,
    PooledWeight,
    TheoremWeight,
    Weight,
    coupling,
    sample_mechanism,
)
from sidelight.methods.declare import DECLARATIONS, METHODS, Declaration, get_method, method
from sidelight.methods.dope_sgd import OpenStart, PublicGradient, Warm, dope_sgd
from sidelight.methods.dp_agd import agd_avg, dp_agd
from sidelight.methods.dp_newton import dp_newton
from sidelight.methods.dp_sgd import AdvancedComposition, dp_sgd, full_private, only_private, sgd_adv
from sidelight.methods.dpmd import Cosine, Mirror, dpmd
from sidelight.methods.hessian_mixing import hessian_mixing
from sidelight.methods.objective_perturbation import amp, objective_perturbation
from sidelight.methods.output_perturbation import output_perturbation
from sidelight.methods.part_kinds import (
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
from sidelight.methods.pmt import pmt
from sidelight.methods.pnsgd import pnsgd
from sidelight.methods.ppsgd import GrowingBudget, ShrinkingClip, ppsgd
from sidelight.methods.precision import (
    GradientAtZero,
    LengthKept,
    NoiseLimitedStep,
    Precision,
    PublicSolution,
    precision_weighting,
)
from sidelight.methods.public_whitening import PublicScaleClip, Whitening, public_whitening
from sidelight.methods.recipe import Recipe
from sidelight.methods.rsgd_ar import nsgd, rsgd_ar
from sidelight.methods.task import Fitted, Method, Plan, Task
from sidelight.problems.base import Constants, Guide, Problem

__all__ = [
    "DECLARATIONS",
    "METHODS",
    "AdvancedComposition",
    "AllRecords",
    "Automatic",
    "BandedNoise",
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
    "NoiseLimitedStep",
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

# Every method of the project: a new one is imported above and listed here.
__all__ += [
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
]
