"""Private records choose how far to go from a start to a trained network, and the scale of the scores.

Noise moves a network in every direction, and what records say in few: a point on the way from the start w₀
to the result w often beats both. Two Gaussian releases after the last step, inside the plan and the charge:

    Σ_i clip_1( right_i(w₀ + t (w − w₀)) − right_i(w₀) )_t     t of `WAY`; right_i: 1 if record i is, else 0
    Σ_i clip_C( u_i,y − Σ_k softmax_k(s z_i) u_i,k )_s         s of `SCALES`; z: the chosen network's scores,
                                                               u: the same, so that they span 1

The largest noisy mean names the point; where it is not clear, half the way is taken. Being right does not
depend on the scale, so that a start with smoothed labels and a network that clipping has made too sure of
itself are compared fairly. If no mean is above 0, the start is returned: public records alone are the least a
run may end with, but for noise.
The second sum falls with s, and is zero in expectation at the scale whose probabilities are right. It is the
slope of the log loss along the scale, each record weighed so that none has more than 1 to say: no clip cuts
off what sure and wrong predictions say, as it does with losses. The scale is where the curve through the
noisy means crosses zero.
Without classes, losses ℓ_i take the place of right_i, and there is no scale. Records that were trained on may
judge: the run is private, which bounds how much they flatter it.

Each vector is a gradient. `SideBySide` puts ones through a layer with J weights a_j, and the loss is Σ_j a_j
times the j-th number, whose gradient in a is the vector. So the oracle's clipped sum answers, and what it
promises for gradients of records holds here too: a record is alone, one that the model fails on contributes
zero, and no vector is longer than C. One network is held beside the model, and has the parameters of each
point in turn.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from sidelight.arrays import Json
from sidelight.deep.temperature import scales_scores
from sidelight.methods.parts import Flat
from sidelight.oracles.network.batches import Batch, Losses, call
from sidelight.oracles.network.flat import evaluating, trainable, views_of
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import conversions, events
from sidelight.privacy.events import Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, joined, release
from sidelight.problems.flat_parameters import read
from sidelight.problems.network import NetworkProblem
from sidelight.problems.network_public import are_classes
from sidelight.problems.public_training import is_cross_entropy

COMPARED = "compared_with_start"  # in details and histories
SHARE = 0.03  # of μ², for one release or for two
WAY = (0.25, 0.5, 1.0)  # from the start to the result
HALFWAY = 0.5  # taken where nothing is compared: half the noise, and most of what was learned
SCALES = (0.25, 0.5, 1.0, 2.0)  # of scores
CLIP = 2.0  # the longest vector of four numbers in [−1, 1], so that none is clipped; or of losses
_RIGHT = 1.0  # the longest of differences between right and wrong
_LIMIT = 2.0  # of one difference of losses: a few sure and wrong guesses would decide about all
_COARSEST = 0.02  # a mean difference that is known less well than that is not worth its price,
_COARSEST_SCALE = 0.04  # or between scales
_CHUNK = 4096  # records that are fetched together
_LARGEST = 100_000_000  # trained numbers: those of start, result, copy and point are held beside the model

Differences = Callable[[Sequence[Tensor], Any], Sequence[Tensor]]  # of the networks' scores, and targets


class SideBySide(nn.Module):
    """A frozen network at several points, and the weight of each difference: its only parameters."""

    def __init__(self, network: nn.Module, names: Sequence[str], count: int) -> None:
        super().__init__()
        self.network, self._names = network, list(names)
        self.points: tuple[Tensor, Tensor, tuple[float, ...]] | None = None  # start, result, ways between
        self.weigh = nn.Conv1d(1, count, 1, bias=False).to(next(network.parameters()).device)

    def forward(self, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        found = [self._at(way, args, named) for way in ((0.0,) if self.points is None else self.points[2])]
        ones = torch.ones_like(found[0].reshape(len(found[0]), -1)[:, :1], dtype=self.weigh.weight.dtype)
        return (*found, self.weigh(ones[:, :, None])[:, :, 0])

    def _at(self, way: float, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The scores of the network so far from the start to the result."""
        if self.points is None:
            return scores_in(self.network(*args, **named))
        known = dict(self.network.named_parameters())
        flat = between(self.points[0], self.points[1], way) if way else self.points[0]
        parts = views_of(flat, [known[name] for name in self._names])
        return scores_in(
            functional_call(self.network, dict(zip(self._names, parts, strict=True)), args, named)
        )


def scores_in(outputs: Any) -> Any:
    """What is compared of a network's outputs: themselves, or `logits` of the named parts of transformers."""
    return getattr(outputs, "logits", outputs)


def weighed(differences: Differences) -> Losses:
    """The loss of `SideBySide` whose gradient is the vector of differences."""

    def of(outputs: tuple[Tensor, ...], targets: Any) -> Tensor:
        *scores, weights = outputs
        found = torch.stack(list(differences(scores, targets)), dim=1)
        return (weights * found.clamp(-_LIMIT, _LIMIT)).sum(dim=1)

    return of


def right(scores: Sequence[Tensor], targets: Any) -> list[Tensor]:
    """Whether each network is right about a record, less whether the first is."""
    first, *others = ((one.argmax(dim=1) == targets).to(one.dtype) for one in scores)
    return [other - first for other in others]


def better(loss: Losses) -> Differences:
    """How much lower each network's loss is than that of the first."""
    return lambda scores, targets: [loss(scores[0], targets) - loss(one, targets) for one in scores[1:]]


def surprises(scores: Sequence[Tensor], targets: Any) -> list[Tensor]:
    """By how much the score of the right class is above its expectation, at each scale; in [−1, 1]."""
    z = scores[0]
    span = z.amax(dim=1, keepdim=True) - z.amin(dim=1, keepdim=True)
    u = (z - z.amin(dim=1, keepdim=True)) / span.clamp(min=torch.finfo(z.dtype).tiny)
    own = u.gather(1, targets[:, None])[:, 0]
    return [own - (torch.softmax(scale * z, dim=1) * u).sum(dim=1) for scale in SCALES]


def between(start: Tensor, result: Tensor, way: float) -> Tensor:
    """The point that is so far from the start to the result."""
    return result if way == 1 else torch.lerp(start, result, way)


@dataclass(frozen=True)
class Release:
    """One vector of differences, and its noise."""

    oracle: NetworkOracle  # of networks side by side
    clip: float
    multiplier: float

    @property
    def event(self) -> events.Event:
        return events.gaussian(self.multiplier)

    def place(self, model: nn.Module, start: Tensor, result: Tensor, ways: Sequence[float]) -> None:
        """Compare the networks that are so far from the start to the result, with the model's buffers."""
        compared = self.oracle.model
        compared.points = start, result, tuple(ways)  # type: ignore[assignment]
        with torch.no_grad():
            for mine, own in zip(compared.network.buffers(), model.buffers(), strict=True):  # type: ignore[union-attr]
                mine.copy_(own)

    def total(self, problem: NetworkProblem, relation: Relation) -> BoundedSum:
        """The clipped vectors of all private records."""
        asked = NetworkProblem(
            self.oracle, n=problem.n, batches=problem.batches, augmentations=problem.augmentations,
            micro_batch=problem.micro_batch, unit=problem.unit,
        )  # fmt: skip
        params = read(self.oracle.model)
        parts = [
            asked.clipped_sum(params, some, clip=Flat(self.clip), relation=relation)
            for some in np.split(np.arange(asked.n), range(_CHUNK, asked.n, _CHUNK))
        ]
        return joined(parts)

    def ask(
        self, problem: NetworkProblem, *, relation: Relation, account: Account, noise: Noise
    ) -> tuple[list[float], float]:
        """Noisy mean differences, and their standard error."""
        total = self.total(problem, relation)
        std = self.multiplier * total.sensitivity
        noisy = release(total, std=std, event=self.event, account=account, noise=noise).numpy()
        means = np.asarray(torch.as_tensor(noisy).cpu(), dtype=np.float64) / problem.n
        return [float(mean) for mean in means], std / problem.n


@dataclass(frozen=True)
class PaidChoice:
    """The releases that were planned, and what follows from them."""

    network: Release
    scale: Release | None  # where scores have one, and noise would not hide it
    by: str  # "accuracy" or "loss"

    @property
    def event(self) -> events.Event:
        return events.compose(*(one.event for one in (self.network, self.scale) if one is not None))

    def price(self, epsilon: float, delta: float) -> Json:
        """For the statement."""
        releases = 1 if self.scale is None else 2
        share = releases * (1 / self.network.multiplier / conversions.gdp_mu(epsilon, delta)) ** 2
        return {"by": self.by, "noise_multiplier": self.network.multiplier, "share_of_budget": share}

    def choose(
        self, problem: NetworkProblem, start: Tensor, result: Tensor, *, relation: Relation,
        account: Account, noise: Noise,
    ) -> Json:  # fmt: skip
        """Ask private records; what was released, and which network is returned at which scale."""
        how: dict[str, Any] = {"relation": relation, "account": account, "noise": noise}
        model = problem.oracle.model
        self.network.place(model, start, result, (0.0, *WAY))
        gains, error = self.network.ask(problem, **how)
        way, gain = _best(dict(zip(WAY, gains, strict=True)), error)
        found: Json = {
            "gains": {f"{one:g}": value for one, value in zip(WAY, gains, strict=True)}, "error": error,
            "by": self.by, "gain": gain, "way": way, "returned": "private" if way else "start", "scale": 1.0,
        }  # fmt: skip
        if self.scale is None:
            return found
        self.scale.place(model, start, result, (way,))
        means, error = self.scale.ask(problem, **how)
        scales = {f"{one:g}": value for one, value in zip(SCALES, means, strict=True)}
        return {**found, "scale": crossing(means), "scales": scales, "scale_error": error}


def _best(gains: dict[float, float], error: float) -> tuple[float, float]:
    """What has the largest mean, and that mean; 0, the start, if none is above 0.

    Half the way, which is good on average, is taken where its mean is above 0 and within the error of a
    difference.
    """
    best = max(gains, key=lambda one: gains[one])
    if gains[HALFWAY] > max(0.0, gains[best] - math.sqrt(2) * error):
        best = HALFWAY
    return (best, gains[best]) if gains[best] > 0 else (0.0, gains[best])


def crossing(means: Sequence[float]) -> float:
    """The scale at which a falling curve through these means at `SCALES` is zero, or the end next to it.

    Noisy means that rise are averaged with their neighbors; between scales, the curve is straight in log s.
    """
    falling, places = _falling(means), [math.log(scale) for scale in SCALES]
    if falling[0] <= 0 or falling[-1] >= 0:
        return SCALES[0 if falling[0] <= 0 else -1]
    return math.exp(float(np.interp(0.0, falling[::-1], places[::-1])))


def _falling(means: Sequence[float]) -> list[float]:
    """The nearest values that do not rise (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for mean in means:
        pools.append((mean, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (a, m), (b, n) = pools[-2:]
            pools[-2:] = [((m * a + n * b) / (m + n), m + n)]
    return [mean for mean, count in pools for _ in range(count)]


def _multiplier(epsilon: float, delta: float, releases: int) -> float:
    return math.sqrt(releases / SHARE) / conversions.gdp_mu(epsilon, delta)


def too_coarse(n: int, *, epsilon: float, delta: float, relation: Relation) -> bool:
    """Whether the noise of a comparison would hide what n private records say."""
    return _error(n, _RIGHT, 1, epsilon, delta, relation) > _COARSEST


def _error(n: int, clip: float, releases: int, epsilon: float, delta: float, relation: Relation) -> float:
    """The standard error of a mean difference."""
    reach = clip * (1 if relation == "add-or-remove-one" else 2)
    return _multiplier(epsilon, delta, releases) * reach / n


def planned(
    problem: NetworkProblem, example: Batch | None, *, epsilon: float, delta: float, relation: Relation
) -> PaidChoice | str:
    """The releases for this model and budget, or why there are none. Public things alone decide."""
    how: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "relation": relation}
    if too_coarse(problem.n, **how):
        return f"with n = {problem.n:,} and ε = {epsilon:g} its noise would hide what it compares"
    if problem.ranks is not None:
        return "several ranks take part"
    if example is None or problem.dimension > _LARGEST:
        return "the model is large" if example is not None else "no public record has shown a record's shape"
    try:
        return _tried(problem, example, how)
    except Exception as error:  # a model that cannot be copied, or that the oracle refuses side by side
        return f"copies of the model cannot be compared ({type(error).__name__})"


def _tried(problem: NetworkProblem, example: Batch, how: dict[str, Any]) -> PaidChoice | str:
    """A copy of the model that takes the parameters of each point, examined on public rows."""
    model, loss = problem.oracle.model, problem.oracle.loss
    with evaluating(model), torch.no_grad():
        outputs = call(model, example[0])
        losses = loss(outputs, example[1])
    scores = scores_in(outputs)
    if not isinstance(scores, Tensor) or not scores.is_floating_point() or not scores.dim():
        return "the model gives more than scores"
    by_class = are_classes(scores, example[1])
    if not by_class and _error(problem.n, CLIP, 1, **how) > _COARSEST:
        return f"with n = {problem.n:,} and ε = {how['epsilon']:g} its noise would hide what it compares"
    fine = by_class and _error(problem.n, CLIP, 2, **how) <= _COARSEST_SCALE
    scaled_too = fine and is_cross_entropy(losses, scores, example[1]) and scales_scores(model, example)
    z, network = _multiplier(how["epsilon"], how["delta"], 2 if scaled_too else 1), _frozen_copy(model)
    names, start = _trained_names(model), read(model)

    def side_by_side(ways: Sequence[float], count: int, differences: Differences, clip: float) -> Release:
        oracle = NetworkOracle(
            SideBySide(network, names, count).eval(), weighed(differences), example=example,
            expected=float(min(_CHUNK, problem.n)), draw_seed=problem.oracle.draw_seed,
        )  # fmt: skip
        found = Release(oracle, clip, z)
        found.place(model, start, start, ways)
        oracle.check(example, micro_batch=problem.micro_batch, augmentations=problem.augmentations)
        return found

    scale = side_by_side((0.0,), len(SCALES), surprises, CLIP) if scaled_too else None
    if by_class:
        return PaidChoice(side_by_side((0.0, *WAY), len(WAY), right, _RIGHT), scale, "accuracy")
    named = scores is not outputs
    losses_of = (lambda found, targets: loss(SimpleNamespace(logits=found), targets)) if named else loss
    return PaidChoice(side_by_side((0.0, *WAY), len(WAY), better(losses_of), CLIP), None, "loss")


def _frozen_copy(model: nn.Module) -> nn.Module:
    """A copy that shares what is not trained."""
    shared = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, dict(shared)).requires_grad_(False)


def _trained_names(model: nn.Module) -> list[str]:
    """The names of the trained parameters, in the order of the flat vector."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for p in trainable(model)]


def describe_choice(found: Json) -> str:
    """What was returned, and why."""
    gain, error = (_size(found[name], found["by"]) for name in ("gain", "error"))
    last = f", with its last layer times {found['scale']:g}" if found["scale"] != 1.0 else ""
    if found["returned"] == "start":
        return (
            f"the start{last}: private records saw no point on the way to the trained network as better (the "
            f"best: {gain} ± {error})"
        )
    return f"{way_of(found['way'])}{last}: private records saw it as {gain} ± {error} better than its start"


def way_of(way: float) -> str:
    """A point on the way, in words."""
    return (
        "the trained network"
        if way == 1
        else f"{100 * way:.0f}\u202f% of the way from the start to the trained network"
    )


def _size(value: float, by: str) -> str:
    return f"{100 * value:.2g} points" if by == "accuracy" else f"{value:.2g}"
