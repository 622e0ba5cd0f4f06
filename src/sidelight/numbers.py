"""Numbers as a person reads them, rounded to the side that promises less."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def up(value: float, digits: int = 4) -> str:
    """A bound on what was lost, never printed smaller than it is."""
    return pretty(rounded(value, digits, ROUND_CEILING), digits)


def down(value: float, digits: int = 4) -> str:
    """What is left or proven, never printed larger than it is."""
    return pretty(rounded(value, digits, ROUND_FLOOR), digits)


def plain_up(value: float, digits: int = 5) -> str:
    """The same as Python writes it (1e-05)."""
    return f"{rounded(value, digits, ROUND_CEILING):.{digits}g}"


def plain_down(value: float, digits: int = 5) -> str:
    """The same as Python writes it (1e-05)."""
    return f"{rounded(value, digits, ROUND_FLOOR):.{digits}g}"


def rounded(value: float, digits: int, way: str) -> float:
    """To so many digits, by ROUND_CEILING or ROUND_FLOOR; a number typed in as few stays as it is."""
    value = float(value)  # NumPy's own floats print differently
    if value == 0 or not math.isfinite(value):
        return value
    if len(Decimal(repr(value)).normalize().as_tuple().digits) <= digits:
        return value
    exact = Decimal(value)  # the binary value itself, so that a printed 1.83 is never below it
    last = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return float(exact.quantize(last, rounding=way))


def pretty(value: object, digits: int = 4) -> str:
    """A number in as few signs as it needs; the text itself for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return count(value)
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "not a number")
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return scientific(value, digits)
    if value == int(value):
        return count(int(value))
    text = f"{value:.{digits}g}"
    return (text if "e" not in text else count(round(value))).replace("-", "−")


def scientific(value: float, digits: int = 3) -> str:
    """1e-05 as 10⁻⁵."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    mantissa = mantissa.replace("-", "−")
    return {"1": power, "−1": f"−{power}"}.get(mantissa, f"{mantissa} × {power}")


def count(value: int) -> str:
    """With a comma between thousands, here and wherever records, rows or steps are counted."""
    if abs(value) >= 10**15:
        return scientific(float(value)) if abs(value) < 10**300 else "more than 10³⁰⁰"
    return f"{value:,}".replace("-", "−")


def percent(share: float, digits: int = 3) -> str:
    """A share in percent."""
    return f"{_few(share * 100, digits)}\u202f%"


def _few(value: float, digits: int) -> str:
    """Without powers of ten, where a percentage is not absurdly small."""
    if value != 0 and 1e-6 <= abs(value) < 1e-3:
        return f"{value:.{digits - 1 - math.floor(math.log10(abs(value)))}f}".rstrip("0").rstrip(".")
    return pretty(value, digits)


def percent_up(share: float) -> str:
    """A bound on a probability in percent, never printed smaller than it is."""
    share = min(max(float(share), 0.0), 1.0)
    hundred = Decimal(repr(share)) * 100
    if share in (0.0, 1.0):
        places = 0
    elif hundred > Decimal("99.9"):  # the digits that say how far it is from certainty
        places = min(_MOST_PLACES, -(100 - hundred).adjusted())
    else:
        places = 1 if hundred >= 10 else 2 - hundred.adjusted()
    rounded = hundred.quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING)
    text = f"{rounded:f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}\u202f%"


_MOST_PLACES = 4  # of a percentage that is nearly 100


def right_in(share: float) -> str:
    """How often an attacker is right; a bound that rounds to 100 % is none."""
    if percent_up(share) == percent_up(1.0):
        return "may guess correctly every time"
    return f"guesses correctly at most {percent_up(share)} of the time, on average over results"
