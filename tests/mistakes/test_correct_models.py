"""Correct models that people write: exact, by the fastest route that is right for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.mistakes.tools import assert_exact, entropy, labeled  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402


class Of(nn.Module):
    """A model of named parts and a function of them."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _scale(*shape: int, value: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, value))


def _residual(scale: nn.Parameter) -> nn.Module:
    layers = {"a": nn.Linear(6, 6), "b": nn.Linear(6, 3), "s": scale}
    return Of(lambda m, x: m.b(x + m.s * m.a(x).tanh()), **layers)


def _normal(m: Any, x: Tensor) -> Tensor:
    """Fails where the spread, which is positive here, is not."""
    spread = torch.distributions.Normal(torch.zeros(3), m.spread, validate_args=True).stddev
    return m.a(x) / spread


def _moe(m: Any, x: Tensor) -> Tensor:
    weights = m.gate(x).softmax(1)
    return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(m.experts))


def _siamese(m: Any, x: Tensor) -> Tensor:
    left, right = m.a(x[:, :3]).tanh(), m.a(x[:, 3:]).tanh()
    return m.b((left - right).abs())


def _graph(m: Any, x: Tensor) -> Tensor:
    """Three nodes of two features, whose edges depend on them."""
    nodes = m.a(x.view(-1, 3, 2)).tanh()
    edges = (nodes @ nodes.transpose(1, 2)).softmax(2)
    return m.b((edges @ nodes).mean(1))


def _rnn(m: Any, x: Tensor) -> Tensor:
    return m.b(m.a(x.view(-1, 3, 2))[0][:, -1])


def _attention(m: Any, x: Tensor) -> Tensor:
    tokens = m.embed(x.view(-1, 3, 2)) + m.positions
    return m.b(m.encoder(torch.cat([m.token.expand(len(x), -1, -1), tokens], 1))[:, 0])


def _lora(m: Any, x: Tensor) -> Tensor:
    return m.base(x) + m.up(m.down(x))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "an MLP": lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 3)),
    "a temperature": lambda: Of(lambda m, x: m.a(x) / m.t.exp(), a=nn.Linear(6, 3), t=_scale(value=0.1)),
    "a scale per feature": lambda: Of(lambda m, x: m.a(x * m.s), a=nn.Linear(6, 3), s=_scale(6)),
    "layer scale": lambda: Of(
        lambda m, x: m.b(x + m.s * m.a(x).tanh()),
        a=nn.Linear(6, 6),
        b=nn.Linear(6, 3),
        s=_scale(6, value=1e-6),
    ),
    "a gate at zero": lambda: Of(
        lambda m, x: m.b(x + m.s * m.a(x).tanh()),
        a=nn.Linear(6, 6),
        b=nn.Linear(6, 3),
        s=_scale(1, value=0.0),
    ),
    "tied weights": lambda: Of(
        lambda m, x: m.b(functional.linear(m.a(x).tanh(), m.a.weight.T)), a=nn.Linear(6, 8), b=nn.Linear(6, 3)
    ),
    "a variance that must be positive": lambda: Of(_normal, a=nn.Linear(6, 3), spread=_scale(3, value=0.05)),
    "a mixture of experts": lambda: Of(
        _moe, gate=nn.Linear(6, 2), experts=nn.ModuleList(nn.Linear(6, 3) for _ in range(2))
    ),
    "a Siamese network": lambda: Of(_siamese, a=nn.Linear(3, 8), b=nn.Linear(8, 3)),
    "a graph": lambda: Of(_graph, a=nn.Linear(2, 8), b=nn.Linear(8, 3)),
    "a recurrent network": lambda: Of(_rnn, a=nn.GRU(2, 8, batch_first=True), b=nn.Linear(8, 3)),
    "a transformer": lambda: Of(
        _attention,
        embed=nn.Linear(2, 8),
        b=nn.Linear(8, 3),
        token=nn.Parameter(torch.randn(1, 1, 8)),
        positions=nn.Parameter(torch.randn(1, 3, 8)),
        encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1, enable_nested_tensor=False
        ),
    ),
    "LoRA": lambda: Of(
        _lora,
        base=nn.Linear(6, 3).requires_grad_(False),
        down=nn.Linear(6, 2, bias=False),
        up=_zero(nn.Linear(2, 3, bias=False)),
    ),
    "a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ),
    "a bilinear layer": lambda: Of(lambda m, x: m.a(x[:, :3], x[:, 3:]), a=nn.Bilinear(3, 3, 3)),
    "a look at values": lambda: Of(
        lambda m, x: m.a(x if not bool(torch.isnan(x).any()) else x.nan_to_num()), a=nn.Linear(6, 3)
    ),
}


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", MODELS)
def test_a_correct_model_is_exact(name: str) -> None:
    torch.manual_seed(0)
    oracle = NetworkOracle(MODELS[name](), entropy, example=labeled(8, seed=2))
    assert_exact(oracle, entropy, labeled(12), clip_norm=0.5, rtol=2e-3)


def test_dispatch_by_index_is_exact() -> None:
    """Records are sent to experts by x[mask]: each is taken alone."""

    def dispatched(m: Any, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), 3)
        for i, expert in enumerate(m.experts):
            mine = m.gate(x).argmax(1) == i
            out[mine] = expert(x[mine])
        return out

    torch.manual_seed(0)
    model = Of(dispatched, gate=nn.Linear(6, 2), experts=nn.ModuleList(nn.Linear(6, 3) for _ in range(2)))
    oracle = NetworkOracle(model, entropy, example=labeled(8, seed=2))
    assert_exact(oracle, entropy, labeled(12), clip_norm=0.5)
    assert oracle.route.kind == "loop" and oracle.route.reason
