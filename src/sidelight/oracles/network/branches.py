"""Branches by values of records, as in `assert not isnan(x).any()` or `if mask.all()`.

In a pass over a batch such a branch would be one for all records, and one record would decide for the rest.
So a pass by layers takes the branches that trial rows took, whatever its records say: the operations are
those that were examined. If nothing in the batch is NaN, nothing in any record is, and each alone would take
the same branch (`sure`). If something is, the pass is taken apart until the records that branch otherwise are
alone. Only `bool(x.any())` and `bool(x.all())` can be answered like this; neither another question nor a
number that leaves PyTorch (`.item()`) can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

_HOLDS_FOR_EACH: dict[object, bool] = {  # the answer that holds for each record if it does for the batch
    torch.any: False, Tensor.any: False, torch._is_any_true: False,
    torch.all: True, Tensor.all: True, torch._is_all_true: True,
}  # fmt: skip


class OtherBranch(Exception):
    """Some record, or a weight, may want another branch than the one that was examined."""


class Answers(TorchFunctionMode):
    """Gives these answers, in turn, to every `bool(tensor)` inside; without any, the true ones.

    `sure`: so far each was the true one of the batch, and therefore that of each record.
    """

    def __init__(self, answers: Sequence[bool] | None = None) -> None:
        super().__init__()
        self._answers = None if answers is None else iter(answers)
        self._over_all: dict[int, tuple[Tensor, bool]] = {}  # with the tensor, so that its identity stays
        self.given: list[bool] = []
        self.sure = True

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        if func is Tensor.__bool__:
            return self._answer(args[0])
        output = func(*args, **(kwargs or {}))
        if func in _HOLDS_FOR_EACH and isinstance(output, Tensor):
            self._over_all[id(output)] = output, _HOLDS_FOR_EACH[func]
        return output

    def _answer(self, question: object) -> bool:
        with torch._C.DisableTorchFunction(), _disable_current_modes():  # we ask, and not the model
            true = bool(question)
        answer = true if self._answers is None else next(self._answers, None)
        if answer is None:
            raise RuntimeError("the model branches more often than in the trial")
        _, each = self._over_all.get(id(question), (None, not true))
        self.sure &= answer == true == each
        self.given.append(answer)
        return answer


class StaticCalls(TorchFunctionMode):
    """Calls of PyTorch that look at values, or at how many rows there are, as others that do not.

    `one_hot` looks for the largest class: a class that does not exist fails here too. `cdist` has another
    kernel for more than 25 rows.
    """

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        kwargs = kwargs or {}
        if func is torch.cdist and len(args) < 4:
            return func(*args, **{**kwargs, "compute_mode": "donot_use_mm_for_euclid_dist"})
        if func is not functional.one_hot:
            return func(*args, **kwargs)
        given = {**dict(zip(("tensor", "num_classes"), args, strict=False)), **kwargs}
        labels, classes = given["tensor"], given.get("num_classes", -1)
        if classes < 1:
            return func(labels)
        return labels.new_zeros((*labels.shape, classes)).scatter(-1, labels[..., None], 1)
