"""Precision weighting, sidelight's own (METHODS 21): public and private gradients, each by what it is worth.

A ← X̂ᵀX̂ + r·I ;  M ← A^(−1/2)/r̄ ;  x̃ ← Mx                     public whitening; r grows with the noise
w0 ← argmin of the public rows' mean loss + ‖v‖²/2m               the public solution
C ← c × the length of a gradient at w = 0, c of 0.7, 1, 1.4, 2     by public folds and the noise
κ ← m ( p s²/(f C²) + 1/n ) ,  s = z k C/(B √T)                    noise of all steps together
Σ η ≤ n′ + m ,  n′ = C²/(p s²)                                     no longer a way than the noise leaves worth
w ← w − η [ heavy ball of (G + κ ĝ)/(1 + κ) ]                      T = 64, mean of the last half

A mean of m public gradients has the variance f C²/(m p) in each of p whitened coordinates, that of n private
ones f C²/(n p), and the noise adds s². Two estimates of one gradient combine best by the inverses of their
variances, whose ratio is κ. With many public rows, or with strong noise, κ is large and the model that of
the public rows; with few, or with little noise, it is 0. Fewer public rows than coordinates tell about as
many directions as there are rows: spread over all of them their precision is m/p of that, and f is p/m times
as large.

Noise of variance s² in each coordinate is that of a mean of n′ gradients of length C. In coordinates in which
rows have length 1 and a model's weights are of order 1, the posterior mean lies no further from the public
solution than the sum of n′ gradients. A longer way adds noise in the directions of which public rows say
nothing, where nothing pulls it back. (That a mean of n gradients varies by itself needs no such limit: it
varies little where the loss is flat.)

A small C is little noise, and a bias: a record that is badly misclassified counts no more than one that is
undecided. Where labels are noisy that costs nothing. Where classes are nearly separable it costs much, for
the few errors are what is left to learn from. Folds of the public rows, trained with clipped gradients, show
which of the two a table is (`rehearsed`). Of numbers C is the mean |ŷ|, and more of it where tails are heavy
and the noise is weak (`_clip_of_numbers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike
from scipy.special import logsumexp

from sidelight.arrays import Array, Floats, Matrix, Vector, dense, floats, is_sparse
from sidelight.clipping import Features, Metric, ThinFeatures
from sidelight.data.rows import PublicRows
from sidelight.errors import InputError, positive
from sidelight.losses import Loss
from sidelight.methods.baselines import given_model
from sidelight.methods.declare import method
from sidelight.methods.measured_shift import Chance, MeasuredShift
from sidelight.methods.part_kinds import ClipRule, ClipState, FinishRule, Mix, MixState, Setting, Start
from sidelight.methods.parts import ConstantNoise, Flat, MeanLastHalf, NoiseAware
from sidelight.methods.public_whitening import (
    Whitening,
    WhiteningState,
    evenly,
    in_span,
    metric_of,
    relative_noise,
    ridge_of_noise,
)
from sidelight.methods.recipe import Recipe
from sidelight.privacy import conversions
from sidelight.problems.base import LinearProblem
from sidelight.solvers import ridge_minimum

# ---------------------------------------------------------------------------------------------------
# what clipping costs on a table, as far as folds of its public rows can tell; nothing private is read
#
# Each of five folds is predicted by a model that was trained on the other four with clipped gradients and no
# noise, once for every clip norm on offer. Two things are read off the predictions:
#
# - the log loss, with the scale of the scores that fits best: what clipping there does to the model;
# - f, the mean squared length of a clipped gradient in units of the clip norm: what the noise is to be
#   compared with.
#
# C is that of the least  log(log loss) + ⅙ · ν/(5 + ν) · (C/C_max)² , with ν the variance of the noise over
# that of a mean of n gradients. The second term is what noise was found to cost: between ε = 0.1 and 3 on
# Adult, IPUMS-BR and magic04, where clipping does no harm and a larger C is noise alone.

FACTORS = (0.7, 1.0, 1.4, 2.0)  # of the length of a gradient at w = 0
_FOLDS, _FEWEST, _MOST = 5, 20, 500  # folds, and public rows in them
_WIDEST = 1_000  # features
_STEPS, _FIRST_STEPS, _MOMENTUM, _CAP = 64, 192, 0.8, 8.0
_SCALES = np.exp(np.linspace(-3.0, 4.0, 57))
_NOISE_COST, _NOISE_SCALE = 1 / 6, 5.0


@dataclass(frozen=True)
class Rehearsed:
    """For each clip norm: the log loss in folds, and f."""

    clip_norms: tuple[float, ...]
    log_losses: tuple[float, ...]
    spreads: tuple[float, ...]

    def spread(self, clip_norm: float) -> float:
        """f at the clip norm that is nearest."""
        return self.spreads[int(np.argmin([abs(one - clip_norm) for one in self.clip_norms]))]


@lru_cache(maxsize=2)
def rehearsed(rows: PublicRows, loss: Loss, slope: float, ridge: float) -> Rehearsed | None:
    """None where rows are too few to be cut into folds, features too many, or scores no log-odds.

    Args:
        slope: the length of a gradient at w = 0 of a row of length 1.
        ridge: of the whitening.
    """
    if rows.n < _FEWEST or rows.p > _WIDEST or loss.name not in ("logistic", "softmax"):
        return None
    metric = metric_of(rows, ridge, unit=False, span=False)
    if not isinstance(metric, Features):
        return None
    some = np.unique(np.linspace(0, rows.n - 1, min(rows.n, _MOST)).astype(np.intp))
    X = dense(rows.X[some]) @ np.asarray(metric.matrix).T
    y = rows.y[some].astype(np.intp) if loss.task == "multiclass" else rows.y[some]
    top = float(loss.lipschitz or math.inf)
    clips = tuple(slope * factor for factor in FACTORS if slope * factor <= top * (1 + 1e-9))
    place, z = np.arange(len(y)) % _FOLDS, np.zeros((len(clips), len(y), loss.outputs))
    folds = [place != fold for fold in range(_FOLDS)]
    for k, weights in enumerate(
        _trained([X[part] for part in folds], [y[part] for part in folds], loss, clips)
    ):
        for part, w in zip(folds, weights, strict=True):
            z[k, ~part] = X[~part] @ w
    lengths = np.linalg.norm(X, axis=1)
    scales, losses = zip(*(_best_scale(part, y) for part in z), strict=True)
    new = lengths / max(float(lengths.mean()), 1e-300)  # other rows are longer: these made the metric
    spreads = [_spread(a * z[k], y, new, loss, clips[k]) for k, a in enumerate(scales)]
    return Rehearsed(clips, losses, tuple(spreads))


def best_clip(found: Rehearsed, noise: float) -> float:
    """C, for a variance of the noise that is `noise` times that of a mean of n gradients."""
    clips = np.array(found.clip_norms)
    cost = _NOISE_COST * noise / (_NOISE_SCALE + noise) * (clips / clips.max()) ** 2
    return float(clips[np.argmin(np.log(np.maximum(found.log_losses, 1e-6)) + cost)])


def _trained(
    folds: Sequence[Floats], targets: Sequence[Array], loss: Loss, clips: Sequence[float]
) -> list[Floats]:
    """Weights (folds, p, outputs) for every clip norm, rising: full-batch steps with heavy ball.

    The largest clip norm clips least and comes first, from zero; each other one continues from the one
    before, as training continues from the solution of the public rows. All folds step together: shorter ones
    end with rows of zeros, whose gradients are zero.
    """
    longest = max(map(len, folds))
    X = np.stack([np.pad(part, ((0, longest - len(part)), (0, 0))) for part in folds])
    y = np.concatenate([np.pad(part, (0, longest - len(part)), mode="edge") for part in targets])
    lengths = np.linalg.norm(X, axis=2).reshape(-1)
    step = np.array([_step_size(part, loss) for part in folds])[:, None, None]
    flipped = np.ascontiguousarray(X.transpose(0, 2, 1))
    w = np.zeros((len(folds), X.shape[2], loss.outputs))
    out: list[Floats] = []
    for clip in reversed(clips):
        velocity = np.zeros_like(w)
        for _ in range(_STEPS if out else _FIRST_STEPS):
            slopes = _slopes((X @ w).reshape(-1, loss.outputs), y, loss)
            slopes *= _factors(slopes, lengths, clip)[:, None]
            velocity *= _MOMENTUM
            velocity += flipped @ slopes.reshape(len(folds), longest, -1)
            velocity += w
            w = w - step * velocity
        out.append(w)
    return out[::-1]


def _step_size(X: Floats, loss: Loss) -> float:
    top = max(float(np.linalg.eigvalsh(X @ X.T if len(X) < X.shape[1] else X.T @ X)[-1]) / len(X), 1e-12)
    return (1 - _MOMENTUM) * _CAP / (top * (loss.smoothness or 1.0) * len(X) + 1)  # 1 is the ridge's


def _slopes(z: Floats, y: Array, loss: Loss) -> Floats:
    slopes = loss.slope(z if loss.outputs > 1 else z[:, 0], y)
    return np.asarray(slopes, dtype=np.float64).reshape(len(z), loss.outputs)


def _factors(slopes: Floats, lengths: Floats, clip: float) -> Floats:
    norms = _lengths(slopes) * lengths
    return np.asarray(clip / np.maximum(norms, clip))


def _lengths(slopes: Floats) -> Floats:
    return np.abs(slopes[:, 0]) if slopes.shape[1] == 1 else np.linalg.norm(slopes, axis=1)


def _spread(z: Floats, y: Array, lengths: Floats, loss: Loss, clip: float) -> float:
    norms = np.linalg.norm(_slopes(z, y, loss), axis=1) * lengths
    return float(np.square(np.minimum(norms / clip, 1.0)).mean())


def _best_scale(z: Floats, y: Array) -> tuple[float, float]:
    """The scale of the scores of held-out rows that fits these best, and their log loss with it."""
    if z.shape[1] == 1:
        losses = np.logaddexp(0, -np.multiply.outer(_SCALES, y * z[:, 0])).mean(axis=1)
    else:
        own = z[np.arange(len(z)), y]
        losses = np.array([(logsumexp(a * z, axis=1) - a * own).mean() for a in _SCALES])
    best = int(np.argmin(losses))
    return float(_SCALES[best]), float(losses[best])


# ---------------------------------------------------------------------------------------------------
# the parts


BARELY_RIGHT = 0.7  # relative to the slope at 0; logistic loss has it at a margin of 0.62
SPREAD = 0.3  # for regressions, whose residuals are shorter than their targets
_LEAST_SPREAD = 0.003
_LONGER = (1.0, 1.4, 2.0, 2.8, 4.0)  # times the mean |ŷ|, of a regression: see `_clip_of_numbers`
_CLIPPED_OFF, _NOISE_OF_NUMBERS = 0.25, 0.02  # of the mean square


def public_precision(
    *,
    n_public: int,
    n_private: float,
    dimension: int,
    noise_multiplier: float,
    sensitivity_factor: int,
    batch: float,
    steps: int,
    spread: float,
) -> float:
    """κ: the precision of the mean public gradient, relative to that of the noisy mean private gradient."""
    noise = noise_multiplier * sensitivity_factor / (batch * math.sqrt(steps))  # s/C
    return n_public * (dimension * noise**2 / spread + 1 / n_private)


@dataclass(frozen=True)
class Precision(Mix):
    """(G + κ ĝ)/(1 + κ), with κ the ratio of the two gradients' precisions.

    spread: f, the mean squared length of a clipped gradient in units of the clip norm. None: that of public
    records in folds (`spread_of`).
    κ falls as the two gradients turn out to be further apart than chance explains (`measured_shift`).
    """

    spread: float | None = None
    needs_public: ClassVar[bool] = True
    needs_gradient: ClassVar[bool] = True
    before_momentum: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("spread", self.spread, optional=True)

    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        spread = self.spread or spread_of(setting, bound)
        kappa = _precision_of(setting, noise_multiplier=noise_multiplier, spread=spread)
        details = {
            "weight": kappa / (1 + kappa),
            "noise_worth": _worth_of_noise(setting, noise_multiplier=noise_multiplier),
        }
        std = noise_multiplier * setting.sensitivity_factor * bound / setting.batch
        m = setting.public("precision weighting").size
        chance = Chance(
            noise=setting.dimension * std**2, records=spread * bound**2, n=setting.n, batch=setting.batch,
            m=m, dimension=setting.dimension, whole=spread * m,
        )  # fmt: skip
        return MeasuredShift(kappa, chance, details)


def _precision_of(setting: Setting, *, noise_multiplier: float, spread: float) -> float:
    m = setting.public("precision weighting").size
    dimension = setting.dimension
    if in_span(setting, m):
        dimension = len(evenly(m)) * (setting.constants.outputs or 1)
    return public_precision(
        n_public=m,
        n_private=setting.n,
        dimension=dimension,
        noise_multiplier=noise_multiplier,
        sensitivity_factor=setting.sensitivity_factor,
        batch=setting.batch,
        steps=setting.steps,
        spread=spread,
    )


def _worth_of_noise(setting: Setting, *, noise_multiplier: float) -> float:
    """n′: how many gradients of length C have a mean that varies as much as the noise of all steps."""
    m = setting.public("precision weighting").size
    whole = _precision_of(setting, noise_multiplier=noise_multiplier, spread=1.0)
    return m / max(whole - m / setting.n, 1e-300)


@dataclass(frozen=True)
class NoiseLimitedStep(NoiseAware):
    """The step size of `NoiseAware`, and no longer a way in all than the noise leaves worth: n′ + m.

    Of T steps with heavy ball β, of whose iterates the last half is averaged, 3T/4(1−β) count. n′ is for
    gradients of length C (f = 1), which is the most that they can be.
    """

    needs_public: ClassVar[bool] = True

    def size(self, setting: Setting, *, noise_multiplier: float, momentum: float, metric: Metric) -> float:
        allowed = super().size(setting, noise_multiplier=noise_multiplier, momentum=momentum, metric=metric)
        m = setting.public("a step size that follows from the noise").size
        worth = _worth_of_noise(setting, noise_multiplier=noise_multiplier)
        return min(allowed, (worth + m) * (1 - momentum) / (0.75 * setting.steps))


@dataclass(frozen=True)
class LengthKept(Whitening):
    """Whitening that leaves rows their length where scores are log-odds but for a scale.

    Those of hinge, huber and square loss on labels are none: there each row is brought to length 1, which is
    no worse, and with the square loss, whose slope has no bound, better.
    """

    def begin(self, setting: Setting, params: Vector) -> WhiteningState:
        unit = setting.constants.target_bound is None and not _proper(setting)
        return Whitening(self.ridge, unit if self.unit is None else self.unit).begin(setting, params)


@dataclass(frozen=True)
class GradientAtZero(ClipRule):
    """C = c times the length of a gradient at w = 0 of a row of length 1; numbers: `_clip_of_numbers`.

    That length is the slope of the loss at 0: 1/2 of logistic loss, whose bound is 1. c is 0.7 where noise is
    strong or clipping does no harm: a record that is badly misclassified then counts as much as one that is
    undecided, or barely right, and the noise is a third as strong. Else folds of the public rows decide.
    """

    clip_norm: float | None = None
    half_square: ClassVar[bool] = True
    linear_only: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> ClipState:
        constants = setting.constants
        if self.clip_norm is not None:
            return Flat(self.clip_norm)
        if constants.target_bound is not None:
            return Flat(_clip_of_numbers(setting))
        slope = constants.first_slope
        if slope is None:
            return Flat(setting.problem.default_clip_norm())
        found = _folds(setting)
        return Flat(BARELY_RIGHT * slope if found is None else best_clip(found, relative_noise(setting)))


def _clip_of_numbers(setting: Setting) -> float:
    """The mean |ŷ|; where tails are heavy and the noise is weak, up to four times that.

    It is the least C that clips off at most a quarter of the sum of squares, as it does of normal targets at
    their mean size, and whose noise (p k C/nμ)² in predictions is at most a fiftieth of the mean square.
    """
    sizes = np.abs(setting.linear_guide("a clip norm from public targets").rows.y)
    square = max(float((sizes**2).mean()), 1e-300)
    mu = conversions.gdp_mu(setting.epsilon, setting.delta)
    noise = setting.dimension * setting.sensitivity_factor / (setting.n * mu)
    clips = [factor * max(float(sizes.mean()), 1e-12) for factor in _LONGER]
    allowed = [c for c in clips if (noise * c) ** 2 <= _NOISE_OF_NUMBERS * square] or clips[:1]
    enough = [c for c in allowed if float((np.maximum(sizes - c, 0.0) ** 2).mean()) <= _CLIPPED_OFF * square]
    return (enough or allowed[-1:])[0]


def _rarely_as_long(setting: Setting, clip_norm: float | None) -> float:
    """The mean squared length of a clipped residual in units of C, over what it is at the mean |ŷ|."""
    sizes = np.abs(setting.linear_guide("a clip norm from public targets").rows.y)
    clip_norm = _clip_of_numbers(setting) if clip_norm is None else clip_norm
    own, first = (
        float((np.minimum(sizes / max(c, 1e-12), 1.0) ** 2).mean()) for c in (clip_norm, float(sizes.mean()))
    )
    return min(1.0, own / max(first, 1e-12))


def _proper(setting: Setting) -> bool:
    """Whether the loss is least at true probabilities."""
    return setting.constants.loss in ("logistic", "softmax")


def _folds(setting: Setting) -> Rehearsed | None:
    """What folds of the public rows say about clipping; None of a regression, or where they cannot tell."""
    problem, slope = setting.problem, setting.constants.first_slope
    if not isinstance(problem, LinearProblem) or slope is None or not _proper(setting):
        return None
    rows = setting.linear_guide("folds of public rows").rows
    return rehearsed(rows, problem.loss, slope, ridge_of_noise(setting, rows.n))


def spread_of(setting: Setting, clip_norm: float | None = None) -> float:
    """f at a clip norm; None is the one that folds of the public rows choose. p/m as above, per output.

    Where folds cannot tell it is 1, that of gradients of which all are clipped. Of a regression it is 0.3,
    whatever p is: measured, and residuals are shorter than targets; less for a C above the mean |ŷ|.
    """
    if setting.constants.target_bound is not None:
        return SPREAD * _rarely_as_long(setting, clip_norm)
    found = _folds(setting)
    if found is None:
        return 1.0
    clip_norm = best_clip(found, relative_noise(setting)) if clip_norm is None else clip_norm
    m = setting.public("precision weighting").size
    features = setting.dimension / (setting.constants.outputs or 1)
    return float(np.clip(found.spread(clip_norm) * max(1.0, features / m), _LEAST_SPREAD, 1.0))


@dataclass(frozen=True)
class PublicSolution(Start):
    """The solution of the public rows with a ridge of 1/m, in the coordinates of training.

    A model that came with these rows takes its place if it is better in folds of them.
    """

    needs_public: ClassVar[bool] = True
    linear_only: ClassVar[bool] = True

    def __call__(self, setting: Setting) -> Vector:
        problem = setting.problem
        if not isinstance(problem, LinearProblem):
            raise InputError("the public solution as a start is for linear models; use start=Warm()")
        rows = setting.linear_guide("a start at the public solution").rows
        if (given := given_model(rows, problem.loss)) is not None:
            return given.reshape(-1)
        metric = problem.unit_metric
        if metric is None:
            size = int(rows.every.shape[0])
            ridge, span = ridge_of_noise(setting, size), in_span(setting, size)
            metric = metric_of(rows, ridge, unit=False, span=span)
        if isinstance(metric, Features):
            X = np.asarray(dense(rows.X) @ floats(metric.matrix).T)
            return metric.lift(ridge_minimum(problem.loss, X, rows.y, 1 / rows.n, tolerance=1e-5))
        used = np.unique(rows.X.indices) if is_sparse(rows.X) else slice(None)  # the rest has weight 0
        inner = ThinFeatures(metric.rows[:, used], metric.core, metric.floor)
        thin = _Whitened(rows.X[:, used], inner)
        v = inner.lift(ridge_minimum(problem.loss, thin, rows.y, 1 / rows.n, tolerance=1e-5))
        start = np.zeros((problem.loss.outputs, rows.X.shape[1]))
        start[:, used] = floats(v).reshape(problem.loss.outputs, -1)
        return start.reshape(-1)


class _Whitened:
    """XM, which is not written out: the metric is a thin one."""

    def __init__(self, X: Matrix, metric: ThinFeatures, *, turned: bool = False) -> None:
        self._X, self._metric, self._turned = X, metric, turned
        self.shape = tuple(reversed(X.shape)) if turned else X.shape

    @property
    def T(self) -> _Whitened:  # noqa: N802 - as of an array
        return _Whitened(self._X, self._metric, turned=True)

    def __matmul__(self, other: Floats) -> Floats:
        if self._turned:
            return self._mapped(np.asarray(self._X.T @ other))
        return np.asarray(self._X @ self._mapped(other))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Floats:
        """Written out after all: a solver asks for that where few features are used."""
        return np.asarray(self @ np.eye(self.shape[1]), dtype=dtype)

    def _mapped(self, columns: Floats) -> Floats:
        """M times each column."""
        flat = floats(self._metric.apply(np.ascontiguousarray(columns.T).reshape(-1)))
        return flat.reshape(columns.T.shape).T


@method(
    group="gradient method",
    paper="A method of this project (specification, section 21)",
    wins="linear models with public rows: weight moves from private to public rows as noise grows",
    loses="public rows from another population: their weight falls, but start and metric come from them",
    ours=True,
    small={"steps": 6},
)
def precision_weighting(
    *,
    ridge: float | None = None,
    clip_norm: float | None = None,
    spread: float | None = None,
    steps: int = 64,
    step_size: float | None = None,
    momentum: float = 0.8,
    expected_batch_size: float | None = None,
    finish: FinishRule | None = None,
) -> Recipe:
    """Public whitening from the public solution, with public gradients weighted by their precision.

    Guarantee: T Gaussian releases of all records, composed exactly; sensitivity C (2C under replace-one). It
    does not depend on the weight.
    Assumes: the public records do not depend on the private ones.
    """
    return Recipe(
        name="precision_weighting",
        start=PublicSolution(),
        metric=LengthKept(ridge),
        clip=GradientAtZero(clip_norm),
        noise=ConstantNoise(),
        mix=Precision(spread),
        finish=finish or MeanLastHalf(),
        steps=steps,
        step_size=step_size,
        step=NoiseLimitedStep(cap=8.0),
        momentum=momentum,
        expected_batch_size=expected_batch_size,
    )
