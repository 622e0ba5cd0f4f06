"""What each column does: partial dependence of the released model over public rows, and nothing private."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sidelight.data.schema import Column, Schema, TargetColumn
from sidelight.errors import InputError
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.report import effects as module
from sidelight.report import html
from sidelight.report.effects import Effects
from sidelight.tables import TableModel, fit_tables

pd = pytest.importorskip("pandas")


def table(rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "job": rng.choice(["nurse", "smith", "clerk"], rows),
            "member": rng.random(rows) < 0.5,
            "since": pd.to_datetime("2019-01-01") + pd.to_timedelta(rng.integers(0, 1500, rows), "D"),
            "noise": rng.normal(size=rows),
        }
    )
    z = frame.age + 25 * (frame.job == "smith") + rng.normal(0, 9, rows)
    return frame.assign(target=np.where(z > 65, "yes", "no"))


@pytest.fixture(scope="module")
def fitted() -> TableModel:
    return fit_tables(table(4000, 0), table(300, 1), target="target", epsilon=2.0, random_state=0)


def test_means_are_those_of_predictions_with_one_column_set(fitted: TableModel) -> None:
    public = table(60, 2)
    found = {one.column: one for one in fitted.effects(public.drop(columns="target"))}
    for column, value in (("age", found["age"].values[3]), ("job", "smith")):
        at = found[column].values.index(value)
        expected = fitted.predict_proba(public.assign(**{column: value}))[:, 1].mean()
        assert found[column].means[0][at] == pytest.approx(expected, abs=1e-9)


def test_columns_that_matter_come_first_and_each_kind_has_values(fitted: TableModel) -> None:
    found = fitted.effects()
    assert [one.column for one in found][:2] == ["age", "job"]
    assert found.outputs == ("probability of yes",) and found.averaged_over == "100 public rows"
    sizes = [one.size for one in found]
    assert sizes == sorted(sizes, reverse=True)
    known = {one.column: one.values for one in found}
    assert set(known["job"]) == {"nurse", "smith", "clerk"} and len(known["age"]) > 10
    assert known["since"][0] < known["since"][-1] and str(known["since"][0]).startswith("20")


def test_private_records_are_not_needed(fitted: TableModel) -> None:
    """What a fit keeps are public rows; a copy that never saw a private record says the same."""
    sample: Any = fitted.estimator._public_sample
    public = table(300, 1)
    assert len(sample) == 100 and len(sample.merge(public, how="inner")) >= 100
    assert pickle.loads(pickle.dumps(fitted.estimator)).effects() == fitted.effects()


def test_a_loaded_model_has_the_effects_that_it_was_saved_with(fitted: TableModel, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    loaded = TableModel.load(tmp_path / "model")
    assert loaded.effects() == fitted.effects()
    rows = table(50, 3).drop(columns="target")
    assert loaded.effects(rows).averaged_over == "50 public rows"
    page = (tmp_path / "model" / "report.html").read_text()
    assert "What each column does" in page and "over\n    100 public rows" in page


def test_a_fit_is_stored_even_if_its_figures_fail(
    fitted: TableModel, tmp_path: Path, monkeypatch: Any
) -> None:
    def fails(*_: object) -> Effects:
        raise RuntimeError("no figures today")

    monkeypatch.setattr("sidelight.estimators.estimator_output.effects_of", fails)
    fitted.save(tmp_path / "model")
    assert not len(TableModel.load(tmp_path / "model").effects())


def test_without_public_rows_they_are_made_up_from_the_schema() -> None:
    frame = table(3000, 0)[["age", "job", "target"]]
    columns = {
        "age": Column("number", (18.0, 90.0)),
        "job": Column("category", categories=("clerk", "nurse", "smith")),
    }
    schema = Schema(TargetColumn("target", "classification", ("no", "yes")), columns)
    model = fit_tables(frame, schema=schema, epsilon=2.0, random_state=0)
    found = model.effects()
    assert found.averaged_over == "100 rows made up from the schema"
    assert {one.column for one in found} == {"age", "job"}
    assert model.estimator._public_sample is None


def test_arrays_and_regressions_have_effects_too() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2000, 3))
    y = 3 * X[:, 1] + rng.normal(0, 0.1, 2000)
    model = PrivateRegressor(epsilon=2.0, random_state=0).fit(
        X[100:], y[100:], X_public=X[:100], y_public=y[:100]
    )
    first = model.effects()[0]
    assert first.column == "x1" and first.means[0][0] < 0 < first.means[0][-1]
    assert first.means[0] == tuple(sorted(first.means[0]))


def test_several_classes_have_a_mean_each() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1500, 2))
    y = np.digitize(X[:, 0], [-0.3, 0.3])
    model = PrivateClassifier(epsilon=3.0, random_state=0).fit(
        X[100:], y[100:], X_public=X[:100], y_public=y[:100]
    )
    found = model.effects()
    assert len(found.outputs) == 3 == len(found[0].means) and found[0].column == "x0"
    assert np.array(found[0].means).sum(axis=0) == pytest.approx(1.0)
    assert found._repr_html_().count('role="img"') == len(found)


def test_a_notebook_and_the_report_escape_names() -> None:
    hostile = '<script>alert("1")</script>'
    one = module.Effect(hostile, "category", (hostile, "b"), ((0.2, 0.4),), 0.1)
    found = Effects(("probability of " + hostile,), True, "2 public rows", (one,))
    assert "<script>" not in found._repr_html_()
    assert Effects.from_dict(found.to_dict()) == found


def test_effects_of_a_card_that_is_no_such_thing_are_refused(fitted: TableModel) -> None:
    card = fitted.card()
    body = copy.deepcopy(card.to_dict())
    body["effects"]["columns"][0]["means"] = [["many"]]
    with pytest.raises(InputError, match="effects"):
        type(card).from_dict(body)
    assert "What each column does" in html(card)


def test_very_wide_tables_show_none(monkeypatch: Any, fitted: TableModel) -> None:
    monkeypatch.setattr(module, "_WIDEST", 2)
    assert not len(fitted.effects())
