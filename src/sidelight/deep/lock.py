"""One run at a time in a folder of checkpoints.

Two processes that go on from one checkpoint release its steps twice, and nothing but a ledger would tell
them apart. So a run holds a lock on its folder from before the checkpoint is read until it ends. The lock is
the operating system's: whatever ends the process, kill -9 too, gives it back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning, users_line

__all__ = ["sole_run"]

_NAME = "lock"
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)


@contextlib.contextmanager
def sole_run(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold the lock of this folder; refuse if another run has it. None: a run without checkpoints."""
    if folder is None:
        yield
        return
    place = Path(folder)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(place / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InputError(f"{place / _NAME} cannot be written: {error.strerror or error}") from None
    try:
        _take(descriptor, place)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno in _TAKEN:
            raise PrivacyConditionError(
                f"another run is using the checkpoints in {folder}. Two that go on from one checkpoint would "
                "release its steps twice: wait until it ends, or take another folder"
            ) from None
        warnings.warn(
            f"{folder} cannot be locked ({error.strerror or error}): see to it that no other run uses it",
            PrivacyWarning,
            stacklevel=users_line(),
        )


def _lock(descriptor: int) -> None:
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
