"""Which process this is. A fork holds the same memory as its parent, and is another process all the same.

What may exist once only (a stream of noise, a count of what was released) remembers where it was made. A
process number alone can be used again after its process has ended, so forks are counted too.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["here", "renew_after_fork"]


class Renewable(Protocol):
    """What must not be shared with a fork."""

    def renew(self) -> None:
        """Replace what parent and child would share."""


_forks = 0
_to_renew: weakref.WeakSet[Renewable] = weakref.WeakSet()


def here() -> tuple[int, int]:
    """Equal in one process, and different in a fork of it."""
    return os.getpid(), _forks


def renew_after_fork(thing: Renewable) -> None:
    """Call `thing.renew()` in every child that is forked while it exists."""
    _to_renew.add(thing)


def _in_child() -> None:
    global _forks
    _forks += 1
    for thing in list(_to_renew):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
