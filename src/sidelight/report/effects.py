"""What each column does: the mean prediction of a released model over public rows, by the column's value.

One column of every row is set to a value, the others stay as they are, and the predictions are averaged:
partial dependence (Friedman, Annals of Statistics 29, 2001, section 8.2).

Guarantee: post-processing. It asks the released model about public rows, or about rows made up from the
schema where there are none; no private record is read and nothing is charged.
Departs: values that go together in the data are taken apart, as partial dependence does. Where two columns
say nearly the same, each shows a part of their effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast, overload

import numpy as np

from sidelight.arrays import Array, Floats, Json, TableLike, is_sparse
from sidelight.data.features import remembered_texts
from sidelight.data.frames import as_pandas, is_frame
from sidelight.data.moments import as_moment, iso_of
from sidelight.data.schema import ENCODED, Column, Schema
from sidelight.data.values import as_number, as_text, as_truth, pandas
from sidelight.errors import InputError

_MOST_ROWS = 100
_MOST_COLUMNS = 8
_MOST_CATEGORIES = 10  # or dates
_POINTS = 21  # of a number
_FIRST_ROWS, _FIRST_POINTS = 12, 5  # to find the columns that are shown
_WIDEST = 2_000  # columns; of more, none is shown

Columns = dict[str, Array]
Predict = Callable[[Columns], Floats]


class Model(Protocol):
    """A fitted estimator, as far as its effects need it."""

    def predict(self, X: TableLike) -> Array: ...

    def schema_of_numbers(self) -> Schema: ...


@dataclass(frozen=True)
class Effect:
    """Of one column.

    Args:
        column: its name.
        kind: as in its schema: "number", "category", …
        values: what it was set to: numbers, or texts of categories and dates.
        means: the mean prediction at each value; one tuple for each output of the model.
        size: the standard deviation of the means over the values that the rows have.
    """

    column: str
    kind: str
    values: tuple[float | str, ...]
    means: tuple[tuple[float, ...], ...]
    size: float


@dataclass(frozen=True)
class Effects(Sequence[Effect]):
    """Of the columns that matter most, the largest first. A notebook draws them.

    Args:
        outputs: what is predicted, one name for each tuple of means.
        percent: whether predictions are probabilities.
        averaged_over: which rows the predictions are averaged over.
        columns: the effects.
    """

    outputs: tuple[str, ...] = ()
    percent: bool = False
    averaged_over: str = ""
    columns: tuple[Effect, ...] = ()

    @overload
    def __getitem__(self, at: int) -> Effect: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Effect, ...]: ...

    def __getitem__(self, at: int | slice) -> Effect | tuple[Effect, ...]:
        return self.columns[at]

    def __len__(self) -> int:
        return len(self.columns)

    def _repr_html_(self) -> str:
        from sidelight.report.effect_figures import notebook_html

        return notebook_html(self)

    def to_dict(self) -> Json:
        """For the privacy card; {} if there is nothing to show."""
        columns = [
            {"column": one.column, "kind": one.kind, "values": list(one.values), "size": one.size,
             "means": [list(means) for means in one.means]}
            for one in self.columns
        ]  # fmt: skip
        about = {"outputs": list(self.outputs), "percent": self.percent, "averaged_over": self.averaged_over}
        return {**about, "columns": columns} if columns else {}

    @classmethod
    def from_dict(cls, body: Mapping[str, object]) -> Effects:
        """What `to_dict` wrote; InputError for anything else."""
        try:
            outputs = tuple(str(name) for name in cast("list[object]", body.get("outputs", [])))
            columns = tuple(_read(one, outputs) for one in cast("list[Json]", body.get("columns", [])))
            return cls(outputs, body.get("percent") is True, str(body.get("averaged_over", "")), columns)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise InputError("the effects of a privacy card are not as sidelight wrote them") from None


def _read(one: Json, outputs: tuple[str, ...]) -> Effect:
    values = tuple(value if isinstance(value, str) else float(value) for value in one["values"])
    means = tuple(tuple(float(mean) for mean in line) for line in one["means"])
    texts = len({isinstance(value, str) for value in values})
    if texts != 1 or len(means) != len(outputs) or any(len(line) != len(values) for line in means):
        raise ValueError
    numbers = [value for value in values if not isinstance(value, str)]
    if not (np.isfinite(np.array(means)).all() and np.isfinite(numbers).all()):
        raise ValueError
    return Effect(str(one["column"]), str(one["kind"]), values, means, float(one["size"]))


# ---------------------------------------------------------------------------------------------------
# from a model and rows to effects


def sample_rows(X_public: TableLike | None) -> TableLike | None:
    """At most a hundred public rows, evenly chosen: what a fitted model keeps for its effects."""
    if X_public is None:
        return None
    if is_sparse(X_public):
        return np.asarray(X_public.tocsr()[_evenly(X_public.shape[0])].toarray())
    if is_frame(X_public):
        frame = as_pandas(X_public, "X_public")
        return frame.iloc[_evenly(len(frame))].reset_index(drop=True)
    array = np.asarray(X_public)
    return array[_evenly(len(array))]


def _evenly(rows: int) -> Array:
    return np.unique(np.linspace(0, rows - 1, min(rows, _MOST_ROWS)).round().astype(np.intp))


def effects_of(model: Model, rows: TableLike | None) -> Effects:
    """Of a fitted estimator, over these public rows; over rows made up from its schema if there are none."""
    known: Schema | None = getattr(model, "schema_", None)
    schema = model.schema_of_numbers() if known is None else known
    if len(schema.used) > _WIDEST:
        return Effects()
    more = _extra_inputs(model, schema)
    given = None if rows is None else _columns(rows, [*schema.used, *more])
    base = _made_up(schema) if given is None else given
    if base is None:
        return Effects()
    if given is None:
        base = {**base, **{name: np.full(len(next(iter(base.values()))), None) for name in more}}
    names, percent, predict = _predictor(model, frames=known is not None)
    size = len(next(iter(base.values())))
    over = f"{size} rows made up from the schema" if given is None else f"{size} public rows"
    with remembered_texts(schema, pandas().DataFrame(base) if _encodes(schema) else None):
        return Effects(names, percent, over, _largest(schema, base, predict))


def _extra_inputs(model: Model, schema: Schema) -> list[str]:
    """Columns that the user's `public_model` takes, and the schema does not."""
    own = getattr(getattr(model, "_coordinates", None), "own", None)
    columns = () if own is None else own.columns or ()
    return [column.name for column in columns if column.name not in schema.used]


def _largest(schema: Schema, base: Columns, predict: Predict) -> tuple[Effect, ...]:
    """A quick look at every column, then a closer one at those with the largest effects."""
    some = {name: values[:: max(1, len(values) // _FIRST_ROWS)] for name, values in base.items()}
    grids = {name: _grid(column, base[name], _FIRST_POINTS) for name, column in schema.used.items()}
    first = [
        _effect(name, schema.used[name], grid, some, predict)
        for name, grid in grids.items()
        if grid is not None
    ]
    chosen = sorted(first, key=lambda one: -one.size)[:_MOST_COLUMNS]
    closer = []
    for one in chosen:
        column = schema.used[one.column]
        grid = _grid(column, base[one.column], _POINTS)
        closer += [] if grid is None else [_effect(one.column, column, grid, base, predict)]
    return tuple(sorted((one for one in closer if one.size > 0), key=lambda one: -one.size))


@dataclass(frozen=True)
class _Grid:
    """What a column is set to: how it is shown, the value itself, and how many rows have it."""

    shown: tuple[float | str, ...]
    values: Array
    counts: Floats


def _effect(name: str, column: Column, grid: _Grid, base: Columns, predict: Predict) -> Effect:
    rows, points = len(base[name]), len(grid.shown)
    stacked = {other: np.tile(values, points) for other, values in base.items()}
    stacked[name] = np.repeat(grid.values, rows)
    predicted = predict(stacked).reshape(points, rows, -1).mean(axis=1)
    weights = grid.counts + 1e-9
    middle = np.average(predicted, axis=0, weights=weights)
    spread = np.sqrt(np.average((predicted - middle) ** 2, axis=0, weights=weights))
    means = tuple(tuple(float(mean) for mean in line) for line in predicted.T)
    return Effect(name, column.kind, grid.shown, means, float(spread.max()))


def _grid(column: Column, values: Array, points: int) -> _Grid | None:
    """None for a column that has fewer than two values to compare, or is a text or an image."""
    if column.kind in ENCODED:
        return None
    if column.kind == "number":
        grid = _of_numbers(np.clip(as_number(values), *(column.bounds or (-np.inf, np.inf))), points)
    elif column.kind == "date":
        grid = _of_dates(as_moment(values, column.format), values, points)
    elif column.kind == "boolean":
        truth = as_truth(values)
        counts = np.array([(truth == 0).sum(), (truth == 1).sum()], dtype=float)
        grid = _Grid(("no", "yes"), np.array([False, True], dtype=object), counts)
    else:
        grid = _of_categories(column, values, points)
    return grid if grid is not None and len(grid.shown) > 1 else None


def _of_numbers(numbers: Floats, points: int) -> _Grid | None:
    known = np.sort(numbers[np.isfinite(numbers)])
    if not len(known):
        return None
    found, counts = np.unique(known[_quantiles(len(known), points)], return_counts=True)
    return _Grid(tuple(found.tolist()), found, counts.astype(float))


def _of_dates(moments: Floats, values: Array, points: int) -> _Grid | None:
    points = min(points, _MOST_CATEGORIES)
    known = np.flatnonzero(np.isfinite(moments))
    if not known.size:
        return None
    order = known[np.argsort(moments[known], kind="stable")]
    found, at, counts = np.unique(
        moments[order][_quantiles(len(order), points)], return_index=True, return_counts=True
    )
    rows = order[_quantiles(len(order), points)][at]
    return _Grid(tuple(iso_of(float(one)) for one in found), values[rows], counts.astype(float))


def _of_categories(column: Column, values: Array, points: int) -> _Grid:
    """The most frequent ones, in the order of their number of rows."""
    texts = as_text(values)
    coded = column.kind == "code"
    known = [text[: column.prefix] if coded and isinstance(text, str) else text for text in texts]
    counts = {name: known.count(name) for name in column.categories}
    kept = sorted(column.categories, key=lambda name: -counts[name])[: min(points, _MOST_CATEGORIES)]
    raw = [name.ljust(column.digits, "0") if coded else name for name in kept]
    return _Grid(tuple(kept), np.array(raw, dtype=object), np.array([counts[name] for name in kept], float))


def _quantiles(rows: int, points: int) -> Array:
    return np.linspace(0, rows - 1, points).round().astype(np.intp)


def _predictor(model: Model, *, frames: bool) -> tuple[tuple[str, ...], bool, Predict]:
    """Names of the outputs, whether they are probabilities, and (n, outputs) predictions of columns."""
    named = frames or hasattr(model, "feature_names_in_")

    def table(columns: Columns) -> TableLike:
        return pandas().DataFrame(columns) if named else np.column_stack(list(columns.values()))

    labels = getattr(model, "classes_", None)
    if labels is None:
        return (f"predicted {_target(model)}",), False, lambda columns: model.predict(table(columns))
    chances = getattr(model, "predict_proba", None)
    percent = chances is not None
    what = "probability of" if percent else "score of"
    ask = chances or getattr(model, "decision_function")  # noqa: B009
    if len(labels) > 2:
        return tuple(f"{what} {one}" for one in labels), percent, lambda columns: ask(table(columns))
    second = (f"{what} {labels[1]}",)
    return (
        second,
        percent,
        lambda columns: np.asarray(ask(table(columns))).reshape(len(next(iter(columns.values()))), -1)[:, -1],
    )


def _target(model: Model) -> str:
    schema: Schema | None = getattr(model, "schema_", None)
    return "target" if schema is None else schema.target.name


def _columns(rows: TableLike, names: list[str]) -> Columns | None:
    """The columns of at most a hundred rows by name; None if there are no rows."""
    sample = sample_rows(rows)
    if is_frame(sample):
        frame = as_pandas(sample, "X_public")
        return {name: frame[name].to_numpy() for name in names} if len(frame) else None
    array = np.asarray(sample, dtype=np.float64)
    return dict(zip(names, array.T, strict=True)) if len(array) else None


def _encodes(schema: Schema) -> bool:
    return any(column.kind in ENCODED for column in schema.used.values())


def _made_up(schema: Schema) -> Columns | None:
    """Rows that fill a schema's ranges evenly, each column apart; None if it has texts, codes or dates."""
    rng = np.random.default_rng(0)  # nothing to hide: no record is near
    columns: Columns = {}
    for name, column in schema.used.items():
        if column.kind == "number" and column.bounds is not None:
            columns[name] = rng.permutation(np.linspace(*column.bounds, _MOST_ROWS))
        elif column.kind in ("boolean", "category") and (column.categories or column.kind == "boolean"):
            choices = np.array(column.categories or [False, True], dtype=object)
            columns[name] = rng.permutation(choices[np.arange(_MOST_ROWS) % len(choices)])
        else:
            return None
    return columns or None
