"""A file that is there whole, or not at all: written beside its final path, synced, then renamed.

    with whole_file(path) as new:        `new` is a path with the suffix of `path`; write it as you like
        save(tensors, new)

Everything that sidelight writes goes through here, but for ledgers (SQLite, which has its own journal).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from sidelight.errors import InputError

__all__ = ["sync_folder", "whole_file", "write_bytes", "write_text"]


@contextlib.contextmanager
def whole_file(
    path: str | os.PathLike[str], *, secret: bool = False, parents: bool = False
) -> Iterator[Path]:
    """A path to write to. It replaces `path` at the end if all went well, and is removed otherwise.

    Args:
        secret: for its owner alone, at every moment; and what a killed writer left behind is removed.
        parents: make the folder if it is not there.
    """
    target = Path(path)
    new = target.parent / f".{target.name}.{secrets.token_hex(4)}.part{target.suffix}"
    try:
        if parents:
            target.parent.mkdir(parents=True, exist_ok=True)
        if secret:
            for left in target.parent.glob(f".{target.name}.*.part{target.suffix}"):
                left.unlink(missing_ok=True)
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666))
        yield new
        with new.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(new, target)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
    sync_folder(target.parent)


def write_bytes(path: str | os.PathLike[str], data: bytes, *, secret: bool = False) -> None:
    """Write a whole file."""
    with whole_file(path, secret=secret) as new:
        new.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file.

    A lone surrogate, as in a badly decoded column name, is written as JSON's own escape of it.
    """
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def sync_folder(folder: Path) -> None:
    """Make a file's new name survive a crash of the machine."""
    with contextlib.suppress(OSError):  # not every system can sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
