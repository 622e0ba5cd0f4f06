"""How far public and private gradients are apart, from releases that training makes anyway.

Precision weighting takes the public gradient for an estimate of the private one that is off by chance alone:
in whitened coordinates by a squared length of v/m, with v = f C² that of one clipped gradient. Rows of
another month, or with wrong labels, are off by more. The difference of the two gradients tells, averaged over
the steps so far, since it hardly depends on the weights:

    D ← mean of (G_t − ĝ_t)                       both clipped alike; G_t is released, ĝ_t public
    E‖D‖² = p s²/t + v/n + v/m + ‖shift‖²         s² is the noise on each coordinate of a release
    κ ← κ / max(1, (‖D‖² − p s²/t − v/n − se)/(v/m))

This is the empirical Bayes estimate of the variance of public gradients around private ones. It costs
nothing, since it is computed from releases. Of 100 coordinates the sum of squares
is known to within a seventh, so that a shift as large as chance is seen long before the last step. se is what
noise and chance exceed once in a thousand, by the χ² of p coordinates: few of them, under much noise, say
nothing. Without a shift the weight stays what it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.special import chdtri

from sidelight.arrays import Floats, Vector, floats
from sidelight.clipping import Details
from sidelight.methods.parts import Blend

_BY_CHANCE = 1e-3
_FEWEST = 3.0  # the rule of three
_TOLD = 4.0  # times what chance explains: said in the statement


@dataclass(frozen=True)
class Chance:
    """Squared lengths of what separates private and public gradients if records are alike.

    Args:
        noise: on one release, p s².
        records: v, of one clipped gradient.
        n, batch: private records, and those in a step.
        m: public ones.
        dimension: p.
        whole: f m, how many public gradients of length C there are. Of fewer than three, v is a guess, as
            where public rows can be told apart without an error, and nothing is said.
    """

    noise: float
    records: float
    n: int
    batch: float
    m: int
    dimension: int
    whole: float = math.inf

    def ratio(self, squared: float, steps: int) -> float:
        """How many times as far off as by chance the public gradient is; 1 if chance explains it."""
        if self.whole < _FEWEST:
            return 1.0
        noise = self.noise / steps
        sampled = self.records * (1 / self.n + (1 / self.batch - 1 / self.n) / steps)
        public = self.records / self.m
        error = (float(chdtri(self.dimension, _BY_CHANCE)) / self.dimension - 1) * (noise + sampled + public)
        return max(1.0, (squared - noise - sampled - error) / public)


@dataclass
class MeasuredShift(Blend):
    """α ĝ + (1−α) G, with α = κ/(1 + κ), and κ smaller the further public gradients are off.

    Args:
        kappa: what public gradients weigh, compared with private ones, if records are alike.
        chance: how far they are off then.
    """

    kept: ClassVar[tuple[str, ...]] = ("ratio", "_steps", "_total")
    kappa: float
    chance: Chance
    details: Details = field(default_factory=dict)
    limit: float = math.inf
    ratio: float = 1.0
    _steps: int = 0
    _total: Floats = field(default_factory=lambda: np.zeros(1))

    def observe(self, private: Vector, public: Vector) -> None:
        """The two gradients of a step, clipped and under the metric."""
        self._steps += 1
        self._total = self._total + (floats(private) - floats(public))
        mean = self._total / self._steps
        self.ratio = self.chance.ratio(float(mean @ mean), self._steps)

    def weight_at(self, step: int) -> float:
        kappa = self.kappa / self.ratio
        return kappa / (1 + kappa)

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]  # it is read after the last step
        """For the statement."""
        if self.ratio < _TOLD:
            return ()
        far = f"{math.sqrt(self.ratio):.2g} times as far apart as chance explains"
        share = f"{100 * self.weight_at(0):.2g}\u202f% of the weight"
        return (f"public and private gradients are {far}: public records get {share}",)
