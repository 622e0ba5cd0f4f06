"""The experiment behind docs/choosing.md, in small."""

from pathlib import Path

import numpy as np
import pytest
from experiments.choosing import __main__ as experiment
from experiments.choosing import sentences

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
    assert "By more than half a point in 0 of 1 cells" in text


def test_cells_in_which_auto_is_behind_are_named() -> None:
    lines = [
        {"dataset": "magic04", "public": "30", "epsilon": "0.1", "method": method, "repeat": str(repeat),
         "accuracy": str(accuracy + 0.01 * repeat), "seconds": "1"}
        for method, accuracy in (("auto", 0.7), ("auto, hinge", 0.708), ("dp_sgd", 0.6))
        for repeat in range(2)
    ]  # fmt: skip
    text = experiment.page(lines)
    assert "By more than half a point in 1 of 1 cells" in text
    assert "| magic04 | 30 | 0.1 | `auto`, hinge | .0080 ± .0000 | 2 | .0080 ± .0000 |" in text


def test_more_splits_decide_about_a_contested_cell() -> None:
    few, many = (
        [
            {"dataset": "magic04", "public": "30", "epsilon": "0.1", "method": method, "repeat": str(repeat),
             "accuracy": str(accuracy + 0.01 * repeat), "seconds": "1"}
            for method, accuracy in (("auto", 0.7), ("ppsgd", ahead), ("dp_sgd", 0.6))
            for repeat in range(repeats)
        ]
        for ahead, repeats in ((0.708, 2), (0.703, 4))
    )  # fmt: skip
    jobs = experiment.contested_jobs(few, 4)
    assert {job["method"] for job in jobs} == {"auto", "ppsgd"} and len(jobs) == 8
    text = experiment.page(few, [line for line in many if line["method"] != "dp_sgd"])
    assert "By more than half a point in 0 of 1 cells" in text
    assert "| magic04 | 30 | 0.1 | `ppsgd` | .0080 ± .0000 | 4 | .0030 ± .0000 |" in text


def test_sentences_are_left_out_with_a_line_where_their_features_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIDELIGHT_DATA", str(tmp_path))
    assert experiment.sentence_jobs(3) == []
    assert "SST-2 is left out: sst2_minilm.npz is not in" in sentences.missing()


def test_sentences_run_where_their_features_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDELIGHT_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 6)) / 3
    y = (X[:, 0] > 0).astype(int)
    np.savez(sentences.file(), X=X[500:], y=y[500:], X_dev=X[:500], y_dev=y[:500])
    sentences.features.cache_clear()
    monkeypatch.setattr(sentences, "PUBLIC", (34, 100))
    monkeypatch.setattr(sentences, "TEST", 500)
    job = {"dataset": "sst2", "public": 34, "epsilon": 2.0, "method": "auto", "repeat": 0}
    assert job in experiment.sentence_jobs(1)
    assert float(experiment.run(job)["accuracy"]) > 0.8
    sentences.features.cache_clear()
    experiment.data.cache_clear()
