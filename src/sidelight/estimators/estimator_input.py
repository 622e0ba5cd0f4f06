"""What the user passes to an estimator: parameters, and data that become the records of a fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, Literal, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import HasMethods, Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import validate_data

from sidelight.arrays import Array, Floats, Json, Mask, Matrix, TableLike, dense, is_sparse
from sidelight.data.coordinates import Bounds, range_of_private_rows, resolve_bounds, symmetric
from sidelight.data.frames import as_pandas, is_frame, names_of, without_column
from sidelight.data.inputs import (
    ENCODE,
    check_same_columns,
    check_table,
    check_targets,
    private_table,
    private_targets,
)
from sidelight.data.interactions import with_interactions
from sidelight.data.own_model import OwnModel, RawColumn
from sidelight.data.persons import Persons, persons_of, private_names
from sidelight.data.private_tables import open_private
from sidelight.data.schema import Schema, TextColumns
from sidelight.errors import InputError
from sidelight.estimators.estimator_output import EstimatorOutput
from sidelight.estimators.fit_records import (
    ArrayRecords,
    PublicTable,
    SchemaRecords,
    persons_in,
    some_persons,
    with_own,
)
from sidelight.estimators.frame_schemas import (
    PASS_A_SCHEMA,
    check_frame,
    encode_frame,
    labeled_rows,
    own_model,
    public_frame,
    target_name,
)
from sidelight.methods.auto import Auto
from sidelight.methods.declare import as_method
from sidelight.methods.task import Method, NestedMethod
from sidelight.privacy.contract import delta_of, open_payer, relation_of
from sidelight.privacy.events import RELATIONS, Relation
from sidelight.privacy.ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array
    from sklearn.utils import Tags

    from sidelight.data.frames import Frame

_FLOATS = [np.float64, np.float32]
_PROBES = 16  # rows within declared bounds that a public_model is tried on, if no row is public


@dataclass(eq=False, repr=False)
class EstimatorInput(NestedMethod, EstimatorOutput, BaseEstimator):  # type: ignore[misc]
    """The parameters of `PrivateClassifier` and `PrivateRegressor`, and how their data are read."""

    method: str | Method = "auto"
    _: KW_ONLY
    epsilon: float
    delta: float | None = None
    relation: Relation | None = None
    loss: str | None = None
    bounds: tuple[ArrayLike, ArrayLike] | Bounds | None = None
    center: Literal["middle", "zero", "mean"] | None = None
    schema: Schema | str | os.PathLike[str] | None = None
    text: TextColumns | None = None
    max_norm: float = 1.0
    regularization: float = 0.0
    fit_intercept: bool = True
    public_model: object = "auto"
    compare_with_public: bool = True
    trees: bool = True
    assume_public: tuple[str, ...] = ()
    unit: str = "record"
    health_check: bool = True
    ledger: Ledger | str | os.PathLike[str] | None = None
    dataset: str | None = None
    random_state: int | None = None

    _parameter_constraints: ClassVar[Json] = {
        "method": [str, HasMethods(["plan", "run"])],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "delta": [None, Interval(Real, 0, 1, closed="neither")],
        "relation": [None, StrOptions(set(RELATIONS))],
        "bounds": [None, tuple, list, np.ndarray, Bounds],
        "center": [None, StrOptions({"middle", "zero", "mean"})],
        "schema": [None, Schema, str, os.PathLike],
        "text": [None, str, tuple, list, Mapping],
        "max_norm": [Interval(Real, 0, None, closed="neither")],
        "regularization": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "public_model": [None, StrOptions({"auto", "fit"}), HasMethods(["predict"])],
        "compare_with_public": ["boolean"],
        "trees": ["boolean"],
        "assume_public": [tuple, list],
        "unit": [str],
        "health_check": ["boolean"],
        "ledger": [None, str, os.PathLike, Ledger],
        "dataset": [None, str],
        "random_state": [None, Interval(Integral, 0, None, closed="left")],
    }
    _may_assume: ClassVar[tuple[str, ...]] = ()
    _real_targets: ClassVar[bool] = False

    def _is_auto(self) -> bool:
        return isinstance(self._configured(), Auto)

    def _persons(self, X: TableLike, given: ArrayLike | None) -> Persons | None:
        """Whose each row is; None where the unit is a record."""
        if given is not None:
            unit = "person" if self.unit == "record" else self.unit
            return some_persons(persons_of(private_names(given), unit=unit))
        if self.unit == "record":
            return None
        if not is_frame(X) or self.unit not in names_of(X, "X"):
            raise InputError(
                f"unit={self.unit!r} is a column of X that names persons, but X has no such column; pass "
                "a frame that has it, or fit(..., persons=names)"
            )
        return persons_in(open_private(X, "X"), self.unit)

    def check_parameters(self) -> None:
        """Raise InputError for a parameter that cannot be meant."""
        as_method(self.method)
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise InputError(str(error)) from None
        if unknown := [name for name in self.assume_public if name not in self._may_assume]:
            raise InputError(f"assume_public accepts {', '.join(self._may_assume)}, not {unknown[0]!r}")

    def _check_given(self, X: object, y: object, X_public: object, y_public: object) -> None:
        if X_public is not None and _is_same(X, X_public):
            raise InputError("X_public must not be X: none of its records would be protected")
        if y is None:
            name = type(self).__name__
            raise InputError(f"{name} requires y to be passed, but the target y is None")
        if X_public is None and y_public is not None:
            raise InputError("y_public are the targets of X_public, which is missing; pass both")

    def _array_records(
        self, X: TableLike, y: ArrayLike, X_public: TableLike | None, y_public: ArrayLike | None
    ) -> tuple[ArrayRecords, PublicTable | None]:
        """Rows of numbers, and the public ones in the format of the private."""
        matrix = self._validated(
            private_table(X, advice=PASS_A_SCHEMA if is_frame(X) else ENCODE), reset=True
        )
        targets = private_targets(y, rows=matrix.shape[0], real=self._real_targets)
        private = ArrayRecords(matrix, targets, X, y)
        if X_public is None:
            return self._with_own_model(private, None), None
        table = check_table(_as_pandas(X_public), name="X_public")
        check_same_columns(X if is_frame(X) else matrix, table)
        rows = _as_floats(table, like=matrix)
        if not np.isfinite(rows.data if is_sparse(rows) else rows).all():
            raise InputError(
                "X_public must be finite; remove or fill the missing values, or pass X and X_public as "
                "frames, where a missing value has a weight of its own"
            )
        labels, labeled = self._public_targets(int(rows.shape[0]), y_public)
        public = PublicTable(rows, labels)
        if not labeled.all():
            public = PublicTable(rows[labeled], labels[labeled], unlabeled=rows[~labeled])
        return self._with_own_model(private, rows), public if len(labels) else None

    def _with_own_model(self, records: ArrayRecords, public: Matrix | None) -> ArrayRecords:
        """The same records, about which the user's estimator is asked, if there is one; it is tried here."""
        if self.public_model is None or isinstance(self.public_model, str):
            return records
        if records.sparse:
            raise InputError("public_model predicts dense rows; pass X.toarray(), or public_model=None")
        named = tuple(records.names) if is_frame(records.given) else ()
        wanted = [str(name) for name in getattr(self.public_model, "feature_names_in_", named)]
        columns = tuple(RawColumn(name, "number") for name in wanted) if named else None
        own = OwnModel(self.public_model, self._task_name, columns, named)
        own.check_names(named, "X")
        if public is None:
            bounds = self._bounds_of_numbers(records, None)
            shape = (_PROBES, bounds.features)
            public = np.random.default_rng(0).uniform(bounds.lower, bounds.upper, shape)  # of public bounds
        return replace(records, own=own.check(own.matrix(dense(public))))

    def _frame_records(
        self,
        X: TableLike,
        y: ArrayLike,
        X_public: TableLike | None,
        y_public: ArrayLike | None,
        schema: Schema,
        whose: Persons | None,
    ) -> tuple[SchemaRecords, PublicTable | None]:
        """Rows of a frame with columns of all types, through a schema, whose products are chosen here."""
        if self.bounds is not None or self.center is not None:
            raise InputError(
                "a frame that is read by a schema has its bounds there: leave out bounds and center"
            )
        table = open_private(cast("Frame", X), "X")
        if not schema.target.classes and schema.target.bounds is None:
            schema = replace(schema, target=replace(schema.target, name=target_name(y, table.names)))
        check_frame(schema, table)
        targets = private_targets(y, rows=len(table), real=self._real_targets)
        frame = None if X_public is None else public_frame(schema, X_public)
        labels, labeled = self._public_targets(0 if frame is None else len(frame), y_public)
        n = len(table) if whose is None else whose.count
        fit, unlabeled = (None, None) if frame is None else (frame[labeled], frame[~labeled])
        schema = self.with_products(schema, fit, labels[labeled], n=n, unlabeled=int((~labeled).sum()))
        records = SchemaRecords(
            schema, table, targets, (X, y), own=own_model(self.public_model, schema, table.names, frame)
        )
        return records, records.public_table(fit, labels[labeled], unlabeled)

    def _public_targets(self, rows: int, y_public: ArrayLike | None) -> tuple[Array, Mask]:
        """One target for every public row, and which of them are there."""
        if y_public is None:
            return np.zeros(rows), np.zeros(rows, dtype=bool)
        targets = check_targets(y_public, rows=rows, of="X_public", name="y_public", real=self._real_targets)
        return targets, labeled_rows(targets)

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

    def with_products(
        self, schema: Schema, public: pd.DataFrame | None, y: Array | None, *, n: int, unlabeled: int
    ) -> Schema:
        """The schema with the products of numbers that this fit affords (`data.infer_schema`)."""
        payer, method = open_payer(self.ledger, self.dataset), self._configured()
        declared = getattr(self, "classes", None)
        return with_interactions(
            schema, public, y, method=method.name, n=n, epsilon=float(self.epsilon),
            delta=delta_of(self.delta, n, payer), relation=relation_of(method, self.relation, payer),
            unlabeled=unlabeled, classes=0 if declared is None else len(declared),
        )  # fmt: skip

    def _bounds_of_numbers(self, records: ArrayRecords, public: PublicTable | None) -> Bounds:
        bounds, center, X = _as_pair(self.bounds), self.center, records.X
        if records.sparse:
            if center not in (None, "zero"):
                raise InputError(f"a sparse X keeps its zeros: center must be 'zero' or None, not {center!r}")
            center = "zero"
        if bounds is None and public is None and "bounds" in self.assume_public:
            bounds = range_of_private_rows(X)
        public_rows = None if public is None else public.every
        resolved = resolve_bounds(bounds, public_rows, features=X.shape[1], center=center or "middle")
        return symmetric(resolved) if center == "zero" else resolved

    def _encoded(self, X: TableLike) -> Matrix:
        """New records as numbers, not yet bounded."""
        if self.unit != "record":
            X = without_column(X, self.unit)
        own = self._coordinates.own
        if self.schema_ is not None:
            return encode_frame(self.schema_, X, own)
        return with_own(own, self._validated(check_table(_as_pandas(X)), reset=False))

    def __sklearn_clone__(self) -> Self:
        """As scikit-learn does it, with the fitted `public_model` itself and not an unfitted copy of it."""
        clone: Self = super().__sklearn_clone__()
        clone.public_model = self.public_model
        return clone

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


def _is_same(X: object, X_public: object) -> bool:
    """Whether the private table was passed as the public one; no number is read."""
    if not (isinstance(X, np.ndarray) and isinstance(X_public, np.ndarray)):
        return X is X_public
    return X.shape == X_public.shape and X.ctypes.data == X_public.ctypes.data


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
