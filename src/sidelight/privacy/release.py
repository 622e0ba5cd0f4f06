"""The only way out for private values: BoundedSum → Released.

Private rows become a `BoundedSum` inside an oracle: a value, and how far one record can move it. Nothing but
this module reads the value. `release`, `release_correlated`, `release_on_grid`, `release_sketch`, `select`,
`perturbed_solution` and `private_process` charge the account, and only then draw noise; what they return is a
`Released`, which stays one under arithmetic with public values, since post-processing costs nothing.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import (
    AssumptionError,
    BudgetExceeded,
    LedgerError,
    PrivacyConditionError,
    PrivacyWarning,
    warn_charged,
)
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation, check_relation
from sidelight.privacy.noise import (
    Noise,
    Value,
    as_floats,
    discrete_gaussian,
    finite,
    here,
    is_tensor,
    on_host,
)
from sidelight.privacy.noise_checks import (
    Selection,
    check_correlated,
    check_gaussian,
    check_perturbation,
    check_selection,
    check_sketch,
)

if TYPE_CHECKING:
    from sidelight.privacy.correlation import Correlation
    from sidelight.privacy.filters import Rule
    from sidelight.privacy.ledger_book import Evidence


_RELEASE_TOKEN = object()  # only this module holds it, so only this module can make a Released
_GRID_SCALE = 2**20  # standard deviation of discrete noise, in grid cells


class Account(Protocol):
    """What is charged with an event before it happens, and may refuse it."""

    def charge(self, event: Event) -> None:
        """Record the event durably, or raise BudgetExceeded."""


class BoundedSum:
    """A private vector that one record moves by at most `sensitivity` (ℓ2; scores: each) under `relation`.

    The value is for `release` alone: it is not shown, compared, pickled or computed with. It is held in
    floating point (`noise.as_floats`): noise is not added to integers. A coordinate that is not finite is
    released as 0 plus noise.
    """

    __slots__ = ("_value", "relation", "sensitivity")

    def __init__(self, value: object, *, sensitivity: float, relation: Relation) -> None:
        if not (math.isfinite(sensitivity) and sensitivity >= 0):
            raise AssumptionError(f"a sensitivity is a finite number of at least 0, not {sensitivity!r}")
        self._value = as_floats(value)
        self.sensitivity = float(sensitivity)
        self.relation: Relation = check_relation(relation)

    def __repr__(self) -> str:
        return f"BoundedSum(private, sensitivity={self.sensitivity:.6g}, relation={self.relation!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a BoundedSum holds private values and is not pickled")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a BoundedSum holds private values; pass it to release()")

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("a BoundedSum holds private values and is not compared")

    def __bool__(self) -> bool:
        raise TypeError("a BoundedSum holds private values and has no truth value")


class Released:
    """A noisy value, and what public arithmetic computes from it."""

    __slots__ = ("_value",)
    __array_ufunc__ = None  # NumPy leaves `array * released` to the methods below

    def __init__(self, value: object, *, token: object) -> None:
        if token is not _RELEASE_TOKEN:
            raise PrivacyConditionError("a Released is made by sidelight.privacy.release alone")
        self._value = value

    def numpy(self) -> Value:
        """The value: an array (or a tensor) that is safe to publish."""
        return self._value

    def map(self, function: Callable[[Value], Value]) -> Released:
        """Post-process with a function of public values."""
        return Released(function(self._value), token=_RELEASE_TOKEN)

    def __add__(self, other: object) -> Released:
        return self.map(lambda v: v + _public(other))

    def __sub__(self, other: object) -> Released:
        return self.map(lambda v: v - _public(other))

    def __rsub__(self, other: object) -> Released:
        return self.map(lambda v: _public(other) - v)

    def __mul__(self, other: object) -> Released:
        return self.map(lambda v: v * _public(other))

    def __truediv__(self, other: object) -> Released:
        return self.map(lambda v: v / _public(other))

    def __matmul__(self, other: object) -> Released:
        return self.map(lambda v: v @ _public(other))

    def __rmatmul__(self, other: object) -> Released:
        return self.map(lambda v: _public(other) @ v)

    def __neg__(self) -> Released:
        return self.map(lambda v: -v)

    def __getitem__(self, key: object) -> Released:
        return self.map(lambda v: v[key])

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"Released({self._value!r})"


def _public(other: object) -> Value:
    if isinstance(other, BoundedSum):
        raise PrivacyConditionError("a private sum cannot be mixed into a released value; release it first")
    return other.numpy() if isinstance(other, Released) else other


def joined(parts: Sequence[BoundedSum]) -> BoundedSum:
    """The sum over all records, of which every part has some and no two have the same.

    Assumes: a part is a sum of one term per record, and two terms differ by no more than the sensitivity
    (under replace-one; else none is longer). A record is then in one part; one that is exchanged for a record
    of another part takes a term from the first and adds one to the second.
    """
    if len(parts) == 1:
        return parts[0]
    if not parts or len({part.relation for part in parts}) > 1:
        raise PrivacyConditionError("sums are joined under one relation, and there must be one at least")
    total = parts[0]._value
    for part in parts[1:]:
        total = total + part._value
    sensitivity = max(part.sensitivity for part in parts)
    return BoundedSum(total, sensitivity=sensitivity, relation=parts[0].relation)


def share_of(part: BoundedSum) -> Value:
    """The value of a part, for whoever adds all parts up and makes a BoundedSum of them: still private."""
    return part._value


def across(part: BoundedSum, add: Callable[[Value], Value | None]) -> BoundedSum | None:
    """The sum over parts that several processes hold, under the assumption of `joined`.

    `add` is given a copy of this process's part in float64, and returns the total where it is wanted, None
    elsewhere. Other processes that it goes to are trusted with it, as this one is: no noise is on it yet.
    """
    value = part._value
    total = add(value.double().clone() if is_tensor(value) else np.array(value, dtype=np.float64))
    if total is None:
        return None
    narrow = total.to(value.dtype) if is_tensor(value) else total.astype(value.dtype)
    return BoundedSum(narrow, sensitivity=part.sensitivity, relation=part.relation)


def release(total: BoundedSum, *, std: float, event: Event, account: Account, noise: Noise) -> Released:
    """The sum plus N(0, std²) in every coordinate, charged as `event`.

    `event` is what the sampler says happened. Its noise multiplier must be std / sensitivity: less
    noise than accounted is refused.
    """
    check_gaussian(
        event, std=std, sensitivity=total.sensitivity, relation=total.relation, dtype=total._value.dtype
    )
    account.charge(event)
    value = finite(total._value)
    own = noise.bound("release", repr(event), float(std), value) if noise.repeatable else noise
    noisy = own.normal_like(value, std=std)
    noisy += value
    return Released(noisy, token=_RELEASE_TOKEN)


def release_correlated(
    total: BoundedSum, *, correlation: Correlation, turn: int | None = None, account: Account, noise: Noise
) -> Released:
    """The sum of a step of a run whose noise is correlated; the first one charges the whole run.

    turn: the number of the step by which its records were chosen; None: the next. A step that failed before
    its release is passed over, and none is taken twice: turns would move together. The noise is that of
    `correlation`, times the event's noise multiplier and the sensitivity of this sum: in units of its
    sensitivity every step has the same noise, however the bound of contributions moves.
    """
    event = correlation.event
    std = event.noise_multiplier * total.sensitivity
    check_correlated(event, std=std, relation=total.relation, dtype=total._value.dtype)
    turn = correlation.step if turn is None else turn
    correlation.check(total._value, turn)
    account.charge(event if correlation.step == 0 else events.NoOp())
    value = finite(total._value)
    about = ("release correlated", repr(event), turn, float(std))
    own = noise.bound(*about, value) if noise.repeatable else noise
    noisy = correlation.at(turn, value, own)
    noisy *= std
    noisy += value
    return Released(noisy, token=_RELEASE_TOKEN)


def release_on_grid(total: BoundedSum, *, rho: float, account: Account, noise: Noise) -> Released:
    """The sum rounded to a grid, plus an exact discrete Gaussian: no floating-point attack, ρ-zCDP.

    Rounding each of p coordinates moves two neighboring sums apart by at most cell·√p more, which is in the
    sensitivity used. The noise has a standard deviation of 2²⁰ cells; the cell solves
    cell·2²⁰ = (sensitivity + cell·√p)/√(2ρ). Guarantee: ρ-zCDP by Theorem 14 of Canonne, Kamath & Steinke
    (arXiv:2004.00010v5). For releases of all records; sampled batches have no amplification here.
    """
    if not (rho > 0 and math.isfinite(rho)):
        raise AssumptionError(f"rho must be a positive number, not {rho!r}")
    value = on_host(finite(total._value))
    slack = _GRID_SCALE * math.sqrt(2 * rho) - math.sqrt(value.size)
    if slack <= 0:
        raise AssumptionError("rho is too small for this many coordinates on a grid; use release() instead")
    # A power of two, so that value/cell is exact and rounding is the only error.
    cell = 2.0 ** math.ceil(math.log2(max(total.sensitivity, 1e-300) / slack))
    account.charge(events.ZeroConcentrated(rho))
    largest = 2.0**62 * cell
    cells = np.rint(np.clip(value, -largest, largest) / cell)
    own = noise.bound("release on grid", float(rho), cell, value)
    noisy = cells.ravel() + discrete_gaussian(value.size, scale=_GRID_SCALE, noise=own)
    return Released(noisy.reshape(value.shape) * cell, token=_RELEASE_TOKEN)


def release_sketch(
    moment: BoundedSum, *, ridge: float, event: Event, account: Account, noise: Noise
) -> Released:
    """YᵀY for rows Y that are drawn from N(0, A + ridge·I), as many as the event says; A is a private matrix.

    That is what a sketch SX + √ridge·N of records X with A = XᵀX gives for standard Gaussian S and N, without
    drawing S. Assumes: A is a sum of one term c·x xᵀ per record (c ≥ 0), whose length is at most the
    sensitivity, or under replace-one at most 1/√2 of it (`oracles.linear.moments`). `event` must be that of
    this ridge, or it is refused.
    """
    rows = check_sketch(event, ridge=ridge, sensitivity=moment.sensitivity, relation=moment.relation)
    account.charge(event)
    value = on_host(finite(moment._value))
    try:
        values, vectors = np.linalg.eigh((value + value.T) / 2)
    except np.linalg.LinAlgError:  # never seen; whether it happens must not be an output
        values, vectors = np.zeros(len(value)), np.eye(len(value))
    roots = np.sqrt(np.maximum(values, 0.0) + ridge)
    own = noise.bound("release sketch", repr(event), float(ridge), value)
    drawn = (own.normal((rows, len(value))) * roots) @ vectors.T
    return Released(drawn.T @ drawn, token=_RELEASE_TOKEN)


def select(
    scores: BoundedSum,
    *,
    scale: float,
    mechanism: Selection = "exponential",
    monotone: bool = False,
    event: Event,
    account: Account,
    noise: Noise,
) -> int:
    """The index of the largest score plus noise of this scale (report noisy max).

    `exponential` adds Exp(scale) (McKenna & Sheldon 2020), `gumbel` adds Gumbel noise, which is the
    exponential mechanism. The sign is what makes it private: noise goes *onto* the scores that are maximized.
    The sensitivity of scores is that of each of them. Two may move apart by twice as much, or only as far as
    one moves if they are `monotone`: one more record raises none of them, or lowers none. A record replaced
    is one less and one more. `event` must be that of a selection with this scale, or it is refused.
    """
    apart = 1 if monotone and scores.relation == "add-or-remove-one" else 2
    check_selection(event, scale=scale, reach=apart * scores.sensitivity, mechanism=mechanism)
    account.charge(event)
    values = on_host(finite(scores._value))
    stream = noise.bound("select", mechanism, repr(event), float(scale), values).generator
    if mechanism == "exponential":
        drawn = stream.standard_exponential(values.size)
    else:
        drawn = stream.gumbel(size=values.size)
    return int(np.argmax(values + scale * drawn))


def perturbed_solution(
    solve: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    dimension: int,
    std: float,
    lipschitz: float,
    relation: Relation,
    event: Event,
    account: Account,
    noise: Noise,
) -> Released:
    """solve(b) for a Gaussian b that is drawn after the charge (objective perturbation).

    Here the noise is inside the problem and the solution is the output; `solve` must return the exact
    minimizer, or raise without saying anything of the data. One record's gradient is no longer than
    `lipschitz`: `event` must account for noise of this size on it, under this relation, or it is refused. For
    its log-determinant, which is that of the problem inside of `solve`, the caller vouches.
    """
    check_perturbation(event, std=std, lipschitz=lipschitz, relation=relation)
    account.charge(event)
    own = noise.bound("perturbed solution", repr(event), float(std), dimension)
    return Released(solve(own.normal(dimension, std=std)), token=_RELEASE_TOKEN)


def private_process(
    process: Callable[[Noise], NDArray[np.float64]], *, event: Event, account: Account, noise: Noise
) -> Released:
    """process(noise) for an algorithm that adds noise as it goes, and of which only the end is released.

    The caller vouches that the law of what `process` returns, and of nothing else, satisfies `event` (noisy
    iterations that stay private, an approximate solution with noise on top). It runs after the charge, so
    that no noise exists before, and must draw from the source it is given.
    """
    account.charge(event)
    return Released(process(noise.bound("private process", repr(event))), token=_RELEASE_TOKEN)


# ---------------------------------------------------------------------------------------------------
# the account of a run: what its plan lets it release


class Run:
    """What one run may release: the events of its plan, each as often as planned, and nothing else.

    The plan is in the ledger already; a charge here only checks that the plan covers it. As a context
    manager, a run that leaves without an exception is finished, and one that does not keeps its full charge.
    """

    def __init__(
        self,
        number: int,
        plan: Event,
        *,
        rule: Rule,
        covered_by_filter: bool,
        settle: Callable[[int, Event], None],
        evidence: Evidence | None = None,
        nonce: str = "",
        order: int = 0,
    ) -> None:
        self.number = number  # of its entry in the ledger
        self.order = order  # the first run of a dataset is 1
        self.evidence = evidence  # what the ledger checked of its records; None: nothing
        self.nonce = nonce  # no other run of any ledger has it
        self.plan = plan
        self._left = events.elementary(plan)
        self._released: Counter[Event] = Counter()
        self._whole = rule != "filter" or covered_by_filter
        self._covered_by_filter = covered_by_filter
        self._settle = settle
        self._finished = False
        self._lock = threading.Lock()
        self._process = here()

    @property
    def released(self) -> Event:
        """Everything that was charged so far, composed."""
        return events.composed(self._released)

    def charge(self, event: Event) -> None:
        """Count an event that is about to happen, or raise BudgetExceeded if the plan does not cover it."""
        parts = events.elementary(event)
        self._check_process()  # before the lock, which a thread of the parent may have held
        with self._lock:
            self._check_running()
            if not self._covered_by_filter:
                if any(count > self._left[part] for part, count in parts.items()):
                    raise BudgetExceeded(self._refusal(parts))
                self._left.subtract(parts)
            self._released.update(parts)

    def finish(self) -> None:
        """End the run well: its charge is lowered to what was released, where the plan makes that certain.

        Nothing released costs nothing. A part of a fixed plan costs that part if the filter admitted the run:
        it adds up steps as they happen, so a run may stop when it likes. Otherwise the charge stays.
        """
        self._check_process()
        with self._lock:
            if self._finished:
                return
            self._finished = True
        if self._released and (self._whole or not +self._left):
            return
        try:
            self._settle(self.number, self.released)
        except LedgerError as error:
            # The run itself went well, and its result must not be lost to a full disk.
            warn_charged(f"this run stays charged with its full plan: {error}", PrivacyWarning)

    settle = finish

    def _check_running(self) -> None:
        if self._finished:
            raise LedgerError("this run is finished; begin another to release more")

    def _check_process(self) -> None:
        if self._process != here():
            raise LedgerError("a run belongs to the process that began it; begin one in each process")

    def _refusal(self, parts: Counter[Event]) -> str:
        event, count = next((e, c) for e, c in parts.items() if c > self._left[e])
        return (
            f"this step needs {count} × {events.describe(event)}; the plan that was charged has "
            f"{self._left[event]} of these left. Nothing was released."
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a run is not copied or pickled: two copies would release its plan twice")

    def __repr__(self) -> str:
        return f"Run({self.number}, {events.describe(self.plan)})"
