"""The experiment runs from end to end in a small version, stops, and goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from experiments.networks_auto import caps, ideas, step_rule, warm_starts  # noqa: E402
from experiments.networks_auto.__main__ import BY_HAND, EVERYWHERE, LOGISTIC, arguments, by_hand, jobs, main  # noqa: E402
from experiments.networks_auto.report import ideas as ideas_table  # noqa: E402
from experiments.networks_auto.report import step_rule as rule_table  # noqa: E402
from experiments.networks_auto.report import table  # noqa: E402
from experiments.networks_auto.tasks import TASKS  # noqa: E402
from experiments.sweep import read  # noqa: E402


@pytest.mark.filterwarnings("ignore:a seed")
def test_a_small_version_runs_and_resumes(tmp_path: Path, capsys: Any) -> None:
    command = ["--task", "invented", "--out", str(tmp_path), "--docs", str(tmp_path / "page.md")]
    main(command)
    runs = read(tmp_path / "runs.csv")
    assert [row["method"] for row in runs] == list(EVERYWHERE)
    assert all(float(row["epsilon"]) <= 2 for row in runs) and float(runs[1]["epsilon"]) == 0
    assert float(runs[0]["accuracy"]) >= float(runs[1]["accuracy"]) - 0.02
    page = (tmp_path / "page.md").read_text()
    assert "| invented | auto |" in capsys.readouterr().out and "| candidate |" in page
    main(command)  # everything is there: nothing is added
    assert read(tmp_path / "runs.csv") == runs


def test_settings_by_hand_run_where_a_run_takes_a_minute() -> None:
    planned = jobs(arguments(["--seeds", "2"]))
    assert {job["task"] for job in planned if job["method"] in BY_HAND} == {"adult", "magic", "sst2"}
    assert not any(job["task"] == "mnist, augmented" and "no public" in job["method"] for job in planned)
    assert [job["method"] for job in planned if job["task"] == "mnist rows"] == ["only_public", LOGISTIC] * 2
    task = TASKS["invented"](0)
    for method in BY_HAND:
        made = by_hand(task, method)
        assert made["method"].name == method.split(",")[0] and made["expected_batch_size"] == 8
    assert by_hand(task, "only_public") == {"method": "only_public"}


def test_a_table_has_a_line_a_method_and_all_seeds() -> None:
    rows = [
        {"task": "adult", "method": "auto", "seed": str(k), "accuracy": str(0.84 + 0.01 * k), "start": "0.8",
         "epsilon": "2.0", "chosen": "coupling", "step_size": "2.0", "weight": "0.0277255", "evidence": "{}",
         "seconds": "10"}
        for k in range(2)
    ]  # fmt: skip
    made = table([*rows, {**rows[0], "method": "only_public", "accuracy": "0.7", "start": ""}])
    assert "| adult | auto | 84.50 ± 0.50 (84.00, 85.00) | 2 | coupling | 2 | 0.0277 | 10 |" in made
    assert "| adult | only_public | 75.00 ± 5.00 (70.00, 80.00) |" in made  # the second is where `auto` began


def test_limits_are_compared_on_public_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = caps.candidates()[:2]
    monkeypatch.setattr(caps, "candidates", lambda: first)
    caps.main(["--task", "invented", "--out", str(tmp_path)])
    assert [row["limit"] for row in read(tmp_path / "caps.csv")] == ["1.0", "inf"]


def test_ends_of_a_warm_start_are_compared_on_public_records(tmp_path: Path) -> None:
    warm_starts.main(["--task", "invented", "--rate", "0.004", "--out", str(tmp_path)])
    (row,) = read(tmp_path / "warm_starts.csv")
    assert row["steps"] == "300" and 0.5 < float(row["accuracy 2"]) <= 1
    images = torch.arange(30.0), torch.arange(30)
    learn, held_out, judge = warm_starts.parts(images, 1)
    assert [len(part[1]) for part in (learn, held_out, judge)] == [18, 2, 10]
    assert sorted(torch.cat([learn[1], held_out[1], judge[1]]).tolist()) == list(range(30))


@pytest.mark.filterwarnings("ignore")
def test_multiples_of_a_step_size_are_compared_on_records_that_are_no_test_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_rule, "EPSILONS", (2.0,))
    monkeypatch.setattr(step_rule, "FACTORS", (1.0, 2.0))
    monkeypatch.setattr(step_rule, "METHODS", {k: step_rule.METHODS[k] for k in ("dp_sgd", "coupling")})
    step_rule.main(["--problem", "invented", "--out", str(tmp_path)])
    rows = read(tmp_path / "step_rule.csv")
    assert float(rows[1]["step_size"]) == pytest.approx(2 * float(rows[0]["step_size"]), rel=0.01)
    assert {row["method"] for row in rows} == {"dp_sgd", "coupling"}
    made = rule_table(rows).splitlines()
    assert made[2].startswith("| dp_sgd | invented | 64 | 2 |") and made[4].startswith(
        "| coupling | mean of 1"
    )
    for kind, shape in (("64-64-64", (2, 12)), ("convolutions", (2, 3, 32, 32))):
        pair = torch.zeros(shape), torch.tensor([0, 4])
        assert step_rule.network_of(kind, pair)(pair[0]).shape == (2, 5)


@pytest.mark.filterwarnings("ignore")
def test_ideas_take_what_auto_chose_and_look_at_public_records(tmp_path: Path) -> None:
    ideas.main(["--task", "invented", "--seeds", "1", "--out", str(tmp_path)])
    rows = read(tmp_path / "ideas.csv")
    assert [row["idea"] for row in rows] == list(ideas.IDEAS)
    assert min(float(row["accuracy"]) for row in rows) > 0.5
    assert ideas_table(rows).splitlines()[2].startswith("| invented | 1 |")
    trial = ideas.Trial("invented", 0)
    parts = (trial.private, trial.judge)
    assert len(parts[0][1]) == 3 * len(parts[1][1])


def test_a_line_search_takes_the_length_that_held_out_records_prefer() -> None:
    weight = torch.nn.Parameter(torch.tensor([4.0]))
    made = ideas.Looking([weight], 1.0, lambda: float(weight.detach() ** 2), search=True, every=1)
    weight.grad = torch.tensor([2.0])  # 4 - 2 * 2 is the best of 3, 2 and 0
    made.step()
    assert weight.item() == 0 and made.kept[0][0] == 0
    assert [ideas.restarted(k, 8) for k in (0, 3, 4, 6)] == [1.0, 0.5, 1.0, 1.0]
