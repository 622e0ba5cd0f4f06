"""A folder that appears whole or not at all: written beside its final path, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sidelight.errors import InputError

__all__ = ["check_output_folder", "new_folder"]


def check_output_folder(folder: str | os.PathLike[str], *, sign: str, overwrite: bool = False) -> None:
    """Refuse a folder that could not be written, before anything is charged.

    Args:
        sign: the file by which a folder is known to be one of ours, which alone may be replaced.
        overwrite: whether to replace it.
    """
    path = Path(folder)
    if path.is_symlink() or path.exists():
        _check_existing(path, sign, overwrite)
    elif not path.absolute().parent.is_dir():
        raise InputError(f"{path} cannot be written: {path.absolute().parent} is not a folder")
    try:
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or 'output failed'}") from None


def _check_existing(path: Path, sign: str, overwrite: bool) -> None:
    if not path.is_dir():
        raise InputError(f"{path} is a file; expected the name of a new folder")
    try:
        inside = os.listdir(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'input failed'}") from None
    if path.resolve() == Path.cwd() or os.path.ismount(path):
        raise InputError(f"{path} cannot be replaced; expected the name of a new folder")
    if inside and sign not in inside:
        raise InputError(f"{path} exists and holds something else than a model; choose another name")
    if inside and not overwrite:
        raise InputError(f"{path} holds a model already; choose another name, or --overwrite")


@contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write into. It is renamed to its final path if all went well, and removed otherwise."""
    path = Path(folder).absolute()
    new = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    old = None
    try:
        yield new
        os.chmod(new, 0o755)  # mkdtemp's 0700 is for secrets
        if path.exists():
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
            os.rename(path, old / "was")
        os.rename(new, path)
    finally:
        if old is not None:
            if (old / "was").exists() and not path.exists():
                os.rename(old / "was", path)
            shutil.rmtree(old, ignore_errors=True)
        if new.exists():
            shutil.rmtree(new, ignore_errors=True)
