"""What the two estimators share: checks and the flow of `fit`."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import HasMethods, Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import _check_feature_names, check_is_fitted, validate_data

from sidelight.arrays import Array, Floats, Json, Matrix, TableLike, is_sparse
from sidelight.data.coordinates import (
    Bounds,
    Coordinates,
    Target,
    range_of_private_rows,
    resolve_bounds,
    symmetric,
)
from sidelight.data.features import FeaturePlan
from sidelight.data.frames import as_pandas, is_frame, names_of, without_column
from sidelight.data.inputs import (
    ENCODE,
    check_same_columns,
    check_table,
    check_targets,
    private_table,
    private_targets,
    read_off,
)
from sidelight.data.rows import (
    Persons,
    PrivateRows,
    PublicRows,
    UnreadRows,
    persons_of,
    private_names,
)
from sidelight.data.schema import Schema, TargetColumn
from sidelight.data.table_files import open_private
from sidelight.errors import InputError
from sidelight.estimator_output import EstimatorOutput
from sidelight.estimator_records import (
    DECLARED,
    PASS_A_SCHEMA,
    ArrayRecords,
    FitRecords,
    SchemaRecords,
    Table,
    TableOrigin,
    check_frame,
    encode_frame,
    frame_schema,
    persons_in,
    public_features,
    read_schema,
    some_persons,
    target_name,
    with_target,
)
from sidelight.methods.task import Fitted, Method, NestedMethod, Task, fit_charged, relation_of
from sidelight.privacy.calibrate import resolve_delta
from sidelight.privacy.contract import PrivacyStatement, open_payer
from sidelight.privacy.events import RELATIONS
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.surroundings import remember_records, warn_of_surroundings

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array
    from sklearn.utils import Tags

    from sidelight.data.frames import Frame

__all__ = ["PrivateLinear"]

_FLOATS = [np.float64, np.float32]


class PrivateLinear(NestedMethod, EstimatorOutput, BaseEstimator):  # type: ignore[misc]
    """A linear model under (ε, δ). See `PrivateClassifier` and `PrivateRegressor`."""

    _parameter_constraints: ClassVar[Json] = {
        "method": [str, HasMethods(["plan", "run"])],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "delta": [None, Interval(Real, 0, 1, closed="neither")],
        "relation": [None, StrOptions(set(RELATIONS))],
        "bounds": [None, tuple, list, np.ndarray, Bounds],
        "centre": [None, StrOptions({"middle", "zero", "mean"})],
        "schema": [None, Schema, str, os.PathLike],
        "max_norm": [Interval(Real, 0, None, closed="neither")],
        "regularization": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "assume_public": [tuple, list],
        "unit": [str],
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
    schema_: Schema | None
    privacy_: PrivacyStatement
    history_: list[Json]

    def fit(
        self,
        X: TableLike,
        y: ArrayLike,
        X_public: TableLike | None = None,
        y_public: ArrayLike | None = None,
        *,
        persons: ArrayLike | None = None,
    ) -> Self:
        """Fit to private records X, y with the help of public ones; every call spends budget.

        Args:
            X: (n, p) private features: an array, a frame or a sparse matrix of real numbers; or a frame of
                pandas or polars with columns of all types, if X_public is one too or `schema` is given.
            y: (n,) private targets.
            X_public: public features with the columns of X; in the same order, if they are numbers.
            y_public: public targets.
            persons: (n,) whose each row is, where a person has several: the guarantee is then for all of
                them. A frame names them by a column instead: `unit`.
        """
        around = warn_of_surroundings()
        self._check_parameters()
        self._check_given(y, X_public, y_public)
        given, whose = X, self._persons(X, persons)
        if self.unit != "record":
            X, X_public = without_column(X, self.unit), without_column(X_public, self.unit)
        declared = read_schema(self.schema, self._task_name)
        blank = TargetColumn(target_name(y, []), self._task_name)
        schema = frame_schema(X, X_public, declared, blank)
        records: FitRecords
        if schema is None:
            records, public = self._array_records(X, y, X_public, y_public)
        else:
            records, public = self._frame_records(X, y, X_public, y_public, schema)
        rows = records.n
        self._fit_records(replace(records, persons=_checked(whose, rows)), public, around=around)
        remember_records(self, given, rows if whose is None else None)
        n_columns = self._coordinates.bounds.features if schema is None else len(cast("Frame", X).columns)
        self.n_features_in_ = n_columns
        _check_feature_names(self, X, reset=True)
        return self

    def _fit_records(
        self, records: FitRecords, public: Table | None, *, origin: TableOrigin | None = None,
        around: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Plan, charge, read, run: what `fit` and `fit_tables` have in common."""
        origin = origin or TableOrigin()
        method = self._prepared(self._configured())
        payer = open_payer(self.ledger, self.dataset)
        if payer is not None:
            payer = replace(payer, identity=records.identity())
        target = self._target(records, public)
        coordinates = self._resolve_coordinates(records, public)
        task = self._task(method, records, public, target, coordinates)

        def read() -> PrivateRows:
            table = records.read()
            return coordinates.private(table.X, target.encode(table.y), target.loss.admits, records.persons)

        with np.errstate(all="ignore"):  # what NumPy says of a private value would be an output
            fitted, self.privacy_ = fit_charged(
                method,
                task,
                read=read,
                payer=payer,
                noise=Noise(self.random_state),
                assumptions=(*self._assumptions(records, public), *around, *origin.assumptions),
                details=self._details(records, public, coordinates),
                observers=origin.observers,
            )
        self.history_ = fitted.history
        self.schema_ = None if records.schema is None else with_target(records.schema, target)
        self._stored = None
        self._fitted_target = target
        self._learned(fitted)
        self._keep(fitted.coef, coordinates, target)

    def _prepared(self, method: Method) -> Method:
        """The method as it is run."""
        return method

    def _learned(self, fitted: Fitted) -> None:
        """Store what a fit gives besides its weights."""

    @abstractmethod
    def _target(self, records: FitRecords, public: Table | None) -> Target:
        """What is predicted, from declarations, a schema and public targets."""

    @abstractmethod
    def _keep(self, weights: Floats, coordinates: Coordinates, target: Any) -> None:
        """Store the model; `target` is what `_target` returned."""

    @abstractmethod
    def predict(self, X: TableLike) -> Array:
        """The label or the number of every row."""

    def _persons(self, X: TableLike, given: ArrayLike | None) -> Persons | None:
        """Whose each row is; None where the unit is a record."""
        if given is not None:
            unit = "person" if self.unit == "record" else self.unit
            return some_persons(persons_of(private_names(given), unit=unit))
        if self.unit == "record":
            return None
        if not is_frame(X) or self.unit not in names_of(X, "X"):
            raise InputError(
                f"unit={self.unit!r} is a column of X that names persons, and X has none of that name; pass "
                "a frame that has it, or fit(..., persons=names)"
            )
        return persons_in(open_private(X, "X"), self.unit)

    def _check_parameters(self) -> None:
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise InputError(str(error)) from None
        if unknown := [name for name in self.assume_public if name not in self._may_assume]:
            raise InputError(f"assume_public may hold {', '.join(self._may_assume)}; not {unknown[0]!r}")

    # -----------------------------------------------------------------------------------------------
    # data

    def _check_given(self, y: object, X_public: object, y_public: object) -> None:
        if y is None:
            name = type(self).__name__
            raise InputError(f"{name} requires y to be passed, but the target y is None")
        if (X_public is None) != (y_public is None):
            raise InputError(
                "X_public and y_public go together. For rows without targets, "
                "bounds=(X_public.min(axis=0), X_public.max(axis=0)) is what they can tell"
            )

    def _array_records(
        self, X: TableLike, y: ArrayLike, X_public: TableLike | None, y_public: ArrayLike | None
    ) -> tuple[ArrayRecords, Table | None]:
        """Rows of numbers, and the public ones in the format of the private."""
        matrix = self._validated(
            private_table(X, advice=PASS_A_SCHEMA if is_frame(X) else ENCODE), reset=True
        )
        targets = private_targets(y, rows=matrix.shape[0], real=self._real_targets)
        private = ArrayRecords(Table(matrix, targets), X, y)
        if X_public is None:
            return private, None
        table = check_table(_as_pandas(X_public), name="X_public")
        check_same_columns(X if is_frame(X) else matrix, table)
        records = _as_floats(table, like=matrix)
        if not np.isfinite(records.data if is_sparse(records) else records).all():
            raise InputError(
                "X_public must be finite; remove or fill the missing values, or pass frames and schema=, "
                "which gives a missing value a weight of its own"
            )
        return private, self._public_table(records, y_public)

    def _frame_records(
        self,
        X: TableLike,
        y: ArrayLike,
        X_public: TableLike | None,
        y_public: ArrayLike | None,
        schema: Schema,
    ) -> tuple[SchemaRecords, Table | None]:
        """Rows of a frame with columns of all types, through a schema."""
        if self.bounds is not None or self.centre is not None:
            raise InputError(
                "a frame that is read by a schema has its bounds there: leave out bounds and centre"
            )
        table = open_private(cast("Frame", X), "X")
        if not schema.target.classes and schema.target.bounds is None:
            schema = replace(schema, target=replace(schema.target, name=target_name(y, table.names)))
        check_frame(schema, table)
        targets = private_targets(y, rows=len(table), real=self._real_targets)
        public = None if X_public is None else self._public_table(public_features(schema, X_public), y_public)
        return SchemaRecords(schema, table, targets, (X, y)), public

    def _public_table(self, records: Matrix, y_public: ArrayLike | None) -> Table | None:
        """Checked features with their targets; None if there are none."""
        rows = records.shape[0]
        targets = check_targets(y_public, rows=rows, of="X_public", name="y_public", real=self._real_targets)
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

    def _resolve_coordinates(self, records: FitRecords, public: Table | None) -> Coordinates:
        """Bounds that were declared, or learned from public rows; never from private ones, unless assumed."""
        if isinstance(records, ArrayRecords):
            resolved = self._bounds_of_numbers(records, public)
        else:
            resolved = FeaturePlan(cast(Schema, records.schema)).bounds()
        return Coordinates(resolved, float(self.max_norm), bool(self.fit_intercept))

    def _bounds_of_numbers(self, records: ArrayRecords, public: Table | None) -> Bounds:
        bounds, centre, X = _as_pair(self.bounds), self.centre, records.table.X
        if records.sparse:
            if centre not in (None, "zero"):
                raise InputError(f"a sparse X keeps its zeros: centre must be 'zero' or None, not {centre!r}")
            centre = "zero"
        if bounds is None and public is None and "bounds" in self.assume_public:
            bounds = range_of_private_rows(X)
        public_rows = None if public is None else public.X
        resolved = resolve_bounds(bounds, public_rows, features=X.shape[1], centre=centre or "middle")
        return symmetric(resolved) if centre == "zero" else resolved

    def _task(
        self,
        method: Method,
        records: FitRecords,
        public: Table | None,
        target: Target,
        coordinates: Coordinates,
    ) -> Task:
        public_rows = PublicRows.empty(coordinates.p)
        if public is not None:
            public_rows = coordinates.public(public.X, target.encode_public(public.y))
        return Task(
            rows=UnreadRows(records.n, coordinates.p, max_norm=coordinates.max_norm, unit=_unit(records)),
            public=public_rows,
            loss=target.loss,
            epsilon=float(self.epsilon),
            delta=resolve_delta(self.delta, records.n),
            relation=relation_of(method, self.relation),
            regularization=float(self.regularization),
            target_bound=target.bound,
        )

    def _assumed(self, what: str, records: FitRecords, public: Table | None) -> bool:
        """Is this read off the private records, because the user says that it is no secret?"""
        known = getattr(self, what) is not None or records.schema is not None or public is not None
        return what in self.assume_public and not known

    def _assumptions(self, records: FitRecords, public: Table | None) -> tuple[str, ...]:
        counted = "records" if records.persons is None else "persons"
        lines = [f"the number of private {counted} ({records.n}), their columns and their types are public"]
        if records.persons is not None:
            lines.append(f"all rows of a person have one name in {records.persons.unit!r}, and no other's do")
        if public is not None:
            lines.append("the public records do not depend on the private ones")
        if records.schema is not None and records.schema.source.startswith("declared"):
            lines.append(DECLARED)
        for what in self._may_assume:
            if self._assumed(what, records, public):
                lines.append(read_off(what))
        return tuple(lines)

    def _details(self, records: FitRecords, public: Table | None, coordinates: Coordinates) -> Json:
        return {
            "private_records": records.n,
            "public_records": 0 if public is None else public.n,
            "features": int(coordinates.bounds.features),
            "max_norm": coordinates.max_norm,
            "fit_intercept": coordinates.fit_intercept,
            **{f"{what}_from": self._source(what, records, public) for what in self._may_assume},
        }

    def _source(self, what: str, records: FitRecords, public: Table | None) -> str:
        if getattr(self, what) is not None:
            return "declared"
        if records.schema is not None:
            return records.schema.source
        return "private records" if self._assumed(what, records, public) else "public records"

    def _scores(self, X: TableLike) -> Floats:
        """(n, outputs) of the model, on rows that are bounded as in training."""
        check_is_fitted(self, "privacy_")
        coordinates: Coordinates = self._coordinates
        if (unit := getattr(self, "unit", "record")) != "record":
            X = without_column(X, unit)
        schema: Schema | None = getattr(self, "schema_", None)  # of a model that an earlier version pickled
        if schema is not None:
            return coordinates.scores(encode_frame(schema, X), self._weights)
        return coordinates.scores(self._validated(check_table(_as_pandas(X)), reset=False), self._weights)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _unit(records: FitRecords) -> str:
    return "record" if records.persons is None else records.persons.unit


def _checked(persons: Persons | None, rows: int) -> Persons | None:
    if persons is not None and len(persons.codes) != rows:
        raise InputError("persons must be a vector with one name for each row of X")  # how many is not told
    return persons


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


def _as_pandas(X: TableLike) -> TableLike:
    """A frame of polars as one of pandas; anything else as it is."""
    return as_pandas(X, "X") if is_frame(X) and not hasattr(type(X), "iloc") else X


def _as_floats(table: Array | pd.DataFrame | csr_array, *, like: Matrix) -> Matrix:
    """A checked public table, sparse if the private one is."""
    if is_sparse(table):
        return table.tocsr().astype(np.float64) if is_sparse(like) else table.toarray().astype(np.float64)
    if hasattr(table, "to_numpy"):
        table = table.to_numpy(dtype=np.float64, na_value=np.nan)
    array = np.asarray(table, dtype=np.float64)
    return sp.csr_array(array) if is_sparse(like) else array
