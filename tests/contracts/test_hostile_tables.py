"""`fit_tables` as users run it, on tables in which one record holds what somebody may have typed.

A fit is recorded at the doors and replayed with the values that it released. One record, or one person, moves
no private sum by more than its sensitivity, and nothing else: predictions, intervals, history, statement,
warnings, what is printed, the weights on disk. Every way that public rows enter a fit is here: combined
public models, several classes that start from them, a model of the user's own, public rows of another kind,
and an early return; records, persons, and records in blocks.
"""

import contextlib
import io
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

import sidelight.audit.replay as promises
from sidelight.audit.subjects import REPLACE
from sidelight.audit.tape import Tape, listening
from sidelight.data.coordinates import Coordinates
from sidelight.data.own_model import RawColumn
from sidelight.tables import fit_tables, fitting

pytestmark = pytest.mark.usefixtures("same_noise")

N, AT = 900, 400
COLUMNS = ("a", "b", "k", "flag", "day")
CLASSES = {"yes or no": ("no", "yes"), "five": ("c0", "c1", "c2", "c3", "c4")}
HOSTILE: dict[str, tuple[Any, ...]] = {  # a value for each column, and a target
    "missing": (np.nan, np.inf, None, "", "not a day", np.nan),
    "huge": (1e300, -1e300, "", 2**63, "9999-12-31", 1e300),
    "texts": ("a word", "1e5000", 7, "yes", 20200101, ""),
    "odd types": (np.float16(0.5), np.int8(-3), True, np.bool_(True), None, "NO "),
    "objects": (Decimal("NaN"), b"\xff", ["x"], {"a": 1}, np.datetime64("NaT"), b"yes"),
    "half a pair": (1 + 2j, pd.NA, "\ud800", -5e-324, 1e308, "c4"),
    "far": (-1.0, 50.0, "x", 1, "2021-12-01", -1e300),
}
SCENES = {
    "numbers": ("number", {"trees": True}),
    "hinge": ("yes or no", {"loss": "hinge"}),
    "five classes": ("five", {}),
    "own model": ("number", {"own": True}),
    "own classes": ("yes or no", {"own": True, "loss": "huber"}),
    "other public rows": ("yes or no", {"flipped": True}),
    "persons": ("number", {"unit": "who"}),
    "early return": ("number", {"own": True, "exact": True}),
}


class Strict(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Knows most of the target, and raises on a kind that it has not seen."""

    def fit(self, X: Any, y: Any) -> "Strict":
        self.feature_names_in_ = np.array(["a", "b", "k"], dtype=object)
        return self

    def predict(self, X: Any) -> np.ndarray:
        if not X["k"].isin(["x", "y", "z"]).all():
            raise ValueError(f"unknown kinds: {X['k'].tolist()}")
        return score(X)


class StrictClassifier(ClassifierMixin, Strict):  # type: ignore[misc]
    def fit(self, X: Any, y: Any) -> "StrictClassifier":
        self.classes_ = np.array(["no", "yes"], dtype=object)
        super().fit(X, y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        p = 1 / (1 + np.exp(-3 * Strict.predict(self, X)))
        return np.stack([1 - p, p], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


def score(X: Any) -> np.ndarray:
    return np.asarray(X["a"] * (X["b"] - 25) / 25 + 0.4 * (X["k"] == "x"), dtype=np.float64)


def table(n: int, seed: int, kind: str, *, exact: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.uniform(-1, 1, n), "b": rng.uniform(0, 50, n).round(1)})
    frame["k"] = rng.choice(np.array(["x", "y", "z"], dtype=object), n)
    frame["flag"] = rng.choice([0, 1], n)
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
    frame["day"] = days.strftime("%Y-%m-%d")
    t = score(frame) + (0 if exact else 0.2 * frame.flag + rng.normal(0, 0.1, n))
    if kind == "number":
        frame["t"] = t.clip(-1.35, 1.35)
    else:
        edges = [0.2] if kind == "yes or no" else [-0.4, 0, 0.3, 0.6]
        frame["t"] = np.array(CLASSES[kind], dtype=object)[np.digitize(t, edges)]
    return frame


def changed(frame: pd.DataFrame, what: str, rows: slice) -> pd.DataFrame:
    found = frame.astype(object)
    for column, value in zip((*COLUMNS, "t"), HOSTILE[what], strict=True):
        for row in range(*rows.indices(len(found))):
            found.iat[row, list(found.columns).index(column)] = value
    return found


def model_of(scene: str, private: Any, **more: Any) -> Any:
    kind, given = SCENES[scene]
    options: dict[str, Any] = {"trees": False, **given, **more}
    own, exact, flipped = (options.pop(name, False) for name in ("own", "exact", "flipped"))
    public = table(150, 1, kind, exact=exact)
    if flipped:
        public["t"] = np.where(public.t == "yes", "no", "yes")
    if "unit" in options:
        public["who"] = [f"q{k}" for k in range(len(public))]
    if own:
        public["k"] = public["k"].astype("category" if kind == "number" else object)
        options["public_model"] = (Strict if kind == "number" else StrictClassifier)().fit(None, None)
    if kind == "number":
        options["target_bounds"] = (-1.4, 1.4)
    return fit_tables(
        private, public, target="t", epsilon=10.0, delta=1e-6, relation=REPLACE, random_state=0, **options
    )


def recorded(
    scene: str, private: Any, folder: Path, like: Tape | None = None
) -> tuple[Tape, dict[str, Any], Any]:
    """The fit, and everything that leaves it."""
    told = io.StringIO()
    with (
        listening(like=like) as tape,
        warnings.catch_warnings(record=True) as heard,
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(told),
    ):
        warnings.simplefilter("always")
        model = model_of(scene, private)
    new = table(50, 2, SCENES[scene][0]).assign(who="q0")
    model.save(folder)
    outside = {
        "predictions": model.predict(new),
        "statement": model.privacy_.to_dict(),
        "history": model.history_,
        "warnings": [str(one.message) for one in heard],
        "printed": told.getvalue(),
        "weights": (folder / "weights.safetensors").read_bytes().hex(),
    }
    if SCENES[scene][0] == "number":
        outside["intervals"] = np.asarray(model.predict_interval(new, coverage=0.9))
    else:
        outside["probabilities"] = model.predict_proba(new)
    return tape, outside, model


def replayed(scene: str, base: Any, others: dict[str, Any], folder: Path) -> tuple[float, Any]:
    tape, outside, model = recorded(scene, base, folder / "base")
    largest = 0.0
    for name, other in others.items():
        again, found, _ = recorded(scene, other, folder / name.replace(" ", "-"), tape)
        assert len(again.calls) == len(tape.calls), f"{name}: the number of releases depends on a record"
        wrong = promises.within_sensitivity(tape, again) + promises.nothing_outside(outside, found)
        assert not wrong, f"{name}: {'; '.join(map(str, wrong))}"
        largest = max(largest, promises.largest_share(tape, again))
    return largest, model


@pytest.mark.parametrize("scene", SCENES)
def test_no_content_of_a_record_changes_anything_else(scene: str, tmp_path: Path) -> None:
    kind, given = SCENES[scene]
    base = table(N, 0, kind, exact=bool(given.get("exact")))
    rows = slice(AT, AT + 1)
    if "unit" in given:
        base["who"] = [f"p{k // 2}" for k in range(N)]
        rows = slice(AT, AT + 2)
    others = {what: changed(base, what, rows) for what in list(HOSTILE)[:: 3 if kind == "five" else 1]}
    twin = base.astype(object)
    twin.iloc[AT, : len(COLUMNS) + 1] = twin.iloc[3, : len(COLUMNS) + 1]
    largest, model = replayed(scene, base.astype(object), {**others, "a twin": twin}, tmp_path)
    assert largest > 0.1, "no neighbor moved anything: this test would not notice a fault"
    assert bool(model.privacy_.stopped) == (scene == "early return")
    assert ("compared_with_public" in model.privacy_.details) == (scene != "early return")
    assert scene in ("hinge", "other public rows") or model.privacy_.details.get("public_models")


@pytest.mark.parametrize("scene", ["numbers", "own model", "five classes"])
def test_no_content_of_a_record_in_blocks_changes_anything_else(
    scene: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CSV file that is encoded block by block: lines that are no records, words among numbers."""
    monkeypatch.setattr(fitting, "storage_for", lambda n, columns, *, memory, placed: placed)
    monkeypatch.setattr("sidelight.estimators.fit_records.block_rows", lambda columns: 250)
    base = tmp_path / "base.csv"
    table(N, 0, SCENES[scene][0]).to_csv(base, index=False)
    lines = base.read_bytes().split(b"\n")
    bad = [
        b"",
        b'"' + lines[AT],
        b"1,2",
        b"inf,nan,,maybe,2020-02-30,",
        b"1e300,x,\xff\xfe,1,,1e300",
        lines[4],
    ]
    others = {}
    for k, line in enumerate(bad[:: 2 if scene == "five classes" else 1]):
        path = tmp_path / f"{k}.csv"
        path.write_bytes(b"\n".join([*lines[:AT], line, *lines[AT + 1 :]]))
        others[str(k)] = str(path)
    largest, _ = replayed(scene, str(base), others, tmp_path)
    assert largest > 0.1


# ---------------------------------------------------------------------------------------------------
# one value, and the type of its column


@pytest.mark.parametrize("kind", ["text", "category"])
def test_the_type_of_a_column_for_an_own_model_depends_on_no_value(kind: Any) -> None:
    """A column that was all missing had another type than one with a text."""
    column = RawColumn("k", kind, ("x",) if kind == "category" else ())
    given = [[None, None], ["x", None], ["\ud800", 7], ["", "y"], []]
    found = [pd.DataFrame({"k": column.read(np.array(values, dtype=object))}).dtypes for values in given]
    assert all(one.equals(found[0]) for one in found)


def test_a_value_that_is_no_category_is_missing_and_causes_no_warning() -> None:
    found: Any = RawColumn("k", "category", ("x", "y")).read(np.array(["y", "z", None, "x"], dtype=object))
    assert found.codes.tolist() == [1, -1, -1, 0]
    numbers: Any = RawColumn("k", "category", (1.0, 2.0)).read(np.array(["2", 1, "z", 7], dtype=object))
    assert numbers.codes.tolist() == [1, 0, -1, -1]


def test_half_a_surrogate_pair_is_a_text_like_others() -> None:
    texts = RawColumn("k", "text").read(np.array(["a\ud800", "\ud83d\ude00", "b"], dtype=object))
    assert list(texts) == ["a\ufffd", "\U0001f600", "b"]  # type: ignore[call-overload]


# ---------------------------------------------------------------------------------------------------
# seen red


def test_contract_catches_targets_in_units_of_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record moves the targets of the others."""
    of_target = Coordinates.of_target

    def scaled(self: Any, X: Any, y: Any, *rest: Any, **how: Any) -> Any:
        largest = np.nanmax(np.abs(np.where(np.isfinite(y), y, 0.0)))
        return of_target(self, X, y / max(float(largest), 1.0), *rest, **how)

    monkeypatch.setattr(Coordinates, "of_target", scaled)
    base = table(N, 0, "number")
    with pytest.raises(AssertionError):
        replayed("numbers", base.astype(object), {"huge": changed(base, "huge", slice(AT, AT + 1))}, tmp_path)
