"""What most models of the list share: shapes of their records, their head and their norm."""

from tests.mistakes.registry import floats, integers
from torch import nn

CLASSES, VECTOR, IMAGE, TIMES, WORDS = (
    integers(3),
    floats(6),
    floats(3, 8, 8),
    floats(5, 4),
    integers(11, 5),
)


def head(width: int) -> nn.Linear:
    return nn.Linear(width, 3)


def norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(2, width)
