"""Records what a method hands to the doors of `privacy.release`, and replays it on other data.

`record(method, task)` runs a method and keeps every private sum, every event and every released value.
`record(method, neighbour, like=tape)` runs it again with the same randomness, and gives it the *released
values of the first run*: so both runs are asked the same questions, and whatever then differs outside of the
private sums has not come through a door.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.contracts.neighbours import value_of

from sidelight.methods.task import Fitted, Method, Plan, Task
from sidelight.privacy import accountants, events
from sidelight.privacy import release as doors
from sidelight.privacy.accounts import Certified
from sidelight.privacy.ledger_run import Run
from sidelight.privacy.noise import Noise

DOORS = ("release", "select", "perturbed_solution", "private_process", "release_on_grid")


@dataclass
class Call:
    """One passage through a door. Without a private sum (a process of its own proof) `value` is None."""

    door: str
    event: events.Event
    value: np.ndarray | None
    sensitivity: float
    relation: str | None
    output: Any


@dataclass
class Tape:
    """Everything that one run did at the doors, and its result."""

    plan: Plan
    calls: list[Call] = field(default_factory=list)
    charged: list[events.Event] = field(default_factory=list)
    fitted: Fitted | None = None


class LoggedNoise(Noise):
    """Tells the log of every draw."""

    def __init__(self, seed: int, log: list[Any]) -> None:
        super().__init__(seed)
        self._log = log

    def bound(self, *about: Any) -> Noise:
        return self  # two runs on neighbours are compared number by number

    def normal(self, size: Any, *, std: float = 1.0, dtype: Any = np.float64) -> Any:
        self._log.append("noise")
        return super().normal(size, std=std, dtype=dtype)


class SilentNoise(Noise):
    """Sampling as usual, and no noise: to compare a step with numbers worked out by hand."""

    def normal(self, size: Any, *, std: float = 1.0, dtype: Any = np.float64) -> Any:
        return np.zeros(size, dtype=dtype)


class LoggedRun(Run):
    """The account of a fit without a ledger: refuses what the plan does not cover, and tells the log."""

    def __init__(self, plan: Plan, log: list[Any]) -> None:
        super().__init__(0, plan.event, rule="exact", covered_by_filter=plan.filtered, settle=lambda *_: None)
        self._log = log

    def charge(self, event: events.Event) -> None:
        super().charge(event)
        self._log.append(event)


class Nothing:
    """An account that forgets."""

    def charge(self, event: events.Event) -> None: ...


def record(method: Method, task: Task, *, like: Tape | None = None, seed: int = 7) -> Tape:
    """Run the method; with `like`, on the random numbers and the released values of that run."""
    plan = method.plan(task) if like is None else like.plan
    log: list[Any] = []
    tape = Tape(plan)
    with _tapped(tape, log, like):
        run = LoggedRun(plan, log)
        account = Certified(run, plan.event, relation=task.relation) if plan.filtered else run
        tape.fitted = method.run(task, plan, account=account, noise=LoggedNoise(seed, log))
    tape.charged = [entry for entry in log if isinstance(entry, events.Event)]
    assert like is None or len(tape.calls) == len(like.calls), "the number of releases depends on a record"
    return tape


@contextmanager
def _tapped(tape: Tape, log: list[Any], like: Tape | None) -> Iterator[None]:
    """Every module that imported a door gets the tapped one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in DOORS:
            original = getattr(doors, name)
            tapped = _tap(name, original, tape, log, like)
            for module in [m for key, m in sys.modules.items() if key.startswith("sidelight.")]:
                if getattr(module, name, None) is original and module is not doors:
                    patch.setattr(module, name, tapped)
        yield


def _tap(name: str, original: Any, tape: Tape, log: list[Any], like: Tape | None) -> Any:
    def tapped(first: Any, **options: Any) -> Any:
        before = len(log)
        output = original(first, **options)
        assert isinstance(log[before], events.Event), "noise was drawn before the charge"
        private = first if isinstance(first, doors.BoundedSum) else None
        call = Call(
            door=name,
            event=options["event"],
            value=None if private is None else value_of(private).copy(),
            sensitivity=np.inf if private is None else private.sensitivity,
            relation=None if private is None else private.relation,
            output=output.numpy() if isinstance(output, doors.Released) else output,
        )
        tape.calls.append(call)
        if like is None or len(tape.calls) > len(like.calls):
            return output
        forced = like.calls[len(tape.calls) - 1].output
        return doors.Released(forced, door=doors._DOOR) if isinstance(output, doors.Released) else forced

    return tapped


# ---------------------------------------------------------------------------------------------------
# the promises


def largest_share(tape: Tape, other: Tape) -> float:
    """How far two runs' private sums are apart, in units of the declared sensitivity, at most.

    Scores of a selection count one by one (their sensitivity is that of one score), sums by their length.
    """
    shares = [0.0]
    for mine, theirs in zip(tape.calls, other.calls, strict=True):
        assert mine.sensitivity == theirs.sensitivity, "the declared sensitivity depends on a record"
        if mine.value is None or theirs.value is None:
            continue
        assert np.isfinite(mine.value).all() and np.isfinite(theirs.value).all()
        move = mine.value - theirs.value
        order = np.inf if mine.door == "select" else 2
        if mine.door == "select" and mine.relation == "add-or-remove-one":
            # Half the noise of a selection is enough only because scores move in one direction.
            assert (move <= 0).all() or (move >= 0).all(), "scores are not monotone"
        shares.append(float(np.linalg.norm(move, ord=order)) / mine.sensitivity)
    return float(np.max(shares))


def assert_within_sensitivity(tape: Tape, other: Tape) -> float:
    """No private sum moved by more than it declared. Returns the largest move, in units of that."""
    share = largest_share(tape, other)
    assert share <= 1 + 1e-9, f"one record moved a private sum by {share:.6g} times its sensitivity"
    return share


def assert_same_outside(tape: Tape, other: Tape) -> None:
    """Given the same released values, nothing that leaves the method depends on the record."""
    assert tape.fitted is not None and other.fitted is not None
    np.testing.assert_array_equal(tape.fitted.coef, other.fitted.coef)
    assert tape.fitted.history == other.fitted.history
    assert tape.fitted.notes == other.fitted.notes
    assert tape.charged == other.charged


def assert_plan_covers(tape: Tape, task: Task) -> None:
    """What was charged is what passed the doors, and the plan bounds it, and the budget bounds the plan."""
    assert tape.charged == [call.event for call in tape.calls]
    spent, plan = events.compose(*tape.charged), tape.plan
    if plan.filtered:
        _assert_certified(spent, plan.event, task)
    else:
        assert events.elementary(spent) <= events.elementary(plan.event), "more was released than planned"
        assert events.elementary(spent) == events.elementary(plan.event), "less was released than planned"
    cost = accountants.epsilon(plan.event, delta=task.delta, relation=task.relation)
    assert cost <= task.epsilon * (1 + 1e-6)


def _assert_certified(spent: events.Event, certificate: events.Event, task: Task) -> None:
    slack = 1 + 1e-9
    match certificate:
        case events.Gaussian(noise_multiplier=z):
            mu = accountants.gdp(spent)
            assert mu is not None and mu <= slack / z
        case events.RenyiBound(order=order, rdp=bound):
            assert accountants.rdp(spent, orders=[order], relation=task.relation)[0] <= bound * slack
        case events.TruncatedConcentrated(rho=rho, omega=omega):
            total, orders = accountants.tcdp(spent, relation=task.relation, omega_total=omega)
            assert total <= rho * slack and orders >= omega
        case _:
            raise AssertionError(f"{certificate} is not a certificate that this contract knows")


def assert_performs_its_event(sampler: Any, n: int = 200, draws: int = 400) -> None:
    """The batches that a sampler draws are those that its event describes."""
    batches = [sampler.indices(n, Noise(seed)) for seed in range(draws)]
    sizes = np.array([n if batch is None else len(batch) for batch in batches])
    counts = np.zeros(n)
    for batch in batches:
        counts[slice(None) if batch is None else batch] += 1
    match sampler.event(n, 1.0):
        case events.PoissonSampled(sampling_probability=q):
            spread = n * q * (1 - q)
            assert 0.7 * spread < sizes.var() < 1.4 * spread, "batch sizes do not vary as Poisson's do"
        case events.SampledWithoutReplacement(sample_size=size, source_dataset_size=m):
            q = size / m
            assert m == n and (sizes == size).all(), "batches of a fixed size differ in size"
        case events.Gaussian():
            q = 1.0
            assert (sizes == n).all(), "a full batch leaves records out"
    error = np.sqrt(q * (1 - q) / draws)
    assert abs(counts / draws - q).max() <= 6 * error, "some records are drawn more often than others"
