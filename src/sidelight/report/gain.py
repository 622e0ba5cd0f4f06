"""Did the private records help? The gain over public records alone, with its interval.

Two sources, the better first: noisy means over private records, which are part of the plan
(`methods.paid_comparison`), or public rows that were held out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sidelight.numbers import count, percent, pretty
from sidelight.report.card import number
from sidelight.scoring import NAMES

SHARES = ("accuracy", "balanced_accuracy")
_REDUCTION = "reduction of the "
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
        private, public: the score with private records and without, if both are known.
    """

    score: str
    value: float
    error: float | None
    unit: str
    where: str
    returned: bool = True
    private: float | None = None
    public: float | None = None

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

    def levels(self, public_records: int | None = None) -> str:
        """From what to what: "78.7 % correct with private records, 58.7 % from 50 public records alone"."""
        if self.private is None or self.public is None:
            return ""
        first, second = (self._level(value) for value in (self.private, self.public))
        if self.score == NAMES["accuracy"]:
            first += " correct"
        else:
            first = f"{self.score.removeprefix(_REDUCTION)} {first}"
        many = "" if public_records is None else f"{count(public_records)} "
        return f"{first} with private records, {second} from {many}public records alone"

    def _level(self, value: float) -> str:
        return percent(value) if self.unit == " points" else pretty(value, 3)

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
    where, returned = "on the private records, with noise, inside this ε", found.get("kept") is not False
    if {"accuracy", "accuracy_public", "accuracy_error"} <= set(known):
        value, error = known["accuracy"] - known["accuracy_public"], math.sqrt(2) * known["accuracy_error"]
        levels = known["accuracy"], known["accuracy_public"]
        return Gain("accuracy", 100 * value, 100 * error, " points", where, returned, *levels)
    if not {"value", "error", "loss_public"} <= set(known) or known["loss_public"] <= 0:
        return None
    scale = 100 / known["loss_public"]
    name = "squared error" if found.get("loss") == "square" else "log loss"
    return Gain(f"{_REDUCTION}{name}", scale * known["value"], scale * known["error"], " %", where, returned)


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
        title = f"{_REDUCTION}{title}"
    error = None if error is None else share * error
    return Gain(title, share * value, error, " points" * (share > 1), where, True, mine, theirs)


def lower_is_better(name: str) -> bool:
    """Is this the name of a loss or an error?"""
    return any(word in name.lower() for word in ("loss", "error", "mse", "mae", "deviance"))


def _finite(value: object) -> float | None:
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{pretty(value, 3)}"
