"""The card: JSON in and out, and one clear sentence for what is no card."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.cards import NAMES, card, fitted, full_card, rows

from sidelight.errors import InputError, LedgerError
from sidelight.estimators import PrivateRegressor
from sidelight.files import write_text
from sidelight.privacy import events
from sidelight.privacy.ledger import Ledger
from sidelight.report import Card, card_of
from sidelight.report.card import number


@pytest.mark.parametrize("name", NAMES)
def test_card_of_every_method_survives_json(name: str, tmp_path: Path) -> None:
    one = card(name)
    one.write(tmp_path / "privacy.json")
    again = Card.read(tmp_path / "privacy.json")
    assert again == one and again.plan == one.plan
    assert again.method == one.statement["method"] and again.relation in events.RELATIONS


def test_infinity_is_a_word() -> None:
    body = card("non_private").to_dict()
    assert body["statement"]["epsilon"] == "infinity"
    assert math.isinf(Card.from_dict(body).epsilon)
    json.dumps(body, allow_nan=False)


def test_card_of_an_unfitted_model_says_so() -> None:
    with pytest.raises(InputError, match="PrivateRegressor"):
        card_of(PrivateRegressor(epsilon=1.0))


def test_card_knows_its_data_and_versions() -> None:
    one = card("dp_sgd")
    assert one.data["private_records"] == 740 and one.data["public_records"] == 60
    assert one.data["classes"] == ["no", "yes"] and one.data["classes_from"] == "public records"
    assert {"sidelight", "python", "numpy", "dp-accounting"} <= set(one.versions)


def test_card_of_a_regression() -> None:
    X, _, X_public, _ = rows()
    model = PrivateRegressor(
        "output_perturbation", epsilon=1.0, bounds=(-1, 1), target_bounds=(-2, 2), random_state=0
    )
    one = card_of(model.fit(X, X[:, 0], X_public, X_public[:, 0]))
    assert one.data["target_bounds_from"] == "declared" and "classes" not in one.data
    assert Card.from_dict(one.to_dict()) == one


def test_ledger_rows_hold_every_charge_and_mark_this_one() -> None:
    one = full_card()
    assert [row["method"] for row in one.ledger] == ["output_perturbation", "ppsgd"]
    assert [row["this"] for row in one.ledger] == [False, True]
    assert [row["epsilon"] for row in one.ledger] == pytest.approx([0.5, 1.0], rel=1e-6)
    total = one.statement["ledger"]["total"]
    assert 1.0 < total["epsilon"] < 1.5 and 0 < total["remaining"] < 3


def test_a_ledger_that_was_closed_leaves_the_receipt() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=3.0, delta=1e-5)
    model = fitted("output_perturbation", ledger=ledger, dataset="people")
    ledger.close()
    one = card_of(model)
    assert one.ledger == [] and one.statement["ledger"]["dataset"] == "people"
    with pytest.raises(LedgerError, match="closed"):
        card_of(model, ledger=ledger)


def test_numpy_values_and_given_rows_become_plain() -> None:
    one = card_of(
        fitted("only_public"),
        data={"rows": np.int64(3), "bounds": np.array([0.0, np.inf])},
        ledger=[{"run": 1, "epsilon": np.float64(2)}],
    )
    assert one.data == {"rows": 3, "bounds": [0.0, "infinity"]} and one.ledger == [{"run": 1, "epsilon": 2.0}]
    json.dumps(one.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), ("infinity", math.inf), ("-infinity", -math.inf), ("nan", None), (True, None), (None, None),
     (10**400, None), (float("nan"), None), ("1", None), ([1], None)],
)  # fmt: skip
def test_number(value: Any, expected: float | None) -> None:
    assert number(value) == expected


def _changed(path: str, value: Any) -> Any:
    body = full_card().to_dict()
    inside: Any = body
    *way, last = path.split(".")
    for step in way:
        inside = inside[int(step) if step.isdigit() else step]
    inside[int(last) if last.isdigit() else last] = value
    return body


BROKEN = {
    "title": 3, "created": None, "statement": [], "history": {}, "history.0": 1, "data": [], "scores": "x",
    "comparison": [3], "effects": [], "effects.columns": 3, "effects.columns.0.means": [[]],
    "effects.columns.0.values.0": "text", "effects.columns.0.size": None,
    "audits": "none", "ledger": [None], "versions": [], "format": 2, "surprise": 1,
    "statement.epsilon": "large", "statement.delta": 1, "statement.relation": "none",
    "statement.method": 7, "statement.events": {}, "statement.assumptions": "none", "statement.details": None,
    "statement.ledger": "book", "statement.events.0": 3, "statement.events.0.kind": "magic",
    "statement.events.0.noise_multiplier": "loud",
}  # fmt: skip


@pytest.mark.parametrize("path", BROKEN)
def test_a_broken_card_is_one_clear_error(path: str, tmp_path: Path) -> None:
    file = tmp_path / "privacy.json"
    file.write_text(json.dumps(_changed(path, BROKEN[path])))
    with pytest.raises(InputError, match="privacy card") as caught:
        Card.read(file)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"{}", b"\xff\xfe", b'{"format": NaN}', b"[" * 100_000, b"null"],
    ids=["empty", "cut", "list", "number", "object", "bytes", "nan", "deep", "null"],
)
def test_a_file_that_is_no_card_is_one_clear_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "privacy.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match="privacy card"):
        Card.read(file)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        Card.read(tmp_path / "privacy.json")


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "privacy.json"
    place.write_text("before")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(InputError, match="No space"):
            card("dp_sgd").write(place)
    assert place.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["privacy.json"]
    node = place.stat().st_ino
    card("dp_sgd").write(place)
    assert Card.read(place) == card("dp_sgd")
    assert place.stat().st_ino != node  # another file took its name: a reader sees the old one or the new one


def test_a_written_file_has_the_usual_rights(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "text")
    (tmp_path / "b").write_text("text")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_writing_into_nowhere_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="written"):
        card("dp_sgd").write(tmp_path / "no" / "privacy.json")
