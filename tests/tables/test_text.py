"""Columns of text in tables: through a public encoder, one record by itself, and refused before a charge."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.features.test_encoders import HOSTILE, Vowels

from sidelight import Ledger, PrivateClassifier
from sidelight.data.features import FeaturePlan
from sidelight.data.private_tables import open_private
from sidelight.data.schema import Schema
from sidelight.errors import InputError
from sidelight.features import add_encoder, encoders
from sidelight.tables import TableModel, fit_tables

pd = pytest.importorskip("pandas")

WORDS = {"good": ("lovely", "great", "fine", "superb"), "bad": ("awful", "dull", "poor", "tedious")}
ENCODER = "hashed-128"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_OPENED", "_ALONE", "_REMEMBERED"):
        monkeypatch.setattr(encoders, name, {})


def reviews(rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    stars = rng.choice(["good", "bad"], rows)
    texts = [f"a {rng.choice(WORDS[one])} film, seen {rng.integers(99_999)} times by us" for one in stars]
    return pd.DataFrame({"review": texts, "age": rng.integers(18, 90, rows), "stars": stars})


PRIVATE, PUBLIC, NEW = reviews(1500, 0), reviews(100, 1), reviews(200, 2)


def fit(private: Any = PRIVATE, **given: Any) -> TableModel:
    return fit_tables(
        private, PUBLIC, target="stars", epsilon=2, random_state=0, **({"text": {"review": ENCODER}} | given)
    )


def test_free_text_is_ignored_until_it_is_asked_for() -> None:
    assert "text=['review']" in Schema.learn(PUBLIC, "stars").columns["review"].note
    learned = Schema.learn(PUBLIC, "stars", types={"review": f"text:{ENCODER}"})
    assert learned.columns["review"].kind == "text" and learned.columns["review"].dimension == 128
    assert Schema.from_dict(json.loads(learned.to_text())) == learned


def test_a_model_of_texts_learns_and_is_saved_with_its_encoder(tmp_path: Path) -> None:
    model = fit()
    assert (model.predict(NEW) == NEW.stars).mean() > 0.9
    model.save(tmp_path / "m")
    column = json.loads((tmp_path / "m" / "model.json").read_text())["schema"]["columns"]["review"]
    assert (column["encoder"], column["dimension"]) == (ENCODER, 128) and column["sha256"].startswith(
        "sha256:"
    )
    again = TableModel.load(tmp_path / "m")
    assert np.array_equal(again.predict_proba(NEW), model.predict_proba(NEW))


def test_frames_take_texts_too() -> None:
    X, y = PRIVATE.drop(columns="stars"), PRIVATE.stars
    model = PrivateClassifier(epsilon=2, text={"review": ENCODER}, random_state=0)
    model.fit(X, y, X_public=PUBLIC.drop(columns="stars"), y_public=PUBLIC.stars)
    assert model.score(NEW.drop(columns="stars"), NEW.stars) > 0.9
    assert model.features_[:1] == [f"review: {ENCODER} 0"] and "review: missing" in model.features_
    with pytest.raises(InputError, match="'other'"):
        PrivateClassifier(epsilon=1.0, text="other").fit(
            X, y, X_public=PUBLIC.drop(columns="stars"), y_public=PUBLIC.stars
        )
    with pytest.raises(InputError, match="frames"):
        PrivateClassifier(epsilon=1.0, text="review").fit(np.zeros((3, 1)), [0, 1, 0])


def test_the_statement_lists_the_encoder_as_an_assumption() -> None:
    encoder = Vowels()
    model = fit(text={"review": encoder})
    line, another = [line for line in model.privacy_.assumptions if "encoder" in line]
    assert "vowels" in line and encoder.sha256 in line and "not trained on the private records" in line
    assert "vowels" in another and "keeps nothing of a text" in another  # it is not one of ours
    assert any(encoder.sha256[:14] in line for line in _lines(model))
    assert not [line for line in fit().privacy_.assumptions if "encoder" in line]  # hashing saw nothing


def _lines(model: TableModel) -> list[str]:
    from sidelight.data.schema import column_lines

    return column_lines(model.schema)


def test_another_encoder_is_refused_at_prediction(tmp_path: Path) -> None:
    fit(text={"review": Vowels("first")}).save(tmp_path / "m")
    encoders._OPENED.clear()
    model = TableModel.load(tmp_path / "m")
    with pytest.raises(InputError, match="vowels"):
        model.predict(NEW)
    add_encoder(Vowels("second"))
    with pytest.raises(InputError, match="other weights"):
        model.predict(NEW)
    add_encoder(Vowels("first"))
    assert len(model.predict(NEW)) == len(NEW)


def test_an_encoder_that_is_not_here_is_refused_before_the_charge(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l")
    ledger.register("d", relation="add-or-remove-one", epsilon=5, delta=1e-5)
    entry = {"type": "text", "encoder": "gone", "dimension": 5, "sha256": "sha256:00"}
    schema = Schema.learn(PUBLIC, "stars", types={"review": "category"}).to_dict()
    schema["columns"]["review"] = entry
    declared = Schema.from_dict(schema)
    with pytest.raises(InputError, match="gone"):
        fit_tables(PRIVATE, schema=declared, epsilon=1, ledger=ledger, method="dp_sgd")
    with pytest.raises(InputError, match="gone"):
        PrivateClassifier(epsilon=1.0, schema=declared, ledger=ledger, method="dp_sgd").fit(
            PRIVATE[["review", "age"]], PRIVATE.stars
        )
    assert not ledger.charges("d")


@pytest.mark.parametrize(
    "value", [*HOSTILE[:3], HOSTILE[4], 3.5, b"\xff\xfe", object(), ["a", "list"], float("nan")]
)
def test_one_record_changes_no_other_and_is_silent(value: object, capfd: pytest.CaptureFixture[str]) -> None:
    """A neighboring table: its rows, its plan and everything that is said are the same."""
    schema = Schema.learn(PUBLIC, "stars", types={"review": f"text:{ENCODER}"})
    other = PRIVATE[:60].copy().astype({"review": object})
    other.at[7, "review"] = value
    with warnings.catch_warnings(action="error"):
        rows = [FeaturePlan(schema).encode_private(open_private(one))[0] for one in (PRIVATE[:60], other)]
        fewer = FeaturePlan(schema).encode_private(open_private(other.drop(index=7))).X
    kept = np.arange(60) != 7
    assert np.array_equal(rows[0][kept], rows[1][kept]) and np.array_equal(rows[1][kept], fewer)
    assert np.isfinite(rows[1]).all() and capfd.readouterr() == ("", "")


def test_hostile_texts_through_the_whole_fit_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    hostile = PRIVATE.copy().astype({"review": object})
    for place, value in enumerate([*HOSTILE, object(), b"\xff", 1 << 70, {"a": 1}, "!raise"]):
        hostile.at[3 * place, "review"] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "a seed")
        plain, odd = fit(text={"review": Vowels()}), fit(hostile, text={"review": Vowels()})
    told = [(m.privacy_.to_dict()["events"], m.privacy_.assumptions, m.schema, m.data) for m in (plain, odd)]
    assert told[0] == told[1] and np.isfinite(odd.estimator.coef_).all()
    assert capfd.readouterr() == ("", "")
