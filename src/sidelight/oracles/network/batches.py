"""Batches of tensors: a tensor, or a tuple, list or dictionary of them, with one row a record in front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sidelight.errors import INTERRUPTS, InputError

__all__ = [
    "Batch", "as_errors", "call", "copied", "invented", "only_tensors", "owned", "row_count", "seed_torch",
    "take", "two_different",
]  # fmt: skip

Batch: TypeAlias = tuple[Any, Any]  # inputs, targets


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


def row_count(batch: Batch) -> int:
    """How many rows a batch has; every tensor in it must agree."""
    lengths = {leaf.shape[0] if leaf.dim() else -1 for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)}
    if len(lengths) != 1 or -1 in lengths:
        raise InputError("a batch is (inputs, targets): tensors with one row a record, equally many in each")
    return int(lengths.pop())


def only_tensors(batch: Any) -> None:
    """Raise if a batch holds anything but tensors and None.

    A number beside them (how many tokens a batch has) would go to every record, and one record changes it.
    That there is one is a matter of the batch's structure, and what it is stays untold.
    """
    if not all(leaf is None or isinstance(leaf, Tensor) for leaf in tree_leaves(batch)):
        raise InputError(
            "a batch is (inputs, targets): tensors with one row a record, and nothing beside them. A number "
            "or an array would go to every record, whatever records it was computed from: make it a tensor, "
            "leave it out, or give what depends on no record to the model itself"
        )


def take(batch: Batch, rows: slice | Tensor) -> Batch:
    """Some rows of a batch."""
    picked: Batch = tree_map(lambda leaf: leaf[rows].detach() if isinstance(leaf, Tensor) else leaf, batch)
    return picked


def copied(batch: Batch) -> Batch:
    """The same rows in memory of their own."""
    clone: Batch = tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, batch)
    return clone


def owned(tree: Any, device: torch.device) -> Any:
    """Tensors that user code has made, plain, in memory of their own: it may use a buffer again.

    Raises InputError for what is no tensor, and for tensors without a plain row of numbers: sparse, nested,
    quantized, or of another device than the processor or `device`.
    """

    def one(leaf: Any) -> Tensor:
        plain = isinstance(leaf, Tensor) and leaf.layout is torch.strided and not leaf.is_nested
        if not plain or leaf.is_quantized or leaf.device.type not in ("cpu", device.type):
            raise InputError("a batch is made of plain tensors, with one row a record")
        own: Tensor = leaf.detach().resolve_conj().resolve_neg()
        return own.clone(memory_format=torch.contiguous_format)

    with torch._C.DisableTorchFunctionSubclass():  # a subclass may do anything at every touch
        return one(tree) if isinstance(tree, Tensor) else tree_map(one, tree)


def call(model: nn.Module, inputs: Any) -> Any:
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


def as_errors(loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """The loss, with errors like any other for what is no Exception: a private record may be its cause."""

    def of(outputs: Any, targets: Any) -> Tensor:
        try:
            return loss(outputs, targets)
        except (Exception, *INTERRUPTS):
            raise
        except BaseException as error:
            raise _as_error("loss", error) from error

    return of


def _as_error(what: str, error: BaseException) -> RuntimeError:
    return RuntimeError(f"the {what} raised {type(error).__name__}")


def two_different(batch: Batch) -> Batch | None:
    """The first row, and the first whose inputs are not the same; None if there is none."""
    leaves = [leaf for leaf in tree_leaves(batch[0]) if isinstance(leaf, Tensor)]
    for i in range(1, row_count(batch)):
        if not all(torch.equal(leaf[0], leaf[i]) for leaf in leaves):
            return take(batch, torch.tensor([0, i], device=leaves[0].device))
    return None


def invented(batch: Batch, rows: int, *, seed: int = 0) -> Batch:
    """A batch of the same form that holds no data: numbers in [0, 1), or zeros and ones if they are whole."""
    only_tensors(batch)  # anything else would be taken over as it is
    generator = torch.Generator().manual_seed(seed)

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        values = torch.rand((rows, *leaf.shape[1:]), generator=generator)
        if leaf.is_floating_point():
            return values.to(leaf.dtype).to(leaf.device)
        values = (values < 0.5).to(leaf.dtype)
        if leaf.dim() > 1 and values.numel():
            values.flatten(1)[:, 0] = 1  # so that no row of a mask is empty
        elif rows > 1:
            values = (torch.arange(rows) % 2).to(leaf.dtype)
        return values.to(leaf.device)

    made: Batch = tree_map(one, batch)
    return made
