"""Plain training on public records follows the user's schedule, before private steps and instead of them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sidelight.deep import PublicTraining, Trainer  # noqa: E402
from sidelight.methods.baselines import only_public  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402

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
