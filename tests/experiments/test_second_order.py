from __future__ import annotations

from experiments.second_order import __main__ as experiment

from sidelight.methods.declare import METHODS


def test_every_job_names_a_method() -> None:
    names = {job["method"].split(", ")[0] for job in experiment.jobs(1)}
    assert names <= set(METHODS) and {"dp_newton", "adassp"} <= names


def test_a_page_has_a_row_a_method_and_dashes_for_what_was_not_run() -> None:
    lines = [
        {"dataset": "magic04", "epsilon": "0.1", "method": "dp_newton", "repeat": str(k),
         "score": str(0.7 + 0.02 * k), "seconds": "0.5"}
        for k in range(2)
    ]  # fmt: skip
    text = experiment.page(lines)
    assert "| `dp_newton` | .7100 ± .0100 | – | – | – | 0.50 |" in text
    assert "| `dp_newton`, no public rows | – |" in text and "over 2 splits" in " ".join(text.split())
