"""Before the first private step: is every record's gradient what we think it is?

A few trial rows (public ones, or placeholders of the same form) go through the model. No private record takes
part, so a refusal tells nothing. What is established:

1. *No record depends on another.* Losses in a batch are those of each record alone; in the mode of training,
   with its random numbers, they stay the same, bit for bit, when the other rows get other values, other
   targets, values far beyond any data, or NaN.
2. *Nothing is decided by records, joins them, is drawn for several at once, or kept.* Every operation of a
   pass is watched, forward and backward (steady.py, observe.py): it must be known to keep records apart.
   What is no record must be the same for each place in the batch or drawn for it (provenance.py), and rows of
   a layer must go record by record. Everything that the model can change is compared (state.py). With that,
   each later pass of the same shape performs the same operations, and 1 holds for it too, as long as model
   and loss are what they were.
3. *Per-record gradients are right.* They are compared with those of each row alone, parameter by parameter.

A model that fails 1, or that keeps records, is refused. One that fails the rest takes a slower route, where
it holds by construction. The routes: `layers` (book-keeping), `vmap` (torch.func), `loop` (a call a record).
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError, SidelightError
from sidelight.oracles.network.alone import Losses
from sidelight.oracles.network.batches import Batch, call, row_count, seed_torch, take
from sidelight.oracles.network.capture import Capture, Wiring, differentiate
from sidelight.oracles.network.layers import problem
from sidelight.oracles.network.spectral import settled_norms
from sidelight.oracles.network.state import ModelState, refuse_change, silent, without_gradients
from sidelight.oracles.network.steady import MIXED, apart_by_vmap, keeps_nothing, steady
from sidelight.oracles.network.trial import (
    FAILURES,
    SEED,
    Gradients,
    Route,
    cycled,
    devices,
    eagerly,
    fresh,
    only_row,
    quiet,
    told_compiling,
    untouched,
    variations,
)
from sidelight.oracles.network.wiring import right_wiring, runs_by_layers, vmap_is_right

__all__ = ["Losses", "Route", "eagerly", "examine", "refuse", "told_compiling", "untouched"]

_SCRIPTED = (
    "was compiled by torch.jit, which shows neither what it does nor what it keeps of a record. Use the "
    "module that it was made from"
)
_ALONE = 4  # rows whose gradients are compared with those of the row alone


def refuse(model: nn.Module) -> None:
    """Raise if a layer, in its present mode, cannot have a gradient for each record."""
    for name, module in model.named_modules():
        reason = _SCRIPTED if isinstance(module, torch.jit.ScriptModule) else problem(module)
        if reason is not None:
            raise AssumptionError(f"{type(module).__name__} {name!r} {reason}.")
    if torch.is_inference_mode_enabled():
        raise AssumptionError("there are no gradients under torch.inference_mode(). Train outside of it")
    for name, parameter in model.named_parameters():
        if parameter.is_inference():
            raise AssumptionError(
                f"the parameter {name!r} was made under torch.inference_mode() and cannot have a gradient. "
                "Make the model outside of it"
            )
        if parameter.requires_grad and not parameter.is_floating_point():
            raise AssumptionError(
                f"the parameter {name!r} has numbers of type {parameter.dtype}; only real ones can be "
                "clipped. Hold the real and the imaginary part as two parameters (torch.view_as_complex)"
            )
        if parameter.requires_grad and parameter._backward_hooks:
            raise AssumptionError(
                f"the parameter {name!r} has a hook (register_hook, wandb.watch), which would be called with "
                "gradients of private records, without noise. Remove it before private training"
            )


def examine(model: nn.Module, loss: Losses, rows: Batch, records: int, known: Route | None = None) -> Route:
    """The route for passes of this many records, or an AssumptionError; no row of `rows` is private.

    known: the route that was found before an attribute or a hook changed; it is kept if the same holds still.
    The model is left as it was, even by what it makes at its first call: how many forms of records are
    examined is not public.
    """
    whole = cycled(rows, records)
    with untouched(model), eagerly(), settled_norms(model), silent(), without_gradients(model):
        before = ModelState(model, loss, copies=True)
        try:
            if known is not None and _holds(model, loss, rows, whole, known, before):
                return known
            before.restore()
            return _found(model, loss, rows, whole, before)
        except SidelightError:
            raise
        except Exception as error:
            told = str(error).strip().split("\n")[0]  # of rows that are not private
            raise AssumptionError(
                f"the model or the loss cannot be examined ({type(error).__name__}: {told}), so nothing "
                "can be said about its gradients. Replace the operation that fails"
            ) from error
        finally:
            before.restore()


def _found(model: nn.Module, loss: Losses, rows: Batch, whole: Batch, before: ModelState) -> Route:
    with quiet(model):
        alone = _tried(model, loss, rows)
    # What a model makes once, at its first call, is made now.
    _seeded(model, loss, only_row(rows, 0, row_count(whole)))
    state = ModelState(model, loss, copies=True)
    _seeded(model, loss, only_row(rows, 1, row_count(whole)))
    refuse_change(state)  # also what follows from the last batch alone, since that was another
    try:
        with quiet(model):
            _same_as_alone(model, loss, rows, whole, alone)
        keeps_nothing(model, loss, whole)
        wiring = right_wiring(model, loss, whole, alone)
    finally:
        refuse_change(state)
    route = _route(model, loss, rows, whole, alone, wiring, before)
    with quiet(model) if route.kind == "loop" else contextlib.nullcontext():
        _neighbours(model, loss, whole, far=route.kind == "layers")
    return route


def _holds(
    model: nn.Module, loss: Losses, rows: Batch, whole: Batch, route: Route, before: ModelState
) -> bool:
    """Whether a route that was found under another state passes what shows it to be right."""
    with contextlib.suppress(Exception):  # whatever is wrong now, a full examination says it
        if route.kind == "layers":
            found = steady(model, loss, rows, whole, replace(route, static=False), before)
            return found == route and runs_by_layers(model, loss, whole, route)
        some = take(whole, slice(0, _ALONE))
        if route.kind == "vmap":
            return apart_by_vmap(model, loss, some)
        keeps_nothing(model, loss, some, route)
        return True
    return False


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
    losses = loss(call(model, fresh(row)[0]), row[1])
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
    """In batches of several sizes every row has the loss that it has alone, wherever it stands."""
    rest = [_losses(model, loss, take(rows, slice(i, i + 1))) for i in range(len(alone), row_count(rows))]
    if any(one is None for one in rest):
        raise AssumptionError(MIXED)
    values = [value for value, _ in alone] + [float(one) for one in rest if one is not None]
    sizes = {len(alone), min(3, len(alone))}
    batches = [take(rows, slice(0, size)) for size in sizes]
    for batch in (*batches, whole):
        losses = _losses(model, loss, batch)
        wanted = torch.tensor([values[i % len(values)] for i in range(row_count(batch))], dtype=torch.float64)
        if losses is None or not torch.allclose(losses, wanted, *_tolerance(model), equal_nan=True):
            _complain(model, loss, batch)
            raise AssumptionError(MIXED)


def _tolerance(model: nn.Module) -> tuple[float, float]:
    """Relative and absolute, for a loss in two batches, whose kernels may add up in another order."""
    short = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    return (0.1, 1e-2) if short else (1e-3, 1e-6)


def _complain(model: nn.Module, loss: Losses, batch: Batch) -> None:
    """Let a layer that knows what is wrong with its input say so."""
    rows = row_count(batch)
    try:
        with Capture(model, Wiring(), rows=rows, count=rows, receive=lambda *_: None):
            loss(call(model, fresh(batch)[0]), batch[1])
    except SidelightError:
        raise
    except Exception:
        return


def _losses(model: nn.Module, loss: Losses, batch: Batch) -> Tensor | None:
    """One loss a row (float64, on the CPU); None if that is not what comes."""
    with torch.enable_grad():
        losses = loss(call(model, fresh(batch)[0]), batch[1])
    if not isinstance(losses, Tensor) or losses.shape != (row_count(batch),):
        return None
    return losses.detach().double().cpu()


def _neighbours(model: nn.Module, loss: Losses, whole: Batch, *, far: bool) -> None:
    """In the present mode, from equal random states: change some rows, and look at those in between.

    far: also to numbers that no data holds. Where records are taken alone, a model may do with these what it
    likes.
    """
    count = row_count(whole)
    if count < 2:
        return
    before = _seeded(model, loss, whole)
    if before is None:
        raise AssumptionError(MIXED)
    for changed, batch in variations(whole, far=far):
        try:
            after = _seeded(model, loss, batch)
        except Exception as error:
            if isinstance(error, SidelightError):
                raise
            continue  # the model refuses such a row, whoever its neighbours are
        kept = ~changed
        if after is None or not torch.allclose(after[kept], before[kept], rtol=1e-6, atol=0, equal_nan=True):
            raise AssumptionError(MIXED)


def _seeded(model: nn.Module, loss: Losses, batch: Batch) -> Tensor | None:
    with torch.random.fork_rng(devices=devices(model)):
        seed_torch(SEED)
        return _losses(model, loss, batch)


# ---------------------------------------------------------------------------------------------------
# 2. and 3.: which route


def _route(
    model: nn.Module,
    loss: Losses,
    rows: Batch,
    whole: Batch,
    alone: list[tuple[float, Gradients]],
    wiring: Wiring | None,
    before: ModelState,
) -> Route:
    """The fastest route that is right."""
    reason = "its gradients cannot be told apart by layer"
    if wiring is not None:
        found = steady(model, loss, rows, whole, Route("layers", wiring), before)
        if not isinstance(found, str) and runs_by_layers(model, loss, whole, found):
            return found
        reason = found if isinstance(found, str) else reason
    some = take(whole, slice(0, min(len(alone), row_count(whole))))
    with quiet(model):
        right = vmap_is_right(model, loss, some, alone)
    if right:  # and possible in the present mode, with its dropout?
        with contextlib.suppress(*FAILURES):
            if apart_by_vmap(model, loss, some):
                return Route("vmap", reason=reason)
    keeps_nothing(model, loss, some, Route("loop"))
    return Route("loop", reason=reason)
