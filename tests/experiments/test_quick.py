"""Every experiment runs from end to end in a small version, stops, and goes on where it was."""

from pathlib import Path
from typing import Any

import pytest
from experiments import datasets, protocol
from experiments.ablation import __main__ as ablation
from experiments.ppsgd_figures.__main__ import main as ppsgd_figures
from experiments.ppsgd_table2 import grid, report
from experiments.ppsgd_table2.__main__ import HERE
from experiments.ppsgd_table2.__main__ import main as ppsgd_table2
from experiments.public_pays import __main__ as public_pays
from experiments.rsgd_figures.__main__ import main as rsgd_figures
from experiments.shift import __main__ as shift
from experiments.sweep import read, sweep

from sidelight.methods import public_models

ROOT = Path(__file__).parents[2]
PAGES: dict[
    str, tuple[Any, Any, str]
] = {  # the command, what makes the page, and what the quick version prints
    "ablation": (ablation, ablation.page, "| guide, trees | 0."),
    "public_pays": (public_pays, public_pays.report.page, "| sidelight | 0.8"),
    "shift": (shift, shift.report.page, "AUC: shifted public rows"),
}
PAPER = report.read_paper(HERE / "paper.csv")


@pytest.mark.parametrize("experiment", [ppsgd_table2, ppsgd_figures, rsgd_figures])
def test_quick_version_runs_and_resumes(experiment: Any, tmp_path: Path, capsys: Any) -> None:
    command = ["--quick", "--workers", "1", "--out", str(tmp_path)]
    experiment(command)
    first = (tmp_path / "runs.csv").read_text()
    assert len(first.splitlines()) > 5
    printed = capsys.readouterr().out
    assert "| " in printed
    experiment(command)  # everything is there: nothing is added
    assert (tmp_path / "runs.csv").read_text() == first


@pytest.mark.parametrize("name", PAGES)
def test_quick_version_of_a_page_runs_and_resumes(name: str, tmp_path: Path, capsys: Any) -> None:
    experiment, _, shown = PAGES[name]
    command = ["--quick", "--out", str(tmp_path)]
    experiment.main(command)
    first = (tmp_path / "runs.csv").read_text()
    assert shown in capsys.readouterr().out
    experiment.main(command)
    assert (tmp_path / "runs.csv").read_text() == first


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_of_the_committed_runs(name: str) -> None:
    experiment, page, _ = PAGES[name]
    written = (ROOT / f"docs/reproductions/{name}.md").read_text()
    assert written == page(read(experiment.HERE / "runs.csv")), f"python -m experiments.{name} --docs …"


def test_targets_as_they_are_leave_the_logarithm_out_and_nothing_else() -> None:
    made = public_models._numbers
    with ablation.targets_as_they_are():
        assert public_models._numbers is not made
    assert public_models._numbers is made


def test_quick_values_are_accuracies_and_auto_learns(tmp_path: Path) -> None:
    ppsgd_table2(["--quick", "--workers", "1", "--out", str(tmp_path)])
    results = {row["column"]: float(row["mean"]) for row in read(tmp_path / "results.csv")}
    assert set(results) == set(grid.FAST)
    assert results["auto"] > 0.85


def test_sweep_runs_only_what_is_missing(tmp_path: Path) -> None:
    seen = []

    def run(job: dict[str, Any]) -> dict[str, Any]:
        seen.append(job["k"])
        return {"value": 2 * job["k"]}

    options: dict[str, Any] = {"fields": ("k",), "results": ("value",), "workers": 1}
    sweep([{"k": 1}, {"k": 2}], run, tmp_path / "runs.csv", **options)
    rows = sweep([{"k": 2}, {"k": 3}], run, tmp_path / "runs.csv", **options)
    assert seen == [1, 2, 3]
    assert [row["value"] for row in rows] == ["2", "4", "6"]


def test_paper_table_has_28_cells() -> None:
    assert len(PAPER) == 28
    assert PAPER[("adult-a", "hinge", "0.5")]["PPSGD"] == 0.8241
    assert {(c.dataset, c.loss, str(c.epsilon)) for c in grid.CELLS} == set(PAPER)


def test_best_of_group_is_highest_accuracy_and_lowest_error() -> None:
    def rows(dataset: str) -> list[dict[str, Any]]:
        common = {
            "dataset": dataset,
            "loss": "square",
            "epsilon": "0.3",
            "ranges": "all",
            "group": "g",
            "n": 2,
        }
        return [{**common, "mean": 0.1}, {**common, "mean": 0.2}]

    chosen = [report.best_of_groups(rows(name)) for name in ("cadata", "magic04")]
    assert [next(iter(best.values()))["mean"] for best in chosen] == [0.1, 0.2]


def test_public_ranges_do_not_depend_on_private_rows() -> None:
    """Wild private and test rows change nothing about how public rows are scaled; the paper's ranges do."""
    data = grid.synthetic(rows=500)
    public = protocol.split(data, repeat=0, public_share=0.1, ranges="public").public.X
    order = protocol.np.random.default_rng(0).permutation(500)
    X = data.X.copy()
    X[order[40:]] *= 1000
    wild = datasets.Dataset("synthetic", X, data.y, "binary")
    assert (public == protocol.split(wild, repeat=0, public_share=0.1, ranges="public").public.X).all()
    paper = [protocol.split(d, repeat=0, public_share=0.1, ranges="all").public.X for d in (data, wild)]
    assert (paper[0] != paper[1]).any()


def test_error_of_rescaled_targets_is_in_the_papers_units() -> None:
    """A model that is exactly right has error 0 whatever the ranges of targets were learned from."""
    rng = protocol.np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    data = datasets.Dataset("toy", X, 10 + 3 * X[:, 0] / protocol.np.linalg.norm(X, axis=1), "regression")
    for ranges in ("all", "public"):
        split = protocol.split(data, repeat=0, public_share=0.2, ranges=ranges)
        full = split.y_test
        z = (full - split.shift) / split.units
        fitted = protocol.Split(split.private, split.public, z[:, None], full, True, split.units, split.shift)
        assert fitted.score(protocol.np.ones((1, 1))) < 1e-20
        assert abs(full).max() <= 1
