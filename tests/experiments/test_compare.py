"""The summaries of the experiment behind docs/compare.md."""

from __future__ import annotations

import pytest
from experiments.compare.__main__ import Cell, cells_table, summary_table

CELLS = [  # table, draw, method, epsilon, expected, error, low, high, real
    Cell("magic04", 0, "only_public", 1.0, 0.70, 0.015, 0.70, 0.70, 0.71),
    Cell("magic04", 0, "auto", 1.0, 0.84, 0.02, 0.65, 0.90, 0.80),
    Cell("magic04", 0, "ppsgd", 1.0, 0.83, 0.05, 0.75, 0.95, 0.82),
    Cell("magic04", 0, "non_private", 1.0, 0.90, 0.10, 0.85, 0.99, 0.85),
]


def test_the_summary_counts_what_it_says() -> None:
    head, _, both, harsh, kind = summary_table(CELLS)
    told = [cell.strip() for cell in both.split("|")[1:-1]]
    assert "lost by its choice" in head
    assert told[:3] == ["magic04", "76", "both (told)"]
    assert float(told[3]) == pytest.approx((-1 + 4 + 1 + 5) / 4, abs=0.06)
    assert float(told[6]) == pytest.approx(2.0)  # auto looks best, ppsgd is; non_private is no choice
    assert told[7] == "75%"
    assert harsh.split("|")[7].strip() == "0.0" and kind.split("|")[7].strip() == "0.0"


def test_a_row_a_cell_in_percent() -> None:
    lines = cells_table([*CELLS, CELLS[0]._replace(draw=1, expected=0.72, real=0.73)])
    assert len(lines) == 2 + 4
    assert lines[2] == "| magic04 | `only_public` | 1 | 71.0 | 70.0 – 70.0 | 72.0 | -1.0 |"
