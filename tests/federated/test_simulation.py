"""Clients within one process send what one client alone would."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sidelight.errors import InputError
from sidelight.federated import FederatedServer
from sidelight.federated.simulation import (
    Local,
    SimulatedUsers,
    fed_avg,
    fed_sgd,
    local_update,
    parameters_of,
)
from sidelight.methods.dope_sgd import dope_sgd


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def fleet(users: int = 8, rows: int = 6) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    X = torch.randn(users, rows, 5)
    return model, X, (X[..., 0] > 0).long() + (X[..., 1] > 0).long()


@pytest.mark.parametrize("local", [fed_sgd(0.3), fed_avg(steps=4, step_size=0.2, batch_size=4)], ids=str)
def test_many_clients_at_once_are_each_as_alone_and_as_plain_training(local: Local) -> None:
    model, X, y = fleet()
    together = SimulatedUsers(model, losses, X, y, local=local).updates(range(8), parameters_of(model))
    for k in (0, 5):
        alone = local_update(model, losses, X[k], y[k], arrays=parameters_of(model), local=local)
        flat = torch.cat([torch.from_numpy(part).reshape(-1) for part in alone])
        torch.testing.assert_close(flat, torch.from_numpy(together[k]))
        torch.testing.assert_close(flat, plain(model, X[k], y[k], local))


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor, local: Local) -> torch.Tensor:
    import copy

    own = copy.deepcopy(model)
    optimizer = torch.optim.SGD(own.parameters(), lr=local.step_size)
    for step in range(local.steps):
        rows = local.rows(step, len(x))
        optimizer.zero_grad()
        losses(own(x[rows]), y[rows]).mean().backward()
        optimizer.step()
    before, after = (torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in (model, own))
    return before - after


def test_clients_with_fewer_records_are_as_if_they_had_only_those() -> None:
    model, X, y = fleet()
    held = torch.ones(8, 6, dtype=torch.bool)
    held[2, 4:] = False
    users = SimulatedUsers(model, losses, X, y, local=fed_sgd(), held=held)
    alone = SimulatedUsers(model, losses, X[2:3, :4], y[2:3, :4], local=fed_sgd())
    both = users.updates([2], parameters_of(model)), alone.updates([0], parameters_of(model))
    torch.testing.assert_close(*map(torch.from_numpy, both))


def test_one_client_changes_no_other_ones_update() -> None:
    model, X, y = fleet()
    users = SimulatedUsers(model, losses, X, y, local=fed_avg(steps=3, step_size=0.5))
    before = users.updates(range(8), parameters_of(model))
    users.X[3] = float("nan")
    after = users.updates(range(8), parameters_of(model))
    others = [k for k in range(8) if k != 3]
    assert (before[others] == after[others]).all()


def test_a_simulation_learns() -> None:
    model, X, y = fleet(users=400)
    users = SimulatedUsers(model, losses, X, y, local=fed_avg(steps=3, step_size=0.5))
    server = FederatedServer(
        parameters_of(model), method=dope_sgd(clip_norm=1.0), private=range(380), public=range(380, 400),
        epsilon=8.0, delta=1e-5, rounds=30, expected_cohort=100, random_state=0,
    )  # fmt: skip
    while (ask := server.open_round()) is not None:
        server.close_round(users.answers(ask))
    weights = {
        name: torch.from_numpy(a)
        for (name, _), a in zip(model.named_parameters(), server.arrays, strict=True)
    }
    outputs = torch.func.functional_call(model, weights, (X.reshape(-1, 5),))
    assert float((outputs.argmax(1) == y.reshape(-1)).float().mean()) > 0.7


def test_what_cannot_be_simulated_is_refused() -> None:
    model, X, y = fleet()
    with pytest.raises(InputError, match="client"):
        SimulatedUsers(model, losses, X, y[:4], local=fed_sgd())
    with pytest.raises(InputError, match="buffers"):
        SimulatedUsers(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), losses, X, y, local=fed_sgd())
    with pytest.raises(InputError, match="steps"):
        fed_avg(steps=0, step_size=0.1)
