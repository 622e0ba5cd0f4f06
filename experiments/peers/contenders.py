"""Who takes part, and one fit of each: prediction for the test rows, CPU seconds, scores."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from experiments.peers import subprocesses
from experiments.peers.splits import TARGET, Array, Split
from experiments.peers.subprocesses import DELTA, PEERS
from sidelight.errors import NotPrivateWarning, PrivacyWarning
from sidelight.privacy.events import Relation
from sidelight.tables import fit_tables

OURS, LOOSER = "sidelight", "sidelight, add or remove one"
RELATIONS: dict[str, Relation] = {
    LOOSER: "add-or-remove-one"
}  # DP-EBM's; everything else of ours: replace-one
OWN = {
    False: ("public_whitening", "dp_newton", "objective_perturbation", "dp_sgd"),
    True: ("public_whitening", "dp_newton", "adassp", "dp_sgd"),
}
ALONE = ("only_public", "scikit-learn, public rows", "commonest class or mean")
SAME = "non_private"  # our features and loss, which depend on ε, without privacy
WITHOUT = ("linear, no privacy", "HistGradientBoosting, no privacy")
FREE = (*ALONE, *WITHOUT)  # do not depend on ε
RESULTS = ("accuracy", "auc", "log_loss", "ece", "rmse", "r2", "seconds")
BINS = 15


def contenders(*, regression: bool, apart: bool = False) -> tuple[str, ...]:
    """Of a table; fewer of those that stand apart, which are there to confirm what was found on others."""
    if apart:
        return (OURS, LOOSER, "DP-EBM", SAME, "only_public", *WITHOUT)
    return (OURS, LOOSER, *PEERS, *OWN[regression], SAME, *FREE)


def run(name: str, data: Split, *, epsilon: float, seed: int) -> dict[str, str]:
    """Scores as text; a score that does not apply is empty."""
    yes: Any = None  # who is told to be a yes, if not whoever has half the probability or more
    if name in PEERS:
        made, seconds = subprocesses.predict(name, data, epsilon=epsilon, seed=seed)
    elif name in _SIMPLE:
        made, seconds = _timed(_SIMPLE[name], data)
    else:
        made, seconds, yes = _ours(name, data, epsilon, seed)
    scores = _numbers(data, made) if data.regression else _classes(data, made, yes)
    scores["seconds"] = seconds
    return {key: f"{scores[key]:.6g}" if key in scores else "" for key in RESULTS}


def _ours(name: str, data: Split, epsilon: float, seed: int) -> tuple[Array, float, Any]:
    """Two frames and ε, as a user types it; the schema is learned from the public rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        warnings.simplefilter("ignore", PrivacyWarning)
        start = time.process_time()
        model = fit_tables(
            data.private, data.public, target=TARGET, epsilon=epsilon, delta=DELTA,
            relation=RELATIONS.get(name, "replace-one"), method="auto" if name in (OURS, LOOSER) else name,
            random_state=seed,
        )  # fmt: skip
        seconds = time.process_time() - start
        answer = model.predict(data.test)
        if data.regression:
            return np.asarray(answer, dtype=float), seconds, None
        return model.predict_proba(data.test)[:, 1], seconds, np.asarray(answer) == "yes"


def _timed(fit: Callable[[Split], Callable[[Any], Array]], data: Split) -> tuple[Array, float]:
    start = time.process_time()
    predict = fit(data)
    seconds = time.process_time() - start
    return predict(data.features(data.test)), seconds


def _linear(data: Split, *, public: bool) -> Callable[[Any], Array]:
    rows = data.public if public else data.private
    numbers = [name for name in data.features(rows) if name not in data.texts]
    columns = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), data.texts)
    )
    last = Ridge() if data.regression else LogisticRegression(max_iter=1000)
    return _fitted(make_pipeline(columns, last), data, rows)


def _boosted(data: Split) -> Callable[[Any], Array]:
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = make_column_transformer((codes, data.texts), remainder="passthrough")
    marked = list(range(len(data.texts)))
    kind = HistGradientBoostingRegressor if data.regression else HistGradientBoostingClassifier
    last = kind(categorical_features=marked or None, random_state=0)
    return _fitted(make_pipeline(columns, last), data, data.private)


def _fitted(model: Any, data: Split, rows: Any) -> Callable[[Any], Array]:
    model.fit(data.features(rows), data.target(rows))
    if data.regression:
        return lambda frame: model.predict(frame)
    return lambda frame: model.predict_proba(frame)[:, 1]


def _constant(data: Split) -> Callable[[Any], Array]:
    """The mean of the public targets (one yes and one no added), the same for everybody."""
    known = data.target(data.public)
    value = known.mean() if data.regression else (known.sum() + 1) / (len(known) + 2)
    return lambda frame: np.full(len(frame), float(value))


_SIMPLE: dict[str, Callable[[Split], Callable[[Any], Array]]] = {
    "scikit-learn, public rows": lambda data: _linear(data, public=True),
    "commonest class or mean": _constant,
    "linear, no privacy": lambda data: _linear(data, public=False),
    "HistGradientBoosting, no privacy": _boosted,
}


def _classes(data: Split, probability: Array, yes: Any) -> dict[str, float]:
    y = data.target(data.test)
    yes = probability >= 0.5 if yes is None else yes
    return {
        "accuracy": float(np.mean(yes == (y == 1))),
        "auc": float(roc_auc_score(y, probability)),
        "log_loss": float(log_loss(y, np.clip(probability, 1e-12, 1 - 1e-12))),
        "ece": calibration_error(probability, y),
    }


def calibration_error(probability: Array, y: Array) -> float:
    """Of bins with equally many rows: the mean distance of the rate from the mean probability."""
    bins = np.array_split(np.argsort(probability, kind="stable"), BINS)
    return float(sum(len(k) * abs(probability[k].mean() - y[k].mean()) for k in bins) / len(y))


def _numbers(data: Split, prediction: Array) -> dict[str, float]:
    y = data.target(data.test)
    error = float(np.mean((prediction - y) ** 2))
    return {"rmse": error**0.5, "r2": 1 - error / float(np.var(y))}
