"""Before the first private step: is every record's gradient what we think it is?

Two invented rows go through the model, alone by plain automatic differentiation and together by book-keeping.
If the gradients agree, row by row and parameter by parameter, then no layer mixes records, every use of every
parameter was seen, and every rule fits its layer. If not, the model is refused by name of the parameter. No
private record takes part, so a refusal tells nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError, SidelightError
from sidelight.oracles.batches import Batch, call, take
from sidelight.oracles.capture import Capture, Wiring, differentiate, own_parameters, tensors, working
from sidelight.oracles.layers import problem, rule_for
from sidelight.oracles.pieces import Piece
from sidelight.oracles.tap import stand_in_for

__all__ = ["Losses", "examine", "keeps_apart", "refuse", "untouched"]

Losses = Callable[[Any, Any], Tensor]
Gradients = dict[Tensor, Tensor]


def refuse(model: nn.Module) -> None:
    """Raise if a layer, in its present mode, cannot have a gradient for each record."""
    for name, module in model.named_modules():
        reason = problem(module)
        if reason is not None:
            raise AssumptionError(f"{type(module).__name__} {name!r} {reason}.")


def examine(model: nn.Module, loss: Losses, rows: Batch) -> Wiring:
    """How to watch this model; `rows` are two rows that are not private."""
    with _quiet(model):
        try:
            alone = [_plain(model, loss, take(rows, slice(i, i + 1))) for i in range(2)]
            batched = _which_arguments(model, rows)
        except SidelightError:
            raise
        except Exception as error:
            told = str(error).strip().split("\n")[0]  # of rows that are not private
            raise AssumptionError(
                f"the model or the loss failed ({type(error).__name__}: {told}) on the two rows with which "
                "its layers are checked. Those are public ones, or invented where there are none: then pass "
                "a few public ones, as example= or as validation="
            ) from error
        if not all(value.isfinite().all() for gradients in alone for value in gradients.values()):
            raise AssumptionError(
                "gradients are not finite on the two rows with which the model's layers are checked. If "
                "there are no public ones, those are invented: pass a few, as example= or as validation="
            )
        containers = frozenset(m for m in model.modules() if _starts_with_one(m))
        if containers:
            expanded = Wiring(batched, containers)
            with contextlib.suppress(RuntimeError):  # a parameter handed out once a row may not fit its use
                if not _differences(model, loss, rows, expanded, alone):
                    return expanded
        different = _differences(model, loss, rows, Wiring(batched), alone)
    if different:
        raise AssumptionError(_message(model, different))
    return Wiring(batched)


def keeps_apart(model: nn.Module, loss: Losses, rows: Batch) -> None:
    """In its present mode, with dropout: raise if a record's loss depends on another, or a buffer on it."""
    buffers = [(buffer, buffer.clone(), buffer._version) for buffer in model.buffers()]
    device = tensors(rows)[0].device
    try:
        pairs = [
            [_first_loss(model, loss, take(rows, torch.tensor(some, device=device)), seed) for some in both]
            for seed in range(3)
            for both in (([0, 1], [0, 0]), ([1, 0], [1, 1]))
        ]
        changed = any(buffer._version != version for buffer, _, version in buffers)
    finally:
        for buffer, before, version in buffers:
            if buffer._version != version:
                buffer.copy_(before)
    if changed:
        raise AssumptionError(
            "the model changes a buffer when it sees records, and would carry private ones out of the "
            "mechanism. Stop it from doing so: track_running_stats=False, or .eval() on that module"
        )
    if not all(math.isclose(*pair, rel_tol=1e-3, abs_tol=1e-9) for pair in pairs):
        raise AssumptionError(
            "the loss of one record depends on the others of its batch, so its influence cannot be bounded. "
            "Normalise each record by itself (GroupNorm, LayerNorm), and keep no statistics of batches"
        )


def _first_loss(model: nn.Module, loss: Losses, rows: Batch, seed: int) -> float:
    """The loss of the first record, with random numbers from a seed."""
    with untouched(model), torch.no_grad():
        torch.manual_seed(seed)
        return float(loss(call(model, rows[0]), rows[1])[0])


def _starts_with_one(module: nn.Module) -> bool:
    own = own_parameters(module)
    if not own or rule_for(module) is not None or stand_in_for(module) is not None:
        return False
    return all(p.dim() > 1 and p.shape[0] == 1 for p in own.values())


def _plain(model: nn.Module, loss: Losses, row: Batch) -> Gradients:
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses = loss(call(model, row[0]), row[1])
    if losses.shape != (1,):
        raise AssumptionError(
            f"the loss must give one number a record; it gave shape {tuple(losses.shape)} for one record. "
            "Use reduction='none', and average over positions yourself"
        )
    if not losses.requires_grad:
        return {p: torch.zeros_like(p) for p in parameters}
    grads = differentiate(losses.sum(), parameters)
    return {p: torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)}


def _which_arguments(model: nn.Module, rows: Batch) -> dict[nn.Module, tuple[bool, ...]]:
    """For every watched module: which of its arguments grow with the number of rows."""
    one, two = _shapes(model, take(rows, slice(0, 1))), _shapes(model, rows)
    found: dict[nn.Module, tuple[bool, ...]] = {}
    for module, calls in two.items():
        if len(calls) != len(one.get(module, [])):
            raise AssumptionError(f"{type(module).__name__} runs more often for two records than for one")
        flags = {_flags(a, b) for a, b in zip(one[module], calls, strict=True)}
        if len(flags) > 1:
            raise AssumptionError(f"{type(module).__name__} is called both with and without records")
        found[module] = flags.pop()
    return found


def _flags(one: list[torch.Size], two: list[torch.Size]) -> tuple[bool, ...]:
    flags = []
    for a, b in zip(one, two, strict=True):
        if a != b and (b[1:] != a[1:] or b[0] != 2 * a[0]):
            raise AssumptionError("a layer's input must have the records in its first dimension")
        flags.append(a != b)
    return tuple(flags)


def _shapes(model: nn.Module, rows: Batch) -> dict[nn.Module, list[list[torch.Size]]]:
    shapes: dict[nn.Module, list[list[torch.Size]]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shapes.setdefault(module, []).append([x.shape for x in tensors((args, kwargs))])

    watched = [m for m in model.modules() if own_parameters(m) and stand_in_for(m) is None]
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in watched]
    try:
        with torch.no_grad():
            call(model, rows[0])
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _differences(
    model: nn.Module, loss: Losses, rows: Batch, wiring: Wiring, alone: list[Gradients]
) -> list[Tensor]:
    """Parameters whose gradient for a row depends on how it was taken."""
    pieces: dict[Tensor, Piece] = {}
    with Capture(model, wiring, rows=2, count=2, receive=pieces.__setitem__) as capture:
        capture.backward(loss(call(model, rows[0]), rows[1]))
    different = []
    for parameter in alone[0]:
        tolerance = 0.02 if parameter.dtype in (torch.float32, torch.float64) else 0.2
        for i, gradients in enumerate(alone):
            expected = gradients[parameter].to(working(parameter.dtype))
            found = expected.new_zeros(expected.shape)
            if parameter in pieces:
                pieces[parameter].add_weighted(torch.eye(2, device=found.device)[i], found)
            scale = max(float(g.detach().norm()) for g in gradients.values())
            if float((found - expected).norm()) > tolerance * (float(expected.norm()) + 0.01 * scale):
                different.append(parameter)
    return different


def _message(model: nn.Module, different: list[Tensor]) -> str:
    names = sorted(name for name, p in model.named_parameters() if any(p is q for q in different))
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return (
        f"one record's gradient cannot be told from its batch for {shown or 'some parameters'}. Expected: "
        "records in the first dimension of every layer's input, none of them mixed, and each parameter used "
        "by the forward of the module that owns it. Call modules instead of using their weights "
        "(head(x), not F.linear(x, head.weight)), or register a rule in sidelight.oracles.layers."
    )


def untouched(model: nn.Module) -> Any:
    """Whatever is drawn inside has no influence on what is drawn afterwards."""
    device = next(model.parameters()).device
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextlib.contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """No dropout, no autocast; random states, modes and buffers are left as they were."""
    device = next(model.parameters()).device
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with (
            untouched(model),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            torch.backends.cudnn.flags(enabled=False),  # its RNNs have no gradient in this mode
        ):
            yield
    finally:
        for module, training in modes:
            module.training = training
