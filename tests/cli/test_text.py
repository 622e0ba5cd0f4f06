"""Columns of text on the command line."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.tables.test_text import ENCODER, NEW, PRIVATE, PUBLIC

from sidelight.data.schema import Schema

ASKED = ("--target", "stars", "--text", "review", "--encoder")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, frame in {"private": PRIVATE, "public": PUBLIC, "new": NEW.drop(columns="stars")}.items():
        frame.to_csv(f"{name}.csv", index=False)


@pytest.mark.usefixtures("tables")
def test_text_is_fitted_predicted_and_listed(run: Run) -> None:
    fit = ("fit", "private.csv", "--public", "public.csv", "--epsilon", "2", "--out", "m")
    done = run(*fit, *ASKED, ENCODER)
    assert done.code == 0, done.err
    assert f"text; 128 numbers by the encoder {ENCODER}" in done.out
    done = run("predict", "m", "new.csv", "--out", "-")
    assert done.code == 0 and len(done.out.split()) == len(NEW) + 1
    done = run("schema", "public.csv", *ASKED, ENCODER)
    assert Schema.from_dict(json.loads(done.out)).columns["review"].dimension == 128


@pytest.mark.usefixtures("tables")
def test_an_encoder_that_is_none_is_one_line(run: Run) -> None:
    fit = ("fit", "private.csv", "--public", "public.csv", "--epsilon", "2", "--out", "m")
    run(*fit, *ASKED, "nothing").is_one_line_error(2, "no encoder 'nothing'", "minilm, wordllama, hashed")
    Path("folder").mkdir()
    run(*fit, *ASKED, "folder").is_one_line_error(2, "folder/model.safetensors cannot be read")
    assert not Path("m").exists()
