"""The public benchmarks of the papers, from a folder or from their origin.

A file is looked for in the folder of the environment variable SIDELIGHT_DATA, or else in the user's cache.
What is not there is downloaded from its public origin, once, and kept there. No data comes with the package.
`sidelight.datasets` has a function a dataset, with licence and citation; here are the names of the tables.

A .npz holds X (n × …) and y, or X_train, y_train, X_test, y_test. Labels are −1/+1 (0/1 is mapped to that),
0, 1, 2, … or numbers.
"""

from __future__ import annotations

import lzma
import os
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.data import download as web
from sidelight.data.origins import unpack_sheets
from sidelight.data.sources import SOURCES, Source, Task
from sidelight.errors import InputError, MissingDependency, SidelightError
from sidelight.files import whole_file

__all__ = ["NAMES", "TABLES", "Dataset", "available", "folder", "load", "load_table"]

Array = NDArray[Any]

NAMES: tuple[str, ...] = tuple(name for name, source in SOURCES.items() if source.task != "table")
TABLES: tuple[str, ...] = tuple(name for name, source in SOURCES.items() if source.task == "table")

# What a damaged file makes its reader raise.
_DAMAGE = (
    OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    tarfile.TarError, TypeError, AttributeError, NotImplementedError, MemoryError,
)  # fmt: skip


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
    """One of `NAMES`. adult-a is a9a: 32,561 rows as in the papers' tables, and its test part."""
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
    """One of `TABLES`, as a pandas frame with its original columns."""
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
    web.Checksums(path.parent / "checksums.json").check_file(path)
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

    web.Checksums(path.parent / "checksums.json").check_file(path)
    try:
        return pd.read_parquet(path)
    except _DAMAGE as error:
        raise _damaged(path) from error


def _sheets(source: Source) -> dict[str, Array]:
    _needs_tables()
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingDependency("these images need pillow: pip install 'sidelight[images]'") from error
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
        raise MissingDependency("tables need pandas and pyarrow: pip install 'sidelight[tables]'") from error


def _damaged(path: Path) -> InputError:
    return InputError(
        f"{path} is damaged, or is not the file it should be; delete it, and it is downloaded again"
    )


def _fetch(name: str, source: Source, path: Path, download: bool) -> None:
    """Read the published files, from the folder or the network, and store them; or say what to put where."""
    published = " and ".join(origin.name for origin in source.origins)
    files = source.file + (f", or {published} as published," if published else "")
    place = f"put {files} into {path.parent} (or set SIDELIGHT_DATA to the folder that has it)"
    if source.parse is None:
        raise InputError(f"{name} is not there and {source.note}; {place}")
    checksums = web.Checksums(path.parent / "checksums.json")
    contents: dict[str, bytes] = {}
    for origin in source.origins:
        contents[origin.url] = _published(name, origin, path.parent, download, place)
        checksums.check_download(origin, contents[origin.url])
    parsed = _parsed(name, source, list(contents.values()))
    with whole_file(path, parents=True) as new:
        parsed.to_parquet(new) if source.task == "table" else np.savez_compressed(new, **parsed)
    checksums.record(path, contents)


def _published(name: str, origin: web.Origin, place: Path, download: bool, advice: str) -> bytes:
    """The bytes of a published file: lying in the folder, or from the network."""
    local = place / origin.name
    if local.exists():
        try:
            return local.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {local} ({error.strerror or error})") from error
    if not download:
        raise InputError(f"{name} is not there; {advice}")
    try:
        return web.read(origin.url, title=f"{name}: {origin.name}")
    except web.DownloadFailed as error:
        raise InputError(f"{name} could not be downloaded from {origin.url} ({error}); {advice}") from error


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
