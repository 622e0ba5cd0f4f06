"""A text file that is there whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sidelight.errors import InputError

__all__ = ["write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write into a temporary file beside the place, which then takes its name.

    A lone surrogate, as in a badly decoded column name, is written as JSON's own escape of it.
    """
    place = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's 0600 is for secrets
        os.replace(temporary, place)
        temporary = None
    except OSError as error:
        raise InputError(f"{place} cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
