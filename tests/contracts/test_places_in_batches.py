"""A record contributes the same wherever it stands in a batch, and rows of a layer are its own.

What one record more in front would change is followed through every operation of the trial, so that it does
not matter whether weights, buffers and rows of the trial show it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.contracts.sleeping_networks import Net, rows, squares
from tests.private_values import value_of
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sidelight.errors import AssumptionError
from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle

X, Y = rows(40)


def total(oracle: NetworkOracle, batch: Any) -> Tensor:
    oracle.draw_seed = lambda: 3
    found = oracle.clipped_sum(batch, clip=Flat(1.0), relation="add-or-remove-one")
    return value_of(found).clone()


def checked(model: nn.Module, loss: Any = squares, batch: Any = (X, Y), **more: Any) -> NetworkOracle | None:
    """None if the model was refused, in one line."""
    oracle = NetworkOracle(model.train(), loss, **more)
    try:
        oracle.check(batch)
    except AssumptionError as refused:
        assert "\n" not in str(refused)
        return None
    return oracle


# ---------------------------------------------------------------------------------------------------
# something else for each place


def _by_place(h: Tensor) -> Tensor:
    return (torch.arange(len(h)) % 8 < 4).to(h.dtype) * 2 - 1


def _seeded(h: Tensor) -> Tensor:
    torch.manual_seed(7)
    return h + 3 * torch.randn_like(h)


def _set_aside(h: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return functional.dropout(h, 0.5)


def _from_a_state(h: Tensor) -> Tensor:
    torch.set_rng_state(torch.Generator().manual_seed(5).get_state())
    return functional.dropout(h, 0.5)


def _first_row(h: Tensor) -> Tensor:
    h = h.clone()
    h[torch.tensor([0])] = 100.0
    return h


def _beside(h: Tensor) -> Tensor:
    room = torch.arange(len(h), dtype=h.dtype)[:, None].repeat(1, 2)
    room[:, 0] = h[:, 0]
    return h * room[:, 1:].cos()


def _attended(h: Tensor) -> Tensor:
    q = h.view(len(h), 1, 4, 2)
    mask = torch.zeros(len(h), 1, 4, 4) + torch.arange(len(h)).view(-1, 1, 1, 1) * torch.arange(4)
    return functional.scaled_dot_product_attention(q, q, q, mask).reshape(len(h), 8)


def _banked(self: Any, h: Tensor) -> Tensor:
    return h * self.bank[torch.arange(len(h)) % 4]


def _banked_products(self: Any, h: Tensor) -> Tensor:
    matrices = torch.diag_embed(self.bank[torch.arange(len(h)) % 4])
    return torch.bmm(h[:, None], matrices)[:, 0]


def _banked_sums(self: Any, h: Tensor) -> Tensor:
    return torch.addmm(self.bank[torch.arange(len(h)) % 4], h, torch.eye(8))


PLACES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "rows of a buffer": _banked,
    "matrices of a buffer": _banked_products,
    "summands of a buffer": _banked_sums,
    "a sign": lambda s, h: h * _by_place(h)[:, None],
    "a count": lambda s, h: h * torch.ones_like(h).cumsum(0).cos(),
    "a triangle": lambda s, h: h.tril(),
    "one row": lambda s, h: _first_row(h),
    "numbers beside its own": lambda s, h: _beside(h),
    "a mask of attention": lambda s, h: _attended(h),
    "noise of a seed": lambda s, h: _seeded(h),
    "dropout of a seed": lambda s, h: _set_aside(h),
    "dropout of a state": lambda s, h: _from_a_state(h),
}


class Banked(Net):
    """With a buffer that is the same for all at first; what happens in between is for training."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(between=lambda s, h: between(s, h) if s.training else h)
        self.register_buffer("bank", torch.ones(4, 8))


@pytest.mark.parametrize("what", PLACES)
def test_a_place_in_the_batch_does_not_change_what_a_record_gives(what: str) -> None:
    model = Banked(PLACES[what])
    oracle = checked(model)
    if oracle is None:
        return
    model.bank.copy_(torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
    more = torch.cat([torch.ones(1, 4), X]), torch.cat([Y[:1], Y])
    moved = float((total(oracle, more) - total(oracle, (X, Y))).norm())
    assert moved <= 1.001, f"one record in front moves the sum by {moved:.3g} C"


def _labeled_by_place(o: Tensor, y: Tensor) -> Tensor:
    logits = torch.stack([o, -o], 1)
    return functional.cross_entropy(logits, torch.arange(len(o)) // 8 % 2, reduction="none") + squares(o, y)


def _weighted_by_place(o: Tensor, y: Tensor) -> Tensor:
    return squares(o, y) * (1 + torch.arange(len(o)) // 8)


@pytest.mark.parametrize("loss", [_labeled_by_place, _weighted_by_place])
def test_a_place_in_the_batch_does_not_change_the_loss(loss: Any) -> None:
    oracle = checked(Net(), loss)
    assert oracle is None or oracle.route.kind != "layers"


def test_every_row_of_a_pass_is_compared_with_the_row_alone() -> None:
    assert checked(Net(lambda x: x * _by_place(x)[:, None])) is None


def test_random_numbers_of_one_record_are_not_given_to_all() -> None:
    def shared(_: Any, h: Tensor) -> Tensor:
        return h + 10 * torch.randn_like(h)[torch.zeros(len(h), dtype=torch.long)]

    oracle = checked(Banked(shared))
    assert oracle is None or oracle.route.kind != "layers"


# ---------------------------------------------------------------------------------------------------
# rows of a layer that go by time, or by view, while nothing shows in its gradient


class Frames(nn.Module):
    """A branch over frames, time first; it begins with a gradient of `gate` times what it will have."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.i, self.f, self.o = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.z = nn.Linear(16, 16, bias=False)
        nn.init.constant_(self.z.weight, gate)

    def branch(self, h: Tensor) -> Tensor:
        frames = h.transpose(0, 1).reshape(-1, 16)
        return self.f(frames.tanh()).reshape(h.shape[1], -1, 16).transpose(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.i(x)
        return self.o((h + self.z(self.branch(h))).tanh().mean(1))[:, 0]


class Views(Frames):
    def branch(self, h: Tensor) -> Tensor:
        return self.f(torch.cat([h, -h], 0).tanh()).reshape(2, len(h), -1, 16).sum(0)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.g


class WithoutRule(Frames):
    """The same through a module that no rule knows."""

    def __init__(self, gate: float) -> None:
        super().__init__(gate)
        self.f = Scale()  # type: ignore[assignment]


@dataclass
class Context:
    rows: Tensor


class Film(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x * self.g * context.rows.mean(-1, keepdim=True)


class Hidden(Frames):
    """Rows of all records go to a module without a rule in an object that is no tensor."""

    def __init__(self, gate: float) -> None:
        super().__init__(gate)
        self.f = Film()  # type: ignore[assignment]

    def branch(self, h: Tensor) -> Tensor:
        return self.f(h, Context(h.detach()))


@pytest.mark.parametrize("gate", [0.0, 1e-6])
@pytest.mark.parametrize("make", [Frames, Views, WithoutRule, Hidden])
def test_rows_of_a_layer_are_credited_to_their_record(make: Any, gate: float) -> None:
    source = torch.Generator().manual_seed(3)
    x, y = 2 * torch.randn(32, 8, 6, generator=source), 3 * torch.randn(32, generator=source)
    model = make(gate)
    oracle = checked(model, batch=(x, y), pass_size=32)
    assert oracle is not None
    nn.init.normal_(model.z.weight)  # as training would move it
    for value in (0.0, 10.0, 1e4):
        other, targets = x.clone(), y.clone()
        other[5], targets[5] = value, 1e4
        moved = float((total(oracle, (other, targets)) - total(oracle, (x, y))).norm())
        assert moved <= 2.001, f"one record replaced moves the sum by {moved:.3g} C, and not 2"


# ---------------------------------------------------------------------------------------------------
# what is right stays fast


class Positions(nn.Module):
    """Positions, kinds and queries that are the same for each record, made in the ways that models have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.p, self.k, self.q = nn.Embedding(9, 8), nn.Embedding(3, 8), nn.Embedding(3, 8)
        self.i, self.o = nn.Linear(2, 8), nn.Linear(8, 1)
        self.m = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        n, t = len(x), 2
        at = torch.arange(t).expand(n, t)
        h = self.drop(self.i(x.view(n, t, 2)) + self.p(at) + self.k(torch.zeros(n, t, dtype=torch.long)))
        queries = self.q(torch.arange(3).repeat(n, 1))
        mixed, _ = self.m(queries, h, h, attn_mask=torch.zeros(3, t))
        return self.o(mixed.mean(1))[:, 0]


def _deep(x: Tensor) -> Tensor:
    return x * (torch.rand(len(x), 1) < 0.9) / 0.9


def _time_first(h: Tensor) -> Tensor:
    frames = h.view(-1, 2, 4).transpose(0, 1).contiguous()
    return functional.dropout(frames, 0.1).transpose(0, 1).reshape(-1, 8)


def _instances(h: Tensor, weight: Tensor) -> Tensor:
    return functional.instance_norm(h.view(-1, 2, 4), weight=weight).reshape(-1, 8)


def _filled(h: Tensor) -> Tensor:
    room = h.new_zeros(len(h), 9)
    room[:, :8] = h
    return room[:, :8] + torch.zeros_like(h).scatter_(1, h.argmax(1, keepdim=True), 1.0)


FAST: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "noise": lambda s, h: h + torch.randn_like(h),
    "stochastic depth": lambda s, h: _deep(h),
    "dropout, time first": lambda s, h: _time_first(h),
    "dropout, done again": lambda s, h: checkpoint(functional.dropout, h, 0.1, use_reentrant=False),
    "room that is filled": lambda s, h: _filled(h),
    "a buffer for all": lambda s, h: h * s.bank[torch.zeros(len(h), dtype=torch.long)],
    "instance norm": lambda s, h: _instances(h, s.bank[:2, 0]),
}


@pytest.mark.parametrize("what", FAST)
def test_what_is_the_same_for_all_or_drawn_for_each_keeps_the_fast_route(what: str) -> None:
    oracle = checked(Banked(FAST[what]))
    assert oracle is not None and oracle.route.kind == "layers", oracle and oracle.route.reason


def test_positions_and_queries_keep_the_fast_route() -> None:
    oracle = checked(Positions())
    assert oracle is not None and oracle.route.kind == "layers", oracle and oracle.route.reason
