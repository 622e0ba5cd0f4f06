"""What a record contributes does not depend on its place, or its rank, among the others."""

from typing import Any

import pytest
import torch
from tests.mistakes.registry import Of, entropy
from tests.mistakes.tools import labeled
from tests.private_values import value_of
from torch import Tensor, nn
from torch.nn import functional

from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle

CLIP = 1.0


def _sorted(m: Any, x: Tensor) -> Tensor:
    """Sorts by something that is equal for all trial rows, as a length may be, and back."""
    order = (x[:, 0] > 10).long().argsort(stable=True)
    return m.b(m.middle(m.a(x)[order].tanh()).tanh()[order.argsort()])


def _full(m: Any, x: Tensor) -> Tensor:
    """An expert that is full takes no more; among trial rows it never is."""
    chosen = (x[:, 0] > 10).long()
    return m.b(m.middle(m.a(x).tanh()).tanh() * (chosen.cumsum(0) * chosen <= 1)[:, None])


def _plain(m: Any, x: Tensor) -> Tensor:
    return m.b(m.middle(m.a(x).tanh()).tanh())


def _trimmed(z: Tensor, y: Tensor) -> Tensor:
    """Leaves out the largest losses, if they are larger than any of trial rows."""
    losses = entropy(z, y)
    rank = losses.detach().argsort().argsort()
    return losses * ((rank < len(losses) // 2) | (losses < 4))


def _from_before(m: Any, x: Tensor) -> Tensor:
    """Takes the numbers of the row before, where its own are larger than any of trial rows."""
    hidden = m.a(x).tanh()
    return m.b(m.middle(torch.where(x[:, :1] > 10, hidden.roll(1, 0), hidden)).tanh())


def _by_place(m: Any, x: Tensor) -> Tensor:
    """Weights by place, in training only, beside draws that are none of a dropout layer's."""
    hidden = functional.dropout(m.a(x).tanh(), 1e-9, m.training)
    places = torch.linspace(0, 1, len(x))[:, None] if m.training else 1.0
    return m.b(m.middle(hidden * places).tanh())


def _oracle(run: Any, loss: Any = entropy) -> NetworkOracle:
    torch.manual_seed(0)
    model = Of(run, a=nn.Linear(6, 8), middle=nn.Linear(8, 8), b=nn.Linear(8, 3))
    return NetworkOracle(model, loss, example=labeled(8, seed=2), pass_size=12, draw_seed=lambda: 5)


@pytest.mark.parametrize(
    ("run", "loss"),
    [
        (_sorted, entropy),
        (_full, entropy),
        (_from_before, entropy),
        (_plain, _trimmed),
        (_by_place, entropy),
    ],
)
def test_a_record_adds_what_it_adds_alone(run: Any, loss: Any) -> None:
    x, y = labeled(12)
    x[[3, 6, 7], 0] = 20.0
    oracle = _oracle(run, loss)
    oracle.check((x, y))
    with torch.no_grad():
        oracle.model.b.weight.mul_(30)  # as training may
    whole = _total(oracle, x, y)
    for i in range(12):
        others = torch.arange(12) != i
        added = whole - _total(oracle, x[others], y[others])
        assert float(added.norm()) <= CLIP * (1 + 1e-5)
        torch.testing.assert_close(added, _total(oracle, x[~others], y[~others]), rtol=1e-3, atol=1e-4)


def test_a_sort_along_each_record_takes_the_fast_route() -> None:
    oracle = _oracle(lambda m, x: m.b(m.middle(m.a(x.sort(1).values).cumsum(1).softmax(1))))
    oracle.check(labeled(12))
    assert oracle.route.kind == "layers"


def test_a_loss_may_write_into_its_targets() -> None:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        return entropy(z, y.sub_(1))

    x, y = labeled(12)
    example = labeled(8, seed=2)
    oracle = NetworkOracle(_oracle(_plain).model, loss, example=(example[0], example[1] + 1))
    oracle.check((x, y + 1))
    want = _total(_oracle(_plain), x, y)
    torch.testing.assert_close(_total(oracle, x, y + 1), want, rtol=1e-4, atol=1e-6)
    public = y + 1
    oracle.mean_gradient((x, public))
    assert torch.equal(public, y + 1)


def _total(oracle: NetworkOracle, x: Tensor, y: Tensor) -> Tensor:
    return value_of(oracle.clipped_sum((x, y), clip=Flat(CLIP), relation="add-or-remove-one")).clone()
