"""A loop of accelerate becomes private by one line: step(batch) in place of accelerator.backward(loss)."""

from typing import Any

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed; `make test-models` brings it")

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

from sidelight import Ledger, PrivateStep
from sidelight.errors import InputError

N = 60
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.fixture(autouse=True)
def _own_state() -> Any:
    """accelerate's states are shared by a process; other tests have theirs."""
    kinds = (AcceleratorState, GradientState, PartialState)
    before = [dict(kind._shared_state) for kind in kinds]
    for kind in kinds:
        kind._shared_state.clear()
    yield
    for kind, state in zip(kinds, before, strict=True):
        kind._shared_state.clear()
        kind._shared_state.update(state)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def private(model: nn.Module, **more: Any) -> PrivateStep:
    usual: dict[str, Any] = {"expected_batch_size": 20, "epsilon": 2.0, "delta": 1e-4}
    return PrivateStep(
        model, nn.CrossEntropyLoss(), n_private=N, steps=4, random_state=0, **{**usual, **more}
    )


def loop(accelerator: Accelerator | None, **more: Any) -> torch.Tensor:
    model: Any = network()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler: Any = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4)
    if accelerator is not None:
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    step = private(model, **more)
    for _ in range(4):
        drawn = step.sample()
        rows = slice(None) if drawn is None else drawn
        step((X[rows], Y[rows]))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_prepared_loop_takes_the_steps_of_a_plain_one() -> None:
    assert torch.equal(loop(None), loop(Accelerator(cpu=True)))


def test_bfloat16_trains_under_autocast() -> None:
    clear: dict[str, Any] = {"expected_batch_size": N, "epsilon": 500.0}  # all records, and little noise
    found, plain = loop(Accelerator(cpu=True, mixed_precision="bf16"), **clear), loop(None, **clear)
    assert found.dtype == torch.float32 and 0 < (found - plain).norm() < 0.4 * plain.norm()


def test_a_step_that_accelerate_would_leave_out_is_refused_before_the_charge(tmp_path: Any) -> None:
    ledger = Ledger.create(tmp_path / "book.ledger")
    ledger.register("rows", relation="add-or-remove-one", epsilon=3.0, delta=1e-4)
    before = ledger.remaining("rows")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(network())
    step = private(model, ledger=ledger, dataset="rows")
    rows = step.sample()
    with accelerator.accumulate(model), pytest.raises(InputError, match="accumulate"):
        step((X[rows], Y[rows]))
    assert ledger.remaining("rows") == before


def test_a_loss_scale_is_refused() -> None:
    Accelerator(cpu=True)
    AcceleratorState._shared_state["_mixed_precision"] = "fp16"
    step = private(network())
    rows = step.sample()
    with pytest.raises(InputError, match="fp16"):
        step((X[rows], Y[rows]))
