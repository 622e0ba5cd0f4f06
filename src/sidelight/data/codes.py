"""Codes of a fixed number of digits, such as postcodes: names that are alike in their first digits.

The model sees as many of the first digits as public rows can tell apart. A code that a file stores as a
number has lost the zeros in front, and gets them back.
"""

from __future__ import annotations

from collections import Counter

from sidelight.arrays import Array
from sidelight.data.declared import MOST_DIGITS
from sidelight.data.schema import Column

__all__ = ["code_column", "first_digits", "recognise_code"]

_SHORTEST, _LONG = 3, 8  # digits; two are more likely a month or an hour
_MOST_CATEGORIES = 100
_ROWS = 5  # public rows for a category, on average
_FEWEST = 20  # codes, to call them identifiers


def first_digits(text: str | None, *, digits: int, prefix: int) -> str | None:
    """What counts of a code; None if it is missing."""
    if text is None:
        return None
    return (text.zfill(digits) if text.isdecimal() else text)[:prefix]


def recognise_code(texts: Array) -> Column | None:
    """The column of these texts, none of which is missing; None if they are no codes."""
    lengths = {len(text) for text in texts}
    digits = max(lengths)
    if len(lengths) > 1 or not _SHORTEST <= digits <= MOST_DIGITS:
        return None
    if not all(text.isascii() and text.isdecimal() for text in texts) or all(
        text[0] != "0" for text in texts
    ):
        return None
    if digits >= _LONG and len(texts) >= _FEWEST and len(set(texts)) > 0.9 * len(texts):
        return Column("ignore", note="looks like an identifier; to use its first digits, --type NAME=code")
    return code_column(texts)


def code_column(texts: Array) -> Column:
    """As many first digits as leave public rows enough for each, and one at least."""
    digits = min(max(len(text) for text in texts), MOST_DIGITS)
    for prefix in range(digits, 0, -1):
        found = Counter(first_digits(text, digits=digits, prefix=prefix) or "" for text in texts)
        if prefix == 1 or len(found) <= min(_MOST_CATEGORIES, len(texts) / _ROWS):
            break
    kept = sorted(name for name, _ in found.most_common(_MOST_CATEGORIES))
    return Column("code", categories=tuple(kept), digits=digits, prefix=prefix)
