"""Killed at any moment, and shared by processes that know nothing of each other.

A child is forked, not spawned, so that a kill costs milliseconds. It says over a pipe what has been charged;
whatever it said must be in the file, and the file must open.
"""

import functools
import os
import random
import signal
import sqlite3
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidelight.errors import BudgetExceeded
from sidelight.privacy import events
from sidelight.privacy.filters import Budget
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.ledger_store import Decide, Entry, FileStore

ADD = "add-or-remove-one"
KILLS = 200
Work = Callable[[int], None]


def fork(work: Work) -> tuple[int, int]:
    """Run work(write end of a pipe) in a child; its process id, and the read end."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forking beside threads; the child only does arithmetic and SQLite.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        os.close(theirs)
        return child, ours
    try:
        signal.alarm(60)  # nothing that goes wrong here may wait forever
        os.close(ours)
        work(theirs)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def drain(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as stream:
        return stream.read()


def new_ledger(path: Path, *, epsilon: float = 3.0) -> Ledger:
    ledger = Ledger.create(path)
    ledger.register("d", relation=ADD, epsilon=epsilon, delta=1e-6)
    return ledger


def charge_runs(ledger: Ledger, pipe: int, *, noise: float = 1000.0, lower: bool = True) -> None:
    """Charge until refused; one byte is written for each run that may now read data."""
    os.write(pipe, b"r")
    while True:
        try:
            plan = events.repeat(events.gaussian(noise), 2)
            run = ledger.begin("d", plan, relation=ADD, method="test", identity=Identity(60, shape=(3,)))
        except BudgetExceeded:
            return
        os.write(pipe, b".")
        run.charge(events.gaussian(noise))
        if lower and run.number % 3 == 0:
            run.finish()


# ---------------------------------------------------------------------------------------------------
# killed


def check_nothing_lost(
    path: Path, work: Work, *, before: int = 0, wait: int = 0, delay: float | None = None
) -> tuple[int, bool]:
    """The contract: after SIGKILL the file opens, and shows every run that was allowed to read data.

    The child is killed `delay` seconds after it is ready and has charged `wait` runs, or it kills itself.
    Returns how many runs the file shows, and whether the kill left a journal to roll back.
    """
    child, pipe = fork(work)
    for _ in range(1 + wait):
        os.read(pipe, 1)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    acknowledged = wait + len(drain(pipe))
    torn = path.with_name(path.name + "-journal").exists()
    charges = Ledger.open(path).charges("d")
    assert before + acknowledged <= len(charges) <= before + acknowledged + 1
    # A settlement is either there or not; a charge never shows less than the step that was released.
    assert all(events.elementary(charge.event) for charge in charges)
    return len(charges), torn


def seconds_a_charge(path: Path) -> float:
    """On this disk, and as busy as it is."""
    ledger = new_ledger(path)
    start = time.perf_counter()
    for _ in range(10):
        ledger.begin("d", events.gaussian(1000.0), relation=ADD, method="test")
    return (time.perf_counter() - start) / 10


def test_a_killed_process_loses_nothing_that_was_charged(tmp_path: Path) -> None:
    rng, torn, runs = random.Random(3), 0, 0
    typical = seconds_a_charge(tmp_path / "timed.ledger")
    for batch in range(KILLS // 20):
        path = tmp_path / f"{batch}.ledger"
        ledger, shown = new_ledger(path), 0
        work = functools.partial(charge_runs, ledger)
        for _ in range(20):
            wait, delay = rng.choice([0, 0, 1]), rng.uniform(0.0, 1.5 * typical)
            shown, journal = check_nothing_lost(path, work, before=shown, wait=wait, delay=delay)
            torn += journal
        runs += shown
    assert torn > KILLS // 20 and runs > KILLS // 5  # the kills did fall into the middle of writing


class HastyStore(FileStore):
    """A planted fault: it reports a charge before it is on disk, and writes it with the next one."""

    waiting: dict[str, Any] | None = None

    def append(self, decide: Decide) -> Entry | None:
        entries = self.entries()
        if self.waiting is not None:
            written = self.waiting
            super().append(lambda _: written)
        self.waiting = decide(entries)
        return Entry(len(entries) + 1, self.waiting or {}, "")


def test_contract_catches_a_charge_that_is_reported_before_it_is_written(tmp_path: Path) -> None:
    def work(pipe: int, store: type[FileStore]) -> None:
        os.write(pipe, b"r")
        ledger = Ledger(store(path, timeout=5.0))
        for _ in range(3):
            ledger.begin("d", events.gaussian(1000.0), relation=ADD, method="test")
            os.write(pipe, b".")
        os.kill(os.getpid(), signal.SIGKILL)

    path = tmp_path / "a.ledger"
    new_ledger(path)
    assert check_nothing_lost(path, functools.partial(work, store=FileStore))[0] == 3
    with pytest.raises(AssertionError):
        check_nothing_lost(path, functools.partial(work, store=HastyStore), before=3)


class Deadly:
    """A connection that does not survive one statement."""

    def __init__(self, db: sqlite3.Connection, statement: str, when: str) -> None:
        self.db, self.statement, self.when = db, statement, when
        self.close = db.close

    def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
        deadly = text.startswith(self.statement)
        if deadly and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = self.db.execute(text, *values)
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


@pytest.mark.parametrize("statement", ["INSERT", "UPDATE", "COMMIT"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_statement_of_a_charge(
    tmp_path: Path, statement: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ledger"
    ledger, connect = new_ledger(path), FileStore._connect

    def work(pipe: int) -> None:
        monkeypatch.setattr(FileStore, "_connect", lambda store: Deadly(connect(store), statement, when))
        charge_runs(ledger, pipe)

    shown, _ = check_nothing_lost(path, work)
    assert shown == (statement == "COMMIT" and when == "after")
    ledger.begin("d", events.gaussian(100.0), relation=ADD, method="test")


def make_ledger(pipe: int, path: Path) -> None:
    os.write(pipe, b"r")
    ledger = Ledger.create(path)
    os.write(pipe, b"c")
    for name in "abcd":
        ledger.register(name, relation=ADD, epsilon=1.0, delta=1e-6)
        os.write(pipe, name.encode())


def test_killed_while_it_is_made_a_ledger_is_there_or_not(tmp_path: Path) -> None:
    rng, found = random.Random(4), set()
    typical = seconds_a_charge(tmp_path / "timed.ledger")
    for attempt in range(40):
        path = tmp_path / f"{attempt}.ledger"
        child, pipe = fork(functools.partial(make_ledger, path=path))
        os.read(pipe, 1)
        said = "".join(os.read(pipe, 1).decode() for _ in range(rng.randrange(6)))  # on a busy machine, too
        time.sleep(rng.uniform(0.0, typical))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += drain(pipe).decode()
        names = "".join(Ledger.open(path).datasets()) if path.exists() else None
        assert names is not None or not said
        assert names is None or (names.startswith(said[1:]) and len(names) <= len(said))
        found.add(names)
        if names is None:
            Ledger.create(path)  # what was left behind is not in the way
    assert len(found) >= 2


# ---------------------------------------------------------------------------------------------------
# two at once


def room_for(epsilon: float, noise: float) -> int:
    """How many pairs of Gaussian steps the filter admits, by hand."""
    budget = Budget.new(epsilon=epsilon, delta=1e-6, relation=ADD)
    pairs = zip(budget.orders, budget.limits(), strict=True)
    return max(int(limit / (2 * a / (2 * noise**2))) for a, limit in pairs)


def check_two_never_overspend(path: Path, work: Work, *, room: int) -> None:
    """The contract: of two processes that charge at once, at most `room` runs are let through together."""
    first, second = fork(work), fork(work)
    ends = [os.waitpid(child, 0)[1] for child, _ in (first, second)]
    allowed = sum(drain(pipe).count(b".") for _, pipe in (first, second))
    assert allowed == len(Ledger.open(path).charges("d"))
    assert allowed <= room
    assert allowed == room and ends == [0, 0]  # none is refused that would have fitted, and none fails


def test_two_processes_never_overspend_together(tmp_path: Path) -> None:
    noise = 7.0
    room = room_for(3.0, noise)
    assert 3 <= room <= 12
    for attempt in range(10):
        path = tmp_path / f"{attempt}.ledger"
        ledger = new_ledger(path)
        work = functools.partial(charge_runs, ledger, noise=noise, lower=False)
        check_two_never_overspend(path, work, room=room)


class UnlockedStore(FileStore):
    """A planted fault: it decides on what it read before, and writes under a lock of its own."""

    meet: Callable[[], None]

    def append(self, decide: Decide) -> Entry | None:
        body = decide(self.entries())
        self.meet()
        return super().append(lambda _: body)


def test_contract_catches_missing_lock(tmp_path: Path) -> None:
    path, noise = tmp_path / "a.ledger", 3.0
    new_ledger(path)
    room = room_for(3.0, noise)
    assert room == 1
    ready, go = os.pipe(), os.pipe()
    store = UnlockedStore(path, timeout=5.0)

    def meet() -> None:
        os.write(ready[1], b".")
        os.read(go[0], 1)

    store.meet = meet
    ledger = Ledger(store)

    def work(pipe: int) -> None:
        ledger.begin("d", events.repeat(events.gaussian(noise), 2), relation=ADD, method="test")
        os.write(pipe, b".")

    def release_both(_: int) -> None:
        os.read(ready[0], 1)
        os.read(ready[0], 1)
        os.write(go[1], b"..")

    usher, pipe = fork(release_both)
    with pytest.raises(AssertionError, match="2 <= 1"):
        check_two_never_overspend(path, work, room=room)
    os.waitpid(usher, 0)
    for handle in (pipe, *ready, *go):
        os.close(handle)
