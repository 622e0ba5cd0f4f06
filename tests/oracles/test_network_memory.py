"""Nothing of the size records × parameters is built: every tensor that an operation returns is weighed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.oracles.networks import private_sum, squared_error  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from sidelight.clipping import Diagonal, Projection  # noqa: E402
from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.oracles.network import flat  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.oracles.network.pieces import Outer, Rows  # noqa: E402


class Weighing(TorchDispatchMode):
    """Remembers the largest tensor that owns its memory."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                stored = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.largest = max(self.largest, stored)
        return found


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(6000, 32), nn.Linear(32, 6000, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x)))  # type: ignore[no-any-return]


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "Linear": (
        lambda: nn.Sequential(nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 9)),
        torch.randn(128, 500),
    ),
    "Linear-sequence": (lambda: nn.Sequential(nn.Linear(500, 500), nn.ReLU()), torch.randn(128, 3, 500)),
    "Conv2d": (lambda: nn.Sequential(nn.Conv2d(64, 128, 3), nn.ReLU()), torch.randn(256, 64, 4, 4)),
    "tied": (Language, torch.randint(0, 6000, (100, 3))),
    "attention": (
        lambda: nn.TransformerEncoderLayer(192, 4, 192, dropout=0.0, batch_first=True),
        torch.randn(100, 4, 192),
    ),
    "LSTM": (lambda: nn.LSTM(128, 192, batch_first=True), torch.randn(100, 3, 128)),
}


def share(name: str, **options: Any) -> float:
    """The largest tensor of a private sum, in units of records × parameters."""
    torch.manual_seed(0)
    build, x = CASES[name]
    oracle, batch = NetworkOracle(build(), squared_error, pass_size=len(x)), (x, torch.randn(len(x)))
    origin = torch.full((oracle.dimension,), 1e-3)
    options = {key: make(oracle.dimension) for key, make in options.items()}
    oracle.check(batch)
    with Weighing() as weighing:
        private_sum(oracle, batch, Flat(0.1), origin=origin, **options)
    return weighing.largest / (len(x) * oracle.dimension)


@pytest.mark.parametrize("name", CASES)
def test_no_tensor_is_as_large_as_all_gradients(name: str) -> None:
    assert share(name) < 0.2


@pytest.mark.parametrize("name", ["Linear", "Conv2d", "tied"])
def test_metrics_do_not_need_all_gradients_either(name: str) -> None:
    assert share(name, metric=lambda p: Diagonal(torch.linspace(0.5, 1.5, p))) < 0.25
    assert share(name, metric=lambda p: Projection(torch.randn(p, 2))) < 0.25


def test_weighing_catches_gradients_that_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def written_out(self: Outer, around: Any) -> Any:
        return Rows(self.rows(0, self.count), self.shape).squares(around)

    monkeypatch.setattr(Outer, "squares", written_out)
    monkeypatch.setattr(flat, "joins", lambda piece, around: False)
    assert share("Linear") > 0.9
