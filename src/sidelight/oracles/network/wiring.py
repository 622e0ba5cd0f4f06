"""Gradients by layer, by torch.func and of each record alone: are they the same?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.oracles.network.alone import Losses, by_vmap
from sidelight.oracles.network.batches import Batch, call, row_count, seed_torch, take
from sidelight.oracles.network.capture import Capture, Wiring, differentiate, own_parameters, tensors, working
from sidelight.oracles.network.layers import rule_for, stand_in_for
from sidelight.oracles.network.pieces import Piece
from sidelight.oracles.network.trial import (
    FAILURES,
    SEED,
    Gradients,
    Route,
    cycled,
    devices,
    fresh,
    quiet,
    told_compiling,
)

__all__ = ["right_wiring", "runs_by_layers", "vmap_is_right"]


def vmap_is_right(model: nn.Module, loss: Losses, some: Batch, alone: list[tuple[float, Gradients]]) -> bool:
    with contextlib.suppress(*FAILURES):
        found = by_vmap(model, loss, fresh(some), row_count(some))
        return all(
            _close(found[p][i], gradients[p].reshape(-1), gradients)
            for i, (_, gradients) in enumerate(alone[: row_count(some)])
            for p in gradients
        )
    return False


def right_wiring(
    model: nn.Module, loss: Losses, whole: Batch, alone: list[tuple[float, Gradients]]
) -> Wiring | None:
    with quiet(model):
        for wiring in _wirings(model, whole):
            with contextlib.suppress(*FAILURES):
                if not _differences(model, loss, whole, wiring, alone):
                    return wiring
    return None


def runs_by_layers(model: nn.Module, loss: Losses, whole: Batch, route: Route) -> bool:
    """Whether a pass by layers succeeds in the present mode, and adds up to the gradient of the batch."""
    pieces: dict[Tensor, Piece] = {}
    parameters = [p for p in model.parameters() if p.requires_grad]
    count = row_count(whole)
    with contextlib.suppress(*FAILURES), told_compiling(route.static):
        with _seeded_pass(model, route, count, None):
            losses = loss(call(model, fresh(whole)[0]), whole[1])
            plain = (
                differentiate(losses.sum(), parameters) if losses.requires_grad else [None] * len(parameters)
            )
        with _seeded_pass(model, route, count, pieces.__setitem__) as capture:
            capture.backward(loss(call(model, fresh(whole)[0]), whole[1]))
        wanted = {p: torch.zeros_like(p) if g is None else g for p, g in zip(parameters, plain, strict=True)}
        for parameter, expected in wanted.items():
            found = expected.new_zeros(expected.shape, dtype=working(parameter.dtype))
            if parameter in pieces:
                pieces[parameter].rows(0, 1)
                pieces[parameter].add_weighted(torch.ones(count, device=found.device), found)
            if not _close(found, expected, wanted):
                return False
        return True
    return False


@contextlib.contextmanager
def _seeded_pass(
    model: nn.Module, route: Route, count: int, receive: Callable[[Tensor, Piece], None] | None
) -> Iterator[Capture]:
    with torch.random.fork_rng(devices=devices(model)):
        seed_torch(SEED)
        with Capture(model, route.wiring, rows=count, count=count, receive=receive) as capture:
            yield capture


def _wirings(model: nn.Module, whole: Batch) -> Iterator[Wiring]:
    with contextlib.suppress(*FAILURES):
        batched = _which_arguments(model, whole)
        containers = frozenset(m for m in model.modules() if _starts_with_one(m))
        if containers:
            yield Wiring(batched, containers)
        yield Wiring(batched)


def _starts_with_one(module: nn.Module) -> bool:
    own = own_parameters(module)
    if not own or rule_for(module) is not None or stand_in_for(module) is not None:
        return False
    return all(p.dim() > 1 and p.shape[0] == 1 for p in own.values())


def _which_arguments(model: nn.Module, whole: Batch) -> dict[nn.Module, tuple[int, ...]]:
    """For every watched module: how many rows of each of its arguments belong to one record; 0 for none."""
    rows = cycled(whole, 2)
    one, two = _shapes(model, take(rows, slice(0, 1))), _shapes(model, rows)
    found: dict[nn.Module, tuple[int, ...]] = {}
    for module, calls in two.items():
        if len(calls) != len(one.get(module, [])):
            raise AssumptionError(f"{type(module).__name__} runs more often for two records than for one")
        counts = {_rows_of_one(a, b) for a, b in zip(one[module], calls, strict=True)}
        if len(counts) > 1:
            raise AssumptionError(f"{type(module).__name__} is called both with and without records")
        found[module] = counts.pop()
    return found


def _rows_of_one(one: list[torch.Size], two: list[torch.Size]) -> tuple[int, ...]:
    counts = []
    for a, b in zip(one, two, strict=True):
        if a != b and (b[1:] != a[1:] or b[0] != 2 * a[0]):
            raise AssumptionError("a layer's input must have the records in its first dimension")
        counts.append(a[0] if a != b else 0)
    return tuple(counts)


def _shapes(model: nn.Module, rows: Batch) -> dict[nn.Module, list[list[torch.Size]]]:
    shapes: dict[nn.Module, list[list[torch.Size]]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shapes.setdefault(module, []).append([x.shape for x in tensors((args, kwargs))])

    watched = [m for m in model.modules() if own_parameters(m) and stand_in_for(m) is None]
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in watched]
    try:
        with torch.no_grad():
            call(model, fresh(rows)[0])
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _differences(
    model: nn.Module, loss: Losses, whole: Batch, wiring: Wiring, alone: list[tuple[float, Gradients]]
) -> bool:
    """Whether some parameter's gradient for a row depends on how it was taken."""
    pieces: dict[Tensor, Piece] = {}
    count = row_count(whole)
    with Capture(model, wiring, rows=count, count=count, receive=pieces.__setitem__) as capture:
        capture.backward(loss(call(model, fresh(whole)[0]), whole[1]))
    for i, (_, gradients) in enumerate(alone[:count]):
        for parameter, expected in gradients.items():
            found = expected.new_zeros(expected.shape, dtype=working(parameter.dtype))
            if parameter in pieces:
                picked = torch.zeros(count, device=found.device)
                picked[i] = 1
                pieces[parameter].add_weighted(picked, found)
            if not _close(found, expected, gradients):
                return True
    return False


def _close(found: Tensor, expected: Tensor, gradients: Gradients) -> bool:
    """Equal to rounding, in proportion to the parameter's gradient or a little of the whole."""
    tolerance = 0.02 if expected.dtype in (torch.float32, torch.float64) else 0.2
    scale = max(float(g.detach().double().norm()) for g in gradients.values())
    off = float((found.double() - expected.double()).norm())
    return off <= tolerance * (float(expected.double().norm()) + 0.01 * scale)
