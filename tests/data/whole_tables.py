"""All values of a private file at once, which only tests look at."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sidelight.data.private_tables import open_private
from sidelight.data.table_files import typed_column
from sidelight.data.values import MISSING


def private_frame(path: Path, *, decode: bool = True) -> pd.DataFrame:
    """The columns of a file, each of one type; texts as Python has them, or as a fingerprint sees them."""
    table = open_private(path)
    pieces: dict[str, list[Any]] = {name: [np.empty(0, dtype=object)] for name in table.names}
    for _, block in table.blocks(dict.fromkeys(table.names, False)):
        for name, column in block.items():
            values = typed_column(column)
            pieces[name].append(_texts(values) if decode else values)
    columns = {name: np.concatenate(found[1:] or found) for name, found in pieces.items()}
    return pd.DataFrame({name: pd.Series(values, dtype=values.dtype) for name, values in columns.items()})


def _texts(values: np.ndarray) -> np.ndarray:
    if values.dtype != object:
        return values
    found = [one.decode("utf-8", "replace").strip() if isinstance(one, bytes) else one for one in values]
    return np.fromiter((None if isinstance(one, str) and one in MISSING else one for one in found), object)
