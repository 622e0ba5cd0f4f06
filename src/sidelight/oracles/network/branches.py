"""Branches by values of records, as in `assert not isnan(x).any()` or `if mask.all()`.

In a pass over a batch such a branch would be one for all records, and one record would decide for the rest.
So a pass by layers takes the branches that trial rows took, whatever its records say (`Answers`): the
operations are those that were examined. Beforehand a forward pass by torch.func, in which every record is
alone, finds the records that would have taken another branch (`agreeing`). They go through the model one by
one. Only `bool(tensor)` can be answered like this; a number that leaves PyTorch (`.item()`) cannot.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor
from torch.overrides import TorchFunctionMode

from sidelight.oracles.network.batches import Batch, Losses
from sidelight.oracles.network.routes import unroll
from sidelight.oracles.network.written_out import WithLoss, by_record

__all__ = ["Answers", "OtherBranch", "agreeing", "answers_of"]


class Answers(TorchFunctionMode):
    """Gives these answers, in turn, to every `bool(tensor)` inside."""

    instead: ClassVar[dict[Callable[..., object], Callable[..., object]]] = {}  # of functions, others

    def __init__(self, answers: Sequence[bool]) -> None:
        super().__init__()
        self._answers = iter(answers)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func is not Tensor.__bool__:
            return self.instead.get(func, func)(*args, **(kwargs or {}))
        if (answer := self.answer(args[0])) is None:
            raise RuntimeError("the model branches more often than in the trial")
        return answer

    def answer(self, question: object) -> bool | None:
        return next(self._answers, None)


class _Noted(Answers):
    """Gives the true answers, and notes them."""

    def __init__(self) -> None:
        super().__init__(())
        self.noted: list[bool] = []

    def answer(self, question: object) -> bool:
        with torch._C.DisableTorchFunction():
            self.noted.append(bool(question))
        return self.noted[-1]


class OtherBranch(Exception):
    """A branch that depends on weights, and on no record, is not the one that was examined."""


class _Compared(Answers):
    """Gives these answers, and notes which records would have given another one."""

    instead: ClassVar = {
        torch._is_all_true: torch.all,
        torch._is_any_true: torch.any,
    }  # torch.func joins these

    def __init__(self, answers: Sequence[bool], count: int) -> None:
        super().__init__(answers)
        self.agree = torch.ones(count, dtype=torch.bool)

    def answer(self, question: object) -> bool | None:
        wanted = super().answer(question)
        with torch._C.DisableTorchFunction():
            if isinstance(question, Tensor) and is_batchedtensor(question):
                while is_batchedtensor(question):
                    question = get_unwrapped(question)
                found = question.detach().reshape(len(self.agree), -1).cpu() != 0
                self.agree &= found[:, 0] == bool(wanted)
            elif bool(question) != wanted:
                raise OtherBranch
        return wanted


def answers_of(run: Callable[[], object]) -> tuple[bool, ...]:
    """The answers that a pass gives by itself."""
    with _Noted() as mode:
        run()
    return tuple(mode.noted)


def agreeing(model: nn.Module, loss: Losses, batch: Batch, count: int, answers: Sequence[bool]) -> Tensor:
    """Which records, each alone, take the branches of `answers`."""
    records, filled = by_record(batch, count)
    both, compared = WithLoss(model, loss), _Compared(answers, count)
    each = torch.func.vmap(lambda *one: both(*filled(list(one))), randomness="same")
    with ExitStack() as stack, torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        unroll(stack, model)
        with compared:
            each(*records)
    return compared.agree
