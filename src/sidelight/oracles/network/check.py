"""Before the first private step: is every record's gradient what we think it is?

A few trial rows (public ones, or placeholders of the same form) go through the model. No private record takes
part, so a refusal tells nothing. What is established:

1. *No record depends on another.* Losses in a batch are those of each record alone; in the mode of training,
   with its random numbers, they stay the same, bit for bit, when the other rows get other values, other
   targets, values a thousand times as large, or NaN.
2. *Nothing is decided by records, drawn for several at once, or kept.* Every operation of a pass is watched
   (observe.py), and everything that the model holds is compared (state.py). With that, each later pass of the
   same shape performs the same operations, and 1 holds for it too.
3. *Per-record gradients are right.* They are compared with those of each row alone, parameter by parameter.

A model that fails 1, or that keeps records, is refused. One that fails the rest takes a slower route, where
it holds by construction. The routes: `layers` (book-keeping), `vmap` (torch.func), `loop` (a call a record).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError, SidelightError
from sidelight.oracles.network.alone import Losses, by_vmap
from sidelight.oracles.network.batches import Batch, call, row_count, take
from sidelight.oracles.network.capture import Capture, Wiring, differentiate, own_parameters, tensors, working
from sidelight.oracles.network.layers import problem, rule_for
from sidelight.oracles.network.observe import OperationWatch, observed
from sidelight.oracles.network.pieces import Piece
from sidelight.oracles.network.spectral import settled_norms
from sidelight.oracles.network.state import CHANGED, ModelState, silent
from sidelight.oracles.network.tap import stand_in_for
from sidelight.oracles.network.trial import cycled, variations

__all__ = ["Losses", "Route", "eagerly", "examine", "refuse", "told_compiling", "untouched"]

Gradients = dict[nn.Parameter, Tensor]
_ALONE = 4  # rows whose gradients are compared with those of the row alone
_SEED = 5
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssumptionError)

_MIXED = (
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


@dataclass(frozen=True)
class Route:
    """How per-record gradients are taken, and why by no faster way.

    static: the model decides by values of records (`if mask.all()`), but not while it is being compiled;
        so it is told that it is.
    """

    kind: Literal["layers", "vmap", "loop"]
    wiring: Wiring = field(default_factory=Wiring)
    static: bool = False
    reason: str = ""


def refuse(model: nn.Module) -> None:
    """Raise if a layer, in its present mode, cannot have a gradient for each record."""
    for name, module in model.named_modules():
        reason = problem(module)
        if reason is not None:
            raise AssumptionError(f"{type(module).__name__} {name!r} {reason}.")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter.is_floating_point():
            raise AssumptionError(
                f"the parameter {name!r} has numbers of type {parameter.dtype}; only real ones can be "
                "clipped. Hold the real and the imaginary part as two parameters (torch.view_as_complex)"
            )


def examine(model: nn.Module, loss: Losses, rows: Batch, records: int) -> Route:
    """The route for passes of this many records, or an AssumptionError; no row of `rows` is private."""
    whole = cycled(rows, records)
    with untouched(model), eagerly(), settled_norms(model), silent():
        before = ModelState(model, loss)
        with _quiet(model):
            alone = _tried(model, loss, rows)
        _seeded(model, loss, whole)  # what a model makes once, at its first call, is made now
        state = ModelState(model, loss, thorough=True)
        try:
            with _quiet(model):
                _same_as_alone(model, loss, rows, whole, alone)
            _keeps_nothing(model, loss, whole)
            route = _route(model, loss, rows, whole, alone)
            with _quiet(model) if route.kind == "loop" else contextlib.nullcontext():
                _neighbours(model, loss, whole)
        finally:
            if state.changed():
                before.restore()
                raise AssumptionError(CHANGED)
    return route


# ---------------------------------------------------------------------------------------------------
# 1. records do not depend on each other


def _tried(model: nn.Module, loss: Losses, rows: Batch) -> list[tuple[float, Gradients]]:
    """Loss and gradient of some rows, each alone in a batch of one."""
    some = range(min(_ALONE, row_count(rows)))
    try:
        found = [_plain(model, loss, take(rows, slice(i, i + 1))) for i in some]
    except SidelightError:
        raise
    except Exception as error:
        told = str(error).strip().split("\n")[0]  # of rows that are not private
        raise AssumptionError(
            f"the model or the loss failed ({type(error).__name__}: {told}) on the rows with which "
            "its layers are checked. Those are public ones, or placeholders where there are none: then pass "
            "a few public ones, as example= or as validation="
        ) from error
    if not all(value.isfinite().all() for _, gradients in found for value in gradients.values()):
        raise AssumptionError(
            "gradients are not finite on the rows with which the model's layers are checked. If there are no "
            "public ones, those are placeholders: pass a few, as example= or as validation="
        )
    return found


def _plain(model: nn.Module, loss: Losses, row: Batch) -> tuple[float, Gradients]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses = loss(call(model, _fresh(row)[0]), row[1])
    if not isinstance(losses, Tensor) or losses.shape != (1,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise AssumptionError(
            f"the loss must give one number a record; it gave shape {shape} for one record. "
            "Use reduction='none', and average over positions yourself"
        )
    grads = differentiate(losses.sum(), parameters) if losses.requires_grad else [None] * len(parameters)
    found = zip(parameters, grads, strict=True)
    return float(losses.detach()), {p: torch.zeros_like(p) if g is None else g for p, g in found}


def _same_as_alone(
    model: nn.Module, loss: Losses, rows: Batch, whole: Batch, alone: list[tuple[float, Gradients]]
) -> None:
    """In batches of several sizes every row has the loss that it has alone."""
    wanted = torch.tensor([value for value, _ in alone], dtype=torch.float64)
    sizes = {len(alone), min(3, len(alone))}
    batches = [take(rows, slice(0, size)) for size in sizes]
    for batch in (*batches, whole):
        losses = _losses(model, loss, batch)
        some = min(len(wanted), row_count(batch))
        if losses is None or not torch.allclose(losses[:some], wanted[:some], *_tolerance(model)):
            _complain(model, loss, batch)
            raise AssumptionError(_MIXED)


def _tolerance(model: nn.Module) -> tuple[float, float]:
    """Relative and absolute, for a loss in two batches, whose kernels may add up in another order."""
    short = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    return (0.1, 1e-2) if short else (1e-3, 1e-6)


def _complain(model: nn.Module, loss: Losses, batch: Batch) -> None:
    """Let a layer that knows what is wrong with its input say so."""
    rows = row_count(batch)
    try:
        with Capture(model, Wiring(), rows=rows, count=rows, receive=lambda *_: None):
            loss(call(model, _fresh(batch)[0]), batch[1])
    except SidelightError:
        raise
    except Exception:
        return


def _losses(model: nn.Module, loss: Losses, batch: Batch) -> Tensor | None:
    """One loss a row (float64, on the CPU); None if that is not what comes."""
    with torch.enable_grad():
        losses = loss(call(model, _fresh(batch)[0]), batch[1])
    if not isinstance(losses, Tensor) or losses.shape != (row_count(batch),):
        return None
    return losses.detach().double().cpu()


def _neighbours(model: nn.Module, loss: Losses, whole: Batch) -> None:
    """In the present mode, from equal random states: change every other row, and look at those in between."""
    count = row_count(whole)
    if count < 2:
        return
    before = _seeded(model, loss, whole)
    if before is None:
        raise AssumptionError(_MIXED)
    for changed, batch in variations(whole):
        try:
            after = _seeded(model, loss, batch)
        except Exception as error:
            if isinstance(error, SidelightError):
                raise
            continue  # the model refuses such a row, whoever its neighbours are
        kept = ~changed
        if after is None or not torch.allclose(after[kept], before[kept], rtol=1e-6, atol=0, equal_nan=True):
            raise AssumptionError(_MIXED)


def _seeded(model: nn.Module, loss: Losses, batch: Batch) -> Tensor | None:
    with torch.random.fork_rng(devices=_devices(model)):
        torch.manual_seed(_SEED)
        return _losses(model, loss, batch)


# ---------------------------------------------------------------------------------------------------
# 2. nothing is decided by records, drawn for several at once, or kept


def _steady(model: nn.Module, loss: Losses, rows: Batch, whole: Batch, route: Route) -> Route | str:
    """The route by layers, if what it saw in the trial holds for every record; else why not."""
    seen = _watched(model, loss, whole, route)
    if seen.decisions:
        route = replace(route, static=True)
        with contextlib.suppress(*_FAILURES):
            seen = _watched(model, loss, whole, route)
    if seen.decisions:
        return f"it decides by values of records ({seen.decisions[0]})"
    many, few = row_count(whole), 3 if row_count(whole) != 3 else 2
    other = _watched(model, loss, cycled(rows, few), route)
    if not _in_proportion(seen.draws, other.draws, many, few):
        return "it draws random numbers for several records at once"
    if not _same_names(seen.moves, other.moves) or seen.moves != other.moves:
        return "values of records say what goes where among the rows of several"
    if not _same_names(seen.operands, other.operands):
        return "what it does depends on the number of records"
    if not _in_proportion(seen.operands[: seen.forward], other.operands[: other.forward], many, few):
        raise AssumptionError(_MIXED)
    if not _in_proportion(seen.operands, other.operands, many, few):
        return "gradients of several records meet on the way back"
    return route


def _same_names(seen: list[tuple[str, int]], other: list[tuple[str, int]]) -> bool:
    return [name for name, _ in seen] == [name for name, _ in other]


def _in_proportion(seen: list[tuple[str, int]], other: list[tuple[str, int]], many: int, few: int) -> bool:
    """Whether two passes have the same operations, and numbers in proportion to their records."""
    pairs = zip(seen, other, strict=False)
    return _same_names(seen, other) and all(
        name != "randperm" and a * few == b * many for (name, a), (_, b) in pairs
    )


def _watched(model: nn.Module, loss: Losses, batch: Batch, route: Route | None = None) -> OperationWatch:
    """A pass in the present mode, with every operation seen; with a route, by layers and backward too."""
    batch, rows = _fresh(batch), row_count(batch)
    with torch.random.fork_rng(devices=_devices(model)), torch.enable_grad():
        torch.manual_seed(_SEED)
        if route is None:
            with observed(batch) as observer:
                loss(call(model, batch[0]), batch[1])
            return observer
        with (
            told_compiling(route.static),
            observed(batch) as observer,
            Capture(model, route.wiring, rows=rows, count=rows, receive=None) as capture,
        ):
            losses = loss(call(model, batch[0]), batch[1])
            observer.forward = len(observer.operands)
            capture.backward(losses)
    return observer


def _keeps_nothing(model: nn.Module, loss: Losses, batch: Batch) -> None:
    """Raise if the model holds on to what it saw, or draws from another generator than PyTorch's."""
    outside = _outside()
    observer = _watched(model, loss, batch)
    if _outside() != outside or observer.own_generator:
        raise AssumptionError(_OTHER_RANDOMNESS)
    if observer.writes or observer.kept():
        raise AssumptionError(_KEPT)


def _outside() -> Any:
    """The states of generators that are not PyTorch's."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), rest


@contextlib.contextmanager
def told_compiling(static: bool) -> Iterator[None]:
    """Libraries ask torch.compiler.is_compiling() before they branch on values; answer yes."""
    flag = "_is_compiling_flag"
    before = getattr(torch.compiler, flag, False)
    if static:
        setattr(torch.compiler, flag, True)
    try:
        yield
    finally:
        if static:
            setattr(torch.compiler, flag, before)


# ---------------------------------------------------------------------------------------------------
# 3. gradients are those of each record alone


def _route(
    model: nn.Module, loss: Losses, rows: Batch, whole: Batch, alone: list[tuple[float, Gradients]]
) -> Route:
    """The fastest route that is right."""
    reason = "its gradients cannot be told apart by layer"
    wiring = _right_wiring(model, loss, whole, alone)
    if wiring is not None:
        found = _steady(model, loss, rows, whole, Route("layers", wiring))
        if not isinstance(found, str) and _runs(model, loss, whole, found):
            return found
        reason = found if isinstance(found, str) else reason
    some = take(whole, slice(0, min(len(alone), row_count(whole))))
    with _quiet(model):
        right = _vmap_is_right(model, loss, some, alone)
    if right:  # and possible in the present mode, with its dropout?
        with contextlib.suppress(*_FAILURES):
            by_vmap(model, loss, _fresh(some), row_count(some))
            return Route("vmap", reason=reason)
    return Route("loop", reason=reason)


def _vmap_is_right(model: nn.Module, loss: Losses, some: Batch, alone: list[tuple[float, Gradients]]) -> bool:
    with contextlib.suppress(*_FAILURES):
        found = by_vmap(model, loss, _fresh(some), row_count(some))
        return all(
            _close(found[p][i], gradients[p].reshape(-1), gradients)
            for i, (_, gradients) in enumerate(alone[: row_count(some)])
            for p in gradients
        )
    return False


def _right_wiring(
    model: nn.Module, loss: Losses, whole: Batch, alone: list[tuple[float, Gradients]]
) -> Wiring | None:
    with _quiet(model):
        for wiring in _wirings(model, whole):
            with contextlib.suppress(*_FAILURES):
                if not _differences(model, loss, whole, wiring, alone):
                    return wiring
    return None


def _runs(model: nn.Module, loss: Losses, whole: Batch, route: Route) -> bool:
    """Whether a pass by layers succeeds in the present mode, and adds up to the gradient of the batch."""
    pieces: dict[Tensor, Piece] = {}
    parameters = [p for p in model.parameters() if p.requires_grad]
    count = row_count(whole)
    with contextlib.suppress(*_FAILURES), told_compiling(route.static):
        with _seeded_pass(model, route, count, None):
            losses = loss(call(model, _fresh(whole)[0]), whole[1])
            plain = (
                differentiate(losses.sum(), parameters) if losses.requires_grad else [None] * len(parameters)
            )
        with _seeded_pass(model, route, count, pieces.__setitem__) as capture:
            capture.backward(loss(call(model, _fresh(whole)[0]), whole[1]))
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
    with torch.random.fork_rng(devices=_devices(model)):
        torch.manual_seed(_SEED)
        with Capture(model, route.wiring, rows=count, count=count, receive=receive) as capture:
            yield capture


def _wirings(model: nn.Module, whole: Batch) -> Iterator[Wiring]:
    with contextlib.suppress(*_FAILURES):
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
            call(model, _fresh(rows)[0])
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
        capture.backward(loss(call(model, _fresh(whole)[0]), whole[1]))
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


# ---------------------------------------------------------------------------------------------------
# how trial passes are made


def _fresh(batch: Batch) -> Batch:
    """A copy, since a model may write into its input."""
    return take(batch, torch.arange(row_count(batch), device=tensors(batch)[0].device))


def _devices(model: nn.Module) -> list[torch.device]:
    device = next(model.parameters()).device
    return [device] if device.type == "cuda" else []


def untouched(model: nn.Module) -> Any:
    """Whatever is drawn inside has no influence on what is drawn afterwards."""
    return torch.random.fork_rng(devices=_devices(model))


def eagerly() -> Any:
    """Compiled modules and functions run as they are written, so that their layers can be watched."""
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
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
