"""Nothing of the size records × parameters is built: every tensor that an operation returns is weighed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles.networks import private_sum, squared_error
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sidelight.clipping import Diagonal, Projection
from sidelight.methods.parts import Flat
from sidelight.oracles.network import flat
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.pieces import Outer, Piece, Rows, Sparse
from sidelight.oracles.network.shared_pieces import Tied, merged


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
    assert share("Linear") > 0.9


STATUS = Path("/proc/self/status")


_LONG_SUM = """
import torch
from pathlib import Path
from sidelight.oracles.network.flat import RunningSum

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

before, size = resident(), 2**25
value = RunningSum(size, torch.float32, torch.device("cpu")).value
print((resident() - before) / (4 * size))
value[: size // 2] += 1.0
print((resident() - before) / (4 * size), bool(value[size // 2 :].any()))
"""


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_a_long_sum_takes_memory_where_it_is_written_to() -> None:
    """In a process of its own: another test may have told this one to keep the memory that it had."""
    done = subprocess.run([sys.executable, "-c", _LONG_SUM], capture_output=True, text=True, check=True)
    first, half, other = done.stdout.split()
    assert float(first) < 0.1 and 0.4 < float(half) < 0.6 and other == "False"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 5, 2**18 - 1, 2**18, 2**18 + 7])
def test_zeros_are_those_of_pytorch_and_begin_where_its_tensors_do(size: int, dtype: torch.dtype) -> None:
    found = flat.fresh_zeros(size, dtype, torch.device("cpu"))
    assert torch.equal(found, torch.zeros(size, dtype=dtype)) and found.dtype == dtype
    assert found.data_ptr() % 64 == 0 and found.is_contiguous()


@pytest.mark.parametrize("metric", [None, flat.TailProjection(torch.ones(1, 1), 3)], ids=["all", "tail"])
def test_a_sum_has_no_memory_while_the_model_runs(metric: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    zeros, ask = flat.fresh_zeros, NetworkOracle._ask

    def noted_zeros(*form: Any) -> Tensor:
        events.append("zeros")
        return zeros(*form)

    def noted_pass(self: NetworkOracle, *one: Any) -> Any:
        found = ask(self, *one)
        events.append("pass")
        return found

    monkeypatch.setattr(flat, "fresh_zeros", noted_zeros)
    monkeypatch.setattr(NetworkOracle, "_ask", noted_pass)
    model, x = nn.Sequential(nn.Linear(3, 1), nn.Tanh()), torch.randn(6, 4, 3)
    oracle = NetworkOracle(model, squared_error, pass_size=6)
    private_sum(oracle, (x, torch.randn(6)), Flat(0.1), metric=metric)
    assert events[0] == "pass" and "zeros" in events
    assert "pass" not in events[events.index("zeros") :]


def test_what_frees_most_goes_into_a_long_sum_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[torch.Size] = []
    for kind in (Outer, Sparse, Rows):
        add = kind.add_weighted

        def noted(self: Piece, factors: Tensor, out: Tensor, add: Any = add) -> None:
            order.append(self.shape)
            add(self, factors, out)

        monkeypatch.setattr(kind, "add_weighted", noted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40_000, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    oracle = NetworkOracle(model, squared_error, pass_size=32)
    batch = torch.randint(0, 40_000, (32, 10)), torch.randn(32)
    oracle.check(batch)
    order.clear()
    found = private_sum(oracle, batch, Flat(0.1))
    assert order[-1] == model[0].weight.shape  # which frees least, and is the last that arrives
    monkeypatch.setattr(flat, "_LAZY_NUMBERS", 2**40)
    order.clear()
    assert torch.equal(private_sum(oracle, batch, Flat(0.1)), found)  # whatever the order
    assert order[-1] != model[0].weight.shape


def test_a_tied_table_is_not_copied() -> None:
    outer = Outer(torch.randn(4, 3, 50), torch.randn(4, 3, 8), torch.Size((50, 8)))
    sparse = Sparse(torch.randint(0, 50, (4, 3)), torch.randn(4, 3, 8), torch.Size((50, 8)))
    tied = merged([outer, sparse])
    assert isinstance(tied, Tied) and tied.outer is outer and tied.sparse is sparse
