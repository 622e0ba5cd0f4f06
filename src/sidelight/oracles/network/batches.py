"""Batches: a tensor, or a tuple, list or dictionary of them, with one row per record in front."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sidelight.errors import INTERRUPTS, InputError

Batch: TypeAlias = tuple[Any, Any]  # inputs, targets: as the user's model takes them
Losses: TypeAlias = Callable[[Any, Any], Tensor]  # (outputs, targets) → one number per record


class Ready(NamedTuple):
    """A batch as the model sees it, and what each row weighs in its record's mean (None: all the same)."""

    rows: Batch
    weights: Tensor | None = None


_Tree = TypeVar("_Tree")  # tensors in tuples, lists and dictionaries; what comes out has the same structure


def seed_torch(seed: int) -> None:
    """Let PyTorch's generators begin here, on the devices that are in use.

    (`torch.manual_seed` also writes down, for each device that is not, where in the program that was: up to
    4 ms a call, and there is one for each record.)
    """
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed % 2**63)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed % 2**63)


def tensors(tree: object) -> list[Tensor]:
    """The tensors in nested arguments, in order."""
    if _is_pair(tree):  # what most batches are, without a walk
        return list(tree)
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_pair(tree: object) -> TypeGuard[tuple[Tensor, Tensor]]:
    """Whether this is a plain tuple of two plain tensors."""
    return type(tree) is tuple and len(tree) == 2 and type(tree[0]) is Tensor and type(tree[1]) is Tensor


def each_tensor(tree: _Tree, change: Callable[[Tensor], Tensor]) -> _Tree:
    """The same structure with every tensor changed."""
    if _is_pair(tree):
        return change(tree[0]), change(tree[1])  # type: ignore[return-value]
    changed: _Tree = tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, tree)
    return changed


def row_count(batch: Batch) -> int:
    """How many rows a batch has; every tensor in it must agree."""
    lengths = {x.shape[0] if x.dim() else -1 for x in tensors(batch)}
    if len(lengths) != 1 or -1 in lengths:
        raise InputError(
            "a batch is (inputs, targets): tensors with one row per record, equally many in each"
        )
    return int(lengths.pop())


def only_tensors(batch: object) -> None:
    """Raise if a batch holds anything but tensors and None.

    A number beside them (how many tokens a batch has) would go to every record, and one record changes it.
    That there is one is a matter of the batch's structure, and what it is stays untold.
    """
    if not all(leaf is None or isinstance(leaf, Tensor) for leaf in tree_leaves(batch)):
        raise InputError(
            "a batch is (inputs, targets): tensors with one row per record, and nothing beside them. A "
            "number or an array would go to every record, whatever records it was computed from: make it a "
            "tensor, leave it out, or give what depends on no record to the model itself"
        )


def take(batch: Batch, rows: slice | Tensor) -> Batch:
    """Some rows of a batch."""
    if isinstance(rows, slice) and _is_pair(batch) and rows == slice(0, len(batch[0])):
        return batch[0].detach(), batch[1].detach()
    return each_tensor(batch, lambda x: x[rows].detach())


def joined(first: Batch, second: Batch) -> Batch:
    """The rows of one batch, and then those of another of the same form."""
    if _is_pair(first) and _is_pair(second):
        (a, b), (c, d) = first, second
        return torch.cat([a, c.to(a.device)]), torch.cat([b, d.to(b.device)])
    both: Batch = tree_map(
        lambda a, b: torch.cat([a, b.to(a.device)]) if isinstance(a, Tensor) else a, first, second
    )
    return both


def copied(batch: Batch) -> Batch:
    """The same rows in memory of their own."""
    return each_tensor(batch, lambda x: x.detach().clone())


def call(model: nn.Module, inputs: object) -> Any:
    """model(inputs): a tuple or list is several arguments, a dictionary is named ones."""
    torch.clear_autocast_cache()  # it would keep the weights of before the last step
    try:
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    except (Exception, *INTERRUPTS):
        raise
    except BaseException as error:
        raise _as_error("model", error) from error


def as_errors(loss: Losses) -> Losses:
    """The loss, with errors like any other for what is no Exception: a private record may be its cause."""

    @functools.wraps(loss, assigned=(), updated=())  # so that a refusal can name a part of it
    def of(outputs: object, targets: object) -> Tensor:
        try:
            return loss(outputs, targets)
        except (Exception, *INTERRUPTS):
            raise
        except BaseException as error:
            raise _as_error("loss", error) from error

    return of


def _as_error(what: str, error: BaseException) -> RuntimeError:
    return RuntimeError(f"the {what} raised {type(error).__name__}")


def placeholder_rows(batch: Batch, rows: int, *, seed: int = 0) -> Batch:
    """A batch of the same form that holds no data: numbers in [0, 1), or zeros and ones if they are whole."""
    only_tensors(batch)  # anything else would be taken over as it is
    generator = torch.Generator().manual_seed(seed)

    def one(x: Tensor) -> Tensor:
        values = torch.rand((rows, *x.shape[1:]), generator=generator)
        if x.is_floating_point():
            return values.to(x.dtype).to(x.device)
        values = (values < 0.5).to(x.dtype)
        if x.dim() > 1 and values.numel():
            values.flatten(1)[:, 0] = 1  # so that no row of a mask is empty
        elif rows > 1:
            values = (torch.arange(rows) % 2).to(x.dtype)
        return values.to(x.device)

    return each_tensor(batch, one)
