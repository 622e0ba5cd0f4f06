"""auto on networks: planned on public things, charged before a record is read, not worse than its start."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deep.networks import Listed, blobs, loss, mlp, vector
from torch import Tensor

from sidelight.deep import Checkpoints, PrivateNetRegressor, PublicTraining, Trainer
from sidelight.deep.fit import Fit
from sidelight.deep.gradient_points import batch_for
from sidelight.deep.guard import annealed
from sidelight.deep.network_auto import Choice
from sidelight.deep.paid_choice import COMPARED
from sidelight.errors import BudgetExceeded, InputError, PrivacyConditionError
from sidelight.privacy.ledger import Ledger
from sidelight.problems import network

PRIVATE, PUBLIC, TEST = blobs(1200, 1), blobs(160, 2), blobs(400, 3)
BRIEF = PublicTraining(steps=8, batch_size=32)  # a poor start, so that there is something to gain
SAID = ("chosen", "reasons", "step_size", "momentum", "steps", "expected_batch_size", "public_training")


def make(model: Any = None, **options: Any) -> Trainer:
    chosen: dict[str, Any] = {"epsilon": 4, "delta": 1e-4, "steps": 12, "expected_batch_size": 100}
    chosen |= {"random_state": 1, "warm_up": BRIEF, "progress": False, **options}
    return Trainer(mlp() if model is None else model, loss, **chosen)


def said(trainer: Trainer) -> dict[str, Any]:
    return {name: trainer.privacy_.details.get(name) for name in SAID}


def other_private() -> tuple[Tensor, Tensor]:
    """As many records, and nothing else in common."""
    return torch.zeros(1200, 4), torch.zeros(1200, dtype=torch.long)


class Stop(Exception):
    """The machine goes down."""


def read_while_planning(monkeypatch: pytest.MonkeyPatch, private: Listed) -> int:
    """How many private records are fetched before anything is charged."""

    def stop(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "_begin", stop)
        with pytest.raises(Stop):
            make().fit(private, PUBLIC)
    return private.fetched


def test_the_plan_is_made_without_a_private_record(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_while_planning(monkeypatch, Listed(PRIVATE)) == 0


def test_choices_are_the_same_whatever_the_private_records_are() -> None:
    assert said(make().fit(PRIVATE, PUBLIC)) == said(make().fit(other_private(), PUBLIC))


def test_a_start_that_reads_private_records_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two tests above see the fault that they are there for."""
    held: list[Listed] = []

    def peeking(oracle: Any, records: Any, how: Any, *, seed: int, pull: Any = None) -> dict[str, object]:
        rows = torch.stack([held[-1][k][0] for k in range(9)])
        return {"steps": 1, "mean": float(rows.mean())}

    monkeypatch.setattr(network, "train_well", peeking)
    answers = []
    for records in (PRIVATE, other_private()):
        held.append(Listed(records))
        answers.append(said(make().fit(held[-1], PUBLIC)))
    assert answers[0] != answers[1]
    held.append(Listed(PRIVATE))
    assert read_while_planning(monkeypatch, held[-1]) > 0


def test_a_plan_above_the_budget_is_refused_before_a_record_is_read() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=1, delta=1e-4)
    private = Listed(PRIVATE)
    with pytest.raises(BudgetExceeded):
        make(ledger=ledger, dataset="people").fit(private, PUBLIC)
    assert private.fetched == 0 and not ledger.charges("people")


def test_every_choice_is_in_the_statement() -> None:
    trainer = make(random_state=6).fit(PRIVATE, PUBLIC)
    details: Any = trainer.privacy_.details
    assert trainer.privacy_.method == "auto" and 3.9 < trainer.privacy_.epsilon <= 4
    assert details["chosen"] == "dp_sgd" and details["reasons"] and details["momentum"] == 0.9
    assert details["public_records"] == 160 and "public_records_held_out" not in details
    assert details[COMPARED]["returned"] == "private" and 0 < details[COMPARED]["share_of_budget"] < 0.04
    assert trainer.evaluate(TEST)["accuracy"] > 0.9


def test_a_run_that_made_the_network_worse_returns_its_start() -> None:
    uphill = functools.partial(torch.optim.SGD, lr=3.0, maximize=True)
    trainer = make(warm_up=None, optimizer=uphill, stop_if_dead=False).fit(PRIVATE, PUBLIC)
    details: Any = trainer.privacy_.details
    assert details[COMPARED]["returned"] == "start"
    assert trainer.evaluate(TEST)["accuracy"] > 0.9


def test_nothing_is_spent_or_read_where_private_records_weigh_less_than_public_ones() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    private = Listed(PRIVATE)
    trainer = make(epsilon=0.01, warm_up=None, ledger=ledger, dataset="people").fit(private, PUBLIC)
    assert trainer.privacy_.epsilon == 0 and private.fetched == 0 and not ledger.charges("people")
    details = trainer.privacy_.details
    assert details["chosen"] == "only_public" and "no budget is spent" in str(details["reasons"])
    assert trainer.history_ == [] and trainer.evaluate(TEST)["accuracy"] > 0.9


def test_without_public_records_it_is_dp_sgd_with_a_plan_of_its_own() -> None:
    trainer = make(steps=None, expected_batch_size=None, warm_up=None).fit(blobs(3000, 1))
    details = trainer.privacy_.details
    assert details["chosen"] == "dp_sgd" and "no public records" in str(details["reasons"])
    assert details["expected_batch_size"] == 512 and details["steps"] == 117
    assert 3.9 < trainer.privacy_.epsilon <= 4 and trainer.evaluate(TEST)["accuracy"] > 0.9
    with pytest.raises(InputError, match="dataset"):
        make().fit(PRIVATE)


def test_an_optimizer_of_the_users_is_taken() -> None:
    sgd = functools.partial(torch.optim.SGD, lr=0.3)
    details = make(optimizer=sgd).fit(PRIVATE, PUBLIC).privacy_.details
    assert details["optimizer"] == "SGD" and details["chosen"] == "dp_sgd"


def test_batches_grow_with_the_records_and_are_never_tiny() -> None:
    assert [batch_for(n) for n in (1, 300, 3000, 57_000)] == [1, 300, 512, 7125]
    assert [round(annealed(step, 8), 3) for step in (0, 2, 4, 8, 9)] == [1, 0.854, 0.5, 0, 0]


def cut(monkeypatch: pytest.MonkeyPatch, trainer: Trainer, *, after: int) -> None:
    """Fit, and fail in the middle."""
    honest, calls = Fit._move, [0]

    def move(fit: Fit) -> None:
        calls[0] += 1
        if calls[0] > after:
            raise Stop
        honest(fit)

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "_move", move)
        with pytest.raises(Stop):
            trainer.fit(PRIVATE, PUBLIC)


@pytest.mark.parametrize("seed", [1, None], ids=["seeded", "not seeded"])
def test_a_run_that_was_cut_goes_on_with_what_it_had_chosen(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"random_state": seed, "checkpoints": Checkpoints(tmp_path, every=3)}
    cut(monkeypatch, make(**options), after=7)
    monkeypatch.setattr(network, "train_well", lambda *_, **__: pytest.fail("trained again"))
    resumed = make(**options).fit(PRIVATE, PUBLIC, resume=True)
    assert len(resumed.history_) == 12 and resumed.privacy_.epsilon <= 4
    assert resumed.privacy_.details["public_training"] == {"steps": 8}
    again = make(**options).fit(PRIVATE, PUBLIC, resume=True)  # it is finished
    assert torch.equal(vector(again.model), vector(resumed.model)) and again.privacy_ == resumed.privacy_


def test_a_resumed_run_is_the_run_that_was_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(checkpoints=tmp_path / "whole").fit(PRIVATE, PUBLIC)
    options: dict[str, Any] = {"checkpoints": Checkpoints(tmp_path / "cut", every=3)}
    cut(monkeypatch, make(**options), after=7)
    resumed = make(**options).fit(PRIVATE, PUBLIC, resume=True)
    assert torch.equal(vector(resumed.model), vector(whole.model)) and resumed.history_ == whole.history_


def test_the_checkpoint_of_another_method_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"checkpoints": Checkpoints(tmp_path, every=3)}
    cut(monkeypatch, make(method="dp_sgd", **options), after=7)
    with pytest.raises(PrivacyConditionError, match="another method"):
        make(**options).fit(PRIVATE, PUBLIC, resume=True)


def test_a_choice_survives_json() -> None:
    choice = Choice("dp_sgd", 100.0, 12, 2.0, ("because",))
    assert Choice.from_json(choice.to_json()) == choice


def test_a_regressor_is_compared_with_its_start_too() -> None:
    x = PUBLIC[0].double()
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    options: dict[str, Any] = {"epsilon": 4.0, "steps": 10, "random_state": 0, "warm_up": BRIEF}
    model = PrivateNetRegressor(net, **{"epsilon": 1.0, **options})
    model.fit(PRIVATE[0].numpy(), PRIVATE[0][:, 0].numpy(), x.numpy(), x[:, 0].numpy())
    found: Any = model.privacy_.details[COMPARED]
    assert model.privacy_.method == "auto" and list(found["gains"]) == ["0.25", "0.5", "1"]


class Half(torch.nn.Module):
    """Scores in bfloat16, from a norm over groups of columns."""

    def __init__(self) -> None:
        super().__init__()
        rows = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GroupNorm(2, 8), torch.nn.ReLU())
        self.net = torch.nn.Sequential(rows, torch.nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores: Tensor = self.net(x)
        return scores


def test_scores_in_bfloat16_and_group_norms_of_rows_are_fine() -> None:
    """The first ended in a TypeError after the fit."""
    trainer = make(Half()).fit(PRIVATE, PUBLIC)
    assert trainer.history_[0]["route"] == "layers" and COMPARED in trainer.privacy_.details
    assert trainer.evaluate(TEST)["accuracy"] > 0.5 and len(trainer.predict(TEST[0])) == 400
