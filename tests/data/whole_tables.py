"""All values of a private file at once, which only tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sidelight.data.private_tables import open_private


def private_frame(path: Path) -> pd.DataFrame:
    """The columns as a fingerprint sees them, each of one type."""
    table: Any = open_private(path)
    columns = {name: np.concatenate(list(table.values(name))) for name in table.names}
    return pd.DataFrame({name: pd.Series(values, dtype=values.dtype) for name, values in columns.items()})
