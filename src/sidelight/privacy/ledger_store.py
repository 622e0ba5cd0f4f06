"""Where a ledger keeps its entries: a list, or an SQLite file that survives being killed.

An entry is a number (1, 2, 3, ...), a line of JSON that a person can read, and
sha256(hash of the entry before, number, JSON). Entries are only ever appended. In a file,

- one `BEGIN IMMEDIATE` transaction reads, decides and writes, so two processes cannot both decide on what
  neither has written yet;
- a rollback journal with `synchronous=EXTRA` makes a returned append durable; a process killed at any
  moment leaves either the old entries or the new ones, and SQLite finishes the job at the next opening;
- triggers refuse UPDATE and DELETE, and the chain of hashes, together with the number and hash of the last
  entry, shows what was done around them.

The chain has no secret in it: it finds accidents and edits by hand, not a forger who recomputes it. Whoever
fears one keeps the hash of the last entry elsewhere and passes it to `Ledger.verify`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidelight.arrays import Json
from sidelight.errors import InputError, LedgerBusy, LedgerDamaged, LedgerError
from sidelight.files import missing, sync_folder
from sidelight.privacy.noise import here

if TYPE_CHECKING:
    import sqlite3

FORMAT = 3
_APPLICATION_ID = 0x51DE11F7  # written in the file's header, so that `file` and we know it for a ledger
_SCHEMA = (
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER entries_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER entries_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER head_delete BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER head_update BEFORE UPDATE ON head WHEN NEW.seq <> OLD.seq + 1 "
    "BEGIN SELECT RAISE(ABORT, 'append-only'); END",
)
# What SQLite says -> what we say. Whatever is not listed means that the contents are not what was written.
_PROBLEMS: tuple[tuple[str, type[LedgerError], str], ...] = (
    ("locked", LedgerBusy, "is held by another process for longer than the timeout. Try again later"),
    ("readonly", LedgerError, "is read-only: nothing can be charged. Make the file and its folder writable"),
    ("disk is full", LedgerError, "cannot be written: the disk is full. Free some space and run again"),
    ("disk I/O", LedgerError, "cannot be written: a full or failing disk, a quota or a file-size limit"),
    ("unable to open", LedgerError, "cannot be opened. It must be readable, and its folder writable"),
    ("out of memory", LedgerError, "cannot be read: out of memory"),
)
_CLOCK_TICK = 10_000_000  # nanoseconds; file systems stamp writes by a clock that ticks every 1 to 10 ms
_IN_MEMORY = "a ledger in memory stays in its process; make one with Ledger.create(path) to share it"


@dataclass(frozen=True)
class Entry:
    """One line of a ledger, as it was written."""

    number: int
    body: Json
    hash: str


Decide = Callable[[list[Entry]], "Json | None"]


class MemoryStore:
    """Entries that last as long as the process."""

    name = "in memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = here()
        self._entries = [_first_entry()]

    def entries(self) -> list[Entry]:
        """All entries, checked."""
        return list(self._entries)

    def head(self) -> str:
        """The hash of the last entry, in one look: another one means that entries were added."""
        return self._entries[-1].hash

    def append(self, decide: Decide) -> Entry | None:
        """Append what `decide` makes of all entries, with nobody else between; None appends nothing."""
        if self._process != here():
            raise LedgerError(_IN_MEMORY)
        with self._lock:
            body = decide(list(self._entries))
            if body is None:
                return None
            self._entries.append(_follow(self._entries[-1], body)[0])
            return self._entries[-1]

    def check(self) -> None:
        """A list in memory cannot be damaged."""


class FileStore:
    """Entries in an SQLite file. A connection lives for one operation, so forks and threads share nothing."""

    def __init__(self, path: Path, *, timeout: float) -> None:
        self.path = path
        self.name = str(path)
        self._timeout = timeout
        self._known: tuple[Entry, ...] = ()  # what this object has read: the file may grow, never go back
        self._left: tuple[int, ...] | None = None  # the file's state after this object's last append

    @classmethod
    def create(cls, path: Path, *, timeout: float) -> FileStore:
        """A new file, whole or not at all: it is made under another name, then linked to its own."""
        _check_free(path)
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
        maker = cls(new, timeout=timeout)
        try:
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
            maker._write_schema()
            _publish(new, path)
        except FileExistsError:
            raise _taken(path) from None
        except OSError as error:
            raise LedgerError(f"no ledger can be made at {path}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                new.unlink()
        return cls(path, timeout=timeout)

    def entries(self) -> list[Entry]:
        with self._connection() as db:
            db.execute("BEGIN")
            return self._read(db)

    def head(self) -> str:
        with self._connection() as db:
            return repr(db.execute("SELECT seq, hash FROM head").fetchall())

    def append(self, decide: Decide) -> Entry | None:
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            entries = self._read(db)
            body = decide(entries)
            if body is None:
                return None
            entry, text = _follow(entries[-1], body)
            db.execute("INSERT INTO entries VALUES (?, ?, ?)", (entry.number, text, entry.hash))
            db.execute("UPDATE head SET seq = ?, hash = ?", (entry.number, entry.hash))
            db.execute("COMMIT")
        self._known, self._left = max(self._known, (*entries, entry), key=len), self._stamped()
        return entry

    def check(self) -> None:
        with self._connection() as db:
            if db.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
                raise self._damaged("it is not a sidelight ledger, or its header was overwritten")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version != FORMAT:
                raise self._damaged(f"its format is {version}, and this version of sidelight reads {FORMAT}")
            schema = db.execute("SELECT sql FROM sqlite_master").fetchall()
            if sorted(schema) != sorted((text.encode(),) for text in _SCHEMA):
                raise self._damaged("its tables or triggers were changed")
            if db.execute("PRAGMA quick_check").fetchall() != [(b"ok",)]:
                raise self._damaged("SQLite finds its pages inconsistent")
        self._left = None  # everything is hashed again
        self.entries()

    def _read(self, db: sqlite3.Connection) -> list[Entry]:
        """All entries, checked; those read before are not read again if nobody else has written since."""
        known = self._known  # before the rows are read: another thread may append meanwhile
        start = len(known) if self._unchanged() else 0
        entries = list(known[:start])
        rows = db.execute(
            "SELECT seq, body, hash FROM entries WHERE seq > ? ORDER BY seq", (start,)
        ).fetchall()
        for number, (seq, text, digest) in enumerate(rows, start=start + 1):
            previous = entries[-1].hash if entries else ""
            expected = _digest(previous, number, text) if isinstance(text, bytes) else ""
            if seq != number or digest != expected.encode():
                raise self._damaged(f"entry {number} is missing or was changed")
            same = number <= len(known) and known[number - 1].hash == expected
            entries.append(known[number - 1] if same else Entry(number, json.loads(text), expected))
        head = db.execute("SELECT seq, hash FROM head").fetchall()
        if not entries or head != [(len(entries), entries[-1].hash.encode())]:
            raise self._damaged("entries were removed from its end")
        if len(known) > len(entries) or (known and entries[len(known) - 1].hash != known[-1].hash):
            raise self._damaged("it was replaced by another or an older file while in use")
        if len(entries) > len(self._known):
            self._known = tuple(entries)
        return entries

    def _unchanged(self) -> bool:
        """Whether the file is as this object left it; a charge then costs the same in a long ledger."""
        return self._left is not None and self._left == self._state(stamp=self._left[2])

    def _stamped(self) -> tuple[int, ...] | None:
        """The file's state, under a time of writing that no other write has.

        The file system's own clock ticks too slowly to tell two writes of a fast disk apart, so the time is
        set to the nanosecond. What another process adds before that is read all the same: it has a number.
        """
        now = time.time_ns()
        with contextlib.suppress(OSError):  # not ours to set, or moved away
            os.utime(self.path, ns=(now, now))
        return self._state(stamp=now)

    def _state(self, *, stamp: int = 0) -> tuple[int, ...] | None:
        """What changes with every write; None if it is too young to tell one write from the next."""
        try:
            found = self.path.stat()
        except OSError:  # moved away since: the charge is written all the same
            return None
        settled = found.st_mtime_ns == stamp or time.time_ns() - found.st_mtime_ns > _CLOCK_TICK
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns) if settled else None

    def _write_schema(self) -> None:
        first = _first_entry()
        with self._connection() as db:
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO entries VALUES (1, ?, ?)", (_canonical(first.body), first.hash))
            db.execute("INSERT INTO head VALUES (1, 1, ?)", (first.hash,))
            db.execute("COMMIT")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that is closed, and so rolled back unless committed, and that speaks our errors."""
        import sqlite3

        db: sqlite3.Connection | None = None
        try:
            db = self._connect()
            db.execute("PRAGMA synchronous = EXTRA")
            db.execute("PRAGMA fullfsync = ON")
            yield db
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:  # its messages may quote damaged text
            raise self._explain(error) from error
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} cannot be opened: {error.strerror}") from error
        finally:
            if db is not None:
                with contextlib.suppress(sqlite3.Error):
                    db.close()

    def _connect(self) -> sqlite3.Connection:
        import sqlite3

        if not self.path.is_file():
            what = f"{self.path} is not a file" if self.path.exists() else missing(self.path)
            raise LedgerError(f"the ledger {what}. Ledger.create(path) makes a new one")
        uri = self.path.absolute().as_uri() + "?mode=rw"  # never creates a file
        db = sqlite3.connect(uri, uri=True, timeout=self._timeout, isolation_level=None)
        db.text_factory = bytes  # damaged text is then ours to report
        return db

    def _explain(self, error: BaseException) -> LedgerError:
        for words, kind, message in _PROBLEMS:
            if words in str(error):
                return kind(f"the ledger {self.path} {message}")
        return self._damaged(f"SQLite says: {error}")

    def _damaged(self, reason: str) -> LedgerDamaged:
        return LedgerDamaged(
            f"the ledger {self.path} is damaged: {reason}. It was not changed; keep it, and restore a backup "
            "only if no run was charged since"
        )


def _first_entry() -> Entry:
    body = {"kind": "ledger", "format": FORMAT, "id": secrets.token_hex(16)}
    return Entry(1, body, _digest("", 1, _canonical(body).encode()))


def _follow(previous: Entry, body: Json) -> tuple[Entry, str]:
    # By the nonce two copies of a file that went on apart are told apart, however alike their runs are.
    text = _canonical({**body, "nonce": secrets.token_hex(8)})
    number = previous.number + 1
    # Parsed back, so that an entry in memory is what a file would give.
    return Entry(number, json.loads(text), _digest(previous.hash, number, text.encode())), text


def _canonical(body: Json) -> str:
    try:
        text = json.dumps(body, sort_keys=True, ensure_ascii=False, allow_nan=False)
        text.encode()
        return text
    except (TypeError, ValueError) as error:
        raise InputError(f"a ledger holds JSON values, with finite numbers: {error}") from error


def _digest(previous: str, number: int, text: bytes) -> str:
    return hashlib.sha256(f"{previous}\n{number}\n".encode() + text).hexdigest()


def _taken(path: Path) -> LedgerError:
    return LedgerError(f"{path} already exists and is not replaced. Ledger.open() opens it")


def _check_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise _taken(path)
    for suffix in ("-journal", "-wal"):
        # SQLite would replay an earlier file's journal into the new one.
        if path.with_name(path.name + suffix).exists():
            raise LedgerError(f"{path}{suffix} is left from an earlier ledger at {path}. Move it away first")


def _publish(new: Path, path: Path) -> None:
    """Give a finished file its name, durably, unless the name is taken."""
    try:
        os.link(new, path)  # unlike a rename, this never replaces a file
    except FileExistsError:
        raise
    except (
        OSError
    ):  # no links on this file system; a kill in between leaves a file that is reported as damaged
        with path.open("xb") as target:
            target.write(new.read_bytes())
            target.flush()
            os.fsync(target.fileno())
    sync_folder(path.parent)
