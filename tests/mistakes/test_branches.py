"""A branch by values of records is taken by each record alone, whatever its neighbors are."""

from typing import Any

import pytest
import torch
from tests.mistakes.registry import Of, entropy
from tests.mistakes.tools import assert_exact, labeled
from tests.private_values import value_of
from torch import Tensor, nn

from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle


def _asserting(m: Any, x: Tensor) -> Tensor:
    assert not torch.isnan(x).any()
    return m.b(m.a(x).tanh())


def _repaired(m: Any, x: Tensor) -> Tensor:
    if torch.isnan(x).any():
        x = x.nan_to_num(2.0)
    return m.b(m.a(x).tanh())


def _centered(m: Any, x: Tensor) -> Tensor:
    """Mixes the records of a batch if any of them is far away."""
    if (x > 50).any():
        x = x - x.mean(0)
    return m.b(m.a(x).tanh())


def _by_weights(m: Any, x: Tensor) -> Tensor:
    assert not torch.isnan(x).any()
    return m.b(m.a(x).tanh() if (m.a.weight > 5).any() else m.a(x).relu())


def _oracle(run: Any) -> NetworkOracle:
    torch.manual_seed(0)
    model = Of(run, a=nn.Linear(6, 8), b=nn.Linear(8, 3))
    return NetworkOracle(model, entropy, example=labeled(8, seed=2), draw_seed=lambda: 5)


@pytest.mark.parametrize("run", [_asserting, _repaired, _centered])
def test_records_that_take_another_branch_are_alone(run: Any) -> None:
    x, y = labeled(12)
    oracle = _oracle(run)
    oracle.check((x, y))
    assert oracle.route.kind == "layers" and oracle.route.answers == (False,)
    other = x.clone()
    other[3], other[7, 2] = 100.0, torch.nan
    found = _total(oracle, (other, y))
    alone = torch.stack([_total(oracle, (other[i : i + 1], y[i : i + 1])) for i in range(12)]).sum(0)
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)


def test_a_repaired_record_is_exact() -> None:
    x, y = labeled(12)
    x[7, 2] = torch.nan
    assert_exact(_oracle(_repaired), entropy, (x, y))


def test_a_branch_that_weights_take_is_examined_again() -> None:
    oracle, batch = _oracle(_by_weights), labeled(12)
    oracle.check(batch)
    assert oracle.route.answers == (False, False)
    with torch.no_grad():
        oracle.model.a.weight[0, 0] = 6.0
    assert_exact(oracle, entropy, batch)
    assert oracle.route.kind != "layers"  # that something is true of any does not say of which


def test_a_single_record_counts_where_weights_take_another_branch() -> None:
    oracle, batch = _oracle(_by_weights), labeled(1)
    oracle.clipped_sum(batch, clip=Flat(1.0), relation="add-or-remove-one")
    with torch.no_grad():
        oracle.model.a.weight[0, 0] = 6.0
    assert_exact(oracle, entropy, batch)


def _total(oracle: NetworkOracle, batch: Any) -> Tensor:
    return value_of(oracle.clipped_sum(batch, clip=Flat(0.1), relation="add-or-remove-one")).clone()
