"""Did the private records help? The gain over public records alone, with its interval.

Two sources, the better first: noisy means over private records, which are part of the plan
(`methods.paid_comparison`), or public rows that were held out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sidelight.numbers import pretty
from sidelight.report.card import number
from sidelight.scoring import NAMES

SHARES = ("accuracy", "balanced_accuracy")
_NORMAL = 1.96  # a 95 % interval is so many standard errors


@dataclass(frozen=True)
class Gain:
    """By how much the model is better than public records alone.

    Args:
        score: of what.
        value, error: the gain, and its standard error; None if that is not known.
        unit: behind a number: " points", " %" or nothing.
        where: on which records it was measured.
        returned: whether the private model was returned.
    """

    score: str
    value: float
    error: float | None
    unit: str
    where: str
    returned: bool = True

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.error is None:
            return None
        return self.value - _NORMAL * self.error, self.value + _NORMAL * self.error

    @property
    def verdict(self) -> str:
        """Whether the private records helped, and no more than the interval says."""
        if not self.returned:
            return "The private records did not help: the model of the public records alone was returned."
        low, high = self.interval or (self.value, self.value)
        if low > 0:
            return "The private records helped."
        return "The private records did not help." if high < 0 else "This cannot tell whether they helped."

    @property
    def size(self) -> str:
        """+1.24 points (95 % interval: +0.53 to +1.94)."""
        ends = self.interval
        around = "" if ends is None else f" (95\u202f% interval: {_signed(ends[0])} to {_signed(ends[1])})"
        return f"{_signed(self.value)}{self.unit}{around}"

    def __str__(self) -> str:
        return f"{self.score} {self.size} over public records alone, {self.where}. {self.verdict}"


def gain_over_public(scores: Mapping[str, object], details: Mapping[str, object]) -> Gain | None:
    """From what a fit knows of its scores; None if nothing was compared."""
    compared = details.get("compared_with_public", scores.get("private"))
    found = _on_private_records(compared) if isinstance(compared, Mapping) else None
    return found or _on_held_out_rows(scores)


def _on_private_records(found: Mapping[str, object]) -> Gain | None:
    names = ("value", "error", "loss_public", "accuracy", "accuracy_public", "accuracy_error")
    known = {name: value for name in names if (value := _finite(found.get(name))) is not None}
    where, returned = "on private records, with noise, inside this budget", found.get("kept") is not False
    if {"accuracy", "accuracy_public", "accuracy_error"} <= set(known):
        value, error = known["accuracy"] - known["accuracy_public"], math.sqrt(2) * known["accuracy_error"]
        return Gain("accuracy", 100 * value, 100 * error, " points", where, returned)
    if not {"value", "error", "loss_public"} <= set(known) or known["loss_public"] <= 0:
        return None
    scale = 100 / known["loss_public"]
    name = "squared error" if found.get("loss") == "square" else "log loss"
    return Gain(
        f"reduction of the {name}", scale * known["value"], scale * known["error"], " %", where, returned
    )


def _on_held_out_rows(scores: Mapping[str, object]) -> Gain | None:
    mine, theirs = (_finite(scores.get(name)) for name in ("public_validation", "only_public"))
    if mine is None or theirs is None:
        return None
    name, error = str(scores.get("name", "score")), _finite(scores.get("difference_error"))
    value = theirs - mine if lower_is_better(name) else mine - theirs
    share = 100 if name in SHARES else 1
    rows = scores.get("rows")
    where = f"on {rows:,} held-out public rows" if isinstance(rows, int) else "on held-out public rows"
    title = NAMES.get(name, name.replace("_", " "))
    if lower_is_better(name):
        title = f"reduction of the {title}"
    return Gain(
        title, share * value, None if error is None else share * error, " points" * (share > 1), where
    )


def lower_is_better(name: str) -> bool:
    """Is this the name of a loss or an error?"""
    return any(word in name.lower() for word in ("loss", "error", "mse", "mae", "deviance"))


def _finite(value: object) -> float | None:
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{pretty(value, 3)}"
