"""What the two estimators share: checks and the flow of `fit`."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import HasMethods, Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import _check_feature_names, check_is_fitted, validate_data

from sidelight.arrays import Array, Json, Matrix, TableLike, is_sparse
from sidelight.data.bounding import Bounds, resolve_bounds
from sidelight.data.checks import check_same_columns, check_table, check_targets, is_frame
from sidelight.data.coordinates import Coordinates, range_of_private_rows, symmetric
from sidelight.data.encoding import Target
from sidelight.data.private import private_table, private_targets, read_off
from sidelight.data.rows import Floats, PublicRows
from sidelight.data.unread import UnreadRows
from sidelight.errors import InputError
from sidelight.methods.task import Fitted, Method, NestedMethod, Task, fit_charged, relation_of
from sidelight.privacy.calibrate import resolve_delta
from sidelight.privacy.contract import Observer, PrivacyStatement, open_payer
from sidelight.privacy.events import RELATIONS
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.surroundings import remember_records, warn_of_surroundings

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array
    from sklearn.utils import Tags

__all__ = ["PrivateLinear", "Table", "TableOrigin"]

_FLOATS = [np.float64, np.float32]


@dataclass(frozen=True, eq=False)
class Table:
    """Features and targets that passed the checks; as the user has them, not yet bounded."""

    X: Matrix
    y: Array

    @property
    def n(self) -> int:
        return int(self.X.shape[0])


@dataclass(frozen=True)
class TableOrigin:
    """The table that an estimator's arrays were made from, as far as contract and statement tell of it."""

    identity: Identity | None = None  # for a ledger
    source: str | None = None  # where bounds and classes came from
    assumptions: tuple[str, ...] = ()
    observers: tuple[Observer, ...] = ()


class PrivateLinear(NestedMethod, BaseEstimator):  # type: ignore[misc]
    """A linear model under (ε, δ). See `PrivateClassifier` and `PrivateRegressor`."""

    _parameter_constraints: ClassVar[Json] = {
        "method": [str, HasMethods(["plan", "run"])],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "delta": [None, Interval(Real, 0, 1, closed="neither")],
        "relation": [None, StrOptions(set(RELATIONS))],
        "bounds": [None, tuple, list, np.ndarray, Bounds],
        "centre": [None, StrOptions({"middle", "zero", "mean"})],
        "max_norm": [Interval(Real, 0, None, closed="neither")],
        "regularization": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "assume_public": [tuple, list],
        "ledger": [None, str, os.PathLike, Ledger],
        "dataset": [None, str],
        "random_state": [None, Interval(Integral, 0, None, closed="left")],
    }
    _may_assume: ClassVar[tuple[str, ...]] = ()
    _real_targets: ClassVar[bool] = False

    # What a fit leaves behind.
    coef_: Floats
    intercept_: Floats | float
    n_features_in_: int
    privacy_: PrivacyStatement
    history_: list[Json]

    def fit(
        self, X: TableLike, y: ArrayLike, X_public: TableLike | None = None, y_public: ArrayLike | None = None
    ) -> Self:
        """Fit to private records X, y with the help of public ones; every call spends budget.

        Args:
            X: (n, p) private features: an array, a frame or a sparse matrix, of real numbers.
            y: (n,) private targets.
            X_public: public features with the columns of X, in the same order.
            y_public: public targets.
        """
        return self._fit(X, y, X_public, y_public)

    def _fit(
        self,
        X: TableLike,
        y: ArrayLike,
        X_public: TableLike | None = None,
        y_public: ArrayLike | None = None,
        *,
        origin: TableOrigin | None = None,
    ) -> Self:
        """`fit`; `origin` is the table which X and y were made from, if there is one."""
        origin = origin or TableOrigin()
        around = warn_of_surroundings()
        self._check_parameters()
        method = self._prepared(self._configured())
        payer = open_payer(self.ledger, self.dataset)
        private = self._private_table(X, y)
        if payer is not None:
            identity = origin.identity or Identity.of(_shaped(X, private.X), y)
            payer = replace(payer, identity=identity)
        public = self._public_table(X, private, X_public, y_public)
        target = self._target(private, public)
        coordinates = self._resolve_coordinates(private, public)
        task = self._task(method, private, public, target, coordinates)
        with np.errstate(all="ignore"):  # what NumPy says of a private value would be an output
            fitted, self.privacy_ = fit_charged(
                method,
                task,
                read=lambda: coordinates.private(private.X, target.encode(private.y), target.loss.admits),
                payer=payer,
                noise=Noise(self.random_state),
                assumptions=(*self._assumptions(private, public), *around, *origin.assumptions),
                details=self._details(private, public, coordinates, origin),
                observers=origin.observers,
            )
        remember_records(self, X, private.n)
        self.history_ = fitted.history
        self._learned(fitted)
        self._keep(fitted.coef, coordinates, target)
        return self

    def _prepared(self, method: Method) -> Method:
        """The method as it is run."""
        return method

    def _learned(self, fitted: Fitted) -> None:
        """Store what a fit gives besides its weights."""

    @abstractmethod
    def _target(self, private: Table, public: Table | None) -> Target:
        """What is predicted, from declarations and public targets."""

    @abstractmethod
    def _keep(self, weights: Floats, coordinates: Coordinates, target: Any) -> None:
        """Store the model; `target` is what `_target` returned."""

    @abstractmethod
    def predict(self, X: TableLike) -> Array:
        """The label or the number of every row."""

    def _check_parameters(self) -> None:
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise InputError(str(error)) from None
        if unknown := [name for name in self.assume_public if name not in self._may_assume]:
            raise InputError(f"assume_public may hold {', '.join(self._may_assume)}; not {unknown[0]!r}")

    # -----------------------------------------------------------------------------------------------
    # data

    def _private_table(self, X: TableLike, y: ArrayLike | None) -> Table:
        if y is None:
            name = type(self).__name__
            raise InputError(f"{name} requires y to be passed, but the target y is None")
        records = self._validated(private_table(X), reset=True)
        _check_feature_names(self, X, reset=True)  # the array above has no names
        return Table(records, private_targets(y, rows=records.shape[0], real=self._real_targets))

    def _public_table(
        self, X: TableLike, private: Table, X_public: TableLike | None, y_public: ArrayLike | None
    ) -> Table | None:
        """The public records in the format of the private ones; None if there are none."""
        if X_public is None and y_public is None:
            return None
        if X_public is None or y_public is None:
            raise InputError(
                "X_public and y_public go together. For rows without targets, "
                "bounds=(X_public.min(axis=0), X_public.max(axis=0)) is what they can tell"
            )
        table = check_table(X_public, name="X_public")
        check_same_columns(X if is_frame(X) else private.X, table)
        records = _as_floats(table, like=private.X)
        rows = records.shape[0]
        targets = check_targets(y_public, rows=rows, of="X_public", name="y_public", real=self._real_targets)
        if not np.isfinite(records.data if is_sparse(records) else records).all():
            raise InputError("X_public must be finite; remove or fill the missing values")
        return Table(records, targets) if rows else None

    def _validated(self, table: Matrix | pd.DataFrame, *, reset: bool) -> Matrix:
        """Float array or CSR. In `fit` values are not looked at; in prediction they must be finite."""
        try:
            checked = validate_data(
                self, table, reset=reset, dtype=_FLOATS, accept_sparse="csr", ensure_all_finite=not reset
            )
        except ValueError as error:
            raise InputError(str(error)) from None
        matrix: Matrix = checked if checked.dtype in _FLOATS else checked.astype(np.float64)
        return matrix

    def _resolve_coordinates(self, private: Table, public: Table | None) -> Coordinates:
        """Bounds that were declared, or learned from public rows; never from private ones, unless assumed."""
        bounds, centre = _as_pair(self.bounds), self.centre
        if sp.issparse(private.X):
            if centre not in (None, "zero"):
                raise InputError(f"a sparse X keeps its zeros: centre must be 'zero' or None, not {centre!r}")
            centre = "zero"
        if bounds is None and public is None and "bounds" in self.assume_public:
            bounds = range_of_private_rows(private.X)
        public_rows = None if public is None else public.X
        features = private.X.shape[1]
        resolved = resolve_bounds(bounds, public_rows, features=features, centre=centre or "middle")
        if centre == "zero":
            resolved = symmetric(resolved)
        return Coordinates(resolved, float(self.max_norm), bool(self.fit_intercept))

    def _task(
        self, method: Method, private: Table, public: Table | None, target: Target, coordinates: Coordinates
    ) -> Task:
        public_rows = PublicRows.empty(coordinates.p)
        if public is not None:
            public_rows = coordinates.public(public.X, target.encode_public(public.y))
        return Task(
            rows=UnreadRows(private.n, coordinates.p, max_norm=coordinates.max_norm),
            public=public_rows,
            loss=target.loss,
            epsilon=float(self.epsilon),
            delta=resolve_delta(self.delta, private.n),
            relation=relation_of(method, self.relation),
            regularization=float(self.regularization),
            target_bound=target.bound,
        )

    def _assumed(self, what: str, public: Table | None) -> bool:
        """Is this read off the private records, because the user says that it is no secret?"""
        declared = getattr(self, what) is not None
        return what in self.assume_public and not declared and public is None

    def _assumptions(self, private: Table, public: Table | None) -> tuple[str, ...]:
        lines = [f"the number of private records ({private.n}), their columns and their types are public"]
        if public is not None:
            lines.append("the public records do not depend on the private ones")
        for what in self._may_assume:
            if self._assumed(what, public):
                lines.append(read_off(what))
        return tuple(lines)

    def _details(
        self, private: Table, public: Table | None, coordinates: Coordinates, origin: TableOrigin
    ) -> Json:
        return {
            "private_records": private.n,
            "public_records": 0 if public is None else public.n,
            "features": int(coordinates.bounds.features),
            "max_norm": coordinates.max_norm,
            "fit_intercept": coordinates.fit_intercept,
            **{f"{what}_from": origin.source or self._source(what, public) for what in self._may_assume},
        }

    def _source(self, what: str, public: Table | None) -> str:
        if getattr(self, what) is not None:
            return "declared"
        return "private records" if self._assumed(what, public) else "public records"

    def _scores(self, X: TableLike) -> Floats:
        """(n, outputs) of the model, on rows that are bounded as in training."""
        check_is_fitted(self, "privacy_")
        coordinates: Coordinates = self._coordinates
        return coordinates.scores(self._validated(check_table(X), reset=False), self._weights)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _as_pair(
    bounds: Bounds | tuple[ArrayLike, ArrayLike] | None,
) -> Bounds | tuple[Floats, Floats] | None:
    """Bounds as they are, or (lower, upper) as float arrays."""
    if bounds is None or isinstance(bounds, Bounds):
        return bounds
    try:
        lower, upper = (np.asarray(side, dtype=np.float64) for side in bounds)
    except (TypeError, ValueError):
        raise InputError(
            "bounds must be a pair (lower, upper), each a number or one for every feature"
        ) from None
    return lower, upper


def _shaped(X: TableLike, records: Matrix) -> TableLike:
    """X, if it has the shape of its records; a list has none, and an array of lists only their number."""
    return X if len(getattr(X, "shape", ())) == records.ndim else records


def _as_floats(table: Array | pd.DataFrame | csr_array, *, like: Matrix) -> Matrix:
    """A checked public table, sparse if the private one is."""
    if is_sparse(table):
        return table.tocsr().astype(np.float64) if is_sparse(like) else table.toarray().astype(np.float64)
    if hasattr(table, "to_numpy"):
        table = table.to_numpy(dtype=np.float64)
    array = np.asarray(table, dtype=np.float64)
    return sp.csr_array(array) if is_sparse(like) else array
