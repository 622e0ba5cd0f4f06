"""Bad input to `fit`, `predict` and `schema`: one line, an exit code, no charge, no file, no private value."""

# ruff: noqa: E501 - a table, one case per line

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.tables.small import SECRETS, pd, write_tables

from sidelight.cli import main
from sidelight.privacy.ledger import Ledger

FIT = "fit private.csv --public public.csv --target sick --epsilon 1 --out new-model --ledger book.ledger"
FIT_WITH = FIT.replace("--target sick", "--schema schema.json")
PREDICT = "predict model new.csv --out predictions.csv"
SCHEMA = "schema public.csv --target sick --out new.json"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, a schema, a model and a ledger, as a user has them."""
    folder = tmp_path_factory.mktemp("world")
    write_tables(folder)
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(shlex.split("schema public.csv --target sick --out schema.json")) == 0
        assert (
            main(shlex.split("fit private.csv --public public.csv --target sick --epsilon 1 --out model"))
            == 0
        )
        Ledger.create("book.ledger").register("patients", relation="replace-one", epsilon=3.0, delta=1e-5)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def world(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "world"
    shutil.copytree(template, folder)
    monkeypatch.chdir(folder)
    return folder


def listing(folder: Path) -> dict[str, str]:
    """Every file with its checksum; the ledger is looked at by `charges`."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
        if not path.name.startswith("book.ledger")
    }


def charges(folder: Path) -> int | None:
    """How many runs the ledger holds; None if it cannot be read."""
    try:
        return len(Ledger.open(folder / "book.ledger").charges("patients"))
    except Exception:
        return None


# ---------------------------------------------------------------------------------------------------------
# what is done to the world before the command


def write(name: str, content: str | bytes) -> Callable[[], None]:
    return lambda: void(Path(name).write_bytes(content.encode() if isinstance(content, str) else content))


def void(_: object) -> None: ...


def change(name: str, edit: Callable[[Any], Any]) -> Callable[[], None]:
    def do() -> None:
        frame = pd.read_csv(name, dtype=str, keep_default_na=False)
        edited = edit(frame)
        (frame if edited is None else edited).to_csv(name, index=False)

    return do


def put(name: str, row: int, column: str, value: str) -> Callable[[], None]:
    def edit(frame: Any) -> None:
        frame.loc[row, column] = value

    return change(name, edit)


def edit_json(name: str, edit: Callable[[Any], Any]) -> Callable[[], None]:
    def do() -> None:
        body = json.loads(Path(name).read_text())
        edit(body)
        Path(name).write_text(json.dumps(body))

    return do


def column(name: str, **entry: Any) -> Callable[[], None]:
    return edit_json("schema.json", lambda body: body["columns"].update({name: entry}))


def spend_everything() -> None:
    write_tables(Path("."))
    assert main(shlex.split(FIT.replace("--epsilon 1", "--epsilon 2.9").replace("new-model", "first"))) == 0
    shutil.rmtree("first")


def damage_ledger() -> None:
    path = Path("book.ledger")
    content = bytearray(path.read_bytes())
    at = content.find(b"replace-one")
    content[at : at + 7] = b"REPLACE"
    path.write_bytes(bytes(content))


def second_dataset() -> None:
    Ledger.open("book.ledger").register("others", relation="replace-one", epsilon=1.0, delta=1e-6)


def both(*steps: Callable[[], None]) -> Callable[[], None]:
    return lambda: [step() for step in steps] and None


def flip_bit(name: str) -> Callable[[], None]:
    def do() -> None:
        content = bytearray(Path(name).read_bytes())
        content[-1] ^= 1
        Path(name).write_bytes(bytes(content))

    return do


def twice(name: str) -> Callable[[], None]:
    """A second column `job`."""

    def do() -> None:
        lines = Path(name).read_text().splitlines()
        Path(name).write_text("\n".join(f"{line},{'job' if i == 0 else 'x'}" for i, line in enumerate(lines)))

    return do


def delete(name: str) -> Callable[[], None]:
    return lambda: os.unlink(name)


@dataclass(frozen=True)
class Case:
    name: str
    args: str
    words: tuple[str, ...]
    before: Callable[[], None] = lambda: None
    code: int = 2


def case(name: str, args: str, *words: str, before: Callable[[], None] = lambda: None, code: int = 2) -> Case:
    return Case(name, args, words, before, code)


def pipe(path: str) -> None:
    os.remove(path)
    os.mkfifo(path)


def endless(path: str) -> None:
    os.remove(path)
    os.symlink("/dev/zero", path)


def many_categories() -> None:
    body = json.loads(Path("schema.json").read_text())
    name = next(iter(body["columns"]))
    body["columns"][name] = {"type": "category", "categories": [str(i) for i in range(300_000)]}
    Path("schema.json").write_text(json.dumps(body))


BINARY = bytes(range(256)) * 20
CASES = [
    # files
    case("private missing", FIT.replace("private.csv", "nobody.csv"), "nobody.csv does not exist"),
    case("private pipe", FIT, "private.csv is a pipe or a device", before=lambda: pipe("private.csv")),
    case("public pipe", FIT, "public.csv is a pipe or a device", before=lambda: pipe("public.csv")),
    case("new pipe", PREDICT, "new.csv is a pipe or a device", before=lambda: pipe("new.csv")),
    case("endless private table", FIT, "private.csv is a pipe or a device", before=lambda: endless("private.csv")),
    case("endless schema", FIT_WITH, "schema.json cannot be read: it is not a file", before=lambda: endless("schema.json")),
    case("endless weights", PREDICT, "weights.safetensors cannot be read: it is not a file", before=lambda: endless("model/weights.safetensors")),
    case("endless model", PREDICT, "model.json cannot be read: it is not a file", before=lambda: endless("model/model.json")),
    case("too many categories", FIT_WITH, "300,000 categories, and at most 10,000", before=lambda: many_categories()),
    case("public missing", FIT.replace("public.csv", "nobody.csv"), "nobody.csv does not exist"),
    case("private passed as public", FIT.replace("public.csv", "./private.csv"), "cannot be its own public table"),
    case("private is a folder", FIT.replace("private.csv", "model"), "is a folder"),
    case("private empty", FIT, "private.csv is empty", before=write("private.csv", "")),
    case("public empty", FIT, "public.csv is empty", before=write("public.csv", "\n \n")),
    case("private header only", FIT, "private table has no records", before=write("private.csv", "age,job,pay,sick\n")),
    case("public header only", FIT, "public table has no records", before=write("public.csv", "age,job,pay,sick\n")),
    case("private binary", FIT, "not a table in UTF-8 text", before=write("private.csv", BINARY)),
    case("public binary", FIT, "not a table in UTF-8 text", before=write("public.csv", BINARY)),
    case("utf-16", FIT, "UTF-8", before=write("public.csv", "age,job\n1,x\n".encode("utf-16"))),
    case("no parquet", FIT.replace("public.csv", "p.parquet"), "Parquet", before=write("p.parquet", BINARY)),
    case("damaged gzip", FIT.replace("public.csv", "p.csv.gz"), "cannot be read", before=write("p.csv.gz", BINARY)),
    case(
        "wrong delimiter", FIT, "private table lacks", "its first line must be the columns' names",
        before=lambda: void(Path("private.csv").write_text(Path("private.csv").read_text().replace(",", ":"))),
    ),
    case("quote stays open", FIT, "public.csv", before=write("public.csv", 'age,job,pay,sick\n"1,a,2,yes\n' * 3)),
    # columns
    case("target absent in public", FIT.replace("sick", "ill"), "no column 'ill'", "'sick'"),
    case("target absent in private", FIT, "private table lacks column 'sick'", before=change("private.csv", lambda f: f.drop(columns="sick"))),
    case("no target named", FIT.replace("--target sick", ""), "--target is missing"),
    case("column missing in private", FIT, "lacks column 'pay'", before=change("private.csv", lambda f: f.drop(columns="pay"))),
    case("column missing in public", FIT, "private table has column 'pay'", "--ignore", before=change("public.csv", lambda f: f.drop(columns="pay"))),
    case("extra private column", FIT, "column 'nurse_id'", "--ignore", before=change("private.csv", lambda f: f.assign(nurse_id="1"))),
    case("column names swapped for others", FIT, "lacks columns 'age', 'job'", before=change("private.csv", lambda f: f.rename(columns={"age": "a", "job": "b"}))),
    case("two columns of one name", FIT, "more than one column 'job'", before=twice("private.csv")),
    case("two public columns of one name", FIT, "more than one column 'job'", before=twice("public.csv")),
    case("a column without a name", FIT, "column 1", "no name", before=lambda: void(pd.read_csv("public.csv").to_csv("public.csv"))),
    case("ignore unknown", FIT + " --ignore shoe", "'shoe'"),
    case("ignore the target", FIT + " --ignore sick", "is the target"),
    case("ignore everything", FIT + " --ignore age --ignore job --ignore pay", "no column", "can be used"),
    # public values
    case("public row not parsable", FIT, "row 4", "5 fields", "header has 4", before=lambda: void(Path("public.csv").write_text("age,job,pay,sick\n30,nurse,1,no\n31,clerk,1,yes\n31,clerk,1,yes,no\n"))),
    case("public number not a number", FIT, "'age'", "'old'", "record 8", before=put("public.csv", 7, "age", "old")),
    case("public number infinite", FIT, "'pay'", "infinite or huge", before=put("public.csv", 3, "pay", "inf")),
    case("public number huge", FIT, "'pay'", "infinite or huge", before=put("public.csv", 3, "pay", "1e308")),
    case("public target of one class", FIT, "'sick' has one value", before=change("public.csv", lambda f: f.assign(sick="no"))),
    case("public bytes not UTF-8", FIT, "'job'", "UTF-8", before=lambda: void(Path("public.csv").write_bytes(Path("public.csv").read_bytes().replace(b"nurse", b"n\xfcrse")))),
    case("public all columns empty", FIT, "can be used", before=change("public.csv", lambda f: f.assign(age="", job="", pay="?"))),
    case("identifier as target", FIT, "60 values in 60 public rows", before=change("public.csv", lambda f: f.assign(sick=[f"p{i}" for i in range(60)]))),
    case("regression of a text", FIT + " --task regression", "not a number in every public row"),
    case("regression of a constant", FIT + " --task regression", "same in every public row", before=change("public.csv", lambda f: f.assign(sick="1"))),
    # options
    case("epsilon 0", FIT.replace("--epsilon 1", "--epsilon 0"), "--epsilon", "above 0"),
    case("epsilon negative", FIT.replace("--epsilon 1", "--epsilon -1"), "--epsilon", "above 0"),
    case("epsilon nan", FIT.replace("--epsilon 1", "--epsilon nan"), "--epsilon"),
    case("epsilon infinite", FIT.replace("--epsilon 1", "--epsilon inf"), "--epsilon"),
    case("epsilon text", FIT.replace("--epsilon 1", "--epsilon lots"), "--epsilon", "'lots'"),
    case("epsilon missing", FIT.replace("--epsilon 1", ""), "--epsilon is missing"),
    case("out missing", FIT.replace("--out new-model", ""), "--out is missing"),
    case("delta negative", FIT + " --delta -1e-6", "--delta"),
    case("delta 1", FIT + " --delta 1", "--delta"),
    case("method unknown", FIT + " --method dpsgd", "no method 'dpsgd'", "'dp_sgd'"),
    case("loss unknown", FIT + " --loss quadratic", "--loss"),
    case("loss for regression", FIT.replace("sick", "pay") + " --loss hinge", "loss"),
    case("relation unknown", FIT + " --relation swap", "--relation"),
    case("relation not offered", FIT.replace("--ledger book.ledger", "") + " --method rsgd_ar --relation add-or-remove-one", "rsgd_ar supports replace-one only"),
    case("seed negative", FIT + " --seed -3", "--seed"),
    case("validation above 1", FIT + " --validation 1.5", "--validation"),
    case("option misspelled", FIT + " --metod auto", "--method"),
    case("public data needed", FIT_WITH.replace("--public public.csv", "") + " --method dope_sgd", "dope_sgd needs public records"),
    case("neither public nor schema", FIT.replace("--public public.csv", ""), "--public or --schema is missing"),
    case("non-private under a ledger", FIT + " --method non_private", "warning", code=3),
    # where the model goes
    case("folder holds a model", FIT.replace("new-model", "model"), "holds a model already", "--overwrite"),
    case("folder holds other things", FIT.replace("new-model", "papers") + " --overwrite", "something other", before=lambda: void((os.mkdir("papers"), Path("papers/will.txt").write_text("x")))),
    case("out is a file", FIT.replace("new-model", "new.csv"), "new.csv is a file"),
    case("out is here", FIT.replace("--out new-model", "--out ."), "."),
    case("out has no parent", FIT.replace("new-model", "no/where"), "no is not a folder"),
    case("out below a file", FIT.replace("new-model", "new.csv/model"), "not a folder"),
    case("out cannot be written", FIT.replace("new-model", "/proc/model"), "/proc/model cannot be written"),
    # schema
    case("schema missing", FIT_WITH.replace("schema.json", "no.json"), "no.json does not exist"),
    case("schema no JSON", FIT_WITH, "not valid JSON (line 1)", before=write("schema.json", "{'a'")),
    case("schema not a schema", FIT_WITH, "schema.json is not a schema", before=write("schema.json", "[1]")),
    case("schema of another format", FIT_WITH, '"sidelight_schema": 1', before=edit_json("schema.json", lambda b: b.update(sidelight_schema=9))),
    case("schema field unknown", FIT_WITH, "column 'age' has no field 'bound'", before=column("age", type="number", bound=[1, 2])),
    case("schema type unknown", FIT_WITH, "column 'age': type", before=column("age", type="integer")),
    case("schema bounds reversed", FIT_WITH, "column 'age': bounds are reversed", before=column("age", type="number", bounds=[90, 17])),
    case("schema bounds missing", FIT_WITH, "column 'age': bounds must be", before=column("age", type="number")),
    case("schema bounds infinite", FIT_WITH, "column 'age': bounds", before=column("age", type="number", bounds=[0, float("inf")])),
    case("schema categories empty", FIT_WITH, "column 'job': categories", before=column("job", type="category", categories=[])),
    case("schema category twice", FIT_WITH, "column 'job': categories", before=column("job", type="category", categories=["a", "a"])),
    case("schema knots outside", FIT_WITH, "column 'age': knots", before=column("age", type="number", bounds=[1, 9], knots=[10])),
    case("schema one class", FIT_WITH, "at least two", before=edit_json("schema.json", lambda b: b["target"].update(classes=["no"]))),
    case("schema mixed classes", FIT_WITH, "all be texts, or all be numbers", before=edit_json("schema.json", lambda b: b["target"].update(classes=["no", 1]))),
    case("schema ignores all", FIT_WITH, "every column is ignored", before=edit_json("schema.json", lambda b: b.update(columns={"age": {"type": "ignore"}}))),
    case("schema lacks a column", FIT_WITH, "private table has column 'job'", before=edit_json("schema.json", lambda b: b["columns"].pop("job"))),
    case("schema has another column", FIT_WITH, "private table lacks column 'shoe'", before=column("shoe", type="number", bounds=[1, 2])),
    case("schema of another target", FIT_WITH + " --target job", "schema's is 'sick'"),
    case("schema misses a public class", FIT_WITH, "of the public table has no 'sick' that the schema knows", before=edit_json("schema.json", lambda b: b["target"].update(classes=["no", "maybe"]))),
    case("schema says number, public says text", FIT_WITH, "'job' of the public table is not a number", before=column("job", type="number", bounds=[0, 1])),
    case("schema with ignore", FIT_WITH + " --ignore age", '"type": "ignore"'),
    case("schema command: file exists", SCHEMA.replace("new.json", "schema.json"), "is not replaced"),
    case("schema command: no target", SCHEMA.replace("sick", "ill"), "no column 'ill'"),
    case("schema command: unwritable", SCHEMA.replace("new.json", "no/where.json"), "cannot be written"),
    # the ledger
    case("ledger missing", FIT.replace("book.ledger", "no.ledger"), "no.ledger", code=4),
    case("ledger is another file", FIT.replace("book.ledger", "public.csv"), "public.csv", code=4),
    case("ledger damaged", FIT, "book.ledger", before=damage_ledger, code=4),
    case("ledger exhausted", FIT, "epsilon", before=spend_everything, code=3),
    case("more than the whole budget", FIT.replace("--epsilon 1", "--epsilon 9"), "epsilon", code=3),
    case("dataset unknown", FIT + " --dataset nobody", "no dataset 'nobody'", "patients"),
    case("dataset not said", FIT, "2 datasets", before=second_dataset),
    case("dataset without ledger", FIT.replace("--ledger book.ledger", "--dataset patients"), "ledger"),
    case("relation of the ledger is another", FIT + " --relation add-or-remove-one", "'patients' is replace-one"),
    # prediction
    case("no model", PREDICT.replace("model", "nothing"), "nothing is not a model folder"),
    case("model is a file", PREDICT.replace("model", "new.csv", 1), "is not a model folder"),
    case("model.json gone", PREDICT, "model.json is not there", before=delete("model/model.json")),
    case("weights gone", PREDICT, "weights.safetensors is not there", before=delete("model/weights.safetensors")),
    case("privacy.json gone", PREDICT, "privacy.json is not there", before=delete("model/privacy.json")),
    case("weights changed", PREDICT, "weights.safetensors was changed", before=flip_bit("model/weights.safetensors")),
    case("weights cut", PREDICT, "weights.safetensors was changed", before=write("model/weights.safetensors", b"")),
    case("model.json cut", PREDICT, "not valid JSON", before=write("model/model.json", '{"kind": ')),
    case("model.json of others", PREDICT, "does not describe a table model", before=write("model/model.json", "{}")),
    case("model.json changed", PREDICT, "model.json was changed", before=edit_json("model/model.json", lambda b: b.update(max_norm=2.0))),
    case("model.json misses a part", PREDICT, "model.json was changed", before=edit_json("model/model.json", lambda b: b.pop("schema"))),
    case("model of another version", PREDICT, "format 9", "reads formats 1", before=edit_json("model/model.json", lambda b: b.update(format=9))),
    case("privacy.json changed", PREDICT, "privacy.json is not a privacy card", before=write("model/privacy.json", "{}")),
    case("new table missing", PREDICT.replace("new.csv", "no.csv"), "no.csv does not exist"),
    case("new table empty", PREDICT, "new.csv is empty", before=write("new.csv", "")),
    case("new table without records", PREDICT, "new.csv has no records", before=write("new.csv", "age,job,pay\n")),
    case("new table lacks a column", PREDICT, "lacks column 'pay'", before=change("new.csv", lambda f: f.drop(columns="pay"))),
    case("new table binary", PREDICT, "UTF-8", before=write("new.csv", BINARY)),
    case("predictions exist", PREDICT.replace("predictions.csv", "public.csv"), "public.csv exists", "--overwrite"),
    case("predictions into a folder", PREDICT.replace("predictions.csv", "model"), "is a folder"),
    case("predictions unwritable", PREDICT.replace("predictions.csv", "no/p.csv"), "cannot be written"),
    case("keep unknown", PREDICT + " --keep shoe", "'shoe'"),
    case("predictions and JSON on stdout", PREDICT.replace("predictions.csv", "-") + " --json", "--json"),
]  # fmt: skip


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40 and len({one.name for one in CASES}) == len(CASES)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name.replace(" ", "-"))
def test_bad_input_is_one_line_and_leaves_no_trace(run: Any, world: Path, one: Case) -> None:
    one.before()
    files, spent = listing(world), charges(world)
    outcome = run(*shlex.split(one.args))
    lines = outcome.err.splitlines()
    if one.words[0] == "warning":  # the one line comes after a warning that is due
        assert lines.pop(0).startswith("warning")
    assert outcome.code == one.code, outcome.err
    assert outcome.out == "" and len(lines) == 1, (outcome.out, outcome.err)
    assert "Traceback" not in outcome.err and "internal error" not in outcome.err
    assert lines[0].startswith("sidelight")
    for word in one.words:
        assert word in outcome.err, outcome.err
    assert not any(secret in outcome.err for secret in SECRETS)
    assert listing(world) == files
    assert charges(world) == spent


# ---------------------------------------------------------------------------------------------------------
# interrupted


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@dataclass(frozen=True)
class Stop:
    where: str  # what raises
    charged: int
    words: str


STOPS = [
    Stop("sidelight.tables.fitting.read_public", 0, "nothing was charged"),
    Stop("sidelight.tables.fitting.encode_target", 0, "nothing was charged"),
    Stop("sidelight.privacy.contract.Contract.check", 0, "nothing was charged"),
    Stop("sidelight.data.coordinates.Coordinates.private", 1, "its charge stays in book.ledger"),
    Stop("sidelight.methods.recipe.Loop.step", 1, "its charge stays in book.ledger"),
    Stop("sidelight.tables.fitting.scores", 1, "its charge stays in book.ledger"),
    Stop("sidelight.estimators.model_folder._write_weights", 1, "its charge stays in book.ledger"),
    Stop("sidelight.report.write_report", 1, "its charge stays in book.ledger"),
    Stop("sidelight.files.os.chmod", 1, "its charge stays in book.ledger"),
]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.where.rsplit(".", 1)[-1])
def test_an_interrupted_fit_leaves_its_charge_and_no_folder(
    run: Any, world: Path, monkeypatch: pytest.MonkeyPatch, stop: Stop
) -> None:
    files = listing(world)
    monkeypatch.setattr(stop.where, interrupt)
    outcome = run(*shlex.split(FIT))
    monkeypatch.undo()
    outcome.is_one_line_error(130, "interrupted", stop.words)
    assert listing(world) == files
    assert charges(world) == stop.charged


def test_an_interrupted_overwrite_keeps_the_old_model(
    run: Any, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = listing(world)
    real = os.rename

    def second_rename_fails(a: Any, b: Any) -> None:
        if Path(b).name == "model" and Path(a).name != "was":
            raise KeyboardInterrupt
        real(a, b)

    monkeypatch.setattr("sidelight.files.os.rename", second_rename_fails)
    assert run(*shlex.split(FIT.replace("new-model", "model") + " --overwrite")).code == 130
    assert listing(world) == files


def test_a_full_disk_after_the_charge_says_what_was_spent(
    run: Any, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = listing(world)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sidelight.estimators.model_folder._write_weights", full)
    run(*shlex.split(FIT)).is_one_line_error(1, "No space left", "spent")
    assert listing(world) == files and charges(world) == 1


def test_an_interrupted_prediction_leaves_nothing(
    run: Any, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = listing(world)
    monkeypatch.setattr("sidelight.files.os.replace", interrupt)
    outcome = run(*shlex.split(PREDICT))
    assert outcome.code == 130 and outcome.err.strip() == "sidelight: interrupted"
    assert listing(world) == files
