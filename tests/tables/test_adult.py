"""The raw Adult table, as a new user has it: schema, fit, predict (docs/tables.md holds the whole table)."""

import pytest
from experiments import datasets
from experiments.adult_tables.__main__ import run, table
from tests.tables.small import pd

needs_adult = pytest.mark.skipif(
    not datasets.available("adult-raw"), reason="SIDELIGHT_DATA has no Adult table"
)
assert pd is not None


@needs_adult
def test_a_new_user_beats_public_records_alone() -> None:
    """Measured over 5 repeats: 84.8 % at ε = 1, only_public 81.3 %, the commonest class 76.4 %."""
    result = run({"method": "auto", "epsilon": 1.0, "repeat": 0})
    assert result["accuracy"] > 0.835
    assert abs(result["validation"] - result["accuracy"]) < 4 * result["validation_error"]


def test_the_table_of_results() -> None:
    rows = [{"method": "auto", "epsilon": "1.0", "accuracy": value} for value in ("0.8", "0.9")]
    assert "| `auto` | – | – | 85.00 ± 5.00 | – |" in table(rows)
