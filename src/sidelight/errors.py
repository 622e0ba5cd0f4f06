"""The errors and warnings of sidelight.

    SidelightError
    ├── AssumptionError         a mathematical precondition is false (smoothness, norm bound, convexity)
    ├── PrivacyConditionError   a condition of an accounting theorem is false
    ├── BudgetExceeded          a step or a run would exceed the budget
    ├── UnboundedSensitivity    no bound on norms, labels or weights was declared or learned publicly
    ├── RelationError           two relations were mixed, or a method does not support the one requested
    ├── InputError              bad input: shapes, values, classes, files, options
    │   └── DatasetMismatch     the records are not those that a dataset of a ledger is bound to
    ├── LedgerError             a ledger cannot be opened, written or trusted
    │   ├── LedgerBusy          another process holds it for longer than the time-out
    │   └── LedgerDamaged       its contents are not what was written
    ├── RankLost                another process of a distributed run has ended, or does not answer
    └── MissingDependency       an optional package is not installed

    NotPrivateWarning           a result carries no guarantee: by design, by a fixed seed, or around a fit
    PrivacyWarning              the guarantee holds, but is weaker than it looks
    RecordsWarning              many private records could not be used, as far as a noisy count shows

A message says what was expected, what came, and what to do. It never quotes a private value.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from numbers import Integral, Real
from types import FrameType
from typing import TypeVar

__all__ = [
    "AssumptionError",
    "BudgetExceeded",
    "DatasetMismatch",
    "InputError",
    "LedgerBusy",
    "LedgerDamaged",
    "LedgerError",
    "MissingDependency",
    "NotPrivateWarning",
    "PrivacyConditionError",
    "PrivacyWarning",
    "RankLost",
    "RecordsWarning",
    "RelationError",
    "SidelightError",
    "UnboundedSensitivity",
]

S = TypeVar("S")
T = TypeVar("T")

# Raised by the user, and passed on. All else that a private value or record raises is silent: Rust code that
# panics, asyncio, generators and others raise exceptions that are no Exception.
INTERRUPTS = (KeyboardInterrupt,)


def guarded(read: Callable[[S], T], value: S, otherwise: T) -> T:
    """read(value), or `otherwise` if that raises; warnings of the value's own code are suppressed."""
    with warnings.catch_warnings(action="ignore"):
        try:
            return read(value)
        except INTERRUPTS:
            raise
        except BaseException:
            return otherwise


def first_line(error: BaseException) -> str:
    """The type of an error and its first line. For records that are not private: others are not quoted."""
    said = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {said}"


class SidelightError(Exception):
    """Base of every error that sidelight raises on purpose."""


class AssumptionError(SidelightError, ValueError):
    """A mathematical precondition is false (smoothness, norm bound, convexity)."""


class PrivacyConditionError(SidelightError, ValueError):
    """A condition of an accounting theorem is false."""


class BudgetExceeded(SidelightError):
    """A step or a run would exceed the budget; `left` is the largest ε that would not, if it is known."""

    left: float | None = None


class UnboundedSensitivity(SidelightError, ValueError):
    """No bound on norms, labels or weights was declared or learned from public data."""


class RelationError(SidelightError, ValueError):
    """Two neighboring relations were mixed, or a method does not support the one requested."""


class InputError(SidelightError, ValueError):
    """Bad input: shapes, values, classes, files, options."""


class DatasetMismatch(InputError):
    """The records are not those that a dataset of a ledger is bound to."""


class LedgerError(SidelightError):
    """A ledger cannot be opened, written or trusted."""


class LedgerBusy(LedgerError):
    """Another process holds the ledger for longer than the time-out."""


class LedgerDamaged(LedgerError):
    """The contents of a ledger are not what was written."""


class RankLost(SidelightError, RuntimeError):
    """Another process of a distributed run has ended, failed, or does not answer."""


class MissingDependency(SidelightError, ImportError):
    """An optional package is not installed."""


class NotPrivateWarning(UserWarning):
    """A result carries no guarantee: by design, by a fixed seed, or something that is done around a fit."""


class RecordsWarning(UserWarning):
    """Many private records could not be used, or values did not fit, as far as a noisy count shows."""


class PrivacyWarning(UserWarning):
    """The guarantee holds, but is weaker than it looks."""


# The first frame that is none of these is the user's.
_NOT_THE_USER = ("sidelight.", "sklearn.", "imblearn.", "joblib.")


def users_line() -> int:
    """The `stacklevel` with which a warning points at the user's own line."""
    frame: FrameType | None = sys._getframe(1)
    depth = 1
    while frame is not None:
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(_NOT_THE_USER):
            return depth
        frame, depth = frame.f_back, depth + 1
    return 1


def warn_charged(text: str, category: type[Warning]) -> None:
    """Warn after a charge. A filter that turns warnings into errors does not end the run: the text is shown.

    An exception here would lose a result that was charged.
    """
    line = users_line()
    try:
        warnings.warn(text, category, stacklevel=line)
    except Warning:
        with warnings.catch_warnings(action="always"):
            warnings.warn(text, category, stacklevel=line)


# ---------------------------------------------------------------------------------------------------
# checks of single arguments, each with its one line of refusal, and names within such a line


def positive(name: str, value: object, *, optional: bool = False) -> None:
    """Raise InputError unless the value is a number above zero."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise InputError(f"{name} must be a positive number, not {value!r}")


def whole(name: str, value: object, *, least: int = 1, optional: bool = False) -> None:
    """Raise InputError unless the value is a whole number, not below `least`."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")


def fraction(name: str, value: object, *, optional: bool = False) -> None:
    """Raise InputError unless the value is a number between 0 and 1."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InputError(f"{name} must be between 0 and 1, both excluded, not {value!r}")


def not_negative(name: str, value: object) -> None:
    """Raise InputError unless the value is a finite number, zero or above."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise InputError(f"{name} must be a number of at least 0, not {value!r}")


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Raise InputError unless the value is one of these words."""
    if value not in known:
        raise InputError(f"{name} must be {' or '.join(map(repr, known))}, not {value!r}")


def kind_of(name: str, value: object, kind: type) -> None:
    """Raise InputError unless the value is of this type, or None."""
    if value is not None and not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def callable_or_none(name: str, value: object) -> None:
    """Raise InputError unless the value can be called, or is None."""
    if value is not None and not callable(value):
        raise InputError(f"{name} must be a function, not {type(value).__name__}")


IN_COMMAND: ContextVar[bool] = ContextVar("IN_COMMAND", default=False)


def spelled(python: str, command: str) -> str:
    """The spelling that fits the caller: an argument in Python, or an option of the command."""
    return command if IN_COMMAND.get() else python


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    few = ", ".join(_few_signs(name) for name in names[:most])
    return few if len(names) <= most else f"{few} and {len(names) - most} more"


_LONGEST_NAME = 60  # signs of a name in a message


def _few_signs(name: str) -> str:
    return repr(name) if len(name) <= _LONGEST_NAME else f"{repr(name[:_LONGEST_NAME])[:-1]}…'"


def nearest(name: str, known: Iterable[str]) -> str:
    """ "Did you mean …?" after a space, or nothing if no known name is near."""
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
