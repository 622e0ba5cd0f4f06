"""Probabilities of a network fit held-out public records, and its predictions stay as they are."""

from typing import Any

import pytest
import torch
from tests.deep.networks import blobs, loss, mlp, vector
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sidelight.deep import Trainer
from sidelight.deep.temperature import fold_temperature
from sidelight.methods import dp_sgd
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems import public_training
from sidelight.problems.datasets import Loading, Records
from sidelight.problems.public_training import FACTOR, CycleSetting

APART = blobs(300, 7)


def records(count: int = 300) -> Records:
    return Records(TensorDataset(APART[0][:count], APART[1][:count]), Loading(), torch.device("cpu"))


def overconfident(*after: nn.Module) -> nn.Module:
    """The right directions, ten times too sure of them."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False), *after)
    with torch.no_grad():
        model[0].weight.copy_(20 * torch.eye(3, 4))
    return model


def mean_loss(model: nn.Module) -> float:
    with torch.no_grad():
        return float(loss(model(APART[0]), APART[1]).mean())


def test_scores_that_are_too_sure_are_shrunk_and_predictions_stay() -> None:
    model = overconfident()
    before, said = mean_loss(model), model(APART[0]).argmax(1)
    [note] = fold_temperature(NetworkOracle(model, loss), records())
    assert "300 held-out" in note and mean_loss(model) < 0.8 * before
    assert bool((model(APART[0]).argmax(1) == said).all())
    assert fold_temperature(NetworkOracle(model, loss), records()) == []  # it fits already


def far_apart(outputs: Tensor, targets: Tensor) -> Tensor:
    """A margin that wants scores as large as they can be."""
    return nn.functional.multi_margin_loss(outputs, targets, margin=200.0, reduction="none")


@pytest.mark.parametrize(
    ("model", "loss_of", "count"),
    [
        (overconfident(), loss, 31),
        (overconfident(nn.LogSoftmax(1)), nn.NLLLoss(reduction="none"), 300),
        (overconfident(), far_apart, 300),
    ],
    ids=["few records", "scores that do not follow the last layer", "a loss that does not fall"],
)
def test_what_has_no_temperature_is_left_as_it_is(model: nn.Module, loss_of: Any, count: int) -> None:
    before = vector(model).clone()
    assert fold_temperature(NetworkOracle(model, loss_of), records(count)) == []
    assert bool((vector(model) == before).all())


def test_a_fit_says_so_in_its_statement() -> None:
    trainer = Trainer(
        mlp(), loss, method=dp_sgd(step_size=40.0), epsilon=8, steps=20, expected_batch_size=100,
        validation=TensorDataset(*APART), progress=False, random_state=0,
    ).fit(blobs(400, 1))  # fmt: skip
    notes = " ".join(trainer.privacy_.details["notes"])
    assert "held-out public records best" in notes


def few_and_wide(seed: int) -> TensorDataset:
    """Rows of which a network learns by heart what is chance."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(120, 4, generator=made)
    return TensorDataset(x, (x[:, 0] + 2 * torch.randn(120, generator=made) > 0).long())


@pytest.mark.parametrize("method", ["only_public", "auto"])
def test_public_records_alone_have_the_temperature_of_their_folds(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is held out, and nothing spent: folds that a network has not seen say how sure it may be."""

    def won(race: Any) -> CycleSetting:
        race._run(setting := CycleSetting(step_size=8e-3, epochs=120, label_smoothing=0.0))
        return setting

    monkeypatch.setattr(public_training._Race, "won", won)

    def fitted(loss_of: Any) -> tuple[Trainer, float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        how = {"epsilon": 0.05, "delta": 1e-5, "random_state": 0, "progress": False}
        trainer = Trainer(model, loss_of, method=method, **how)
        trainer.fit(few_and_wide(1), few_and_wide(2))
        return trainer, trainer.evaluate(few_and_wide(3))["loss"]

    trainer, found = fitted(loss)
    factor = trainer.privacy_.details["public_training"][FACTOR]
    assert factor < 1 and f"multiplied by {factor:.2f}" in str(trainer.privacy_.details["notes"])
    last: Any = trainer.model[2]
    with torch.no_grad():
        last.weight /= factor
        last.bias /= factor
    assert trainer.evaluate(few_and_wide(3))["loss"] > found
    other, _ = fitted(lambda outputs, targets: loss(2 * outputs, targets))
    assert "multiplied" not in str(other.privacy_.details["notes"])  # it is no loss of these probabilities
