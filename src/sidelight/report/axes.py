"""Scales and ticks of a chart: where a value goes, and which values are written beside an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sidelight.report.numbers import count, percent, pretty, scientific

__all__ = ["Axis", "Kind", "axis_for"]

Kind = Literal["linear", "log"]


@dataclass(frozen=True)
class Axis:
    """A range of values on a range of pixels."""

    low: float
    high: float
    start: float  # the pixel of `low`
    end: float
    kind: Kind
    ticks: tuple[float, ...]
    percent: bool = False

    def pixel(self, value: float) -> float:
        """The pixel of a value, kept within the axis."""
        if self.kind == "log":
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        share = min(max(share, 0.0), 1.0)
        return round(self.start + share * (self.end - self.start), 2)

    def label(self, tick: float) -> str:
        """A tick as text; all ticks of a linear axis have as many decimals."""
        if self.percent:
            return percent(tick)
        if self.kind == "log":
            whole = abs(math.log10(tick) - round(math.log10(tick))) < 1e-9
            return scientific(tick) if whole and not 1e-2 <= tick <= 1e3 else pretty(tick)
        top = max(abs(self.low), abs(self.high))
        if tick == 0 or 1e-4 <= top < 1e6:
            gap = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
            places = next((k for k in range(9) if abs(round(gap, k) - gap) < 1e-6 * gap), 9)
            if not places or not tick:
                return count(round(tick))
            return f"{tick:.{places}f}".replace("-", "−")
        return scientific(tick)


def axis_for(
    values: Sequence[float],
    *,
    start: float,
    end: float,
    kind: Kind = "linear",
    fixed: tuple[float, float] | None = None,
    zero: bool = False,
    percent: bool = False,
    most: int = 6,
    tight: bool = False,
    given: Sequence[float] = (),
) -> Axis:
    """An axis that holds all values; `fixed` says its ends, `zero` that 0 belongs to it.

    `tight` ends it at the values themselves instead of at ticks, as a time axis does; `given` are its ticks.
    """
    axis = _axis(values, start, end, kind, fixed, zero, percent, most, tight)
    return replace(axis, ticks=tuple(given)) if given else axis


def _axis(
    values: Sequence[float],
    start: float,
    end: float,
    kind: Kind,
    fixed: tuple[float, float] | None,
    zero: bool,
    percent: bool,
    most: int,
    tight: bool,
) -> Axis:
    low, high = (min(values), max(values)) if fixed is None else fixed
    if kind == "log":
        return _logarithmic(low, high, start, end, percent, most, keep=fixed is not None or tight)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high, tight = *_around(low), False
    gap = _nice((high - low) / max(most - 1, 1))
    if fixed is None and not tight:
        low, high = gap * math.floor(low / gap + 1e-9), gap * math.ceil(high / gap - 1e-9)
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    ticks = tuple(float(f"{gap * k:.12g}") for k in range(first, last + 1))
    return Axis(low, high, start, end, "linear", ticks, percent)


def _around(value: float) -> tuple[float, float]:
    """Room for a constant: from 0 to twice its size, or −1 to 1."""
    if value == 0:
        return -1.0, 1.0
    return (0.0, 2 * value) if value > 0 else (2 * value, 0.0)


def _logarithmic(
    low: float, high: float, start: float, end: float, percent: bool, most: int, *, keep: bool
) -> Axis:
    if high / low < 1.0001:
        low, high, keep = low / 10, high * 10, False
    if not keep:
        low, high = _outward(low, high)
    decades = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    every = max(1, math.ceil(len(decades) / most))
    steps = (1, 2, 5) if len(decades) <= 3 else (1,)
    found = [m * 10.0**k for k in decades for m in steps if k % every == 0]
    ticks = tuple(t for t in found if low * (1 - 1e-9) <= t <= high * (1 + 1e-9))
    return Axis(low, high, start, end, "log", ticks, percent)


def _outward(low: float, high: float) -> tuple[float, float]:
    """To 1, 2 or 5 times a power of ten."""
    below = [m * 10.0 ** (math.floor(math.log10(low)) + k) for k in (-1, 0) for m in (1, 2, 5)]
    above = [m * 10.0 ** (math.floor(math.log10(high)) + k) for k in (0, 1) for m in (1, 2, 5)]
    return max(b for b in below if b <= low * (1 + 1e-9)), min(a for a in above if a >= high * (1 - 1e-9))


def _nice(gap: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(gap))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= gap * (1 - 1e-9))
