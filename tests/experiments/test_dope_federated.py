from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.datasets import available
from experiments.dope_federated import __main__ as experiment
from experiments.dope_federated.fleet import METHODS, PUBLIC_ONLY, deal
from experiments.sweep import read


def test_every_image_goes_to_one_user_and_skewed_users_hold_two_classes() -> None:
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 300))
    for skewed in (False, True):
        held = deal(y, np.random.default_rng(1), each=10, skewed=skewed)
        assert len(np.unique(held)) == held.size == 3000
        kinds = np.array([len(np.unique(y[one])) for one in held])
        assert kinds.max() <= 2 if skewed else kinds.mean() > 5


def test_a_page_has_the_paper_and_a_dash_for_what_was_not_run() -> None:
    line = {"split": "even", "local": "FedSGD", "spent": "1", "setting": "", "seconds": "1"}
    lines = [
        {**line, "epsilon": "1.0", "method": method, "seed": str(seed), "accuracy": str(score + 0.01 * seed)}
        for method, score in (("dp_sgd (all)", 0.8), ("dope_sgd", 0.82))
        for seed in range(2)
    ]
    text = experiment.page(lines)
    assert "| dope_sgd | – | 82.5 ± 0.5 (+2.0) | – | – |" in text
    assert "| dope_sgd | 84.7 (+2.5) | 85.2 (+1.8) |" in text


@pytest.mark.skipif(not available("mnist"), reason="needs mnist.npz in SIDELIGHT_DATA")
def test_the_quick_version_runs_every_method_within_its_budget(tmp_path: Path, capsys: Any) -> None:
    experiment.main(["--quick", "--out", str(tmp_path)])
    lines = read(tmp_path / "runs.csv")
    assert {line["method"] for line in lines} == {PUBLIC_ONLY, *METHODS}
    assert all(float(line["spent"]) <= 4 for line in lines)
    assert all(float(line["accuracy"]) > 0.3 for line in lines)
    assert "FedAvg, users of two digits each" in capsys.readouterr().out
