"""The plan that a budget allows, and what its noise leaves of a gradient: measured on public records.

`at_point`: some public records play the public ones, others stand in for the private ones. With ĝ the mean
gradient of the first, g_i the gradients of the others and μ their mean in expectation:

    concentration    median of ‖g_i − ĝ‖/‖g_i‖, and the same around the stand-ins' own mean, the best origin
    released         G = mean of clip_C(g_i) + N(0, (zC/B)² I), with z, C and B of the real plan
    around           G = o + mean of clip_C′(g_i − o) + N(0, (zC′/B)² I), o = ĝ shortened, C′ by concentration
    mixed            (1 − α)G + αĝ with the best α

and for each its cosine with μ: a step along it of the best length lowers the loss by cos² of what a step
along μ would. Noise of different steps averages out and a public gradient that points elsewhere does not, so
that methods are compared over a stretch of a tenth of the steps together. Inner products with μ are of
different records only, so that a gradient which few records show does not look longer than it is; where the
mean is lost among a few very long gradients, μ is that of the clipped ones. Noise enters by its expectation.
No private record is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sidelight.arrays import Floats
from sidelight.methods.part_kinds import FixedClip
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.batches import Batch, call, row_count, take
from sidelight.oracles.network.flat import evaluating
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import accountants
from sidelight.privacy.events import Relation

_PARTS = 8  # B is this part of the private records,
_SMALLEST_BATCH = 512  # or so many; or all of them, if there are no more than twice as many
_EPOCHS = 20
_FEWEST_STEPS = 50
_LONG_NOISE = 1.0  # of C: with longer noise in one step, fewer steps
# The noise of all steps, were each of them the longest, moves each parameter so far at most, and a step size
# is so large at most: by experiments/networks_auto/step_rule.csv.
_WALKS = {
    "path": (0.2, 12.0), "none": (0.2, 6.0), "mixed": (0.14, 6.0), "origin": (0.14, 3.0),
    "scaled": (0.07, 3.0),
}  # fmt: skip
_LIMIT = 1.0  # the longest public gradient of a mix
_ORIGIN_LIMIT = 0.5
_BLOCKS, _FEWEST_BLOCKS = 16, 4  # of stand-ins
_MOST_NUMBERS = 2**26  # in the blocks' gradients: a quarter of a gigabyte
_FLIPS = 400  # of the blocks' signs, for a test
_STRETCH = 10  # a stretch is this part of the steps
_STRAIGHT = 0.8  # a cosine of the clipped mean with the plain one, below which a few long gradients rule
_CLEARLY = 1.1  # times as much progress: by less, the plainer method is named

Taken = Literal["dp_sgd", "coupling", "dope_sgd", "only_public"]

# What public records are for: a start, and the way from it may be cut short in the end; nothing; a start or a
# mix; to clip around; to set the scale of gradients.
Use = Literal["path", "none", "mixed", "origin", "scaled"]


@dataclass(frozen=True)
class RealPlan:
    """The plan of a run, as far as public records can rehearse it; all of it public."""

    batch: float  # B
    steps: int  # T
    noise_multiplier: float
    n: int  # private records
    epsilon: float
    delta: float
    relation: Relation
    seed: int

    @property
    def noise(self) -> float:
        """The standard deviation of each coordinate of a released mean, in units of the clip norm."""
        return self.noise_multiplier * (1 if self.relation == "add-or-remove-one" else 2) / self.batch


def batch_for(n: int) -> float:
    """B for n private records."""
    return float(max(1, n if n <= 2 * _SMALLEST_BATCH else max(_SMALLEST_BATCH, math.ceil(n / _PARTS))))


def plan_for(
    n: int,
    dimension: int,
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    batch: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    public: Use = "path",
) -> RealPlan:
    """Batch and steps as they are given, else by rule; and the noise that they need.

    Large batches need the least noise. They are smaller, and there are more steps, where steps would have to
    be longer than is stable to use what the noise allows. Where records are too few for smaller batches,
    there are twice as many steps.
    """

    def planned(count: int, size: float) -> RealPlan:
        multiplier = accountants.noise_multiplier(
            epsilon=epsilon, delta=delta, sampling_probability=size / n, steps=count, relation=relation
        )
        return RealPlan(size, count, multiplier, n, epsilon, delta, relation, seed)

    size = min(float(n), batch or batch_for(n))
    plan = planned(steps or _steps(n, size), size)
    walk, longest = _WALKS["path"]
    while batch is None and steps is None and plan.batch >= 2 * _SMALLEST_BATCH:
        if walk <= longest * plan.noise * math.sqrt(plan.steps):
            break
        plan = planned(_steps(n, plan.batch / 2), plan.batch / 2)
    walk, longest = _WALKS[public]
    if steps is None and plan.batch >= n and walk > longest * plan.noise * math.sqrt(plan.steps):
        plan = planned(2 * plan.steps, plan.batch)
    while steps is None and plan.steps >= 2 * _FEWEST_STEPS:
        if plan.noise * math.sqrt(dimension) <= _LONG_NOISE:
            break
        plan = planned(plan.steps // 2, plan.batch)
    return plan


def _steps(n: int, batch: float) -> int:
    return max(_FEWEST_STEPS, round(_EPOCHS * n / batch))


def step_size_for(plan: RealPlan, *, public: Use) -> float:
    """η/(1 − momentum), with η the longest step: as long as the noise of all steps allows.

    Shorter around an origin, and where public records set the scale of gradients.
    """
    walk, longest = _WALKS[public]
    return min(longest, max(0.25, walk / (plan.noise * math.sqrt(plan.steps))))


def use_of(recipe: Recipe) -> Use:
    """What a recipe does with public records. Steps are planned for a clip norm that is given."""
    if recipe.metric is not None or not isinstance(recipe.clip, FixedClip):
        return "scaled"
    if recipe.origin is not None:
        return "origin"
    return "mixed" if recipe.needs_public else "none"


# ---------------------------------------------------------------------------------------------------
# one point


@dataclass(frozen=True)
class GradientPoint:
    """What gradients say at one point of the parameters.

    Cosines are with μ, the mean gradient of the stand-ins in expectation, and None where they do not show it:
    they are too few, or have nothing left to teach.

    Args:
        loss: of the stand-ins, for classes at the best temperature.
        length: the median length of a record's gradient.
        clipped_share: records whose gradient is clipped.
        around_public, around_best: the median of ‖g_i − o‖/‖g_i‖ for the public gradient and for the best o,
            of records weighed by what they contribute: min(‖g_i‖, C).
        origin_clip: C′/C.
        noise_to_signal: the length of one step's noise over that of the clipped mean.
        target: which gradients μ is the mean of; clipped ones where the plain mean is not seen.
        public, clipped: cosines of the public gradient, and of the clipped mean without noise.
        one_step: of a released gradient.
        released, around, mixed: of the mean of a stretch of released gradients, around zero, around an
            origin, and mixed with the public gradient by `weight`.
    """

    where: str
    loss: float
    length: float
    clipped_share: float
    around_public: float
    around_best: float
    origin_clip: float
    noise_to_signal: float
    target: Literal["mean", "clipped mean", "not seen"] = "not seen"
    public: float | None = None
    clipped: float | None = None
    one_step: float | None = None
    released: float | None = None
    around: float | None = None
    mixed: float | None = None
    weight: float | None = None

    @property
    def method(self) -> Taken:
        """The method whose steps get furthest from here; the plainer one unless another is clearly better."""
        if self.released is None or self.around is None or self.mixed is None or self.public is None:
            return "dp_sgd"
        if self.public > 0 and _CLEARLY * self.public**2 > max(self.mixed, self.around) ** 2:
            return "only_public"
        if max(self.mixed, self.around) ** 2 <= _CLEARLY * max(0.0, self.released) ** 2:
            return "dp_sgd"
        return "dope_sgd" if self.around**2 > _CLEARLY * self.mixed**2 else "coupling"

    @property
    def words(self) -> str:
        """What the numbers mean, and the method that follows from them."""
        saved = (
            "an origin saves no noise"
            if self.around_public > 0.95
            else f"an origin lets C, and the noise, be {self.around_public:.2f} times as large"
        )
        origin = (
            f"A record's gradient is {self.around_public:.3g} times as long around the public gradient as "
            f"around zero ({self.around_best:.3g} around the best origin there is): {saved}."
        )
        noise = f"One step's noise is {self.noise_to_signal:.2g} times as long as the clipped mean."
        return f"{origin} {noise} {self._cosines} {self._advice}"

    @property
    def _cosines(self) -> str:
        if self.target == "not seen":
            return (
                "So few records show no common gradient here, and neither do the public ones: an origin or a "
                "mix cannot point the way, and only a rehearsal can show whether private steps help."
            )
        whose = "" if self.target == "mean" else " (clipped)"
        return (
            f"With the gradient of unseen records{whose} the public one has a cosine of {self.public:.2f}, a "
            f"released one {self.one_step:.2f}, and those of a tenth of the run together {self.released:.2f} "
            f"({self.around:.2f} around the public one, {self.mixed:.2f} mixed with it)."
        )

    @property
    def _advice(self) -> str:
        return {
            "only_public": "From here public steps get as far: private ones are not worth their budget.",
            "dp_sgd": "Public gradients add little to released ones from here: dp_sgd.",
            "coupling": f"Mix them, with a weight of {self.weight or 0:.2g} on the public one: coupling.",
            "dope_sgd": f"Clip around the public one, C {self.origin_clip:.2f} times as large: dope_sgd.",
        }[self.method]


def at_point(
    oracle: NetworkOracle,
    public: Batch,
    stand_ins: Batch,
    plan: RealPlan,
    *,
    where: str,
    loss: float,
    clip_norm: float = 1.0,
) -> GradientPoint:
    """Gradients of public records and of stand-ins for private ones, at the model's present parameters."""
    with evaluating(oracle.model):
        guide = _weighted(oracle, public, None)
        sample = _Sample(oracle, stand_ins, clip_norm)
        plain, clipped = sample.clipped(None, math.inf), sample.clipped(None, clip_norm)
        origin = _shortened(guide, _ORIGIN_LIMIT)
        shrunk = min(1.0, sample.concentration(origin))
        dope = sample.clipped(origin, clip_norm * shrunk)
        around = sample.concentration(guide), sample.concentration(plain.mean)
    noise = oracle.dimension * (plan.noise * clip_norm) ** 2
    point = GradientPoint(
        where=where, loss=loss, length=float(np.median(sample.lengths)),
        clipped_share=float((sample.lengths > clip_norm).mean()), around_public=around[0],
        around_best=around[1], origin_clip=shrunk,
        noise_to_signal=math.sqrt(noise) / max(1e-30, float(clipped.mean.norm())),
    )  # fmt: skip
    if plain.seen:
        bias = _cosine(clipped.dot(plain), max(0.0, clipped.dot(clipped)), math.sqrt(plain.dot(plain)))
        point = replace(point, clipped=bias)
    if plain.seen and (point.clipped or 0) >= _STRAIGHT:
        return _with_cosines(point, "mean", plain, guide, clipped, dope, plan, noise)
    if clipped.seen:
        return _with_cosines(point, "clipped mean", clipped, guide, clipped, dope, plan, noise)
    return point


def _with_cosines(
    point: GradientPoint,
    target: Literal["mean", "clipped mean"],
    truth: _Mean,
    guide: Tensor,
    clipped: _Mean,
    dope: _Mean,
    plan: RealPlan,
    noise: float,
) -> GradientPoint:
    stretch = max(1, plan.steps // _STRETCH)
    mu, capped = math.sqrt(truth.dot(truth)), _shortened(guide, _LIMIT)
    beside, ours = float(capped @ clipped.mean), clipped.dot(truth)

    def square(one: _Mean, share: float, steps: int) -> float:
        """The expected square of a mean of so many releases, with `share` of the noise's length."""
        return max(0.0, one.dot(one)) + (one.spread / plan.batch + noise * share**2) / steps

    dots = np.array([float(capped @ truth.mean), ours])
    gram = np.array([[float(capped @ capped), beside], [beside, square(clipped, 1.0, stretch)]])
    weight, mixed = _best_mix(gram, dots)
    return replace(
        point,
        target=target,
        public=_cosine(dots[0], gram[0, 0], mu),
        one_step=_cosine(ours, square(clipped, 1.0, 1), mu),
        released=_cosine(ours, gram[1, 1], mu),
        around=_cosine(dope.dot(truth), square(dope, point.origin_clip, stretch), mu),
        mixed=_cosine(mixed, 1.0, mu),
        weight=weight,
    )


@dataclass(frozen=True)
class _Mean:
    """The means of o + clip(g_i − o) over blocks of records.

    spread: the mean square of what one record adds.
    """

    blocks: Tensor  # one per row
    spread: float

    @property
    def mean(self) -> Tensor:
        return self.blocks.mean(0)

    def dot(self, other: _Mean) -> float:
        """The inner product of the two means in expectation: no block meets itself."""
        return _off_diagonal((self.blocks @ other.blocks.T).cpu().numpy())

    @property
    def seen(self) -> bool:
        """Whether the blocks agree with each other more than 95 % of the same blocks with random signs do."""
        products = (self.blocks @ self.blocks.T).cpu().numpy()
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (_FLIPS, len(products)))
        flipped = np.einsum("ri,ij,rj->r", signs, products, signs) - products.trace()
        return float((products.sum() - products.trace() <= flipped).mean()) < 0.05


def _off_diagonal(products: Floats) -> float:
    count = len(products)
    return float((products.sum() - products.trace()) / (count * (count - 1)))


class _Sample:
    """Public records in a few blocks, and the lengths of their gradients."""

    def __init__(self, oracle: NetworkOracle, batch: Batch, clip_norm: float) -> None:
        self.oracle, self.clip_norm = oracle, clip_norm
        blocks = max(_FEWEST_BLOCKS, min(_BLOCKS, _MOST_NUMBERS // oracle.dimension))
        size = row_count(batch) // blocks
        self.parts = [take(batch, slice(k * size, (k + 1) * size)) for k in range(blocks)]
        self.norms = [self._norms(part, None) for part in self.parts]
        self.lengths = np.maximum(np.concatenate(self.norms), 1e-30)

    def _norms(self, part: Batch, origin: Tensor | None) -> Floats:
        return np.asarray(self.oracle.norms(part, origin=origin).numpy(), dtype=np.float64)

    def concentration(self, origin: Tensor) -> float:
        """The median of ‖g_i − o‖/‖g_i‖, of records weighed by what they contribute, min(‖g_i‖, C)."""
        found = np.concatenate([self._norms(part, origin) for part in self.parts]) / self.lengths
        order = np.argsort(found)
        share = np.cumsum(np.minimum(self.lengths, self.clip_norm)[order])
        return float(found[order][np.searchsorted(share, share[-1] / 2)])

    def clipped(self, origin: Tensor | None, clip_norm: float) -> _Mean:
        """The means of o + clip(g_i − o)."""
        means, spread = list[Tensor](), list[float]()
        for part, plain in zip(self.parts, self.norms, strict=True):
            norms = plain if origin is None else self._norms(part, origin)
            factors = np.minimum(1.0, clip_norm / np.maximum(norms, 1e-30))
            mean = _weighted(self.oracle, part, factors)
            means.append(mean if origin is None else mean + (1 - float(factors.mean())) * origin)
            spread.append(float(((factors * norms) ** 2).mean()))
        return _Mean(torch.stack(means), float(np.mean(spread)))


def _weighted(oracle: NetworkOracle, batch: Batch, weights: Floats | None) -> Tensor:
    """The mean of w_i g_i over public records, flat."""
    inputs, targets = batch
    parameters = oracle.parameters
    with torch.enable_grad():
        losses = oracle.loss(call(oracle.model, inputs), targets)
        by = 1.0 if weights is None else torch.as_tensor(weights).to(losses)
        found = torch.autograd.grad((by * losses).mean(), parameters, allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return torch.cat([part.detach().reshape(-1).float() for part in parts])


def _shortened(vector: Tensor, limit: float) -> Tensor:
    return vector * min(1.0, limit / max(float(vector.norm()), 1e-30))


def _cosine(dot: float, square: float, mu: float) -> float:
    return max(-1.0, min(1.0, dot / (mu * math.sqrt(max(square, 1e-60)))))


def _best_mix(gram: Floats, dots: Floats) -> tuple[float, float]:
    """The weight α in [0, 1] of the first vector, and the length of μ's projection on the mix."""
    weights = np.linspace(0.0, 1.0, 201)
    mixes = np.stack([weights, 1 - weights])
    lengths = np.sqrt(np.maximum(np.einsum("ik,ij,jk->k", mixes, gram, mixes), 1e-60))
    found = dots @ mixes / lengths
    best = int(found.argmax())
    return float(weights[best]), float(found[best])
