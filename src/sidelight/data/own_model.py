"""A fitted estimator of the user's own (`public_model=`): its predictions for private records.

It is given the columns of X as the user has them: an array of floats, or a frame whose types are those of the
public frame (or of the schema). The private frame decides no type: one odd cell would. Whole numbers and
truth values arrive as floats, texts as texts with NaN for a missing one.

Rows are evaluated in blocks. If the estimator fails on a block, the rows that it fails on are found by halves
and replaced by one that works, so that the others are evaluated in a block of the same size; a row that fails
has no prediction (NaN), and the guide takes the middle instead. Nothing that the estimator raises, warns of
or prints is shown. A prediction must depend on its row alone: that is tried on public rows before the charge.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats, Json, Mask
from sidelight.data.moments import as_moment, iso_of
from sidelight.data.schema import Column, Schema, TaskName
from sidelight.data.targets import LabelReader
from sidelight.data.values import ColumnData, as_indices, as_number, as_truth, pandas
from sidelight.errors import INTERRUPTS, InputError, MissingDependency, first_line, guarded, listed, spelled

if TYPE_CHECKING:
    import pandas as pd

Estimator: TypeAlias = Any  # somebody else's: predict, and perhaps predict_proba or decision_function
Given: TypeAlias = "Floats | pd.DataFrame"  # what an estimator takes
Kind: TypeAlias = Literal["number", "truth", "date", "text", "category"]
_KINDS: Mapping[str, Kind] = {"number": "number", "boolean": "truth", "date": "date"}  # of a schema's column
_ROWS = 1_024  # in a block
_TRIED, _ALONE = 64, 8  # public rows that are evaluated together, and one by one
_SAME = 1e-4  # of the spread of predictions
_PROBES = 16
_LEAST = 0.01  # of a probability that becomes log-odds


class RawColumn(NamedTuple):
    """A column in the form that the estimator expects."""

    name: str
    kind: Kind
    categories: tuple[str | float, ...] = ()

    def read(self, values: ColumnData) -> object:
        """The values as an array with a type that does not depend on them."""
        if self.kind == "number":
            return as_number(values)
        if self.kind == "truth":
            return as_truth(values)
        if self.kind == "date":
            seconds = as_moment(values, "year-month-day")
            moments = (1e6 * np.nan_to_num(seconds)).astype(np.int64).astype("datetime64[us]")
            moments[np.isnan(seconds)] = np.datetime64("NaT")
            return moments
        numbers = bool(self.categories) and not isinstance(self.categories[0], str)
        found = as_number(values) if numbers else _texts(values)
        if self.kind == "text":  # pandas would take the type from the values: a column may be all missing
            return pandas().Series(found, dtype=pandas().Series([""]).dtype)
        places = {category: k for k, category in enumerate(self.categories)}
        codes = np.array([places.get(value, -1) for value in found.tolist()], dtype=np.intp)
        return pandas().Categorical.from_codes(codes, categories=list(self.categories))


def _texts(values: ColumnData) -> Array:
    """Texts, each read once, and NaN for what is missing."""
    places: dict[str | None, int] = {}
    where = as_indices(values, lambda text: places.setdefault(text, len(places)))
    distinct = np.array([np.nan if text is None else _whole(text) for text in places], dtype=object)
    return distinct[where] if len(where) else np.empty(0, dtype=object)


def _whole(text: str) -> str:
    """A text that has a form in UTF-8: half of a surrogate pair is a mark, where Arrow would raise."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def own_columns(
    estimator: Estimator, names: Sequence[str], public: pd.DataFrame | None, schema: Schema
) -> tuple[RawColumn, ...]:
    """The columns that an estimator takes, of those that a frame has."""
    wanted = [str(name) for name in getattr(estimator, "feature_names_in_", names)]
    if missing := [name for name in wanted if name not in names]:
        raise InputError(f"public_model was fitted to {listed(missing)}, which X does not have")
    return tuple(
        RawColumn(name, _KINDS.get(schema.columns[name].kind, "text") if name in schema.columns else "text")
        if public is None or name not in public.columns
        else _of_public(public[name])
        for name in wanted
    )


def _of_public(values: pd.Series) -> RawColumn:
    """The kind of a public column, by its type."""
    name, dtype = str(values.name), values.dtype
    if isinstance(dtype, pandas().CategoricalDtype):
        return RawColumn(name, "category", tuple(dtype.categories.tolist()))
    kind = str(getattr(dtype, "kind", "O"))
    kinds: dict[str, Kind] = {"b": "truth", "i": "number", "u": "number", "f": "number", "M": "date"}
    return RawColumn(name, kinds.get(kind, "text"))


@dataclass(frozen=True, eq=False)
class OwnModel:
    """An estimator, how it is asked, and what it is given.

    Args:
        estimator: fitted elsewhere.
        task: what it must be for.
        columns: of a frame; None if it takes an array.
        names: of the columns of a matrix that it takes as a frame.
        alone: whether it is asked about one row at a time (`check`).
    """

    estimator: Estimator
    task: TaskName
    columns: tuple[RawColumn, ...] | None = None
    names: tuple[str, ...] = ()
    alone: bool = False

    @property
    def name(self) -> str:
        return f"{type(self.estimator).__name__} (yours)"

    @cached_property
    def how(self) -> str:
        """The function of the estimator that is asked."""
        kind = _kind(self.estimator)
        if kind is not None and kind != self.task:
            raise InputError(f"public_model is for {kind}, but the target is one of {self.task}")
        if self.task == "regression":
            if kind is None and hasattr(self.estimator, "classes_"):
                raise InputError("public_model has classes_, but the target is a number")
            return _first_of(self.estimator, ("predict",))
        if not hasattr(self.estimator, "classes_"):
            raise InputError("public_model has no classes_: it is not a fitted classifier")
        return _first_of(self.estimator, ("predict_proba", "decision_function", "predict"))

    @cached_property
    def classes(self) -> Array:
        """Of a classifier."""
        found = np.asarray(getattr(self.estimator, "classes_", ()))
        if self.task == "classification" and (found.ndim != 1 or len(found) < 2):
            raise InputError("public_model must have one list of at least two classes_")
        return found

    @property
    def outputs(self) -> int:
        """Numbers for each record: a prediction, log-odds of two classes, or a score of each of more."""
        classes = len(self.classes) if self.task == "classification" else 0
        return classes if classes > 2 else 1

    def order(self, labels: Array) -> tuple[int, ...]:
        """The place of each label among the estimator's classes, by value; InputError if they differ."""
        places = LabelReader(labels).places(self.classes)
        if sorted(places.tolist()) != list(range(len(labels))):
            mine, theirs = ([str(one) for one in some.tolist()] for some in (labels, self.classes))
            raise InputError(
                f"public_model has the classes {listed(theirs)}, but the classes are {listed(mine)}"
            )
        return tuple(int(place) for place in np.argsort(places))

    # -----------------------------------------------------------------------------------------------
    # what it says

    def of_columns(self, block: Mapping[str, ColumnData], rows: int) -> NDArray[np.float32]:
        """(rows, outputs) for columns of a table."""
        return self._said(self.frame(block), rows)

    def of_matrix(self, X: Floats) -> NDArray[np.float32]:
        """The same for rows of numbers; a row that is not finite has no prediction."""
        finite = np.asarray(np.isfinite(X).all(axis=1))
        rows = np.where(finite[:, None], X, 0.0).astype(np.float64)
        found = self._said(self.matrix(rows), len(rows))
        found[~finite] = np.nan
        return found

    def frame(self, block: Mapping[str, ColumnData]) -> pd.DataFrame:
        """Some rows as the estimator takes them."""
        columns = {column.name: column.read(block[column.name]) for column in self.columns or ()}
        found: pd.DataFrame = pandas().DataFrame(columns)
        return found

    def matrix(self, X: Floats) -> Given:
        """Rows of numbers as the estimator takes them."""
        if self.columns is None:
            return np.asarray(X, dtype=np.float64)
        return self.frame({name: X[:, k] for k, name in enumerate(self.names)})

    def check_names(self, names: Sequence[str], where: str) -> None:
        """Refuse a table that lacks a column that the estimator takes."""
        wanted = [column.name for column in self.columns or ()]
        if missing := [name for name in wanted if name not in names]:
            raise InputError(f"{where} lacks {listed(missing)}, which public_model takes")

    def _said(self, given: Given, rows: int) -> NDArray[np.float32]:
        """In blocks of one size, which the last row fills up: the number of rows decides the last bits of a
        matrix product, and so the side of a threshold, in the estimator or in a tree above it."""
        size = 1 if self.alone else _ROWS
        blocks = [np.minimum(np.arange(k, k + size), rows - 1) for k in range(0, rows, size)]
        parts = [self._safe(_take(given, block))[: rows - block[0]] for block in blocks]
        return np.concatenate(parts) if parts else np.zeros((0, self.outputs), np.float32)

    def _safe(self, block: Given) -> NDArray[np.float32]:
        """Of one block; NaN for the rows that the estimator fails on."""
        found = self._quietly(block)
        if found is not None:
            return found
        works = np.zeros(len(block), dtype=bool)
        self._find_working(block, np.arange(len(block)), works)
        if not works.any():
            return np.full((len(block), self.outputs), np.nan, np.float32)
        stand_in = int(np.argmax(works))
        found = self._quietly(_take(block, np.where(works, np.arange(len(block)), stand_in)))
        if found is None:  # each of them works alone
            nothing = np.full((1, self.outputs), np.nan, np.float32)
            alone = [self._quietly(_take(block, [k])) for k in range(len(block))]
            found = np.concatenate([nothing if one is None else one for one in alone])
        found[~works] = np.nan
        return found

    def _find_working(self, block: Given, rows: NDArray[np.intp], works: Mask) -> None:
        """Mark the rows on which the estimator does not fail, by halves."""
        if self._quietly(_take(block, rows)) is not None:
            works[rows] = True
        elif len(rows) > 1:
            for half in np.array_split(rows, 2):
                self._find_working(block, half, works)

    def _quietly(self, block: Given) -> NDArray[np.float32] | None:
        """Outputs of private rows; None if the estimator fails. Neither causes a message."""
        silent = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"), silent[0], silent[1]:
            try:
                found = self._outputs(block).astype(np.float32)
            except INTERRUPTS:
                raise
            except BaseException:
                return None
        found[~np.isfinite(found).all(axis=1)] = np.nan
        return found

    def _outputs(self, block: Given) -> Floats:
        """As the estimator has them; classes in its own order."""
        found = np.asarray(getattr(self.estimator, self.how)(block))
        classes = len(self.classes)
        if self.how == "predict" and self.task == "classification":
            places = LabelReader(self.classes).places(found)
            found = np.where((places >= 0)[:, None], np.eye(classes)[places], np.nan)
        found = np.asarray(found, dtype=np.float64)
        found = found[:, None] if found.ndim == 1 else found
        if self.task == "classification" and self.how != "decision_function":
            if found.shape != (len(block), classes):
                raise ValueError(f"probabilities of shape {found.shape}")
            found = as_log_odds(found[:, 1:] if classes == 2 else found)
        elif found.shape[1] > 1:
            found = found - found.mean(axis=1, keepdims=True)
        if found.shape != (len(block), self.outputs):
            raise ValueError(
                f"numbers of shape {found.shape} for {len(block)} rows and {self.outputs} outputs"
            )
        return found

    # -----------------------------------------------------------------------------------------------
    # before the charge

    def check(self, given: Given, where: str = "public rows") -> OwnModel:
        """Refuse an estimator that is not fitted, of another kind, or whose predictions depend on other rows.

        Returns the model, which is asked about one row at a time if the place of a row in a block changes the
        last bits of its prediction.

        given: rows that are public.
        """
        _check_fitted(self.estimator)
        _ = self.how, self.classes  # which raise for an estimator of another kind
        some = _take(given, np.unique(np.linspace(0, len(given) - 1, min(len(given), _TRIED)).astype(int)))
        together = self._safe(some)
        if np.isnan(together).all():
            raise InputError(f"public_model fails on {where} ({self._why(some)}). Nothing was charged")
        back = self._safe(_take(some, slice(None, None, -1)))[::-1]
        alone = [self._safe(_take(some, [k])) for k in range(min(len(some), _ALONE))]
        spread = _SAME * float(np.nanstd(together)) + 1e-6 * float(np.nanmax(np.abs(together)))
        for again, first in ((back, together), (np.concatenate(alone), together[: len(alone)])):
            same = np.isnan(again) == np.isnan(first)
            if not (same & ~(np.abs(again - first) > spread)).all():
                raise InputError(
                    "public_model predicts a row differently beside other rows, or when it is asked again: a "
                    "prediction must depend on its row alone. Fit its steps beforehand, and freeze them"
                )
        works = np.flatnonzero(~np.isnan(together).any(axis=1))
        return replace(self, alone=self._places_matter(_take(some, works)))

    def _places_matter(self, rows: Given) -> bool:
        """Whether a row in a block gives other bits in another place."""
        order, first = np.arange(_ROWS) % len(rows), None
        for by in (0, 1, 7):
            moved = np.roll(order, by)
            found = guarded(self._outputs, _take(rows, moved), None)
            if found is None:
                return True
            first = found if first is None else first
            if not np.array_equal(found, first[moved], equal_nan=True):
                return True
        return False

    def _why(self, rows: Given) -> str:
        """What it says of public rows."""
        with warnings.catch_warnings(action="ignore"):
            try:
                self._outputs(rows)
            except INTERRUPTS:
                raise
            except BaseException as error:
                return first_line(error)[:200]
        return "its predictions are not finite"

    # -----------------------------------------------------------------------------------------------
    # to a folder and back

    def to_dict(self) -> Json:
        """Everything but the estimator."""
        columns = [[*column[:2], list(column.categories)] for column in self.columns or ()]
        return {
            "task": self.task,
            "columns": None if self.columns is None else columns,
            "names": list(self.names),
        }

    @classmethod
    def from_dict(cls, body: Json, estimator: Estimator) -> OwnModel:
        """What `to_dict` made; a KeyError, TypeError or ValueError if it does not fit."""
        columns = body["columns"]
        found = None if columns is None else tuple(RawColumn(str(n), k, tuple(c)) for n, k, c in columns)
        return cls(estimator, body["task"], found, tuple(body["names"]))


def as_log_odds(p: Floats) -> Floats:
    """Probabilities as log-odds within ±4.6; of several classes as logarithms around their mean."""
    p = np.clip(p, _LEAST, 1 - _LEAST)
    if p.shape[1] == 1:
        return np.asarray(np.log(p / (1 - p)))
    logs = np.log(p)
    return np.asarray(logs - logs.mean(axis=1, keepdims=True))


def _take(given: Given, rows: slice | NDArray[np.intp] | list[int]) -> Given:
    found: Given = given.iloc[rows] if hasattr(given, "iloc") else given[rows]
    return found


def _kind(estimator: Estimator) -> TaskName | None:
    """Classifier or regressor, as scikit-learn declares it; None for other objects."""
    from sklearn.base import is_classifier, is_regressor

    if guarded(is_classifier, estimator, False):
        return "classification"
    return "regression" if guarded(is_regressor, estimator, False) else None


def _first_of(estimator: Estimator, names: tuple[str, ...]) -> str:
    for name in names:
        if callable(getattr(estimator, name, None)):
            return name
    raise InputError(f"public_model must have {' or '.join(names)}; a {type(estimator).__name__} has none")


def _check_fitted(estimator: Estimator) -> None:
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if isinstance(estimator, BaseEstimator) and hasattr(estimator, "fit"):
        try:
            check_is_fitted(estimator)
        except NotFittedError:
            raise InputError(
                f"public_model is not fitted: fit the {type(estimator).__name__} first"
            ) from None


def probe_rows(schema: Schema) -> dict[str, Array]:
    """Rows that a schema describes, to try an estimator on where there are no public ones."""
    rng = np.random.default_rng(0)  # of nothing private
    return {name: _probe(column, rng) for name, column in schema.columns.items()}


def _probe(column: Column, rng: np.random.Generator) -> Array:
    if column.kind == "boolean":
        return rng.integers(0, 2, _PROBES).astype(bool)
    if column.categories:
        return rng.choice(np.array(column.categories, dtype=object), _PROBES)
    if column.bounds is None:
        return np.full(_PROBES, "", dtype=object)
    found = rng.uniform(*column.bounds, _PROBES)
    return found if column.kind == "number" else np.array([iso_of(round(one)) for one in found], dtype=object)


# ---------------------------------------------------------------------------------------------------
# on disk, without pickle


def _skops() -> Any:
    try:
        import skops.io
    except ImportError as error:
        raise MissingDependency(
            "a folder that holds your public_model needs skops: pip install skops"
        ) from error
    return skops.io


def stored_estimator(estimator: Estimator) -> bytes:
    """An estimator as bytes, without pickle."""
    skops = _skops()
    try:
        return bytes(skops.dumps(estimator))
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise InputError(
            f"public_model cannot be stored without pickle ({first_line(error)[:200]})"
        ) from None


def load_estimator(content: bytes, trusted: Sequence[str] = ()) -> Estimator:
    """The estimator of such bytes, if all of its types are scikit-learn's or `trusted`."""
    skops = _skops()
    try:
        unknown = [name for name in skops.get_untrusted_types(data=content) if not _is_sklearn(name)]
        if strange := [name for name in unknown if name not in trusted]:
            raise InputError(
                f"this public_model holds types other than scikit-learn's: {listed(strange)}. If you trust "
                f"whoever wrote it, load it with "
                + spelled(f"trusted={strange!r}", " ".join(f"--trust {name}" for name in strange))
            )
        return skops.loads(content, trusted=skops.get_untrusted_types(data=content))
    except (InputError, *INTERRUPTS):
        raise
    except BaseException as error:
        raise InputError(f"this public_model cannot be read ({first_line(error)[:200]})") from None


def _is_sklearn(name: str) -> bool:
    """Whether this names a class that scikit-learn defines. A function, or what it imports, is not one."""
    import importlib

    module, _, last = name.rpartition(".")
    if not module.startswith("sklearn."):
        return False
    found = guarded(lambda one: getattr(importlib.import_module(one), last), module, None)
    return isinstance(found, type) and found.__module__.startswith("sklearn.")
