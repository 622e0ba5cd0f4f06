"""A folder that appears whole or not at all: written beside its place, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sidelight.errors import InputError

__all__ = ["check_place", "new_folder"]


def check_place(folder: str | os.PathLike[str], *, sign: str, overwrite: bool = False) -> None:
    """Refuse a place that could not be written to, before anything is charged.

    Args:
        sign: the file by which a folder is known to be one of ours, which alone may be replaced.
        overwrite: whether to replace it.
    """
    place = Path(folder)
    if place.is_symlink() or place.exists():
        _check_existing(place, sign, overwrite)
    elif not place.absolute().parent.is_dir():
        raise InputError(f"{place} cannot be written: {place.absolute().parent} is not a folder")
    try:
        with tempfile.TemporaryDirectory(dir=place.absolute().parent, prefix=f".{place.name}."):
            pass
    except OSError as error:
        raise InputError(f"{place} cannot be written: {error.strerror or 'output failed'}") from None


def _check_existing(place: Path, sign: str, overwrite: bool) -> None:
    if not place.is_dir():
        raise InputError(f"{place} is a file; expected the name of a new folder")
    try:
        inside = os.listdir(place)
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror or 'input failed'}") from None
    if place.resolve() == Path.cwd() or os.path.ismount(place):
        raise InputError(f"{place} cannot be replaced; expected the name of a new folder")
    if inside and sign not in inside:
        raise InputError(f"{place} exists and holds something else than a model; choose another name")
    if inside and not overwrite:
        raise InputError(f"{place} holds a model already; choose another name, or --overwrite")


@contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write into. It takes its place at the end if all went well, and is gone otherwise."""
    place = Path(folder).absolute()
    new = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    old = None
    try:
        yield new
        os.chmod(new, 0o755)  # mkdtemp's 0700 is for secrets
        if place.exists():
            old = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}.old."))
            os.rename(place, old / "was")
        os.rename(new, place)
    finally:
        if old is not None:
            if (old / "was").exists() and not place.exists():
                os.rename(old / "was", place)
            shutil.rmtree(old, ignore_errors=True)
        if new.exists():
            shutil.rmtree(new, ignore_errors=True)
