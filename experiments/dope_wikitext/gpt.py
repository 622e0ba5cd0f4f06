"""Two blocks of GPT, and its loss by record."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.dope_wikitext import corpus

__all__ = ["Gpt", "word_losses"]


class Block(nn.Module):
    """Normalization first, GELU, four times the width inside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        added: Tensor = self.mlp(self.norm2(x))
        return x + added


class Gpt(nn.Module):
    """A language model with tied embeddings."""

    def __init__(self, width: int = 64, *, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        words = corpus.WORDS
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(corpus.LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device).expand(words.shape)
        scores: Tensor = self.head(self.norm(self.blocks(self.words(words) + self.places(places))))
        return scores


def word_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the words of each record."""
    losses = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(1)
