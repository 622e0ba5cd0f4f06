"""What public records alone decide: the warm start, step sizes, and a diagnosis of their gradients."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from experiments.dope_wikitext.corpus import Split
from experiments.dope_wikitext.gpt import Gpt, word_losses
from sidelight.deep.gradient_points import RealPlan
from sidelight.deep.network_auto import NetworkRehearsal
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.batches import Loading, Records
from sidelight.oracles.network.flat import read, write
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import accountants
from sidelight.problems.network_public import HeldOut, PublicTraining, plain_steps, with_rate

__all__ = ["BATCH", "Warmed", "best_step_size", "rehearsal_of", "warmed"]

BATCH = 384
STEP_SIZES = (1.0, 0.3, 2.0)
WARM_STEPS, WARM_BATCH, WARM_RATE, LOOKS = 120, 64, 4e-3, 6
HELD_OUT = 0.1
REHEARSED_AT = 2.0  # ε
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Warmed:
    """A model before and after training on public text."""

    before: Gpt
    after: Gpt
    how: PublicTraining
    learn: Records
    apart: Records
    diagnosis: dict[str, str]

    def model(self, *, cold: bool = False) -> Gpt:
        return deepcopy(self.before if cold else self.after)


def warmed(data: Split, seed: int) -> Warmed:
    """Plain steps on public records; the best of six looks at a tenth of them, which is set apart."""
    torch.manual_seed(seed)
    model = Gpt()
    before, learn, apart = deepcopy(model), *_parts(data, seed)
    oracle = NetworkOracle(model, word_losses)
    judge = HeldOut(oracle, apart)
    how = with_rate(PublicTraining(steps=WARM_STEPS, batch_size=WARM_BATCH), WARM_RATE)
    best, kept, taken = judge.score().loss, read(model), 0

    def look(step: int) -> bool:
        nonlocal best, kept, taken
        if (step + 1) % (WARM_STEPS // LOOKS) == 0 and (loss := judge.score().loss) < best:
            best, kept, taken = loss, read(model), step + 1
        return True

    plain_steps(oracle, learn, how, seed=seed, each=look)
    write(model, kept)
    stopped = replace(how, steps=max(1, taken), scheduler=how.scheduler)
    return Warmed(before, model, stopped, learn, apart, diagnose(oracle, learn, apart))


def _parts(data: Split, seed: int) -> tuple[Records, Records]:
    dataset = TensorDataset(*data.public)
    order = np.random.default_rng([seed, 6]).permutation(len(dataset))
    count = round(HELD_OUT * len(order))
    parts = (np.sort(order[count:]).tolist(), np.sort(order[:count]).tolist())
    learn, apart = (Records(Subset(dataset, rows), Loading(), _CPU) for rows in parts)
    return learn, apart


def diagnose(oracle: NetworkOracle, learn: Records, apart: Records) -> dict[str, str]:
    """Do gradients of unseen records gather around the public gradient? Of public records alone.

    concentration: the mean of ‖g_i − o‖/‖g_i‖ over records that were set apart, with o the public gradient
    of length 0.5 at most; below 1 the origin brings them nearer. cosine: of the mean gradient of records that
    were trained on and of those set apart, which stand in for private ones.
    """
    public, proxy = learn.fetch(np.arange(min(256, len(learn)))), apart.fetch(None)
    gradient, unseen = oracle.mean_gradient(public), oracle.mean_gradient(proxy)
    origin = gradient * min(1.0, 0.5 / float(gradient.norm()))
    rows = slice(0, 64)
    some = (proxy[0][rows], proxy[1][rows])
    ratio = oracle.norms(some, origin=origin) / oracle.norms(some)
    return {"concentration": f"{float(ratio.mean()):.3f}", "cosine": f"{_cosine(gradient, unseen):.3f}"}


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def rehearsal_of(
    data: Split, warm: Warmed, *, cold: bool, seed: int, steps: int, batch: float, delta: float
) -> NetworkRehearsal:
    """Public records in all roles, under the noise of ε = 2."""
    n = len(data.private[1])
    multiplier = accountants.noise_multiplier(
        epsilon=REHEARSED_AT, delta=delta, sampling_probability=batch / n, steps=steps,
        relation="add-or-remove-one",
    )  # fmt: skip
    plan = RealPlan(
        batch=batch, steps=steps, noise_multiplier=multiplier, n=n, epsilon=REHEARSED_AT, delta=delta,
        relation="add-or-remove-one", seed=seed,
    )  # fmt: skip
    return NetworkRehearsal(
        NetworkOracle(warm.model(cold=True), word_losses), warm.learn, warm.apart, plan,
        warm_up=warm.how, share=0.0 if cold else 0.5, augment=None,
    )  # fmt: skip


def best_step_size(rehearsal: NetworkRehearsal, recipe: Recipe) -> tuple[float, str]:
    """The best of three, and the losses that it saw."""
    found = {size: rehearsal.run(recipe, size).loss for size in STEP_SIZES}
    shown = "; ".join(f"{size:g}: {loss:.3f}" for size, loss in found.items())
    return min(found, key=lambda size: found[size]), f"start {rehearsal.start_score.loss:.3f}; {shown}"
