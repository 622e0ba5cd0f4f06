"""Correct models: experts, pairs, graphs and several tasks."""

from typing import Any

import torch
from tests.mistakes.pieces import CLASSES, IMAGE, VECTOR, WORDS, head
from tests.mistakes.registry import (
    Group,
    Of,
    binary,
    entropy,
    flags,
    floats,
    integers,
    positive,
    scale,
    squares,
    token,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------------------------------------------

shapes = Group("experts, pairs, graphs and several tasks", VECTOR, CLASSES, entropy)


def experts(count: int = 3) -> nn.ModuleList:
    return nn.ModuleList(head(6) for _ in range(count))


shapes("mixture of experts, dense", lambda: Of(_dense_moe, g=nn.Linear(6, 3), e=experts()))
shapes("mixture of experts, top 1 by mask", lambda: Of(_masked_moe, g=nn.Linear(6, 3), e=experts()))
shapes("mixture of experts, dispatch by index", lambda: Of(_dispatched, g=nn.Linear(6, 3), e=experts()))
shapes("mixture of experts, top 2 by index_add", lambda: Of(_index_add, g=nn.Linear(6, 3), e=experts()))
shapes("mixture of experts, weights gathered", lambda: Of(_gathered, g=nn.Linear(6, 3), w=token(3, 3, 6)))
shapes(
    "experts for tokens, dispatch by index",
    lambda: Of(_token_moe, g=nn.Linear(4, 2), e=nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), b=head(4)),
    floats(5, 4),
)
shapes(
    "Siamese network",
    lambda: Of(lambda m, x, y: m.b((m.a(x).tanh() - m.a(y).tanh()).abs()), a=nn.Linear(6, 8), b=head(8)),
    (VECTOR, VECTOR),
)
shapes(
    "Siamese network, stacked rows",
    lambda: Of(
        lambda m, x, y: m.b((lambda z: (z[: len(x)] - z[len(x) :]).abs())(m.a(torch.cat([x, y])).tanh())),
        a=nn.Linear(6, 8),
        b=head(8),
    ),
    (VECTOR, VECTOR),
)
shapes(
    "contrastive pairs",
    lambda: Of(lambda m, x, y: functional.pairwise_distance(m.a(x), m.a(y)), a=nn.Linear(6, 8)),
    (VECTOR, VECTOR),
    binary(),
    lambda d, y: y * d.square() + (1 - y) * (1 - d).clamp(min=0).square(),
)
shapes(
    "triplets per record",
    lambda: Of(lambda m, x: m.a(x).unbind(1), a=nn.Linear(6, 4)),
    floats(3, 6),
    loss=lambda z, _: functional.triplet_margin_loss(z[0], z[1], z[2], reduction="none"),
)
shapes(
    "candidates per record (ranking)",
    lambda: Of(lambda m, q, c: (m.a(q)[:, None] * m.d(c)).sum(2), a=nn.Linear(6, 4), d=nn.Linear(5, 4)),
    (VECTOR, floats(3, 5)),
)
shapes(
    "negatives per record (word2vec)",
    lambda: Of(
        lambda m, w, c: (m.a(w)[:, None] * m.d(c)).sum(2), a=nn.Embedding(11, 4), d=nn.Embedding(11, 4)
    ),
    (integers(11), integers(11, 4)),
    binary(4),
    lambda z, y: functional.binary_cross_entropy_with_logits(z, y, reduction="none").mean(1),
)
shapes(
    "prototypes by cdist",
    lambda: Of(lambda m, x: -torch.cdist(m.a(x), m.p), a=nn.Linear(6, 4), p=token(3, 4)),
)
shapes(
    "cdist within a record",
    lambda: Of(lambda m, x: m.b(torch.cdist(m.a(x), m.a(x)).flatten(1)), a=nn.Linear(4, 6), b=head(25)),
    floats(5, 4),
)
shapes(
    "radial basis functions",
    lambda: Of(
        lambda m, x: m.b((-m.s * (x[:, None] - m.c).square().sum(2)).exp()),
        c=token(4, 6),
        s=scale(4, value=0.2),
        b=head(4),
    ),
)
shapes("graph, attention over nodes", lambda: Of(_graph, a=nn.Linear(2, 8), b=head(8)))
shapes(
    "graph, given adjacency",
    lambda: Of(
        lambda m, x, a: m.b(m.d(a @ m.a(a @ x).relu()).mean(1)),
        a=nn.Linear(2, 8),
        d=nn.Linear(8, 8),
        b=head(8),
    ),
    (floats(4, 2), positive(4, 4)),
)
shapes(
    "graph, edges by index",
    lambda: Of(_edges, a=nn.Linear(2, 8), b=head(8)),
    (floats(4, 2), integers(4, 6, 2)),
)
shapes(
    "graph, edges by scatter_add",
    lambda: Of(_scattered, a=nn.Linear(2, 8), b=head(8)),
    (floats(4, 2), integers(4, 6, 2)),
)
shapes(
    "points (PointNet)",
    lambda: Of(lambda m, x: m.b(m.a(x).relu().amax(1)), a=nn.Linear(3, 8), b=head(8)),
    floats(7, 3),
)
shapes(
    "deep sets",
    lambda: Of(lambda m, x: m.b(m.a(x).relu().sum(1)), a=nn.Linear(4, 8), b=head(8)),
    floats(5, 4),
)
shapes(
    "multi-task",
    lambda: Of(
        lambda m, x: (m.b(m.a(x).tanh()), m.c(m.a(x).tanh())), a=nn.Linear(6, 8), b=head(8), c=nn.Linear(8, 2)
    ),
    targets=(CLASSES, floats(2)),
    loss=lambda z, y: entropy(z[0], y[0]) + squares(z[1], y[1]),
)
shapes(
    "multi-task, named outputs",
    lambda: Of(
        lambda m, x: {"kind": m.b(m.a(x).tanh()), "value": m.c(m.a(x).tanh())},
        a=nn.Linear(6, 8),
        b=head(8),
        c=nn.Linear(8, 2),
    ),
    targets={"kind": CLASSES, "value": floats(2)},
    loss=lambda z, y: entropy(z["kind"], y["kind"]) + squares(z["value"], y["value"]),
)
shapes(
    "multi-task, some labels missing",
    lambda: Of(lambda m, x: m.b(m.a(x).tanh()), a=nn.Linear(6, 8), b=nn.Linear(8, 4)),
    targets=(binary(4), flags(4)),
    loss=lambda z, y: _masked_binary(z, y),
)
shapes(
    "two towers, images and words",
    lambda: Of(
        lambda m, x, w: m.b(m.i(x).mean((2, 3)) * m.t(w).mean(1)),
        i=nn.Conv2d(3, 4, 3),
        t=nn.Embedding(11, 4),
        b=head(4),
    ),
    (IMAGE, WORDS),
)
shapes(
    "hypernetwork",
    lambda: Of(lambda m, x, c: torch.einsum("bi,bio->bo", x, m.h(c).view(-1, 6, 3)), h=nn.Linear(4, 18)),
    (VECTOR, floats(4)),
)
shapes(
    "FiLM",
    lambda: Of(
        lambda m, x, c: m.b(m.a(x) * m.g(c) + m.d(c)),
        a=nn.Linear(6, 8),
        g=nn.Linear(4, 8),
        d=nn.Linear(4, 8),
        b=head(8),
    ),
    (VECTOR, floats(4)),
)
shapes(
    "deep and wide table",
    lambda: Of(
        lambda m, x, c: m.w(x) + m.b(torch.cat([x, *(e(c[:, i]) for i, e in enumerate(m.e))], 1).relu()),
        e=nn.ModuleList(nn.Embedding(5, 2) for _ in range(3)),
        w=head(6),
        b=head(12),
    ),
    (VECTOR, integers(5, 3)),
)
shapes(
    "feature tokenizer for tables",
    lambda: Of(
        lambda m, x: m.b(m.a(x[..., None] * m.w + m.v).mean(1)),
        w=token(6, 4),
        v=token(6, 4),
        a=nn.Linear(4, 4),
        b=head(4),
    ),
)
shapes("neural ODE by Euler steps", lambda: Of(_ode, a=nn.Linear(6, 8), c=nn.Linear(8, 6), b=head(6)))
shapes(
    "physics-informed",
    lambda: Of(_physics, a=nn.Linear(1, 8), b=nn.Linear(8, 1)),
    floats(5, 1),
    floats(5),
    loss=lambda z, y: (z - y).square().mean(1),
)
shapes(
    "codebook by distance, frozen",
    lambda: Of(_vector_quantized, a=nn.Linear(6, 4), c=token(5, 4).requires_grad_(False), b=head(4)),
)
shapes(
    "codebook by distance, trained",
    lambda: Of(_vector_quantized, a=nn.Linear(6, 4), c=token(5, 4), b=head(4)),
)


def _dense_moe(m: Any, x: Tensor) -> Any:
    weights = m.g(x).softmax(1)
    return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(m.e))


def _masked_moe(m: Any, x: Tensor) -> Any:
    weights = m.g(x).softmax(1)
    weights = weights * functional.one_hot(weights.argmax(1), 3)
    return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(m.e))


def _dispatched(m: Any, x: Tensor) -> Tensor:
    out, weights = x.new_zeros(len(x), 3), m.g(x).softmax(1)
    for i, expert in enumerate(m.e):
        mine = weights.argmax(1) == i
        out[mine] = expert(x[mine]) * weights[mine, i, None]
    return out


def _index_add(m: Any, x: Tensor) -> Tensor:
    weights, chosen = m.g(x).softmax(1).topk(2, 1)
    out = x.new_zeros(len(x), 3)
    for i, expert in enumerate(m.e):
        rows, place = (chosen == i).nonzero(as_tuple=True)
        out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
    return out


def _gathered(m: Any, x: Tensor) -> Tensor:
    weights = m.g(x).softmax(1)
    best = weights.argmax(1)
    return torch.einsum("boi,bi->bo", m.w[best], x) * weights.gather(1, best[:, None])


def _token_moe(m: Any, x: Tensor) -> Tensor:
    flat = x.reshape(-1, 4)
    out, chosen = torch.zeros_like(flat), m.g(flat).argmax(1)
    for i, expert in enumerate(m.e):
        rows = (chosen == i).nonzero().flatten()
        out[rows] = expert(flat[rows])
    return m.b(out.view_as(x).mean(1))


def _graph(m: Any, x: Tensor) -> Tensor:
    nodes = m.a(x.view(-1, 3, 2)).tanh()
    return m.b(((nodes @ nodes.transpose(1, 2)).softmax(2) @ nodes).mean(1))


def _edges(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    nodes = m.a(x)
    rows = torch.arange(len(x))[:, None]
    return m.b((nodes[rows, edges[..., 0]] * nodes[rows, edges[..., 1]]).tanh().mean(1))


def _scattered(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    nodes = m.a(x)
    sent = nodes.gather(1, edges[..., :1].expand(-1, -1, 8))
    arrived = torch.zeros_like(nodes).scatter_add(1, edges[..., 1:].expand(-1, -1, 8), sent)
    return m.b((nodes + arrived).relu().mean(1))


def _masked_binary(z: Tensor, y: Any) -> Tensor:
    losses, known = functional.binary_cross_entropy_with_logits(z, y[0], reduction="none"), y[1].float()
    return (losses * known).sum(1) / known.sum(1).clamp(min=1)


def _ode(m: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + 0.1 * m.c(m.a(x).tanh())
    return m.b(x)


def _physics(m: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = m.b(m.a(x).tanh())
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return (slope + value)[..., 0]


def _vector_quantized(m: Any, x: Tensor) -> Tensor:
    z = m.a(x)
    code = m.c[(z[:, None] - m.c).square().sum(2).argmin(1)]
    return m.b(z + (code - z).detach() + 0.1 * (code - z.detach()))
