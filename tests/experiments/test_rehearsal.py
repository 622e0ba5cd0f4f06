"""A short version of the rehearsal experiment."""

import pytest
from experiments import datasets


def test_rehearsal_experiment_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if not datasets.available("stability"):
        pytest.skip("the stability table is not in $SIDELIGHT_DATA")
    from experiments.rehearsal import __main__ as experiment

    monkeypatch.setattr(experiment, "CELLS", [("stability", "square", (0.3,))])
    head, _, *lines = experiment.rows(1)
    assert "only_public" in head and len(lines) == 2
    errors = [float(part.split(" ± ")[0]) for part in lines[0].split("|")[4:8]]
    assert all(0.03 < error < 0.2 for error in errors)
