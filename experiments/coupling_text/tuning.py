"""Fine-tuning: the last block of MiniLM and a head, whole or by LoRA, with lower blocks frozen.

A record is the input of the last block: 20 tokens of 384 numbers in training, which four of five phrases do
not exceed, and 32 to test; zeros behind the text's own. Adam throughout, B = 512, 16 steps for every private
column: what two cores do in minutes. The step size of each way of training is chosen among three on held-out
public records, by plain training on the others; no private or test record is scored.

Columns of `WARM` are handed the model after plain training on the public records, which is the model of
OnlyPub; `auto` trains it itself, since it rehearses with other public records than it trains on.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from experiments.coupling_text.encoding import MOST_TOKENS, Encoded
from sidelight.deep import Loading, PublicTraining
from sidelight.deep.trainer import Trainer
from sidelight.methods.adamix import adamix
from sidelight.methods.baselines import non_private, only_public
from sidelight.methods.coupling import coupling
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private
from sidelight.methods.dpmd import dpmd
from sidelight.methods.parts import Last

TOKENS = 20  # in training
BATCH, STEPS, CLIP = 512, 16, 1.0
PASS = 128  # records that go through the model together
WARM_STEPS, WARM_BATCH = 160, 32
RATES = {"block": (3e-5, 1e-4, 3e-4), "lora": (3e-4, 1e-3, 3e-3)}


class LastBlock(nn.Module):
    """A block of BERT as it is, then the mean over tokens and two outputs."""

    def __init__(self, weights: dict[str, Tensor], heads: int, eps: float) -> None:
        super().__init__()
        width, inner = weights["intermediate.dense.weight"].shape[::-1]
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, inner),
            nn.Linear(inner, width),
        )
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.head = nn.Linear(width, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        for mine, theirs in _NAMES.items():
            for part in ("weight", "bias"):
                getattr(self.get_submodule(mine), part).data.copy_(weights[f"{theirs}.{part}"])

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.head(self.pooled(states))
        return out

    def pooled(self, states: Tensor) -> Tensor:
        """The mean over the tokens of a text."""
        there = (states != 0).any(dim=2)
        h = self.norm1(states + self.out(self._attended(states, there)))
        h = self.norm2(h + self.down(nn.functional.gelu(self.up(h))))
        share = there / there.sum(dim=1, keepdim=True).clamp(min=1)
        mean: Tensor = (h * share[:, :, None]).sum(dim=1)
        return mean

    def _attended(self, states: Tensor, there: Tensor) -> Tensor:
        def split(x: Tensor) -> Tensor:
            return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

        q, k, v = split(self.query(states)), split(self.key(states)), split(self.value(states))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~there[:, None, None, :], -1e4).softmax(dim=3)
        return (weights @ v).transpose(1, 2).flatten(2)


_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}


def last_block(model: Any) -> LastBlock:
    """Of a BertModel of transformers, in float32."""
    config = model.config
    weights = {name: value.float() for name, value in model.encoder.layer[-1].state_dict().items()}
    return LastBlock(weights, config.num_attention_heads, config.layer_norm_eps)


def with_lora(block: LastBlock, *, rank: int = 8) -> nn.Module:
    """Only adapters of queries, values and the first dense layer, and the head, are trained."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["query", "value", "up"], modules_to_save=["head"]
    )
    torch.manual_seed(0)
    adapted: nn.Module = get_peft_model(block, config).base_model.model  # without peft's arguments by name
    return adapted


class Examples(Protocol):
    """Some records, by their places among all."""

    @property
    def places(self) -> NDArray[np.intp]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]: ...
    def only(self, places: NDArray[np.intp]) -> Examples: ...


class Texts(Dataset[tuple[Tensor, Tensor]]):
    """States of the first tokens of some texts, padded with zeros, and their labels."""

    def __init__(
        self, encoded: Encoded, y: NDArray[np.int64], places: NDArray[np.intp], *, tokens: int = MOST_TOKENS
    ) -> None:
        self.encoded, self.y, self.places, self.tokens = encoded, y, places, tokens

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        place = int(self.places[index])
        end = int(self.encoded.ends[place])
        start = int(self.encoded.ends[place - 1]) if place else 0
        end = min(end, start + self.tokens)
        states = np.zeros((self.tokens, self.encoded.states.shape[1]), dtype=np.float32)
        states[: end - start] = self.encoded.states[start:end]
        return torch.from_numpy(states), torch.tensor(int(self.y[place]))

    def only(self, places: NDArray[np.intp]) -> Texts:
        return Texts(self.encoded, self.y, places, tokens=self.tokens)


def accuracy(model: nn.Module, data: Examples) -> float:
    right = 0
    with torch.inference_mode():
        for start in range(0, len(data), 128):
            rows = [data[k] for k in range(start, min(start + 128, len(data)))]
            guess = model(torch.stack([x for x, _ in rows])).argmax(dim=1)
            right += int((guess == torch.stack([y for _, y in rows])).sum())
    return right / len(data)


# ---------------------------------------------------------------------------------------------------
# step sizes, from public records


def plain(model: nn.Module, data: Examples, *, rate: float, steps: int, seed: int) -> nn.Module:
    """Adam without privacy, small batches, the step size falling to nothing."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    random = np.random.default_rng(seed)
    for _ in range(steps):
        rows = [data[int(k)] for k in random.choice(len(data), WARM_BATCH, replace=False)]
        loss = nn.functional.cross_entropy(
            model(torch.stack([x for x, _ in rows])), torch.stack([y for _, y in rows])
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return model


def chosen_rate(model: nn.Module, public: Examples, rates: tuple[float, ...], *, steps: int) -> float:
    """The step size with the best score on a fifth of the public records; ties go to the smaller one."""
    order = np.random.default_rng(0).permutation(public.places)
    held, rest = public.only(order[: len(order) // 5]), public.only(order[len(order) // 5 :])
    found = [
        accuracy(plain(copy.deepcopy(model), rest, rate=rate, steps=steps, seed=0), held) for rate in rates
    ]
    return rates[int(np.argmax(found))]


@torch.inference_mode()
def features(block: LastBlock, encoded: Encoded) -> NDArray[np.float32]:
    """Rows of all texts after a tuned block: texts of one length at a time, so that nothing is padded."""
    starts = np.concatenate([[0], encoded.ends[:-1]])
    lengths = encoded.ends - starts
    out = np.zeros((len(starts), encoded.states.shape[1]), dtype=np.float32)
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        for some in np.split(places, range(256, len(places), 256)):
            states = encoded.states[starts[some][:, None] + np.arange(length)].astype(np.float32)
            out[some] = nn.functional.normalize(block.pooled(torch.from_numpy(states))).numpy()
    return out


# ---------------------------------------------------------------------------------------------------
# columns


def _adam(rate: float, steps: int) -> dict[str, Any]:
    return {
        "optimizer": lambda weights: torch.optim.Adam(weights, lr=rate),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: max(0.0, 1 - t / steps)
        ),
    }


def _warm(rate: float, steps: int) -> dict[str, Any]:
    def optimizer(weights: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(weights, lr=rate, weight_decay=0.01)

    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: max(0.0, 1 - t / steps))

    return {
        "warm_up": PublicTraining(steps=steps, batch_size=WARM_BATCH, optimizer=optimizer, scheduler=schedule)
    }


METHODS: dict[str, Callable[[], Any]] = {
    "FullPriv": lambda: full_private(clip_norm=CLIP),
    "OnlyPriv": lambda: only_private(clip_norm=CLIP),
    "OnlyPub": only_public,
    "AdaMix": lambda: adamix(rank=50),
    "DPMD": lambda: dpmd(warm=False, clip_norm=CLIP, finish=Last()),
    "Coupling": lambda: coupling(weight=0.05, reduction="mean", gamma=0.01),
    "DP-SGD, warm": lambda: dp_sgd(clip_norm=CLIP, finish=Last()),
    "Coupling, warm": lambda: coupling(weight=0.05, reduction="mean", gamma=0.01),
    "DOPE": lambda: dope_sgd(clip_norm=CLIP, finish=Last()),
    "Ours": lambda: "auto",
    "NonPriv": non_private,
}
WARM = ("AdaMix", "DPMD", "DP-SGD, warm", "Coupling, warm", "DOPE")


def tune(
    column: str,
    model: nn.Module,
    private: Texts,
    public: Texts,
    *,
    epsilon: float,
    delta: float,
    rate: float,
    seed: int,
    batch: int = BATCH,
    steps: int = STEPS,
    warm_steps: int = WARM_STEPS,
) -> tuple[nn.Module, float, str]:
    """The trained model, what was spent, and what was chosen. `WARM` and OnlyPub are given a warm model."""
    if column == "NonPriv":
        both = private.only(np.concatenate([private.places, public.places]))
        return plain(model, both, rate=rate, steps=batch * steps // WARM_BATCH, seed=seed), math.inf, ""
    if column == "OnlyPub":
        return model, 0.0, ""
    options: dict[str, Any] = _warm(rate, warm_steps) if column == "Ours" else _adam(rate, steps)
    with warnings.catch_warnings(action="ignore"):
        trainer = Trainer(
            model, nn.CrossEntropyLoss(), epsilon=epsilon, delta=delta, method=METHODS[column](),
            expected_batch_size=batch, steps=steps, random_state=seed, public_batch_size=128,
            progress=False, loading=Loading(micro_batch=PASS), **options,
        )  # fmt: skip
        trainer.fit(private, public)
    found = trainer.privacy_.details.get("chosen", "")
    return trainer.model, trainer.privacy_.epsilon, str(found or "")


def opacus(
    model: nn.Module, private: Examples, *, epsilon: float, delta: float, rate: float, batch: int, steps: int,
    seed: int, chunk: int = 64,
) -> tuple[nn.Module, float]:  # fmt: skip
    """DP-SGD of Opacus with the same batch, steps, clip norm and optimizer."""
    from opacus import GradSampleModule
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.optimizers import DPOptimizer

    share = batch / len(private)
    with warnings.catch_warnings(action="ignore"):
        noise = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=share, steps=steps, accountant="prv"
        )
    weights = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.Adam(weights, lr=rate)
    wrapped = GradSampleModule(model)
    generator = torch.Generator().manual_seed(seed)
    optimizer = DPOptimizer(
        inner, noise_multiplier=noise, max_grad_norm=CLIP, expected_batch_size=batch, generator=generator
    )
    for t in range(steps):
        inner.param_groups[0]["lr"] = rate * (1 - t / steps)
        places = torch.nonzero(torch.rand(len(private), generator=generator) < share).flatten().tolist()
        chunks = [places[k : k + chunk] for k in range(0, len(places), chunk)]
        for number, some in enumerate(chunks):
            rows = [private[k] for k in some]
            loss = nn.functional.cross_entropy(
                wrapped(torch.stack([x for x, _ in rows])), torch.stack([y for _, y in rows])
            )
            with warnings.catch_warnings(action="ignore"):
                torch.autograd.backward(loss)
            optimizer.signal_skip_step(do_skip=number < len(chunks) - 1)
            optimizer.step()
            optimizer.zero_grad()
    return wrapped._module, epsilon
