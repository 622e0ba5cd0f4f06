"""Data and a quick method for the tests of the estimators."""

from typing import Any

import numpy as np

from sidelight.estimators import PrivateClassifier
from sidelight.methods.output_perturbation import output_perturbation
from sidelight.privacy.ledger import Ledger

WEIGHTS = np.array([1.0, -2.0, 0.5, 0.0, 1.0])
FAST = output_perturbation(iterations=3)


def features(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, (n, 5))


X, X_PUBLIC, X_TEST = features(1500), features(100, seed=1), features(500, seed=2)
SCORE, SCORE_PUBLIC, SCORE_TEST = X @ WEIGHTS, X_PUBLIC @ WEIGHTS, X_TEST @ WEIGHTS
Y, Y_PUBLIC, Y_TEST = (np.where(s > 0, "yes", "no") for s in (SCORE, SCORE_PUBLIC, SCORE_TEST))


def classifier(**changes: Any) -> PrivateClassifier:
    fixed: dict[str, Any] = {"bounds": (-1, 1), "classes": ["no", "yes"], "random_state": 0}
    return PrivateClassifier(FAST, **{"epsilon": 1.0, **{**fixed, **changes}})


def ledger_with(epsilon: float, relation: Any = "replace-one") -> Ledger:
    ledger = Ledger.in_memory()
    ledger.register("people", relation=relation, epsilon=epsilon, delta=1e-5)
    return ledger
