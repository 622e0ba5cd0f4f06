"""The summaries of the experiment behind docs/reproductions/compare.md."""

import pytest
from experiments.compare.__main__ import Cell, cells_table, summary_table

CELLS = [  # table, draw, method, epsilon, harsh, kind, low, high, real
    Cell("magic04", 0, "only_public", 1.0, 0.70, 0.72, 0.60, 0.78, 0.71),
    Cell("magic04", 0, "auto", 1.0, 0.65, 0.96, 0.55, 0.96, 0.80),
    Cell("magic04", 0, "ppsgd", 1.0, 0.75, 0.95, 0.70, 0.95, 0.82),
    Cell("magic04", 0, "non_private", 1.0, 0.85, 0.99, 0.86, 0.99, 0.85),
]


def test_the_summary_counts_what_it_says() -> None:
    head, _, kind, harsh = summary_table(CELLS)
    told = [cell.strip() for cell in kind.split("|")[1:-1]]
    assert "lost by its choice" in head
    assert told[:3] == ["magic04", "76", "75%"]
    assert float(told[3]) == pytest.approx((18 + 41 + 25 + 13) / 4, abs=0.06)
    assert float(told[5]) == pytest.approx((1 + 16 + 13 + 14) / 4, abs=0.06)
    assert float(told[7]) == pytest.approx(2.0)  # auto looks best, ppsgd is; non_private is no choice
    assert harsh.split("|")[-2].strip() == "0.0"


def test_a_row_a_cell_in_percent() -> None:
    lines = cells_table([*CELLS, CELLS[0]._replace(draw=1, kind=0.74, real=0.73)])
    assert len(lines) == 2 + 4
    assert lines[2] == "| magic04 | `only_public` | 1 | 60 – 78 | 70.0 | 73.0 | 72.0 |"
