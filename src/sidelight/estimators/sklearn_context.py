"""What scikit-learn does around a fit with the private records, and no budget covers.

`privacy_` speaks of one fit. A pipeline that first fits a scaler to the private rows, a search that scores on
them and chooses, a score on them: each tells about private records without any noise. They are seen here by
who calls (the stack) and by what is the same object, never by comparing records: that would tell about them.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sidelight.arrays import TableLike
from sidelight.errors import InputError, NotPrivateWarning, users_line

_SEARCHES = ("sklearn.model_selection._search", "sklearn.model_selection._validation")
_OTHERS = (
    "sklearn.calibration",
    "sklearn.compose._target",
    "sklearn.ensemble",
    "sklearn.feature_selection",
    "sklearn.multiclass",
    "sklearn.multioutput",
    "sklearn.semi_supervised",
)
_PIPELINES = ("sklearn.pipeline", "imblearn.pipeline")
_SCORED = (
    "scikit-learn scores on private records around this fit; scores, and choices made by them, are covered "
    "by no budget"
)
_INSTEAD_OF_STEPS = (
    "Fit it to public rows and freeze it, as in sklearn.frozen.FrozenEstimator(MinMaxScaler().fit("
    "X_public)); or leave it out: bounds= scales features, and a frame is encoded by its schema"
)
_INSTEAD_OF_SEARCHES = (
    "Choose on public rows (`sidelight compare` rehearses methods for free), and pass ledger= so that every "
    "fit is counted: each one spends"
)


class _Fitted(NamedTuple):
    """A container that was fitted: the object (of an array: the owner of its memory), where, how many."""

    owner: weakref.ref[object] | None
    memory: tuple[int, int] | None
    n: int | None


_fitted: weakref.WeakKeyDictionary[object, _Fitted] = weakref.WeakKeyDictionary()


def warn_outside_fit() -> tuple[str, ...]:
    """Warn of what is around the `fit` that calls this; the same as lines for its statement."""
    advice: dict[str, str] = {}  # what is not covered, and what to do instead
    for frame in _callers():
        module = _module(frame)
        if module.startswith(_PIPELINES) and frame.f_code.co_name.startswith("fit"):
            for name in _learning_steps(frame.f_locals.get("self")):
                line = f"{name} of a pipeline was fitted to the private records: that is covered by no budget"
                advice[line] = _INSTEAD_OF_STEPS
        elif module.startswith(_SEARCHES):
            advice[_SCORED] = _INSTEAD_OF_SEARCHES
        elif module.startswith(_OTHERS):
            line = f"{module} works with the private records around this fit: that is covered by no budget"
            advice[line] = "Fit the estimator by itself, and pass ledger= if it is fitted more than once"
    for what, instead in advice.items():
        warnings.warn(f"{what}. {instead}. See docs/pitfalls.md", NotPrivateWarning, stacklevel=users_line())
    return tuple(advice)


def refuse_transformed_target(y_public: object) -> None:
    """Refuse public targets below scikit-learn's TransformedTargetRegressor: it transforms y alone."""
    if y_public is not None and any(_module(frame) == "sklearn.compose._target" for frame in _callers()):
        raise InputError(
            "TransformedTargetRegressor transforms y, but not y_public. Transform both yourself, or leave it "
            "out: public_model tries the logarithm of the target"
        )


def remember_records(estimator: object, X: object, n: int | None) -> None:
    """Remember which container was fitted, outside of the estimator: a pickle of it holds nothing of that.

    n is None where the number of rows is private, as that of persons' rows is.
    """
    try:
        owner = weakref.ref(_owner(X))
    except TypeError:  # a list
        owner = None
    _fitted[estimator] = _Fitted(owner, _memory(X), n)


def warn_of_score(estimator: object, X: object) -> None:
    """Warn of a score on what was fitted, or on as many records: by objects and sizes, not by contents."""
    held = _fitted.get(estimator)
    if held is None or any(_module(frame).startswith(_SEARCHES) for frame in _callers()):
        return  # of a search, its fits have warned
    if held.owner is not None and held.owner() is _owner(X) and _overlap(held.memory, _memory(X)):
        what = "a score on the private records is a release that no budget covers"
    elif held.n is not None and held.n == _length(X):
        what = (
            f"these are as many records as were fitted ({held.n:,}): if they are the private ones, a score "
            "on them is a release that no budget covers"
        )
    else:
        return
    warnings.warn(
        f"{what}. Keep it to yourself, or score on public rows; see docs/pitfalls.md",
        NotPrivateWarning,
        stacklevel=users_line(),
    )


class ScoreWarning:
    """Of scikit-learn's mixins for classifiers and regressors: a score that warns on what was fitted."""

    def score(self, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The share of correct labels, or R². Warns on records that were fitted: it would be a release."""
        warn_of_score(self, X)
        return float(super().score(X, y, sample_weight))  # type: ignore[misc]


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _learning_steps(pipeline: object) -> list[str]:
    """The steps before the last that learn from what they are fitted to."""
    steps = list(getattr(pipeline, "steps", ()))[:-1]
    return [f"step {name!r} ({type(step).__name__})" for name, step in steps if _learns(step)]


def _learns(step: object) -> bool:
    from sklearn.utils import get_tags

    if step is None or isinstance(step, str) or type(step).__name__ == "FrozenEstimator":
        return False
    for parts in ("steps", "transformers", "transformer_list"):
        if isinstance(inner := getattr(step, parts, None), list):
            return any(_learns(part[1]) for part in inner)
    try:
        return bool(get_tags(step).requires_fit)
    except Exception:  # a step that is no estimator of scikit-learn's
        return True


def memory_around(X: object) -> tuple[int, int] | None:
    """The memory of the array that X is a part of; None for what is not an array."""
    return _memory(_owner(X))


def _owner(X: object) -> object:
    """The array whose memory this is a view of; anything else is its own."""
    while isinstance(X, np.ndarray) and isinstance(X.base, np.ndarray):
        X = X.base
    return X


def _memory(X: object) -> tuple[int, int] | None:
    """The first byte of an array, and the one after its last."""
    if not isinstance(X, np.ndarray) or not X.size:
        return None
    start = int(X.__array_interface__["data"][0])
    steps = [(size - 1) * stride for size, stride in zip(X.shape, X.strides, strict=True)]
    low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    return start + low, start + high + X.itemsize


def _overlap(first: tuple[int, int] | None, second: tuple[int, int] | None) -> bool:
    return first is None or second is None or (first[0] < second[1] and second[0] < first[1])


def _length(X: object) -> int | None:
    shape = getattr(X, "shape", None)
    if shape:
        return int(shape[0])
    return len(X) if isinstance(X, list | tuple) else None
