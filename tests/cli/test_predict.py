"""`sidelight predict`."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from tests.tables.small import pd, private_frame, public_frame, write_tables

from sidelight.tables import TableModel, fit_tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    write_tables(place)
    for loss in ("logistic", "hinge"):
        fit_tables(
            private_frame(), public_frame(), target="sick", epsilon=3.0, loss=loss, method="public_whitening"
        ).save(place / loss)
    return place


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_one_prediction_a_record_in_order(run: Any) -> None:
    outcome = run("predict", "logistic", "new.csv", "--out", "p.csv")
    assert (outcome.out, outcome.err) == ("wrote 30 predictions of sick to p.csv\n", "")
    found = pd.read_csv("p.csv")
    assert list(found.columns) == ["sick"]
    assert found.sick.tolist() == TableModel.load("logistic").predict("new.csv").tolist()
    run("predict", "logistic", "new.csv", "--out", "p.csv").is_one_line_error(2, "exists")
    data = run("predict", "logistic", "new.csv", "--out", "p.csv", "--overwrite", "--json").json
    assert data == {"predictions": "p.csv", "records": 30, "target": "sick"}
    assert not [name for name in os.listdir(".") if name.startswith(".")]


def test_probabilities_and_kept_columns_on_stdout(run: Any) -> None:
    outcome = run("predict", "logistic", "new.csv", "--out", "-", "--proba", "--keep", "age")
    found = pd.read_csv(io.StringIO(outcome.out))
    assert list(found.columns) == ["age", "sick", "probability of no", "probability of yes"]
    assert found.age.tolist() == pd.read_csv("new.csv").age.tolist()
    assert ((found["probability of yes"] > 0.5) == (found.sick == "yes")).all()


def test_the_target_may_be_kept_for_comparison(run: Any) -> None:
    outcome = run("predict", "logistic", "public.csv", "--out", "-", "--keep", "sick")
    assert outcome.out.splitlines()[0] == "sick,predicted sick"


def test_probabilities_for_a_hinge(run: Any) -> None:
    lines = run("predict", "hinge", "new.csv", "--out", "-", "--proba").out.splitlines()
    assert lines[0] == "sick,probability of no,probability of yes"
    assert all(abs(sum(map(float, line.split(",")[1:])) - 1) < 1e-9 for line in lines[1:])


def test_a_report_that_is_gone_does_not_matter(run: Any) -> None:
    os.rename("hinge/report.html", "kept.html")
    assert run("predict", "hinge", "new.csv", "--out", "-").code == 0
    os.rename("kept.html", "hinge/report.html")
