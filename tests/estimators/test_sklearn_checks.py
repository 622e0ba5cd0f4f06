"""scikit-learn's own conformance suite on both estimators, for methods of every kind.

The checks call fit(X, y) and nothing else, with classes and ranges of their own, so the estimators are told
that these are no secret. ε is large: the checks ask whether the interface is right, and some of them whether
anything was learned.
"""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sidelight.estimators import PrivateClassifier, PrivateRegressor

# What privacy makes impossible, and why.
IMPOSSIBLE = {
    "check_estimators_nan_inf": "a private record with NaN or infinity is a null record: an error would tell "
    "that there is one. Prediction does raise (test_bad_input)",
    "check_dtype_object": "a private value that is no number makes a null record: an error would tell that "
    "there is one",
}
IMPOSSIBLE_FOR_NUMBERS = {
    "check_complex_data": "one complex value makes a whole array complex: what is a real number is read as "
    "such, and any other value makes a null record",
}


def classifier(method: str, loss: str | None = None) -> PrivateClassifier:
    known = ("classes", "bounds")
    return PrivateClassifier(method, loss=loss, epsilon=100.0, assume_public=known, random_state=0)


def regressor(method: str, epsilon: float = 100.0) -> PrivateRegressor:
    known = ("bounds", "target_bounds")
    return PrivateRegressor(method, epsilon=epsilon, assume_public=known, random_state=0)


ESTIMATORS = [
    classifier("auto"),
    classifier("rsgd_ar"),
    classifier("output_perturbation"),
    classifier("objective_perturbation", loss="logistic"),  # analyzed for one output, so two classes
    regressor("auto"),
    regressor("rsgd_ar"),
    regressor("pnsgd", epsilon=1000.0),  # a check asks for a good score
    regressor("objective_perturbation"),
]


def impossible(estimator: Any) -> dict[str, str]:
    regression = isinstance(estimator, PrivateRegressor)
    return {**IMPOSSIBLE, **(IMPOSSIBLE_FOR_NUMBERS if regression else {})}


# Some checks score on the records that they fitted.
@pytest.mark.filterwarnings("ignore:.*release that no budget covers:sidelight.errors.NotPrivateWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=impossible)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
