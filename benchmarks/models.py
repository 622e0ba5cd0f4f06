"""The models of the step benchmark, with random weights and random data."""

from __future__ import annotations

import functools
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
    """A model, its loss, and how many records a batch has on average."""

    name: str
    build: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor]
    draw: Callable[[int], Batch]
    batch: int
    goal: float | None = None  # a whole private step, in plain ones
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
    """The block of GPT-2: normalization first, GELU, four times the width inside."""

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


def gpt(tied: bool = True) -> nn.Module:
    return Transformer(8192, 256, 4, 4, 64, classes=0, tied=tied)


class CharLstm(nn.Module):
    """The next character, by an LSTM (the character model of Opacus' examples, for one alphabet)."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.lstm = nn.Embedding(64, 64), recurrent(64, 128)
        self.head = nn.Linear(128, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.characters(tokens))[0])


recurrent = functools.partial(nn.LSTM, batch_first=True)


class WithDPLSTM(CharLstm):
    """The same with Opacus' LSTM: it takes no other."""

    def __init__(self) -> None:
        from opacus.layers import DPLSTM

        super().__init__()
        self.lstm = DPLSTM(64, 128, batch_first=True)


class TabularMlp(nn.Module):
    """Twenty categorical columns, embedded, and an MLP over them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, 16)
        self.layers = nn.Sequential(
            nn.Linear(320, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, columns: Tensor) -> Tensor:
        return self.layers(self.table(columns).flatten(1))


def sentences(words: int, length: int, *, classes: int) -> Callable[[int], Batch]:
    def draw(n: int) -> Batch:
        tokens = torch.randint(0, words, (n, length + 1))
        return tokens[:, :-1].clone(), torch.randint(0, classes, (n,)) if classes else tokens[:, 1:].clone()

    return draw


def columns(n: int) -> Batch:
    return torch.randint(0, 2000, (n, 20)), torch.randint(0, 10, (n,))


MODELS = {
    "MLP, 1.3 M": Case("600-1024-512-256-10", mlp, classification, images(600), 512, 1.6),
    "CNN": Case("two convolutions, two linear layers", MnistCnn, classification, images(1, 28, 28), 512, 1.6),
    "WRN-16-4, B = 8": Case("GroupNorm, 32 × 32", wide_resnet, classification, images(3, 32, 32), 8, 2.0),
    "WRN-16-4, B = 32": Case("GroupNorm, 32 × 32", wide_resnet, classification, images(3, 32, 32), 32, 2.0),
    "GPT-2, small": Case("4 layers of 256, 8,192 words, 64 tokens", gpt, next_token,
                         sentences(8192, 64, classes=0), 16, 1.6, lambda: gpt(False)),
    "char-LSTM": Case("one layer of 128, 64 characters", CharLstm, next_token,
                      sentences(64, 64, classes=0), 64, None, WithDPLSTM),
    "embedding + MLP": Case("20 columns, 320-256-64-10", TabularMlp, classification, columns, 512),
}  # fmt: skip
