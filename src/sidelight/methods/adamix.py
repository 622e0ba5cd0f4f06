"""AdaMix: project onto the span of public gradients, clip at a public quantile (Golatkar et al., CVPR 2022).

U ← top-k right singular vectors of the public per-record gradients ;  C ← quantile_0.9 ‖Uᵀg_j‖
G ← U( Σ_{i∈S} clip_C(Uᵀg_i) + N(0, σ²C² I_k) ) ;  w ← w − η[α ĝ + (1−α) G/B]
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sidelight.arrays import Array, Floats, Vector
from sidelight.clipping import Clip, Metric, Projection
from sidelight.errors import AssumptionError, InputError
from sidelight.methods.coupling import PooledWeight
from sidelight.methods.declare import method
from sidelight.methods.dope_sgd import StartName, Warm, named_start
from sidelight.methods.part_kinds import ClipRule, ClipState, Guide, MetricRule, MetricState, Setting
from sidelight.methods.parts import ConstantNoise, Flat
from sidelight.methods.recipe import Recipe

SMALLEST = 1e-8  # below this a clip norm is none


@dataclass(frozen=True)
class Subspace(MetricRule):
    """The metric: coordinates in the span of public gradients, so that noise has k coordinates."""

    rank: int | None = None  # None: min(n_pub, p, 50)
    refresh: int | None = None  # steps between two bases; None: 1, or 10 for a network
    needs_public: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> SubspaceState:
        guide = setting.public("AdaMix's projection")
        most = min(guide.size, setting.dimension)
        rank = min(most, 50) if self.rank is None else self.rank
        if not 1 <= rank <= most:
            raise InputError(f"rank must be from 1 to min(public records, parameters) = {most}, not {rank}")
        return SubspaceState(guide, rank, guide.refresh if self.refresh is None else self.refresh)


class RefreshedState(MetricState):
    """A projection on directions of public gradients, which is made anew every `refresh` steps."""

    kept = ("known",)

    def __init__(self, refresh: int) -> None:
        self.refresh = refresh
        self.known: tuple[int, Metric] | None = None

    def at(self, step: int, params: Vector, public_gradient: Vector | None) -> Metric:
        if self.known is None or step - self.known[0] >= self.refresh:
            self.known = step, self.made(params)
        return self.known[1]

    @abstractmethod
    def made(self, params: Vector) -> Metric:
        """The projection at these parameters."""

    def back(self, metric: Metric, vector: Vector) -> Vector:
        return vector if metric is None else metric.lift(vector)


class SubspaceState(RefreshedState):
    """On the top directions of all parameters' gradients."""

    def __init__(self, guide: Guide, rank: int, refresh: int) -> None:
        super().__init__(refresh)
        self.guide, self.rank = guide, rank

    def made(self, params: Vector) -> Projection:
        gradients = self.guide.gradients(params)
        basis = top_directions(host(gradients), self.rank)
        if abs(basis.T @ basis - np.eye(basis.shape[1])).max() > 1e-8:
            raise AssumptionError("the basis of the public gradients is not orthonormal")
        # A network's parameters are tensors; the basis joins them.
        return Projection(gradients.new_tensor(basis) if hasattr(gradients, "new_tensor") else basis)


def host(array: Vector) -> Array:
    """A tensor as a NumPy array; an array as it is."""
    return np.asarray(array.detach().cpu().numpy() if hasattr(array, "detach") else array)


def top_directions(gradients: Array, rank: int) -> Floats:
    """The top right singular vectors of a matrix of gradients (uncentered), p × rank."""
    _, _, right = np.linalg.svd(np.asarray(gradients, dtype=np.float64), full_matrices=False)
    return np.asarray(right[:rank].T)


@dataclass(frozen=True)
class QuantileClip(ClipRule):
    """C = a quantile of the public records' norms, under the metric, at the current parameters.

    If so many public gradients vanish that the quantile does, it is the largest norm. If all vanish (hinge,
    and every record fits) the last clip norm stays, since zero would silently end the training; at the start
    this is an error.
    """

    quantile: float = 0.9
    needs_public: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> QuantileClipState:
        if not 0 < self.quantile <= 1:
            raise InputError(f"quantile must be in (0, 1], not {self.quantile!r}")
        return QuantileClipState(setting.public("a public quantile"), self.quantile)


@dataclass
class QuantileClipState(ClipState):
    kept = ("last", "notes")

    guide: Guide
    quantile: float
    last: float | None = None
    notes: list[str] = field(default_factory=list)

    def at(self, step: int, params: Vector, metric: Metric, origin: Vector | None) -> Clip:
        norms = self.guide.gradient_norms(params, metric=metric, origin=origin)
        clip_norm = float(np.quantile(norms, self.quantile))
        clip_norm = clip_norm if clip_norm >= SMALLEST else float(norms.max())
        self.last = clip_norm if clip_norm >= SMALLEST else self._kept()
        return Flat(self.last)

    def _kept(self) -> float:
        if self.last is None:
            raise AssumptionError(
                "public gradients vanish at the start, so no clip norm follows from them; set one instead "
                "(clip=Flat(...))"
            )
        if not self.notes:
            self.notes.append(f"public gradients vanished; the clip norm stayed at {self.last:.4g}")
        return self.last


@method(
    group="gradient method",
    paper="Golatkar et al., CVPR 2022",
    wins="gradients of low rank, as in the last layer of a pre-trained network",
    loses="directions outside the span of the public gradients are never learned",
    networks=True,
    small={"steps": 6, "rank": 2},
    on_network={"rank": 2},
)
def adamix(
    *, rank: int | None = None, quantile: float = 0.9, start: StartName | None = None, warm_lam: float = 0.1,
    steps: int | None = None, expected_batch_size: float | None = None, step_size: float | None = None,
) -> Recipe:  # fmt: skip
    """AdaMix. start: None is "warm".

    Guarantee: sensitivity C_t in R^k for every U; σ is constant, so the plan is accounted by PLD.
    Departs: the weight n_pub/(n_pub+n_priv) is the paper's 0.5 for sums, in mean convention.
    """
    return Recipe(
        name="adamix",
        start=named_start(start, Warm(warm_lam), lam=warm_lam),
        metric=Subspace(rank),
        clip=QuantileClip(quantile),
        noise=ConstantNoise(),
        mix=PooledWeight(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
    )
