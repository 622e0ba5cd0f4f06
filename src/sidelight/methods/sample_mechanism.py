"""SampleMechanism: the pooled mean of public and clipped private gradients (METHODS 16).

w ← w − η [ α ĝ + (1−α) G ],  α = n_pub/(n_pub + n_priv)
"""

from __future__ import annotations

from dataclasses import dataclass

from sidelight.clipping import Vector
from sidelight.methods.coupling import Weight
from sidelight.methods.declare import method
from sidelight.methods.dp_sgd import ConstantNoise
from sidelight.methods.parts import Flat
from sidelight.methods.recipe import Recipe, Setting


def pooled_weight(*, n_public: int, n_private: int) -> float:
    """α for means; on full-batch sums it is 0.5."""
    return n_public / (n_public + n_private)


@dataclass(frozen=True)
class PooledWeight(Weight):
    """n_pub/(n_pub + n_priv): what averaging all records together would give."""

    weight: float = 0.0

    def choose(
        self, setting: Setting, params: Vector, noise_multiplier: float, bound: float
    ) -> tuple[float, dict[str, float]]:
        return pooled_weight(n_public=setting.public("the pooled weight").size, n_private=setting.n), {}


@method(
    group="gradient method",
    paper="a baseline of Liu, Bu, Wang, Zha & Karypis, 2024",
    wins="many public records",
    loses="with a few dozen their share of the pool is too small to matter",
    departs=("private gradients are clipped; unclipped, as the paper lists it, the method is not private",),
    networks=True,
    small={"steps": 6},
)
def sample_mechanism(
    *, clip_norm: float | None = None, steps: int | None = None, expected_batch_size: float | None = None,
    step_size: float | None = None,
) -> Recipe:  # fmt: skip
    """SampleMechanism.

    Guarantee: that of DP-SGD. Departs: private gradients are clipped; Coupling's Table 2 lists it unclipped,
    which is not private.
    """
    return Recipe(
        name="sample_mechanism",
        clip=Flat(clip_norm),
        noise=ConstantNoise(),
        mix=PooledWeight(),
        steps=steps,
        expected_batch_size=expected_batch_size,
        step_size=step_size,
    )
