"""Things that somebody may find in a private record."""

import datetime
import enum
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

SECRET = "Wallenstein"


class Color(enum.Enum):
    RED = 1


# Nothing of this is a number, or a label of "no" and "yes".
NOTHING: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("-inf"),
    "10^5000": lambda: 10**5000,
    "decimal NaN": lambda: Decimal("NaN"),
    "signalling NaN": lambda: Decimal("sNaN"),
    "complex": lambda: 1 + 2j,
    "numpy complex": lambda: np.complex128(1j),
    "long complex": lambda: np.clongdouble(np.longdouble("1e4000")),
    "text": lambda: SECRET,
    "surrogate": lambda: "\ud800",
    "NUL": lambda: "\0",
    "digits": lambda: "9" * 5000 + "_",
    "bytes": lambda: b"\xff\xfe",
    "list": lambda: [1, [2]],
    "deep list": lambda: _nested(2000),
    "tuple with a list": lambda: (1, [2]),
    "dict": lambda: {"a": [1]},
    "array": lambda: np.arange(3.0),
    "empty array": lambda: np.zeros((0, 2)),
    "date": lambda: datetime.date(1634, 2, 25),
    "NaT": lambda: np.datetime64("NaT"),
    "datetime64": lambda: np.datetime64("1634-02-25"),
    "timedelta64": lambda: np.timedelta64(3, "s"),
    "void": lambda: np.void(b"abc"),
    "uuid": lambda: uuid.UUID(int=3),
    "enum": lambda: Color.RED,
    "type": lambda: int,
    "generator": lambda: iter(()),
    "ellipsis": lambda: ...,
}
# Numbers, if odd ones.
ODD: dict[str, Callable[[], Any]] = {
    "huge": lambda: 1e308,
    "subnormal": lambda: -5e-324,
    "long double": lambda: np.longdouble("1e4000"),
    "half": lambda: np.float16(0.1),
    "fraction": lambda: Fraction(1, 3),
    "decimal": lambda: Decimal("1e999999"),
    "large int": lambda: 2**63,
    "bool": lambda: np.bool_(True),
    "text number": lambda: " 0.25 ",
    "int8": lambda: np.int8(-128),
}


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def pandas_values() -> dict[str, Callable[[], Any]]:
    import pandas as pd

    return {
        "NA": lambda: pd.NA,
        "pandas NaT": lambda: pd.NaT,
        "late timestamp": lambda: pd.Timestamp("2262-04-11").as_unit("s") + pd.Timedelta(days=10**6),
        "period": lambda: pd.Period("1634-02"),
        "interval": lambda: pd.Interval(0, 1),
        "frame": lambda: pd.DataFrame({"a": [1]}),
        "series": lambda: pd.Series([1.0]),
    }
