"""Copies of frozen weights in a file: they tell every change, and put everything back."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.oracles.network.scratch import Scratch, Stored  # noqa: E402
from sidelight.oracles.network.snapshots import TensorSnapshot  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="copies are in memory on this system")
MANY = 2**18 + 3  # numbers; more bytes than are compared at once, and no whole number of such parts


def snapshot(x: Tensor, scratch: Scratch | None = None) -> TensorSnapshot:
    held = TensorSnapshot(x, copied=False)
    held.renew(copied=True, scratch=scratch or Scratch())
    assert isinstance(held.copy, Stored)
    return held


@pytest.mark.parametrize("place", [0, 2**16 - 1, 2**16, MANY - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_one_number_is_noticed_and_put_back(place: int, dtype: Any) -> None:
    x = (100 * torch.randn(MANY)).to(dtype)
    before, held = x.clone(), snapshot(x)
    assert not held.changed()
    x.data[place] = x[place] + 1 if x[place] < 100 else 0  # which no version tells
    assert held.changed()
    held.restore()
    assert torch.equal(x, before) and not held.changed()


def test_numbers_that_are_none_and_signs_of_zero_are_compared_by_their_bits() -> None:
    x = torch.zeros(MANY)
    x[7] = float("nan")
    held = snapshot(x)
    assert not held.changed()
    x.data[8] = -0.0
    assert held.changed()
    held.restore()
    assert not torch.signbit(x[8]) and x[7].isnan()


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.zeros(MANY, dtype=torch.float64),
        lambda: torch.zeros(3),
        lambda: torch.zeros(2 * MANY)[::2],
        lambda: torch.ones(1).expand(MANY),
    ],
)
def test_a_tensor_of_another_form_is_put_back(other: Callable[[], Any]) -> None:
    x = torch.randn(MANY)
    before, held = x.clone(), snapshot(x)
    x.data = other()
    assert held.changed()
    held.restore()
    assert torch.equal(x, before) and x.dtype == before.dtype and not held.changed()


def test_a_weight_that_its_owner_changes_is_copied_in_memory_from_then_on() -> None:
    x = torch.randn(MANY)
    held = snapshot(x)
    first = held.copy
    held.renew(copied=True, scratch=Scratch())
    assert held.copy is first
    x.data.mul_(2)
    held.renew(copied=True, scratch=Scratch())
    assert isinstance(held.copy, torch.Tensor) and torch.equal(held.copy, x) and not held.changed()


def test_what_has_no_memory_of_its_own_is_copied_in_memory() -> None:
    made = (torch.zeros(6)[::2], torch.zeros(4).to_sparse(), torch.zeros(2, dtype=torch.cfloat).conj())
    assert [Scratch().store(x) for x in made] == [None] * 3


def test_a_copy_of_it_and_another_process_have_it_in_memory() -> None:
    x = torch.randn(MANY)
    held = Scratch().store(x)
    for other in (copy.deepcopy(held), pickle.loads(pickle.dumps(held))):
        assert isinstance(other, torch.Tensor) and torch.equal(other, x)


def test_a_forked_process_writes_elsewhere() -> None:
    scratch, x, y, z = Scratch(), torch.randn(MANY), torch.randn(MANY), torch.randn(MANY)
    first = scratch.store(x)
    assert first is not None
    child = os.fork()
    if child == 0:  # where torch has no threads: nothing is computed here
        second = scratch.store(z)
        os._exit(0 if second is not None and second.same(z) and first.same(x) else 1)
    second = scratch.store(y)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert second is not None and second.same(y) and first.same(x)


@pytest.mark.parametrize("fails", ["the folder", "room"])
def test_without_a_folder_or_without_room_copies_are_in_memory(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if fails == "room":
        monkeypatch.setattr(os, "pwrite", refuse)
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    x = torch.randn(MANY)
    held = TensorSnapshot(x, copied=False)
    held.renew(copied=True, scratch=Scratch())
    assert isinstance(held.copy, torch.Tensor) and not held.changed()


class Writes(nn.Module):
    """Adds what it sees to a frozen weight, where no version tells."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.head = nn.Linear(8, 4096, bias=False), nn.Linear(4096, 2)
        self.frozen.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 77.25).any()):  # so rare that no trial meets it
            self.frozen.weight.data[0] += x.detach().mean()
        out: Tensor = self.head(torch.tanh(self.frozen(x)))
        return out


def test_what_a_record_writes_into_a_frozen_weight_is_undone() -> None:
    torch.manual_seed(0)
    model = Writes()
    before = model.frozen.weight.clone()
    oracle = NetworkOracle(model, nn.CrossEntropyLoss(reduction="none"))
    x, y = torch.randn(6, 8), torch.zeros(6, dtype=torch.long)
    oracle.clipped_sum((x, y), clip=Flat(1.0), relation="add-or-remove-one")
    held = {id(one.tensor): one for one in oracle._state._held}
    assert isinstance(held[id(model.frozen.weight)].copy, Stored)
    x[3] = 77.25
    oracle.clipped_sum((x, y), clip=Flat(1.0), relation="add-or-remove-one")
    assert torch.equal(model.frozen.weight, before)


def test_it_is_put_back_whatever_the_default_device_is() -> None:
    x = torch.randn(MANY)
    before, held = x.clone(), snapshot(x)
    x.data[3] = 5.0
    try:
        torch.set_default_device("meta")
        held.restore()
        assert x.device.type == "cpu"
        x.data = torch.empty(3, device="cpu")
        held.restore()
    finally:
        torch.set_default_device(None)
    assert torch.equal(x, before)


def test_its_owner_may_resize_its_memory() -> None:
    x = torch.randn(MANY)
    before, held = x.clone(), snapshot(x)
    x.untyped_storage().resize_(8)
    assert held.changed()
    held.restore()
    assert torch.equal(x, before)
    x.untyped_storage().resize_(8 * MANY)  # which gives it another place
    held.renew(copied=True)
    assert isinstance(held.copy, Stored) and not held.changed() and torch.equal(x, before)


def test_a_file_that_somebody_closes_costs_no_error() -> None:
    """Between steps the copy is taken anew; in a step what was written does not stay."""
    x, y = torch.randn(MANY), torch.randn(MANY)
    scratch = Scratch()
    first, second = snapshot(x, scratch), snapshot(y, scratch)
    assert isinstance(first.copy, Stored)
    number = first.copy._file.number
    os.close(number)
    with open(os.devnull, "rb") as other:  # which gets the number
        reused = other.fileno() == number
        first.renew(copied=True)
        assert isinstance(first.copy, torch.Tensor) and not first.changed()
        y.data[5] = 7.0
        second.restore()
        assert not y.any()
        del first, second, scratch
        assert not reused or other.read() == b""  # still open


def test_signs_of_zeros_are_put_back_from_memory_too() -> None:
    for x in (torch.zeros(5), torch.zeros(()), torch.zeros(4, dtype=torch.cfloat), torch.zeros(6)[::2]):
        held = TensorSnapshot(x, copied=True)
        x.data.view(-1)[:1].mul_(-1.0) if x.dim() else x.data.mul_(-1.0)
        assert held.changed()
        held.restore()
        assert not held.changed() and not torch.signbit(torch.view_as_real(x) if x.is_complex() else x).any()
