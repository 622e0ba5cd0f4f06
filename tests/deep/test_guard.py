"""Runs that diverge get shorter steps, and dead ones are stopped: by public records and released values."""

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deep.networks import blobs, loss, mlp, vector
from torch import Tensor

from sidelight.deep import Checkpoints, Loading, Trainer
from sidelight.deep.guard import Guard, largest_live_loss
from sidelight.errors import AssumptionError, PrivacyWarning
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.ppsgd import ppsgd
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import accountants, events
from sidelight.privacy.ledger import Ledger
from sidelight.problems.datasets import Records
from sidelight.problems.flat_parameters import write
from sidelight.problems.network import NetworkProblem
from sidelight.problems.network_public import HeldOut, NetworkGuide, Score

PRIVATE, PUBLIC, TEST = blobs(400, 1), blobs(400, 2), blobs(400, 3)
STILL = functools.partial(torch.optim.SGD, lr=1e-12)  # nothing is ever learned


def make(**options: Any) -> Trainer:
    chosen: dict[str, Any] = {"epsilon": 2, "delta": 1e-4, "steps": 150, "expected_batch_size": 100}
    chosen |= {"method": "dp_sgd", "random_state": 1, "progress": False, "health_check": False, **options}
    return Trainer(mlp(), loss, **chosen)


def guarded(public: tuple[Tensor, Tensor], **options: Any) -> tuple[Guard, torch.nn.Module]:
    oracle = NetworkOracle(mlp(), loss)
    records = Records(torch.utils.data.TensorDataset(*public), Loading(), torch.device("cpu"))
    return Guard(oracle, HeldOut(oracle, records), **{"steps": 1, **options}), oracle.model


def dead(trainer: Trainer, private: Any = PRIVATE, **options: Any) -> Trainer:
    with pytest.warns(PrivacyWarning, match="stopped after"):
        return trainer.fit(private, PUBLIC, **options)


def notes(trainer: Trainer) -> str:
    return str(trainer.privacy_.details["notes"])


def test_a_step_that_diverges_is_taken_back_and_the_next_are_shorter() -> None:
    guard, model = guarded(PUBLIC)
    start = vector(model)
    write(model, start * 0.99)
    guard.after_step()
    assert guard.scale == 1 and not guard.notes
    for bad in (start + float("nan"), 100 * torch.randn(len(start))):
        write(model, bad)
        guard.after_step()
        assert torch.equal(vector(model), start * 0.99)
    assert guard.scale == 0.25 and "step 2, 3" in guard.notes[0]


def test_records_that_were_learned_from_can_only_tell_what_is_worse_than_chance() -> None:
    """They are known by heart at a warm start: that they are forgotten is no sign of a step too long."""
    guard, model = guarded(PUBLIC, seen=True, steps=3)
    start = vector(model)
    assert guard.chance is not None and guard.judge is not None
    losses = iter([0.01, guard.chance, 2 * guard.chance + 0.3])
    guard._loss = lambda: next(losses)  # type: ignore[method-assign]
    for scale in (1.0, 1.0, 0.5):
        write(model, start)
        guard.after_step()
        assert guard.scale == scale


def test_a_run_that_learns_nothing_is_stopped_after_a_third_of_its_plan() -> None:
    trainer = dead(make(optimizer=STILL))
    assert len(trainer.history_) == 56 and "stopped after 56 of 150 steps" in notes(trainer)
    assert not trainer.stopped_  # nobody asked for it, and there is nothing to resume
    taken = make(optimizer=STILL, stop_if_dead=False).fit(PRIVATE, PUBLIC)
    assert len(taken.history_) == 150


def test_a_stopped_run_states_the_whole_plan_and_no_less() -> None:
    """When it stopped depends on released values: the steps taken are a bound only under a filter."""
    statement = dead(make(optimizer=STILL)).privacy_
    (part,) = events.elementary(statement.plan)
    whole = events.repeat(part, 150)
    assert events.elementary(statement.plan) == events.elementary(whole)
    assert statement.epsilon == accountants.epsilon(whole, delta=1e-4, relation="add-or-remove-one")
    assert "the whole plan stays charged" in str(statement.details["notes"])


@pytest.mark.parametrize(("lifetime", "steps"), [(8.0, 56), (2.0, 150)], ids=["filter", "exact"])
def test_steps_not_taken_are_taken_back_where_a_filter_admitted_the_run(lifetime: float, steps: int) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=lifetime, delta=1e-4)
    trainer = dead(make(optimizer=STILL, ledger=ledger, dataset="people"))
    (charge,) = ledger.charges("people")
    assert sum(events.elementary(charge.event).values()) == steps
    assert ("charged for these steps alone" in notes(trainer)) == (steps == 56)


def test_a_filter_of_the_runs_own_keeps_its_whole_charge() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=20, delta=1e-4)
    method = ppsgd(planned_steps=150)
    trainer = dead(make(method=method, steps=None, optimizer=STILL, ledger=ledger, dataset="people"))
    (charge,) = ledger.charges("people")
    assert not charge.lowered and "the whole plan stays charged" in notes(trainer)


def test_private_records_have_no_say_in_when_a_run_stops() -> None:
    """Held-out public records decide, at parameters that are released."""
    other = torch.zeros(400, 4), torch.zeros(400, dtype=torch.long)
    assert len(dead(make(optimizer=STILL), other).history_) == 56


def test_a_short_plan_is_not_judged() -> None:
    """A network that begins slowly has not had the time to show anything after a few steps."""
    assert len(make(optimizer=STILL, steps=49).fit(PRIVATE, PUBLIC).history_) == 49


def test_a_run_that_learns_takes_all_of_its_steps() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        trainer = make(epsilon=8).fit(PRIVATE, PUBLIC)
    assert len(trainer.history_) == 150 and trainer.evaluate(TEST)["accuracy"] > 0.8


def test_the_best_iterate_is_what_is_left() -> None:
    """It learned, then a long step threw it away; before the fix it went on to the end."""

    def kicked(optimizer: torch.optim.Optimizer) -> Any:
        rates = [1.0] * 25 + [1e4] + [0.0] * 200
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])

    trainer = dead(make(epsilon=8, steps=200, scheduler=kicked, method=dp_sgd(step_size=2.0)))
    assert "best iterate" in notes(trainer) and trainer.evaluate(TEST)["accuracy"] > 0.6


@pytest.mark.parametrize("method", ["dp_sgd", "dope_sgd", "coupling"])
def test_a_users_optimizer_that_diverges_leaves_the_best_iterate(method: str) -> None:
    wild = functools.partial(torch.optim.SGD, lr=1e30)
    trainer = dead(make(method=method, optimizer=wild, steps=4))
    assert "diverged" in notes(trainer) and bool(vector(trainer.model).isfinite().all())
    seen = dead(make(method=method, optimizer=wild, steps=4, validation=0))  # records that it learned from
    assert "diverged" in notes(seen)
    with pytest.raises(AssumptionError, match="training diverged"):
        make(method="dp_sgd", optimizer=wild, steps=4).fit(PRIVATE)


def test_a_dead_run_with_checkpoints_has_ended(tmp_path: Path) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=8, delta=1e-4)
    options: dict[str, Any] = {"optimizer": STILL, "checkpoints": Checkpoints(tmp_path, every=20)}
    options |= {"ledger": ledger, "dataset": "people"}
    first = dead(make(**options))
    again = dead(make(**options), resume=True)
    assert again.privacy_ == first.privacy_ and torch.equal(vector(again.model), vector(first.model))
    assert len(ledger.charges("people")) == 1


def test_chance_is_the_entropy_of_the_classes() -> None:
    guard, _ = guarded(PUBLIC)
    shares = torch.bincount(PUBLIC[1]) / 400
    assert guard.chance == pytest.approx(-float((shares * shares.log()).sum()) + 2 / 800)
    one_class = PUBLIC[0], torch.zeros(400, dtype=torch.long)
    assert guarded(one_class)[0].chance is None


def test_a_trained_start_may_lose_a_tenth_of_what_it_knew() -> None:
    def limit(start: float, chance: float | None) -> float:
        return largest_live_loss(Score(torch.tensor([start]).double().numpy(), chance=chance))

    assert limit(2.31, 2.30) == pytest.approx(0.99 * 2.30)  # nothing is known yet
    assert limit(0.30, 2.30) == pytest.approx(0.50)
    assert limit(-3.0, None) == -3.0  # no classes: better than the start


def test_model_reuse_that_diverges_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The private steps are paid for by then."""

    def diverge(*_: Any) -> Any:
        raise AssumptionError("plain training on public records diverged")

    monkeypatch.setattr(NetworkProblem, "refit", diverge)
    trainer = make(method=ppsgd(planned_steps=6), steps=None, epsilon=8).fit(PRIVATE, PUBLIC)
    assert "model reuse was left out" in notes(trainer)


def test_model_reuse_learns_where_plain_sgd_diverges() -> None:
    """Its step size is chosen on held-out records: 0.1 is too long for these inputs."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    oracle = NetworkOracle(net, loss)
    learn, apart = (
        Records(torch.utils.data.TensorDataset(30 * x, y), Loading(), torch.device("cpu"))
        for x, y in (PUBLIC, TEST)
    )
    problem = NetworkProblem(oracle, n=10, guide=NetworkGuide(oracle, learn, held_out=apart))
    found = problem.refit(vector(net), 1e-3)
    assert bool(found.isfinite().all()) and HeldOut(oracle, apart).score().accuracy > 0.9
