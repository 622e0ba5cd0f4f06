"""A folder, a report, a line and a box of an estimator."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from tests import estimator_tools as numbers
from tests.frame_tools import NEW, PRIVATE, PUBLIC, fitted, pd, regressor, split

from sidelight import Ledger, PrivateClassifier, PrivateRegressor
from sidelight.cli import main
from sidelight.errors import InputError, NotPrivateWarning
from sidelight.methods.rsgd_ar import rsgd_ar
from sidelight.report import Card
from sidelight.tables import TableModel, fit_tables


def on_arrays(**changes: Any) -> PrivateClassifier:
    return numbers.classifier(**changes).fit(numbers.X, numbers.Y)


def on_frames_of_numbers() -> PrivateRegressor:
    X, Xp = PRIVATE[["age", "insured"]], PUBLIC[["age", "insured"]]
    return regressor().fit(X, PRIVATE.pay.fillna(0), Xp, PUBLIC.pay.fillna(0))


def of_many_classes() -> PrivateClassifier:
    (X, _), (Xp, _) = split(PRIVATE, "pandas"), split(PUBLIC, "pandas")
    y, yp = (frame.level.astype(str) + np.where(frame.insured, "", "er") for frame in (PRIVATE, PUBLIC))
    return PrivateClassifier("dp_sgd", epsilon=1.0, random_state=0, class_weight={"low": 2.0}).fit(
        X, y, Xp, yp
    )


MODELS: dict[str, tuple[Any, Any]] = {
    "a frame": (fitted, split(NEW, "pandas")[0]),
    "a frame, hinge": (lambda: fitted(loss="huber"), split(NEW, "pandas")[0]),
    "a frame, numbers to predict": (
        lambda: regressor().fit(
            split(PRIVATE, "pandas")[0], PRIVATE.age, split(PUBLIC, "pandas")[0], PUBLIC.age
        ),
        split(NEW, "pandas")[0],
    ),
    "a frame, many classes": (of_many_classes, split(NEW, "pandas")[0]),
    "a frame of numbers": (on_frames_of_numbers, NEW[["age", "insured"]]),
    "an array": (on_arrays, numbers.X_TEST),
    "a sparse matrix": (
        lambda: numbers.classifier().fit(sp.csr_array(numbers.X), numbers.Y),
        sp.csr_array(numbers.X_TEST),
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_predicts_the_same(kind: str, tmp_path: Path) -> None:
    make, new = MODELS[kind]
    model = make()
    model.save(tmp_path / "m")
    again = type(model).load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(new), model.predict(new))
    np.testing.assert_array_equal(again.coef_, model.coef_)
    if isinstance(model, PrivateClassifier):
        np.testing.assert_array_equal(again.predict_proba(new), model.predict_proba(new))
    assert again.features_ == model.features_ and again.schema_ == model.schema_
    assert again.privacy_.to_dict()["events"] == model.privacy_.to_dict()["events"]
    assert (again.epsilon, again.relation) == (model.epsilon, model.privacy_.relation)
    assert repr(again).rpartition(" [")[2] == repr(model).rpartition(" [")[2]
    again.save(tmp_path / "copy")
    for name in ("model.json", "weights.safetensors", "privacy.json"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "copy" / name).read_bytes()
    with pytest.raises(InputError, match="opens"):
        {PrivateClassifier: PrivateRegressor, PrivateRegressor: PrivateClassifier}[type(model)].load(
            tmp_path / "m"
        )


@pytest.mark.parametrize("kind", ["a frame", "a frame, numbers to predict", "a frame of numbers", "an array"])
def test_the_command_opens_the_folder(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, new = MODELS[kind]
    model = make()
    model.save("m")
    table = new if isinstance(new, pd.DataFrame) else pd.DataFrame(new, columns=model.features_)
    table.to_csv("new.csv", index=False)
    assert main(["predict", "m", "new.csv", "--out", "predictions.csv"]) == 0
    found = pd.read_csv("predictions.csv").iloc[:, 0].to_numpy()
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, model.predict(new), rtol=1e-6)
    else:
        np.testing.assert_array_equal(found, model.predict(new))
    assert main(["report", "m", "--json"]) == 0
    told = json.loads("{" + capsys.readouterr().out.partition("{")[2])
    assert told["holds"] and told["epsilon"] == model.privacy_.epsilon
    assert not list(tmp_path.rglob("*.pkl"))


def test_a_folder_of_the_command_is_an_estimator(tmp_path: Path) -> None:
    table = fit_tables(PRIVATE, PUBLIC, target="sick", epsilon=1.0, method="dp_sgd")
    table.save(tmp_path / "m")
    model = PrivateClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(model.predict(NEW), table.predict(NEW))
    assert TableModel.load(tmp_path / "m").scores == table.scores
    model.save(tmp_path / "copy")
    assert TableModel.load(tmp_path / "copy").scores == table.scores


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        PrivateClassifier(epsilon=1.0).save(tmp_path / "m")
    with pytest.raises(NotFittedError):
        PrivateClassifier(epsilon=1.0).report(tmp_path / "r.html")
    model = fitted()
    model.save(tmp_path / "m")
    with pytest.raises(InputError, match="already"):
        model.save(tmp_path / "m")
    model.save(tmp_path / "m", overwrite=True)
    with pytest.raises(InputError, match="model folder"):
        PrivateClassifier.load(tmp_path / "nowhere")


def test_a_refit_is_saved_as_it_is_then(tmp_path: Path) -> None:
    """What was loaded does not stick."""
    fitted().save(tmp_path / "m")
    model = PrivateClassifier.load(tmp_path / "m")
    model.set_params(schema=None, method="only_public").fit(
        *split(PRIVATE, "pandas"), *split(PUBLIC, "pandas")
    )
    model.save(tmp_path / "m", overwrite=True)
    assert PrivateClassifier.load(tmp_path / "m").privacy_.method == "only_public"
    assert pickle.loads(pickle.dumps(model)).predict(NEW).tolist() == model.predict(NEW).tolist()


def test_a_report_is_one_file_and_its_card(tmp_path: Path) -> None:
    model = fitted()
    scores = {"name": "accuracy", "public_validation": 0.9}
    card = model.report(tmp_path / "r.html", title="Sickness", scores=scores)
    page = (tmp_path / "r.html").read_text()
    assert isinstance(card, Card) and "Sickness" in page and "<html" in page
    assert card.scores == scores and card.data["target"] == "sick" and card.data["columns"][0] == "age"
    model.save(tmp_path / "m")
    again = PrivateClassifier.load(tmp_path / "m").report(tmp_path / "again.html", scores=scores)
    assert again.title == "A model that predicts 'sick'" and again.scores == scores
    assert on_arrays().report(tmp_path / "array.html").data["private_records"] == 1500


def test_repr_says_budget_relation_method_and_what_was_spent() -> None:
    assert repr(PrivateClassifier(epsilon=0.5)) == (
        "PrivateClassifier(epsilon=0.5) [ε = 0.5, δ = min(1e-5, 1/(100·n)), the default relation, auto: "
        "nothing spent yet]"
    )
    configured = PrivateRegressor(rsgd_ar(epochs=3), epsilon=2.0, delta=1e-6, relation="replace-one")
    assert repr(configured).endswith("[ε = 2, δ = 1e-06, replace-one, rsgd_ar: nothing spent yet]")
    model = on_arrays(epsilon=0.5, delta=1e-5)
    assert repr(model).endswith("[ε = 0.5, δ = 1e-05, replace-one, output_perturbation: spent ε = 0.5]")
    assert "nothing: no private record was used" in repr(
        PrivateClassifier("only_public", epsilon=1.0).fit(
            numbers.X, numbers.Y, numbers.X_PUBLIC, numbers.Y_PUBLIC
        )
    )
    with pytest.warns(NotPrivateWarning):
        bare = PrivateClassifier("non_private", epsilon=1.0).fit(
            numbers.X, numbers.Y, numbers.X_PUBLIC, numbers.Y_PUBLIC
        )
    assert "no guarantee" in repr(bare)
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=2.0, delta=1e-5)
    assert re.search(r"spent ε = 1, run \d+ of dataset people\]$", repr(on_arrays(ledger=ledger, delta=1e-5)))
    assert "no such method" in repr(PrivateClassifier("no such method", epsilon=1.0))
    assert "PrivateClassifier" in repr(make_pipeline(PrivateClassifier(epsilon=1.0)))


def test_the_printed_epsilon_is_never_below_the_true_one() -> None:
    for epsilon in (0.123456, 1.00001, 3.3333333):
        model = on_arrays(epsilon=epsilon)
        printed = repr(model).rpartition("spent ε = ")[2].rstrip("]")
        assert float(printed) >= model.privacy_.epsilon


def test_the_box_of_a_notebook_says_the_same_and_escapes_what_it_shows() -> None:
    model = on_arrays()
    box = model._repr_html_()
    for words in ("ε", "δ", "relation", "replace-one", "method", "output_perturbation", "spent"):
        assert words in box
    assert "<div" in box, "scikit-learn's own diagram is there too"
    assert model._repr_mimebundle_(include=None)["text/html"].startswith("<table>")
    rude = PrivateClassifier("<script>alert(1)</script>", epsilon=1.0)
    assert "<script>alert" not in rude._repr_html_().partition("</table>")[0]
