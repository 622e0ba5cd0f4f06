"""The public benchmark tables of the papers, from a folder or from their origin.

A file is looked for in the folder of the environment variable SIDELIGHT_DATA, or else in ~/.cache/sidelight.
What is not there is downloaded from its public origin, once, and kept there. No data comes with the package.

| name | file | origin, licence, citation |
|---|---|---|
| adult-a | a9a.npz | LIBSVM a9a, from UCI Adult (Becker & Kohavi 1996), CC BY 4.0 |
| ipums-br | ipums_br.npz | Lee & Kifer (KDD 2018), from IPUMS International; terms of IPUMS |
| ipums-us | ipums_us.npz | the same for the United States; terms of IPUMS |
| magic04 | magic04.npz | UCI MAGIC Gamma Telescope (Bock 2007), CC BY 4.0 |
| mini-boo-ne | mini_boo_ne.npz | UCI MiniBooNE particle identification (Roe 2010), CC BY 4.0 |
| skin | skin_segmentation.npz | UCI Skin Segmentation (Bhatt & Dhall 2012), CC BY 4.0 |
| cadata | cadata.npz | StatLib houses (Pace & Barry 1997) in LIBSVM's form; no licence stated |
| stability | grid_stability.npz | UCI Electrical Grid Stability Simulated Data (Arzamasov 2018), CC BY 4.0 |
| adult-raw | adult_raw.parquet | UCI Adult (Becker & Kohavi 1996), CC BY 4.0 |
| kddcup99 | kddcup99_10pct.parquet | UCI KDD Cup 1999, 10 % file (Stolfo et al. 1999), CC BY 4.0 |

A .npz holds X (n × p) and y, labels −1/+1 (0/1 is mapped to that) or numbers.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.data import origins
from sidelight.errors import InputError, MissingDependency

__all__ = ["NAMES", "TABLES", "Dataset", "available", "folder", "load", "load_table"]

Array = NDArray[Any]
Parts = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Dataset:
    """One benchmark: original values, nothing scaled or shuffled. Labels are −1/+1."""

    name: str
    X: Array
    y: NDArray[np.float64]
    task: Literal["binary", "regression"]
    feature_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Source:
    """A file, where its raw form is, and how to read that."""

    file: str
    task: Literal["binary", "regression"] = "binary"
    urls: tuple[str, ...] = ()
    parse: Callable[[list[bytes]], Any] | None = None
    note: str = field(default="")


_UCI = "https://archive.ics.uci.edu/static/public/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
_IPUMS = "its licence allows no download from here; see https://github.com/ppmlguy/DP-AGD"

_SOURCES = {
    "adult-a": _Source("a9a.npz", "binary", (f"{_LIBSVM}binary/a9a", f"{_LIBSVM}binary/a9a.t"), origins.a9a),
    "ipums-br": _Source("ipums_br.npz", note=_IPUMS),
    "ipums-us": _Source("ipums_us.npz", note=_IPUMS),
    "magic04": _Source("magic04.npz", "binary", (f"{_UCI}159/magic+gamma+telescope.zip",), origins.magic04),
    "mini-boo-ne": _Source(
        "mini_boo_ne.npz",
        "binary",
        (f"{_UCI}199/miniboone+particle+identification.zip",),
        origins.mini_boo_ne,
    ),
    "skin": _Source("skin_segmentation.npz", "binary", (f"{_UCI}229/skin+segmentation.zip",), origins.skin),
    "cadata": _Source("cadata.npz", "regression", (f"{_LIBSVM}regression/cadata",), origins.cadata),
    "stability": _Source(
        "grid_stability.npz",
        "regression",
        (f"{_UCI}471/electrical+grid+stability+simulated+data.zip",),
        origins.stability,
    ),
}
_TABLES = {
    "adult-raw": _Source("adult_raw.parquet", urls=(f"{_UCI}2/adult.zip",), parse=origins.adult_raw),
    "kddcup99": _Source(
        "kddcup99_10pct.parquet",
        urls=("http://kdd.ics.uci.edu/databases/kddcup99/kddcup.data_10_percent.gz",),
        parse=origins.kddcup99,
    ),
}
NAMES: tuple[str, ...] = tuple(_SOURCES)
TABLES: tuple[str, ...] = tuple(_TABLES)


def folder() -> Path:
    """Where datasets are kept: $SIDELIGHT_DATA, or ~/.cache/sidelight."""
    chosen = os.environ.get("SIDELIGHT_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "sidelight"


def available(name: str) -> bool:
    """Whether the file of this dataset is in the folder, so that nothing needs to be downloaded."""
    return (folder() / _source(name).file).exists()


def load(name: str, *, download: bool = True) -> Dataset:
    """One of `NAMES`.

    adult-a is the training part of a9a (32,561 rows), as in the papers' tables.
    """
    source = _source(name)
    path = folder() / source.file
    if name in _TABLES:
        raise InputError(f"{name} has columns of text; read it with load_table({name!r})")
    if path.exists():
        with np.load(path, allow_pickle=False) as stored:
            parts = {key: stored[key] for key in ("X", "y", "feature_names") if key in stored}
    else:
        parts = dict(_fetch(name, source, download))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **parts)
    y = parts["y"].astype(np.float64)
    if source.task == "binary" and y.min() == 0:
        y = 2 * y - 1
    names = tuple(str(value) for value in parts.get("feature_names", np.array([], dtype=str)))
    return Dataset(name, parts["X"], y, source.task, names)


def load_table(name: str, *, download: bool = True) -> Any:
    """One of `TABLES`, as a pandas frame with its original columns."""
    source = _source(name)
    if name not in _TABLES:
        raise InputError(f"{name} is an array of numbers; read it with load({name!r})")
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependency("tables need pandas and pyarrow: pip install 'sidelight[tables]'") from error
    path = folder() / source.file
    if path.exists():
        return pd.read_parquet(path)
    frame = _fetch(name, source, download)
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(path)
    return frame


def _source(name: str) -> _Source:
    source = _SOURCES.get(name) or _TABLES.get(name)
    if source is None:
        raise InputError(f"there is no dataset {name!r}; known: {', '.join((*NAMES, *TABLES))}")
    return source


def _fetch(name: str, source: _Source, download: bool) -> Any:
    """The parsed original, or one sentence that says which file to put where."""
    place = f"put {source.file} into {folder()} (or set SIDELIGHT_DATA to the folder that has it)"
    if source.parse is None:
        raise InputError(f"{name} is not there and {source.note}; {place}")
    if not download:
        raise InputError(f"{name} is not there; {place}")
    try:
        return source.parse([_read(url) for url in source.urls])
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise InputError(f"{name} could not be downloaded from {source.urls[0]}; {place}") from error


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:  # the URLs are the constants above
        content: bytes = answer.read()
    return content
