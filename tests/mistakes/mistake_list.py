"""The list of mistakes that people make, each with what becomes of it: refused, or computed correctly."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.mistakes.registry import Case, Maker, Of, entropy, floats, integers, then, tokens_entropy
from torch import Tensor, nn
from torch.nn import functional

VECTOR, CLASSES = floats(6), integers(3)
COUNTER = {"calls": 0.0}
CAPTURED: list[Tensor] = []
SMALL = 1e-3  # a share of the gradient that a comparison to 2 % does not see


@dataclass(frozen=True)
class Mistake:
    """keyword: of the refusal; empty where the model is computed correctly, by `route`."""

    case: Case
    keyword: str = ""


MISTAKES: dict[str, Mistake] = {}


def mistake(
    group: str,
    name: str,
    make: Callable[[], nn.Module],
    keyword: str = "",
    *,
    loss: Any = entropy,
    inputs: Maker = VECTOR,
    targets: Maker = CLASSES,
    **more: Any,
) -> None:
    assert name not in MISTAKES, f"two mistakes are called {name!r}"
    MISTAKES[name] = Mistake(Case(name, group, make, inputs, targets, loss, **more), keyword)


# ---------------------------------------------------------------------------------------------------
# between the layers of a model

MIXED = "depends on the others"
MODELS = "one record changes another: models"


def between(change: Callable[[Any, Tensor], Tensor]) -> Callable[[], nn.Module]:
    """An MLP with a mistake between its layers."""

    def run(m: Any, x: Tensor) -> Tensor:
        return m.last(change(m, m.first(x).tanh()))

    return lambda: Of(
        run, first=nn.Linear(6, 8), last=nn.Linear(8, 3), gate=nn.Parameter(torch.zeros(8)), change=change
    )


def _capacity(m: Any, h: Tensor) -> Tensor:
    """An expert takes the first of its records, and drops the others."""
    chosen = h[:, 0] > 0
    return h * (chosen.cumsum(0) <= len(h) // 4).to(h.dtype)[:, None]


def _trimmed(m: Any, h: Tensor) -> Tensor:
    """To the longest of the batch, with a norm over what is left."""
    longest = int((h.abs() > 0.1).sum(1).max())
    return functional.pad(h[:, :longest] / max(1, longest), (0, 8 - longest))


def _in_training(m: Any, h: Tensor) -> Tensor:
    return h * torch.linspace(0, 1, len(h))[:, None] if m.training else h


def _wrong_dimension() -> nn.Module:
    return Of(lambda m, x: m.a(x)[0][:, -1], a=nn.LSTM(6, 3))  # which takes time first


mistake(
    MODELS, "batch norm", lambda: then(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), "BatchNorm1d '1'"
)
mistake(
    MODELS,
    "batch statistics",
    between(lambda m, h: (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-3)),
    MIXED,
)
mistake(
    MODELS, "batch statistics, unbiased", between(lambda m, h: (h - h.mean(0)) / (h.std(0) + 1e-3)), MIXED
)
mistake(MODELS, "softmax over the batch", between(lambda m, h: h.softmax(0)), MIXED)
mistake(MODELS, "a norm over the whole batch", between(lambda m, h: h / h.norm()), MIXED)
mistake(MODELS, "attention over records", between(lambda m, h: (h @ h.T).softmax(1) @ h), MIXED)
mistake(MODELS, "a cumulative sum over records", between(lambda m, h: h.cumsum(0)), MIXED)
mistake(MODELS, "a gate that opens later", between(lambda m, h: h + m.gate * h.mean(0)), MIXED)
mistake(MODELS, "mixup in forward", between(lambda m, h: 0.8 * h + 0.2 * h[torch.randperm(len(h))]), MIXED)
mistake(MODELS, "capacity of an expert", between(_capacity), MIXED)
mistake(
    MODELS,
    "weights by position in the batch",
    between(lambda m, h: h * torch.linspace(0, 1, len(h))[:, None]),
    MIXED,
)
mistake(
    MODELS,
    "a mask by position in the batch",
    between(lambda m, h: h * (torch.arange(len(h)) > 2)[:, None]),
    MIXED,
)
mistake(
    MODELS,
    "weights by position, in training only",
    lambda: nn.Sequential(between(_in_training)(), nn.Dropout(0.1)),
    MIXED,
)
mistake(MODELS, "trimming to the longest", between(_trimmed), MIXED)
mistake(
    MODELS,
    "a maximum that rarely matters",
    between(lambda m, h: h / (h.detach().abs().max() / 100).clamp(min=1)),
    MIXED,
)
mistake(MODELS, "the neighbor's features", between(lambda m, h: h + 0.1 * h.roll(1, 0)), MIXED)
mistake(MODELS, "the wrong batch dimension", _wrong_dimension, MIXED, inputs=floats(8, 6))

# ---------------------------------------------------------------------------------------------------

LOSSES = "one record changes another: losses"


def perceptron() -> nn.Module:
    return then(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def _class_weights(z: Tensor, y: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 5.0])[y]
    return entropy(z, y) * weights / weights.mean()


def _balanced(z: Tensor, y: Tensor) -> Tensor:
    """Weights by how often a class is in the batch."""
    return entropy(z, y) / functional.one_hot(y, 3).sum(0).clamp(min=1)[y]


def _dice(z: Tensor, y: Tensor) -> Tensor:
    p, hot = z.softmax(1), functional.one_hot(y, 3)
    return (1 - 2 * (p * hot).sum() / (p + hot).sum()).expand(len(z))


def _info_nce(z: Tensor, y: Tensor) -> Tensor:
    return entropy(functional.normalize(z) @ functional.normalize(z.detach()).T, torch.arange(len(z)))


def _supervised_contrast(z: Tensor, y: Tensor) -> Tensor:
    same = (y[:, None] == y).float()
    return -(same * (z @ z.T).log_softmax(1)).sum(1) / same.sum(1)


def _cox(z: Tensor, y: Tensor) -> Tensor:
    risk = z[:, 0]
    return torch.stack([(risk.exp() * (y >= one)).sum().log() for one in y]) - risk


def _hard_half(z: Tensor, y: Tensor) -> Tensor:
    losses = entropy(z, y)
    return losses * (losses >= losses.detach().median())


def _token_mean(z: Tensor, y: Tensor) -> Tensor:
    losses = functional.cross_entropy(z.transpose(1, 2), y, reduction="none", ignore_index=0)
    return losses.sum(1) / (y != 0).sum()


def words() -> nn.Module:
    return then(nn.Embedding(11, 4), nn.Linear(4, 11))


mistake(LOSSES, "class weights normalized by the batch", perceptron, MIXED, loss=_class_weights)
mistake(LOSSES, "classes balanced by the batch", perceptron, MIXED, loss=_balanced)
mistake(LOSSES, "dice over the batch", perceptron, MIXED, loss=_dice)
mistake(LOSSES, "InfoNCE", perceptron, MIXED, loss=_info_nce)
mistake(LOSSES, "supervised contrast", perceptron, MIXED, loss=_supervised_contrast)
mistake(LOSSES, "Cox", perceptron, MIXED, loss=_cox)
mistake(LOSSES, "the harder half of the batch", perceptron, MIXED, loss=_hard_half)
mistake(
    LOSSES,
    "negatives from the batch",
    perceptron,
    MIXED,
    loss=lambda z, y: (z - z.roll(1, 0)).square().sum(1).neg().exp() + entropy(z, y),
)
mistake(
    LOSSES,
    "a mean over the tokens of the batch",
    words,
    MIXED,
    loss=_token_mean,
    inputs=integers(11, 5),
    targets=integers(11, 5),
)
mistake(LOSSES, "one loss for the batch", perceptron, "one number", loss=functional.cross_entropy)
mistake(
    LOSSES,
    "one loss per token",
    words,
    "one number",
    loss=lambda z, y: functional.cross_entropy(z.transpose(1, 2), y, reduction="none"),
    inputs=integers(11, 5),
    targets=integers(11, 5),
)
mistake(
    LOSSES,
    "a trained parameter of the loss",
    perceptron,
    "centers",
    loss=Of(
        lambda m, z, y: entropy(z, y) + (z - m.centers[y]).square().sum(1),
        centers=nn.Parameter(torch.ones(3, 3)),
    ),
)

# ---------------------------------------------------------------------------------------------------

DRAWS = "random numbers"


def _reseeded(m: Any, h: Tensor) -> Tensor:
    torch.manual_seed(0)
    return functional.dropout(h, 0.5)


def _layer_drop() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            if torch.rand(()) < 0.5:
                x = x + layer(x).tanh()
        return m.last(x)

    return Of(run, layers=nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), last=nn.Linear(6, 3))


OTHER = "random numbers that PyTorch's generator"
mistake(DRAWS, "NumPy's random numbers", between(lambda m, h: h * float(np.random.rand())), OTHER)
mistake(DRAWS, "Python's random numbers", between(lambda m, h: h * random.random()), OTHER)
mistake(
    DRAWS,
    "a generator of one's own",
    between(lambda m, h: h + torch.randn(h.shape, generator=torch.Generator().manual_seed(1))),
    OTHER,
)
mistake(DRAWS, "manual_seed in forward", between(_reseeded), route="loop", why="sets the state", random=True)
mistake(
    DRAWS,
    "LayerDrop, one draw for the batch",
    _layer_drop,
    route="loop",
    why="decides by values",
    random=True,
)
mistake(
    DRAWS,
    "one factor for the batch",
    between(lambda m, h: h * torch.rand(1)),
    route="vmap",
    why="several records at once",
    random=True,
)

# ---------------------------------------------------------------------------------------------------

MEMORY = "memory of records"


class Model(nn.Module):
    """An MLP that does something with what it sees."""

    shared: float = 0.0

    def __init__(self, do: Callable[[Any, Tensor], object] = lambda model, x: None) -> None:
        super().__init__()
        self.first, self.last, self.do = nn.Linear(6, 8), nn.Linear(8, 3), do
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("average", torch.zeros(6))
        self.seen: list[float] = []
        self.count = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.do(self, x)
        return self.last(self.first(x).tanh())


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _closure() -> Callable[[Any, Tensor], object]:
    total = 0.0

    def do(model: Any, x: Tensor) -> None:
        nonlocal total
        total += float(x.mean())

    return do


def _hooked() -> nn.Module:
    model, held = Model(), list[Tensor]()
    model.first.register_forward_hook(lambda layer, args, output: held.append(output))
    return model


class Keeps(torch.autograd.Function):
    """Keeps the gradients that it sees."""

    kept: Tensor | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        Keeps.kept = grads[0].clone()
        return grads[0]


class Kept(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(Keeps.apply(self.first(x)).tanh())  # type: ignore[no-untyped-call]


def remembers(name: str, do: Callable[[Any, Tensor], object], keyword: str) -> None:
    mistake(MEMORY, name, lambda: Model(do), keyword)


remembers(
    "a running average in a buffer",
    lambda m, x: m.average.mul_(0.9).add_(0.1 * x.detach().mean(0)),
    "average",
)
remembers("a codebook in a buffer", lambda m, x: m.average.data.copy_(x.detach().mean(0)), "average")
remembers("a write into a frozen weight", lambda m, x: m.frozen.data.add_(x.detach().sum(0)), "frozen")
remembers("a counter in an attribute", lambda m, x: _set(m, "count", m.count + float(x.sum())), "count")
remembers("a counter of calls", lambda m, x: _set(m, "count", m.count + 1), "count")
remembers("a list of losses", lambda m, x: m.seen.append(float(x.mean())), "seen")
remembers("an attribute of the class", lambda m, x: _set(Model, "shared", float(x.mean())), "shared")
remembers("a global of the module", lambda m, x: COUNTER.update(calls=float(x.mean())), "calls")
remembers("activations in a global list", lambda m, x: CAPTURED.append(x), "CAPTURED")
remembers("a variable of a closure", _closure(), "total")
remembers("the last batch", lambda m, x: _set(m, "batch", x.detach()), "batch")
mistake(MEMORY, "a hook that collects activations", _hooked, "held")
mistake(MEMORY, "a custom function that keeps gradients", Kept, "kept")

# ---------------------------------------------------------------------------------------------------

USES = "parameters used elsewhere"


class Borrower(nn.Module):
    """Uses a parameter that its parent holds."""

    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        self._borrowed = [scale]

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + SMALL * self._borrowed[0])


def _lender() -> nn.Module:
    scale = nn.Parameter(torch.ones(6))
    return Of(
        lambda m, x: m.head(m.child(x) * m.scale), scale=scale, child=Borrower(scale), head=nn.Linear(6, 3)
    )


def _decoder() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        hidden = m.encoder(x).tanh()
        return m.head(hidden) + SMALL * functional.linear(hidden, m.encoder.weight.T)[:, :3]

    return Of(run, encoder=nn.Linear(6, 8), head=nn.Linear(8, 3))


def _with_hook() -> nn.Module:
    model: Any = perceptron()
    model[0].register_forward_hook(lambda layer, _, out: out + SMALL * layer.weight.sum())
    return model


def _unregistered() -> nn.Module:
    return Of(lambda m, x: m.head(m.layers[0](x).tanh()), layers=[nn.Linear(6, 6)], head=nn.Linear(6, 3))


def _penalty(z: Any, y: Tensor) -> Tensor:
    return entropy(z[0], y) + 0.1 * SMALL * z[1]


mistake(USES, "a weight used by another module", _decoder, route="vmap", why="outside of the layer")
mistake(USES, "a parameter of the parent", _lender, route="loop", why="outside of the layer")
mistake(USES, "a weight in a hook", _with_hook, route="vmap", why="outside of the layer")
mistake(
    USES,
    "a penalty on a weight, from forward",
    lambda: Of(lambda m, x: (m.a(x), m.a.weight.square().sum()), a=nn.Linear(6, 3)),
    loss=_penalty,
    route="vmap",
    why="outside of the layer",
)
mistake(
    USES,
    "a penalty on a token, from forward",
    lambda: Of(
        lambda m, x: (m.a((x + m.t).tanh()), m.t.square().sum()),
        t=nn.Parameter(torch.randn(1, 6)),
        a=nn.Linear(6, 3),
    ),
    loss=_penalty,
    route="vmap",
    why="outside of the layer",
)
mistake(USES, "layers in a plain list", _unregistered, "never be trained")

# ---------------------------------------------------------------------------------------------------
# rows of the page whose tests are elsewhere

ELSEWHERE = {
    "a penalty on weights in the loss": ("computed correctly", "tests/mistakes/test_parameters.py"),
    "prints and log lines in forward": ("kept from the outside, said once", "tests/mistakes/test_memory.py"),
    "`lru_cache` of values": ("emptied", "tests/mistakes/test_memory.py"),
    "a flattened gather with an index out of range": ("computed correctly", "tests/mistakes/test_batches.py"),
    "a dataset that remembers records": ("computed correctly", "tests/contracts/test_records_isolated.py"),
    "a collate that remembers or mixes records": (
        "computed correctly",
        "tests/contracts/test_records_isolated.py",
    ),
    "an augmentation that remembers records": (
        "computed correctly",
        "tests/contracts/test_records_isolated.py",
    ),
}

__all__ = ["ELSEWHERE", "MISTAKES", "Mistake", "tokens_entropy"]
