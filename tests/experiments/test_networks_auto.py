"""The experiment runs from end to end in a small version, stops, and goes on where it was."""

from pathlib import Path
from typing import Any

import pytest
from experiments.networks_auto.__main__ import FREE, PRIVATE, arguments, jobs, main
from experiments.networks_auto.report import gains, losses, page, table, verdict
from experiments.sweep import read


@pytest.mark.filterwarnings("ignore")
def test_a_small_version_runs_and_resumes(tmp_path: Path, capsys: Any) -> None:
    command = ["--task", "invented", "--seeds", "1", "--epsilon", "2", "--out", str(tmp_path)]
    main([*command, "--docs", str(tmp_path / "page.md")])
    runs = read(tmp_path / "runs.csv")
    assert [row["method"] for row in runs] == [*FREE, *PRIVATE]
    assert all(float(row["spent"]) <= 2 for row in runs) and float(runs[0]["spent"]) == 0
    assert "| invented | 2 | 1 |" in capsys.readouterr().out
    assert "{" not in (tmp_path / "page.md").read_text()
    main(command)  # everything is there: nothing is added
    assert read(tmp_path / "runs.csv") == runs


def test_the_grid_leaves_out_what_takes_minutes() -> None:
    planned = jobs(arguments(["--seeds", "1"]))
    assert not any(job["task"] == "mnist" for job in planned)  # which is asked for by name
    assert {job["epsilon"] for job in planned if job["method"] in FREE} == {"0"}


def row(method: str, accuracy: float, epsilon: str = "2", seed: str = "0") -> dict[str, str]:
    return {"task": "magic", "method": method, "epsilon": epsilon, "seed": seed, "accuracy": str(accuracy)}


def test_the_verdict_compares_seeds_that_all_methods_have() -> None:
    free = [row("only_public", 0.8, "0"), row("public by hand", 0.81, "0")]
    runs = [*free, row("auto", 0.84), row("opacus by hand, cold", 0.7), row("opacus by hand, warm", 0.85)]
    said = verdict([*runs, row("auto", 0.1, seed="1")], ("magic",))
    assert "in 0 of 1 cells (worst: -1.00" in said and "in 1 of 1 cells (worst: +3.00" in said
    assert verdict(free, ("magic",)) == "none"
    line = table([*runs, row("auto", 0.86, seed="1")]).splitlines()[2]
    assert line.startswith("| magic | 2 | 2 | 85.00 ± 1.00 | 80.00 | 81.00 | 70.00 | 85.00 | – |")


def test_behind_is_beyond_two_paired_standard_errors() -> None:
    """Splits differ by more than methods do, so that differences of the same split are what counts."""
    ours, rival = (0.80, 0.90, 0.85), (0.81, 0.911, 0.859)
    runs = [
        row(method, value, seed=str(seed))
        for method, values in (("auto", ours), ("dope_sgd", rival))
        for seed, value in enumerate(values)
    ]
    [gain] = gains(runs, ("magic",), ("dope_sgd", "dpmd"))
    assert (
        gain.clearly_behind
        and gain.mean == pytest.approx(-1.0)
        and gain.error == pytest.approx(0.058, abs=0.001)
    )
    [noisy] = gains([*runs[:5], row("dope_sgd", 0.80, seed="2")], ("magic",), ("dope_sgd",))
    assert not noisy.clearly_behind


def test_cells_that_lose_are_named() -> None:
    runs = [
        {**row(method, 0.8 if method == "auto" else 0.81, "2" if method == "auto" else "0"), "loss": "0.4"}
        for method in ("auto", "only_public")
    ]
    assert "*magic* at ε = 2: -1.00 (`only_public`)" in losses(runs)


def test_the_page_says_how_much_of_it_was_run() -> None:
    runs = [{**row("auto", 0.84), "loss": "0.4", "seconds": "3"}]
    assert "1 of 240" in page(runs, planned=240)
