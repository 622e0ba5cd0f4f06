"""What a method claims, and what an audit found, in words and numbers that a report can show."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sidelight.arrays import Json
from sidelight.methods.task import Method, Plan, Task
from sidelight.privacy import accountants
from sidelight.privacy.contract import plain
from sidelight.privacy.events import Event, NoOp, Relation

__all__ = ["AuditResult", "Claim", "Finding", "Kind", "claim_of"]


# ---------------------------------------------------------------------------------------------------
# the claim: ε at its δ, and the whole curve δ(ε) of the event that it is charged as


@dataclass(frozen=True)
class Claim:
    """The guarantee that an audit tries to refute."""

    event: Event
    relation: Relation
    delta: float
    private: bool = True
    filtered: bool = False
    budget: float = math.inf  # ε that the method was given

    @functools.cached_property
    def epsilon(self) -> float:
        """ε at δ, by an accountant that the method has no say in; infinity if nothing is claimed."""
        if not self.private:
            return math.inf
        if isinstance(self.event, NoOp):
            return 0.0
        return accountants.epsilon(self.event, delta=self.delta, relation=self.relation)

    def delta_at(self, epsilon: float) -> float:
        """The least δ that is claimed with this ε."""
        if not self.private:
            return 1.0
        if isinstance(self.event, NoOp):
            return 0.0
        return min(1.0, accountants.delta(self.event, epsilon=epsilon, relation=self.relation))


def claim_of(method: Method, task: Task, plan: Plan) -> Claim:
    """The claim of a planned run."""
    return Claim(plan.event, task.relation, task.delta, method.private, plan.filtered, task.epsilon)


# ---------------------------------------------------------------------------------------------------
# the verdict

Kind = Literal["neighbour replay", "many-run", "one-run"]
KINDS: tuple[Kind, ...] = ("neighbour replay", "many-run", "one-run")


@dataclass(frozen=True)
class Finding:
    """One broken promise: which one, and what was seen. It quotes no record."""

    promise: str
    seen: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.seen}"


def failed(error: Exception) -> Finding:
    """A run that ended in an error: nothing is known of the rest."""
    return Finding("a run on synthetic records ends well", f"{type(error).__name__}: {error}")


def repeats(seed: int) -> range:
    """The seeds of an audit and of its repetitions, which follow only if it speaks against the claim."""
    return range(seed, seed + 3 * 10**6, 10**6)


@dataclass(frozen=True)
class AuditResult:
    """The verdict of one audit of one method.

    An audit can prove a claim wrong; it cannot prove one right. `passed` says that it found nothing.

    Args:
        kind: which audit.
        method: the name of what was audited.
        relation: the neighbouring relation of the claim.
        claimed_epsilon: ε that the method's events cost at `delta`; infinity if it claims nothing.
        lower_bound: ε that the audit proves at `delta` with probability `confidence`. A neighbour replay
            proves no ε: it is 0 there, and `details["largest_share"]` is the largest move of a private sum
            in units of its declared sensitivity.
        findings: every broken promise, named.
        details: sizes, seeds and further numbers; JSON-able.
    """

    kind: Kind
    method: str
    relation: Relation
    claimed_epsilon: float
    lower_bound: float
    delta: float
    confidence: float
    findings: tuple[Finding, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the claim."""
        return not self.findings

    def to_dict(self) -> Json:
        """Everything, as values that json.dumps writes."""
        return {
            "kind": self.kind,
            "method": self.method,
            "relation": self.relation,
            "claimed_epsilon": plain(float(self.claimed_epsilon)),
            "lower_bound": plain(float(self.lower_bound)),
            "delta": self.delta,
            "confidence": self.confidence,
            "passed": self.passed,
            "findings": [{"promise": finding.promise, "seen": finding.seen} for finding in self.findings],
            "details": plain(self.details),
        }

    def __str__(self) -> str:
        claim = "no claim" if math.isinf(self.claimed_epsilon) else f"claimed ε {self.claimed_epsilon:.4g}"
        verdict = "passed" if self.passed else "; ".join(map(str, self.findings))
        proven = "" if self.kind == "neighbour replay" else f", proven ε ≥ {self.lower_bound:.4g}"
        return f"{self.method} ({self.kind}, {self.relation}): {claim}{proven}: {verdict}"
