"""scikit-learn's interface: private linear models, fitted with the help of public records.

    PrivateClassifier(epsilon=1.0).fit(X, y, X_public=Xp, y_public=yp)

What is learned from data before training comes from what the user declares, or from the public records:
classes, feature bounds, target bounds. Without either, `fit` refuses, unless `assume_public` names what is
public, and then `privacy_.assumptions` says so. How many private records there are, their columns and their
types (of an array, or of a frame's columns) are treated as public. What they hold is not: a list or an array
of objects is read value by value.

A private record with a missing or infinite value, or with a label that is not among the classes, becomes a
null record, which contributes zero to every sum: an error would reveal it. In public records the same is
an error.

Every `fit` spends budget, in a grid search too: each fold of each candidate, and the refit. With `ledger` all
of them are charged to one dataset, which must accept parts of its records (`any_size=True`), and fits beyond
its budget are refused (scikit-learn continues after a refused fit; `error_score="raise"` stops the search).
No budget covers the *scores* of a grid search on private records, the choice made by them, or a transformer
that a pipeline fits to private records: a NotPrivateWarning says so if it is detected. Public records reach a
search by metadata routing; it cuts into folds every argument with as many rows as X, so X_public must have a
different number of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidelight.lazy_names import load

if TYPE_CHECKING:
    from sidelight.estimators.classifier import PrivateClassifier
    from sidelight.estimators.regressor import PrivateRegressor

__all__ = ["PrivateClassifier", "PrivateRegressor"]

_HOMES = {
    "PrivateClassifier": "sidelight.estimators.classifier",
    "PrivateRegressor": "sidelight.estimators.regressor",
}


def __getattr__(name: str) -> Any:
    value = globals()[name] = load(__name__, _HOMES, name)
    return value
