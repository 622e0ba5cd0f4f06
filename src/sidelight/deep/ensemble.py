"""What becomes of a network's iterates: means that fit in memory, and ensembles as modules."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from sidelight.arrays import Vector
from sidelight.errors import InputError
from sidelight.methods.part import FinishRule, FinishState, Models, Setting
from sidelight.methods.parts import MeanLastHalf, Reuse
from sidelight.oracles.network.flat import tensor, trainable
from sidelight.oracles.network.pieces import working

__all__ = ["Ensemble", "MajorityVote", "MeanLogits", "Several", "TailMean", "without_history"]


Vote: TypeAlias = Literal["mean", "majority"]


@dataclass(frozen=True)
class TailMean(FinishRule):
    """The mean of the second half of the planned iterates, as a running sum."""

    def begin(self, setting: Setting) -> TailMeanState:
        return TailMeanState(setting.steps - max(1, setting.steps // 2))


class TailMeanState(FinishState):
    """Adds up every iterate after the first `skip`; until then the last one is the result."""

    kept = ("seen", "total")

    def __init__(self, skip: int) -> None:
        self.skip, self.seen = skip, 0
        self.total: Tensor | None = None

    def add(self, params: Vector) -> None:
        self.seen += 1
        fresh = self.total is None or self.seen <= self.skip + 1
        self.total = tensor(params).double() if fresh else self.total + tensor(params)  # type: ignore[operator]

    def result(self, start: Vector) -> Tensor:
        if self.total is None:
            return tensor(start)
        return (self.total / max(1, self.seen - self.skip)).to(tensor(start).dtype)


def without_history(finish: FinishRule) -> FinishRule:
    """The same finish without keeping half of all iterates in memory."""
    if isinstance(finish, MeanLastHalf):
        return TailMean()
    if isinstance(finish, Reuse):
        return replace(finish, inner=without_history(finish.inner))
    return finish


@dataclass(frozen=True)
class MeanLogits(FinishRule):
    """An ensemble of the last n iterates that averages their outputs."""

    n: int = 100
    vote: Vote = "mean"
    network_only: ClassVar[bool] = True  # an ensemble is a module
    single: ClassVar[bool] = False

    def begin(self, setting: Setting) -> SeveralState:
        if self.n < 1:
            raise InputError(f"an ensemble needs at least one iterate, not {self.n}")
        return SeveralState(self.n, self.vote)


def MajorityVote(n: int = 100) -> MeanLogits:  # noqa: N802  (reads like the other parts)
    """An ensemble of the last n iterates that votes; ties go to the class of larger mean output."""
    return MeanLogits(n, "majority")


@dataclass(frozen=True, eq=False)
class Several(Models):
    """Iterates to be kept as an ensemble."""

    iterates: list[Tensor]
    vote: Vote


class SeveralState(FinishState):
    """Keeps the last n iterates."""

    kept = ("iterates",)

    def __init__(self, n: int, vote: Vote) -> None:
        self.iterates: deque[Tensor] = deque(maxlen=n)
        self.vote = vote

    def add(self, params: Vector) -> None:
        self.iterates.append(tensor(params))

    def result(self, start: Vector) -> Several:
        return Several(list(self.iterates) or [tensor(start)], self.vote)


class Ensemble(nn.Module):
    """Several parameter vectors of one model. Its output has the shape of one model's.

    "mean" averages outputs. "majority" gives for each class its votes plus a share below 1 by which ties go
    to the class of larger mean output: the argmax is the vote's winner.
    """

    members: Tensor

    def __init__(self, model: nn.Module, several: Several) -> None:
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
        return cls(model, Several([torch.zeros(size, dtype=dtype) for _ in range(members)], vote))

    def forward(self, *args: Any, **inputs: Any) -> Tensor:
        outputs = torch.stack([self._one(member, args, inputs) for member in self.members])
        if self.vote == "mean":
            return outputs.mean(0)
        votes = nn.functional.one_hot(outputs.argmax(-1), outputs.shape[-1]).sum(0)
        ranks = outputs.mean(0).argsort(-1).argsort(-1)
        return votes + ranks / outputs.shape[-1]

    def _one(self, member: Tensor, args: Any, inputs: dict[str, Any]) -> Tensor:
        known, place, parts = dict(self.model.named_parameters()), 0, {}
        for name in self._names:
            size = known[name].numel()
            parts[name] = member[place : place + size].view(known[name].shape).to(known[name].dtype)
            place += size
        output: Tensor = torch.func.functional_call(self.model, parts, args, inputs)
        return output
