"""DOPE-SGD: clip around the public gradient (Nasr et al., ICML 2023, Algorithm 2).

ĝ ← mean gradient on public records ;  o ← ĝ·min(1, λ/‖ĝ‖)
G ← o + (1/B)( Σ_{i∈S} clip_C(∇ℓ_i(w) − o) + N(0, σ²C² I) ) ;  w ← w − ηG
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from sidelight.arrays import Vector, length
from sidelight.errors import InputError, one_of
from sidelight.methods.declare import method
from sidelight.methods.part_kinds import FinishRule, Origin, Setting, Start
from sidelight.methods.parts import Cold, ConstantNoise, Flat, MeanLastHalf
from sidelight.methods.recipe import Recipe

NETWORK_LIMIT = 0.1


@dataclass(frozen=True)
class PublicGradient(Origin):
    """The origin: the public gradient, shortened to `limit`. limit=0 is DP-SGD, infinity the paper's.

    None leaves it as it is on a linear model, whose gradients are bounded. A network's public gradient may be
    many times as long as a clipped private one: None is `NETWORK_LIMIT` there.
    """

    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not self.limit >= 0:
            raise InputError(f"origin_limit must be at least 0, not {self.limit!r}")

    def at(self, public_gradient: Vector) -> Vector:
        size, limit = length(public_gradient), math.inf if self.limit is None else self.limit
        return public_gradient * min(1.0, limit / size) if size > 0 else public_gradient


@dataclass(frozen=True)
class Warm(Start):
    """Start at the model of public records alone: argmin of their mean loss + lam·‖w‖².

    A network is pre-trained on them by plain steps, as configured on its trainer.
    """

    lam: float = 0.1
    needs_public: ClassVar[bool] = True

    def __call__(self, setting: Setting) -> Vector:
        setting.public("a warm start")
        return setting.problem.pretrained(self.lam)


@dataclass(frozen=True)
class OpenStart(Start):
    """For papers that leave the start open: a linear model begins at zero, a network at its current weights.

    `Trainer` takes the warm start if there are public records.
    """

    def __call__(self, setting: Setting) -> Vector:
        return setting.problem.start()


StartName = Literal["cold", "warm"]


def named_start(start: StartName | None, default: Start, *, lam: float = 0.1) -> Start:
    """What `start=` of a method names: "cold" is Cold(), "warm" is Warm(), None the method's own."""
    if start is None:
        return default
    one_of("start", start, ("cold", "warm"))
    return Warm(lam) if start == "warm" else Cold()


@method(
    group="gradient method",
    paper="Nasr et al., ICML 2023, Algorithm 2",
    wins="networks, if public gradients resemble the private ones",
    loses="adds little to whitening on linear models",
    networks=True,
    small={"steps": 6},
    variants={
        "extended": {"steps": 6, "start": "warm", "extended": True, "expected_batch_size": 27},
    },
)
def dope_sgd(
    *,
    clip_norm: float | None = None,
    origin_limit: float | None = None,
    start: StartName | None = None,
    warm_lam: float = 0.1,
    extended: bool = False,
    steps: int | None = None,
    expected_batch_size: float | None = None,
    step_size: float | None = None,
    momentum: float = 0.0,
    finish: FinishRule | None = None,
) -> Recipe:
    """DOPE-SGD (Nasr et al., ICML 2023). `extended`: public records join the pool that is sampled from.

    Guarantee: that of DP-SGD with the same clip_norm and noise_multiplier.
    Assumes: the public data does not depend on the private data.
    Departs: the origin is added back after the noise, times the expected batch size. Added per example, as in
    line 9, it would move with |B_t| and cost ‖origin‖ of sensitivity. In the extended setting the public
    records of the pool are clipped as in the paper, and enter by their expectation: the same mean without the
    noise of sampling. `with_parts(clip_pool=False)` adds their unclipped mean instead, which is another.
    """
    return Recipe(
        name="dope_sgd",
        start=named_start(start, OpenStart(), lam=warm_lam),
        origin=PublicGradient(origin_limit),
        clip=Flat(clip_norm),
        noise=ConstantNoise(),
        finish=finish or MeanLastHalf(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
        momentum=momentum,
        extended=extended,
        departs=("DOPE-SGD: the origin is added back once, after the noise",),
    )
