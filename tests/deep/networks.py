"""Small networks, small data, and doubles for the tests of sidelight.deep. Import once torch is there."""

import multiprocessing
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sidelight.audit.replay import largest_share
from sidelight.audit.tape import Tape as DoorTape
from sidelight.audit.tape import _tap
from sidelight.privacy.release import Released, release

torch.set_num_threads(1)

CENTERS = torch.tensor([[2.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 2.0, 0]])


def blobs(n: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Three classes in four dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=generator)
    return (CENTERS[y] + 0.7 * torch.randn(n, 4, generator=generator)).to(dtype), y


def mlp(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def gradients(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One gradient a record, by torch.func."""
    parameters = dict(model.named_parameters())

    def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(torch.func.functional_call(model, values, (x[None],)), y[None])[0]

    found = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(
        {name: p.detach() for name, p in parameters.items()}, *batch
    )
    return torch.cat([found[name].flatten(1) for name in parameters], dim=1)


class Listed(Dataset[Any]):
    """A dataset that is no TensorDataset, so that records are fetched one by one; it may act on a fetch."""

    def __init__(self, tensors: tuple[Tensor, Tensor], on_fetch: Any = None) -> None:
        self.tensors_, self.on_fetch = tensors, on_fetch
        self._count = multiprocessing.Value("i", 0)  # a number of its own would be put back after each record

    @property
    def fetched(self) -> int:
        return self._count.value

    def __len__(self) -> int:
        return len(self.tensors_[0])

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        with self._count.get_lock():
            self._count.value += 1
        if self.on_fetch is not None:
            self.on_fetch(self.fetched)
        return self.tensors_[0][i], self.tensors_[1][i]


class Tape:
    """Stands in for `release`: the audit's tape at that one door, with private sums as tensors."""

    def __init__(self, like: "Tape | None" = None) -> None:
        self.door = DoorTape()
        self._tapped = _tap("release", release, self.door, None if like is None else like.door, False)

    def __call__(self, total: Any, **options: Any) -> Released:
        released: Released = self._tapped(total, **options)
        return released

    @property
    def sums(self) -> list[Tensor]:
        return [torch.as_tensor(call.value) for call in self.door.calls]

    @property
    def events(self) -> list[Any]:
        return self.door.events

    def largest_share(self, other: "Tape") -> float:
        """How far apart two runs' sums are, in units of the sensitivity, at most."""
        mine, theirs = ([call.sensitivity for call in tape.door.calls] for tape in (self, other))
        assert mine == theirs, "the number of releases, or their sensitivity, depends on a record"
        return largest_share(self.door, other.door)
