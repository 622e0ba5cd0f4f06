"""`sidelight fit`: what a person sees, and what a script reads."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tables.small import SECRETS, pd, private_frame, write_tables

import sidelight
from sidelight.privacy.ledger import Ledger

FIT = ("fit", "private.csv", "--public", "public.csv", "--target", "sick", "--epsilon", "1", "--out", "model")


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_tables_to_a_folder(run: Any) -> None:
    outcome = run(*FIT)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("returned the private model, not compared with public rows alone: n·ε")
    assert "held out" not in outcome.out
    for words in (
        "sick from 3 columns: 300 private and 60 public records",
        "ε = 1,", "δ = 1e-05", "add-or-remove-one, no ledger", "auto, which chose", "only_public",
        "60 public rows", "in folds", "took part in the fit", "sidelight predict model new.csv",
        "model.json, weights.safetensors, privacy.json, report.html",
    ):  # fmt: skip
        assert words in outcome.words, outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "nothing was declared for a reviewer (--facts): title, purpose" in outcome.words
    assert "helped not known: this fit was not compared with public records alone" in outcome.words
    assert sorted(os.listdir("model")) == [
        "model.json", "privacy.json", "report.html", "weights.safetensors",
    ]  # fmt: skip
    assert not any(name.startswith(".") for name in os.listdir("."))
    assert run("predict", "model", "new.csv", "--out", "p.csv").code == 0


def test_json_for_scripts(run: Any) -> None:
    data = run(*FIT, "--json", "--method", "public_whitening", "--seed", "4").json
    assert data["model"] == "model" and data["privacy"]["epsilon"] <= 1
    assert data["scores"]["rows"] == 60 and "public_validation" not in data["scores"]
    held_out = run(*FIT, "--overwrite", "--validation", "0.2")
    assert "12 public rows held out" in held_out.out
    assert "95\u202f% interval" in held_out.out and "cannot tell whether they helped" in held_out.words
    assert data["data"]["private_records"] == 300
    assert any("seed" in line for line in data["privacy"]["assumptions"])


def test_a_seed_repeats_and_is_reported(run: Any) -> None:
    weights = []
    for _ in range(2):
        outcome = run(*FIT, "--seed", "7", "--overwrite")
        assert outcome.code == 0 and "seed" in outcome.out
        weights.append(Path("model/weights.safetensors").read_bytes())
    assert weights[0] == weights[1]
    assert "seed" in Path("model/privacy.json").read_text()
    assert "seed" not in run(*FIT, "--overwrite").out
    assert Path("model/weights.safetensors").read_bytes() != weights[0]


def test_a_ledger_pays(run: Any) -> None:
    Ledger.create("b.ledger").register("patients", relation="add-or-remove-one", epsilon=1.5, delta=1e-6)
    outcome = run(*FIT, "--ledger", "b.ledger", "--method", "public_whitening")
    assert outcome.code == 0 and "add-or-remove-one, run 1 of dataset patients" in outcome.words
    card = json.loads(Path("model/privacy.json").read_text())
    assert card["statement"]["delta"] == 1e-6 and len(card["ledger"]) == 1
    refused = run(*FIT, "--ledger", "b.ledger", "--overwrite")
    refused.is_one_line_error(3, "epsilon", "Try --epsilon 0.")
    fitting = refused.err.split("--epsilon ")[1].rstrip(".\n")
    assert run(*FIT, "--ledger", "b.ledger", "--overwrite", "--epsilon", fitting, "--dry-run").code == 0
    assert len(Ledger.open("b.ledger").charges("patients")) == 1


def test_a_dry_run_says_what_would_be_charged_and_charges_nothing(run: Any) -> None:
    book = Ledger.create("b.ledger")
    book.register("patients", relation="add-or-remove-one", epsilon=1.5, delta=1e-6)
    before = Path("b.ledger").read_bytes()
    outcome = run(*FIT, "--ledger", "b.ledger", "--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    for words in ("target sick: classification", "300 records in private.csv", "age",
                  "about 0.0003 of 300 records expected", "ε = 1 at δ = 1e-06, add-or-remove-one",
                  "it would be admitted"):  # fmt: skip
        assert words in outcome.words, outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert not Path("model").exists() and Path("b.ledger").read_bytes() == before
    over = run(*FIT, "--epsilon", "2", "--ledger", "b.ledger", "--dry-run")
    assert over.code == 3 and "it would be refused" in over.words and "plan" in over.out
    assert "Try --epsilon 1.5" in over.err and len(over.err.splitlines()) == 1
    assert book.charges("patients") == []
    Path("facts.toml").write_text("records_per_person = 5\n")
    person = run(*FIT[:-2], "--dry-run", "--facts", "facts.toml")  # no --out
    assert person.code == 0 and "per person (at most 5 records): ε = " in person.words
    assert "at most 300 people expected" in person.words
    run(*FIT[:-2]).is_one_line_error(2, "--out is missing")
    wrong = run(*FIT[:4], "--target", "nothing", *FIT[6:], "--dry-run")
    wrong.is_one_line_error(2, "nothing")


def test_a_dry_run_reads_no_cell_of_the_private_table(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidelight.estimators.fit_records import SchemaRecords

    def read(*_: object, **__: object) -> None:
        raise AssertionError("private rows were read")

    monkeypatch.setattr(SchemaRecords, "encoded", read)
    assert run(*FIT, "--dry-run").code == 0
    assert "AssertionError" in run(*FIT).err  # a fit does read them


def test_public_records_that_are_not_public_are_refused_before_the_charge(run: Any) -> None:
    Path("facts.toml").write_text("public_is_public = false\n")
    run(*FIT, "--facts", "facts.toml").is_one_line_error(
        2, "public_is_public is false", "Nothing was charged"
    )
    assert not Path("model").exists()


def test_names_of_ignored_columns_are_cut_and_reasons_come_once(run: Any) -> None:
    long = "z" * 500
    for name in ("private", "public"):
        table = pd.read_csv(f"{name}.csv", dtype=str).assign(**{long: "1", "other": "1"})
        table.to_csv(f"{name}.csv", index=False)
    outcome = run(*FIT)
    assert outcome.code == 0 and max(map(len, outcome.out.splitlines())) <= 80, outcome.out
    assert f"ignored '{'z' * 60}…', 'other': constant" in outcome.words


def test_parquet_schema_and_ignored_columns(run: Any) -> None:
    for name in ("private", "public"):
        pd.read_csv(f"{name}.csv", dtype=str).assign(id=lambda f: [f"x{i}" for i in f.index]).to_parquet(
            f"{name}.parquet"
        )
    assert run("schema", "public.parquet", "--target", "sick", "--out", "s.json").code == 0
    files = ("private.parquet", "--public", "public.parquet", "--schema", "s.json")
    outcome = run("fit", *files, "--epsilon", "1", "--out", "m")
    assert outcome.code == 0, outcome.err
    assert "ignored 'id': looks like an identifier" in outcome.words
    told = json.loads(Path("m/privacy.json").read_text())["statement"]
    assert any("schema was declared" in line for line in told["assumptions"])


def test_a_folder_larger_than_memory(run: Any, monkeypatch: pytest.MonkeyPatch, tables: Path) -> None:
    from sidelight.data import record_storage

    os.mkdir("lake")
    os.rename("private.csv", "lake/part.csv")
    monkeypatch.setattr(record_storage, "fits_in_memory", lambda *_: False)
    rest = FIT[2:]
    assert run("fit", "lake", *rest, "--memory", "2GB", "--scratch", ".").code == 0
    assert run("fit", "lake/*.csv", *rest, "--overwrite").code == 0
    assert sorted(os.listdir(".")) == ["lake", "model", "new.csv", "public.csv"]
    for wrong, words in (
        (("lake", *rest, "--memory", "much"), "a size such as 2GB"),
        (("lake", *rest, "--scratch", "none"), "none cannot be written"),
        (("lake/*.parquet", *rest), "does not exist"),
        (
            ("lake", *rest, "--method", "output_perturbation"),
            "output_perturbation reads all records",
        ),
    ):
        run("fit", *wrong, "--overwrite").is_one_line_error(2, words)


def test_what_private_values_are_changes_no_message(run: Any) -> None:
    """Types that do not parse, unknown classes, broken rows: the same words on both streams."""
    told = []
    for dirty in (False, True):
        frame = private_frame().head(299)
        if dirty:
            frame.loc[:40, "age"], frame.loc[:40, "sick"], frame.loc[:40, "pay"] = "x", "perhaps", "inf"
        frame.to_csv("private.csv", index=False)
        with open("private.csv", "a") as file:
            file.write("1,2\n" if dirty else "40,nurse,2,no\n")
        outcome = run(*FIT, "--overwrite", "--method", "only_public", "--validation", "0")
        assert outcome.code == 0
        told.append((outcome.out, outcome.err))
    assert told[0] == told[1]


def test_progress_is_for_terminals_alone(run: Any) -> None:
    """On a terminal, the steps and what was charged; in a pipe, nothing (seen above)."""
    main_end, end = pty.openpty()
    home = str(Path(sidelight.__file__).parents[1])
    env = {**os.environ, "COLUMNS": "100", "TERM": "xterm", "PYTHONPATH": home}
    command = [sys.executable, "-m", "sidelight", *FIT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, env=env) as process:
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(main_end, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
        process.wait(60)
    os.close(main_end)
    assert process.returncode == 0
    text = shown.decode(errors="replace")
    assert "charged, training" in text and "65" in text
    assert not any(secret in text for secret in SECRETS)


def test_a_killed_fit_leaves_its_charge_and_no_folder(tables: Path) -> None:
    Ledger.create("b.ledger").register("patients", relation="replace-one", epsilon=3.0, delta=1e-6)
    before = sorted(os.listdir("."))
    code = (
        "import os, signal, sys\nfrom sidelight.cli import main\nfrom sidelight.methods.recipe import Loop\n"
        "Loop.step = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\nmain(sys.argv[1:])"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sidelight.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code, *FIT, "--ledger", "b.ledger"], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    left = [name for name in os.listdir(".") if not name.startswith("b.ledger")]
    assert sorted(left) == [name for name in before if not name.startswith("b.ledger")]
    assert len(Ledger.open("b.ledger").charges("patients")) == 1


def test_without_pandas_it_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    run(*FIT).is_one_line_error(1, "pip install pandas pyarrow")
    assert not Path("model").exists()


def test_not_private_is_said_loudly(run: Any) -> None:
    outcome = run(*FIT, "--method", "non_private")
    assert outcome.code == 0 and "no guarantee at all" in outcome.out
    assert outcome.err.startswith("warning: non_private uses the private records without protection")
    assert (
        "nothing: the private records were not used"
        in run(*FIT, "--method", "only_public", "--overwrite").out
    )


def test_facts_are_checked_before_anything_is_spent(run: Any, tables: Path) -> None:
    budget = ("--relation", "replace-one", "--epsilon", "3", "--delta", "1e-6")
    run("ledger", "init", "l.ledger", "--name", "people", *budget)
    (tables / "facts.toml").write_text("purpos = 1\n")
    run(*FIT, "--ledger", "l.ledger", "--facts", "facts.toml").is_one_line_error(2, "no fact 'purpos'")
    run(*FIT, "--ledger", "l.ledger", "--by", "site").is_one_line_error(2, "no column 'site' to score by")
    assert "nothing was charged" in run("ledger", "charges", "l.ledger").out
    (tables / "facts.toml").write_text('purpose = "Whom to invite"\nrecords_per_person = 1\n')
    assert run(*FIT, "--facts", "facts.toml", "--by", "age").code == 0
    card = json.loads((tables / "model" / "privacy.json").read_text())
    assert card["facts"] == {"purpose": "Whom to invite", "records_per_person": 1}
    groups = card["scores"]["groups"]
    assert groups["column"] == "age" and sum(row["rows"] for row in groups["rows"]) == 12
    assert all(0 <= row["low"] <= row["value"] <= row["high"] <= 1 for row in groups["rows"])
    assert set(card["hashes"]) == {"weights.safetensors", "schema", "public table", "sidelight's source"}


def test_the_health_check_is_shown_and_can_be_switched_off(run: Any) -> None:
    assert "health   not made: with n = 300 and ε = 1 its noise" in run(*FIT).out
    strong = [*FIT, "--epsilon", "5", "--overwrite"]
    outcome = run(*strong)
    assert "of 300 private records contributed nothing" in outcome.out
    assert "health   not made: switched off" in run(*strong, "--no-health-check").out


def test_a_mismatch_is_a_warning_on_the_error_stream(run: Any) -> None:
    private_frame().assign(sick="Yes").to_csv("private.csv", index=False)
    outcome = run(*FIT, "--epsilon", "5")
    assert outcome.code == 0 and "contributed nothing" in outcome.err and "Traceback" not in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
