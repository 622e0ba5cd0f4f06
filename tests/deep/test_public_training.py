"""Plain training on public records follows the user's schedule, before private steps and instead of them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sidelight.deep import Loading, PublicTraining, Trainer  # noqa: E402
from sidelight.methods.baselines import only_public  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.problems.datasets import Records  # noqa: E402
from sidelight.problems.network_public import Average, HeldOut, Score, train_well  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
PRIVATE, PUBLIC = (X[:150], Y[:150]), (X[150:], Y[150:])


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


def test_left_to_itself_it_chooses_its_step_size_and_its_end_and_says_so() -> None:
    trainer = fit(method=only_public(), validation=0.4)
    said: Any = trainer.privacy_.details["public_training"]
    assert len(said["trials"]) == 3 and f"step size {said['step_size']:g}" in said["trials"]
    assert 0 <= said["kept_after"] <= said["steps"] == len(trainer.history_)
    assert said["kept"] in ("the start", "iterate", "average")
    assert trainer.evaluate((X.clone(), Y.clone()))["accuracy"] > 0.8


def test_a_model_that_public_training_makes_worse_is_kept_as_it_was() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()[1, 0] = 50.0  # right for every record
        model.bias.zero_()
    before = model.weight.detach().clone()
    noisy = X[150:], torch.randint(0, 2, (50,))
    trainer = Trainer(
        model, torch.nn.CrossEntropyLoss(), method=only_public(), epsilon=1.0, random_state=0,
        validation=torch.utils.data.TensorDataset(X[:150], Y[:150]),
    )  # fmt: skip
    trainer.fit((X[:10] + 1, Y[:10]), noisy)
    assert torch.equal(model.weight / model.weight[1, 0], before / 50)  # but for the temperature


def judge(scale: float) -> HeldOut:
    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()[1] = scale * torch.tensor([1.0, 0.3, 0.0, 0.0])
        model.bias.zero_()
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    records = Records(torch.utils.data.TensorDataset(X, Y), Loading(), torch.device("cpu"))
    return HeldOut(NetworkOracle(model, loss), records)


def test_how_sure_a_network_is_of_itself_does_not_change_its_score() -> None:
    plain, sure = judge(1.0).score(), judge(3.0).score()
    assert plain.loss == pytest.approx(sure.loss, rel=0.02) and plain.accuracy == sure.accuracy
    gain, error = plain.gain_over(Score(plain.losses + 1))
    assert gain == pytest.approx(1) and error == pytest.approx(0, abs=1e-9)
    assert Score(torch.tensor([float("nan")]).double().numpy()).loss == float("inf")


def test_an_average_of_iterates_weighs_the_s_th_by_s() -> None:
    average, iterates = Average(torch.full((3,), 9.0)), torch.randn(5, 3, generator=GENERATOR)
    for step, iterate in enumerate(iterates):
        average.add(step, iterate)
    weights = torch.arange(1.0, 6.0)
    assert torch.allclose(average.value, (weights[:, None] * iterates).sum(0) / weights.sum(), atol=1e-6)


class Judge(HeldOut):
    """Held-out records whose third look is the best; all later ones are worse by one standard error."""

    def __init__(self, oracle: NetworkOracle, records: Records) -> None:
        super().__init__(oracle, records)
        self.asked = 0

    def score(self) -> Score:
        return Score(torch.full((100,), 9.0).double().numpy())

    def score_at(self, params: Any) -> Score:
        self.asked += 1
        look = (self.asked + 1) // 2  # at the iterate, and at the average
        worse = 0.1 + torch.tensor([1.0, -1.0] * 50).double()  # a mean of 0.1 and a standard error of 0.1
        base = torch.full((100,), 2.0).double()
        return Score((base + (3 - look if look < 3 else 0) + (worse if look > 3 else 0)).numpy())


def test_where_every_batch_is_new_a_later_look_must_be_clearly_worse_to_be_dropped() -> None:
    records = Records(torch.utils.data.TensorDataset(X, Y), Loading(), torch.device("cpu"))

    def kept_after(augment: Any) -> float:
        oracle = NetworkOracle(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(reduction="none"))
        how = PublicTraining(augment=augment, optimizer=lambda p: torch.optim.SGD(p, lr=0.01))
        said: Any = train_well(oracle, records, how, held_out=Judge(oracle, records), seed=0)
        return float(said["kept_after"] / said["steps"])

    assert kept_after(None) == pytest.approx(0.3, abs=0.01)
    assert kept_after(lambda inputs: inputs) == 1
