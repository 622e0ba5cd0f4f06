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
from sidelight.problems.datasets import Loading, Records

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
