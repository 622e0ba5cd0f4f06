"""Rows of persons, and whose each row is.

The unit of privacy is then all rows of a person, who is named by a column of the private table. What a person
contributes to a sum depends on that person's rows alone, so the guarantee is for adding, removing or
replacing all of them. The number of persons is a public constant, as the number of records is elsewhere; the
number of rows is in no output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidelight.arrays import Array, Floats, Mask, Matrix, TableLike
from sidelight.data.values import is_missing, number_of
from sidelight.errors import InputError, PrivacyConditionError, guarded
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise

if TYPE_CHECKING:
    pass
from sidelight.data.rows import Contents, PrivateRows, PublicRows, joined_rows, tally

_NOBODY = -1  # of a row without a name


@dataclass(frozen=True, eq=False)
class Persons:
    """Whose each row is: numbers from 0 to count − 1, and −1 for a row that names nobody."""

    codes: NDArray[np.intp]
    count: int
    unit: str = "person"  # the column that names them, for statements

    @property
    def assumption(self) -> str:
        """What a statement has to say of the names."""
        return f"all rows of a person have one name in {self.unit!r}, and no other person's rows do"

    def check(self, rows: int) -> None:
        """Raise InputError unless there is a name for each row; how many there are is private."""
        if len(self.codes) != rows:
            raise InputError("persons must be a vector with one name for each row of X")


class PersonContents(NamedTuple):
    """What an oracle sees. Person k has the rows order[offsets[k]:offsets[k + 1]]."""

    rows: Contents
    order: NDArray[np.intp]
    offsets: NDArray[np.intp]


_MOST_EXACT = 2.0**53  # from here on, several integers are one float
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")  # a whole number, written as one with decimals


class Names:
    """Numbers for the names of persons, in the order in which they come.

    Equal names are one person: the same text, or a number and its text (7, 7.0, "7" and "7.0": in a file that
    lacks one name, pandas writes all others so; a float of 2⁵³ or more may have been several integers, and is
    nobody's). Other texts are compared as they are, since two persons
    taken for one would be more than the guarantee covers. A missing name, or one that cannot be read, is
    nobody's: its row is ignored. Never an error, as a name is private too.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def code(self, name: object) -> int:
        text = guarded(_text, name, None)
        return _NOBODY if text is None else self._known.setdefault(text, len(self._known))


_NO_NAMES = "persons must be a vector of names, one for each row"


def private_names(names: object) -> Iterable[object]:
    """A column of names as the user has it: an array of integers as it is, anything else value by value."""
    if isinstance(names, np.ndarray):
        if names.ndim != 1:
            raise InputError(_NO_NAMES)
        whole = names.dtype.kind in "iu" and not isinstance(names, np.ma.MaskedArray)
        return names if whole else names.tolist()
    values = getattr(names, "tolist", None) or getattr(names, "to_list", None)
    found = values() if values is not None else names
    if not isinstance(found, Iterable) or isinstance(found, str | bytes):
        raise InputError(_NO_NAMES)
    return list(found)


def persons_of(names: Iterable[object], *, unit: str = "person") -> Persons:
    """Whose each row is, by names of any kind."""
    if isinstance(names, np.ndarray) and names.ndim == 1 and names.dtype.kind in "iu":
        found, codes = np.unique(names, return_inverse=True)
        return Persons(codes.astype(np.intp, copy=False), len(found), unit)
    known = Names()
    return Persons(np.array([known.code(name) for name in names], dtype=np.intp), len(known), unit)


def _text(name: object) -> str | None:
    if isinstance(name, bytes):  # as files have texts
        name = bytes.decode(name, "utf-8", "surrogateescape")
    if is_missing(name):
        return None
    if isinstance(name, str):
        text = str.__str__(name)
        whole = _WHOLE.fullmatch(text)
        return text if whole is None else whole[1]
    if isinstance(name, Decimal) and name == name.to_integral_value():
        return str(int(name))
    if isinstance(name, complex | np.complexfloating):
        name = number_of(name)
    if isinstance(name, float | np.floating):
        return _text_of_float(float(name))
    kind = type(name)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return None  # its text is its place in memory: equal names would be many persons
    return str.__str__(str(name))


def _text_of_float(name: float) -> str | None:
    """None for one that may have been several whole numbers before it was a float."""
    if math.isnan(name) or abs(name) >= _MOST_EXACT:
        return None
    return str(int(name)) if name.is_integer() else str(name)


class PersonRows(PrivateRows):
    """Bounded rows of persons; `n` counts persons.

    Args:
        X, y, max_norm, admits, misfits: as of `PrivateRows`, one row of X for each row of the table.
        persons: whose each row is.
        max_rows: of a person's rows only the first so many are used; None uses all.
    """

    __slots__ = ("_offsets", "_order", "unit")

    def __init__(
        self,
        X: TableLike,
        y: ArrayLike,
        *,
        persons: Persons,
        max_norm: float,
        admits: Callable[[Array], Mask] | None = None,
        max_rows: int | None = None,
        misfits: Mask | None = None,
    ) -> None:
        super().__init__(X, y, max_norm=max_norm, admits=admits)
        persons.check(self.n)
        if max_rows is not None and (int(max_rows) != max_rows or max_rows < 1):
            raise InputError(f"max_rows must be an integer of at least 1, not {max_rows!r}")
        self._order, self._offsets = grouped(persons, max_rows)
        self._tally = tally(self._contents.null, misfits, (self._order, self._offsets))
        self.n, self.unit = persons.count, persons.unit

    def compute(
        self, fn: Callable[[Matrix, Floats], Floats], *, sensitivity: float, relation: Relation
    ) -> NoReturn:
        raise PrivacyConditionError(
            "the proof of this method is for one row per person; take a gradient method"
        )

    def mapped(self, matrix: Array, *, max_norm: float) -> NoReturn:
        raise PrivacyConditionError("this method maps rows without knowing their persons")

    def joined(self, public: PublicRows) -> PersonRows:
        """These persons and, each as a person of its own, the public records; all private from here on."""
        X, y = joined_rows(self._contents, public)
        rows = len(self._contents.y)
        codes = np.full(len(y), _NOBODY, dtype=np.intp)
        codes[self._order] = np.repeat(np.arange(self.n), np.diff(self._offsets))
        codes[rows:] = np.arange(self.n, self.n + public.n)
        persons = Persons(codes, self.n + public.n, self.unit)
        return PersonRows(X, y, persons=persons, max_norm=self.max_norm)

    def bind(self, noise: Noise) -> None:
        super().bind(noise)
        noise.bind("persons", self._order, self._offsets)

    def __repr__(self) -> str:
        return f"PersonRows(n={self.n}, p={self.p})"


def person_contents(rows: PersonRows) -> PersonContents:
    """The rows themselves, and whose they are. For oracles, which answer with a BoundedSum."""
    return PersonContents(rows._contents, rows._order, rows._offsets)


def grouped(persons: Persons, max_rows: int | None = None) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows in the order of their persons, and where each person's begin; a person may have none left."""
    codes = persons.codes
    order = np.argsort(codes, kind="stable")
    order = order[np.searchsorted(codes[order], 0) :]
    owner = codes[order]
    if max_rows is not None and len(owner):
        first = np.searchsorted(owner, owner)  # where the rows of this row's person begin
        kept = np.arange(len(owner)) - first < max_rows
        order, owner = order[kept], owner[kept]
    offsets = np.searchsorted(owner, np.arange(persons.count + 1))
    return order, offsets.astype(np.intp)
