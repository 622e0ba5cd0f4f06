"""Correct models: adapters with shapes of peft; learned scalars, checks and branches."""

from typing import Any

import torch
from tests.mistakes.pieces import CLASSES, VECTOR, WORDS, head
from tests.mistakes.registry import (
    Group,
    Of,
    entropy,
    floats,
    scale,
    squares,
    then,
    token,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

# ---------------------------------------------------------------------------------------------------

adapt = Group("adapters, shapes of peft", VECTOR, CLASSES, entropy)


def frozen(wide: int, narrow: int) -> nn.Linear:
    return nn.Linear(wide, narrow).requires_grad_(False)


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        self.drop = nn.Dropout(0.1)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(self.drop(x)))


class LowRank(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.a, self.b = token(2, columns), nn.Parameter(torch.zeros(rows, 2))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def _parametrized() -> nn.Module:
    layer = nn.Linear(6, 8)
    parametrize.register_parametrization(layer, "weight", LowRank(8, 6))
    layer.parametrizations.weight.original.requires_grad_(False)  # type: ignore[union-attr]
    return then(layer, nn.Tanh(), head(8))


adapt("LoRA", lambda: then(LoRA(nn.Linear(6, 8)), nn.Tanh(), LoRA(head(8))))
adapt(
    "LoRA with parameters of one's own",
    lambda: Of(
        lambda m, x: m.w(x) + x @ m.a @ m.b, w=frozen(6, 3), a=token(6, 2), b=nn.Parameter(torch.zeros(2, 3))
    ),
)
adapt("LoRA as a parametrization", _parametrized)
adapt(
    "DoRA",
    lambda: Of(
        _dora, w=frozen(6, 3), a=nn.Linear(6, 2, bias=False), b=nn.Linear(2, 3, bias=False), m=scale(3)
    ),
)
adapt("IA³", lambda: Of(lambda m, x: m.b(m.a(x).tanh() * m.s), a=frozen(6, 8), s=scale(8), b=frozen(8, 3)))
adapt(
    "IA³ with a leading 1",
    lambda: Of(lambda m, x: m.b(m.a(x).tanh() * m.s), a=frozen(6, 8), s=scale(1, 8), b=frozen(8, 3)),
)
adapt(
    "bottleneck adapter",
    lambda: Of(
        lambda m, x: m.b(m.h(x) + m.u(m.d(m.h(x)).relu())),
        h=frozen(6, 8),
        d=nn.Linear(8, 2),
        u=nn.Linear(2, 8),
        b=head(8),
    ),
)
adapt("BitFit", lambda: _bitfit())
adapt(
    "prompt tuning",
    lambda: Of(
        _prompted,
        e=nn.Embedding(11, 4).requires_grad_(False),
        p=token(2, 4),
        a=nn.GRU(4, 4, batch_first=True).requires_grad_(False),
        b=head(4),
    ),
    WORDS,
)
adapt(
    "prompt tuning by an embedding",
    lambda: Of(
        _prompt_table,
        e=nn.Embedding(11, 4).requires_grad_(False),
        p=nn.Embedding(2, 4),
        a=nn.GRU(4, 4, batch_first=True).requires_grad_(False),
        b=head(4),
    ),
    WORDS,
)
adapt("linear probe in no_grad", lambda: Of(_probe, a=nn.Linear(6, 8), b=head(8)))
adapt(
    "a gate at zero",
    lambda: Of(
        lambda m, x: m.b(x + m.s * m.a(x).tanh()), a=nn.Linear(6, 6), b=head(6), s=scale(1, value=0.0)
    ),
)
adapt(
    "a gate at zero, a number",
    lambda: Of(
        lambda m, x: m.b(x + m.s.tanh() * m.a(x).tanh()), a=nn.Linear(6, 6), b=head(6), s=scale(value=0.0)
    ),
)


def _bitfit() -> nn.Module:
    model = then(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), head(8))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bias" in name)
    return model


def _dora(m: Any, x: Tensor) -> Tensor:
    weight = m.w.weight + m.b.weight @ m.a.weight
    return functional.linear(x, m.m[:, None] * weight / weight.norm(dim=1, keepdim=True), m.w.bias)


def _prompted(m: Any, x: Tensor) -> Tensor:
    return m.b(m.a(torch.cat([m.p.expand(len(x), -1, -1), m.e(x)], 1))[0][:, -1])


def _prompt_table(m: Any, x: Tensor) -> Tensor:
    prompt = m.p(torch.arange(2).expand(len(x), -1))
    return m.b(m.a(torch.cat([prompt, m.e(x)], 1))[0][:, -1])


def _probe(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        features = m.a(x).tanh()
    return m.b(features)


# ---------------------------------------------------------------------------------------------------

scalar = Group("learned scalars, checks and branches", VECTOR, CLASSES, entropy)
scalar(
    "learned temperature",
    lambda: Of(lambda m, x: m.b(m.a(x).tanh()) / m.t.exp(), a=nn.Linear(6, 8), b=head(8), t=scale(value=0.1)),
)
scalar(
    "learned temperature of shape 1",
    lambda: Of(lambda m, x: m.b(m.a(x).tanh()) * m.t, a=nn.Linear(6, 8), b=head(8), t=scale(1)),
)
scalar("a scale per feature", lambda: Of(lambda m, x: m.a(x * m.s), a=head(6), s=scale(6)))
scalar(
    "learned loss weights (uncertainty)",
    lambda: Of(lambda m, x: (m.a(x), m.b(x), m.s + 0 * x[:, :1]), a=head(6), b=nn.Linear(6, 1), s=token(2)),
    targets=(CLASSES, floats(1)),
    loss=lambda z, y: (
        (-z[2][:, 0]).exp() * entropy(z[0], y[0]) + (-z[2][:, 1]).exp() * squares(z[1], y[1]) + z[2].sum(1)
    ),
)
scalar(
    "a mixture by softmax of parameters",
    lambda: Of(
        lambda m, x: torch.einsum("k,kbc->bc", m.w.softmax(0), torch.stack([one(x) for one in m.a])),
        a=nn.ModuleList(head(6) for _ in range(3)),
        w=token(3),
    ),
)
scalar("assert not isnan(x).any()", lambda: Of(_asserting, a=nn.Linear(6, 8), b=head(8)))
scalar("assert on a hidden layer", lambda: Of(_asserting_hidden, a=nn.Linear(6, 8), b=head(8)))
scalar("raise if a value is bad", lambda: Of(_raising, a=nn.Linear(6, 8), b=head(8)))
scalar(
    "nan_to_num if there is any NaN",
    lambda: Of(lambda m, x: m.a(x if not bool(torch.isnan(x).any()) else x.nan_to_num()), a=head(6)),
)
scalar(
    "clamp by values of a weight",
    lambda: Of(lambda m, x: m.a(x).clamp(-float(m.a.weight.detach().abs().max()), 9.0), a=head(6)),
)
scalar("print of a maximum", lambda: Of(_printing, a=nn.Linear(6, 8), b=head(8)))
scalar("early exit by a value", lambda: Of(_early_exit, a=nn.Linear(6, 8), b=head(8), c=head(6)))
scalar(
    "a variance that must be positive",
    lambda: Of(
        lambda m, x: m.a(x) / torch.distributions.Normal(torch.zeros(3), m.s, validate_args=True).stddev,
        a=head(6),
        s=scale(3, value=0.05),
    ),
)
scalar(
    "torch.where by values",
    lambda: Of(lambda m, x: torch.where(x[:, :1] > 0, m.a(x), m.b(x)), a=head(6), b=head(6)),
)
scalar("top-k features", lambda: Of(lambda m, x: m.b(m.a(x).topk(4, 1).values), a=nn.Linear(6, 8), b=head(4)))
scalar("sorted features", lambda: Of(lambda m, x: m.b(m.a(x).sort(1).values), a=nn.Linear(6, 8), b=head(8)))
scalar("input gradient inside forward", lambda: Of(_energy, a=nn.Linear(6, 8), b=nn.Linear(8, 1), c=head(6)))
scalar(
    "straight-through estimator",
    lambda: Of(lambda m, x: m.b(_straight(m.a(x))), a=nn.Linear(6, 8), b=head(8)),
)
scalar(
    "quantization-aware weights",
    lambda: Of(
        lambda m, x: m.b(functional.linear(x, _straight(m.a.weight * 4) / 4).tanh()),
        a=nn.Linear(6, 8),
        b=head(8),
    ),
)
scalar(
    "custom autograd function",
    lambda: Of(lambda m, x: m.b(_reversed(m.a(x).tanh())), a=nn.Linear(6, 8), b=head(8)),
)
scalar(
    "complex numbers inside",
    lambda: Of(lambda m, x: m.b(torch.fft.rfft(m.a(x)).abs()), a=nn.Linear(6, 8), b=head(5)),
)
scalar("fixed-point iterations", lambda: Of(_fixed_point, a=nn.Linear(6, 6), b=head(6)))


def _asserting(m: Any, x: Tensor) -> Tensor:
    assert not torch.isnan(x).any(), "NaN in the input"
    return m.b(m.a(x).tanh())


def _asserting_hidden(m: Any, x: Tensor) -> Tensor:
    hidden = m.a(x)
    assert torch.isfinite(hidden).all()
    return m.b(hidden.tanh())


def _raising(m: Any, x: Tensor) -> Tensor:
    if (x.abs() > 1e6).any():
        raise ValueError("a value is far too large")
    return m.b(m.a(x).tanh())


def _printing(m: Any, x: Tensor) -> Tensor:
    hidden = m.a(x)
    print("largest", hidden.abs().max().item())
    return m.b(hidden.tanh())


def _early_exit(m: Any, x: Tensor) -> Tensor:
    quick = m.c(x)
    if quick.softmax(1).amax(1).min() > 0.9:
        return quick
    return m.b(m.a(x).tanh())


def _energy(m: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(m.b(m.a(x).tanh()).sum(), x, create_graph=True)
    return m.c(force)


def _straight(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def _reversed(x: Tensor) -> Any:
    return Reversed.apply(x)  # type: ignore[no-untyped-call]


class Reversed(torch.autograd.Function):
    """The gradient reversal of domain-adversarial training."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return -0.5 * grads[0]


def _fixed_point(m: Any, x: Tensor) -> Tensor:
    state = torch.zeros_like(x)
    for _ in range(4):
        state = (0.3 * m.a(state) + x).tanh()
    return m.b(state)
