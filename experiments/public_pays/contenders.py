"""Who takes part: ours, what is free, and what there would be without privacy."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from experiments.peers.splits import TARGET, Split
from sidelight.errors import NotPrivateWarning, PrivacyWarning
from sidelight.tables import TableModel, fit_tables

OURS, BEFORE = "sidelight", "sidelight, a line alone"
GIVEN = "sidelight, boosting as public_model"  # of half of the public rows; the others are public rows
OWN = {False: ("public_whitening", "dp_newton"), True: ("public_whitening", "adassp")}
FREE = ("linear, public rows", "boosting, public rows")
WITHOUT = ("linear, no privacy", "boosting, no privacy")
RESULTS = ("auc", "accuracy", "log_loss", "ece", "r2", "seconds")
BINS = 15
DELTA = 1e-6
LINE_ALONE: dict[str, Any] = {"public_model": None, "compare_with_public": False, "trees": False}


def contenders(*, regression: bool, classes: int) -> tuple[str, ...]:
    own = OWN[regression] if classes <= 2 else OWN[regression][:1]
    return (OURS, BEFORE, *own, *FREE, *WITHOUT)


def run(name: str, data: Split, *, epsilon: float, seed: int) -> dict[str, str]:
    start = time.process_time()
    made = _free(name, data) if name in (*FREE, *WITHOUT) else _ours(name, data, epsilon, seed)
    scores = made | {"seconds": time.process_time() - start}
    return {key: f"{scores[key]:.6g}" if key in scores else "" for key in RESULTS}


def _ours(name: str, data: Split, epsilon: float, seed: int) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        warnings.simplefilter("ignore", PrivacyWarning)
        public, options = data.public, LINE_ALONE if name == BEFORE else {}
        if name == GIVEN:
            half = len(public) // 2
            options = {"public_model": fitted(FREE[1], replace(data, public=public[:half]))}
            public = public[half:]
        model = fit_tables(
            data.private, public, target=TARGET, task="regression" if data.regression else None,
            epsilon=epsilon, delta=DELTA, relation="replace-one",
            method="auto" if name in (OURS, BEFORE, GIVEN) else name, random_state=seed, **options,
        )  # fmt: skip
    return scored(model, data)


def scored(model: TableModel, data: Split) -> dict[str, float]:
    """Scores of one of ours on the held-out rows."""
    if data.regression:
        return _numbers(data, model.predict(data.test))
    labels = [str(label) for label in getattr(model.estimator, "classes_")]  # noqa: B009
    return _classes(data, model.predict_proba(data.test), labels)


def _free(name: str, data: Split) -> dict[str, float]:
    model, X_test = fitted(name, data), plain(data, data.test)
    if data.regression:
        return _numbers(data, model.predict(X_test))
    return _classes(data, model.predict_proba(X_test), [str(one) for one in model.classes_])


def fitted(name: str, data: Split) -> Any:
    """A linear model or boosting, of the public or of the private rows."""
    rows = data.public if name in FREE else data.private
    texts = data.texts
    numbers = [column for column in data.features(rows) if column not in texts]
    model = _linear(data, numbers, texts) if name.startswith("linear") else _boosted(data, texts)
    return model.fit(plain(data, rows), rows[TARGET])


def plain(data: Split, rows: Any) -> Any:
    """The features of rows, categories as texts."""
    return data.features(rows).assign(**{name: rows[name].astype(str) for name in data.texts})


class Clipped(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Numbers within the range of the rows that a model learns from, so that one odd row decides nothing."""

    def fit(self, X: ArrayLike, y: object = None) -> Clipped:
        self.low_, self.high_ = np.min(X, axis=0), np.max(X, axis=0)
        return self

    def transform(self, X: ArrayLike) -> Any:
        return np.clip(X, self.low_, self.high_)


def _linear(data: Split, numbers: list[str], texts: list[str]) -> Any:
    known = make_pipeline(SimpleImputer(keep_empty_features=True), Clipped(), StandardScaler())
    columns = make_column_transformer(
        (known, numbers), (OneHotEncoder(handle_unknown="ignore", max_categories=200), texts)
    )
    last = RidgeCV(np.logspace(-2, 4, 13)) if data.regression else LogisticRegression(max_iter=300)
    return make_pipeline(columns, last)


def _boosted(data: Split, texts: list[str]) -> Any:
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, max_categories=200)
    columns = make_column_transformer((codes, texts), remainder="passthrough")
    kind = HistGradientBoostingRegressor if data.regression else HistGradientBoostingClassifier
    return make_pipeline(columns, kind(categorical_features=list(range(len(texts))) or None, random_state=0))


def _numbers(data: Split, prediction: Any) -> dict[str, float]:
    y = data.test[TARGET].to_numpy(float)
    return {"r2": 1 - float(np.mean((np.asarray(prediction) - y) ** 2)) / float(np.var(y))}


def _classes(data: Split, chances: Any, labels: list[str]) -> dict[str, float]:
    y = data.test[TARGET].astype(str).to_numpy()
    known = np.isin(y, labels)
    chosen = np.asarray(labels)[np.argmax(chances, axis=1)]
    scores = {"accuracy": float(np.mean(chosen == y))}
    scores["log_loss"] = float(log_loss(y[known], np.clip(chances[known], 1e-6, 1), labels=labels))
    if len(labels) == 2:
        scores["auc"] = float(roc_auc_score(y == labels[1], chances[:, 1]))
        scores["ece"] = calibration_error(chances[:, 1], y == labels[1])
    else:
        scores["ece"] = calibration_error(np.max(chances, axis=1), chosen == y)
    return scores


def calibration_error(probability: Any, y: Any) -> float:
    """Of bins with equally many rows: the mean distance of the rate from the mean probability."""
    bins = np.array_split(np.argsort(probability, kind="stable"), BINS)
    return float(sum(len(k) * abs(probability[k].mean() - y[k].mean()) for k in bins) / len(y))
