"""Who takes part: the default with shifted public rows, with others and with none, and what is free."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from experiments.public_pays import contenders
from experiments.public_pays.contenders import DELTA, FREE
from experiments.public_pays.tables import TARGET, Split
from experiments.shift.shifts import TEXT, Shift, declared, split
from sidelight.errors import NotPrivateWarning, PrivacyWarning
from sidelight.features.encoders import open_encoder
from sidelight.tables import TableModel, fit_tables

OURS, LEARNED = "shifted public rows", "shifted public rows, and columns learned from them"
NONE, SAME = "no public rows", "public rows without a shift"
PRIVATE = (OURS, LEARNED, NONE, SAME)
RESULTS = ("auc", "log_loss", "warned", "seconds")


def run(name: str, shift: Shift, *, epsilon: float, repeat: int) -> dict[str, str]:
    start = time.process_time()
    data = split(shift, repeat, shifted=name not in (NONE, SAME))
    found = _free(name, shift, data) if name in FREE else _ours(name, shift, data, epsilon, repeat)
    found["seconds"] = time.process_time() - start
    return {key: f"{found[key]:.6g}" if key in found else "" for key in RESULTS}


def _ours(name: str, shift: Shift, data: Split, epsilon: float, seed: int) -> dict[str, float]:
    known: dict[str, Any] = {"schema": declared(shift.table)}
    if name == LEARNED:
        known = {"target": TARGET, "types": TEXT if shift.table == "sst2" else {}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore", NotPrivateWarning)
        warnings.simplefilter("always", PrivacyWarning)
        model = fit_tables(
            data.private, None if name == NONE else data.public, epsilon=epsilon, delta=DELTA,
            relation="replace-one", random_state=seed, **known,
        )  # fmt: skip
    warned = any("disagree" in str(one.message) for one in told)
    return _scores(data, model) | {"warned": float(warned)}


def _scores(data: Split, model: TableModel) -> dict[str, float]:
    labels = [str(label) for label in getattr(model.estimator, "classes_")]  # noqa: B009
    return _scored(data, model.predict_proba(data.test)[:, labels.index("yes")])


def _scored(data: Split, chance: Any) -> dict[str, float]:
    yes = (data.test[TARGET] == "yes").to_numpy()
    likely = np.clip(chance, 1e-6, 1 - 1e-6)
    return {"auc": float(roc_auc_score(yes, likely)), "log_loss": float(log_loss(yes, likely))}


def _free(name: str, shift: Shift, data: Split) -> dict[str, float]:
    if shift.table != "sst2":
        found = contenders._free(name, data)
        return {"auc": found["auc"], "log_loss": found["log_loss"]}
    encoder = open_encoder(TEXT["text"].partition(":")[2])
    X, X_test = (encoder.encode(list(part["text"])) for part in (data.public, data.test))
    model: Any = LogisticRegression(max_iter=300) if name == FREE[0] else contenders._boosted(data, [])
    model.fit(X, data.public[TARGET])
    return _scored(data, model.predict_proba(X_test)[:, list(model.classes_).index("yes")])
