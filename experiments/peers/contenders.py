"""Who takes part, and one fit of each: prediction for the test rows, CPU seconds, scores."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from experiments.peers import subprocesses
from experiments.peers.splits import MANY_CLASSES, NEW, TARGET, Array, Split, is_regression
from experiments.peers.subprocesses import DELTA, PEERS
from experiments.public_pays import contenders as simple
from experiments.public_pays.contenders import BEFORE, OURS, WITHOUT, calibration_error
from sidelight.errors import NotPrivateWarning, PrivacyWarning
from sidelight.tables import fit_tables

OWN = {
    False: ("public_whitening", "dp_newton", "objective_perturbation", "dp_sgd"),
    True: ("public_whitening", "dp_newton", "adassp", "dp_sgd"),
}
CONSTANT = "commonest class or mean"
ALONE = (*simple.FREE, "only_public", CONSTANT)  # of public rows
SAME = "non_private"  # our features and loss, which depend on ε, without privacy
FREE = (*ALONE, *WITHOUT)  # do not depend on ε
RESULTS = ("accuracy", "auc", "log_loss", "ece", "rmse", "r2", "seconds")
WITH_OWN_MODEL = ("bike", "traffic", "satellite")  # half of the public rows have every class


def contenders(name: str) -> tuple[str, ...]:
    """Of a table. Of a new one, all but other libraries is taken from the runs of `public_pays`."""
    several = name in MANY_CLASSES
    peers = tuple(peer for peer in PEERS if not several or peer in subprocesses.MANY_CLASSES)
    if name in NEW:
        own = simple.contenders(regression=is_regression(name), classes=3 if several else 2)
        given = (simple.GIVEN,) if name in WITH_OWN_MODEL else ()
        return (*own[:2], *given, *peers, *own[2:])
    return (OURS, BEFORE, *peers, *OWN[is_regression(name)], SAME, *FREE)


def run(name: str, data: Split, *, epsilon: float, seed: int) -> dict[str, str]:
    """Scores as text; a score that does not apply is empty."""
    if name == simple.GIVEN:
        return dict.fromkeys(RESULTS, "") | simple.run(name, data, epsilon=epsilon, seed=seed)
    yes: Any = None  # who is told to be a yes, if not whoever has half the probability or more
    if name in PEERS:
        made, seconds = subprocesses.predict(name, data, epsilon=epsilon, seed=seed)
    elif name in (*simple.FREE, *WITHOUT, CONSTANT):
        made, seconds = _simple(name, data)
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
            relation="replace-one", method="auto" if name in (OURS, BEFORE) else name, random_state=seed,
            **(simple.LINE_ALONE if name == BEFORE else {}),
        )  # fmt: skip
        seconds = time.process_time() - start
        answer = model.predict(data.test)
        if data.regression:
            return np.asarray(answer, dtype=float), seconds, None
        return model.predict_proba(data.test)[:, 1], seconds, np.asarray(answer) == "yes"


def _simple(name: str, data: Split) -> tuple[Array, float]:
    """A model of scikit-learn, or the mean of the public targets (one yes and one no added)."""
    if name == CONSTANT:
        known = data.target(data.public)
        value = known.mean() if data.regression else (known.sum() + 1) / (len(known) + 2)
        return np.full(len(data.test), float(value)), 0.0
    start = time.process_time()
    model = simple.fitted(name, data)
    seconds = time.process_time() - start
    X_test = simple.plain(data, data.test)
    return model.predict(X_test) if data.regression else model.predict_proba(X_test)[:, 1], seconds


def _classes(data: Split, probability: Array, yes: Any) -> dict[str, float]:
    y = data.target(data.test)
    if probability.ndim == 2:
        known = y < probability.shape[1]
        chances = np.clip(probability[known], 1e-12, 1)
        return {
            "accuracy": float(np.mean(probability.argmax(axis=1) == y)),
            "log_loss": float(-np.mean(np.log(chances[np.arange(len(chances)), y[known]]))),
        }
    yes = probability >= 0.5 if yes is None else yes
    return {
        "accuracy": float(np.mean(yes == (y == 1))),
        "auc": float(roc_auc_score(y, probability)),
        "log_loss": float(log_loss(y, np.clip(probability, 1e-12, 1 - 1e-12))),
        "ece": calibration_error(probability, y),
    }


def _numbers(data: Split, prediction: Array) -> dict[str, float]:
    y = data.target(data.test)
    error = float(np.mean((prediction - y) ** 2))
    return {"rmse": error**0.5, "r2": 1 - error / float(np.var(y))}
