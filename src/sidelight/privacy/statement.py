"""What a fit says about its privacy: the numbers, the events behind them, and what must be true for them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from sidelight.arrays import Json
from sidelight.errors import PrivacyWarning, users_line
from sidelight.numbers import plain_up, right_in
from sidelight.privacy import conversions, events
from sidelight.privacy.events import Event, Relation

WEAK_EPSILON = 10.0  # at this ε what comes out may be 22,026 times as likely with a record as without it


class Receipt(TypedDict):
    """Where a charge is written, and what the ledger checked of the records."""

    ledger: str
    dataset: str
    run: int
    entry: int
    records: str


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of one fit.

    Args:
        epsilon: what the plan costs at `delta`: at most the budget; 0 if no private record was used, infinity
            if the method is not private.
        delta: the δ at which `epsilon` holds.
        relation: which datasets are neighbors.
        method: the name of the method.
        plan: the event that was charged; it bounds everything that was released.
        assumptions: what must be true for the guarantee to hold, and what it leaves out.
        details: the choices that were made and their reasons; public.
        ledger: where the charge is written: the ledger, the dataset in it, the number of the run.
        unit: what neighboring datasets differ in: one "record", or the column that names persons, all of
            whose rows count as one.
    """

    epsilon: float
    delta: float
    relation: Relation
    method: str
    plan: Event
    assumptions: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)
    ledger: Receipt | None = None
    unit: str = "record"

    @property
    def events(self) -> tuple[Event, ...]:
        """What was charged, one entry per kind of event."""
        return tuple(events.repeat(part, count) for part, count in events.elementary(self.plan).items())

    @property
    def returned(self) -> str:
        """Which model `auto` returned, and why, in a sentence; empty for other methods."""
        return str(self.details.get("returned", ""))

    @property
    def stopped(self) -> str:
        """What a run that ended before its plan did left out, in a sentence; empty for all others."""
        found = self.details.get("stopped")
        return str(found.get("summary", "")) if isinstance(found, Mapping) else ""

    @property
    def health(self) -> str:
        """What the health check found, or why there was none, in a sentence; empty for older statements."""
        found = self.details.get("health_check")
        return str(found.get("summary", "")) if isinstance(found, Mapping) else ""

    def to_dict(self) -> Json:
        """Everything, as JSON values."""
        return {
            "epsilon": plain(self.epsilon),
            "delta": self.delta,
            "relation": self.relation,
            "unit": self.unit,
            "method": self.method,
            "events": [events.to_json(event) for event in self.events],
            "assumptions": list(self.assumptions),
            "details": plain(self.details),
            "ledger": plain(self.ledger),
        }

    @property
    def _whose(self) -> str:
        return "" if self.unit == "record" else f" for all rows of a person (by {self.unit})"

    def __str__(self) -> str:
        lines = [
            *([f"returned: {self.returned}"] if self.returned else []),
            f"({plain_up(self.epsilon, 6)}, {plain_up(self.delta, 3)})-differential privacy, "
            f"{self.relation}{self._whose}, by {self.method}"
            if math.isfinite(self.epsilon)
            else f"no privacy: {self.method} carries no guarantee",
            f"charged: {events.describe(self.plan)}",
            *([f"stopped: {self.stopped}"] if self.stopped else []),
            *([f"health check: {self.health}"] if self.health else []),
            *(f"assumes: {assumption}" for assumption in self.assumptions),
        ]
        return "\n".join(lines)


def plain(value: object) -> Any:
    """The value in the types of JSON: no NumPy, no tuples, infinity and NaN as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Event):
        return events.to_json(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "infinity", -math.inf: "-infinity"}.get(value, "nan")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def is_weak(epsilon: float) -> bool:
    """Whether ε promises next to nothing. Two digits decide: a plan calibrated to 10 may cost 9.99."""
    return float(f"{epsilon:.2g}") >= WEAK_EPSILON


def warn_of_epsilon(epsilon: float) -> bool:
    """Give one PrivacyWarning, and return True, where ε promises next to nothing.

    That is, against somebody who knows the other records. The share is that of the worst mechanism with this
    ε; a report has that of the one that ran.
    """
    if not math.isfinite(epsilon) or not is_weak(epsilon):
        return False
    warnings.warn(
        f"ε = {epsilon:.4g} protects little: by ε alone, an attacker who knows every other record "
        f"{right_in(conversions.right_at_most(epsilon, 0.0))}; the report has the bound for the mechanism "
        "that ran, which may be lower",
        PrivacyWarning,
        stacklevel=users_line(),
    )
    return True
