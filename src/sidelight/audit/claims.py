"""What a method claims: ε at its δ, and the whole curve δ(ε) of the event that it is charged as."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from sidelight.methods.task import Method, Plan, Task
from sidelight.privacy import accountants
from sidelight.privacy.events import Event, NoOp, Relation

__all__ = ["Claim", "claim_of"]


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
