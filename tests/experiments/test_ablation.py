"""What each piece adds: the quick version, and the page that is published, against its data."""

from pathlib import Path
from typing import Any

from experiments.ablation import __main__ as experiment
from experiments.sweep import read

from sidelight.methods import public_models

ROOT = Path(__file__).parents[2]


def test_quick_version_runs_and_resumes(tmp_path: Path, capsys: Any) -> None:
    command = ["--quick", "--out", str(tmp_path)]
    experiment.main(command)
    first = (tmp_path / "runs.csv").read_text()
    assert "| guide, trees | 0." in capsys.readouterr().out
    experiment.main(command)
    assert (tmp_path / "runs.csv").read_text() == first


def test_targets_as_they_are_leave_the_logarithm_out_and_nothing_else() -> None:
    made = public_models._numbers
    with experiment.targets_as_they_are():
        assert public_models._numbers is not made
    assert public_models._numbers is made


def test_the_page_is_made_of_the_committed_runs() -> None:
    page = (ROOT / "docs/reproductions/ablation.md").read_text()
    assert page == experiment.page(read(experiment.HERE / "runs.csv")), (
        "python -m experiments.ablation --docs …"
    )
