"""A dataset from the data folder, or from its public origin: found, downloaded, converted and read.

The folder is that of the environment variable SIDELIGHT_DATA, or else `sidelight` in the user's cache. What
is not there is downloaded with pooch, checked, converted and stored there, whole or not at all.

A .npz holds X (n × …) and y, or X_train, y_train, X_test, y_test. Labels are −1/+1 (0/1 is mapped to that),
0, 1, 2, … or numbers.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import sys
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.parsing import unpack_sheets
from experiments.datasets.sources import SOURCES, Origin, Source, Task
from sidelight.errors import InputError, MissingDependency, SidelightError
from sidelight.files import whole_file

__all__ = ["Dataset", "available", "folder", "load", "load_table"]

Array = NDArray[Any]

# What a damaged file makes its reader raise.
_DAMAGE = (
    OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    tarfile.TarError, TypeError, AttributeError, NotImplementedError, MemoryError,
)  # fmt: skip
# Some hosts refuse a library's own name; and a checksum is of the bytes as they are published.
_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; sidelight)", "Accept-Encoding": "identity"}
_SECONDS = 30


@dataclass(frozen=True, eq=False)
class Dataset:
    """One benchmark: original values, nothing scaled or shuffled. `X_test` is the publisher's test part."""

    name: str
    X: Array
    y: Array
    task: Task
    feature_names: tuple[str, ...] = ()
    X_test: Array | None = None
    y_test: Array | None = None


def folder() -> Path:
    """Where datasets are kept: $SIDELIGHT_DATA, or sidelight in the user's cache folder."""
    chosen = os.environ.get("SIDELIGHT_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sidelight"


def available(name: str) -> bool:
    """Whether this dataset is in the folder, so that nothing needs to be downloaded."""
    source = _source(name)
    return (folder() / source.file).exists() or _packed(source)


def load(name: str, *, download: bool = True) -> Dataset:
    """A dataset of arrays, by its name in `SOURCES`."""
    source = _source(name)
    if source.task == "table":
        raise InputError(f"{name} has columns of text; read it with load_table({name!r})")
    path = folder() / source.file
    if not path.exists() and _packed(source):
        return _dataset(name, source, _sheets(source))
    if not path.exists():
        _fetch(name, source, path, download)
    return _dataset(name, source, _arrays(path))


def load_table(name: str, *, download: bool = True) -> Any:
    """A table, by its name in `SOURCES`: a pandas frame with its original columns."""
    source = _source(name)
    if source.task != "table":
        raise InputError(f"{name} is an array of numbers; read it with load({name!r})")
    _needs_tables()
    path = folder() / source.file
    if not path.exists():
        _fetch(name, source, path, download)
    return _frame(path)


def _source(name: str) -> Source:
    source = SOURCES.get(name)
    if source is None:
        raise InputError(f"there is no dataset {name!r}; known: {', '.join(SOURCES)}")
    return source


def _packed(source: Source) -> bool:
    return bool(source.packed) and all((folder() / file).exists() for file in source.packed)


def _dataset(name: str, source: Source, parts: dict[str, Array]) -> Dataset:
    X, y = (parts[key] if key in parts else parts[f"{key}_train"] for key in ("X", "y"))
    X_test, y_test = parts.get("X_test"), parts.get("y_test")
    if (
        len(X) != len(y)
        or len(X) == 0
        or (X_test is not None and y_test is not None and len(X_test) != len(y_test))
    ):
        raise InputError(f"{name}: X and y must have the same number of rows, at least one")
    names = tuple(str(value) for value in parts.get("feature_names", ()))
    tests = None if y_test is None else _targets(y_test, source.task)
    return Dataset(name, X, _targets(y, source.task), source.task, names, X_test, tests)


def _targets(y: Array, task: Task) -> Array:
    if task == "multiclass":
        return y.astype(np.int64)
    numbers = y.astype(np.float64)
    return 2 * numbers - 1 if task == "binary" and numbers.min() == 0 else numbers


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            parts = {key: stored[key] for key in stored.files}
        if not ({"X", "y"} <= set(parts) or {"X_train", "y_train"} <= set(parts)):
            raise KeyError("X, y")
    except _DAMAGE as error:
        raise _damaged(path) from error
    return parts


def _frame(path: Path) -> Any:
    import pandas as pd

    try:
        return pd.read_parquet(path, engine="pyarrow", page_checksum_verification=True)
    except _DAMAGE as error:
        raise _damaged(path) from error


def _sheets(source: Source) -> dict[str, Array]:
    _needs_tables()
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingDependency("these images need pillow: pip install '.[experiments]'") from error
    parts: dict[str, Array] = {}
    for file, part in zip(source.packed, ("train", "test"), strict=True):
        frame = _frame(folder() / file)
        try:
            images, labels = unpack_sheets(list(frame["sheet"]), list(frame["labels"]))
        except _DAMAGE as error:
            raise _damaged(folder() / file) from error
        parts |= {f"X_{part}": images, f"y_{part}": labels}
    return parts


def _needs_tables() -> None:
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependency("tables need pandas and pyarrow: pip install '.[experiments]'") from error


def _damaged(path: Path) -> InputError:
    return InputError(
        f"{path} is damaged, or is not the file it should be; delete it, and it is downloaded again"
    )


def _fetch(name: str, source: Source, path: Path, download: bool) -> None:
    """Read the published files, from the folder or the network, and store them; or say what to put where."""
    published = " and ".join(origin.name for origin in source.origins)
    files = source.file + (f", or {published} as published," if published else "")
    advice = f"put {files} into {path.parent} (or set SIDELIGHT_DATA to the folder that has it)"
    if source.parse is None:
        raise InputError(f"{name} is not there and {source.note}; {advice}")
    contents = []
    for origin in source.origins:
        local = path.parent / origin.name
        if local.exists():
            contents.append(_checked(local, origin))
        elif download:
            contents.append(_downloaded(name, origin, advice))
        else:
            raise InputError(f"{name} is not there; {advice}")
    parsed = _parsed(name, source, contents)
    with whole_file(path, parents=True) as new:
        if source.task == "table":
            parsed.to_parquet(new, engine="pyarrow", write_page_checksum=True)
        else:
            np.savez_compressed(new, **parsed)


def _checked(local: Path, origin: Origin) -> bytes:
    """A published file that lies in the folder."""
    try:
        content = local.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {local} ({error.strerror or error})") from error
    kind, _, expected = (origin.checksum or "").partition(":")
    if expected and hashlib.new(kind, content, usedforsecurity=False).hexdigest() != expected:
        raise InputError(f"{local} is not the published file: its {kind} is not {expected}")
    return content


def _downloaded(name: str, origin: Origin, advice: str) -> bytes:
    """A published file from the network, with a bar on a terminal. Only what is made of it is kept."""
    try:
        import pooch
    except ImportError as error:
        raise MissingDependency(
            f"a download needs pooch: pip install '.[experiments]'; or {advice}"
        ) from error
    pooch.get_logger().setLevel("WARNING")  # it would print every checksum
    get = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=_SECONDS, headers=_HEADERS)
    with tempfile.TemporaryDirectory() as place:
        try:
            found = pooch.retrieve(origin.url, origin.checksum, origin.name, place, downloader=get)
            return Path(found).read_bytes()
        except OSError as error:  # the errors of requests, which pooch asks, are OSErrors
            why = _failure(error)
            raise InputError(f"{name} could not be downloaded from {origin.url} ({why}); {advice}") from error
        except ValueError as error:
            raise InputError(
                f"{origin.url} is not the file it was: its checksum is not {origin.checksum}. "
                "Nothing was kept"
            ) from error


def _failure(error: OSError) -> str:
    """Why a download failed, in a few words."""
    answer = getattr(error, "response", None)
    if answer is None:
        return error.strerror or "the connection failed"
    answer.close()  # pooch leaves it open
    return f"the server answers {answer.status_code}"


def _parsed(name: str, source: Source, contents: list[bytes]) -> Any:
    if source.parse is None:
        raise InputError(f"{name} is read by its own loader, not from a list of files")
    try:
        parsed = source.parse(contents)
        rows = len(parsed if source.task == "table" else parsed.get("X", parsed.get("X_train")))
    except SidelightError:
        raise
    except _DAMAGE as error:
        published = " and ".join(origin.name for origin in source.origins)
        raise InputError(f"{name}: {published} is not the published file. Nothing was kept") from error
    if rows != source.rows:
        raise InputError(f"{name} should have {source.rows:,} rows; it has {rows:,}. Nothing was kept")
    return parsed
