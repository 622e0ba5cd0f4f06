"""A small problem with mixed columns, and words that no message may quote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

SECRETS = ("Wallenstein", "4711.25", "6364136")  # in the private table alone
PUBLIC_ROWS, PRIVATE_ROWS = 60, 300


def problem(rows: int = PUBLIC_ROWS + PRIVATE_ROWS, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows),
            "job": rng.choice(["nurse", "smith", "clerk"], rows),
            "pay": rng.normal(3, 1, rows).round(2),
        }
    )
    sick = frame.age + 15 * (frame.job == "smith") + rng.normal(0, 6, rows) > 55
    frame["sick"] = np.where(sick, "yes", "no")
    return frame


def private_frame() -> Any:
    """With a secret in a category, in a number, and in the target."""
    frame = problem().iloc[PUBLIC_ROWS:].reset_index(drop=True).astype(object)
    frame.loc[0, "job"], frame.loc[1, "pay"], frame.loc[2, "age"] = SECRETS[0], SECRETS[1], SECRETS[2]
    frame.loc[3, "sick"] = SECRETS[0]
    return frame


def public_frame() -> Any:
    return problem().iloc[:PUBLIC_ROWS].reset_index(drop=True)


def write_tables(folder: Path) -> None:
    private_frame().to_csv(folder / "private.csv", index=False)
    public_frame().to_csv(folder / "public.csv", index=False)
    problem(30, seed=1).drop(columns="sick").to_csv(folder / "new.csv", index=False)
