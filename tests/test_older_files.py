"""Ledgers and model folders that version 0.1.0 wrote still open, and say what they said then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sidelight import BudgetExceeded, InputError, Ledger
from sidelight.estimators.model_folder import FORMAT
from sidelight.privacy.events import Gaussian

pd = pytest.importorskip("pandas")

from sidelight.tables import TableModel  # noqa: E402

OLD = Path(__file__).parent / "files_of_0_1_0"


@pytest.mark.parametrize("name", ["line", "guide"])  # formats 1 and 2
def test_a_model_folder_of_0_1_0_predicts_as_it_did(name: str) -> None:
    model, rows = TableModel.load(OLD / name), pd.read_csv(OLD / f"{name}.csv")
    expected = json.loads((OLD / "predictions.json").read_text())[name]
    assert [str(label) for label in model.predict(rows)] == expected["labels"]
    np.testing.assert_allclose(model.predict_proba(rows), expected["probabilities"], rtol=1e-7)


@pytest.mark.parametrize("name", ["line", "guide"])
def test_a_model_folder_of_0_1_0_is_saved_anew(name: str, tmp_path: Path) -> None:
    TableModel.load(OLD / name).save(tmp_path / "new")
    again, rows = TableModel.load(tmp_path / "new"), pd.read_csv(OLD / f"{name}.csv")
    assert np.array_equal(again.predict_proba(rows), TableModel.load(OLD / name).predict_proba(rows))
    before = json.loads((OLD / name / "privacy.json").read_text())
    after = json.loads((tmp_path / "new" / "privacy.json").read_text())
    assert after["statement"] == before["statement"]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return Path(shutil.copy(OLD / "ledger.sqlite", tmp_path / "budget.ledger"))


def test_a_ledger_of_0_1_0_keeps_its_charge_and_takes_new_ones(ledger: Path) -> None:
    with Ledger.open(ledger) as book:
        book.verify()
        (old,) = book.charges("people")
        assert old.method == "ppsgd" and book.total("people").epsilon == pytest.approx(0.8366, abs=1e-4)
        with pytest.raises(BudgetExceeded):
            book.begin("people", Gaussian(0.8), relation="add-or-remove-one", method="dp_sgd")
        book.begin("people", Gaussian(5.0), relation="add-or-remove-one", method="dp_sgd")
    with Ledger.open(ledger) as book:
        assert [charge.order for charge in book.charges("people")] == [1, 2]
        assert 1.07 < book.total("people").epsilon < 3.0


def test_a_later_format_is_refused_by_its_number(tmp_path: Path, ledger: Path) -> None:
    folder = Path(shutil.copytree(OLD / "line", tmp_path / "model"))
    body = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(body | {"format": FORMAT + 1}))
    with pytest.raises(InputError, match=f"format {FORMAT + 1}"):
        TableModel.load(folder)
