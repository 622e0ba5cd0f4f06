"""A schema from public rows: what each column is, and the target. Nothing here ever sees a private one.

The rules, in order, for a column of the public table:

    lists                               ignored: write them as numbers or texts first
    no value, or a constant number      ignored: nothing to learn bounds from
    0 and 1, true and false, yes and no a boolean, in any case, however they are stored
    dates and times                     a date: bounds are the range, parts that in which they differ
    digits, all of one length from 3    a code (a postcode, say): its first digits are a category; ignored, if
    on, some with zeros in front        there are 8 digits or more and nearly all values are different
    whole numbers without a gap, or a   ignored: an identifier
    column called id, all different
    every value is a number             a number: bounds are the range of the values, knots their quartiles,
                                        or those of the rest where most are one value
                                        or, of at most 8 values, each that 10 public rows have
    more than half of the values are    an error: more likely a slip than a text. Where the user says
    numbers, or dates                   number or date, the other values count as missing
    texts of four words or more,        ignored: free text, unless it is declared (--text)
    mostly different
    text, nearly all values different   ignored: an identifier
    other text                          a category: the values seen, at most the 100 most frequent

What is recognized wrongly can be said: --type COLUMN=TYPE, types={...}, or a schema file. There are knots
only with at least 2 public rows for every column of numbers: a hundred numbers that each bend three times are
more than fifty rows can guide.

Dates must all be read by one format. Where day/month and month/day both read all of them, dots say the first
(31.12.2020), and otherwise nobody can know: the column is ignored until its format is declared. Of codes,
names that are alike in their first digits, the model sees as many of those as public rows can tell apart.

The target is a number to predict if it is numeric with more than min(20, rows/4) values (and more than 2);
otherwise its values are classes.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from sidelight.arrays import Array, Floats, Mask
from sidelight.data.date_parts import MOST_YEARS, PARTS, Part, months, spanned_years, weekdays
from sidelight.data.frames import Frame, as_pandas
from sidelight.data.moments import DAY, FORMATS, Format, as_moment
from sidelight.data.schema import (
    ENCODED,
    KINDS,
    MOST_DIGITS,
    Column,
    Schema,
    TargetColumn,
    TaskName,
    encoded_column,
    first_digits,
)
from sidelight.data.values import TRUTHS, as_number, as_text, as_truth
from sidelight.errors import InputError, listed, nearest, spelled

if TYPE_CHECKING:
    import pandas as pd


LEARNED = "learned from the public records"  # the source of a schema

_ROWS_PER_NUMBER = 2
_MOST_SLIPS = 8  # columns in one error


def learn(
    public: Frame,
    target: str,
    *,
    task: TaskName | None = None,
    ignore: tuple[str, ...] = (),
    types: Mapping[str, str] | None = None,
    classes: Sequence[str | float] | None = None,
    target_bounds: tuple[float, float] | None = None,
) -> Schema:
    """The schema of a public frame; it may lack the target if `classes` or `target_bounds` are given."""
    frame = as_pandas(public, "the public table")
    names = list(frame.columns)
    declared = _declared_target(target, task, classes, target_bounds)
    if target not in names and declared is None:
        near = difflib.get_close_matches(target, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {listed(names, most=8)}."
        raise InputError(f"the public table has no column {target!r} to predict; {hint}{_say_labels()}")
    kinds = {**(types or {}), **dict.fromkeys(ignore, "ignore")}
    if unknown := [name for name in kinds if name not in names]:
        what = "ignore" if unknown[0] in ignore else f"read as {kinds[unknown[0]]}"
        has = listed(names, most=8)
        raise InputError(f"the public table has no column {unknown[0]!r} to {what}; it has {has}")
    if target in kinds:
        what = "ignored" if target in ignore else "given the type of a feature; task says what it is"
        raise InputError(f"{target!r} is the target and cannot be {what}")
    columns = learn_columns(frame.drop(columns=target, errors="ignore"), kinds)
    return Schema(declared or _target(frame[target], target, task), columns, LEARNED)


def _say_labels() -> str:
    ways = spelled("classes=[...], target_bounds=(low, high) or a schema file", "a schema file (--schema)")
    return f" If public rows have no labels, declare the labels by {ways}"


def _declared_target(
    name: str,
    task: TaskName | None,
    classes: Sequence[str | float] | None,
    bounds: tuple[float, float] | None,
) -> TargetColumn | None:
    if classes is not None and bounds is not None:
        raise InputError("classes are for a classification, target_bounds for a regression; pass one of them")
    if classes is None and bounds is None:
        return None
    found = {"name": name, "task": "regression" if classes is None else "classification"}
    if task is not None and task != found["task"]:
        raise InputError(
            f"the task is {task}, but {'target_bounds' if classes is None else 'classes'} is given"
        )
    if classes is None:
        return TargetColumn.from_dict({**found, "bounds": list(bounds or ())})
    given = np.asarray(classes, dtype=object).tolist()  # each with its own type; a text is not a list
    if isinstance(given, list):
        plain = [one.item() if isinstance(one, np.generic) else one for one in given]
        given = [str(one) if isinstance(one, bool) else one for one in plain]
    return TargetColumn.from_dict({**found, "classes": given})


def learn_columns(public: pd.DataFrame, kinds: Mapping[str, str] = MappingProxyType({})) -> dict[str, Column]:
    """What the columns of public features are; `kinds` says it for some."""
    if not len(public):
        raise InputError("the public table has no rows to learn from; declare a schema instead")
    columns: dict[str, Column] = {}
    slips: list[_Slip] = []
    for name in public.columns:
        try:
            columns[name] = (
                _recognize_as(public[name], name, kinds[name])
                if name in kinds
                else _recognize(public[name], name)
            )
        except _Slip as slip:
            slips.append(slip)
    if slips:
        raise InputError(_said_together(slips))
    if all(column.kind == "ignore" for column in columns.values()):
        name, column = next(iter(columns.items()), ("", Column("ignore")))
        why = f" ({name}: {column.note})" if name else ""
        raise InputError(f"no column of the public table can be used: all are ignored{why}")
    few = len(public) < _ROWS_PER_NUMBER * _numbers(columns)
    return _without_knots(columns) if few else columns


class _Slip(InputError):
    """A few public values of a column have another type than the rest."""

    def __init__(self, name: str, kind: str, texts: Array, rows: Array) -> None:
        """texts: the odd ones; rows: where they are."""
        self.example = f"{listed([texts[0]])} in record {rows[0] + 1}"
        self.name = name
        more = "" if len(rows) == 1 else f" ({len(rows):,} such values)"
        super().__init__(
            f"column {name!r} of the public table holds {kind}s, but {self.example}{more}; correct it, or "
            f"say what it is: {_spelled(f'TYPE={kind}', name)} (what is not a {kind} then counts as "
            "missing), or category"
        )


def _said_together(slips: list[_Slip]) -> str:
    """All suspected typing errors in one line, so that one run shows them all."""
    first, *others = slips
    if not others:
        return str(first)
    few = ", ".join(f"{slip.name!r} ({slip.example})" for slip in others[:_MOST_SLIPS])
    more = f" and {len(others) - _MOST_SLIPS:,} more" if len(others) > _MOST_SLIPS else ""
    return f"{first}. Likewise {few}{more}"


def _numbers(columns: dict[str, Column]) -> int:
    return sum(column.kind == "number" for column in columns.values())


def _without_knots(columns: dict[str, Column]) -> dict[str, Column]:
    """Straight lines: few public rows cannot guide the four pieces of every number."""
    return {
        name: replace(column, knots=(), note="" if column.note == _FEW_NOTE else column.note)
        for name, column in columns.items()
    }


def _target(values: pd.Series, name: str, task: TaskName | None) -> TargetColumn:
    """The target column, learned from the rows that have a target."""
    values = values[np.array([text is not None for text in as_text(values)], dtype=bool)]
    if not len(values):
        raise InputError(f"no row of the public table has a {name!r}.{_say_labels()}")
    texts, numbers = as_text(values), as_number(values)
    numeric = not np.isnan(numbers).any() and not set(texts) <= {"False", "True"}
    distinct = len(np.unique(numbers)) if numeric else len(set(texts))
    if task is None:
        many = distinct > max(2, min(20, len(texts) / 4))
        task = "regression" if numeric and many else "classification"
    if task == "regression":
        return _real_target(numbers, name, numeric)
    if distinct < 2:
        raise InputError(f"{name!r} has one value in the public table; a classifier needs two, or a schema")
    if numeric and not np.isfinite(numbers).all():
        raise InputError(f"{name!r} holds an infinite number in the public table; correct it")
    if distinct > len(texts) / 2 and distinct > 20:
        found = f"{distinct:,} values in {len(texts):,} public rows"
        raise InputError(f"{name!r} has {found}: too many for classes")
    return TargetColumn(name, "classification", _labels(numbers if numeric else texts))


def _real_target(numbers: Floats, name: str, numeric: bool) -> TargetColumn:
    if not numeric:
        raise InputError(f"{name!r} is not a number in every public row, as a regression needs")
    if not (np.abs(numbers) <= _HUGE).all():
        raise InputError(f"{name!r} holds an infinite or huge number in the public table; correct it")
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        raise InputError(f"{name!r} is the same in every public row; declare its bounds in a schema file")
    return TargetColumn(name, "regression", bounds=(low, high))


def _labels(values: Array) -> tuple[str | float, ...]:
    labels = sorted(set(values.tolist()))
    if not isinstance(labels[0], float):
        return tuple(labels)
    return tuple(int(label) if label.is_integer() else label for label in labels)


# ---------------------------------------------------------------------------------------------------
# what a column of a public table is


_HUGE = 1e300  # numbers beyond are refused
_FEW_NOTE = "few ordered values: the effect may bend at each"
_QUARTILES = (0.25, 0.5, 0.75)
_MOST_CATEGORIES = 100
_LEAST_KNOWN = 0.5  # of the public rows, in categories of two rows or more
_FEW_VALUES, _ROWS_TO_BEND = 8, 10
_FEWEST = 20  # values, to call them identifiers, or eight digits a date
_SAMPLE = 50  # values that the format of a date is first tried on
_SHORTEST, _LONG = 3, 8  # digits of a code; two are more likely a month or an hour
_ROWS_PER_CODE = 5  # public rows for the first digits of a code, on average
_FEWEST_TEXTS, _WORDS = 5, 4.0  # of free text; words on average
_NAMED_ID = re.compile(r"(^|[^a-z])(id|idx|index|uuid|guid|key)$|[a-z]I[dD]$", re.ASCII)
_ROW_NUMBERS = (
    "looks like an identifier: a different whole number in every row; to use it, declare its type "
    "(TYPE=number or TYPE=category)"
)
_IDENTIFIER = (
    "looks like an identifier: values hardly repeat; to use it, write it as plain numbers, or "
    "declare its type (TYPE=category); if it names persons, pass UNIT"
)
_FREE_TEXT = "free text; to use it through a public encoder: TEXT, or as it is: TYPE=category"


def _recognize(values: pd.Series, name: str) -> Column:
    """The column inferred from these public values."""
    column = _recognized(values, name)
    return replace(column, note=_HINT.sub(lambda hint: _spelled(hint[0], name), column.note))


_HINT = re.compile(r"TYPE=[\w/]+|UNIT|TEXT")


def _spelled(hint: str, name: str) -> str:
    """The argument or option that declares this column."""
    what, _, kind = hint.partition("=")
    if what == "TYPE":
        return spelled(f"types={{{name!r}: {kind!r}}}", f"--type {option(name, f'={kind}')}")
    key, value = what.lower(), repr(name) if what == "UNIT" else f"[{name!r}]"
    return spelled(f"{key}={value}", f"--{key} {option(name)}")


def option(name: str, rest: str = "") -> str:
    """The value of an option that names a column, as a shell takes it."""
    return shlex.quote(name + rest)


def _recognized(values: pd.Series, name: str) -> Column:
    if _is_nested(values):
        return Column("ignore", note="lists and durations are not used; write them as numbers or texts")
    texts = as_text(values)
    there = np.array([text is not None for text in texts], dtype=bool)
    if not there.any():
        return Column("ignore", note="no value in the public table; declare it, if it matters")
    if _is_boolean(texts[there]):
        return Column("boolean")
    found = _recognize_date(values[there], name, np.flatnonzero(there)) or _recognize_code(texts[there])
    if found is not None:
        return found
    numbers = as_number(values)[there]
    good = ~np.isnan(numbers)
    if good.all():
        return Column("ignore", note=_ROW_NUMBERS) if _counts(numbers, name) else _number(numbers, name)
    if good.mean() > 0.5:
        raise _Slip(name, "number", texts[there][~good], np.flatnonzero(there)[~good])
    return _text([text for text in texts if text is not None])


def _recognize_as(values: pd.Series, name: str, kind: str) -> Column:
    """The column of these public values, read as the type that the user declared."""
    texts = as_text(values)
    there = np.array([text is not None for text in texts], dtype=bool)
    if kind == "ignore":
        return Column("ignore", note="as you asked")
    if not there.any():
        raise InputError(f"column {name!r} has no value in the public table; declare it in a schema file")
    if kind == "boolean":
        _check_all(as_truth(values)[there], texts[there], name, kind)
        return Column("boolean")
    if kind == "number":
        numbers = as_number(values)[there]
        _check_most(numbers, texts[there], name, kind)
        return _lenient(_number(numbers[~np.isnan(numbers)], name), np.isnan(numbers))
    if kind == "category":
        return _category(texts[there].tolist())
    if kind == "code":
        return _code_column(texts[there])
    for encoded in ENCODED:
        if kind.partition(":")[0] == encoded:
            return encoded_column(encoded, {"encoder": kind.partition(":")[2]}, f"column {name!r}")
    if kind == "date" or kind in FORMATS:
        return _date_as(values[there], name, kind)
    near = nearest(kind, (*KINDS, *FORMATS))
    raise InputError(
        f"column {name!r} cannot be {kind!r}."
        + (near or f" Types are {', '.join(KINDS)} or {', '.join(FORMATS)}")
    )


def _check_most(found: Floats, texts: Array, name: str, kind: str) -> None:
    """Refuse a type that half of the public values do not have: it is more likely wrong than they are."""
    if np.isnan(found).mean() >= 0.5:
        _check_all(found, texts, name, kind)


def _lenient(column: Column, wrong: Mask) -> Column:
    """The column, with the public values that are not of its type taken as missing, if there are any."""
    if column.kind == "ignore" or not wrong.any():
        return column
    said = f"{wrong.sum():,} of {len(wrong):,} public values are not {column.kind}s and count as missing"
    return replace(column, note="; ".join(filter(None, (column.note, said))), unreadable_is_missing=True)


def _check_all(found: Floats, texts: Array, name: str, kind: str) -> None:
    """Refuse a type that a public value does not have, and quote the first one."""
    if np.isnan(found).any():
        first = listed([texts[int(np.flatnonzero(np.isnan(found))[0])]])
        raise InputError(
            f"column {name!r} of the public table holds {first}, which is not a {kind}; correct it, or "
            "choose another type"
        )


def _is_boolean(texts: Array) -> bool:
    """Both words of a pair, or the numbers 0 and 1. "True" alone says what it is; "f" alone does not."""
    words = {str(text).lower() for text in texts}
    return words in (*map(set, TRUTHS), {"0", "1"}) or words <= {"false", "true"}


def _number(numbers: Floats, name: str) -> Column:
    if not (np.abs(numbers) <= _HUGE).all():
        raise InputError(f"column {name!r} of the public table holds an infinite or huge number; correct it")
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return Column("ignore", note="constant in the public table; declare its bounds, if it matters")
    few = _few_values(numbers)
    knots = few or _around_a_spike(numbers) or set(np.quantile(numbers, _QUARTILES).tolist())
    inner = tuple(knot for knot in sorted(knots) if low < knot < high)
    return Column("number", (low, high), inner, note=_FEW_NOTE if few else "")


def _few_values(numbers: Floats) -> list[float]:
    """Of an ordered number with few values, those of which there are enough public rows to bend at each.

    Then its effect is as free as that of a category; values with too few rows keep their place in the order.
    """
    values, counts = np.unique(numbers, return_counts=True)
    return values[counts >= _ROWS_TO_BEND].tolist() if 2 < len(values) <= _FEW_VALUES else []


def _around_a_spike(numbers: Floats) -> set[float]:
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


def _counts(numbers: Floats, name: str) -> bool:
    """Whether these numbers count the rows, each exactly once."""
    if len(numbers) < _FEWEST or len(np.unique(numbers)) < len(numbers) or (numbers % 1 != 0).any():
        return False
    gapless = numbers.max() - numbers.min() == len(numbers) - 1
    return bool(gapless) or _NAMED_ID.search(name) is not None


def _text(texts: list[str]) -> Column:
    counts = Counter(texts)
    words = np.mean([len(text.split()) for text in texts])
    if len(texts) >= _FEWEST_TEXTS and words >= _WORDS and len(counts) > 0.5 * len(texts):
        return Column("ignore", note=_FREE_TEXT)
    known = sum(count for _, count in counts.most_common(_MOST_CATEGORIES) if count > 1)
    if len(texts) >= _FEWEST and known < _LEAST_KNOWN * len(texts):
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


# ---------------------------------------------------------------------------------------------------
# dates and times


def _recognize_date(values: pd.Series, name: str, rows: Array) -> Column | None:
    """The column of these public values, none missing, of these rows; None if they are not dates."""
    likely = [how for how in FORMATS if np.isfinite(as_moment(values.head(_SAMPLE), how)).mean() > 0.5]
    found = {how: as_moment(values, how) for how in likely}
    whole = [how for how in likely if np.isfinite(found[how]).all()]
    if likely == ["yearmonthday"] and (not whole or len(values) < _FEWEST):
        return None  # numbers
    if not whole:
        if likely:
            _refuse(values, found[likely[0]], name, rows)
        return None
    how, other = whole[0], whole[-1]
    if (how, other) == ("day/month/year", "month/day/year") and not _dotted(values):
        same = np.array_equal(found[how], found[other])
        return _date_column(found[how], how) if same else Column("ignore", note=_ambiguous())
    return _date_column(found[how], how)


def _date_as(values: pd.Series, name: str, kind: str) -> Column:
    """The column of these public values as a date, of any format or of one."""
    tried = {how: as_moment(values, how) for how in FORMATS if kind in ("date", how)}
    how = max(tried, key=lambda one: np.isfinite(tried[one]).sum())  # the first of those that read most
    read = np.isfinite(tried[how])
    if read.mean() > 0.5:
        return _lenient(_date_column(tried[how][read], how), ~read)
    unread = np.where(np.all([np.isnan(found) for found in tried.values()], axis=0), np.nan, 0.0)
    _check_all(unread, as_text(values), name, "date" if kind == "date" else f"date as {kind}")
    raise InputError(
        f"the dates in column {name!r} of the public table have several formats; write them alike"
    )


def _date_column(moments: Floats, how: Format) -> Column:
    parts = _parts_of(moments, how)
    if not parts or (how == "time" and len(np.unique(moments)) == 1):
        return Column("ignore", note="constant in the public table; declare its bounds, if it matters")
    limits = None if how == "time" else (float(moments.min()), float(moments.max()))
    return Column("date", limits, parts=parts, format=how)


def _parts_of(seconds: Floats, how: Format) -> tuple[Part, ...]:
    """The date parts worth using: those in which the public dates differ."""
    if how == "time":
        return ("hour",)
    limits = (float(seconds.min()), float(seconds.max()))
    varies = {
        "position": limits[0] < limits[1],
        "year": 2 <= len(spanned_years(limits)) <= MOST_YEARS,
        "month": len(np.unique(months(seconds) % 12)) > 1,
        "weekday": len(np.unique(weekdays(seconds))) > 1,
        "hour": len(np.unique(seconds % DAY)) > 1,
    }
    return tuple(part for part in PARTS if varies[part])


def _dotted(values: pd.Series) -> bool:
    return all("." in text for text in as_text(values) if text is not None)


def _ambiguous() -> str:
    return "dates that may be day/month or month/day; say which: TYPE=day/month/year"


def _refuse(values: pd.Series, moments: Floats, name: str, rows: Array) -> None:
    """As for a word among numbers: more likely a slip than a category."""
    wrong = np.isnan(moments)
    if wrong.mean() < 0.5:
        raise _Slip(name, "date", as_text(values)[wrong], rows[wrong])


# ---------------------------------------------------------------------------------------------------
# codes


def _recognize_code(texts: Array) -> Column | None:
    """The column of these texts, none of them missing; None if they are not codes."""
    lengths = {len(text) for text in texts}
    digits = max(lengths)
    if len(lengths) > 1 or not _SHORTEST <= digits <= MOST_DIGITS:
        return None
    if not all(text.isascii() and text.isdecimal() for text in texts) or all(
        text[0] != "0" for text in texts
    ):
        return None
    if digits >= _LONG and len(texts) >= _FEWEST and len(set(texts)) > 0.9 * len(texts):
        note = "looks like an identifier; to use its first digits: TYPE=code"
        return Column("ignore", note=note)
    return _code_column(texts)


def _code_column(texts: Array) -> Column:
    """The longest prefix that leaves enough public rows per value; at least one digit."""
    digits = min(max(len(text) for text in texts), MOST_DIGITS)
    for prefix in range(digits, 0, -1):
        found = Counter(first_digits(text, digits=digits, prefix=prefix) or "" for text in texts)
        if prefix == 1 or len(found) <= min(_MOST_CATEGORIES, len(texts) / _ROWS_PER_CODE):
            break
    kept = sorted(name for name, _ in found.most_common(_MOST_CATEGORIES))
    return Column("code", categories=tuple(kept), digits=digits, prefix=prefix)
