"""scikit-learn's interface: private linear models, fitted with the help of public records.

    PrivateClassifier(epsilon=1.0).fit(X, y, X_public=Xp, y_public=yp)

What is learned from data before training comes from what the user declares, or from the public records:
classes, feature bounds, target bounds. Without either, `fit` refuses, unless `assume_public` names what is no
secret, and then `privacy_.assumptions` says so. How many private records there are, their columns and their
types (of an array, or of a frame's columns) are treated as public. What they hold is not: a list or an array
of objects is read value by value.

A private record with a missing or infinite value, or with a label that is not among the classes, becomes a
null record, which contributes zero to every sum: an error would tell that there is one. The same in public
records is an error.

Every `fit` spends budget, in a grid search too: each fold of each candidate, and the refit. With `ledger` all
of them are charged to one dataset, which must accept parts of its records (`any_size=True`), and those that
it cannot pay for are refused (scikit-learn goes on after a refused fit; `error_score="raise"` stops the
search). The *scores* of a grid search on private records, and the choice made by them, are covered by
nothing; nor is a transformer that a pipeline fits to the private records, nor a score on them:
NotPrivateWarning says so where that can be seen. Public records reach a search by metadata routing; it cuts
into folds whatever has as many rows as X, so let X_public have another number of rows.
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
