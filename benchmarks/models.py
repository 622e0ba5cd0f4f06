"""The models of the step benchmark, with random weights and random data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MODELS", "Batch", "Case"]

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A model, its loss, and the sizes of a private and a public batch."""

    name: str
    build: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor]
    draw: Callable[[int], Batch]
    private: int
    public: int
    untied: Callable[[], nn.Module] | None = None  # for peers that refuse tied weights


classification = nn.CrossEntropyLoss(reduction="none")


def next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    return (
        functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        .view(targets.shape)
        .mean(1)
    )


def images(*shape: int) -> Callable[[int], Batch]:
    return lambda n: (torch.randn(n, *shape), torch.randint(0, 10, (n,)))


class MnistCnn(nn.Module):
    """The CNN of Coupling's appendix A (the benchmark model of TensorFlow Privacy and Opacus)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 8, 2, padding=3), nn.Conv2d(16, 32, 4, 2)
        self.fc1, self.fc2 = nn.Linear(32 * 4 * 4, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2, 1)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2, 1)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def mlp() -> nn.Module:
    sizes, layers = (600, 1024, 512, 256, 10), list[nn.Module]()
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class WideBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(x))
        return self.conv2(functional.relu(self.norm2(self.conv1(y)))) + self.shortcut(y)


def wide_resnet(depth: int = 16, width: int = 4) -> nn.Module:
    """WideResNet-16-4 (Zagoruyko & Komodakis 2016) with GroupNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    before = 16
    for stage, after in enumerate((16 * width, 32 * width, 64 * width)):
        for i in range((depth - 4) // 6):
            layers.append(WideBlock(before, after, 2 if stage and i == 0 else 1))
            before = after
    tail = [nn.GroupNorm(16, before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)]
    return nn.Sequential(*layers, *tail)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """The block of GPT-2: normalisation first, GELU, four times the width inside."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A classifier over tokens, or a language model with GPT-2's tied embeddings."""

    def __init__(
        self, words: int, width: int, heads: int, depth: int, length: int, *, classes: int, tied: bool
    ) -> None:
        super().__init__()
        self.language = classes == 0
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=self.language) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes or words, bias=not self.language)
        if self.language:
            nn.init.normal_(self.words.weight, std=0.02)
            nn.init.normal_(self.head.weight, std=0.02)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).repeat(
            len(tokens), 1
        )  # Opacus needs a copy
        x = self.norm(self.blocks(self.words(tokens) + self.places(places)))
        return self.head(x if self.language else x.mean(1))


def classifier() -> nn.Module:
    return Transformer(5000, 128, 4, 4, 128, classes=10, tied=False)


def gpt(tied: bool = True) -> nn.Module:
    return Transformer(16384, 256, 4, 6, 128, classes=0, tied=tied)


class Recurrent(nn.Module):
    """An LSTM over tokens; the mean of its outputs is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(2000, 64), nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(tokens))[0].mean(1))


def separable() -> nn.Module:
    """Depthwise and pointwise convolutions in turn, as in MobileNet, with GroupNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU()]
    for before, after, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)):
        layers += [nn.Conv2d(before, before, 3, stride, 1, groups=before), nn.Conv2d(before, after, 1)]
        layers += [nn.GroupNorm(8, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def sentences(words: int, length: int, *, classes: int) -> Callable[[int], Batch]:
    def draw(n: int) -> Batch:
        tokens = torch.randint(0, words, (n, length + 1))
        return tokens[:, :-1].clone(), torch.randint(0, classes, (n,)) if classes else tokens[:, 1:].clone()

    return draw


MODELS = (
    Case("MNIST CNN", MnistCnn, classification, images(1, 28, 28), 1000, 256),
    Case("MLP 600-1024-512-256-10", mlp, classification, images(600), 1000, 256),
    Case("WideResNet-16-4 + GroupNorm", wide_resnet, classification, images(3, 32, 32), 64, 16),
    Case("transformer classifier", classifier, classification, sentences(5000, 128, classes=10), 64, 16),
    Case(
        "GPT-2-shaped LM, tied", gpt, next_token, sentences(16384, 128, classes=0), 8, 2, lambda: gpt(False)
    ),
    # Two that nothing was tuned for.
    Case("LSTM classifier", Recurrent, classification, sentences(2000, 64, classes=10), 128, 32),
    Case("separable CNN + GroupNorm", separable, classification, images(3, 32, 32), 64, 16),
)
