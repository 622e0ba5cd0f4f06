"""The comparison with other libraries, in small; and the page that is published, against its data."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.peers import __main__ as experiment
from experiments.peers import contenders, report, splits, subprocesses
from experiments.public_pays.contenders import GIVEN, calibration_error
from experiments.sweep import read

ROOT = Path(__file__).parents[2]


def test_quick_version_runs_and_resumes_and_says_what_is_missing(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(subprocesses, "installed", lambda peer: False)
    command = ["--quick", "--out", str(tmp_path)]
    experiment.main(command)
    first = (tmp_path / "runs.csv").read_text()
    printed = capsys.readouterr().out
    assert "left out: DP-EBM, diffprivlib, DP-XGBoost (make peers-env)" in printed
    assert "| sidelight | **.9" in printed and "| DP-EBM | – / – / – | – |" in printed
    experiment.main(command)
    assert (tmp_path / "runs.csv").read_text() == first
    experiment.main([*command, "--again", "dp_sgd"])
    changed = [a != b for a, b in zip(first.splitlines(), _sorted_like(first, tmp_path), strict=True)]
    assert sum(changed) <= 2  # only the seconds of the two that ran again


def _sorted_like(first: str, folder: Path) -> list[str]:
    key = {",".join(line.split(",")[:4]): k for k, line in enumerate(first.splitlines())}
    lines = (folder / "runs.csv").read_text().splitlines()
    return sorted(lines, key=lambda line: key[",".join(line.split(",")[:4])])


@pytest.mark.parametrize("peer", list(subprocesses.PEERS))
@pytest.mark.parametrize("name", splits.TOYS)
def test_peer_in_its_own_environment_learns(peer: str, name: str) -> None:
    if not subprocesses.installed(peer):
        pytest.skip(f"{peer} is not installed (make peers-env)")
    data = splits.split(name, 0)
    scores = contenders.run(peer, data, epsilon=10.0, seed=0)
    if data.regression:
        assert float(scores["r2"]) < 1  # diffprivlib's functional mechanism may be far below 0
    else:
        assert float(scores["auc"]) > 0.8


def test_split_is_the_one_that_is_published() -> None:
    data = splits.split("toy classes", 3)
    shuffled = splits.table("toy classes").sample(frac=1, random_state=3)
    sizes = [len(part) for part in (data.public, data.private, data.test)]
    assert sizes == [30, 4770, 1200]
    assert (np.concatenate([p.age for p in (data.public, data.private, data.test)]) == shuffled.age).all()
    assert splits.public_rows("adult", 48_842) == 225 and splits.public_rows("skin", 100_000) == 500


def test_what_private_peers_are_told_comes_from_public_rows() -> None:
    """Wild private rows change neither ranges nor the norm nor the columns."""
    data = splits.split("toy classes", 0)
    wild = splits.Split(
        data.public, data.private.assign(age=10**6, job="astronaut"), data.test, data.regression
    )
    for key in ("low", "high"):
        calm, odd = (subprocesses._columns(one)[key] for one in (data, wild))
        assert np.array_equal(calm, odd, equal_nan=True)
    calm, odd = (subprocesses._matrices(one) for one in (data, wild))
    assert calm["norm"] == odd["norm"] and calm["train"].shape == odd["train"].shape
    assert abs(odd["train"]).max() <= 1


def lines_of(scores: dict[str, tuple[float, float]]) -> list[dict[str, str]]:
    """Two splits of one table: accuracy of the first, log loss .4; the second is .01 better."""
    return [
        {"dataset": "magic04", "method": method, "epsilon": "0.1", "repeat": str(repeat),
         "accuracy": str(accuracy + 0.01 * repeat), "auc": ".9", "log_loss": str(loss),
         "rmse": "", "r2": "", "seconds": "1.5"}
        for method, (accuracy, loss) in scores.items()
        for repeat in range(2)
    ]  # fmt: skip


def test_page_names_cells_in_which_the_default_is_behind() -> None:
    text = report.page(lines_of({"sidelight": (0.7, 0.4), "DP-EBM": (0.72, 0.5), "diffprivlib": (0.6, 0.39)}))
    assert "| magic04 | accuracy | 0.1 | .7050 | DP-EBM | .7250 | .0200 ± .0000 |" in text
    assert "| magic04 | log loss | 0.1 | .4000 | diffprivlib | .3900 | .0100 ± .0000 |" in text
    assert "| every other private library | 1 of 1 (100 %) | 0 of 1 | 1 of 1 | 0 of 1 |" in text
    assert "| DP-EBM | **.9000** / **.7250** / .5000 | 1.50 |" in text
    assert "but for the standard error**: nowhere." in text


def test_what_is_free_is_ahead_only_beyond_the_error() -> None:
    lines = lines_of({"sidelight": (0.7, 0.4), "boosting, public rows": (0.705, 0.4)})
    free = report.GROUPS[1]
    assert len(report.losses(report.Results(lines), free)) == 1
    lines[-1]["accuracy"] = str(float(lines[1]["accuracy"]) - 0.001)  # behind by .002 ± .003
    assert report.losses(report.Results(lines), free) == []


def test_a_cell_counts_jointly_if_it_is_behind_what_is_free_or_a_method_of_ours() -> None:
    ours, free = {"sidelight": (0.7, 0.4)}, {"boosting, public rows": (0.705, 0.4)}
    for more in (free, {"dp_sgd": (0.706, 0.4)}, {"sidelight, a line alone": (0.706, 0.4)}):
        found = report.lost_jointly(report.Results(lines_of(ours | more)))
        assert found == {("magic04", 0.1, "accuracy")}
    level = report.Results(lines_of({**ours, "only_public": (0.7, 0.4), "dp_sgd": (0.704, 0.4)}))
    assert report.lost_jointly(level) == set()


def test_several_classes_are_scored_by_accuracy_and_log_loss() -> None:
    rng = np.random.default_rng(0)
    frame = splits.toy(regression=False, rows=300)
    frame["target"] = rng.choice(["a", "b", "c"], 300)
    data = splits.Split(frame[:50], frame[50:200], frame[200:], False)
    right = np.eye(3)[data.target(data.test)]
    scores = contenders._classes(data, right, None)
    assert scores == {"accuracy": 1.0, "log_loss": pytest.approx(0.0, abs=1e-9)}
    assert set(contenders.contenders("poker")) & set(subprocesses.PEERS) == {"diffprivlib"}


def test_new_tables_take_everything_but_other_libraries_from_public_pays() -> None:
    there = {job["method"] for job in experiment.jobs(1) if job["dataset"] in splits.NEW}
    assert there <= {*subprocesses.PEERS, GIVEN}
    assert {line["dataset"] for line in experiment.shared_lines()} <= set(splits.NEW)


def test_probabilities_stand_beside_those_of_the_model_without_privacy() -> None:
    lines = [
        {**line, "epsilon": epsilon, "ece": error}
        for epsilon, error in (("0.3", ".05"), ("1.0", ".012"))
        for line in lines_of({"sidelight": (0.7, 0.41), "non_private": (0.7, 0.4)})
    ]
    for line in lines:
        line["ece"] = ".01" if line["method"] == "non_private" else line["ece"]
    text = report.page(lines)
    assert "in 1 of 1 cells, and the calibration error within .01 in 1." in text
    assert "| magic04 | 0.3 | .4100 | .4000 | 1.025 | .0500 | .0100 | +0.0400 |" in text


def test_calibration_error_sees_a_planted_miscalibration() -> None:
    rng = np.random.default_rng(0)
    chance = rng.uniform(size=20_000)
    truth = (rng.random(20_000) < chance).astype(float)
    assert calibration_error(chance, truth) < 0.015
    assert calibration_error(chance**2, truth) > 0.1


def test_loss_is_of_the_splits_that_both_have_run() -> None:
    lines = lines_of({"sidelight": (0.7, 0.4), "DP-EBM": (0.7, 0.4)})
    found = report.Results(lines[:-1]).loss("magic04", "DP-EBM", 0.1, "accuracy")
    assert found is None  # on split 0 they are equal; our mean of both is higher
    assert report.Results(lines).loss("magic04", "only_public", 0.1, "accuracy") is None


def test_numbers_are_short_and_a_hopeless_r2_is_not_spelled_out() -> None:
    assert report.number(0.85321, "accuracy") == ".8532"
    assert report.number(-0.5, "r2") == "-.5000" and report.number(-17764.0, "r2") == "< −10"
    assert report.number(71234.5, "rmse") == "71,234" and report.number(math.pi, "log_loss") == "3.142"


def test_published_page_is_what_the_command_writes_from_the_committed_runs() -> None:
    page = (ROOT / "docs/reproductions/peers.md").read_text()
    lines = read(experiment.HERE / "runs.csv") + experiment.shared_lines()
    assert page == report.page(lines), "python -m experiments.peers --docs …"


def test_index_says_of_other_libraries_what_the_runs_say() -> None:
    """Seventeen tables; another library is ahead in at most 5 % of the cells, by the first score."""
    lines = read(experiment.HERE / "runs.csv")
    results = report.Results(lines + experiment.shared_lines())
    lost = report.losses(results, report.GROUPS[0], first=True)
    tables = {name for name, _, _ in report._cells(results, report.GROUPS[0], first=True)}
    assert len(tables) == 17 and len(lost) <= 0.05 * 4 * 17
    assert {*splits.CLASSES, *splits.NUMBERS, *splits.APART} <= {line["dataset"] for line in lines}
    assert set(subprocesses.PEERS) <= {line["method"] for line in lines if line["dataset"] in splits.NEW}
