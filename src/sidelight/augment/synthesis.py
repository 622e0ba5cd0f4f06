"""Synthetic rows of a table with mixed columns, from public rows alone.

A smoothed bootstrap. A new row starts as a copy of a public one. Numbers then move, on the scale of their
ranks, by a part of the difference of two of its neighbors, so that they move along the data; some values are
copied from a neighbor. Neighbors have the same class. So columns keep their marginals (including
the spike at zero of a skewed one) and their dependence on each other and on the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.neighbors import NearestNeighbors

from sidelight.arrays import Array, Floats, Mask
from sidelight.errors import InputError, MissingDependency, whole

if TYPE_CHECKING:
    import pandas as pd


Places = NDArray[np.intp]
Values: TypeAlias = "Array | pd.api.extensions.ExtensionArray"  # of a column that is made

_MAX_CATEGORY_VALUES = 10  # numbers with at most so many different values are categories
_MOST_CANDIDATES = 2_000  # neighbors are looked for among so many rows of a class
_MOST_CATEGORIES = 20  # of a column, that count in distances; the others are alike
_EXACT = 2.0**53  # whole numbers from here on are names of something, and not exact as floats
_TARGET_WEIGHT = 2.0  # of a numeric target in distances


def synthesize(
    frame: pd.DataFrame,
    rows: int,
    *,
    random_state: int,
    target: str | None = None,
    neighbors: int = 5,
    width: float = 0.5,
    swap: float = 0.15,
) -> pd.DataFrame:
    """`rows` new rows like those of a pandas frame, with its columns and types.

    Guarantee: none, and none is needed, as long as `frame` holds public rows only. Never pass private ones:
    the result is made of their values.

    Args:
        random_state: the same number and frame give the same rows.
        target: the column to be predicted. Its classes keep their shares and their rows; a number moves with
            the others. Rows without it are left out.
        neighbors: how many nearby rows a row may take values and differences from.
        width: how far numbers move, in differences of neighbors.
        swap: the probability that a value is copied from a neighbor.
    """
    for name, value, fits in (
        ("random_state", random_state, random_state >= 0),
        ("neighbors", neighbors, neighbors >= 1),
        ("width", width, width >= 0),
        ("swap", swap, 0 <= swap <= 1),
    ):
        if not fits:
            raise InputError(
                f"{name} is {value!r}; random_state and width are at least 0, neighbors 1, swap in [0, 1]"
            )
    frame = _checked(frame, rows, target)
    rng = np.random.default_rng(random_state)
    columns = {name: _column(frame[name], name) for name in frame.columns}
    classes = _classes(columns.get(target), len(frame)) if target is not None else np.zeros(len(frame), int)
    near = _neighbors(_coordinates(columns, target), classes, neighbors, rng)
    base = rng.integers(0, len(frame), rows)
    one, two = (near[base, rng.integers(0, near.shape[1], rows)] for _ in range(2))
    import pandas as pd

    made = {}
    for name, column in columns.items():
        donor = base if name == target else np.where(rng.random(rows) < swap, one, base)
        values = column.new(donor, one, two, width * rng.random(rows))
        made[name] = pd.Series(values, dtype=frame[name].dtype)
    return pd.DataFrame(made, columns=frame.columns, index=pd.RangeIndex(rows))


# ---------------------------------------------------------------------------------------------------
# columns


@dataclass(frozen=True, eq=False)
class _Category:
    """Text, truth values, dates, few numbers: values are copied, never blended. Missing is one of them."""

    values: pd.Series

    def new(self, donor: Places, one: Places, two: Places, width: Floats) -> Values:
        return self.values.take(donor).array

    def coordinates(self) -> Floats:
        """One column per frequent value; two rows with different values are at distance 1."""
        codes, counts = self.codes()
        frequent = np.argsort(-counts, kind="stable")[:_MOST_CATEGORIES]
        found: Floats = (codes[:, None] == frequent[None, :]) / np.sqrt(2.0)
        return found

    def codes(self) -> tuple[Places, Places]:
        """The number of each row's value, missing being the last, and how often each occurs."""
        codes = np.asarray(self.values.astype("category").cat.codes, dtype=np.intp)
        codes = np.where(codes < 0, codes.max(initial=-1) + 1, codes)
        return codes, np.bincount(codes)


@dataclass(frozen=True, eq=False)
class _Number:
    """Numbers, by the normal scores of their ranks."""

    values: pd.Series
    scores: Floats  # 0 where missing
    missing: Mask
    known: Floats  # the sorted values and their scores, for the way back
    known_scores: Floats
    whole: bool

    def new(self, donor: Places, one: Places, two: Places, width: Floats) -> Values:
        apart = np.where(self.missing[one] | self.missing[two], 0.0, self.scores[one] - self.scores[two])
        scores = self.scores[donor] + width * apart
        found = np.interp(scores, self.known_scores, self.known)
        found = np.round(found) if self.whole else found
        import pandas as pd

        result = pd.array(found, dtype="Float64")
        result[self.missing[donor]] = pd.NA
        if isinstance(self.values.dtype, np.dtype):
            return result.to_numpy(dtype=np.float64, na_value=np.nan).astype(self.values.dtype)
        return result.astype(self.values.dtype)

    def coordinates(self) -> Floats:
        found: Floats = np.column_stack([self.scores, self.missing])
        return found


def _column(series: pd.Series, name: str) -> _Category | _Number:
    from pandas.api import types

    number = types.is_numeric_dtype(series.dtype) and not types.is_bool_dtype(series.dtype)
    if types.is_complex_dtype(series.dtype):
        raise InputError(f"column {name!r} holds complex numbers; give two columns of real ones")
    try:
        distinct = series.nunique()
    except TypeError:
        raise InputError(f"column {name!r} holds lists or other things that are not single values") from None
    if not number or distinct <= min(_MAX_CATEGORY_VALUES, series.notna().sum() // 2):
        return _Category(series)
    values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isinf(values).any():
        raise InputError(f"column {name!r} holds infinite values; replace or remove them")
    missing = np.isnan(values)
    if np.abs(values[~missing]).max() >= _EXACT and types.is_integer_dtype(series.dtype):
        return _Category(series)
    known, place, counts = np.unique(values[~missing], return_inverse=True, return_counts=True)
    middle = ndtri((np.cumsum(counts) - counts / 2) / counts.sum())
    scores = np.zeros(len(values))
    scores[~missing] = middle[place]
    low, high = (ndtri(edge / counts.sum()) for edge in (np.cumsum(counts) - counts, np.cumsum(counts)))
    return _Number(series, scores, missing, *_rank_to_value(known, middle, low, high, counts), _whole(known))


def _rank_to_value(
    known: Floats, middle: Floats, low: Floats, high: Floats, counts: Places
) -> tuple[Floats, Floats]:
    """Values and scores for np.interp: a repeated value keeps the whole stretch of its ranks."""
    many = counts > 1
    scores = np.concatenate([middle, low[many], high[many]])
    values = np.concatenate([known, known[many], known[many]])
    order = np.lexsort((values, scores))
    keep = np.isfinite(scores[order])
    return values[order][keep], scores[order][keep]


def _whole(values: Floats) -> bool:
    return bool((values == np.round(values)).all())


# ---------------------------------------------------------------------------------------------------
# rows


def _classes(column: _Category | _Number | None, size: int) -> Places:
    """Which rows may stand in for each other."""
    return column.codes()[0] if isinstance(column, _Category) else np.zeros(size, dtype=np.intp)


def _coordinates(columns: dict[str, _Category | _Number], target: str | None) -> Floats:
    parts = []
    for name, column in columns.items():
        if name != target:
            parts.append(column.coordinates())
        elif isinstance(column, _Number):
            parts.append(_TARGET_WEIGHT * column.coordinates())
    return np.hstack(parts) if parts else np.zeros((len(next(iter(columns.values())).values), 1))


def _neighbors(points: Floats, classes: Places, count: int, rng: np.random.Generator) -> Places:
    """For every row `count` near rows of its class, itself where there are too few others."""
    near = np.repeat(np.arange(len(points))[:, None], count, axis=1)
    for each in np.unique(classes):
        mine = np.flatnonzero(classes == each)
        known = np.sort(rng.choice(mine, min(len(mine), _MOST_CANDIDATES), replace=False))
        found = min(count + 1, len(known))
        index = NearestNeighbors(n_neighbors=found).fit(points[known])
        places = known[index.kneighbors(points[mine], return_distance=False)]
        for row, others in zip(mine, places, strict=True):
            others = others[others != row][:count]
            near[row, : len(others)] = others
    return near


def _checked(frame: pd.DataFrame, rows: int, target: str | None) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependency("tables need pandas and pyarrow: pip install pandas pyarrow") from error
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"synthesize needs a pandas DataFrame of public rows, not {type(frame).__name__}")
    whole("rows", rows, least=0)
    if not frame.columns.is_unique:
        raise InputError("two columns have the same name; rename one")
    if target is not None:
        if target not in frame.columns:
            raise InputError(f"there is no column {target!r} to be the target")
        frame = frame[frame[target].notna()]
    if not len(frame) or not len(frame.columns):
        raise InputError("synthesize needs at least one public row (with a target) and one column")
    return frame.reset_index(drop=True)
