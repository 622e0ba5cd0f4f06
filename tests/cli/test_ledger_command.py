"""`sidelight ledger`: make, read and export a ledger; every trouble has its own exit code."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sidelight.errors import DatasetMismatch
from sidelight.privacy import events
from sidelight.privacy.ledger import Identity, Ledger

BUDGET = ("--relation", "add-or-remove-one", "--epsilon", "3", "--delta", "1e-6")


@pytest.fixture
def file(tmp_path: Path, run: Any) -> Path:
    """A ledger with one dataset."""
    path = tmp_path / "patients.ledger"
    assert run("ledger", "init", path, "--name", "patients", *BUDGET).code == 0
    return path


def charge(path: Path, noise: float = 5.0, *, note: str = "") -> None:
    with Ledger.open(path) as ledger:
        ledger.begin(
            "patients", events.gaussian(noise), relation="add-or-remove-one", method="dp_sgd", note=note
        )


def test_init_registers_what_was_asked(file: Path) -> None:
    with Ledger.open(file) as ledger:
        dataset = ledger.datasets()["patients"]
    assert (dataset.budget.epsilon, dataset.budget.delta, dataset.relation) == (
        3.0,
        1e-6,
        "add-or-remove-one",
    )


def test_init_again_changes_nothing(run: Any, file: Path) -> None:
    charge(file)
    before = file.read_bytes()
    outcome = run("ledger", "init", file, "--name", "patients", *BUDGET)
    assert outcome.code == 0 and "already" in outcome.out
    assert file.read_bytes() == before


def test_a_budget_cannot_be_raised(run: Any, file: Path) -> None:
    args = ("--relation", "add-or-remove-one", "--epsilon", "30", "--delta", "1e-6")
    run("ledger", "init", file, "--name", "patients", *args).is_one_line_error(2, "for life", "ε = 3")
    assert run("ledger", "show", file, "--json").json["datasets"]["patients"]["budget"] == 3.0


def test_a_second_dataset_joins_the_same_file(run: Any, file: Path) -> None:
    assert run("ledger", "init", file, "--name", "visits", *BUDGET).code == 0
    assert set(run("ledger", "show", file, "--json").json["datasets"]) == {"patients", "visits"}


def test_show_counts_what_was_charged(run: Any, file: Path) -> None:
    assert run("ledger", "show", file, "--json").json["datasets"]["patients"]["remaining"] == 3.0
    charge(file)
    one = run("ledger", "show", file, "--json").json["datasets"]["patients"]
    assert one["runs"] == 1 and 0 < one["epsilon"] <= one["epsilon_adaptive"] <= 3.0
    assert 0 < one["remaining"] < 3.0
    text = run("ledger", "show", file).out
    for words in ("patients", "add-or-remove-one", "1e-06", "budget", "left"):
        assert words in text


def test_charges_lists_every_run(run: Any, file: Path) -> None:
    assert "nothing" in run("ledger", "charges", file).out
    charge(file, 5.0, note="first")
    charge(file, 6.0, note="second")
    listed = run("ledger", "charges", file, "--json").json["charges"]
    assert [c["note"] for c in listed] == ["first", "second"]
    assert listed[0]["plan"] == {"kind": "gaussian", "noise_multiplier": 5.0}
    text = run("ledger", "charges", file, "--name", "patients").out
    assert "dp_sgd" in text and "multiplier 6" in text and "second" in text


def test_text_of_others_is_shown_as_it_is(run: Any, file: Path) -> None:
    charge(file, note="[bold]not markup[/] \x1b[31mnot red")
    text = run("ledger", "charges", file).out
    assert "[bold]" in text and "\x1b" not in text


def test_export_to_a_new_file(run: Any, file: Path, tmp_path: Path) -> None:
    charge(file)
    out = tmp_path / "patients.json"
    assert run("ledger", "export", file, "--out", out).code == 0
    written = json.loads(out.read_text())
    assert written == run("ledger", "export", file).json
    assert len(written["datasets"]["patients"]["runs"]) == 1
    assert "fingerprint" not in json.dumps(written)  # nor a key of one


def test_export_never_replaces_a_file(run: Any, file: Path) -> None:
    """`--out patients.ledger` must not destroy the ledger."""
    before = file.read_bytes()
    run("ledger", "export", file, "--out", file).is_one_line_error(2, "not replaced")
    assert file.read_bytes() == before


def bind(path: Path, X: Any) -> None:
    with Ledger.open(path) as ledger:
        plan, identity = events.gaussian(20.0), Identity.of(X)
        ledger.begin("patients", plan, relation="add-or-remove-one", method="dp_sgd", identity=identity)


def test_fingerprints_are_exported_on_request_only(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "f.ledger"
    assert run("ledger", "init", path, "--name", "patients", *BUDGET, "--fingerprint").code == 0
    bind(path, np.eye(4))
    [bound] = Ledger.open(path).bindings("patients")
    for secret in (bound.mac, bound.key):
        assert secret is not None and len(secret) == 64
        assert secret not in run("ledger", "export", path).out + run("ledger", "show", path, "--json").out
        assert secret in run("ledger", "export", path, "--fingerprints").out


def test_show_says_what_was_checked(run: Any, file: Path) -> None:
    def told() -> str:
        return " ".join(run("ledger", "show", file).out.split())

    assert "patients: bound to nothing yet, its first fit binds it" in told()
    charge(file)
    assert "its first fit binds it; no run showed its records" in told()
    bind(file, np.eye(4, 3))
    bound = "patients: bound to records of shape (3,), 4 records, keyed fingerprint: no"
    assert f"{bound}; 1 of 2 runs showed no records" in told()
    one = run("ledger", "show", file, "--json").json["datasets"]["patients"]
    assert one["bound_to"] == [{"records": 4, "columns": None, "shape": [3], "contents": False}]


def test_rebind_accepts_one_other_form(run: Any, file: Path) -> None:
    bind(file, np.eye(4, 3))
    with pytest.raises(DatasetMismatch):
        bind(file, np.eye(5, 3))
    assert "unchanged" in run("ledger", "rebind", file, "--name", "patients").out
    assert "the next run may add another form" in " ".join(run("ledger", "show", file).out.split())
    bind(file, np.eye(5, 3))
    assert "(3,), 4 records, keyed fingerprint: no or records of" in " ".join(
        run("ledger", "show", file).out.split()
    )
    with pytest.raises(DatasetMismatch):
        bind(file, np.eye(6, 3))
    run("ledger", "rebind", file, "--name", "nobody").is_one_line_error(2, "--name", "nobody")


def test_parts_of_a_table_have_no_fingerprint_of_the_whole(run: Any, tmp_path: Path) -> None:
    args = ("ledger", "init", tmp_path / "f.ledger", "--name", "d", *BUDGET, "--fingerprint", "--any-size")
    run(*args).is_one_line_error(2, "--any-size", "leave out --fingerprint")
    assert not (tmp_path / "f.ledger").exists()


def test_reading_leaves_the_file_as_it_is(run: Any, file: Path) -> None:
    charge(file)
    before = file.read_bytes()
    for command in ("show", "charges", "export"):
        assert run("ledger", command, file).code == 0
    assert file.read_bytes() == before
    assert sorted(p.name for p in file.parent.iterdir()) == [file.name]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--name", "d", *BUDGET[:4], "0", *BUDGET[4:]), "stray"),
        (("--name", "d", "--relation", "user", *BUDGET[2:]), "--relation: expected add-or-remove-one"),
        (("--name", "d", *BUDGET[:3], "-3", *BUDGET[4:]), "--epsilon: expected"),
        (("--name", "d", *BUDGET[:3], "inf", *BUDGET[4:]), "--epsilon: expected"),
        (("--name", "d", *BUDGET[:5], "1"), "--delta: expected"),
        (("--name", "d", *BUDGET[2:]), "--relation is missing"),
        (("--name", "d", *BUDGET[:2], *BUDGET[4:]), "--epsilon is missing"),
        (BUDGET, "--name is missing"),
        (("--name", " ", *BUDGET), "--name: expected"),
    ],
)
def test_bad_init_is_one_line_and_makes_no_file(
    run: Any, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    path = tmp_path / "new.ledger"
    words = "unexpected extra argument" if words == "stray" else words
    run("ledger", "init", path, *args).is_one_line_error(2, words)
    assert not path.exists()


@pytest.mark.parametrize("command", ["show", "charges", "export"])
def test_a_ledger_that_is_not_there(run: Any, tmp_path: Path, command: str) -> None:
    run("ledger", command, tmp_path / "none").is_one_line_error(4, "does not exist", "ledger init")
    run("ledger", command).is_one_line_error(2, "FILE is missing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["show", "charges", "export"])
def test_an_unknown_dataset(run: Any, file: Path, command: str) -> None:
    run("ledger", command, file, "--name", "patient").is_one_line_error(2, "Did you mean 'patients'")


@pytest.mark.parametrize("content", [b"", b"name,age\nAda,36\n", b"SQLite format 3\x00" + b"\xff" * 500])
@pytest.mark.parametrize("command", ["show", "charges", "export", "init"])
def test_a_file_that_is_no_ledger(run: Any, tmp_path: Path, command: str, content: bytes) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    more = ("--name", "d", *BUDGET) if command == "init" else ()
    outcome = run("ledger", command, path, *more)
    outcome.is_one_line_error(4)
    assert "Ada" not in outcome.err
    assert path.read_bytes() == content


def test_a_damaged_ledger_is_reported_and_kept(run: Any, file: Path) -> None:
    charge(file)
    with sqlite3.connect(file) as db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute("UPDATE entries SET body = replace(body, '5.0', '50.0')")
    db.close()
    before = file.read_bytes()
    run("ledger", "show", file).is_one_line_error(4, "damaged")
    assert file.read_bytes() == before


def test_a_folder_is_not_a_ledger(run: Any, tmp_path: Path) -> None:
    run("ledger", "show", tmp_path).is_one_line_error(4)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_export_that_cannot_be_written(run: Any, file: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    run("ledger", "export", file, "--out", tmp_path / "locked" / "x.json").is_one_line_error(
        2, "cannot be written"
    )


def test_an_export_into_a_folder_that_is_not_there(run: Any, file: Path, tmp_path: Path) -> None:
    run("ledger", "export", file, "--out", tmp_path / "no" / "x.json").is_one_line_error(
        2, "cannot be written"
    )


def test_a_budget_that_protects_little_is_warned_of(run: Any, tmp_path: Path) -> None:
    args = ("--name", "people", "--relation", "add-or-remove-one", "--delta", "1e-6", "--epsilon")
    small = run("ledger", "init", tmp_path / "a.ledger", *args, "3")
    assert small.err == "" and "guesses correctly at most 95.3 % of the time" in small.words
    outcome = run("ledger", "init", tmp_path / "b.ledger", *args, "12")
    assert outcome.code == 0 and outcome.err.startswith("warning: ε = 12 protects little")
    assert outcome.err.count("\n") == 1 and "at most 99.9994 % of the time" in outcome.words
