"""What a column of a public table is.

The rules, in order, for a column of the public table:

    lists                               ignored: write them as numbers or texts first
    no value, or a constant number      ignored: nothing to learn bounds from
    0 and 1, true and false, yes and no a boolean, whatever their case and however they are stored
    dates and times                     a date: bounds are the range, parts that in which they differ
    digits, all of one length from 3    a code (a postcode, say): its first digits are a category; ignored, if
    on, some with zeros in front        there are 8 digits or more and nearly all values are different
    whole numbers without a gap, or a   ignored: an identifier
    column called id, all different
    every value is a number             a number: bounds are the range of the values, knots their quartiles,
                                        or those of the rest where most are one value
                                        or, of at most 8 values, each that 10 public rows have
    more than half of the values are    an error: more likely a slip than a text
    texts of four words or more,        ignored: free text
    mostly different
    text, nearly all values different   ignored: an identifier
    other text                          a category: the values seen, at most the 100 most frequent

What is recognised wrongly can be said (`recognise_as`): --type COLUMN=TYPE, types={...}, or a schema file.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array
from sidelight.data.codes import code_column, recognise_code
from sidelight.data.date_values import FORMATS
from sidelight.data.recognising_dates import date_as, recognise_date
from sidelight.data.schema import KINDS, Column
from sidelight.data.values import TRUTHS, as_number, as_text, as_truth
from sidelight.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FEW_VALUES", "HUGE", "recognise", "recognise_as"]

HUGE = 1e300  # numbers beyond are refused
FEW_VALUES = "few ordered values: the effect may bend at each"
_MOST_CATEGORIES = 100
_QUARTILES = (0.25, 0.5, 0.75)
_FEW_VALUES, _ROWS_TO_BEND = 8, 10
_FEWEST = 20  # values, to call them identifiers
_FEWEST_TEXTS, _WORDS = 5, 4.0  # of free text; words on average
_NAMED_ID = re.compile(r"(^|[^a-z])(id|idx|index|uuid|guid|key)$|[a-z]I[dD]$", re.ASCII)
_IDENTIFIER = (
    "looks like an identifier: every value is its own; to use it, --type NAME=number or NAME=category"
)
_FREE_TEXT = (
    "free text; to use it, add columns of numbers that a public encoder makes of each text, "
    "or --type NAME=category"
)


def recognise(values: pd.Series, name: str) -> Column:
    """The column that these public values make."""
    column = _recognised(values, name)
    return replace(column, note=column.note.replace("NAME", name))


def _recognised(values: pd.Series, name: str) -> Column:
    if _is_nested(values):
        return Column("ignore", note="lists and durations are not used; write them as numbers or texts")
    texts = as_text(values)
    there = np.array([text is not None for text in texts], dtype=bool)
    if not there.any():
        return Column("ignore", note="no value in the public table; declare it, if it matters")
    if _is_boolean(texts[there]):
        return Column("boolean")
    found = recognise_date(values[there], name) or recognise_code(texts[there])
    if found is not None:
        return found
    numbers = as_number(values)[there]
    good = ~np.isnan(numbers)
    if good.all():
        return Column("ignore", note=_IDENTIFIER) if _counts(numbers, name) else _number(numbers, name)
    if good.mean() > 0.5:
        row = int(np.flatnonzero(there)[np.flatnonzero(~good)[0]])
        raise InputError(
            f"column {name!r} of the public table holds numbers, but {texts[row]!r} in record {row + 1}; "
            f"correct it, or say what it is: --type {name}=category, or a schema file"
        )
    return _text([text for text in texts if text is not None])


def recognise_as(values: pd.Series, name: str, kind: str) -> Column:
    """The column that these public values make as what the user says that it is."""
    texts = as_text(values)
    there = np.array([text is not None for text in texts], dtype=bool)
    if kind == "ignore":
        return Column("ignore", note="as you asked")
    if not there.any():
        raise InputError(f"column {name!r} has no value in the public table; declare it in a schema file")
    if kind == "boolean":
        _check_all(as_truth(values)[there], name, kind)
        return Column("boolean")
    if kind == "number":
        _check_all(as_number(values)[there], name, kind)
        return _number(as_number(values)[there], name)
    if kind == "category":
        return _category(texts[there].tolist())
    if kind == "code":
        return code_column(texts[there])
    if kind == "date" or kind in FORMATS:
        return date_as(values[there], name, kind)
    raise InputError(
        f"column {name!r} cannot be {kind!r}; expected {', '.join(KINDS)} or {', '.join(FORMATS)}"
    )


def _check_all(found: NDArray[np.float64], name: str, kind: str) -> None:
    if np.isnan(found).any():
        raise InputError(
            f"column {name!r} is no {kind} in every public row; correct it, or take another type"
        )


def _is_boolean(texts: Array) -> bool:
    """Both words of a pair, or the numbers 0 and 1. "True" alone says what it is; "f" alone does not."""
    words = {str(text).lower() for text in texts}
    return words in (*map(set, TRUTHS), {"0", "1"}) or words <= {"false", "true"}


def _number(numbers: NDArray[np.float64], name: str) -> Column:
    if not (np.abs(numbers) <= HUGE).all():
        raise InputError(f"column {name!r} of the public table holds an infinite or huge number; correct it")
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return Column("ignore", note="constant in the public table; declare its bounds, if it matters")
    few = _few_values(numbers)
    knots = few or _around_a_spike(numbers) or set(np.quantile(numbers, _QUARTILES).tolist())
    inner = tuple(knot for knot in sorted(knots) if low < knot < high)
    return Column("number", (low, high), inner, note=FEW_VALUES if few else "")


def _few_values(numbers: NDArray[np.float64]) -> list[float]:
    """Of an ordered number with few values, those of which there are enough public rows to bend at each.

    Then its effect is as free as that of a category; values with too few rows keep their place in the order.
    """
    values, counts = np.unique(numbers, return_counts=True)
    return values[counts >= _ROWS_TO_BEND].tolist() if 2 < len(values) <= _FEW_VALUES else []


def _around_a_spike(numbers: NDArray[np.float64]) -> set[float]:
    """Of a number that is one value in most rows, such as 0: a jump beside it, and quartiles of the others.

    All quartiles of such a number are that one value, and a straight line to the largest would be all that is
    left for the others.
    """
    values, counts = np.unique(numbers, return_counts=True)
    most, others = values[counts.argmax()], numbers[numbers != values[counts.argmax()]]
    if counts.max() <= len(numbers) / 2 or len(others) < 4:
        return set()
    beside = {
        float(most + 0.01 * (edge - most))
        for edge in (others[others > most].min(initial=np.inf), others[others < most].max(initial=-np.inf))
        if np.isfinite(edge)
    }
    return beside | set(np.quantile(others, (0.0, *_QUARTILES), method="lower").tolist())


def _counts(numbers: NDArray[np.float64], name: str) -> bool:
    """Whether they number the rows, each once."""
    if len(numbers) < _FEWEST or len(np.unique(numbers)) < len(numbers) or (numbers % 1 != 0).any():
        return False
    gapless = numbers.max() - numbers.min() == len(numbers) - 1
    return bool(gapless) or _NAMED_ID.search(name) is not None


def _text(texts: list[str]) -> Column:
    counts = Counter(texts)
    words = np.mean([len(text.split()) for text in texts])
    if len(texts) >= _FEWEST_TEXTS and words >= _WORDS and len(counts) > 0.5 * len(texts):
        return Column("ignore", note=_FREE_TEXT)
    if len(texts) >= _FEWEST and len(counts) > 0.9 * len(texts):
        return Column("ignore", note=_IDENTIFIER)
    return _category(texts)


def _category(texts: list[str]) -> Column:
    counts = Counter(texts)
    kept = sorted(text for text, _ in counts.most_common(_MOST_CATEGORIES))
    note = "" if len(counts) == len(kept) else f"the {len(kept)} most frequent of {len(counts)}"
    return Column("category", categories=tuple(kept), note=note)


def _is_nested(values: pd.Series) -> bool:
    if getattr(values.dtype, "kind", "O") == "m":
        return True
    return any(
        isinstance(value, list | dict | tuple | set | np.ndarray) for value in values.head(100).tolist()
    )
