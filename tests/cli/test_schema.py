"""`sidelight schema`."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tables.small import write_tables


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_a_schema_to_edit(run: Any) -> None:
    outcome = run("schema", "public.csv", "--target", "sick", "--out", "s.json")
    assert outcome.code == 0 and outcome.err == ""
    assert "classification of sick from 2 numbers and 1 categories; 0 columns ignored" in outcome.words
    assert "--schema s.json" in outcome.words
    text = Path("s.json").read_text()
    assert run("schema", "public.csv", "--target", "sick").out == text
    body = json.loads(text)
    assert body["target"]["classes"] == ["no", "yes"]
    assert body["columns"]["job"] == {"type": "category", "categories": ["clerk", "nurse", "smith"]}
    assert all(len(line) < 110 for line in text.splitlines()), "one readable line a column"


def test_an_edited_schema_is_what_is_used(run: Any) -> None:
    assert run("schema", "public.csv", "--target", "sick", "--out", "s.json").code == 0
    body = json.loads(Path("s.json").read_text())
    body["columns"]["age"] = {"type": "number", "bounds": [0, 120]}
    body["columns"]["job"]["categories"] = ["smith"]
    body["columns"]["pay"] = {"type": "ignore"}
    Path("s.json").write_text(json.dumps(body))
    fit = (
        "fit",
        "private.csv",
        "--public",
        "public.csv",
        "--schema",
        "s.json",
        "--epsilon",
        "1",
        "--out",
        "m",
    )
    assert run(*fit).code == 0
    used = json.loads(Path("m/model.json").read_text())
    features = [name for name in used["features"] if not name.startswith("public model")]
    assert features == ["age: 0 to 120", "age: missing", "job: = smith", "job: other", "job: missing"]
    assert used["schema"]["columns"]["age"]["bounds"] == [0, 120]


def test_task_and_ignore(run: Any) -> None:
    body = json.loads(run("schema", "public.csv", "--target", "age", "--ignore", "pay").out)
    assert body["target"]["task"] == "regression" and body["columns"]["pay"]["type"] == "ignore"


def test_a_type_can_be_said(run: Any) -> None:
    body = json.loads(run("schema", "public.csv", "--target", "sick", "--type", "age=category").out)
    assert body["columns"]["age"]["type"] == "category"
    outcome = run("schema", "public.csv", "--target", "sick", "--type", "age")
    assert outcome.code == 2 and "expected COLUMN=TYPE" in outcome.err


def test_what_was_recognized_is_said(run: Any) -> None:
    import pandas as pd

    frame = pd.read_csv("public.csv")
    frame.assign(id=range(60), ok=[True, False] * 30).to_csv("more.csv", index=False)
    out = run("schema", "more.csv", "--target", "sick", "--out", "s.json").out
    assert "column 'ok': true or false" in out and "ignored 'id': looks like an identifier" in out
