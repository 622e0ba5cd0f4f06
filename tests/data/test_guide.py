"""Public models as columns and offset: combined in folds, record by record, kept by a model folder."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.data.guide import PublicGuide
from sidelight.data.rows import contents
from sidelight.data.targets import RealTarget, TargetScale
from sidelight.errors import InputError, NotPrivateWarning
from sidelight.estimators import model_folder
from sidelight.methods import precision_weighting, public_models
from sidelight.methods.parts import Last
from sidelight.methods.public_models import fit_guide
from sidelight.tables import TableModel, fit_tables


def bent(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A target that no line fits, which is never negative."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(rows, 4))
    return X, np.exp(1.5 * np.sign(X[:, 0] * X[:, 1]) + 0.5 * X[:, 2] + rng.normal(0, 0.1, rows))


def guide_of(X: np.ndarray, y: np.ndarray) -> PublicGuide:
    limits = (float(y.min()), float(y.max()))
    found = fit_guide(X, y, lower=-np.ones(4), upper=np.ones(4), limits=limits)
    assert found is not None
    return found.guide


def test_the_best_of_the_combined_models_is_not_better_than_all_of_them() -> None:
    X, y = bent(300, 0)
    new, targets = bent(5000, 1)
    guide = guide_of(X, y)
    assert guide.scores["together"] >= max(guide.scores.values())
    assert min(guide.together.values()) > 0
    said = guide.of(new).offset
    assert said is not None
    assert 1 - np.mean((targets - said) ** 2) / np.var(targets) > 0.8


def test_a_line_of_whole_numbers_is_among_the_models_and_keeps_its_weights_on_ramps() -> None:
    """40 rows do not tell 40 ramps apart, and four numbers they do."""
    rng = np.random.default_rng(0)
    parts = rng.uniform(-1, 1, size=(2040, 40))
    y = parts.reshape(-1, 4, 10).sum(axis=2) @ np.array([1.0, -2.0, 3.0, 0.5]) + rng.normal(0, 0.5, 2040)
    found = fit_guide(
        parts[:40], y[:40], lower=-np.ones(40), upper=np.ones(40), limits=(-30.0, 30.0),
        edges=np.arange(0, 41, 10),
    )  # fmt: skip
    assert found is not None
    scores = found.guide.scores
    assert scores["ridge of whole numbers"] > scores["ridge"] + 0.1
    coef = found.guide.models["ridge of whole numbers"].arrays()["coef"]
    np.testing.assert_array_equal(coef.reshape(4, 10), np.repeat(coef[0, ::10, None], 10, axis=1))
    said = found.guide.of(parts[40:]).offset
    assert said is not None
    assert 1 - np.mean((y[40:] - said) ** 2) / np.var(y[40:]) > 0.9


def test_a_wide_public_table_takes_fewer_rows() -> None:
    folds = public_models._Folds(np.zeros((9000, 3)), np.zeros(9000), np.zeros((9000, 3)), np.arange(4), 0)
    assert [len(folds.rows(columns)) for columns in (10, 1000, 10**6)] == [5000, 2000, 300]
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 300))
    start = time.process_time()
    found = fit_guide(X, X[:, 0] * 9 + 10, lower=-np.ones(300), upper=np.ones(300), limits=(0.0, 20.0))
    assert found is not None
    assert time.process_time() - start < 20


def test_what_a_guide_says_of_a_record_depends_on_that_record_alone() -> None:
    guide = guide_of(*bent(200, 0))
    X, _ = bent(5000, 1)
    hostile = X.copy()
    hostile[::7] = np.nan
    hostile[1::7] = np.inf
    hostile[2::7] = 1e300
    kept = np.arange(len(X)) % 7 > 2
    whole, beside = guide.of(X), guide.of(hostile)
    np.testing.assert_array_equal(whole.columns[kept], beside.columns[kept])
    np.testing.assert_array_equal(whole.offset[kept], beside.offset[kept])
    alone = guide.of(X[4321:4322])
    np.testing.assert_allclose(alone.columns[0], whole.columns[4321], rtol=1e-12)
    assert np.isfinite(beside.columns).all()
    assert (np.abs(beside.columns) <= 1).all()
    assert np.isfinite(beside.offset).all()


def test_the_logarithm_is_taken_where_folds_prefer_it() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 4))
    y = np.exp(4 * X[:, 0] + 2 * X[:, 1] + rng.normal(0, 0.1, 300))
    guide = guide_of(X, y)
    logs = {name: weight for name, weight in guide.together.items() if name.endswith("logarithm")}
    assert sum(logs.values()) > 0.8 * sum(guide.together.values())
    assert guide.scores["ridge of the logarithm"] > guide.scores["ridge"]
    X, y = bent(300, 0)
    assert not any(name.startswith("ridge") for name in guide_of(X, y).columns)


def test_public_rows_are_predicted_by_models_that_have_not_seen_them() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 4)), rng.normal(size=100)  # nothing to learn
    found = fit_guide(X, y, lower=-9 * np.ones(4), upper=9 * np.ones(4), limits=(-9.0, 9.0))
    assert found is not None
    held_out = found.public.offset
    assert held_out is not None
    assert np.mean((y - held_out) ** 2) > 0.8 * np.var(y)
    seen = found.guide.of(X).columns  # of trees, which know these rows by heart
    assert np.corrcoef(seen[:, 0], y)[0, 1] > 0.5
    assert abs(np.corrcoef(found.public.columns[:, 0], y)[0, 1]) < 0.35


def test_residuals_are_clipped_at_their_public_scale() -> None:
    from sidelight.data.coordinates import Bounds, Coordinates

    X, y = bent(300, 0)
    guide = guide_of(X, y)
    coordinates = Coordinates(Bounds(-np.ones(4), np.ones(4), np.zeros(4)), 1.0, True, guide)
    new, targets = bent(1000, 1)
    targets[:4] = (1e300, -1e300, np.nan, np.inf)
    rows = contents(coordinates.of_target(new, targets, RealTarget(TargetScale(0.0, 10.0))))
    assert (np.abs(rows.y) <= 1).all()
    assert rows.null[2:4].all()
    assert not rows.null[:2].any()
    said = guide.of(new).offset
    assert said is not None
    left = np.clip((targets[4:] - said[4:]) / guide.residual, -1, 1)
    np.testing.assert_allclose(rows.y[4:], left)
    held_out = fit_guide(X, y, lower=-np.ones(4), upper=np.ones(4), limits=(float(y.min()), float(y.max())))
    assert held_out is not None and held_out.public.offset is not None
    assert guide.residual == np.abs(y - held_out.public.offset).max()


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_a_regression_is_better_than_public_rows_alone_and_than_a_line(epsilon: float) -> None:
    X, y = bent(8000, 1)
    Xp, yp = bent(200, 2)
    Xt, yt = bent(4000, 3)
    scores = {}
    for model in ("auto", None):
        fitted = PrivateRegressor(epsilon=epsilon, random_state=0, public_model=model, trees=False).fit(
            X, y, Xp, yp
        )
        scores[model] = fitted.score(Xt, yt)
    assert scores["auto"] > 0.75
    assert scores[None] < 0.3


def test_without_privacy_there_are_public_models_and_trees_so_that_it_is_a_ceiling() -> None:
    """Of a target that no line fits."""
    (X, y), (Xp, yp), (Xt, yt) = bent(8000, 1), bent(200, 2), bent(4000, 3)
    default = PrivateRegressor(epsilon=8.0, random_state=0).fit(X, y, Xp, yp)
    ceiling = PrivateRegressor(epsilon=8.0, random_state=0, method="non_private")
    with pytest.warns(NotPrivateWarning):
        ceiling.fit(X, y, Xp, yp)
    assert ceiling.privacy_.epsilon == np.inf
    assert ceiling._trees is not None and ceiling._coordinates.guide is not None
    assert ceiling.score(Xt, yt) > default.score(Xt, yt)
    with pytest.warns(NotPrivateWarning):
        line = PrivateRegressor(epsilon=8.0, method="non_private", public_model=None, trees=False).fit(
            X, y, Xp, yp
        )
    assert line._trees is None and line._coordinates.guide is None
    assert line.score(Xt, yt) < 0.3


def test_a_folder_keeps_the_public_models(tmp_path) -> None:
    X, y = bent(3000, 1)
    Xp, yp = bent(200, 2)
    Xt, _ = bent(100, 3)
    model = PrivateRegressor(epsilon=1.0, random_state=0).fit(X, y, Xp, yp)
    assert model.coef_.shape == (4,)
    assert [name for name in model.privacy_.details["public_models"] if name.endswith("leaves")]
    model.save(tmp_path / "model")
    again = PrivateRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(Xt), model.predict(Xt))
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"model.json", "weights.safetensors", "privacy.json", "report.html"}


def test_two_tables_take_the_same_guide(tmp_path) -> None:
    X, y = bent(4000, 1)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(high=np.where(y > np.median(y), "yes", "no"))
    model = fit_tables(frame[200:], frame[:200], target="high", epsilon=1.0, random_state=0)
    model.save(tmp_path / "model")
    again = TableModel.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert "few splits" in model.privacy_.details["public_models"]


def test_of_several_classes_training_starts_at_the_combined_model(tmp_path: Path) -> None:
    """One column per class."""
    X, y = bent(4000, 1)
    labels = np.searchsorted(np.quantile(y, [1 / 3, 2 / 3]), y)
    model = PrivateClassifier("only_public", epsilon=1.0, public_model="fit", random_state=0)
    model.fit(X[600:], labels[600:], X[:600], labels[:600])
    guide, new = model._coordinates.guide, X[600:]
    assert guide is not None and list(guide.columns) == ["together"] and guide.size == 3
    center, reach = guide.columns["together"]
    said = (center + reach * guide.of(new).columns).argmax(axis=1)
    assert np.mean(model.predict(new) == said) > 0.99
    first = precision_weighting(steps=1, step_size=1e-9, finish=Last())
    start = PrivateClassifier(first, epsilon=1.0, public_model="fit", random_state=0)
    start.fit(X[600:], labels[600:], X[:600], labels[:600])
    assert np.mean(start.predict(new) == said) > 0.99
    model.save(tmp_path / "model")
    again = PrivateClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(new), model.predict_proba(new))


@pytest.mark.parametrize(("features", "classes"), [(4, 5), (40, 40), (120, 101)])
def test_classes_that_outnumber_features_have_no_guide(features: int, classes: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 500)
    X = np.sign(rng.normal(size=(500, features)))
    X[np.arange(500), y % features] = 0.0  # which no line sees
    found = fit_guide(X, y, lower=-np.ones(features), upper=np.ones(features), limits=None)
    assert (found is not None) == (classes == features)


def test_too_few_public_rows_and_named_methods_have_no_guide() -> None:
    X, y = bent(2000, 1)
    labels = y > np.median(y)
    few = PrivateClassifier(epsilon=1.0, random_state=0).fit(X, labels, X[:30], labels[:30])
    named = PrivateClassifier("dp_sgd", epsilon=1.0, random_state=0).fit(X, labels, X[:300], labels[:300])
    for model in (few, named):
        assert "public_models" not in model.privacy_.details
    asked = PrivateClassifier("dp_sgd", epsilon=1.0, random_state=0, public_model="fit")
    assert "together" in asked.fit(X, labels, X[:300], labels[:300]).privacy_.details["public_models"]


def test_an_unknown_public_model_is_refused_before_the_charge() -> None:
    X, y = bent(100, 1)
    with pytest.raises(InputError, match="public_model"):
        PrivateRegressor(epsilon=1.0, public_model="best").fit(X, y, X.copy(), y)


# ---------------------------------------------------------------------------------------------------
# public rows that are odd


def rare(*labels: int) -> np.ndarray:
    """40 labels, 0 but for these, which all lie in one fold."""
    y = np.zeros(40, dtype=int)
    y[3 : 3 + 5 * len(labels) : 5] = labels
    return y


@pytest.mark.parametrize("labels", [(1,), (1, 1), (2, 2), (1, 2)], ids=str)
def test_a_fold_may_lack_all_classes_but_one(labels: tuple[int, ...]) -> None:
    X, y = bent(1000, 1)
    private = (y > 1).astype(int) + (y > 3)
    Xp, _ = bent(40, 2)
    model = PrivateClassifier(epsilon=1.0, random_state=0, classes=[0, 1, 2]).fit(
        X, private, Xp, rare(*labels)
    )
    assert np.isfinite(model.predict_proba(X)).all()
    two = PrivateClassifier(epsilon=1.0, random_state=0, classes=[0, 1])
    two.fit(X, np.minimum(private, 1), Xp, np.minimum(rare(*labels), 1))
    assert np.isfinite(two.predict_proba(X)).all()


@pytest.mark.parametrize("size", [1e39, 1e300, 1e-50])
def test_features_beyond_single_precision_are_seen_by_trees(size: float) -> None:
    X, y = bent(3000, 1)
    Xp, yp = bent(200, 2)
    model = PrivateRegressor(epsilon=2.0, random_state=0).fit(size * X, y, size * Xp, yp)
    new, targets = bent(2000, 3)
    assert model.score(size * new, targets) > 0.6


@pytest.mark.parametrize("size", [1e100, 1e300])
def test_public_targets_are_clipped_to_declared_bounds_before_models_learn_them(size: float) -> None:
    X, y = bent(3000, 1)
    Xp, yp = bent(200, 2)
    yp[:3] = (size, -size, size)
    model = PrivateRegressor(epsilon=2.0, random_state=0, target_bounds=(0.0, 9.0)).fit(X, y, Xp, yp)
    assert model.score(*bent(2000, 3)) > 0.4


def test_targets_whose_squares_overflow_have_no_guide() -> None:
    X, y = bent(3000, 1)
    Xp, yp = bent(200, 2)
    model = PrivateRegressor(epsilon=2.0, random_state=0).fit(X, 1e300 * y, Xp, 1e300 * yp)
    assert "public_models" not in model.privacy_.details
    assert np.isfinite(model.predict(X)).all()


def test_a_public_label_that_is_no_class_is_refused() -> None:
    X, y = bent(100, 1)
    labels = (y > 1).astype(int)
    with pytest.raises(InputError, match="classes"):
        PrivateClassifier(epsilon=1.0, classes=[0, 1]).fit(X, labels, X.copy(), 2 * labels)


# ---------------------------------------------------------------------------------------------------
# a folder whose parts do not fit together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder") / "model"
    X, y = bent(1000, 1)
    PrivateRegressor(epsilon=1.0, random_state=0).fit(X, y, *bent(200, 2)).save(path)
    return path


def rewritten(folder: Path, to: Path, changes: dict[str, Any]) -> Path:
    """A copy with other arrays, or other entries of the guide, and checksums that match."""
    shutil.copytree(folder, to)
    body = json.loads((to / "model.json").read_text())
    arrays = load_arrays((to / "weights.safetensors").read_bytes())
    trees = [entry["kind"] for entry in body["guide"]["models"]].index("trees")
    for name, change in changes.items():
        key = f"guide.{trees}.{name}" if f"guide.{trees}.{name}" in arrays else f"guide.{name}"
        if key in arrays:
            arrays[key] = np.ascontiguousarray(change(arrays[key]))
        else:
            body["guide"][name] = change
    content = save_arrays(arrays)
    (to / "weights.safetensors").write_bytes(content)
    del body["checksum"]
    body["weights"] = model_folder.checksum(content)
    (to / "model.json").write_text(json.dumps(body | {"checksum": model_folder._of_json(body)}))
    return to


BROKEN: dict[str, dict[str, Any]] = {
    "endless": {"depth": lambda a: np.full_like(a, 2**31 - 1)},
    "no depth": {"depth": lambda a: -a},
    "infinite depth": {"depth": lambda a: np.array([np.inf])},
    "circles": {"left": np.zeros_like},
    "nodes outside": {"right": lambda a: a + len(a)},
    "negative features": {"feature": lambda a: a - 1},
    "features that are no integers": {"feature": lambda a: a + 0.5},
    "two features": {"feature": lambda a: np.stack([a, a], axis=1)},
    "roots in a table": {"roots": lambda a: a[:, None]},
    "no outputs": {"value": lambda a: a[:, :0]},
    "three outputs": {"value": lambda a: np.repeat(a, 3, axis=1)},
    "values in a row": {"value": lambda a: a[:, 0]},
    "truncated": {"value": lambda a: a[:-1]},
    "not a number": {"value": lambda a: a * np.nan},
    "no scale": {"column.0.reach": np.zeros_like},
    "a scale of text": {"residual": "far"},
    "a negative scale": {"residual": -1.0},
    "no residual": {"residual": None},
    "limits of text": {"limits": "ab"},
    "a model that is not there": {"together": {"oracle": 1.0}},
    "an infinite level": {"level": float("inf")},
    "an unknown link": {"models": [{"name": "ridge", "kind": "linear", "link": "square"}]},
}


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN)
def test_a_folder_with_a_broken_guide_is_refused_in_one_line(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as refused:
        PrivateRegressor.load(rewritten(folder, tmp_path / "broken", changes))
    assert "\n" not in str(refused.value)


def test_a_rewritten_folder_is_read(folder: Path, tmp_path: Path) -> None:
    PrivateRegressor.load(rewritten(folder, tmp_path / "same", {"left": np.copy}))
