"""Fine-tuning: MiniLM's last block or all six, and a head; all their weights, or by LoRA.

A record is what the lowest of these blocks is given: 20 tokens of 384 numbers in training, which four of five
phrases do not exceed, and 32 to test; zeros behind the text's own. Six blocks compute their products in
bfloat16, which halves the time; weights and sums are float32.

All public texts tune the blocks first, without privacy, and guide the private steps. These are few and large,
since the noise of a step falls with its size: what two cores do in minutes. They are plain descent with a
step size that falls in the second half. It is rehearsed, for each method and under the noise of the plan, by
two thirds of the public texts as public ones and the last third as private ones and as judges. `auto`, which
rehearses by itself, begins where two thirds have tuned the blocks, and has the last third as public texts,
on which it continues first. No private or test text is scored for a choice.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from experiments.coupling_text.encoding import MOST_TOKENS, Encoded
from experiments.rehearsals import NetworkRehearsal, decaying, step_size_for
from sidelight.deep import LastLayer, Loading, PublicTraining
from sidelight.deep.gradient_points import RealPlan, plan_for
from sidelight.deep.trainer import Trainer
from sidelight.methods.adamix import adamix
from sidelight.methods.baselines import non_private, only_public
from sidelight.methods.coupling import coupling
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private
from sidelight.methods.dpmd import dpmd
from sidelight.methods.parts import Cold, Last
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.datasets import Records
from sidelight.problems.flat_parameters import read
from sidelight.problems.network_public import HeldOut
from sidelight.problems.public_training import one_cycle

TOKENS = 20  # in training
DEPTHS = {"tuned": 1, "tuned_all": 6, "lora": 1, "lora_all": 6, "full": 6}  # blocks that are trained
PLANS = {"lora": (1024, 4, 8), "lora_all": (1024, 16, 16), "full": (1024, 12, 16)}  # batch; steps; cold
ADAPTED = ("lora", "lora_all")
STEP_SIZES = (0.1, 0.5, 2.0)  # rehearsed, each column with its own
SHORTER = {"AdaMix": 0.2}  # times these: it clips at lengths of public gradients, the others at 1
GUIDED_EPOCHS, GUIDED_RATES = 2, {True: 1e-3, False: 1e-4}  # of `auto`, first; on adapters, on weights
CLIP, PLAIN_BATCH = 1.0, 32
PASS, REHEARSED = 128, 128  # records that go through the model together; in a rehearsed step, at most


class PlainTraining(NamedTuple):
    """Without privacy: rates to choose from by held-out public texts, steps of 32 texts to try them, and to
    train on all texts; how many on public ones (`steps_for`)."""

    rates: tuple[float, ...]
    tried: int
    free: int
    epochs: float

    def steps_for(self, texts: int) -> int:
        return round(self.epochs * texts / PLAIN_BATCH) if self.epochs else 160


PLAIN = {1: PlainTraining((1e-4, 3e-4), 80, 400, 0), 6: PlainTraining((1e-4, 2e-4), 160, 1000, 2)}  # by depth


class Block(nn.Module):
    """A block of BERT as it is."""

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
        for mine, theirs in _NAMES.items():
            for part in ("weight", "bias"):
                getattr(self.get_submodule(mine), part).data.copy_(weights[f"{theirs}.{part}"])

    def forward(self, states: Tensor, there: Tensor) -> Tensor:
        h = self.norm1(states + self.out(self._attended(states, there)))
        out: Tensor = self.norm2(h + self.down(nn.functional.gelu(self.up(h))))
        return out

    def _attended(self, states: Tensor, there: Tensor) -> Tensor:
        def split(x: Tensor) -> Tensor:
            return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

        q, k, v = split(self.query(states)), split(self.key(states)), split(self.value(states))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~there[:, None, None, :], -1e4).softmax(dim=3)
        return (weights @ v).transpose(1, 2).flatten(2)


class Top(nn.Module):
    """The upper blocks, then the mean over tokens and two outputs."""

    def __init__(self, blocks: list[Block], width: int) -> None:
        super().__init__()
        self.blocks, self.head, self.in_half = nn.ModuleList(blocks), nn.Linear(width, 2), len(blocks) > 1
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.head(self.pooled(states))
        return out

    def pooled(self, states: Tensor) -> Tensor:
        """The mean over the tokens of a text."""
        there = (states != 0).any(dim=2)
        h = states
        with torch.autocast("cpu", torch.bfloat16, enabled=self.in_half, cache_enabled=False):
            for block in self.blocks:
                h = block(h, there)
        share = there / there.sum(dim=1, keepdim=True).clamp(min=1)
        mean: Tensor = (h.float() * share[:, :, None]).sum(dim=1)
        return mean


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


def top(model: Any, depth: int) -> Top:
    """The upper blocks of a BertModel of transformers, in float32."""
    config, blocks = model.config, []
    for layer in model.encoder.layer[-depth:]:
        weights = {name: value.float() for name, value in layer.state_dict().items()}
        blocks.append(Block(weights, config.num_attention_heads, config.layer_norm_eps))
    return Top(blocks, config.hidden_size)


def with_lora(model: Top, *, rank: int = 8) -> nn.Module:
    """Only adapters of queries, values and the first dense layer, and the head, are trained."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["query", "value", "up"], modules_to_save=["head"]
    )
    torch.manual_seed(0)
    adapted: nn.Module = get_peft_model(model, config).base_model.model  # without peft's arguments by name
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
        rows = [data[int(k)] for k in random.choice(len(data), PLAIN_BATCH, replace=False)]
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
def features(model: Top, encoded: Encoded) -> NDArray[np.float32]:
    """Rows of all texts after tuned blocks: texts of one length at a time, so that nothing is padded."""
    starts = np.concatenate([[0], encoded.ends[:-1]])
    lengths = encoded.ends - starts
    out = np.zeros((len(starts), encoded.states.shape[1]), dtype=np.float32)
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        for some in np.split(places, range(256, len(places), 256)):
            states = encoded.states[starts[some][:, None] + np.arange(length)].astype(np.float32)
            out[some] = nn.functional.normalize(model.pooled(torch.from_numpy(states))).numpy()
    return out


# ---------------------------------------------------------------------------------------------------
# columns


def plan(kind: str, n: int, *, epsilon: float, delta: float, seed: int, cold: bool = False) -> RealPlan:
    """Batch, steps and noise of a private column; all of it public."""
    batch, *steps = PLANS[kind]
    return plan_for(
        n, 1, epsilon=epsilon, delta=delta, relation="add-or-remove-one", batch=min(batch, n // 4),
        steps=steps[cold], seed=seed,
    )  # fmt: skip


class Rehearsal(NetworkRehearsal):
    """Private steps as the real ones, from a model that `seen` has tuned and with these as public texts.

    Half of the `unseen` public texts stand in for private ones and the others score; the noise of the
    averaged gradient is that of the real plan.
    """

    def __init__(self, model: nn.Module, seen: Texts, unseen: Texts, real: RealPlan) -> None:
        self.oracle, self.stage, self.augment = NetworkOracle(model, _losses), real, None
        order = np.random.default_rng(real.seed).permutation(unseen.places)
        halves = [unseen.only(some) for some in np.array_split(order, 2)]
        self.public, self.stand_ins, judges = (
            Records(one, Loading(), torch.device("cpu")) for one in (seen, *halves)
        )
        self.judge, self.steps = HeldOut(self.oracle, judges), real.steps
        self.batch = float(min(REHEARSED, len(self.stand_ins)))
        self.start = read(self.oracle.model)
        self.start_score = self.judge.score()


def rehearsed(column: str, model: nn.Module, seen: Texts, unseen: Texts, real: RealPlan) -> float:
    """The best step size for a column, under the noise of the real plan."""
    rehearsal = Rehearsal(copy.deepcopy(model), seen, unseen, real)
    sizes = [size * SHORTER.get(column, 1.0) for size in STEP_SIZES]
    found = {size: rehearsal.run(METHODS[column](), size).loss for size in sizes}
    return min(found, key=lambda size: found[size] if math.isfinite(found[size]) else math.inf)


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


METHODS: dict[str, Callable[[], Any]] = {
    "FullPriv": lambda: full_private(clip_norm=CLIP),
    "OnlyPub": only_public,
    "OnlyPriv": lambda: only_private(clip_norm=CLIP),
    "AdaMix": lambda: adamix().with_parts(metric=LastLayer(), start=Cold()),
    "DPMD": lambda: dpmd(start="cold", clip_norm=CLIP, finish=Last()),
    "Coupling": lambda: coupling(
        weight=0.05, reduction="mean", gamma=0.01, public_limit=math.inf, start="cold"
    ),
    "DP-SGD, warm": lambda: dp_sgd(clip_norm=CLIP, finish=Last()),
    "DOPE": lambda: dope_sgd(clip_norm=CLIP, finish=Last()),
    "Ours": lambda: "auto",
    "NonPriv": non_private,
}
COLD = ("FullPriv", "OnlyPriv")  # without public records: the pretrained encoder and a step size by rule


def tune(
    column: str, model: nn.Module, private: Texts, public: Texts, *, real: RealPlan, step_size: float
) -> tuple[nn.Module, float, str]:
    """The trained model, what was spent, and what was chosen."""
    if column in COLD:
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        step_size = step_size_for(real, trained, public="scaled")  # the careful one: the model is pretrained
    options: dict[str, Any] = (
        {"warm_up": _guided(model, public)} if column == "Ours" else _descent(step_size, real.steps)
    )
    with warnings.catch_warnings(action="ignore"):
        trainer = Trainer(
            model, nn.CrossEntropyLoss(), epsilon=real.epsilon, delta=real.delta, method=METHODS[column](),
            expected_batch_size=real.batch, steps=real.steps, random_state=real.seed, public_batch_size=128,
            progress=False, loading=Loading(micro_batch=PASS), **options,
        )  # fmt: skip
        trainer.fit(private, public)
    details = trainer.privacy_.details
    shown = f"step size {details.get('step_size', 'none') if column == 'Ours' else round(step_size, 3)}"
    return trainer.model, trainer.privacy_.epsilon, f"{details.get('chosen') or ''} {shown}".strip()


def _descent(rate: float, steps: int) -> dict[str, Any]:
    """As `auto` descends: the step size falls in the second half."""
    return {
        "optimizer": lambda weights: torch.optim.SGD(weights, lr=rate),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: decaying(t, steps)
        ),
    }


def _guided(model: nn.Module, public: Texts) -> PublicTraining:
    """Two passes over the public texts that have not tuned the blocks."""
    steps = round(GUIDED_EPOCHS * len(public) / PLAIN_BATCH)
    adapted = any(not p.requires_grad for p in model.parameters())
    return one_cycle(PublicTraining(steps=steps, batch_size=PLAIN_BATCH), GUIDED_RATES[adapted])


def opacus(
    model: nn.Module, private: Examples, *, epsilon: float, delta: float, rate: float, batch: int, steps: int,
    seed: int, chunk: int = 64, descent: bool = False,
) -> tuple[nn.Module, float]:  # fmt: skip
    """DP-SGD of Opacus with the same batch, steps and clip norm; by Adam, or by plain descent as ours."""
    from opacus import GradSampleModule
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.optimizers import DPOptimizer

    share = batch / len(private)
    with warnings.catch_warnings(action="ignore"):
        noise = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=share, steps=steps, accountant="prv"
        )
    weights = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.SGD(weights, lr=rate) if descent else torch.optim.Adam(weights, lr=rate)
    wrapped = GradSampleModule(model)
    generator = torch.Generator().manual_seed(seed)
    optimizer = DPOptimizer(
        inner, noise_multiplier=noise, max_grad_norm=CLIP, expected_batch_size=batch, generator=generator
    )
    for t in range(steps):
        inner.param_groups[0]["lr"] = rate * (decaying(t, steps) if descent else 1 - t / steps)
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
