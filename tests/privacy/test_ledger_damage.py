"""A damaged or edited ledger file is reported, never believed and never replaced."""

import json
import random
import sqlite3
from pathlib import Path

import pytest

from sidelight.errors import LedgerDamaged
from sidelight.privacy import events
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.ledger_store import _SCHEMA, Entry, FileStore

ADD = "add-or-remove-one"
RUNS = 12
STEP = events.gaussian(60.0)


def begin(ledger: Ledger) -> None:
    ledger.begin("d", STEP, relation=ADD, method="test")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ledger with some runs."""
    path = tmp_path_factory.mktemp("filled") / "a.ledger"
    ledger = Ledger.create(path)
    ledger.register("d", relation=ADD, epsilon=3.0, delta=1e-6)
    for _ in range(RUNS):
        begin(ledger)
    return path.read_bytes()


@pytest.fixture
def path(content: bytes, tmp_path: Path) -> Path:
    (tmp_path / "a.ledger").write_bytes(content)
    return tmp_path / "a.ledger"


def edit(path: Path, *statements: str) -> None:
    """Change a ledger the way a determined person does: without its triggers, then put them back."""
    db = sqlite3.connect(path, isolation_level=None)
    triggers = [text for text in _SCHEMA if text.startswith("CREATE TRIGGER")]
    for trigger in triggers:
        db.execute(f"DROP TRIGGER {trigger.split()[2]}")
    for statement in (*statements, *triggers):
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE seq = 5",
        "DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)",
        "DELETE FROM entries",
        "UPDATE entries SET body = replace(body, '60.0', '90.0') WHERE seq = 5",
        "UPDATE entries SET body = replace(body, '\"epsilon\": 3.0', '\"epsilon\": 9.0') WHERE seq = 2",
        "UPDATE entries SET hash = (SELECT hash FROM entries WHERE seq = 4) WHERE seq = 5",
        "INSERT INTO entries SELECT seq + 1, body, hash FROM entries ORDER BY seq DESC LIMIT 1",
        "UPDATE entries SET body = x'00ff' WHERE seq = 5",
        "UPDATE head SET seq = 3",
        "DELETE FROM head",
        "ALTER TABLE head ADD COLUMN more TEXT",
        "CREATE TABLE more (x)",
    ],
)
def test_an_edited_ledger_is_reported(path: Path, statement: str) -> None:
    ledger = Ledger.open(path)
    edit(path)
    begin(ledger)
    Ledger.open(path)  # taking the triggers off and putting them back harms nothing by itself
    edit(path, statement)
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)
    if "more" not in statement:
        with pytest.raises(LedgerDamaged):
            begin(ledger)


def test_triggers_refuse_changes_and_their_absence_is_reported(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in (
        "DELETE FROM entries",
        "UPDATE entries SET body = ''",
        "DELETE FROM head",
        "UPDATE head SET seq = 1",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(statement)
    db.execute("DROP TRIGGER entries_delete")
    db.close()
    with pytest.raises(LedgerDamaged, match="triggers"):
        Ledger.open(path)


def test_an_older_copy_put_in_place_is_noticed_by_whoever_saw_the_newer(path: Path) -> None:
    ledger, backup = Ledger.open(path), path.read_bytes()
    begin(ledger)
    path.write_bytes(backup)
    with pytest.raises(LedgerDamaged, match="older file"):
        begin(ledger)


def check_damage_shows(path: Path, content: bytes) -> bool:
    """The contract: a damaged file is reported as such, or gives every run back. True if reported."""
    path.write_bytes(content)
    try:
        charges = Ledger.open(path).charges("d")
    except LedgerDamaged:
        assert path.read_bytes() == content
        return True
    assert [charge.event for charge in charges] == [STEP] * RUNS
    return False


def test_a_truncated_file_is_reported(path: Path) -> None:
    content, rng = path.read_bytes(), random.Random(1)
    sizes = {0, 1, 99, 100, 4096, len(content) - 1, *(rng.randrange(len(content)) for _ in range(120))}
    for size in sizes:
        assert check_damage_shows(path, content[:size]), size


def test_flipped_bytes_are_reported_or_harmless(path: Path) -> None:
    content, rng = path.read_bytes(), random.Random(2)
    reported = 0
    for _ in range(500):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 8])):
            damaged[rng.randrange(len(damaged))] ^= rng.randrange(1, 256)
        reported += check_damage_shows(path, bytes(damaged))
    assert reported > 150
    for offset in range(100):  # the header, where a byte may change what the file means
        damaged = bytearray(content)
        damaged[offset] ^= 1 << rng.randrange(8)
        check_damage_shows(path, bytes(damaged))


def test_contract_catches_a_ledger_that_trusts_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()
    edit(path, "DELETE FROM entries WHERE seq > 9")
    cut = path.read_bytes()
    assert check_damage_shows(path, cut)

    def trusting(self: FileStore, db: sqlite3.Connection) -> list[Entry]:
        rows = db.execute("SELECT seq, body, hash FROM entries ORDER BY seq").fetchall()
        return [Entry(seq, json.loads(body), digest.decode()) for seq, body, digest in rows]

    monkeypatch.setattr(FileStore, "_read", trusting)
    check_damage_shows(path, content)
    with pytest.raises(AssertionError):
        check_damage_shows(path, cut)
