"""auto: picks a method and its parameters from n, p, ε, δ, the loss and public records alone.

Nothing here looks at a private value, so the choice costs no privacy. Every choice is recorded with its
reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sidelight.erm.baselines import only_public
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.finishing import MeanLastHalf
from sidelight.methods.public_whitening import public_whitening
from sidelight.methods.task import Fitted, Method, Plan, Task
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account


@dataclass(frozen=True)
class Auto:
    """Chooses, then is the method that it chose."""

    name: str = "auto"
    relations: tuple[Relation, ...] = ("replace-one", "add-or-remove-one")
    needs_public: bool = False
    private: bool = True

    def choose(self, task: Task) -> tuple[Method, list[str]]:
        """The method, and why."""
        if task.public.n == 0:
            method = dp_sgd(momentum=0.8, finish=MeanLastHalf())
            return method, ["no public records: full-batch DP-SGD with averaging needs none"]
        return public_whitening(regression=task.target_bound is not None), ["public whitening"]

    def plan(self, task: Task) -> Plan:
        method, reasons = self.choose(task)
        plan = method.plan(task)
        details = {"chosen": method.name, "reasons": reasons, **plan.details}
        return Plan(plan.event, plan.filtered, details, plan.assumptions, {"method": method, "plan": plan})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        method: Any = plan.state["method"]
        fitted: Fitted = method.run(task, plan.state["plan"], account=account, noise=noise)
        fitted.notes.extend(plan.details["reasons"])
        return fitted


def auto() -> Auto:
    """The default method."""
    return Auto()


__all__ = ["Auto", "auto", "only_public"]
