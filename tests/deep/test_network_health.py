"""Networks count the records that contribute nothing; margins are six standard deviations of the noise."""

import signal
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deep.networks import Listed, blobs, loss, mlp

from sidelight.deep import Checkpoints, PrivateNetClassifier, Trainer
from sidelight.errors import PrivacyWarning, RecordsWarning
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.ppsgd import ppsgd
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import events
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.observer import Observer

PUBLIC = blobs(60, 2)


def make(**options: Any) -> Trainer:
    chosen: dict[str, Any] = {"method": dp_sgd(), "epsilon": 8, "delta": 1e-4, "steps": 3, "progress": False}
    return Trainer(mlp(), loss, stop_if_dead=False, **{**chosen, "expected_batch_size": 60, **options})


def found(trainer: Any) -> dict[str, Any]:
    check = trainer.privacy_.details["health_check"]
    assert isinstance(check, dict)
    return check


def test_a_total_mismatch_is_reported_at_epsilon_one() -> None:
    x, y = blobs(5_000, 1)
    with pytest.warns(RecordsWarning, match="contributed nothing"):
        trainer = make(epsilon=1).fit((torch.full_like(x, torch.nan), y), PUBLIC)
    low, high = found(trainer)["ignored"]
    assert low > 4_250 and high > 4_750
    assert trainer.history_[-1]["health_check"]["ignored"] == [low, high]
    assert "contributed nothing" in str(trainer.privacy_)
    assert 0.99 < trainer.privacy_.epsilon <= 1


@pytest.mark.parametrize("bad", ["labels", "items"])
def test_records_on_which_the_loss_fails_or_that_cannot_be_read_are_counted(bad: str) -> None:
    x, y = blobs(300, 1)
    private: Any = (x, torch.where(torch.arange(300) < 100, 9, y))
    if bad == "items":
        private = Broken(blobs(300, 1), 100)
    low, high = found(make().fit(private, PUBLIC))["ignored"]
    assert low < 100 + 36 and high > 100 - 36 and high < 220


class Broken(Listed):
    """The last records cannot be read."""

    def __init__(self, tensors: Any, count: int) -> None:
        super().__init__(tensors)
        self.count = count

    def __getitem__(self, place: int) -> Any:
        if place >= len(self) - self.count:
            raise OSError("no such file")
        return super().__getitem__(place)


def test_sound_records_are_quiet_and_the_plan_costs_what_was_asked_for() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=8, delta=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecordsWarning)
        trainer = make(ledger=ledger).fit(blobs(400, 1), PUBLIC)
    low, high = found(trainer)["ignored"]
    assert low < 20 and high < 60
    (charge,) = ledger.charges("people")
    assert sum(events.elementary(charge.plan).values()) == 4
    assert 7.9 < trainer.privacy_.epsilon <= 8


def test_a_person_counts_once_and_one_bad_row_spoils_them() -> None:
    x, y = blobs(900, 1)
    whose = np.arange(900) // 3
    x[np.arange(0, 300, 3)] = torch.nan  # one row of each of a hundred persons
    trainer = make(unit="patient", max_rows=3, relation="replace-one").fit((x, y), PUBLIC, persons=whose)
    check = found(trainer)
    assert check["records"] == 300
    assert check["ignored"][0] < 140 and 60 < check["ignored"][1] < 200


def test_few_records_and_a_switch_leave_it_out_and_the_statement_says_so() -> None:
    private = blobs(100, 1)
    assert "its noise would hide" in make(epsilon=1).fit(private, PUBLIC).privacy_.health
    assert "switched off" in make(health_check=False).fit(blobs(400, 1), PUBLIC).privacy_.health
    free = make(method="only_public").fit(private, PUBLIC).privacy_
    assert free.epsilon == 0 and "no private record was used" in free.health


def test_a_filtered_plan_has_room_for_it() -> None:
    trainer = make(method=ppsgd(planned_steps=3, reuse=None)).fit(blobs(400, 1), PUBLIC)
    assert found(trainer)["ignored"][0] < 20
    assert trainer.privacy_.epsilon <= 8


def test_many_records_are_counted_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidelight.methods.health_check._SAMPLE", 300)
    x, y = blobs(1_000, 1)
    x[:500] = torch.nan
    for relation in ("add-or-remove-one", "replace-one"):
        trainer = make(relation=relation).fit((x, y), PUBLIC)
        low, high = found(trainer)["ignored"]
        assert low < 500 + 250 and high > 500 - 250 and high - low < 600
        assert trainer.privacy_.epsilon <= 8


class Interrupt(Observer):
    """Ctrl-C in the first step."""

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        if step == 1:
            signal.raise_signal(signal.SIGINT)


def test_a_stopped_run_is_counted_once_it_is_resumed(tmp_path: Path) -> None:
    folder, private = Checkpoints(tmp_path / "run", every=1), blobs(400, 1)
    with pytest.warns(PrivacyWarning, match="Ctrl-C"):
        stopped = make(checkpoints=folder, observers=[Interrupt()]).fit(private, PUBLIC)
    assert "ignored" not in found(stopped) and len(stopped.history_) == 1
    resumed = make(checkpoints=folder).fit(private, PUBLIC, resume=True)
    assert "ignored" in found(resumed) and len(resumed.history_) == 3
    again = make(checkpoints=folder).fit(private, PUBLIC, resume=True)  # it has ended: its result is read
    assert found(again) == found(resumed)


def test_an_estimator_passes_it_on() -> None:
    x, y = (part.numpy() for part in blobs(400, 1))
    settings: dict[str, Any] = {"method": "dp_sgd", "epsilon": 8, "delta": 1e-4, "steps": 3}
    model = PrivateNetClassifier(mlp(), classes=[0, 1, 2], **{"epsilon": 1.0, **settings}).fit(x, y)
    assert found(model)["ignored"][0] < 20
    off = PrivateNetClassifier(
        mlp(), classes=[0, 1, 2], health_check=False, **{"epsilon": 1.0, **settings}
    ).fit(x, y)
    assert "switched off" in off.privacy_.health


def test_contract_catches_a_count_of_rows_in_place_of_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of a person that fails counts: three rows move the count by three."""
    from tests.contracts.neighbors import value_of

    from sidelight.privacy.release import BoundedSum
    from sidelight.problems.network import NetworkProblem

    counts: list[float] = []
    honest = NetworkProblem.count_ignored

    def heard(self: Any, indices: Any, **how: Any) -> BoundedSum:
        total = honest(self, indices, **how)
        counts.append(float(value_of(total)[0]))
        return total

    monkeypatch.setattr(NetworkProblem, "count_ignored", heard)
    x, y = blobs(900, 1)
    without = x.clone()
    without[:3] = torch.nan

    def moved() -> float:
        counts.clear()
        for rows in (x, without):
            make(unit="patient", max_rows=3).fit((rows, y), PUBLIC, persons=np.arange(900) // 3)
        return counts[1] - counts[0]

    assert moved() == 1
    fault = NetworkOracle.count_ignored

    def by_row(self: Any, batch: Any, *, augmentations: int = 1, weights: Any = None, **how: Any) -> Any:
        return fault(self, batch, augmentations=1, **how)

    monkeypatch.setattr(NetworkOracle, "count_ignored", by_row)
    monkeypatch.setattr("sidelight.problems.network.row_count", lambda batch: len(batch[1]))
    assert moved() == 3
