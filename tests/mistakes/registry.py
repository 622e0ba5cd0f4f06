"""The list of correct models: how each is built, its records, its loss and its expected route."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from sidelight.oracles.network.batches import Batch

Loss = Callable[[Any, Any], Tensor]
Maker = Callable[[Generator, int], Tensor]  # rows of one part of a batch
Parts = Maker | tuple[Maker, ...] | dict[str, Maker]


@dataclass(frozen=True)
class Case:
    """A correct model as somebody would train it.

    route: by which its gradients are expected to be taken; why: a word of the reason for a slower one.
    random: it draws random numbers in any mode, so neighboring sums are compared, not gradients.
    """

    name: str
    group: str
    make: Callable[[], nn.Module]
    inputs: Parts
    targets: Parts
    loss: Loss
    route: str = "layers"
    why: str = ""
    random: bool = False

    def batch(self, count: int, seed: int) -> Batch:
        generator = Generator().manual_seed(seed)
        return _made(self.inputs, generator, count), _made(self.targets, generator, count)


def _made(parts: Parts, generator: Generator, count: int) -> Any:
    if isinstance(parts, tuple):
        return tuple(make(generator, count) for make in parts)
    if isinstance(parts, dict):
        return {name: make(generator, count) for name, make in parts.items()}
    return parts(generator, count)


CASES: dict[str, Case] = {}
_ELSEWHERE = "uses a weight outside of the layer that holds it"
_SELECTED = "records in its first or second dimension"  # rows are selected by their values before a layer
_INSIDE = "cannot be told apart by layer"  # it differentiates in forward, or joins rows of two inputs
SLOWER: dict[str, tuple[str, str]] = {  # models that the fast route does not take, and words of the reason
    "standardized weights": ("vmap", _ELSEWHERE),
    "cosine classifier": ("vmap", _ELSEWHERE),
    "masked weights (pruned)": ("vmap", _ELSEWHERE),
    "quantization-aware weights": ("vmap", _ELSEWHERE),
    "tied embeddings": ("vmap", _ELSEWHERE),
    "DoRA": ("vmap", _ELSEWHERE),
    "autoencoder, tied decoder": ("vmap", _ELSEWHERE),
    "autoregressive (MADE)": ("vmap", _ELSEWHERE),
    "PixelCNN's masked convolution": ("vmap", _ELSEWHERE),
    "an L2 penalty in the loss": ("vmap", _ELSEWHERE),
    "attention with bias_kv": ("vmap", "add_bias_kv"),
    "speech with CTC": ("vmap", "may read another record by an index or a label"),
    "Siamese network, stacked rows": ("vmap", _INSIDE),
    "clamp by values of a weight": ("vmap", "decides by values"),
    "print of a maximum": ("loop", "decides by values"),
    "early exit by a value": ("loop", "decides by values"),
    "input gradient inside forward": ("loop", _INSIDE),
    "physics-informed": ("loop", _INSIDE),
    "mixture of experts, dispatch by index": ("loop", _SELECTED),
    "mixture of experts, top 2 by index_add": ("loop", _SELECTED),
    "experts for tokens, dispatch by index": ("loop", _SELECTED),
    "packed GRU": ("loop", "packed sequence"),
    "noisy weights": ("vmap", "several records at once"),
    "standardized convolution": ("vmap", _ELSEWHERE),
    "weight norm of a table": ("vmap", _ELSEWHERE),
    "weight norm of a transposed convolution": ("vmap", _INSIDE),
}


class Group:
    """Adds cases that share a heading and, unless they say otherwise, records and loss."""

    def __init__(self, title: str, inputs: Parts, targets: Parts, loss: Loss) -> None:
        self.title, self.inputs, self.targets, self.loss = title, inputs, targets, loss

    def __call__(
        self,
        name: str,
        make: Callable[[], nn.Module],
        inputs: Parts | None = None,
        targets: Parts | None = None,
        loss: Loss | None = None,
        **more: Any,
    ) -> None:
        assert name not in CASES, f"two models are called {name!r}"
        parts = inputs or self.inputs, targets or self.targets, loss or self.loss
        CASES[name] = Case(name, self.title, make, *parts, *SLOWER.get(name, ("layers", "")), **more)


# ---------------------------------------------------------------------------------------------------
# records


def floats(*shape: int) -> Maker:
    return lambda generator, count: torch.randn(count, *shape, generator=generator)


def positive(*shape: int) -> Maker:
    return lambda generator, count: torch.rand(count, *shape, generator=generator) + 0.1


def integers(below: int, *shape: int, start: int = 0) -> Maker:
    return lambda generator, count: torch.randint(start, below, (count, *shape), generator=generator)


def flags(*shape: int) -> Maker:
    """Masks whose first entry is set, so that none is empty."""

    def make(generator: Generator, count: int) -> Tensor:
        mask = torch.rand(count, *shape, generator=generator) < 0.6
        mask[:, 0] = True
        return mask

    return make


def binary(*shape: int) -> Maker:
    return lambda generator, count: torch.randint(0, 2, (count, *shape), generator=generator).float()


# ---------------------------------------------------------------------------------------------------
# models and losses


class Of(nn.Module):
    """A model of named parts and a function of them."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def then(*layers: nn.Module | Callable[[Tensor], Tensor]) -> nn.Module:
    """Layers, and functions between them, one after the other."""
    return nn.Sequential(*(one if isinstance(one, nn.Module) else Does(one) for one in layers))


class Does(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def scale(*shape: int, value: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, value))


def token(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(*shape))


def entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy, one number per record."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error, averaged over each record's own numbers."""
    return (outputs - targets).square().flatten(1).mean(1)


def tokens_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each token, averaged within the record."""
    return nn.functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)
