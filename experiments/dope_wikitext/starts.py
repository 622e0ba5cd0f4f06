"""What public records alone decide: the warm start, step sizes, and a diagnosis of their gradients."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from experiments.dope_wikitext.corpus import Split
from experiments.dope_wikitext.gpt import Gpt, word_losses
from experiments.rehearsals import NetworkRehearsal
from sidelight.deep.gradient_points import RealPlan
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import accountants
from sidelight.problems.datasets import Loading, Records
from sidelight.problems.flat_parameters import read, write
from sidelight.problems.network_public import HeldOut
from sidelight.problems.public_training import PublicTraining, one_cycle, plain_steps

__all__ = ["BATCH", "Rehearsal", "Warmed", "best_step_size", "plan_of", "warmed"]

BATCH = 384
STEP_SIZES = (0.3, 1.0)
WARM_STEPS, WARM_BATCH, WARM_RATE, LOOKS = 200, 64, 4e-3, 5
HELD_OUT = 0.1
_COSINES = ("public", "one_step", "released", "around", "mixed")
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


def warmed(data: Split, seed: int, file: Path) -> Warmed:
    """The best of a few looks at a tenth of the public records, which is set apart; kept in a file."""
    torch.manual_seed(seed)
    before = Gpt()
    after, learn, apart = deepcopy(before), *_parts(data, seed)
    oracle = NetworkOracle(after, word_losses)
    how = one_cycle(PublicTraining(steps=WARM_STEPS, batch_size=WARM_BATCH), WARM_RATE)
    if file.exists():
        kept, taken, found = torch.load(file)
        write(after, kept)
    else:
        taken = _train(oracle, learn, HeldOut(oracle, apart), how, seed)
        found = diagnose(oracle, learn, apart)
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save((read(after), taken, found), file)
    return Warmed(before, after, replace(how, steps=max(1, taken)), learn, apart, found)


def _train(oracle: NetworkOracle, learn: Records, judge: HeldOut, how: PublicTraining, seed: int) -> int:
    """Plain steps on public records; the number of them after which the best look was."""
    model = oracle.model
    best, kept, taken = judge.score().loss, read(model), 0

    def look(step: int) -> bool:
        nonlocal best, kept, taken
        if (step + 1) % (WARM_STEPS // LOOKS) == 0 and (loss := judge.score().loss) < best:
            best, kept, taken = loss, read(model), step + 1
        return True

    plain_steps(oracle, learn, how, seed=seed, each=look)
    write(model, kept)
    return taken


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
    of length 0.5 at most; below 1 the origin brings them nearer. no_limit: the same with the public gradient
    as it is, of length origin. norm: the mean of ‖g_i‖. cosine: of the mean gradient of records that were
    trained on and of those set apart, which stand in for private ones.
    """
    public, proxy = learn.fetch(np.arange(min(256, len(learn)))), apart.fetch(None)
    gradient, unseen = oracle.mean_gradient(public), oracle.mean_gradient(proxy)
    origin = gradient * min(1.0, 0.5 / float(gradient.norm()))
    rows = slice(0, 64)
    some = (proxy[0][rows], proxy[1][rows])
    norms = oracle.norms(some)
    near, free = (float((oracle.norms(some, origin=o) / norms).mean()) for o in (origin, gradient))
    return {
        "concentration": f"{near:.3f}", "no_limit": f"{free:.3f}", "origin": f"{float(gradient.norm()):.2f}",
        "norm": f"{float(norms.mean()):.2f}", "cosine": f"{_cosine(gradient, unseen):.3f}",
    }  # fmt: skip


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


class Rehearsal(NetworkRehearsal):
    """Private steps from the very start of the real ones, on public records that were set apart.

    Half of these stand in for private records and the other half scores; the records that were trained on
    give the public gradients. The noise of the averaged gradient is that of the real plan.
    """

    def __init__(self, warm: Warmed, plan: RealPlan, *, cold: bool) -> None:
        self.oracle, self.stage, self.augment = NetworkOracle(warm.model(cold=cold), word_losses), plan, None
        halves = np.array_split(np.arange(len(warm.apart)), 2)
        self.public, (self.stand_ins, judges) = warm.learn, (_some(warm.apart, rows) for rows in halves)
        self.judge, self.steps, self.batch = HeldOut(self.oracle, judges), plan.steps, float(len(halves[0]))
        self.start = read(self.oracle.model)
        self.start_score = self.judge.score()

    def cosines(self) -> str:
        """Of the public gradient, and of released ones, with the mean gradient of unseen records."""
        found = self.diagnosed()
        return "; ".join(f"{name} {found[name]:.2f}" for name in _COSINES if found.get(name) is not None)


def _some(records: Records, rows: NDArray[np.intp]) -> Records:
    return Records(Subset(records.dataset, rows.tolist()), records.loading, records.device)


def plan_of(data: Split, *, epsilon: float, delta: float, steps: int, batch: float, seed: int) -> RealPlan:
    """Of a private run; all of it public."""
    n = len(data.private[1])
    multiplier = accountants.noise_multiplier(
        epsilon=epsilon, delta=delta, sampling_probability=batch / n, steps=steps,
        relation="add-or-remove-one",
    )  # fmt: skip
    return RealPlan(
        batch=batch, steps=steps, noise_multiplier=multiplier, n=n, epsilon=epsilon, delta=delta,
        relation="add-or-remove-one", seed=seed,
    )  # fmt: skip


def best_step_size(
    rehearsal: NetworkRehearsal, recipe: Recipe, sizes: tuple[float, ...] = STEP_SIZES
) -> tuple[float, str]:
    """The best of a few, and the losses that it saw."""
    found = {size: rehearsal.run(recipe, size).loss for size in sizes}
    shown = "; ".join(f"{size:g}: {loss:.3f}" for size, loss in found.items())
    return min(found, key=lambda size: found[size]), f"start {rehearsal.start_score.loss:.3f}; {shown}"
