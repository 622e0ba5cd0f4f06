"""Networks that broke a guarantee once, each with what must come of it. Import once torch is there.

The number is that of the finding. RIGHT: accepted, and right. SAFE: refused in one line, or right. REFUSED:
there is no right answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.contracts.network_outcomes import Subject
from tests.contracts.random_networks import CLASSES
from torch import Tensor, nn
from torch.nn import functional

RIGHT, REFUSED, SAFE = frozenset({"right"}), frozenset({"refused"}), frozenset({"right", "refused"})


@dataclass(frozen=True)
class Scene:
    """A finding's number, its network, and the outcomes that are allowed."""

    number: int
    make: Callable[[], Subject]
    allowed: frozenset[str]


# ---------------------------------------------------------------------------------------------------
# models that blocks do not make


def _labels(n: int, seed: int = 5) -> Tensor:
    return torch.randint(0, CLASSES, (n,), generator=torch.Generator().manual_seed(seed))


def vectors(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(1)).double(), _labels(n)


def entropy(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z, y, reduction="none")


def mlp(first: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(first or nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()


class HiddenWords(nn.Module):
    """A language model whose head sees only the positions that are asked for: those of word 0."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(8, 6), nn.Linear(6, 6), nn.Linear(6, 8)

    def forward(self, words: Tensor) -> Tensor:
        x = torch.tanh(self.layer(self.words(words)))
        asked = words == 0
        scores = torch.zeros(*words.shape, 8, dtype=x.dtype)
        scores[asked] = self.head(x[asked])
        return scores


def _hidden_words() -> Subject:
    torch.manual_seed(0)

    def records(n: int) -> Any:
        words = torch.randint(0, 8, (n, 6), generator=torch.Generator().manual_seed(3))
        words[:, 0] = 0
        words[:2, 1:] = torch.arange(1, 6)  # the first two select equally many
        return words, torch.randint(0, 8, (n,), generator=torch.Generator().manual_seed(4))

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(
            scores.transpose(1, 2), y[:, None].expand(scores.shape[:2]), reduction="none"
        ).mean(1)

    return Subject(HiddenWords().double(), loss, records, public=records(2))


class LayerDrop(nn.Module):
    """A stack of layers, each skipped by a coin that is thrown once a pass, as OPT and Wav2Vec2 have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(5, 5) for _ in range(3)), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.5:
                continue
            x = x + torch.tanh(layer(x))
        return self.head(x)


def _layer_drop() -> Subject:
    torch.manual_seed(0)
    return Subject(LayerDrop().double(), entropy, vectors, draws=True)


def _one_class() -> Subject:
    """The public rows that check the model are of one class, so that its weight cancels."""
    x, y = vectors(16)
    weights = torch.tensor([1.0, 10.0, 100.0]).double()

    def loss(z: Tensor, labels: Tensor) -> Tensor:
        own = weights[labels]
        return entropy(z, labels) * own / own.sum().clamp(min=1e-9) * len(labels)

    return Subject(mlp(), loss, vectors, public=(x, torch.zeros_like(y)))


def _words_of_the_batch() -> Subject:
    """A mean over all words of the batch; the public rows are equally long."""

    def records(n: int) -> Any:
        x = torch.randn(n, 4, 5, generator=torch.Generator().manual_seed(1)).double()
        return x, torch.randint(1, 5, (n,), generator=torch.Generator().manual_seed(2))

    def loss(z: Tensor, lengths: Tensor) -> Tensor:
        there = torch.arange(4) < lengths[:, None]
        return ((z**2).mean(-1) * there).sum(1) / there.sum().clamp(min=1) * len(z)

    x, lengths = records(8)
    return Subject(mlp(), loss, records, public=(x, torch.full_like(lengths, 3)))


def _compiled() -> Subject:
    compiled: Any = torch.compile(mlp(), backend="eager")  # a module, and said to be a function
    return Subject(compiled, entropy, vectors)


def _prompt() -> Subject:
    """A class token: a bare parameter, handed out once a record."""

    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.body = nn.Parameter(torch.randn(1, 5)), mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x + self.token)

    torch.manual_seed(0)
    return Subject(Token().double(), entropy, vectors)


SCENES: dict[str, Scene] = {
    "LayerDrop": Scene(9, _layer_drop, SAFE),
    "hidden words": Scene(10, _hidden_words, SAFE),
    "class weights, rows of one class": Scene(13, _one_class, REFUSED),
    "words of the batch, rows of one length": Scene(13, _words_of_the_batch, REFUSED),
    "torch.compile": Scene(16, _compiled, SAFE),
    "a bare parameter and batches of one": Scene(16, _prompt, RIGHT),
}
