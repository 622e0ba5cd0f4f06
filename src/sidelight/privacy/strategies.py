"""The matrix C that correlates the noise of steps: G + C⁻¹z is released, for z with independent entries.

C is lower triangular and Toeplitz (its first column says it all) with a diagonal of 1, and so is C⁻¹. One of
them has few bands, so that the noise of a step needs few earlier draws. What is released is C⁻¹(CG + z): a
Gaussian release of CG, seen through an invertible map. That the gradients of a step depend on what was
released before changes nothing (Theorem 2.1 of Denisov et al., NeurIPS 2022, arXiv:2202.08312v3): C is lower
triangular.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.signal import lfilter

from sidelight.arrays import Floats
from sidelight.errors import InputError

_UNIT = 2.0**-53


@dataclass(frozen=True)
class Strategy:
    """A Toeplitz strategy by its bands.

    Args:
        coefficients: the first column of C, which is 0 below these; they begin with 1.
        inverse: whether they are those of C⁻¹ instead (Kalinin et al., arXiv:2505.12128); C is then full.
    """

    coefficients: tuple[float, ...]
    inverse: bool = False

    def __post_init__(self) -> None:
        given = self.coefficients
        if not given or given[0] != 1 or not all(math.isfinite(c) for c in given):
            raise InputError("the bands of a strategy are finite numbers, of which the first is 1")

    @property
    def bands(self) -> int:
        """Bands of C, or of C⁻¹: one more than the draws that are kept."""
        return len(self.coefficients)

    def column(self, steps: int) -> Floats:
        """The first column of C, of so many steps."""
        return self._series(steps, inverse=self.inverse)

    def weights(self, steps: int) -> Floats:
        """The first column of C⁻¹: what a draw adds to the noise of its own step and of later ones."""
        return self._series(steps, inverse=not self.inverse)

    def _series(self, steps: int, *, inverse: bool) -> Floats:
        own = np.asarray(self.coefficients)
        if inverse:
            return impulse(own, steps)
        return np.pad(own[:steps], (0, max(0, steps - len(own))))

    def spread(self, step: int) -> float:
        """The standard deviation of the noise of a step, in units of that of a draw."""
        return float(np.sqrt(self._spreads(1 << max(6, step.bit_length()))[step]))

    def _spreads(self, steps: int) -> Floats:
        found: Floats = self._known.get(steps, np.zeros(0))
        if not found.size:
            found = self._known[steps] = np.cumsum(self.weights(steps) ** 2)
        return found

    @cached_property
    def _known(self) -> dict[int, Floats]:
        return {}

    def sensitivity(self, *, steps: int, separation: int, participations: int) -> float:
        """How far one record moves CG, in units of its largest contribution to a step.

        It may take part in `participations` steps at most, any two of them `separation` apart at least.

        Let X = CᵀC. With contributions u_t no longer than 1 the square of the move is Σ_{s,t} X_st u_s·u_t,
        which is at most Σ |X_st| over the steps of a pattern.
        - No two columns of a pattern overlap (bands ≤ separation): Σ ‖c_t‖², exactly. Columns are cut off at
          the last step and so never grow: the steps 0, separation, 2·separation, … are the worst.
        - Else, for coefficients that are at least 0 and never rise, those steps are the worst as well
          (Theorem 2 of Kalinin & Lampert, NeurIPS 2024, arXiv:2405.13763), exactly. For others it is a bound:
          |X_st| grows with each coefficient's size, and the least sequence above them that never rises is
          taken.
        """
        for name, value in (("steps", steps), ("separation", separation), ("participations", participations)):
            if value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        count = min(participations, -(-steps // separation))
        column = np.abs(self.column(steps)) + self._column_error(steps)
        if not np.isfinite(column @ column):
            return math.inf
        rounding = 1 + 8 * _UNIT * (steps + self.bands)  # of the sums below
        if count == 1:
            return math.sqrt(float(column @ column)) * rounding
        if not self.inverse and self.bands <= separation:
            # All columns but the last few are whole.
            lengths = np.cumsum(column**2)
            left = steps - 1 - separation * np.arange(count)
            return math.sqrt(math.fsum(lengths[left])) * rounding
        never_rising = np.maximum.accumulate(column[::-1])[::-1]
        total = np.zeros(steps)
        for start in range(0, count * separation, separation):
            total[start:] += never_rising[: steps - start]
        return math.sqrt(float(total @ total)) * rounding

    def _column_error(self, steps: int) -> float:
        """How far an entry of C's computed column y may be off: bands of C are exact.

        The recursion y_t = −Σ_j d_j y_{t−j} adds ε_t with |ε_t| ≤ (b + 1)u·Σ_j |d_j y_{t−j}|, and each grows
        as y does: the error is y ∗ ε, of which no entry is above max|y|·‖ε‖₁ ≤ max|y|·(b + 1)u·‖d‖₁‖y‖₁.
        Twice that covers the terms of second order.
        """
        if not self.inverse:
            return 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            y = np.abs(self.column(steps))
            size = float(np.abs(self.coefficients).sum())
            return float(2 * (self.bands + 1) * _UNIT * size * y.sum() * y.max())


def impulse(denominator: Floats, steps: int) -> Floats:
    """The first coefficients of 1/p for a power series p with p(0) = 1."""
    one = np.zeros(steps)
    one[0] = 1.0
    return np.asarray(lfilter([1.0], denominator, one), dtype=np.float64)


def inverse_square_root(bands: int, denominator: Floats) -> Strategy:
    """C⁻¹ with the first coefficients of √p, where 1/p is the response of an iterate to the noise of a step.

    For plain sums p = 1 − x: the banded inverse square root (Kalinin et al. 2025, arXiv:2505.12128).
    """
    root = np.zeros(bands)
    root[0] = 1.0
    own = np.pad(np.asarray(denominator, dtype=np.float64)[:bands], (0, max(0, bands - len(denominator))))
    for j in range(1, bands):  # root² = p, coefficient by coefficient
        root[j] = (own[j] - root[1:j] @ root[j - 1 : 0 : -1]) / 2
    return Strategy(tuple(float(c) for c in root), inverse=True)
