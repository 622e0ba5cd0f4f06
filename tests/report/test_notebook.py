"""What a notebook shows of a fit: its guarantee, what the budget bought, and a link to the report."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.cards import fitted

from sidelight.report.notebook import budget_box, budget_line

COMPARED = {
    "accuracy": 0.86, "accuracy_public": 0.85, "accuracy_error": 0.005, "value": 0.1, "error": 0.1,
    "loss_public": 0.4, "kept": True,
}  # fmt: skip
WORDS = {"ε": "1", "δ": "1e-06", "relation": "replace-one", "method": "auto", "spent": "ε = 1"}


def test_the_box_draws_what_the_budget_bought() -> None:
    statement = replace(fitted("ppsgd").privacy_, details={"compared_with_public": COMPARED})
    box = budget_box("Title", WORDS, statement, 'a"><script>.html')
    widths = [float(width) for width in re.findall(r'<rect x="150" y="\d+" width="([\d.]+)"', box)]
    assert widths == [170.0, 172.0]  # two pixels for each percent
    assert '<path d="M318.0 14H322.0"' in box
    assert "+1 points" in box and "cannot tell" in box
    assert "<script>" not in box and "privacy report</a>" in box


def test_a_box_without_a_comparison_has_no_picture() -> None:
    assert "<svg" not in budget_box("Title", WORDS, fitted("dp_sgd").privacy_)
    assert budget_box("Title", WORDS).count("<tr>") == len(WORDS)
    assert budget_line(WORDS) == "[ε = 1, δ = 1e-06, replace-one, auto: spent ε = 1]"


def test_a_trainer_shows_its_budget_in_a_notebook() -> None:
    torch = pytest.importorskip("torch")
    from sidelight import Trainer

    trainer = Trainer(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), epsilon=2.0)
    box = trainer._repr_html_()
    assert "Trainer(Linear)" in box and "nothing yet" in box and ">2</td>" in box
    trainer.privacy_ = fitted("ppsgd").privacy_
    assert "ε = 1" in trainer._repr_html_() and "ppsgd" in trainer._repr_html_()


def test_a_table_model_shows_its_guarantee_and_links_to_its_report(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from tests.tables.small import write_tables

    from sidelight import fit_tables

    write_tables(tmp_path)
    model = fit_tables(tmp_path / "private.csv", tmp_path / "public.csv", target="sick", epsilon=1.0)
    box = model._repr_html_()
    assert "TableModel of sick" in box and "ε" in box and "<td" in box and "<a " not in box
    model.save(tmp_path / "model")
    assert f'href="{tmp_path}/model/report.html"' in model._repr_html_()
