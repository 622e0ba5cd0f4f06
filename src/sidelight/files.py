"""A file or a folder that is there whole, or not at all: written beside its final path, then renamed.

    with whole_file(path) as new:        `new` is a path with the suffix of `path`; write it as you like
        save(tensors, new)

Files are synced before. Everything that sidelight writes goes through here, but for ledgers (SQLite, which
has its own journal).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sidelight.errors import InputError, spelled

MODEL = "model.json"  # by this file a folder is known to hold a model


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


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file. A pipe would block and a device would not end: those raise OSError, too."""
    file = Path(path)
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "it is not a file")
    return file.read_bytes()


def missing(path: str | os.PathLike[str]) -> str:
    """A path that leads nowhere, and why: nothing is there, or a link to nothing, or one in a circle."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return f"{path} is a link that leads back to itself"
        if error.errno == errno.ENOENT and os.path.islink(path):
            return f"{path} is a link to {os.readlink(path)}, which does not exist"
    return f"{path} does not exist"


def write_bytes(path: str | os.PathLike[str], data: bytes, *, secret: bool = False) -> None:
    """Write a whole file."""
    with whole_file(path, secret=secret) as new:
        new.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file."""
    write_bytes(path, as_bytes(text))


def as_bytes(text: str) -> bytes:
    """UTF-8; a lone surrogate, as in a badly decoded column name, becomes JSON's own escape of it."""
    return text.encode("utf-8", errors="backslashreplace")


def sync_folder(folder: Path) -> None:
    """Make a file's new name survive a crash of the machine."""
    with contextlib.suppress(OSError):  # not every system can sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ---------------------------------------------------------------------------------------------------
# folders


def check_output_folder(folder: str | os.PathLike[str], *, sign: str, overwrite: bool = False) -> None:
    """Refuse a folder that could not be written, before anything is charged.

    Args:
        sign: the file by which a folder is known to be one of ours, which alone may be replaced.
        overwrite: whether to replace it.
    """
    path = Path(folder)
    sweep(path)
    if path.is_symlink() or path.exists():
        _check_existing(path, sign, overwrite)
    elif not path.absolute().parent.is_dir():
        raise InputError(f"{path} cannot be written: {path.absolute().parent} is not a folder")
    try:
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=_mark(path)):
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
        raise InputError(f"{path} exists and holds something other than a model; choose another name")
    if inside and not overwrite:
        how = spelled("overwrite=True", "--overwrite")
        raise InputError(f"{path} holds a model already; choose another name, or overwrite it ({how})")


@contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write into. It is renamed to its final path if all went well, and removed otherwise.

    It and its files have the modes of a user's own files (umask), but nobody else may
    write them.
    """
    path = Path(folder).absolute()
    sweep(path)
    new = path.parent / f"{_mark(path)}{secrets.token_hex(4)}"
    os.mkdir(new, 0o775)
    old = None
    try:
        yield new
        for file in new.iterdir():  # some libraries write for the owner alone
            os.chmod(file, new.stat().st_mode & 0o664)
        if path.exists():
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=_mark(path)))
            os.rename(path, old / "was")
        os.rename(new, path)
    finally:
        if old is not None:
            if (old / "was").exists() and not path.exists():
                os.rename(old / "was", path)
            shutil.rmtree(old, ignore_errors=True)
        if new.exists():
            shutil.rmtree(new, ignore_errors=True)


@contextmanager
def private_folder(name: str) -> Iterator[Path]:
    """A folder for temporary files that its owner alone can open, removed at the end.

    One that a killed process left behind is removed by the next that asks for the same name.
    """
    path = Path(tempfile.gettempdir()) / name
    sweep(path)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=_mark(path)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: str | os.PathLike[str]) -> None:
    """Remove what a killed writer of this folder left beside it, and put back what it was about to replace.

    A folder that is being written has the number of its process in its name; one whose process lives, or
    lived on another machine, is left alone.
    """
    path = Path(folder).absolute()
    mark = re.compile(re.escape(f".{path.name}.{_machine()}-") + r"(\d{1,10})-")
    with contextlib.suppress(OSError):
        for left in path.parent.iterdir():
            found = mark.match(left.name)
            if found is None or left.is_symlink() or not left.is_dir() or _lives(int(found[1])):
                continue
            if (left / "was").is_dir() and not path.exists():
                os.rename(left / "was", path)
            shutil.rmtree(left, ignore_errors=True)


def _mark(path: Path) -> str:
    """How the names of folders begin that this process writes beside a path."""
    return f".{path.name}.{_machine()}-{os.getpid()}-"


def _machine() -> str:
    """Where the numbers of processes mean the same: containers may have one name and numbers of their own."""
    numbers = ""
    with contextlib.suppress(OSError):
        numbers = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{platform.node()} {numbers}".encode()).hexdigest()[:8]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def digest(*parts: bytes) -> str:
    """One hash of several contents, each with its length, so that none runs into the next."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big"))
        whole.update(part)
    return "sha256:" + whole.hexdigest()
