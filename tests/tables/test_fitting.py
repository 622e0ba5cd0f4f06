"""From two tables to a model, and to a folder and back."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tables.small import SECRETS, pd, private_frame, problem, public_frame, write_tables

from sidelight.errors import BudgetExceeded, InputError, PrivacyWarning, RelationError
from sidelight.privacy.ledger import Ledger
from sidelight.tables import Schema, TableModel, fit_tables, read_table

NEW = problem(400, seed=5)


def fit(**changes: Any) -> TableModel:
    given = {"private": private_frame(), "public": public_frame(), "target": "sick", "epsilon": 3.0}
    return fit_tables(**{**given, "random_state": 0, "method": "public_whitening", **changes})


def accuracy(model: TableModel, frame: Any = NEW) -> float:
    return float((model.predict(frame) == frame.sick.to_numpy()).mean())


@pytest.fixture(scope="module")
def model() -> TableModel:
    return fit()


def test_it_learns(model: TableModel) -> None:
    base = max(NEW.sick.value_counts()) / len(NEW)
    assert accuracy(model) > base + 0.1
    shares = model.predict_proba(NEW)
    assert shares.shape == (400, 2) and np.allclose(shares.sum(axis=1), 1)
    assert ((shares[:, 1] > 0.5) == (model.predict(NEW) == "yes")).all()


def test_the_guarantee_is_the_estimators(model: TableModel) -> None:
    told = model.privacy_
    assert told.epsilon <= 3.0 and told.relation == "add-or-remove-one" and told.method == "public_whitening"
    assert told.details["private_records"] == 300 and told.details["public_records"] == 60
    assert told.details["bounds_from"] == told.details["classes_from"] == "learned from the public records"
    assert any("seed" in line for line in told.assumptions)
    assert not any("declared" in line for line in told.assumptions)


def test_every_public_row_takes_part_and_none_is_said_to_be_held_out(model: TableModel) -> None:
    """Its own score on rows that it has seen flatters it; public rows alone have one in folds."""
    scores = model.scores
    assert model.data["public_records_held_out"] == 0 and scores["in_folds"]
    assert scores["name"] == "accuracy" and scores["rows"] == 60 and "held out" not in scores["note"]
    assert not {"public_validation", "difference", "confusion", "reliability"} & set(scores)
    assert all(set(found) == {"only_public"} for found in scores["measures"].values())
    assert 0.5 < scores["only_public"] < 1 and "log_loss" in scores["measures"]
    assert fit(public=public_frame().head(9)).scores == {}


def test_scores_in_folds_are_those_of_rows_that_were_not_seen() -> None:
    """Labels that nothing predicts: a model of as many columns as rows would know them by heart."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{i}": rng.normal(size=4080) for i in range(20)})
    for target in (rng.choice(["a", "b"], 4080), rng.normal(size=4080)):
        table = frame.assign(y=target)
        scores = fit_tables(table[80:], table[:80], target="y", epsilon=2.0, random_state=0).scores
        measures = {name: found["only_public"]["value"] for name, found in scores["measures"].items()}
        assert measures.get("auc", 0.5) < 0.75 and measures.get("r_squared", 0.0) < 0.2


def test_the_paid_comparison_is_the_score_of_the_model() -> None:
    frame = problem(6000, seed=3)
    model = fit_tables(frame[100:], frame[:100], target="sick", epsilon=3.0, random_state=0)
    private = model.scores["private"]
    assert private["kept"] and model.privacy_.returned.startswith("the private model: on private records")
    assert abs(private["accuracy"] - accuracy(model)) < 0.06 and 0 < private["accuracy_error"] < 0.02
    assert private == model.privacy_.details["compared_with_public"]


def test_scores_come_from_public_rows_that_were_held_out() -> None:
    model = fit(validation=0.2)
    scores = model.scores
    assert scores["name"] == "accuracy" and scores["rows"] == 12
    assert model.data["public_records_held_out"] == 12
    for name in ("public_validation", "only_public", "difference"):
        assert scores[f"{name}_error"] >= 1 / 12 - 1e-9
    assert scores["difference"] == pytest.approx(scores["public_validation"] - scores["only_public"])
    alone = fit(method="only_public", validation=0.2).scores
    assert "only_public" not in alone and "difference" not in alone  # with itself
    assert fit(by="job").scores["rows"] == 12
    assert fit(public=public_frame().head(40), validation=0.2).scores["in_folds"]


def test_held_out_rows_do_not_train() -> None:
    """A public row that is held out may have any label: the model is the same."""
    from sidelight.tables.public_scores import split

    public = public_frame()
    held = split(public, share=0.2).held_out.index
    other = public.copy()
    other.loc[held, "sick"] = np.where(public.loc[held, "sick"] == "yes", "no", "yes")
    how = {"method": "dope_sgd", "validation": 0.2}
    one, two = (fit(public=table, **how) for table in (public, other))
    np.testing.assert_array_equal(one.estimator.coef_, two.estimator.coef_)
    seen = public.drop(held).index[0]
    other.loc[seen, "sick"] = "yes" if public.loc[seen, "sick"] == "no" else "no"
    assert (fit(public=other, **how).estimator.coef_ != one.estimator.coef_).any()


def test_files_frames_and_column_order_are_the_same(tmp_path: Path, model: TableModel) -> None:
    write_tables(tmp_path)
    from_files = fit(private=tmp_path / "private.csv", public=str(tmp_path / "public.csv"))
    np.testing.assert_allclose(from_files.estimator.coef_, model.estimator.coef_)
    turned = fit(private=private_frame()[["sick", "pay", "job", "age"]])
    np.testing.assert_allclose(turned.estimator.coef_, model.estimator.coef_)
    np.testing.assert_array_equal(model.predict(NEW[["pay", "job", "age"]]), model.predict(NEW))


def test_a_private_record_without_a_usable_target_takes_part_in_nothing() -> None:
    """In the fixture, record 3 has such a target. Whatever else it holds, the model is the same."""
    model = fit(health_check=False)
    for value in ("?", "maybe", None, 17):
        frame = private_frame()
        frame.loc[3, ["age", "job", "pay", "sick"]] = [99, "king", 1e9, value]
        np.testing.assert_array_equal(
            fit(private=frame, health_check=False).estimator.coef_, model.estimator.coef_
        )


def test_dirty_private_values_raise_nothing_and_warn_of_nothing() -> None:
    frame = private_frame()
    for i, odd in enumerate(["x", None, np.inf, -1e308, 10**400, "", "NaN", b"\xff", [1], {}]):
        for name in frame.columns:
            frame.at[10 + i, name] = odd
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fit(private=frame, random_state=None)
    assert np.isfinite(model.estimator.coef_).all()


@pytest.mark.parametrize("target", ["age", "job"])
def test_other_tasks(tmp_path: Path, target: str) -> None:
    frame = problem(2000, seed=2)
    model = fit_tables(frame[100:], frame[:100], target=target, epsilon=20.0, random_state=0)
    guess = model.predict(NEW)
    if target == "age":
        assert model.schema.target.task == "regression" and model.scores["name"] == "root_mean_squared_error"
        assert ((guess - NEW.age) ** 2).mean() < 0.8 * NEW.age.var()
    else:
        assert set(guess) <= {"clerk", "nurse", "smith"} and model.predict_proba(NEW).shape == (400, 3)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(TableModel.load(tmp_path / "m").predict(NEW), guess)


def test_numeric_classes_stay_numbers(tmp_path: Path) -> None:
    frame = problem(600).assign(sick=lambda f: (f.sick == "yes").astype(int))
    model = fit_tables(frame[100:], frame[:100], target="sick", epsilon=5.0, method="public_whitening")
    assert model.predict(NEW).dtype.kind == "i"
    model.save(tmp_path / "m")
    assert TableModel.load(tmp_path / "m").predict(NEW).dtype.kind == "i"


def test_columns_to_ignore_may_be_in_one_table_alone(model: TableModel) -> None:
    for changes in (
        {"private": private_frame().assign(id="x")},
        {"public": public_frame().assign(id=1.5)},
        {"private": private_frame().assign(id="x"), "public": public_frame().assign(id=range(60))},
    ):
        found = fit(ignore=["id"], **changes)
        np.testing.assert_array_equal(found.estimator.coef_, model.estimator.coef_)
        assert found.data["ignored_columns"] == ["id"]
    with pytest.raises(InputError, match="'shoe'"):
        fit(ignore=["shoe"])


def test_the_private_table_is_not_its_own_public_table(tmp_path: Path) -> None:
    write_tables(tmp_path)
    (tmp_path / "link.csv").symlink_to(tmp_path / "private.csv")
    for one, other in ((tmp_path / "private.csv", str(tmp_path / "link.csv")), (private_frame(),) * 2):
        with pytest.raises(InputError, match="own public"):
            fit(private=one, public=other)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_tiny_tables(rows: int) -> None:
    public = public_frame().groupby("sick").head(2)
    model = fit(private=private_frame().tail(rows), public=public, method="auto")
    assert model.data["private_records"] == rows and set(model.predict(NEW)) <= {"yes", "no"}


def test_a_declared_schema_needs_no_public_table() -> None:
    schema = Schema.learn(public_frame(), "sick")
    model = fit(schema=Schema.from_dict(schema.to_dict()), public=None, target=None, method="auto")
    assert "the schema was declared without looking at the private records" in model.privacy_.assumptions
    assert model.data["public_records"] == 0 and model.scores == {}
    with pytest.raises(InputError, match="schema"):
        fit(public=None)


def test_probabilities_with_another_loss() -> None:
    shares = fit(loss="hinge").predict_proba(NEW)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_class_weights_are_kept_in_the_folder(tmp_path: Path) -> None:
    model = fit(class_weight="balanced")
    model.save(tmp_path / "m")
    again = TableModel.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
    np.testing.assert_array_equal(again.estimator.class_weights_, model.estimator.class_weights_)
    with pytest.raises(InputError, match="class_weight"):
        fit(target="pay", class_weight="balanced")


# ---------------------------------------------------------------------------------------------------------
# who pays


def ledger(folder: Path, relation: Any = "add-or-remove-one") -> Ledger:
    book = Ledger.create(folder / "b.ledger")
    book.register("patients", relation=relation, epsilon=2.0, delta=1e-7)
    return book


def test_the_ledger_gives_relation_and_delta_and_is_charged_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    model = fit(ledger=book, epsilon=1.0)
    assert (model.privacy_.relation, model.privacy_.delta) == ("add-or-remove-one", 1e-7)
    assert len(book.charges("patients")) == 1
    assert model.card().ledger[0]["this"]
    with pytest.raises(BudgetExceeded):
        fit(ledger=book, epsilon=1.9)
    with pytest.raises(RelationError, match="replace-one"):
        fit(ledger=book, relation="replace-one")
    with pytest.raises(RelationError, match="rsgd_ar"):
        fit(ledger=book, method="rsgd_ar")
    assert len(book.charges("patients")) == 1


def test_what_stops_a_fit_stops_it_before_the_charge(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    for changes in (
        {"private": private_frame().drop(columns="age")},
        {"private": private_frame().assign(id=1)},
        {"private": private_frame().iloc[:0]},
        {"loss": "softmat"},
        {"delta": 0.0},
        {"validation": 1.0},
        {"task": "regression"},
    ):
        with pytest.raises(InputError) as caught:
            fit(ledger=book, epsilon=1.0, **changes)
        assert not any(secret in str(caught.value) for secret in SECRETS)
    assert not book.charges("patients")


# ---------------------------------------------------------------------------------------------------------
# the folder


def test_a_folder_is_the_model(tmp_path: Path, model: TableModel) -> None:
    model.save(tmp_path / "m")
    assert sorted(one.name for one in (tmp_path / "m").iterdir()) == [
        "model.json", "privacy.json", "report.html", "weights.safetensors",
    ]  # fmt: skip
    again = TableModel.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(NEW), model.predict_proba(NEW))
    assert again.schema == model.schema and again.scores == model.scores
    assert again.privacy_.to_dict()["events"] == model.privacy_.to_dict()["events"]
    assert again.privacy_.epsilon == model.privacy_.epsilon
    assert again.history_ == model.history_ and len(again.history_) == 65
    again.save(tmp_path / "copy")
    for name in ("model.json", "weights.safetensors", "privacy.json"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "copy" / name).read_bytes()


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_a_folder_of_the_first_version_has_the_probabilities_that_it_had(tmp_path: Path, loss: str) -> None:
    from sidelight.estimators.model_folder import _of_json

    fit(loss=loss).save(tmp_path / "m")
    place = tmp_path / "m" / "model.json"
    body = json.loads(place.read_text())
    for name in ("checksum", "probability_scale", "class_weights"):
        del body[name]
    place.write_text(json.dumps(body | {"checksum": _of_json(body)}))
    again = TableModel.load(tmp_path / "m")
    if loss == "hinge":
        with pytest.raises(InputError, match="no probabilities"):
            again.predict_proba(NEW)
        return
    scores = again.estimator.decision_function(NEW)
    np.testing.assert_allclose(again.predict_proba(NEW)[:, 1], 1 / (1 + np.exp(-scores)))


@pytest.mark.parametrize(("name", "value"), [("probability_scale", -1.0), ("class_weights", [1.0])])
def test_a_folder_with_impossible_probabilities_is_refused(tmp_path: Path, name: str, value: object) -> None:
    from sidelight.estimators.model_folder import _of_json

    fit().save(tmp_path / "m")
    place = tmp_path / "m" / "model.json"
    body = json.loads(place.read_text()) | {name: value}
    del body["checksum"]
    place.write_text(json.dumps(body | {"checksum": _of_json(body)}))
    with pytest.raises(InputError, match="belong"):
        TableModel.load(tmp_path / "m")


def test_no_file_holds_a_private_value(tmp_path: Path, model: TableModel) -> None:
    model.save(tmp_path / "m")
    for path in (tmp_path / "m").iterdir():
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in SECRETS), path.name
    body = json.loads((tmp_path / "m" / "model.json").read_text())
    assert body["data"]["columns"] == ["age", "job", "pay"] and body["features"][0].startswith("age: ")


def test_replacing_is_asked_for(tmp_path: Path, model: TableModel) -> None:
    place = tmp_path / "m"
    place.mkdir()
    model.save(place)  # empty: nothing is lost
    with pytest.raises(InputError, match="already"):
        model.save(place)
    model.save(place, overwrite=True)
    assert [one.name for one in tmp_path.iterdir()] == ["m"]
    (place / "model.json").unlink()
    with pytest.raises(InputError, match="something other"):
        model.save(place, overwrite=True)


def test_weights_that_do_not_belong_are_refused(tmp_path: Path, model: TableModel) -> None:
    """Even with correct checksums."""
    from sidelight.estimators.model_folder import _of_json, checksum

    model.save(tmp_path / "a")
    fit(public=public_frame().assign(job="nurse"), health_check=False).save(tmp_path / "b")
    other = (tmp_path / "b" / "weights.safetensors").read_bytes()
    (tmp_path / "a" / "weights.safetensors").write_bytes(other)
    place = tmp_path / "a" / "model.json"
    body = json.loads(place.read_text()) | {"weights": checksum(other)}
    body.pop("checksum")
    place.write_text(json.dumps(body | {"checksum": _of_json(body)}))
    with pytest.raises(InputError, match="belong"):
        TableModel.load(tmp_path / "a")


def test_prediction_reads_files_and_needs_its_columns_alone(tmp_path: Path, model: TableModel) -> None:
    write_tables(tmp_path)
    frame = read_table(tmp_path / "new.csv")
    np.testing.assert_array_equal(model.predict(tmp_path / "new.csv"), model.predict(frame.assign(id=1)))
    with pytest.raises(InputError, match="'job'"):
        model.predict(frame.drop(columns="job"))
    odd = pd.DataFrame({"age": [None, "x", 1e300], "job": [None, 3, "king"], "pay": [np.inf, np.nan, ""]})
    assert set(model.predict(odd)) <= {"yes", "no"}


def test_a_public_table_of_the_same_size_is_told_of() -> None:
    """By its size alone: comparing records would tell about them."""
    frame = public_frame()
    with pytest.warns(PrivacyWarning, match="copy"):
        fit_tables(frame, frame.copy(), target="sick", epsilon=1.0, method="only_public")
