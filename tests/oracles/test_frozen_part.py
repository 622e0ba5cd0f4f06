"""Activations of a frozen part are computed once per record, and every sum is as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.private_values import value_of
from torch import Tensor, nn

from sidelight.methods.parts import Flat
from sidelight.oracles.network import frozen_part
from sidelight.oracles.network.network_oracle import NetworkOracle

ROWS = 24
X = torch.randn(ROWS, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(ROWS) % 3
loss = nn.CrossEntropyLoss(reduction="none")


def frozen(*modules: nn.Module) -> nn.Module:
    for module in modules:
        module.requires_grad_(False)
    return nn.Sequential(*modules)


def sequential(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(dropout), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*frozen(*body), nn.Linear(96, 8), nn.Tanh(), nn.Linear(8, 3))


class Blocks(nn.Module):
    """Blocks with a detour around each, the first of them frozen: as in transformers that are half tuned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))
        self.last = nn.Linear(16, 3)
        frozen(self.first, *self.blocks[:2])

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        for block in self.blocks:
            h = h + block(h)
        out: Tensor = self.last(h)
        return out


class Prompted(nn.Module):
    """What a frozen body is given depends on what is trained, unseen by autograd."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.prompt = nn.Linear(64, 64)
        self.body = nn.Linear(64, 16).requires_grad_(False)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        with torch.no_grad():
            h = self.body(flat + self.prompt.weight.sum())
        out: Tensor = self.last(h + self.prompt(flat)[:, :16])
        return out


def oracle(model: nn.Module, most: int = 2**20) -> NetworkOracle:
    return NetworkOracle(model, loss, example=(X, Y), pass_size=8, draw_seed=lambda: 1, cache_bytes=most)


def total(one: NetworkOracle, batch: tuple[Tensor, Tensor] = (X, Y), clip: float = 0.5) -> Tensor:
    return torch.as_tensor(value_of(one.clipped_sum(batch, clip=Flat(clip), relation="add-or-remove-one")))


def part_of(one: NetworkOracle) -> Any:
    return next(iter(one._present.routes.values())).frozen


@pytest.fixture
def convolved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that convolutions are given."""
    seen: list[int] = []
    plain = torch.nn.functional.conv2d

    def noted(rows: Tensor, *args: Any) -> Tensor:
        seen.append(len(rows))
        return plain(rows, *args)

    monkeypatch.setattr(torch.nn.functional, "conv2d", noted)
    return seen


class Shared(nn.Module):
    """One activation for all layers, and one frozen layer after a trained one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.act = nn.Tanh()
        self.body, self.middle = nn.Linear(64, 16), nn.Linear(16, 16)
        self.frozen_too, self.last = nn.Linear(16, 16), nn.Linear(16, 3)
        frozen(self.body, self.frozen_too)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.body(x.flatten(1)))
        out: Tensor = self.last(self.act(self.frozen_too(self.act(self.middle(h)))))
        return out


@pytest.mark.parametrize("make", [sequential, Blocks, Shared])
def test_sums_are_those_without_memory(make: Callable[[], nn.Module]) -> None:
    plain, remembering = oracle(make(), most=0), oracle(make())
    for step in range(4):
        rows = torch.arange(step, ROWS, step + 1)
        batch = X[rows], Y[rows]
        assert torch.allclose(total(plain, batch), total(remembering, batch), rtol=1e-5, atol=1e-6)
    assert part_of(plain) is None and part_of(remembering) is not None


def test_only_the_last_frozen_module_is_remembered() -> None:
    one = oracle(sequential())
    total(one)
    part = part_of(one)
    assert [type(x.module) for x in part.kept] == [nn.Flatten]
    assert len(part.skipped) == 5 and len(part._known) == ROWS


def test_a_record_goes_through_the_frozen_part_once(convolved: list[int]) -> None:
    model = sequential()
    one = oracle(model)
    total(one)
    convolved.clear()
    with torch.no_grad():
        model[-1].weight.add_(1.0)  # training moves what is after it
    for rows in (ROWS, 5, 13):
        total(one, (X[:rows], Y[:rows]))
        one.mean_gradient((X[:rows], Y[:rows]))
    assert not convolved
    total(one, (X + 1.0, Y))
    assert sum(convolved) == 2 * ROWS  # two layers


def test_dropout_before_a_module_keeps_it_from_being_remembered() -> None:
    one = oracle(sequential(dropout=0.5))
    total(one)
    part = part_of(one)
    kinds = {type(x.module) for x in (*part.kept, *part.skipped)}
    assert nn.Flatten not in kinds and nn.Dropout not in kinds


def test_what_follows_from_trained_parameters_is_not_remembered() -> None:
    one = oracle(Prompted())
    total(one)
    part = part_of(one)
    assert part is None or all(x.module is not one.model.body for x in (*part.kept, *part.skipped))


def test_frozen_weights_that_somebody_changes_are_computed_anew() -> None:
    model, other = sequential(), sequential()
    one = oracle(model)
    before = total(one)
    for net in (model, other):
        with torch.no_grad():
            net[0].weight.mul_(2.0)
    found, wanted = total(one), total(oracle(other, most=0))
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6) and not torch.allclose(found, before)


def test_memory_is_bounded() -> None:
    one = oracle(sequential(), most=5 * 96 * 4)
    plain = oracle(sequential(), most=0)
    assert torch.allclose(total(one), total(plain), rtol=1e-5, atol=1e-6)
    assert len(part_of(one)._known) == 5 and part_of(one)._bytes <= 5 * 96 * 4


def test_rows_that_are_new_each_time_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    one = oracle(sequential(), most=5 * 96 * 4)
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        total(one, (torch.randn(ROWS, 1, 8, 8, generator=generator), Y))
    assert part_of(one).most == 0 and not part_of(one)._known


def test_a_neighbor_moves_the_sum_by_what_the_record_contributes() -> None:
    """With and without one record, after others have been remembered with it, and before."""
    for early in (True, False):
        one = oracle(sequential())
        if early:
            total(one)
        without = total(one, (X[1:], Y[1:]))
        alone = total(oracle(sequential()), (X[:1], Y[:1]))
        assert torch.allclose(total(one) - without, alone, atol=1e-5)
        assert float((total(one) - without).norm()) <= 0.5 + 1e-5


class Fails(nn.Module):
    """A frozen body that some record makes fail."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(5, 6).requires_grad_(False)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.words(x).mean(1))
        return out


def test_a_record_on_which_the_frozen_part_fails_contributes_nothing_and_is_silent() -> None:
    words = torch.randint(0, 5, (ROWS, 4), generator=torch.Generator().manual_seed(0))
    broken = words.clone()
    broken[3, 0] = 99
    kept = torch.arange(ROWS) != 3
    found = []
    for batch in ((broken, Y), (words[kept], Y[kept])):
        one = NetworkOracle(
            Fails(), loss, example=(words, Y), pass_size=8, draw_seed=lambda: 1, cache_bytes=2**20
        )
        found.append(total(one, batch))
        assert part_of(one) is not None
    assert torch.allclose(*found, atol=1e-6)


def test_public_gradients_are_those_without_memory() -> None:
    one, plain = oracle(sequential()), oracle(sequential(), most=0)
    total(one)
    assert torch.allclose(one.mean_gradient((X, Y)), plain.mean_gradient((X, Y)), atol=1e-6)


def test_blocks_have_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed for a record does not depend on how many others are new."""
    model = sequential()
    one = oracle(model)
    one.check((X, Y))
    sizes: list[int] = []
    plain = frozen_part._tensors_of

    def noted(model: nn.Module, modules: Any, inputs: Any) -> list[Tensor]:
        sizes.append(len(inputs))
        return plain(model, modules, inputs)

    monkeypatch.setattr(frozen_part, "_tensors_of", noted)
    for rows in (1, 5, 13, ROWS):
        total(one, (X[:rows], Y[:rows]))
    assert set(sizes) == {8}
