"""What a model and its loss hold besides their graph, and whether a pass has changed it.

A model that writes into itself while it sees private records carries them out of the mechanism, and from one
record to the next: a running average, a cache, a counter. Buffers are the usual place, but a frozen
parameter, a list in an attribute or of a class, a hook, `.data`, which PyTorch's version counters do not see,
or `.grad` serve as well. So everything that can be reached (reach.py) is compared and put back.
"""

from __future__ import annotations

import logging
import random
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.oracles.network.reach import reached
from sidelight.oracles.network.state_cells import Cell, cells_of

__all__ = [
    "CHANGED", "Held", "ModelState", "has_numbers", "put_back", "refuse_change", "restored", "silent",
    "without_gradients",
]  # fmt: skip

CHANGED = (
    "the model changes a buffer, a parameter, its gradient or an attribute of its own when it sees records, "
    "and would carry private ones out of the mechanism. Stop it from doing so: track_running_stats=False, "
    ".eval() on that module, torch.autograd.grad in place of .backward(), or keep nothing during forward"
)

_GLOBAL_HOOKS = tuple(  # those of all modules: they see what the model sees
    hooks for name, hooks in vars(nn.modules.module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
)  # fmt: skip
_WHOLE = 2**22  # numbers in tensors that are copied; of larger ones the version is compared


class Held:
    """A tensor at one moment: its memory, its version, and a copy of its numbers if that is wanted.

    compared: whether numbers are, or the version alone, which does not see `.data`.
    """

    __slots__ = ("compared", "copy", "form", "grad", "tensor", "version")

    def __init__(self, tensor: Tensor, *, copied: bool, compared: bool = True) -> None:
        self.tensor, self.compared = tensor, compared
        self.form, self.version = _form(tensor), tensor._version
        self.grad = tensor.grad if tensor.is_leaf else None
        self.copy = tensor.detach().clone() if copied else None

    def changed(self) -> bool:
        x = self.tensor
        if x._version != self.version or _form(x) != self.form or (x.is_leaf and x.grad is not self.grad):
            return True
        return self.compared and self.copy is not None and not _same(x, self.copy)

    def restore(self) -> None:
        x = self.tensor
        if x.is_leaf and x.requires_grad != self.form[2]:
            x.requires_grad_(self.form[2])
        if x.is_leaf and x.grad is not self.grad:
            x.grad = self.grad
        if self.copy is None and (x._version != self.version or _form(x) != self.form):
            x.data = x.new_zeros(self.form[1])  # what it was is lost; what it is must not stay
        elif self.copy is not None and (x.shape != self.copy.shape or x.dtype != self.copy.dtype):
            x.data = self.copy.clone()
        elif self.copy is not None and not _same(x, self.copy):
            x.data.copy_(self.copy)


class ModelState:
    """Everything that a model and its loss can change, at one moment.

    copies: of every tensor, also of trained weights and large ones; without, of the small others.
    """

    def __init__(self, *roots: Any, copies: bool = False) -> None:
        self._cells, tensors = reached(*roots, *_GLOBAL_HOOKS)
        self._tensors = [x for x in tensors if has_numbers(x)]
        self.renew(copies=copies)

    def renew(self, *, copies: bool = False) -> None:
        """Take tensors and generators as they are now: both have moved on since."""
        self._generators = [*cells_of(random._inst), *cells_of(np.random.mtrand._rand)]
        self._held = [Held(x, copied=copies or _small(x)) for x in self._tensors]

    def altered(self) -> bool:
        """Whether attributes, modules, hooks or the tensors they name are others; numbers do not count."""
        if any(cell.changed() for cell in self._cells if not cell.memo):
            return True
        return any(_kind(held.tensor) != _kind_of(held.form) for held in self._held)

    def changed(self) -> bool:
        """Whether anything is not as it was, but for the generators of Python and NumPy."""
        cells = any(cell.changed() for cell in self._cells if not cell.memo)
        return cells or any(held.changed() for held in self._held)

    def restore(self) -> None:
        """Put back what can be put back; a tensor of which there is no copy is filled with zeros."""
        put_back((*self._generators, *self._cells), self._held)


def put_back(
    cells: Iterable[Cell], tensors: Iterable[Held], *, first: Callable[[Cell], None] | None = None
) -> None:
    """Restore what is not as it was; `first` may say otherwise, by changing the content of a cell."""
    for cell in cells:
        if cell.changed():
            if first is not None:
                first(cell)
            cell.restore()
    changed = [held for held in tensors if held.changed()]
    if changed:
        with torch.no_grad():
            for held in changed:
                held.restore()
                held.form, held.version = _form(held.tensor), held.tensor._version


@contextmanager
def restored(state: ModelState) -> Iterator[None]:
    """Whatever happens inside, all is as it was afterwards. Nothing is said: it would tell of a record."""
    try:
        yield
    finally:
        state.restore()


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Parameters have no `.grad` inside; afterwards they have theirs, whatever was written meanwhile."""
    held = [(p, p.grad) for p in model.parameters()]
    try:
        for p, _ in held:
            p.grad = None
        yield
    finally:
        for p, grad in held:
            p.grad = grad


@contextmanager
def silent() -> Iterator[None]:
    """No warning and no line in a log: one about a private value would tell of it."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), _LOGS:
        warnings.simplefilter("ignore")
        yield


class _NoLogs:
    """Python's logs go nowhere while somebody is inside, of all threads. (`logging.disable` takes 1 ms.)"""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before = logging.Logger.callHandlers

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = logging.Logger.callHandlers
                logging.Logger.callHandlers = _dropped  # type: ignore[method-assign,assignment]
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                logging.Logger.callHandlers = self._before  # type: ignore[method-assign]


def _dropped(logger: logging.Logger, record: logging.LogRecord) -> None:
    """In place of handing a record to handlers."""


_LOGS = _NoLogs()


def refuse_change(state: ModelState) -> None:
    """Raise if something is not as it was, after passes over rows that are not private."""
    if state.changed():
        raise AssumptionError(CHANGED)


def has_numbers(x: Tensor) -> bool:
    """Whether a tensor has memory that can be compared."""
    return _form(x)[3] is not None


def _small(x: Tensor) -> bool:
    return not (isinstance(x, nn.Parameter) and x.requires_grad) and x.numel() <= _WHOLE


def _form(x: Tensor) -> Any:
    try:
        return id(x), x.shape, x.requires_grad, None if x.is_meta else x.data_ptr(), x.dtype
    except (RuntimeError, NotImplementedError):  # sparse, or left behind by torch.func
        return id(x), x.shape, x.requires_grad, None, x.dtype


def _kind(x: Tensor) -> Any:
    return x.shape, x.requires_grad, x.dtype


def _kind_of(form: Any) -> Any:
    return form[1], form[2], form[4]


def _same(x: Tensor, copy: Tensor) -> bool:
    """Bit for bit, where NaN is equal to itself."""
    if torch.equal(x.detach(), copy):
        return True
    return bool(torch.isclose(x.detach(), copy, rtol=0.0, atol=0.0, equal_nan=True).all())
