"""Plain training on public records: as the user says, or chosen on folds and then done on all of them."""

from typing import Any

import pytest
import torch

from sidelight.deep import Loading, PublicTraining, Trainer
from sidelight.methods.baselines import only_public
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems import public_training
from sidelight.problems.datasets import Records
from sidelight.problems.network_public import HeldOut, Score
from sidelight.problems.public_training import CycleSetting, plain_steps, train_well

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
PRIVATE, PUBLIC = (X[:150], Y[:150]), (X[150:], Y[150:])
LOSS = torch.nn.CrossEntropyLoss(reduction="none")


def fit(**options: Any) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer(
        torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), epsilon=1.0, delta=1e-5, random_state=0, **options
    )
    return trainer.fit(PRIVATE, PUBLIC)


def stop_after(steps: int) -> Any:
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: float(t < steps))


def test_the_schedule_of_a_warm_up_is_followed() -> None:
    def start(steps: int, **schedule: Any) -> torch.Tensor:
        warm = PublicTraining(steps=steps, batch_size=10, **schedule)
        optimizer = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1e-9)}
        trainer = fit(method=dp_sgd(clip_norm=1e-6), warm_up=warm, steps=1, **optimizer)
        return trainer.model.weight.detach().clone()

    assert torch.allclose(start(9, scheduler=stop_after(3)), start(3), atol=1e-6)
    assert not torch.allclose(start(9), start(3), atol=1e-3)


def test_a_trainers_schedule_holds_for_plain_training_too() -> None:
    def end(steps: int, **schedule: Any) -> torch.Tensor:
        trainer = fit(method=only_public(), expected_batch_size=10, steps=steps, **schedule)
        return trainer.model.weight.detach().clone()

    assert torch.equal(end(9, scheduler=stop_after(3)), end(3))
    assert not torch.equal(end(9), end(3))


def test_left_to_itself_it_chooses_on_folds_trains_on_all_records_and_says_so() -> None:
    trainer = fit(method=only_public())
    said: Any = trainer.privacy_.details["public_training"]
    assert {"step_size", "epochs", "weight_decay", "label_smoothing"} <= set(said)
    assert len(said["on_folds"]) >= 3 and said["steps"] == len(trainer.history_)
    assert trainer.privacy_.details["public_records"] == 50  # none is held out
    assert trainer.evaluate((X.clone(), Y.clone()))["accuracy"] > 0.8


def race(records: Records, **options: Any) -> public_training._Race:
    oracle = NetworkOracle(torch.nn.Linear(4, 2), LOSS)
    return public_training._Race(oracle, records, PublicTraining(**options), seed=0, pull=None)


def everything() -> Records:
    return Records(torch.utils.data.TensorDataset(X, Y), Loading(), torch.device("cpu"))


def test_no_record_judges_a_network_that_was_trained_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []

    def steps(_: Any, records: Records, *args: Any, **named: Any) -> None:
        seen.append(set(records.dataset.indices))  # type: ignore[attr-defined]

    def score(judge: HeldOut) -> Score:
        assert not seen[-1] & set(judge.records.dataset.indices)  # type: ignore[attr-defined]
        return Score(torch.ones(len(judge)).double().numpy())

    monkeypatch.setattr(public_training, "plain_steps", steps)
    monkeypatch.setattr(HeldOut, "score", score)
    assert race(everything()).won() == CycleSetting() and len(seen) > 3


def test_a_setting_is_replaced_where_another_is_better_by_more_than_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def won(gain: float) -> CycleSetting:
        made = race(everything())

        def run(setting: CycleSetting) -> None:
            done = made.found.setdefault(setting, [])
            spread = torch.tensor([1.0, -1.0]).repeat(50).double() * (setting != CycleSetting())
            done.append(Score((2 - gain * (setting.epochs == 10) + spread).numpy()))

        monkeypatch.setattr(made, "_run", run)
        return made.won()

    assert won(1.0).epochs == 10 and won(0.01) == CycleSetting()


def test_time_ends_the_choice_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_training, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(public_training, "_PATIENCE", 0.0)
    oracle = NetworkOracle(torch.nn.Linear(4, 2), LOSS)
    before = HeldOut(oracle, everything()).score().loss
    said: Any = train_well(oracle, everything(), PublicTraining(), seed=0)
    assert len(said["on_folds"]) == 1 and said["steps"] > 100
    assert HeldOut(oracle, everything()).score().loss < before


def test_labels_are_smoothed_where_the_loss_is_cross_entropy_and_nowhere_else() -> None:
    def weights(loss: Any, smoothing: float) -> torch.Tensor:
        torch.manual_seed(0)
        oracle = NetworkOracle(torch.nn.Linear(4, 2), loss)
        plain_steps(oracle, everything(), PublicTraining(steps=20), seed=0, smoothing=smoothing)
        return torch.cat([p.detach().reshape(-1) for p in oracle.model.parameters()])

    torch.manual_seed(0)
    smoothed = torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    assert torch.allclose(weights(LOSS, 0.1), weights(smoothed, 0.0), atol=1e-5)
    assert not torch.allclose(weights(LOSS, 0.1), weights(LOSS, 0.0), atol=1e-3)
    margin = torch.nn.MultiMarginLoss(reduction="none")
    assert torch.allclose(weights(margin, 0.1), weights(margin, 0.0), atol=1e-6)


def test_a_model_that_public_training_makes_worse_is_kept_as_it_was() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()[1, 0] = 2.0
        model.bias.zero_()
    before = model.weight.detach().clone()
    half = torch.where(torch.rand(50, generator=GENERATOR) < 0.25, 1 - Y[150:], Y[150:])
    trainer = Trainer(model, torch.nn.CrossEntropyLoss(), method=only_public(), epsilon=1.0, random_state=0)
    trainer.fit((X[:10] + 1, Y[:10]), (X[150:], half))
    said: Any = trainer.privacy_.details["public_training"]
    kept = said.get("kept") == "the start"
    assert kept == torch.equal(model.weight, before)


def judge(scale: float) -> HeldOut:
    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()[1] = scale * torch.tensor([1.0, 0.3, 0.0, 0.0])
        model.bias.zero_()
    return HeldOut(NetworkOracle(model, LOSS), everything())


def test_how_sure_a_network_is_of_itself_does_not_change_its_score() -> None:
    plain, sure = judge(1.0).score(), judge(3.0).score()
    assert plain.loss == pytest.approx(sure.loss, rel=0.02) and plain.accuracy == sure.accuracy
    gain, error = plain.gain_over(Score(plain.losses + 1))
    assert gain == pytest.approx(1) and error == pytest.approx(0, abs=1e-9)
    assert Score(torch.tensor([float("nan")]).double().numpy()).loss == float("inf")
