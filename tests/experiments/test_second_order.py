from pathlib import Path
from typing import Any

from experiments.second_order import __main__ as experiment
from experiments.sweep import read

from sidelight.methods.declare import METHODS


def test_every_job_names_a_method() -> None:
    names = {job["method"].split(", ")[0] for job in experiment.jobs(1)}
    new = {"dp_newton", "adassp", "boosted_adassp", "hessian_mixing", "pmt", "amp", "auto"}
    assert names <= set(METHODS) and new <= names


def test_a_page_has_a_row_a_method_and_dashes_for_what_was_not_run() -> None:
    lines = [
        {"dataset": "magic04", "epsilon": "0.1", "method": "dp_newton", "repeat": str(k),
         "score": str(0.7 + 0.02 * k), "seconds": "0.5"}
        for k in range(2)
    ]  # fmt: skip
    text = experiment.page(lines)
    assert "| `dp_newton` | .7100 ± .0100 | – | – | – | 0.50 |" in text
    assert "| `dp_newton`, no public rows | – |" in text and "over 2 splits" in " ".join(text.split())


def test_the_quick_version_runs_every_method_learns_and_resumes(tmp_path: Path, capsys: Any) -> None:
    command = ["--quick", "--out", str(tmp_path)]
    experiment.main(command)
    first = (tmp_path / "runs.csv").read_text()
    lines = read(tmp_path / "runs.csv")
    assert "## synthetic numbers: mean square error" in capsys.readouterr().out
    assert {line["method"] for line in lines} == set().union(*experiment.METHODS.values())
    large = [line for line in lines if line["epsilon"] == "3.0"]
    assert all(float(line["score"]) > 0.75 for line in large if "classes" in line["dataset"])
    assert all(float(line["score"]) < 0.04 for line in large if "numbers" in line["dataset"])
    experiment.main(command)  # everything is there: nothing is added
    assert (tmp_path / "runs.csv").read_text() == first
