"""What people try first, coming from other libraries, works or gets one line that says what is meant."""

from typing import Any

import pytest
import torch
from sklearn.base import clone
from tests.deep.networks import blobs, mlp
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from sidelight import PrivateClassifier, PrivateNetClassifier, PrivateStep, Trainer
from sidelight.augment import Compose
from sidelight.deep import replace_batch_norm
from sidelight.errors import InputError

PRIVATE, PUBLIC, TEST = blobs(80, 1), blobs(60, 2), blobs(50, 3)


def trainer(loss: Any = None, **options: Any) -> Trainer:
    plan = {"epsilon": 2, "steps": 12, "expected_batch_size": 40, "method": "dp_sgd", "progress": False}
    return Trainer(mlp(), loss or nn.CrossEntropyLoss(), **{**plan, "random_state": 0, **options})


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("batch_size", "expected_batch_size="),
        ("max_grad_norm", "clip_norm="),
        ("noise_multiplier", "epsilon="),
        ("target_epsilon", "epsilon="),
        ("device", "model.to"),
        ("expected_batchsize", "expected_batch_size"),
    ],
)
@pytest.mark.parametrize("face", [Trainer, PrivateStep, PrivateNetClassifier])
def test_a_word_of_another_library_is_answered(face: Any, word: str, meant: str) -> None:
    if face is PrivateStep and word == "noise_multiplier":
        return  # it has that one
    with pytest.raises(InputError, match=meant):
        face(mlp(), epsilon=1.0, **{word: 1})


def test_estimators_answer_too_and_can_still_be_cloned() -> None:
    with pytest.raises(InputError, match="method=dp_sgd"):
        PrivateClassifier(epsilon=1, batch_size=10)
    assert clone(PrivateClassifier(epsilon=3)).epsilon == 3


def test_scores_are_of_a_loader_or_arrays_as_of_tensors() -> None:
    fitted = trainer().fit(PRIVATE, PUBLIC)
    loader = DataLoader(TensorDataset(*TEST), batch_size=7, shuffle=True)
    arrays = TEST[0].double().numpy(), TEST[1].numpy()
    assert fitted.evaluate(TEST) == fitted.evaluate(loader) == fitted.evaluate(arrays)
    assert fitted.predict(TEST[0]).tolist() == fitted.predict(arrays[0]).tolist()
    with pytest.raises(InputError, match="no numbers"):
        fitted.predict(TEST[0].numpy().astype(object))


def test_private_arrays_are_not_read_by_their_type() -> None:
    with pytest.raises(InputError, match="PrivateNetClassifier"):
        trainer().fit((PRIVATE[0].numpy(), PRIVATE[1].numpy()))


def test_a_function_of_torch_is_a_loss() -> None:
    fitted = trainer(functional.cross_entropy).fit(PRIVATE)
    with torch.no_grad():
        want = functional.cross_entropy(fitted.model_(TEST[0]), TEST[1])
    assert fitted.evaluate(TEST)["loss"] == pytest.approx(float(want))
    values = torch.zeros(80, 3)  # a record has three losses, and their mean is its own
    assert trainer(functional.mse_loss).fit((PRIVATE[0], values)).history_


def test_a_plateau_is_judged_by_public_scores() -> None:
    """Once a score: with patience 0 and scores that cannot improve, every look after the first shortens."""
    made = []

    def schedule(optimizer: Any) -> Any:
        made.append(ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1e9, threshold_mode="abs"))
        return made[-1]

    how: dict[str, Any] = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "scheduler": schedule}
    fitted = trainer(validation=0.5, **how).fit(PRIVATE, PUBLIC)
    looks = sum("validation_loss" in line for line in fitted.history_)
    assert made[-1].get_last_lr()[0] == pytest.approx(0.1 * 0.5 ** (looks - 1)) and looks > 2
    with pytest.raises(InputError, match="validation="):
        trainer(validation=0, **how).fit(PRIVATE, PUBLIC)


def test_transforms_may_come_in_a_list() -> None:
    twice = lambda x: 2 * x  # noqa: E731
    assert Compose([twice, twice])(1.0) == Compose(twice, twice)(1.0) == 4.0


def test_a_batch_norm_behind_a_linear_layer_becomes_a_layer_norm() -> None:
    """A group of one number would be zero for every record."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    made = replace_batch_norm(model)
    assert isinstance(made[1], nn.LayerNorm)  # type: ignore[index]
    assert float(made(PUBLIC[0]).detach().std(0).min()) > 0
    convolution = nn.Sequential(nn.Conv1d(1, 6, 3), nn.BatchNorm1d(6))
    assert isinstance(replace_batch_norm(convolution)[1], nn.GroupNorm)  # type: ignore[index]
