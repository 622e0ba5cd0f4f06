"""Clipping as a part of a recipe: at C, or automatic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from sidelight.arrays import V, Vector
from sidelight.clipping import smallest, spacing
from sidelight.errors import InputError
from sidelight.methods.part import FixedClip

if TYPE_CHECKING:
    from sidelight.methods.setting import Setting

__all__ = ["Automatic", "Flat"]


@dataclass(frozen=True)
class Flat(FixedClip):
    """clip_C(v) = v·min(1, C/‖v‖), with one C for the whole run.

    None takes that of the problem, which is public: for a linear model the bound that the loss itself gives
    (its Lipschitz constant times the longest row), and for the square loss the longest gradient at w = 0,
    from the declared bound on targets; for a network 1.
    """

    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None:
            _check_bound("clip_norm", self.clip_norm)

    def begin(self, setting: Setting, params: Vector) -> Flat:
        return Flat(setting.problem.default_clip_norm()) if self.clip_norm is None else self

    @property
    def bound(self) -> float:
        if self.clip_norm is None:
            raise InputError("Flat() takes its bound from a problem when a run begins; pass clip_norm")
        return self.clip_norm

    @property
    def flat(self) -> bool:
        return True

    def factors(self, norms: V) -> V:
        # A few ulp below C: the quotient, its product with the norm and the sum may each round upwards.
        target = self.bound * (1 - 4 * spacing(norms))
        return target / norms.clip(min=target)


@dataclass(frozen=True)
class Automatic(FixedClip):
    """Automatic clipping, v·R/(‖v‖ + γ): every contribution is scaled, none reaches R.

    Bu, Wang, Zha & Karypis (arXiv:2206.07136v3). γ = 0 normalises; the zero vector stays zero.
    """

    bound: float = 1.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        _check_bound("bound", self.bound)
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise InputError(f"gamma must be a number of at least 0, not {self.gamma!r}")

    def factors(self, norms: V) -> V:
        # The floor keeps the factor finite where γ = 0 meets a norm of (nearly) 0; it only ever shortens.
        target = self.bound * (1 - 4 * spacing(norms))
        return target / (norms + self.gamma).clip(min=smallest(norms) * max(1.0, self.bound))


def _check_bound(name: str, value: object) -> None:
    if not (isinstance(value, Real) and math.isfinite(float(value)) and float(value) > 0):
        raise InputError(f"{name} must be a positive number, not {value!r}")
