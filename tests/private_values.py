"""What only tests may look at: the value of a private sum before noise is added."""

from typing import Any

from sidelight.privacy.release import BoundedSum


def value_of(total: BoundedSum) -> Any:
    """The array, tensor or number that `release` would add noise to."""
    return total._value
