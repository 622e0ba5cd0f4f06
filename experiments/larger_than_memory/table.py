"""The table: 24 numbers, 4 categories, a truth value and the target; a file holds 100,000 rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FILE_ROWS", "lake", "rows_of", "write_file"]

FILE_ROWS = 100_000
NUMBERS, CATEGORIES = 24, ("north", "east", "south", "west")
PUBLIC_SEED, TEST_SEED = 10**6, 10**6 + 1


def rows_of(seed: int, rows: int) -> pa.Table:
    """Records of one population: a seed, its records."""
    import pyarrow as pa

    weights = np.random.default_rng(0).normal(size=NUMBERS).astype(np.float32)
    rng = np.random.default_rng([1, seed])
    X = rng.standard_normal((rows, NUMBERS), dtype=np.float32)
    codes = rng.integers(0, len(CATEGORIES), size=(4, rows), dtype=np.int8)
    truth = rng.random(rows) < 0.3
    score = X @ weights + 1.5 * (codes[0] == 2) - 1.5 * (codes[1] == 0) + truth
    label = score + 2 * rng.logistic(size=rows) > 0
    columns = {f"n{k:02d}": pa.array(X[:, k]) for k in range(NUMBERS)}
    columns |= {f"c{k}": pa.DictionaryArray.from_arrays(codes[k], list(CATEGORIES)) for k in range(4)}
    columns |= {"member": pa.array(truth)}
    columns |= {"buys": pa.DictionaryArray.from_arrays(label.astype(np.int8), ["no", "yes"])}
    return pa.table(columns)


def write_file(path: Path, seed: int, rows: int) -> None:
    """A Parquet file, unless it is there."""
    from pyarrow import parquet

    if not path.exists():
        part = path.with_name(f".{path.name}.part")
        parquet.write_table(
            rows_of(seed, rows), part, compression="none", use_dictionary=["buys", "c0", "c1", "c2", "c3"]
        )
        part.rename(path)


def lake(folder: Path, rows: int) -> Path:
    """A folder with so many rows: links to files that tables of all sizes share."""
    shared, own = folder / "files", folder / f"rows-{rows}"
    shared.mkdir(parents=True, exist_ok=True)
    own.mkdir(exist_ok=True)
    size = min(rows, FILE_ROWS)
    for number in range(-(-rows // size)):
        name = f"part-{number:04d}-{size}.parquet"
        write_file(shared / name, number, size)
        if not (own / name).exists():
            (own / name).symlink_to(Path("..") / "files" / name)
    for name, seed in (("public", PUBLIC_SEED), ("test", TEST_SEED)):
        write_file(folder / f"{name}.parquet", seed, min(5_000 if seed == PUBLIC_SEED else 50_000, rows))
    return own
