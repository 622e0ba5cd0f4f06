"""A network with a frozen body is fitted as it would be if its activations were computed in every step."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sidelight import Trainer
from sidelight.deep import Loading
from sidelight.methods import dope_sgd, dp_sgd
from sidelight.oracles.network import network_oracle

N = 60
X = torch.randn(N + 20, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 8)).requires_grad_(False)
    return nn.Sequential(body, nn.Tanh(), nn.Linear(8, 2))


def fitted(method: Any, cache_bytes: int, **more: Any) -> tuple[Tensor, Trainer]:
    model = network()
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), method=method, epsilon=2.0, delta=1e-4, steps=6, expected_batch_size=20,
        random_state=0, progress=False, loading=Loading(cache_bytes=cache_bytes), **more,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit((X[:N], Y[:N]), (X[N:], Y[N:]))
    return torch.cat([p.detach().flatten() for p in model.parameters()]), trainer


@pytest.mark.parametrize(
    "method", [dp_sgd(clip_norm=1.0), dope_sgd(clip_norm=1.0)], ids=["dp_sgd", "dope_sgd"]
)
def test_a_fit_is_the_same_with_and_without_memory(method: Any) -> None:
    (plain, one), (remembered, two) = fitted(method, 0), fitted(method, 2**20)
    assert torch.allclose(plain, remembered, atol=1e-5)
    assert one.privacy_.to_dict()["events"] == two.privacy_.to_dict()["events"]


def test_nothing_is_remembered_of_augmented_records_or_of_a_run_that_may_be_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []
    plain = network_oracle.find_frozen_part

    def noted(*rows: Any, most: int, held: int) -> Any:
        asked.append(most)
        return plain(*rows, most=most, held=held)

    monkeypatch.setattr(network_oracle, "find_frozen_part", noted)
    for more in ({"augment": torch.neg}, {"public_augment": torch.neg}, {"checkpoints": tmp_path / "run"}):
        fitted(dp_sgd(clip_norm=1.0), 2**20, **more)
    assert not asked
    fitted(dp_sgd(clip_norm=1.0), 2**20)
    assert 2**20 in asked
