"""A trial: the passes it makes, and the rows that go through the model.

Rows are public ones or placeholders, as many as a pass has, and changed in every way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from sidelight.errors import AssumptionError
from sidelight.oracles.network.batches import Batch, row_count, take
from sidelight.oracles.network.capture import Wiring, tensors

__all__ = [
    "FAILURES", "SEED", "Gradients", "Route", "chosen", "cycled", "devices", "distinct_rows", "eagerly",
    "far_away", "fresh", "only_row", "quiet", "told_compiling", "untouched", "variations",
]  # fmt: skip

Gradients = dict[nn.Parameter, Tensor]
SEED = 0x5EED_0F_7121A1  # which no model sets by itself: that is noticed by the state it leads to
FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssumptionError)
_MOST = 8  # different rows in a trial


# ---------------------------------------------------------------------------------------------------
# passes


@dataclass(frozen=True)
class Route:
    """How per-record gradients are taken, and why by no faster way.

    static: the model decides by values of records (`if mask.all()`), but not while it is being compiled;
        so it is told that it is (`told_compiling`).
    """

    kind: Literal["layers", "vmap", "loop"]
    wiring: Wiring = field(default_factory=Wiring)
    static: bool = False
    reason: str = ""


@contextlib.contextmanager
def told_compiling(static: bool) -> Iterator[None]:
    """Libraries ask torch.compiler.is_compiling() before they branch on values; answer yes.

    PyTorch's own one_hot does not ask: it looks for the largest class, so another stands in for it.
    """
    flag = "_is_compiling_flag"
    before, one_hot = getattr(torch.compiler, flag, False), functional.one_hot
    if static:
        setattr(torch.compiler, flag, True)
        functional.one_hot = _one_hot
    try:
        yield
    finally:
        if static:
            setattr(torch.compiler, flag, before)
            functional.one_hot = one_hot


_ONE_HOT = functional.one_hot


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """The same where the number of classes is given. A class that does not exist fails here too."""
    if num_classes < 1:
        return _ONE_HOT(tensor, num_classes)
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
    return zeros.scatter(-1, tensor[..., None], 1)


def fresh(batch: Batch) -> Batch:
    """A copy, since a model may write into its input."""
    return take(batch, torch.arange(row_count(batch), device=tensors(batch)[0].device))


def devices(model: nn.Module) -> list[torch.device]:
    device = next(model.parameters()).device
    return [device] if device.type == "cuda" else []


def untouched(model: nn.Module) -> Any:
    """Whatever is drawn inside has no influence on what is drawn afterwards."""
    return torch.random.fork_rng(devices=devices(model))


def eagerly() -> Any:
    """Compiled modules and functions run as they are written, so that their layers can be watched."""
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """No dropout, no autocast; random states and modes are left as they were."""
    device = next(model.parameters()).device
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with (
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            torch.backends.cudnn.flags(enabled=False),  # its RNNs have no gradient in this mode
        ):
            yield
    finally:
        for module, training in modes:
            module.training = training


# ---------------------------------------------------------------------------------------------------
# rows


def distinct_rows(batch: Batch) -> Batch | None:
    """Up to eight rows, first those whose targets differ; None if no two have different inputs."""
    count = row_count(batch)
    if count < 2:
        return None
    keys = [_bytes(batch[0], i) for i in range(count)]
    if len(set(keys)) < 2:
        return None
    order: list[int] = []
    for wanted in (_bytes(batch[1], i) for i in range(count)), iter(keys):
        seen: set[bytes] = set()
        for i, key in enumerate(wanted):
            if key not in seen and i not in order:
                order.append(i)
            seen.add(key)
    picked = order[:_MOST]
    if len({keys[i] for i in picked}) < 2:
        picked[-1] = next(i for i in range(count) if keys[i] != keys[picked[0]])
    device = next(leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)).device
    return take(batch, torch.tensor(picked, device=device))


def _bytes(tree: Any, row: int) -> bytes:
    leaves = (leaf[row].detach().cpu() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return b"".join(leaf.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for leaf in leaves)


def cycled(rows: Batch, count: int) -> Batch:
    """`count` rows: these, over and over."""
    first = next(leaf for leaf in tree_leaves(rows) if isinstance(leaf, Tensor))
    return take(rows, torch.arange(count, device=first.device) % row_count(rows))


def only_row(rows: Batch, row: int, count: int) -> Batch:
    """`count` rows, all of them this one."""
    return cycled(take(rows, slice(row, row + 1)), count)


def variations(whole: Batch, *, far: bool) -> Iterator[tuple[Tensor, Batch]]:
    """Batches in which some rows are others, near or also far: which ones, and the batch."""
    count = row_count(whole)
    halves = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.5
    for changed in (torch.arange(count) % 2 == 0, torch.arange(count) % 2 == 1, halves):
        beyond = (_scaled(1e10), _scaled(1e30)) if far else ()
        for change in (_another, _other_target, _scaled(-1e3), *beyond, _not_a_number):
            yield changed, chosen(change(whole), whole, changed)


def far_away(whole: Batch) -> Batch:
    """The batch in which half of the rows are others, and far from any data."""
    changed = torch.rand(row_count(whole), generator=torch.Generator().manual_seed(1)) < 0.5
    return chosen(_scaled(1e10)(_another(whole)), whole, changed)


def chosen(first: Batch, second: Batch, rows: Tensor) -> Batch:
    """Rows of the first batch where the mask says so, and of the second elsewhere."""

    def pick(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor):
            return a
        return torch.where(rows.to(a.device).view(-1, *[1] * (a.dim() - 1)), a, b.to(a.device))

    mixed: Batch = tree_map(pick, first, second)
    return mixed


def _rolled(tree: Any, by: int) -> Any:
    return tree_map(lambda leaf: leaf.roll(by, 0) if isinstance(leaf, Tensor) else leaf, tree)


def _another(whole: Batch) -> Batch:
    return _rolled(whole[0], 1), _rolled(whole[1], 1)


def _other_target(whole: Batch) -> Batch:
    return whole[0], _rolled(whole[1], 1)


def _floats(tree: Any, factor: float) -> Any:
    def one(leaf: Any) -> Any:
        return leaf * factor if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return tree_map(one, tree)


def _scaled(factor: float) -> Callable[[Batch], Batch]:
    return lambda whole: (_floats(whole[0], factor), _floats(whole[1], factor))


def _not_a_number(whole: Batch) -> Batch:
    return _floats(whole[0], torch.nan), _floats(whole[1], torch.nan)
