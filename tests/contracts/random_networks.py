"""Random networks to examine: blocks drawn from a catalog, a way to read them out, and a loss.

A failing example shrinks to the block or the loss that is at fault. Import once torch is there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from tests.contracts.mistaken_blocks import ASLEEP, BACKWARDS, MIXING, RANDOM, STATEFUL
from tests.contracts.network_blocks import ODD, PLAIN, SELECTING, Build, D, InTraining, T
from tests.contracts.network_outcomes import Subject
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WORDS = 3, 7
HOSTILE = {**ODD, **SELECTING, **MIXING, **ASLEEP, **BACKWARDS, **STATEFUL}
Loss = Callable[[Any, Any], Tensor]


class Recipe(NamedTuple):
    """A network by the names of its parts, so that a failing example reads well."""

    inputs: str
    blocks: tuple[str, ...]
    reading: str
    loss: str
    public: bool  # whether public rows are there to check with
    training: bool
    single: bool  # precision
    always: bool  # what is wrong about a block, in evaluation too

    def subject(self) -> Subject:
        torch.manual_seed(len(self.blocks))
        model = Net(self.inputs, [self._block(name) for name in self.blocks], self.reading)
        model = (model if self.single else model.double()).train(self.training)
        dtype = torch.float32 if self.single else torch.float64

        def records(n: int, seed: int = 1) -> Any:
            return INPUTS[self.inputs](n, seed, dtype)

        public = records(16, 2) if self.public else None
        draws = bool(RANDOM.keys() & set(self.blocks)) or self.loss in RANDOM_LOSSES
        # rrelu draws for negative numbers only: what comes after it draws others, as random as those.
        return Subject(model, LOSSES[self.loss], records, public, draws, steady="rrelu" not in self.blocks)

    def _block(self, name: str) -> nn.Module:
        guarded = not self.always and name not in PLAIN
        return InTraining(CATALOG[name]()) if guarded else CATALOG[name]()


CATALOG: dict[str, Build] = {**PLAIN, **HOSTILE, **RANDOM}


# ---------------------------------------------------------------------------------------------------
# records: (inputs, classes)


def _classes(n: int, seed: int) -> Tensor:
    return torch.randint(0, CLASSES, (n,), generator=torch.Generator().manual_seed(seed + 50))


def _series(n: int, seed: int, dtype: torch.dtype) -> Any:
    return torch.randn(n, T, D, generator=torch.Generator().manual_seed(seed)).to(dtype), _classes(n, seed)


def _words(n: int, seed: int, dtype: torch.dtype) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WORDS, (n, T), generator=generator), _classes(n, seed)


def _named(n: int, seed: int, dtype: torch.dtype) -> Any:
    """Words and which of them are there, by name; and a weight a record."""
    generator = torch.Generator().manual_seed(seed)
    there = torch.arange(T) < torch.randint(1, T + 1, (n, 1), generator=generator)
    words = torch.randint(0, WORDS, (n, T), generator=generator)
    return {"words": words, "there": there.long()}, _classes(n, seed)


INPUTS: dict[str, Any] = {"series": _series, "words": _words, "named": _named}


class Net(nn.Module):
    """Embedding if there are words, blocks, a way to read them out, and scores of classes."""

    def __init__(self, inputs: str, blocks: list[nn.Module], reading: str) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, D) if inputs != "series" else None
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(D, CLASSES)
        self.tied = nn.Linear(D, WORDS, bias=False)
        if self.table is not None:
            self.tied.weight = self.table.weight  # as language models do
        self._read = READINGS[reading]

    def forward(self, words: Tensor, there: Tensor | None = None) -> Tensor:
        x = words if self.table is None else self.table(words)
        there = torch.ones(x.shape[:2], dtype=torch.long) if there is None else there
        x = self.blocks(x * there[..., None].to(x.dtype))
        scores: Tensor = self._read(self, x, there)
        return scores


def _mean(net: Net, x: Tensor, there: Tensor) -> Tensor:
    weights = there.to(x.dtype)[..., None]
    return net.head((x * weights).sum(1) / weights.sum(1).clamp(min=1))


def _all_words(net: Net, x: Tensor, there: Tensor) -> Tensor:
    """Each record's words over those of the whole batch."""
    return net.head((x * there[..., None]).sum(1) / there.sum().clamp(min=1) * len(x))


def _picked(net: Net, x: Tensor, there: Tensor) -> Tensor:
    """The last word that is there: one position per record, by its index."""
    return net.head(x[torch.arange(len(x)), there.sum(1).clamp(min=1) - 1])


READINGS: dict[str, Callable[[Net, Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "last": lambda net, x, there: net.head(x[:, -1]),
    "last that is there": _picked,
    "largest": lambda net, x, there: net.head(x.amax(1)),
    "tied": lambda net, x, there: net.tied(x.mean(1))[:, :CLASSES],
    "mean over the batch's words": _all_words,
}
PLAIN_READINGS = ("mean", "last", "last that is there", "largest")


# ---------------------------------------------------------------------------------------------------
# losses


def _entropy(z: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(z, y, reduction="none")


def _class_weights(z: Tensor, y: Tensor) -> Tensor:
    """Weights of the classes, normalized by the batch as reduction='mean' does it."""
    weights = torch.tensor([1.0, 3.0, 10.0], dtype=z.dtype)[y]
    return _entropy(z, y) * weights * len(y) / weights.sum().clamp(min=1e-9)


def _balanced(z: Tensor, y: Tensor) -> Tensor:
    """Each class counts alike, whatever its share of the batch."""
    return _entropy(z, y) / torch.bincount(y, minlength=CLASSES)[y].clamp(min=1)


def _contrastive(z: Tensor, y: Tensor) -> Tensor:
    near = functional.normalize(z, dim=1) @ functional.normalize(z, dim=1).T
    return (
        functional.cross_entropy(near / 0.5, torch.arange(len(z)), reduction="none") if len(z) else z.sum(1)
    )


def _hard(z: Tensor, y: Tensor) -> Tensor:
    """The harder half of the batch only."""
    losses = _entropy(z, y)
    return losses * (losses >= losses.detach().median()) if len(z) else losses


LOSSES: dict[str, Loss] = {
    "cross entropy": _entropy,
    "label smoothing": lambda z, y: functional.cross_entropy(z, y, reduction="none", label_smoothing=0.1),
    "squared": lambda z, y: ((z - functional.one_hot(y, CLASSES)) ** 2).mean(1),
    "weighted by class": lambda z, y: _entropy(z, y) * torch.tensor([1.0, 3.0, 9.0], dtype=z.dtype)[y],
    "focal": lambda z, y: _entropy(z, y) * (1 - (-_entropy(z, y)).exp()) ** 2,
    "class weights of the batch": _class_weights,
    "balanced in the batch": _balanced,
    "contrastive": _contrastive,
    "hard half": _hard,
    "less the mean": lambda z, y: _entropy(z, y) - 0.5 * _entropy(z, y).mean() if len(z) else _entropy(z, y),
    "share of the batch": lambda z, y: _entropy(z, y) / max(len(y), 1),
    "where the last class is": lambda z, y: _entropy(z, y) * torch.where((y == CLASSES - 1).any(), 0.5, 1.0),
    "if the last class is": lambda z, y: _entropy(z, y) * (0.5 if (y == CLASSES - 1).any() else 1.0),
    "noisy labels": lambda z, y: _entropy(z + torch.randn_like(z), y),
    "mixed labels": lambda z, y: 0.5 * _entropy(z, y) + 0.5 * _entropy(z, y.flip(0)),
}
PLAIN_LOSSES = ("cross entropy", "label smoothing", "squared", "weighted by class", "focal")
RANDOM_LOSSES = ("noisy labels",)


# ---------------------------------------------------------------------------------------------------
# strategies


def recipes(*catalogs: dict[str, Build], plain: bool = False, most: int = 3) -> st.SearchStrategy[Recipe]:
    """Networks of these blocks; `plain` reads them out and judges them as everybody does."""
    names = [name for some in catalogs for name in some]
    losses = PLAIN_LOSSES if plain else [name for name in LOSSES if name not in RANDOM_LOSSES]
    return st.builds(
        Recipe,
        inputs=st.sampled_from(list(INPUTS)),
        blocks=st.lists(st.sampled_from(names), min_size=1, max_size=most).map(tuple),
        reading=st.sampled_from(PLAIN_READINGS if plain else list(READINGS)),
        loss=st.sampled_from(losses),
        public=st.booleans(),
        training=st.booleans(),
        single=st.booleans(),
        always=st.booleans(),
    )


def plain_networks() -> st.SearchStrategy[Recipe]:
    return recipes(PLAIN, plain=True)


def mistaken_networks() -> st.SearchStrategy[Recipe]:
    return recipes(PLAIN, HOSTILE, HOSTILE)


def random_networks() -> st.SearchStrategy[Recipe]:
    """At least one block that draws, and an ordinary loss or one that draws as well."""
    losses = st.sampled_from([*PLAIN_LOSSES, *RANDOM_LOSSES])
    return st.builds(
        lambda recipe, first, loss: recipe._replace(blocks=(first, *recipe.blocks), loss=loss, training=True),
        recipes(PLAIN, RANDOM, plain=True, most=1), st.sampled_from(list(RANDOM)), losses,
    )  # fmt: skip
