"""Parts that networks alone have: ensembles of iterates, and AdaMix's projection of the last layer."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from sidelight.arrays import Vector
from sidelight.errors import InputError
from sidelight.methods.adamix import RefreshedState, host, top_directions
from sidelight.methods.part_kinds import FinishRule, FinishState, MetricRule, Models, Setting
from sidelight.oracles.network.batches import call, row_count, take
from sidelight.oracles.network.flat import TailProjection, tensor, trainable
from sidelight.oracles.network.pieces import working
from sidelight.problems.flat_parameters import write
from sidelight.problems.network_public import NetworkGuide

Vote: TypeAlias = Literal["mean", "majority"]


# ---------------------------------------------------------------------------------------------------
# ensembles


@dataclass(frozen=True)
class MeanLogits(FinishRule):
    """An ensemble of the last n iterates that averages their outputs."""

    n: int = 100
    vote: Vote = "mean"
    network_only: ClassVar[bool] = True  # an ensemble is a module
    single: ClassVar[bool] = False

    def begin(self, setting: Setting) -> EnsembleState:
        if self.n < 1:
            raise InputError(f"an ensemble needs at least one iterate, not {self.n}")
        return EnsembleState(self.n, self.vote)


def MajorityVote(n: int = 100) -> MeanLogits:  # noqa: N802  (reads like the other parts)
    """An ensemble of the last n iterates that votes; ties go to the class of larger mean output."""
    return MeanLogits(n, "majority")


@dataclass(frozen=True, eq=False)
class EnsembleWeights(Models):
    """Iterates to be kept as an ensemble."""

    iterates: list[Tensor]
    vote: Vote


class EnsembleState(FinishState):
    """Keeps the last n iterates."""

    kept = ("iterates",)

    def __init__(self, n: int, vote: Vote) -> None:
        self.iterates: deque[Tensor] = deque(maxlen=n)
        self.vote = vote

    def add(self, params: Vector) -> None:
        self.iterates.append(tensor(params))

    def result(self, start: Vector) -> EnsembleWeights:
        return EnsembleWeights(list(self.iterates) or [tensor(start)], self.vote)


class Ensemble(nn.Module):
    """Several parameter vectors of one model. Its output has the shape of one model's.

    "mean" averages outputs. "majority" gives for each class its votes plus a share below 1 by which ties go
    to the class of larger mean output: the argmax is the vote's winner.
    """

    members: Tensor

    def __init__(self, model: nn.Module, several: EnsembleWeights) -> None:
        super().__init__()
        self.model = deepcopy(model).requires_grad_(False)
        mine = {id(p) for p in trainable(model)}
        self._names = [name for name, p in model.named_parameters() if id(p) in mine]
        self.vote = several.vote
        self.register_buffer("members", torch.stack(several.iterates))

    @classmethod
    def empty(cls, model: nn.Module, members: int, *, vote: Vote = "mean") -> Ensemble:
        """An ensemble of zeros, for load_state_dict of a saved one of a model that trained the same."""
        size = sum(p.numel() for p in trainable(model))
        dtype = working(*(p.dtype for p in trainable(model)))
        return cls(model, EnsembleWeights([torch.zeros(size, dtype=dtype) for _ in range(members)], vote))

    def forward(self, *args: object, **inputs: object) -> Tensor:
        outputs = torch.stack([self._one(member, args, inputs) for member in self.members])
        if self.vote == "mean":
            return outputs.mean(0)
        votes = nn.functional.one_hot(outputs.argmax(-1), outputs.shape[-1]).sum(0)
        ranks = outputs.mean(0).argsort(-1).argsort(-1)
        return votes + ranks / outputs.shape[-1]

    def _one(self, member: Tensor, args: tuple[object, ...], inputs: dict[str, object]) -> Tensor:
        known, place, parts = dict(self.model.named_parameters()), 0, {}
        for name in self._names:
            size = known[name].numel()
            parts[name] = member[place : place + size].view(known[name].shape).to(known[name].dtype)
            place += size
        output: Tensor = torch.func.functional_call(self.model, parts, args, inputs)
        return output


# ---------------------------------------------------------------------------------------------------
# the last layer


@dataclass(frozen=True)
class LastLayer(MetricRule):
    """The metric: the last layer's gradient in the span of public ones, the other layers' as it is.

    For `adamix().with_parts(metric=LastLayer(50))`. The gradient of a classifier's last layer has low rank,
    and public records show which; that of the whole network has not, and a matrix of whole public gradients
    may not fit into memory. Noise then has k coordinates for the last layer.

    Args:
        rank: directions kept, at most; None: 50.
        refresh: steps between two bases.
    """

    rank: int | None = None
    refresh: int = 10
    needs_public: ClassVar[bool] = True

    def begin(self, setting: Setting, params: Vector) -> LastLayerState:
        guide = setting.public("AdaMix's projection")
        if not isinstance(guide, NetworkGuide):
            raise InputError("LastLayer is for networks; a linear model has one layer, and takes Subspace()")
        if (self.rank is not None and self.rank < 1) or self.refresh < 1:
            raise InputError("rank and refresh must be whole numbers of at least 1")
        return LastLayerState(guide, 50 if self.rank is None else self.rank, self.refresh)


class LastLayerState(RefreshedState):
    """On the top directions of the last layer's gradients."""

    def __init__(self, guide: NetworkGuide, rank: int, refresh: int) -> None:
        super().__init__(refresh)
        self.guide, self.rank = guide, rank

    def made(self, params: Vector) -> TailProjection:
        model = self.guide.oracle.model
        write(model, tensor(params))
        start, parameters = last_layer_start(model)
        basis = top_directions(host(self._gradients(parameters)), self.rank)
        return TailProjection(tensor(params).new_tensor(basis), start)

    def _gradients(self, parameters: list[nn.Parameter]) -> Tensor:
        """The last layer's gradients of public records, one per row."""
        oracle, batch = self.guide.oracle, self.guide.batch
        rows = []
        for i in range(min(row_count(batch), self.guide.gradient_rows)):
            inputs, targets = take(batch, slice(i, i + 1))
            with torch.enable_grad():
                loss = oracle.loss(call(oracle.model, inputs), targets).sum()
                grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
            rows.append(torch.cat([g.reshape(-1) for g in parts]))
        return torch.stack(rows).float()


def last_layer_start(model: nn.Module) -> tuple[int, list[nn.Parameter]]:
    """Where the last layer's parameters begin in the flat vector, and which they are.

    The last layer is the module that owns the last trainable parameter.
    """
    parameters = trainable(model)
    owner = next(m for m in reversed(list(model.modules())) if _owns(m, parameters[-1]))
    tail: list[nn.Parameter] = []
    for parameter in reversed(parameters):
        if not _owns(owner, parameter):
            break
        tail.insert(0, parameter)
    return sum(p.numel() for p in parameters) - sum(p.numel() for p in tail), tail


def _owns(module: nn.Module, parameter: nn.Parameter) -> bool:
    return any(parameter is own for own in module.parameters(recurse=False))
