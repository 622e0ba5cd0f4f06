"""What is free, beside the default."""

from pathlib import Path

import numpy as np
from experiments.public_pays import __main__ as experiment
from experiments.public_pays import contenders, intervals, report, tables
from experiments.sweep import read

ROOT = Path(__file__).parents[2]


def test_no_table_is_in_both_halves() -> None:
    assert not set(tables.DEVELOPED) & set(tables.SCORED_ONCE)


def line(method: str, repeat: int, value: float, epsilon: float = 1.0) -> dict[str, str]:
    return {
        "dataset": "bike",
        "method": method,
        "epsilon": str(epsilon),
        "repeat": str(repeat),
        "r2": str(value),
    }


def test_a_cell_is_lost_only_beyond_the_error() -> None:
    ours = [line("sidelight", k, 0.7) for k in range(3)]
    level = [line("linear, public rows", k, 0.7 + 0.02 * (k - 1)) for k in range(3)]
    ahead = [line("boosting, public rows", k, 0.75) for k in range(3)]
    assert report.lost_cells(report.Results(ours + level), report.FREE, ["bike"], 0.0) == []
    (lost,) = report.lost_cells(report.Results(ours + level + ahead), report.FREE, ["bike"], 0.0)
    assert "boosting" in lost


def test_a_cell_is_lost_strictly_within_the_error() -> None:
    """Ahead by more than the margin, not beyond the error: lost by the strict and the joint count."""
    ours = [line("sidelight", k, 0.7) for k in range(3)]
    theirs = [line("adassp", k, 0.71 + 0.1 * (k - 1)) for k in range(3)]
    counted = list(report._lost(report.Results(ours + theirs), ["bike"]).values())
    free, strict, beyond, joint, line_alone = (len(one) for one in counted)
    assert (free, strict, beyond, joint, line_alone) == (0, 1, 0, 1, 0)


def test_a_wild_number_does_not_move_a_line() -> None:
    """Public or not, numbers are clipped to the range of the rows that are learned from."""
    known = contenders.Clipped().fit(np.array([[0.0, 1.0], [2.0, 3.0]]))
    assert known.transform(np.array([[9831.0, -5.0]])).tolist() == [[2.0, 1.0]]


def test_no_linear_baseline_diverges() -> None:
    lines = read(experiment.HERE / "runs.csv")
    assert all(float(one["r2"]) > 0 for one in lines if one["method"].startswith("linear") and one["r2"])


def test_a_step_down_counts_only_beyond_the_error() -> None:
    noisy = [line("sidelight", k, 0.7 - 0.02 * (k - 1), 3.0) for k in range(3)]
    lower = [line("sidelight", k, 0.6, 9.0) for k in range(3)]
    first = [line("sidelight", k, 0.7) for k in range(3)]
    assert "in 0 of 1 steps" in report._rising(report.Results(first + noisy))
    assert "in 1 of 2 steps: bike from ε = 3 to 9" in report._rising(report.Results(first + noisy + lower))


def test_the_table_of_unlabeled_rows_is_what_the_command_printed() -> None:
    assert (experiment.HERE / "labels.md").read_text() in (ROOT / "docs/tables.md").read_text()


def test_the_table_of_intervals_is_what_the_command_printed() -> None:
    assert (experiment.HERE / "intervals.md").read_text() in (ROOT / "docs/tables.md").read_text()
    found, source = intervals.shares(tables.TOY, 0)
    assert source == "private"
    np.testing.assert_allclose(found, intervals.COVERAGES, atol=0.08)  # of 4,600 rows counts are noisy
