"""Private records choose between a trained network and its start, and the scale of its scores.

One Gaussian release after the last step, inside the plan and the charge:

    Σ_i clip_C( ℓ_i(z₀) − ℓ_i(s₁z), …, ℓ_i(z₀) − ℓ_i(t₁z₀), … )     z, z₀: scores of result and start

The largest noisy mean names the network and its scale. Clipping makes a network too sure of itself, and a
smoothed start is not sure enough; one number in the last layer mends either, so that neither wins by its
scale alone. If no mean is above 0 the start is returned as it is: public records alone are the least a run
may end with, but for noise. Records that were trained on may judge: the run is
private, which bounds how much they flatter it.

The vector is a gradient. `SideBySide` puts ones through a layer with J weights a_j, and the loss is
Σ_j a_j (ℓ(start) − ℓ(s_j z)), whose gradient in a is the vector above. So the oracle's clipped sum answers,
and what it promises for gradients of records holds here too: a record is alone, one that the model fails on
contributes zero, and no vector is longer than C.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.arrays import Json
from sidelight.deep.temperature import scales_scores
from sidelight.methods.parts import Flat
from sidelight.oracles.network.batches import Batch, Losses, call
from sidelight.oracles.network.flat import evaluating, read, write
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import conversions, events
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, joined, release
from sidelight.problems.network import NetworkProblem
from sidelight.problems.network_public import are_classes

__all__ = ["COMPARED", "PaidChoice", "SideBySide", "planned", "too_coarse"]

COMPARED = "compared_with_start"  # in details and histories
SHARE = 0.03  # of μ²
CLIP = 3.0  # the longest vector of differences
SCALES = (0.16, 0.25, 0.4, 0.63, 1.0)  # of the trained network's scores,
START_SCALES = (0.63, 1.6, 2.5)  # and of the start's
_LIMIT = 2.0  # of one difference: a few sure and wrong guesses would decide about the scale of all
_COARSEST = 0.02  # a mean difference of losses that is known less well than that is not worth its price
_CHUNK = 4096  # records that are fetched together
_LARGEST = 50_000_000  # parameters and buffers: there are two copies of the network for a while


class SideBySide(nn.Module):
    """Two frozen networks, and the weight of each difference between them: its only parameters."""

    def __init__(self, before: nn.Module, after: nn.Module, count: int) -> None:
        super().__init__()
        self.before, self.after = before.requires_grad_(False), after.requires_grad_(False)
        self.weigh = nn.Conv1d(1, count, 1, bias=False).to(next(before.parameters()).device)

    def forward(self, *args: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
        before, after = self.before(*args, **named), self.after(*args, **named)
        ones = torch.ones_like(before.reshape(len(before), -1)[:, :1], dtype=self.weigh.weight.dtype)
        return before, after, self.weigh(ones[:, :, None])[:, :, 0]


def differences(loss: Losses, scales: tuple[float, ...], starts: tuple[float, ...] = ()) -> Losses:
    """The loss of `SideBySide` whose gradient is the vector of differences."""

    def of(outputs: tuple[Tensor, Tensor, Tensor], targets: Any) -> Tensor:
        before, after, weights = outputs
        first = loss(before, targets)
        tried = [*(_times(after, scale) for scale in scales), *(_times(before, scale) for scale in starts)]
        gains = torch.stack([first - loss(scores, targets) for scores in tried], dim=1)
        return (weights * gains.clamp(-_LIMIT, _LIMIT)).sum(dim=1)

    return of


def _times(scores: Tensor, scale: float) -> Tensor:
    return scores if scale == 1.0 else scale * scores


class Candidate(NamedTuple):
    """A network that may be returned, and the scale of its last layer."""

    network: Literal["private", "start"]
    scale: float


@dataclass(frozen=True)
class PaidChoice:
    """One release that was planned, and what follows from it."""

    both: SideBySide
    oracle: NetworkOracle  # of the two networks
    candidates: tuple[Candidate, ...]
    multiplier: float

    @property
    def event(self) -> events.Event:
        return events.gaussian(self.multiplier)

    def price(self, epsilon: float, delta: float) -> Json:
        """For the statement."""
        share = (1 / self.multiplier / conversions.gdp_mu(epsilon, delta)) ** 2
        return {"noise_multiplier": self.multiplier, "share_of_budget": share}

    def total(self, problem: NetworkProblem, relation: Relation) -> BoundedSum:
        """The clipped vectors of all private records."""
        asked = NetworkProblem(
            self.oracle, n=problem.n, batches=problem.batches, augmentations=problem.augmentations,
            micro_batch=problem.micro_batch, unit=problem.unit,
        )  # fmt: skip
        params = read(self.oracle.model)
        parts = [
            asked.clipped_sum(params, some, clip=Flat(CLIP), relation=relation)
            for some in np.split(np.arange(asked.n), range(_CHUNK, asked.n, _CHUNK))
        ]
        return joined(parts)

    def choose(
        self, problem: NetworkProblem, start: Tensor, result: Tensor, *, relation: Relation,
        account: Account, noise: Noise,
    ) -> Json:  # fmt: skip
        """Ask private records once; what was released, and which network is returned at which scale."""
        _place(self.both, problem.oracle.model, start, result)
        total = self.total(problem, relation)
        std = self.multiplier * total.sensitivity
        noisy = release(total, std=std, event=self.event, account=account, noise=noise).numpy()
        gains = np.asarray(torch.as_tensor(noisy).cpu(), dtype=np.float64) / problem.n
        found = {one: float(gain) for one, gain in zip(self.candidates, gains, strict=True)}
        found[_AS_IT_IS] = 0.0
        best = max(found, key=lambda one: found[one])
        return {
            "gains": {f"{one.network}, scale {one.scale:g}": gain for one, gain in found.items()},
            "gain": _best_of(found, "private") - _best_of(found, "start"),
            "error": std / problem.n, "returned": best.network, "scale": best.scale,
        }  # fmt: skip


_AS_IT_IS = Candidate("start", 1.0)


def _best_of(gains: dict[Candidate, float], network: str) -> float:
    return max(gain for one, gain in gains.items() if one.network == network)


def _place(both: SideBySide, model: nn.Module, start: Tensor, result: Tensor) -> None:
    """The model with either parameters into its copies; it has the second afterwards."""
    for network, params in ((both.before, start), (both.after, result)):
        write(model, params)
        network.load_state_dict(model.state_dict())


def _multiplier(epsilon: float, delta: float) -> float:
    return 1 / (math.sqrt(SHARE) * conversions.gdp_mu(epsilon, delta))


def too_coarse(n: int, *, epsilon: float, delta: float, relation: Relation) -> bool:
    """Whether the noise of a comparison would hide what n private records say."""
    reach = CLIP * (1 if relation == "add-or-remove-one" else 2)
    return _multiplier(epsilon, delta) * reach > _COARSEST * n


def planned(
    problem: NetworkProblem, example: Batch | None, *, epsilon: float, delta: float, relation: Relation
) -> PaidChoice | str:
    """The release for this model and budget, or why there is none. Public things alone decide."""
    z = _multiplier(epsilon, delta)
    if too_coarse(problem.n, epsilon=epsilon, delta=delta, relation=relation):
        return f"with n = {problem.n:,} and ε = {epsilon:g} its noise would hide what it compares"
    if problem.ranks is not None:
        return "several ranks take part"
    model = problem.oracle.model
    if example is None or sum(x.numel() for x in model.state_dict().values()) > _LARGEST:
        return "the model is large" if example is not None else "no public record has shown a record's shape"
    try:
        return _tried(problem, example, z)
    except Exception as error:  # a model that cannot be copied, or that the oracle refuses side by side
        return f"two copies of the model cannot be compared ({type(error).__name__})"


def _tried(problem: NetworkProblem, example: Batch, z: float) -> PaidChoice | str:
    """Copies of the model side by side, examined on public rows."""
    model, loss = problem.oracle.model, problem.oracle.loss
    with evaluating(model), torch.no_grad():
        outputs = call(model, example[0])
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or not outputs.dim():
        return "the model gives more than scores"
    scaled = are_classes(outputs, example[1]) and scales_scores(model, example)
    scales, starts = (SCALES, START_SCALES) if scaled else ((1.0,), ())
    candidates = tuple(Candidate("private", s) for s in scales) + tuple(Candidate("start", s) for s in starts)
    both = SideBySide(copy.deepcopy(model), copy.deepcopy(model), len(candidates)).eval()
    oracle = NetworkOracle(
        both, differences(loss, scales, starts), example=example, expected=float(min(_CHUNK, problem.n)),
        draw_seed=problem.oracle.draw_seed,
    )  # fmt: skip
    start = read(model)
    _place(both, model, start, start)
    oracle.check(example, micro_batch=problem.micro_batch, augmentations=problem.augmentations)
    return PaidChoice(both, oracle, candidates, z)


def told(found: Json) -> str:
    """A note on what was chosen."""
    gain, error = found["gain"], found["error"]
    last = f", with its last layer times {found['scale']:g}" if found["scale"] != 1.0 else ""
    if found["returned"] == "start":
        seen = f"private records saw the trained network {-gain:.3g} ± {error:.2g} worse"
        return f"the start was returned{last}: {seen}"
    return f"private records saw the trained network{last} {gain:.3g} ± {error:.2g} better than its start"
