"""Large passes are examined with few records first, and what is wrong with many alone is found."""

from collections.abc import Callable

import pytest
import torch
from tests.oracles.networks import private_sum, squared_error
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.methods.parts import Flat
from sidelight.oracles.network import check
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.passes import records_a_pass
from sidelight.oracles.network.trial_rows import changes, halves, mixed

MANY = 40  # records of a pass
Change = Callable[["Faulty", Tensor], Tensor]


class Faulty(nn.Module):
    """A layer that does something else with more than twenty records."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change, self.held, self.seen = change, list[Tensor](), 0
        self.layer = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.change(self, x) if len(x) > 20 else x)
        return out


def apart(model: Faulty, x: Tensor) -> Tensor:
    return x - x.mean(0)


def flipped(model: Faulty, x: Tensor) -> Tensor:
    """Too little for ordinary values to show."""
    return x + 1e-30 * x.flip(0)


def keeping(model: Faulty, x: Tensor) -> Tensor:
    model.held.append(x * 2)
    return x


def counting(model: Faulty, x: Tensor) -> Tensor:
    model.seen += 1
    return x


def deciding(model: Faulty, x: Tensor) -> Tensor:
    return x / 2 if x.max() > 1e3 else x


def shared_noise(model: Faulty, x: Tensor) -> Tensor:
    return x + torch.rand(5) if model.training else x


def oracle_of(model: nn.Module, rows: int = MANY) -> NetworkOracle:
    torch.manual_seed(0)
    return NetworkOracle(model, squared_error, pass_size=rows)


def batch(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 5, generator=generator), torch.randn(count, generator=generator)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (apart, "depends on the others"), (flipped, "depends on the others"),
        (keeping, "changes a buffer"), (counting, "changes a"),
    ],
)  # fmt: skip
def test_a_model_that_is_at_fault_with_many_records_is_refused(change: Change, message: str) -> None:
    with pytest.raises(AssumptionError, match=message):
        oracle_of(Faulty(change)).check(batch(3))


class OwnGenerator(nn.Module):
    """Its random numbers go by places in the batch from twenty-one records on, or once it is told so."""

    def __init__(self, always: bool = False) -> None:
        super().__init__()
        self.layer, self.always = nn.Linear(5, 2), always

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            own = torch.Generator().manual_seed(7) if self.always or len(x) > 20 else None
            x = x * torch.empty(len(x), 1).uniform_(-2, 2, generator=own)
        out: Tensor = self.layer(x)
        return out


def test_a_generator_that_is_made_for_many_records_alone_is_refused() -> None:
    with pytest.raises(AssumptionError, match="draws"):
        oracle_of(OwnGenerator()).check(batch(3))


def test_a_generator_that_is_made_from_some_step_on_is_refused() -> None:
    model = OwnGenerator()
    oracle = oracle_of(model, rows=10)
    private_sum(oracle, batch(3), Flat(1.0))
    model.always = True
    with pytest.raises(AssumptionError, match="draws"):
        private_sum(oracle, batch(3), Flat(1.0))


@pytest.mark.parametrize("change", [deciding, shared_noise])
def test_what_cannot_be_told_apart_with_many_takes_a_slower_way(change: Change) -> None:
    oracle = oracle_of(Faulty(change))
    oracle.check(batch(3))
    assert oracle.route.kind != "layers"
    few = oracle_of(Faulty(change), rows=10)
    few.check(batch(3))
    assert few.route.kind == "layers"


@pytest.mark.parametrize("first", [8, 12])
@pytest.mark.parametrize("change", [apart, keeping, counting])
def test_a_route_of_smaller_passes_is_not_taken_for_granted(first: int, change: Change) -> None:
    oracle = oracle_of(Faulty(change))
    private_sum(oracle, batch(3), Flat(1.0), micro_batch=first)
    with pytest.raises(AssumptionError):
        private_sum(oracle, batch(3), Flat(1.0))


def test_losses_are_compared_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if watching the operations saw nothing."""
    monkeypatch.setattr(check, "_steady", lambda trial, route: route)
    with pytest.raises(AssumptionError, match="depends"):
        oracle_of(Faulty(apart)).check(batch(3))


def rows_of_an_examination(records: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The rows that go through the model."""
    rows: list[int] = []
    call = check.call
    monkeypatch.setattr(check, "call", lambda model, x: (rows.append(len(x)), call(model, x))[1])
    check.examine(nn.Linear(5, 2), squared_error, batch(4), records)
    monkeypatch.undo()
    return sum(rows)


def test_an_examination_takes_few_passes_of_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (rows_of_an_examination(records, monkeypatch) for records in (64, 192))
    assert 0 < large - small <= 8 * (192 - 64)


def test_whole_numbers_are_not_scaled() -> None:
    words = (torch.arange(32).view(8, 4), torch.arange(8))
    assert [len(kind) for kind in changes(words, far=True, absent=True)] == [2, 1, 1]
    numbers = (words[0].float(), words[1])
    assert [len(kind) for kind in changes(numbers, far=True, absent=True)] == [3, 2, 2, 1]
    assert [len(kind) for kind in changes(numbers, far=False)] == [3, 2]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 40])
def test_every_way_to_change_a_row_is_tried_beside_every_row_that_stays(count: int) -> None:
    whole = torch.rand(count, 3), torch.arange(count)
    kept = torch.zeros(count, dtype=torch.bool)
    for kind in changes(whole, far=True, absent=True):
        tried = set[int]()
        for number, changed in enumerate(halves(count)[:2]):
            batch = mixed(whole, changed, kind, number)
            assert all(torch.equal(a[~changed], b[~changed]) for a, b in zip(batch, whole, strict=True))
            kept |= ~changed
            for way, change in enumerate(kind):
                new = change(whole)
                same = torch.isclose(batch[0], new[0], rtol=0, atol=0, equal_nan=True).all(1).tolist()
                labels = (batch[1] == new[1]).tolist()
                moved = [bool(c) and s and e for c, s, e in zip(changed, same, labels, strict=True)]
                tried |= {way} if any(moved) else set()
        assert tried == set(range(len(kind)))
    assert bool(kept.all())


@pytest.mark.parametrize("each", [1, 2, 3, 8, 12, 33])
@pytest.mark.parametrize("kept", [10.0, 1e4, 1e6])
@pytest.mark.parametrize("expected", [0.5, 3.0, 8.0, 33.0, 512.0, 60_000.0])
def test_passes_have_whole_kernels_of_rows(expected: float, kept: float, each: int) -> None:
    size = records_a_pass(expected, each=each, kept=kept)
    rows = size * each
    assert rows <= 4 * each or (rows % 4 == 0 and (rows <= 32 or rows % 32 == 0))
    assert rows <= max(4096, 32 * each)


def test_heavy_models_take_short_passes_and_light_ones_a_batch_at_once() -> None:
    sizes = [records_a_pass(512, kept=kept) for kept in (1e3, 1e5, 1e7)]
    assert sizes[0] >= 512 > 2 * sizes[1] > sizes[2] == 4
    assert records_a_pass(512, kept=1e4, fixed=1e12) >= 512


class Wide(nn.Module):
    """Keeps a million numbers for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out + out[:, :1].expand(-1, 2**20).sin().mean(1, keepdim=True)


def test_the_size_of_passes_changes_no_sum() -> None:
    torch.manual_seed(0)
    oracle, some = NetworkOracle(Wide(), squared_error, expected=50), batch(50)
    found = private_sum(oracle, some, Flat(0.1))
    sizes = {key[-1] for key in oracle._present.routes}
    assert sizes == {8}
    torch.testing.assert_close(found, private_sum(oracle, some, Flat(0.1), micro_batch=10))
