"""Nothing is decided by records, joined, drawn for several at once, or kept: shown by watching passes."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sidelight.errors import AssumptionError
from sidelight.oracles.network.alone import Losses, by_loop, by_vmap
from sidelight.oracles.network.batches import Batch, call, row_count, seed_torch, take
from sidelight.oracles.network.capture import Capture, differentiate
from sidelight.oracles.network.observe import OperationWatch, observed
from sidelight.oracles.network.provenance import EVERYTHING, Memories, living
from sidelight.oracles.network.state import ModelState, restored
from sidelight.oracles.network.trial import (
    FAILURES,
    SEED,
    Route,
    cycled,
    devices,
    far_away,
    fresh,
    told_compiling,
)

__all__ = ["MIXED", "apart_by_vmap", "keeps_nothing", "steady"]

MIXED = (
    "the loss of one record depends on the others of its batch, so its influence cannot be bounded. "
    "Normalise each record by itself (GroupNorm, LayerNorm), and keep no statistics of batches"
)
_KEPT = (
    "the model or the loss keeps tensors that it computed from records (in an attribute, a list, a closure), "
    "and would carry private ones out of the mechanism. Keep nothing during forward"
)
_OTHER_RANDOMNESS = (
    "the model or the loss draws random numbers that PyTorch's generator does not give (Python's random, "
    "NumPy, a generator of its own), so they cannot be kept apart by record. Draw them with torch.rand and "
    "its like, without generator="
)
_RESEEDED = "it sets the state of PyTorch's generator, so random numbers go by places in the batch"


def steady(
    model: nn.Module, loss: Losses, rows: Batch, whole: Batch, route: Route, before: ModelState
) -> Route | str:
    """The route by layers, if what it saw in the trial holds for every record; else why not.

    Private passes start from the state `before`, so these do as well.
    """

    alive = living()

    def watched(batch: Batch, seed: int = SEED) -> OperationWatch:
        with restored(before):
            observer = _watched(model, loss, batch, route, alive, seed)
            if observer.writes or observer.kept():
                raise AssumptionError(_KEPT)
            return observer

    before.restore()
    seen = watched(whole)
    if seen.decisions:
        route = replace(route, static=True)
        with contextlib.suppress(*FAILURES):
            seen = watched(whole)
    if seen.decisions:
        return f"it decides by values ({seen.decisions[0]})"
    many, few = row_count(whole), 3 if row_count(whole) != 3 else 2
    other = watched(cycled(rows, few))
    if not _in_proportion(seen.draws, other.draws, many, few):
        return "it draws random numbers for several records at once"
    if not _same_names(seen.operands, other.operands):
        return "what it does depends on the number of records"
    if not _in_proportion(seen.operands[: seen.forward], other.operands[: other.forward], many, few):
        raise AssumptionError(MIXED)
    if not _in_proportion(seen.operands, other.operands, many, few):
        return "gradients of several records meet on the way back"
    joins = [name for one in (seen, other) for name in one.joins]
    if joins:
        return f"it is not known to keep records apart ({joins[0]})"
    if seen.reseeded or other.reseeded:
        return _RESEEDED
    with contextlib.suppress(*FAILURES):  # a model may refuse such rows
        if watched(far_away(whole)).trace != seen.trace:
            return "values of records take a way that cannot be watched"
    other = watched(whole, SEED + 1)
    if other.reseeded:
        return _RESEEDED
    if other.trace != seen.trace:
        return "random numbers take a way that cannot be watched"
    return route


def _same_names(seen: list[tuple[str, int]], other: list[tuple[str, int]]) -> bool:
    return [name for name, _ in seen] == [name for name, _ in other]


def _in_proportion(seen: list[tuple[str, int]], other: list[tuple[str, int]], many: int, few: int) -> bool:
    """Whether two passes have the same operations, and numbers in proportion to their records."""
    pairs = zip(seen, other, strict=False)
    return _same_names(seen, other) and all(
        name != "randperm" and a * few == b * many for (name, a), (_, b) in pairs
    )


def _watched(
    model: nn.Module,
    loss: Losses,
    batch: Batch,
    route: Route | None,
    alive: Memories,
    seed: int,
) -> OperationWatch:
    """A pass forward and backward in the present mode, with every operation seen; plain without a route."""
    batch = fresh(batch)
    with torch.random.fork_rng(devices=devices(model)), torch.enable_grad():
        seed_torch(seed)
        with told_compiling(route is not None and route.static), observed(batch, alive) as observer:
            _pass(model, loss, batch, route, observer)
    return observer


def _pass(
    model: nn.Module, loss: Losses, batch: Batch, route: Route | None, observer: OperationWatch
) -> None:
    """What a route does with a batch, but for the gradients, of which nothing is left."""
    rows = row_count(batch)
    if route is None:
        losses = loss(call(model, batch[0]), batch[1])
        if losses.requires_grad:
            differentiate(losses.sum(), [p for p in model.parameters() if p.requires_grad])
    elif route.kind == "layers":
        watch = observer.rows_of
        with Capture(model, route.wiring, rows=rows, count=rows, receive=None, watch=watch) as capture:
            losses = loss(call(model, batch[0]), batch[1])
            observer.forward = len(observer.operands)
            capture.backward(losses)
    elif route.kind == "vmap":
        by_vmap(model, loss, batch, rows)
    else:
        by_loop(model, loss, take(batch, slice(0, 2)), min(rows, 2))


def apart_by_vmap(model: nn.Module, loss: Losses, some: Batch) -> bool:
    """Whether torch.func keeps records and their random numbers apart.

    It makes one more dimension of them: an index beyond it reads another record, and a seed is one for all.
    """
    alive = living()
    seen, other = (keeps_nothing(model, loss, some, Route("vmap"), alive, seed) for seed in (SEED, SEED + 1))
    return seen.trace == other.trace and not (seen.joins or seen.decisions or seen.reseeded or other.reseeded)


def keeps_nothing(
    model: nn.Module,
    loss: Losses,
    batch: Batch,
    route: Route | None = None,
    alive: Memories | None = None,
    seed: int = SEED,
) -> OperationWatch:
    """Raise if the model holds on to what it saw, or draws from another generator than PyTorch's.

    Whether a tensor comes from nowhere (`joins` of the answer) is noted only if `alive` says what was there.
    """
    outside = _outside()
    observer = _watched(model, loss, batch, route, EVERYTHING if alive is None else alive, seed)
    if _outside() != outside or observer.own_generator:
        raise AssumptionError(_OTHER_RANDOMNESS)
    if observer.writes or observer.kept():
        raise AssumptionError(_KEPT)
    return observer


def _outside() -> Any:
    """The states of generators that are not PyTorch's."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), rest
