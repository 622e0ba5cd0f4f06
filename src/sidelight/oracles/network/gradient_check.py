"""Are gradients by layer and by torch.func those of each record? Compared on rows that are not private.

They are compared with those of each row alone, and with plain gradients of Σ w_i ℓ_i for random weights w_i,
which tells whether every row of a pass is credited to its own record. Both at the model's weights and at
perturbed ones, where a branch that begins with a gradient of zero has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError, SidelightError, first_line
from sidelight.oracles.network.batches import Batch, call, copied, row_count, take, tensors
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.layers import Rule, rule_for, stand_in_for
from sidelight.oracles.network.outside import (
    graph_leaves,
    refuse_untrained,
    used_outside_modules,
    used_outside_torch_func,
)
from sidelight.oracles.network.pieces import Piece, working
from sidelight.oracles.network.routes import (
    Capture,
    Gradients,
    Wiring,
    gradients_of,
    own_parameters,
    watched_modules,
)
from sidelight.oracles.network.trial import (
    FAILURES,
    ModelTrial,
    Route,
    from_seed,
    perturbed,
    quiet,
)
from sidelight.oracles.network.trial_rows import cycled, with_integers_beyond
from sidelight.oracles.network.written_out import by_vmap

__all__ = ["MIXED", "Alone", "each_alone", "no_losses", "right_wiring", "runs_by_layers", "vmap_is_right"]

MIXED = (
    "the loss of one record depends on the others of its batch, so its influence cannot be bounded. "
    "Normalize each record by itself (GroupNorm, LayerNorm), average tokens within each record (token_loss "
    "of sidelight.deep), and keep no statistics of batches"
)
Alone: TypeAlias = list[tuple[float, Gradients]]  # loss and gradient of some rows, each by itself
_ROWS_ALONE = 4


def each_alone(trial: ModelTrial) -> Alone:
    """Loss and gradient of some rows, each alone in a batch of one."""
    some = [take(trial.rows, slice(i, i + 1)) for i in range(min(_ROWS_ALONE, row_count(trial.rows)))]
    try:
        found = [_plain(trial, row) for row in some]
        leaves = [graph_leaves(trial.losses(row)) for row in some[:2]]
    except SidelightError:
        raise
    except Exception as error:
        raise AssumptionError(
            f"the model or the loss failed ({first_line(error)}) when it was tried on two rows, before "
            "anything was charged. They are public or, where there are no public ones, placeholders in the "
            "shape of the private records; if these do not fit, pass a few public rows, as example= or as "
            "validation="
        ) from error
    if not _finite(found):
        together = trial.one_a_row(trial.whole)
        if together is not None and bool(together.isfinite().all()):
            raise AssumptionError(MIXED)
        raise AssumptionError(
            "gradients are not finite on the two rows on which the model was tried. Without public records "
            "these are placeholders: pass a few public rows, as example= or as validation="
        )
    refuse_untrained(trial.model, trial.loss, leaves)
    return found


def _plain(trial: ModelTrial, row: Batch) -> tuple[float, Gradients]:
    with from_seed(trial.model):
        losses = trial.losses(row)
        if not isinstance(losses, Tensor) or losses.shape != (1,):
            raise AssumptionError(no_losses(losses))
        return float(losses.detach()), gradients_of(losses.sum(), trainable(trial.model))


def no_losses(losses: object) -> str:
    """What to pass, for a loss that gave something else than one number per record."""
    if losses is None or (isinstance(losses, Tensor) and losses.dim() == 0):
        given = "nothing" if losses is None else "one number for the whole batch"
        return (
            f"the loss must give one number per record; it gave {given}. `outputs.loss` of a transformers "
            "model is a mean over all tokens of a batch, which mixes its records: leave loss out, or pass "
            "next_token_loss, token_loss or label_loss of sidelight.deep"
        )
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    return (
        f"the loss must give one number per record; it gave shape {shape}. Use reduction='none', and average "
        "over each record's own positions, as token_loss of sidelight.deep does"
    )


def _finite(alone: Alone) -> bool:
    return all(bool(value.isfinite().all()) for _, gradients in alone for value in gradients.values())


# ---------------------------------------------------------------------------------------------------
# by layers


def right_wiring(trial: ModelTrial, alone: Alone | None) -> Wiring | str:
    """The wiring by which every row has the gradient that it has alone, or why there is none; None for
    `alone`: it has none that could be repeated."""
    reason = "its gradients cannot be told apart by layer"
    with quiet(trial.model):
        wirings = _wirings(trial)
        while True:
            try:
                if (wiring := next(wirings, None)) is None:
                    return reason
                if _used_outside(trial, wiring):
                    reason = "it uses a weight outside of the layer that holds it"
                elif alone is None or _same_as_alone(trial, wiring, alone):
                    return wiring
            except SidelightError as error:
                reason = str(error).split(". ")[0]
            except FAILURES:
                continue


def _used_outside(trial: ModelTrial, wiring: Wiring) -> bool:
    watched = watched_modules(trial.model, wiring)
    return used_outside_modules(trial.model, trial.loss, copied(trial.whole), watched, trial.count)


def _same_as_alone(trial: ModelTrial, wiring: Wiring, alone: Alone) -> bool:
    if not _same_gradients(trial, wiring, alone):
        return False
    with perturbed(trial.model):
        try:
            moved = [_plain(trial, take(trial.rows, slice(i, i + 1))) for i in range(len(alone))]
        except Exception:  # a variance may be negative there
            return True
        return not _finite(moved) or _same_gradients(trial, wiring, moved)


def _same_gradients(trial: ModelTrial, wiring: Wiring, alone: Alone) -> bool:
    """Whether every parameter's gradient for a row is that of the row alone."""
    pieces = _pieces(trial, wiring)
    for i, (_, gradients) in enumerate(alone[: trial.count]):
        only = torch.zeros(trial.count)
        only[i] = 1
        if not _adds_up_to(gradients, pieces, only):
            return False
    return True


def _pieces(trial: ModelTrial, wiring: Wiring) -> dict[Tensor, Piece]:
    found: dict[Tensor, Piece] = {}
    count = trial.count
    with Capture(trial.model, wiring, rows=count, count=count, receive=found.__setitem__) as capture:
        capture.backward(trial.losses(trial.whole))
    return found


def runs_by_layers(trial: ModelTrial, route: Route) -> bool:
    """Whether passes by layers succeed in the present mode, and credit each row to its record."""
    with contextlib.suppress(*FAILURES):
        found = None
        with perturbed(trial.model), contextlib.suppress(Exception):  # a variance may be negative there
            found = _credits_rows(trial, route)
        return bool(_credits_rows(trial, route) if found is None else found)
    return False


def _credits_rows(trial: ModelTrial, route: Route) -> bool | None:
    """Whether pieces, weighted at random, add up to the gradient of losses weighted alike; None if that is
    not finite."""
    model, count = trial.model, trial.count
    parameters = trainable(model)  # before a capture puts others in their places
    weights = torch.randn(count, generator=torch.Generator().manual_seed(count))
    capture = Capture(model, route.wiring, rows=count, count=count, receive=None)
    with from_seed(model), capture, route.branching():
        losses = trial.losses(trial.whole)
        plain = gradients_of((losses * weights.to(losses)).sum(), parameters)
    if not _finite([(0.0, plain)]):
        return None
    with from_seed(model), route.branching():
        pieces = _pieces(trial, route.wiring)
    for piece in pieces.values():
        piece.rows(0, 1)
    with from_seed(model), route.branching():
        if _used_outside(trial, route.wiring):
            return False
    return _adds_up_to(plain, pieces, weights)


def _adds_up_to(wanted: Gradients, pieces: dict[Tensor, Piece], weights: Tensor) -> bool:
    """Whether the weighted sums of pieces are these gradients."""
    longest = _longest(wanted)
    for parameter, expected in wanted.items():
        found = expected.new_zeros(expected.shape, dtype=working(parameter.dtype))
        if parameter in pieces:
            pieces[parameter].add_weighted(weights.to(found), found)
        if not _close(found, expected, longest):
            return False
    return True


def _longest(gradients: Gradients) -> float:
    """The largest norm of a parameter's gradient."""
    return max(float(g.detach().double().norm()) for g in gradients.values())


def _close(found: Tensor, expected: Tensor, longest: float) -> bool:
    """Equal to rounding, in proportion to the parameter's gradient or a little of the longest one."""
    tolerance = 0.02 if expected.dtype in (torch.float32, torch.float64) else 0.2
    off = float((found.double() - expected.double()).norm())
    return off <= tolerance * (float(expected.double().norm()) + 0.01 * longest)


def _wirings(trial: ModelTrial) -> Iterator[Wiring]:
    batched = _which_arguments(trial)
    plain = dict.fromkeys(filter(_starts_with_one, trial.model.modules()), 0)
    ranks = [{**found, **plain} for found in _ranks(trial)]
    for number, expanded in enumerate((*ranks, plain)):
        if expanded and expanded not in ranks[:number]:
            yield Wiring(batched, expanded)
    yield Wiring(batched)


def _bare(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that a module of a user holds itself, beside those of its layers."""
    known = rule_for(module) is not None or stand_in_for(module) is not None
    return [] if known else list(own_parameters(module).values())


def _starts_with_one(module: nn.Module) -> bool:
    return bool(own := _bare(module)) and all(p.dim() > 1 and p.shape[0] == 1 for p in own)


def _ranks(trial: ModelTrial) -> tuple[dict[nn.Module, int], dict[nn.Module, int]]:
    """The dimensions of what modules with bare parameters take, and of what they give."""
    taken, given = dict[nn.Module, int](), dict[nn.Module, int]()

    def note(module: nn.Module, args: object, kwargs: object, output: object) -> None:
        for found, tree in ((taken, (args, kwargs)), (given, output)):
            found[module] = max((x.dim() for x in tensors(tree)), default=0)

    users = [m for m in trial.model.modules() if _bare(m) and not type(m).__module__.startswith("torch.nn")]
    _call_with_hooks(trial.model, take(trial.whole, slice(0, 2)), users, note)
    for found in (taken, given):
        for module in [m for m, rank in found.items() if any(p.dim() >= rank for p in _bare(m))]:
            del found[module]
    return taken, given


def _call_with_hooks(
    model: nn.Module, rows: Batch, modules: Sequence[nn.Module], note: Callable[..., None]
) -> None:
    handles = [m.register_forward_hook(note, with_kwargs=True) for m in modules]
    try:
        with torch.no_grad():
            call(model, copied(rows)[0])
    finally:
        for handle in handles:
            handle.remove()


def _which_arguments(trial: ModelTrial) -> dict[nn.Module, tuple[int, ...]]:
    """For every watched module: how many rows of each of its arguments belong to one record; 0 for none."""
    rows = cycled(trial.whole, 2)
    one, two = _shapes(trial.model, take(rows, slice(0, 1))), _shapes(trial.model, rows)
    found: dict[nn.Module, tuple[int, ...]] = {}
    for module, calls in two.items():
        if len(calls) != len(one.get(module, [])):
            raise AssumptionError(f"{type(module).__name__} runs more often for two records than for one")
        counts = {_rows_of_one(a, b, rule_for(module)) for a, b in zip(one[module], calls, strict=True)}
        if len(counts) > 1:
            raise AssumptionError(f"{type(module).__name__} is called both with and without records")
        found[module] = counts.pop()
    return found


def _rows_of_one(one: list[torch.Size], two: list[torch.Size], rule: Rule | None) -> tuple[int, ...]:
    counts = []
    for a, b in zip(one, two, strict=True):
        if a == b:
            counts.append(0)
        elif b[1:] == a[1:] and b[0] == 2 * a[0]:
            counts.append(a[0])
        elif a[1:2] == (1,) and b == (a[0], 2, *a[2:]):
            counts.append(-1)
        else:
            raise AssumptionError("a layer's input must have the records in its first or second dimension")
    if min(counts, default=0) < 0 and (len(counts) > 1 or rule is None):
        raise AssumptionError("a layer without a rule must have the records in its first dimension")
    return tuple(counts)


def _shapes(model: nn.Module, rows: Batch) -> dict[nn.Module, list[list[torch.Size]]]:
    shapes: dict[nn.Module, list[list[torch.Size]]] = {}

    def note(module: nn.Module, args: object, kwargs: object, output: object) -> None:
        shapes.setdefault(module, []).append([x.shape for x in tensors((args, kwargs))])

    watched = [m for m in model.modules() if own_parameters(m) and stand_in_for(m) is None]
    _call_with_hooks(model, rows, watched, note)
    return shapes


# ---------------------------------------------------------------------------------------------------
# by torch.func


def vmap_is_right(trial: ModelTrial, some: Batch, alone: Alone) -> bool:
    """Whether torch.func gives the gradients of these rows alone, and reads no row beyond its own."""
    with quiet(trial.model), contextlib.suppress(*FAILURES):
        with from_seed(trial.model):
            found = by_vmap(trial.model, trial.loss, copied(some), row_count(some), randomness="same")
        each = [(i, gradients, _longest(gradients)) for i, (_, gradients) in enumerate(alone)]
        right = all(
            _close(found[p][i], gradients[p].reshape(-1), longest)
            for i, gradients, longest in each[: row_count(some)]
            for p in gradients
        )
        return (
            right
            and not used_outside_torch_func(trial.model, trial.loss, copied(some))
            and all(_fails_alike(trial, rows) for rows in with_integers_beyond(some))
        )
    return False


def _fails_alike(trial: ModelTrial, rows: Batch) -> bool:
    """Whether torch.func fails where a row alone does: by an index it may read another record."""
    try:
        by_vmap(trial.model, trial.loss, copied(rows), row_count(rows))
    except FAILURES:
        return True
    try:
        _plain(trial, take(rows, slice(0, 1)))
    except FAILURES:
        return False
    return True
