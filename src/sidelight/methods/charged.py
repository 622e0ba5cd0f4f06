"""Plan, check, charge, read, run: in this order, for every method."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from sidelight.data.rows import PrivateRows
from sidelight.errors import InputError, NotPrivateWarning, PrivacyConditionError
from sidelight.methods.certified import Certified
from sidelight.methods.task import Fitted, Method, Plan, Task, check_method
from sidelight.privacy import accountants
from sidelight.privacy.ledger import Ledger, Run
from sidelight.privacy.noise import Noise
from sidelight.privacy.statement import PrivacyStatement, plain

__all__ = ["Purse", "fit_charged", "open_purse"]

_ROUNDING = 1e-6  # relative; a plan is calibrated to its budget by bisection


@dataclass(frozen=True)
class Purse:
    """Who pays: a dataset in a ledger."""

    ledger: Ledger
    dataset: str


def open_purse(ledger: Ledger | str | os.PathLike[str] | None, dataset: str | None) -> Purse | None:
    """The ledger (opened, if it is a path) and the dataset in it, which may be left out if there is one."""
    if ledger is None:
        if dataset is not None:
            raise InputError("dataset= names a dataset in a ledger; pass ledger= as well")
        return None
    book = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
    if dataset is None:
        known = list(book.datasets())
        if len(known) != 1:
            raise InputError(f"the ledger has {len(known)} datasets; say which one with dataset=")
        dataset = known[0]
    return Purse(book, dataset)


def fit_charged(
    method: Method,
    task: Task,
    *,
    read: Callable[[], PrivateRows],
    purse: Purse | None,
    noise: Noise,
    assumptions: tuple[str, ...] = (),
    details: dict[str, Any] | None = None,
) -> tuple[Fitted, PrivacyStatement]:
    """Fit `method` to the rows that `read` returns, which is called once, after the charge.

    `task.rows` are unread (`data.unread`). The plan must cost at most the task's budget; it is charged to the
    ledger, or without one to an account of its own, so that a run which releases more than it planned is
    stopped either way. A run that fails after the charge has spent it.
    """
    check_method(method, task)
    plan = method.plan(task)
    spent = _cost(method, plan, task)
    told = {**plan.details, **(details or {})}
    with ExitStack() as stack:
        if not method.private:
            stack.enter_context(_warned_once(method))
        run = stack.enter_context(_begin(method, plan, task, purse, told))
        account = Certified(run, plan.event, relation=task.relation) if plan.filtered else run
        fitted = method.run(replace(task, rows=read()), plan, account=account, noise=noise)
    statement = PrivacyStatement(
        epsilon=spent,
        delta=task.delta,
        relation=task.relation,
        method=method.name,
        plan=plan.event,
        assumptions=_unique(*plan.assumptions, *assumptions, *noise.assumptions, _coverage(purse)),
        details={"epsilon_requested": task.epsilon, **told, "notes": list(fitted.notes)},
        ledger=_receipt(purse, run),
    )
    return fitted, statement


def _cost(method: Method, plan: Plan, task: Task) -> float:
    """ε of the plan, by an accountant that the method has no say in."""
    if not method.private:
        return math.inf
    spent = accountants.epsilon(plan.event, delta=task.delta, relation=task.relation)
    if not spent <= task.epsilon * (1 + _ROUNDING):
        raise PrivacyConditionError(
            f"the plan of {method.name} costs epsilon={spent:.6g} at delta={task.delta:.3g}, which is more "
            f"than the {task.epsilon:.6g} it was given. Nothing was charged, and no private record was read"
        )
    return spent


def _begin(method: Method, plan: Plan, task: Task, purse: Purse | None, details: dict[str, Any]) -> Run:
    if purse is None:
        # The account of this fit alone: it compares every release with the plan and remembers nothing.
        return Run(0, plan.event, rule="exact", covered_by_filter=plan.filtered, settle=lambda *_: None)
    return purse.ledger.begin(
        purse.dataset,
        plan.event,
        relation=task.relation,
        method=method.name,
        note=f"fit on {task.n} records",
        details=plain(details),
        covered_by_filter=plan.filtered,
    )


def _warned_once(method: Method) -> warnings.catch_warnings[None]:
    """Warn for a method that is not private, and keep the method from doing it a second time."""
    warnings.warn(
        f"{method.name} uses the private records without protection: its result carries no guarantee",
        NotPrivateWarning,
        stacklevel=4,
    )
    return warnings.catch_warnings(action="ignore", category=NotPrivateWarning)


def _coverage(purse: Purse | None) -> str:
    rest = "scores on private records, choices made by them, or anything else learned from private records"
    if purse is None:
        return f"only this fit is covered: not other fits on the same records (there is no ledger), {rest}"
    return f"the ledger adds this fit to the others of dataset {purse.dataset!r}; it does not cover {rest}"


def _receipt(purse: Purse | None, run: Run) -> dict[str, Any] | None:
    if purse is None:
        return None
    return {"ledger": repr(purse.ledger), "dataset": purse.dataset, "run": run.number}


def _unique(*lines: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))
