"""Places where a ledger cannot be made, read or written: each is one clear line; nothing spent is lost."""

import errno
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidelight.errors import (
    InputError,
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    PrivacyWarning,
    SidelightError,
)
from sidelight.privacy import events, ledger_book, ledger_store
from sidelight.privacy import ledger as ledger_module
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.ledger_store import FileStore

ADD = "add-or-remove-one"
RUNS = 12
STEP = events.gaussian(60.0)


def begin(ledger: Ledger) -> None:
    ledger.begin("d", STEP, relation=ADD, method="test")


@pytest.fixture(scope="module")
def filled() -> Iterator[Path]:
    """A ledger with some runs, in a folder that any user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    path = folder / "filled.ledger"
    ledger = Ledger.create(path)
    ledger.register("d", relation=ADD, epsilon=3.0, delta=1e-6)
    for _ in range(RUNS):
        begin(ledger)
    yield path
    shutil.rmtree(folder)


@pytest.fixture
def path(filled: Path) -> Iterator[Path]:
    folder = filled.parent / "copy"
    folder.mkdir()
    yield Path(shutil.copy(filled, folder / "a.ledger"))
    folder.chmod(0o755)
    shutil.rmtree(folder)


def in_child(work: Callable[[], None]) -> str:
    """What a child process said at the end: 'fine', or the type and message of its error."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            work()
            said = "fine"
        except SidelightError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException:
            said = traceback.format_exc()
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


# ---------------------------------------------------------------------------------------------------
# places


def test_a_missing_file_is_said_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="exist"):
        Ledger.open(tmp_path / "no.ledger")
    with pytest.raises(LedgerError, match="not a file"):
        Ledger.open(tmp_path)
    assert not list(tmp_path.iterdir())


def test_create_never_replaces_a_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"already exists.*Ledger\.open"):
        Ledger.create(path)
    assert path.read_bytes() == before and os.listdir(path.parent) == ["a.ledger"]


def test_of_two_that_create_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.ledger"
    monkeypatch.setattr("sidelight.privacy.ledger_store._check_free", lambda _: target.write_text("theirs"))
    with pytest.raises(LedgerError, match="already exists"):
        Ledger.create(target)
    assert target.read_text() == "theirs" and os.listdir(tmp_path) == ["a.ledger"]


def test_create_needs_a_folder_and_no_old_journal(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="ledger can"):
        Ledger.create(tmp_path / "no" / "a.ledger")
    (tmp_path / "a.ledger-journal").write_bytes(b"old")
    with pytest.raises(LedgerError, match="earlier"):
        Ledger.create(tmp_path / "a.ledger")


def test_create_works_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    Ledger.create(tmp_path / "a.ledger")
    with pytest.raises(LedgerError, match="already exists"):
        Ledger.create(tmp_path / "a.ledger")
    monkeypatch.setattr("sidelight.privacy.ledger_store._check_free", lambda _: None)
    with pytest.raises(LedgerError, match="already exists"):
        Ledger.create(tmp_path / "a.ledger")
    assert os.listdir(tmp_path) == ["a.ledger"]


def test_names_with_odd_characters_work(tmp_path: Path) -> None:
    target = tmp_path / "a b?#%é.ledger"
    Ledger.create(target).register("d", relation=ADD, epsilon=1.0, delta=1e-6)
    assert list(Ledger.open(target).datasets()) == ["d"] and os.listdir(tmp_path) == [target.name]


@pytest.mark.parametrize("content", [b"", b"hello, I am not a ledger" * 100, b"\0" * 8192])
def test_what_is_no_ledger_is_reported_and_left_alone(tmp_path: Path, content: bytes) -> None:
    target = tmp_path / "a.ledger"
    target.write_bytes(content)
    with pytest.raises(LedgerDamaged, match=r"damaged: .*not changed"):
        Ledger.open(target)
    assert target.read_bytes() == content


def test_another_database_is_no_ledger(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE entries (seq, body, hash)")
    db.close()
    with pytest.raises(LedgerDamaged, match="sidelight ledger"):
        Ledger.open(tmp_path / "other.db")


def test_a_newer_format_is_not_guessed_at(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 4")
    db.close()
    with pytest.raises(LedgerDamaged, match="format is 4"):
        Ledger.open(path)


# ---------------------------------------------------------------------------------------------------
# a file that cannot be written


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o444, 0o555), (0o666, 0o555)])
def test_a_read_only_ledger_shows_its_runs_and_takes_no_more(
    path: Path, file_mode: int, folder_mode: int
) -> None:
    path.chmod(file_mode)
    path.parent.chmod(folder_mode)

    def work() -> None:
        if os.getuid() == 0:
            os.setuid(65534)  # permissions do not stop root
        ledger = Ledger.open(path)
        assert len(ledger.charges("d")) == RUNS
        begin(ledger)

    said = in_child(work)
    assert said.startswith("LedgerError") and "is read-only" in said and "\n" not in said
    assert len(Ledger.open(path).charges("d")) == RUNS


def test_a_folder_that_cannot_be_written_takes_no_ledger(path: Path) -> None:
    path.parent.chmod(0o555)

    def work() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        Ledger.create(path.with_name("b.ledger"))

    said = in_child(work)
    assert said.startswith("LedgerError: no ledger can be made") and "\n" not in said


def test_a_ledger_that_another_process_holds_is_busy(path: Path) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    ledger = Ledger.open(path, timeout=0.05)
    with pytest.raises(LedgerBusy, match="another process"):
        begin(ledger)
    holder.execute("ROLLBACK")
    holder.close()
    begin(ledger)


@pytest.mark.parametrize("room", [0, 600, 5000, 20_000, 40_000])
def test_a_full_disk_refuses_the_run_and_keeps_the_rest(path: Path, room: int) -> None:
    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))  # of any file: the ledger, or its journal
        ledger = Ledger.open(path)
        for _ in range(200):
            begin(ledger)

    said = in_child(work)
    assert said.startswith("LedgerError") and "cannot be written" in said and "\n" not in said
    ledger = Ledger.open(path)
    assert len(ledger.charges("d")) >= RUNS
    begin(ledger)


def test_a_full_database_refuses_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = FileStore._connect

    def small(self: FileStore) -> sqlite3.Connection:
        db = connect(self)
        db.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size as the least
        return db

    monkeypatch.setattr(FileStore, "_connect", small)
    ledger, acknowledged = Ledger.open(path), RUNS
    with pytest.raises(LedgerError, match="disk is full"):
        while acknowledged < 200:
            begin(ledger)
            acknowledged += 1
    monkeypatch.undo()
    assert len(Ledger.open(path).charges("d")) == acknowledged


def test_a_run_on_a_full_disk_still_ends_well(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.open(path)
    run = ledger.begin("d", STEP, relation=ADD, method="test")
    path.unlink()
    with pytest.warns(PrivacyWarning, match="full plan: .*exist"):
        run.finish()


# ---------------------------------------------------------------------------------------------------
# many charges, and copies


def test_runs_of_a_dataset_are_numbered_from_one(path: Path) -> None:
    ledger = Ledger.open(path)
    orders = [charge.order for charge in ledger.charges("d")]
    assert orders == list(range(1, len(orders) + 1))
    run = ledger.begin("d", events.gaussian(1e3), relation="add-or-remove-one", method="m")
    assert run.order == len(orders) + 1 and ledger.charges("d")[-1].order == run.order


def test_a_charge_does_not_read_old_entries_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.open(path)
    begin(ledger)
    hashed: list[int] = []
    digest = ledger_store._digest
    monkeypatch.setattr(
        ledger_store,
        "_digest",
        lambda *given: hashed.append(given[1]) or digest(*given),  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(ledger_store, "_CLOCK_TICK", -1)  # a fast disk would make every state too young
    begin(ledger)
    hashed.clear()
    begin(ledger)
    entries = len(FileStore(path, timeout=1).entries())
    del hashed[-entries:]  # those of the line above
    assert set(hashed) == {entries}  # the new one alone
    Ledger.open(path)
    assert 1 in hashed  # an opening reads everything


def test_two_copies_that_go_on_alike_are_told_apart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_book, "now", lambda: "2030-01-01T00:00:00+00:00")
    monkeypatch.setattr(ledger_module, "now", lambda: "2030-01-01T00:00:00+00:00")
    other = path.with_name("copy.ledger")
    shutil.copy(path, other)
    heads = []
    for copy in (path, other):
        ledger = Ledger.open(copy)
        begin(ledger)
        heads.append(ledger.verify())
    assert heads[0] != heads[1]


def test_a_charge_that_is_written_is_not_called_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to the file right after the commit: who is refused tries again, and pays twice."""
    ledger, append = Ledger.open(path), FileStore.append

    def moved_afterwards(self: FileStore, decide: Any) -> Any:
        entry = append(self, decide)
        monkeypatch.setattr(FileStore, "entries", lambda self: (_ for _ in ()).throw(LedgerBusy("held")))
        return entry

    monkeypatch.setattr(FileStore, "append", moved_afterwards)
    assert ledger.begin("d", STEP, relation=ADD, method="test").order == RUNS + 1
    path.rename(path.with_name("away.ledger"))
    assert ledger._store._state() is None  # type: ignore[attr-defined]


def test_on_a_fast_disk_a_charge_does_not_hash_the_whole_file_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the file system ticks slower than charges come: a whole second, as some do."""
    monkeypatch.setattr(ledger_store, "_CLOCK_TICK", 10**9)
    ledger = Ledger.open(path)
    begin(ledger)
    hashed: list[int] = []
    digest = ledger_store._digest

    def counting(previous: str, number: int, text: bytes) -> str:
        hashed.append(number)
        return digest(previous, number, text)

    monkeypatch.setattr(ledger_store, "_digest", counting)
    begin(ledger)
    assert set(hashed) == {RUNS + 4}  # the new entry alone: a header and a dataset come before the runs


def test_an_edit_in_the_tick_of_a_charge_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_store, "_CLOCK_TICK", 10**9)
    ledger = Ledger.open(path)
    begin(ledger)
    with sqlite3.connect(path) as other:
        other.execute("DROP TRIGGER entries_update")
        other.execute("UPDATE entries SET body = replace(body, '60.0', '90.0') WHERE seq = 4")
    other.close()
    with pytest.raises(LedgerDamaged, match="entry 4"):
        begin(ledger)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_opened_or_created_by_name(kind, tmp_path):
    with pytest.raises(InputError, match=r"Ledger\.open"):
        Ledger(kind(tmp_path / "ledger.db"))
