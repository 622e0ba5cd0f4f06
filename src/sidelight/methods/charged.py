"""A linear fit under its contract: plan, check, charge, read, run, statement."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from sidelight.arrays import Array, is_sparse
from sidelight.clipping import Details
from sidelight.data.rows import PrivateRows
from sidelight.errors import NotPrivateWarning, users_line
from sidelight.methods.task import Fitted, Method, Task, check_method
from sidelight.privacy.contract import Contract, Payer
from sidelight.privacy.noise import Noise
from sidelight.privacy.observers import Observer
from sidelight.privacy.statement import PrivacyStatement

__all__ = ["fit_charged"]


def fit_charged(
    method: Method,
    task: Task,
    *,
    read: Callable[[], PrivateRows],
    payer: Payer | None,
    noise: Noise,
    assumptions: tuple[str, ...] = (),
    details: Details | None = None,
    observers: tuple[Observer, ...] = (),
) -> tuple[Fitted, PrivacyStatement]:
    """Fit `method` to the rows that `read` returns, which is called once, after the charge.

    `task.rows` are unread (`data.unread`). The plan must cost at most the task's budget; it is charged to the
    ledger, or without one to an account of its own, so that a run which releases more than it planned is
    stopped either way. A run that fails after the charge has spent it.
    """
    check_method(method, task)
    plan = method.plan(task)
    contract = Contract(
        method=method.name,
        event=plan.event,
        filtered=plan.filtered,
        relation=task.relation,
        epsilon=task.epsilon,
        delta=task.delta,
        n=task.n,
        private=method.private,
        details={**plan.details, **(details or {})},
        assumptions=(*plan.assumptions, *assumptions),
        payer=payer,
        observers=observers,
    )
    with ExitStack() as stack:
        if not method.private:
            stack.enter_context(_warned_once(method))
        run, account = contract.begin()
        stack.enter_context(run)
        rows = read()
        contract.key(noise, run, *_identity(method, task))
        rows.bind(noise)
        ready = replace(task, rows=rows, observers=observers)
        fitted = method.run(ready, plan, account=account, noise=noise)
    return fitted, contract.statement(run, notes=fitted.notes, assumptions=noise.assumptions)


def _identity(method: Method, task: Task) -> tuple[str | Array, ...]:
    """What decides a linear fit besides its plan and its private records."""
    settings = (repr(method), repr(task.loss), task.p, task.max_norm, task.regularization, task.target_bound)
    named = re.sub(r" at 0x[0-9a-f]+", "", repr(settings))  # an address differs from run to run
    public = task.public.X
    parts = (public.data, public.indices, public.indptr) if is_sparse(public) else (public,)
    return named, *parts, task.public.y


def _warned_once(method: Method) -> warnings.catch_warnings[None]:
    """Warn for a method that is not private, and keep the method from doing it a second time."""
    warnings.warn(
        f"{method.name} uses the private records without protection: its result carries no guarantee",
        NotPrivateWarning,
        stacklevel=users_line(),
    )
    return warnings.catch_warnings(action="ignore", category=NotPrivateWarning)
