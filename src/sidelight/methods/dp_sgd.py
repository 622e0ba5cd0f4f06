"""DP-SGD: clip each gradient, add Gaussian noise (Abadi et al., CCS 2016; Song et al. 2013).

w ← w0
for t = 0..T−1:
  S ← each private record independently with probability q
  G ← Σ_{i∈S} clip_C(∇ℓ_i(w)) + N(0, σ²C² I)
  w ← w − η ( G/B + ∇reg(w) )
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sidelight.methods.declare import method
from sidelight.methods.parts import Clip, Flat, Metric
from sidelight.methods.recipe import Last, Recipe, Setting
from sidelight.privacy import accountants, calibrate, events
from sidelight.privacy.events import Event, Relation


@dataclass(frozen=True)
class FlatClip:
    """One clip norm for the whole run.

    None takes the bound that the loss itself gives (its Lipschitz constant times the longest row), and for
    the square loss the longest gradient at w = 0, from the declared bound on targets: both are public.
    """

    clip_norm: float | None = None
    needs_after: ClassVar[bool] = False

    def begin(self, setting: Setting, params: Any) -> FlatClipState:
        bound = natural_bound(setting) if self.clip_norm is None else self.clip_norm
        return FlatClipState(Flat(float(bound)))


@dataclass(frozen=True)
class FlatClipState:
    clip: Clip

    def at(self, step: int, params: Any, metric: Metric, origin: Any) -> Clip:
        return self.clip

    def after(self, params: Any, public_gradient: Any) -> None:
        """Nothing changes."""


def natural_bound(setting: Setting) -> float:
    """A bound on gradient norms that needs no data."""
    if setting.loss.lipschitz is not None:
        return float(setting.loss.lipschitz * setting.max_norm)
    target = 1.0 if setting.target_bound is None else setting.target_bound  # labels are ±1
    return float(setting.loss.smoothness * target * setting.max_norm)


@dataclass(frozen=True)
class ConstantNoise:
    """T equal steps: the least noise for the plan, by PLD (plain Gaussians: exactly)."""

    needs_after: ClassVar[bool] = False
    relations: ClassVar[tuple[Relation, ...] | None] = None

    def multiplier(self, setting: Setting) -> float:
        return calibrate.noise_multiplier(
            epsilon=setting.epsilon,
            delta=setting.delta,
            sampling_probability=setting.rate,
            steps=setting.steps,
            relation=setting.relation,
        )

    def plan(self, setting: Setting) -> tuple[Event, bool, dict[str, Any]]:
        z = self.multiplier(setting)
        event = events.repeat(setting.sampler.event(setting.n, z), setting.steps)
        return event, False, {"noise_multiplier": z, "accounting": accountants.ASSUMES["pld"]}

    def begin(self, setting: Setting) -> ConstantNoiseState:
        return ConstantNoiseState(self.multiplier(setting), setting.steps)


@dataclass(frozen=True)
class ConstantNoiseState:
    z: float
    steps: int

    def at(self, step: int) -> float | None:
        return self.z if step < self.steps else None

    def admit(self, event: Event) -> None:
        """The plan covers every step."""

    def after(self, public_gradient: Any, std: float) -> None:
        """Nothing changes."""


_DEPARTS = (
    "sampling follows the relation: Poisson under add-or-remove-one, fixed size under replace-one; batches "
    "are never shuffled and accounted as Poisson",
)


@method(
    group="gradient method",
    paper="Abadi et al., CCS 2016",
    wins="no public records, or isotropic features; a sane baseline",
    loses="correlated features, where it needs more steps than the noise allows",
    departs=_DEPARTS,
    networks=True,
    small={"steps": 6},
    variants={
        "sampled": {"steps": 6, "expected_batch_size": 22},
    },
)
def dp_sgd(
    *,
    clip_norm: float | None = None,
    steps: int | None = None,
    expected_batch_size: float | None = None,
    step_size: float | None = None,
    momentum: float = 0.0,
    finish: Any = None,
) -> Recipe:
    """DP-SGD.

    Guarantee: PoissonSampled(q, Gaussian(σ)) × T under add-or-remove-one, or fixed-size batches under
    replace-one, or T Gaussians for full batches; composed by PLD.
    Departs: sampling follows the relation; batches are never shuffled and accounted as Poisson.
    """
    return Recipe(
        name="dp_sgd",
        clip=FlatClip(clip_norm),
        noise=ConstantNoise(),
        finish=finish or Last(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
    )


@method(
    group="gradient method",
    paper="Abadi et al., CCS 2016; public records are not used",
    wins="what public records must beat",
    loses="as dp_sgd",
    departs=_DEPARTS,
    networks=True,
    small={"steps": 6},
)
def only_private(
    *, clip_norm: float | None = None, steps: int | None = None, expected_batch_size: float | None = None,
    step_size: float | None = None, momentum: float = 0.0,
) -> Recipe:  # fmt: skip
    """DP-SGD on the private records; public ones are not used at all."""
    recipe = dp_sgd(
        clip_norm=clip_norm,
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
    )
    return recipe.with_parts(name="only_private", public_rows="unused")


@method(
    group="gradient method",
    paper="Abadi et al., CCS 2016; public records are treated as private ones",
    wins="what using public records as public must beat",
    loses="as dp_sgd: a few more private rows change little",
    departs=_DEPARTS,
    needs="public records, to be worth anything",
    networks=True,
    small={"steps": 6},
)
def full_private(
    *, clip_norm: float | None = None, steps: int | None = None, expected_batch_size: float | None = None,
    step_size: float | None = None, momentum: float = 0.0,
) -> Recipe:  # fmt: skip
    """DP-SGD on private and public records together, all treated as private."""
    recipe = dp_sgd(
        clip_norm=clip_norm,
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
    )
    return recipe.with_parts(name="full_private", public_rows="private")
