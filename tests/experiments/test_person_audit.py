"""The audit of docs/persons.md, with four rows a person; and the page shows what was measured."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("torch")

from experiments.person_audit.__main__ import FIELDS, HERE, METHODS, audited, table


@pytest.mark.parametrize("protects", ["record", "person"])
def test_only_training_by_record_is_refuted(protects: str) -> None:
    row = audited(METHODS["dp_sgd"](), protects, rows=4, steps=1)  # type: ignore[arg-type]
    assert (row["replay"] == "passed") == (protects == "person"), row


def test_the_page_shows_the_results() -> None:
    with (HERE / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["replay"] == "passed" for row in rows] == [False, True] * len(METHODS)
    assert tuple(rows[0]) == FIELDS
    assert table(rows) in (Path(__file__).parents[2] / "docs" / "persons.md").read_text()
