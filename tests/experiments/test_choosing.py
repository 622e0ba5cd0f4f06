"""The experiment behind docs/choosing.md, in small."""

from __future__ import annotations

from experiments.choosing import __main__ as experiment

from sidelight.methods.declare import METHODS


def test_every_job_names_a_method_and_runs() -> None:
    jobs = experiment.jobs(1, datasets=("isotropic",))
    assert {job["method"].split(", ")[0] for job in jobs} <= set(METHODS)
    wanted = {"dataset": "isotropic", "public": 1000, "epsilon": 1.0, "method": "ppsgd, hinge", "repeat": 0}
    assert wanted in jobs
    assert 0.7 < float(experiment.run(wanted)["accuracy"]) < 0.86  # non_private reaches .852


def test_best_private_methods_are_bold_and_missing_runs_are_dashes() -> None:
    lines = [
        {"dataset": "magic04", "public": "30", "epsilon": "0.1", "method": method, "repeat": str(repeat),
         "accuracy": str(accuracy + 0.01 * repeat), "seconds": "1"}
        for method, accuracy in (("auto", 0.7), ("dp_sgd", 0.6), ("non_private", 0.9))
        for repeat in range(2)
    ]  # fmt: skip
    text = experiment.page(lines)
    assert "over 2 splits" in text
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| `")}
    assert "**.7050 ± .0050**" in text
    assert "| .6050 ± .0050 |" in text and "| .9050 ± .0050 |" in text
    assert "–" in rows["`ppsgd`, hinge"]
