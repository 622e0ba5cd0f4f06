"""scikit-learn's own conformance suite on both estimators, for methods of every kind.

The checks call fit(X, y) and nothing else, with classes and ranges of their own, so the estimators are told
that these are no secret. ε is large: the checks ask whether the interface is right, and some of them whether
anything was learned.
"""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sidelight.estimators import PrivateClassifier, PrivateRegressor

METHODS = ["auto", "dp_sgd", "rsgd_ar", "output_perturbation", "objective_perturbation", "nsgd", "pnsgd","amp"]


def classifiers() -> list[Any]:
    return [
        PrivateClassifier(method, epsilon=100.0, assume_public=("classes", "bounds"), random_state=0)
        for method in METHODS
    ]


def regressors() -> list[Any]:
    return [
        PrivateRegressor(method, epsilon=100.0, assume_public=("bounds", "target_bounds"), random_state=0)
        for method in METHODS
    ]


def expected(estimator: Any) -> dict[str, str]:
    return {}


@parametrize_with_checks([*classifiers(), *regressors()], expected_failed_checks=expected)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
