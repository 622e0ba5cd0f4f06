"""Are gradients by layer and by torch.func those of each record? Compared on rows that are not private.

At the model's weights they are compared with those of two rows alone. In the present mode and at perturbed
weights, where a branch that begins with a gradient of zero has one, they are compared with plain gradients of
Σ w_i ℓ_i for random weights w_i, which tells whether every row of a pass is credited to its own record.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError, SidelightError, first_line
from sidelight.oracles.network.batches import Batch, call, copied, row_count, take, tensors
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.layers import rule_for, stand_in_for
from sidelight.oracles.network.outside import (
    graph_leaves,
    refuse_untrained,
    used_outside_modules,
    used_outside_torch_func,
)
from sidelight.oracles.network.pieces import Piece, exact_length, working
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

MIXED = (
    "the loss of one record depends on the others of its batch, so its influence cannot be bounded. "
    "Normalize each record by itself (GroupNorm, LayerNorm), average tokens within each record (token_loss "
    "of sidelight.deep), and keep no statistics of batches"
)
NOT_BY_LAYER = "its gradients cannot be told apart by layer"
_LONE_ROWS, _COMPARED_ROWS = 2, 3


class RowAlone(NamedTuple):
    """Loss and gradient of a row in a batch of one, and the leaves of its graph."""

    loss: float
    gradients: Gradients
    leaves: list[Tensor]


Alone: TypeAlias = list[RowAlone]


def each_alone(trial: ModelTrial) -> Alone:
    """Some rows, each by itself."""
    some = [take(trial.rows, slice(i, i + 1)) for i in range(min(_LONE_ROWS, row_count(trial.rows)))]
    try:
        found = [_row_alone(trial, row) for row in some]
    except SidelightError:
        raise
    except Exception as error:
        raise AssumptionError(
            f"the model or the loss failed ({first_line(error)}) when it was tried on two rows, before "
            "anything was charged. They are public or, where there are no public ones, placeholders in the "
            "shape of the private records; if these do not fit, pass a few public rows, as example= or as "
            "validation="
        ) from error
    if not all(_finite(one.gradients) for one in found):
        together = trial.one_a_row(trial.whole)
        if together is not None and bool(together.isfinite().all()):
            raise AssumptionError(MIXED)
        raise AssumptionError(
            "gradients are not finite on the two rows on which the model was tried. Without public records "
            "these are placeholders: pass a few public rows, as example= or as validation="
        )
    refuse_untrained(trial.model, trial.loss, [one.leaves for one in found])
    return found


def _row_alone(trial: ModelTrial, row: Batch) -> RowAlone:
    with from_seed(trial.model):
        losses = trial.losses(row)
        if not isinstance(losses, Tensor) or losses.shape != (1,):
            raise AssumptionError(no_losses(losses))
        leaves = graph_leaves(losses)
        return RowAlone(float(losses.detach()), gradients_of(losses.sum(), trainable(trial.model)), leaves)


def no_losses(losses: object) -> str:
    """What to pass, for a loss that gave something else than one number per record."""
    if losses is None or (isinstance(losses, Tensor) and losses.dim() == 0):
        given = "nothing" if losses is None else "one number for the whole batch"
        return (
            f"the loss must give one number per record; it gave {given}. Use reduction='none' in the loss. "
            "(`outputs.loss` of a transformers model is a mean over all tokens of a batch, which mixes its "
            "records: leave loss out, or pass next_token_loss, token_loss or label_loss of sidelight.deep)"
        )
    shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    return (
        f"the loss must give one number per record; it gave shape {shape}. Use reduction='none', and average "
        "over each record's own positions, as token_loss of sidelight.deep does"
    )


def _finite(gradients: Gradients) -> bool:
    return all(bool(value.isfinite().all()) for value in gradients.values())


# ---------------------------------------------------------------------------------------------------
# by layers


def wrong_gradients(trial: ModelTrial, wiring: Wiring, alone: Alone | None) -> str:
    """Why a wiring does not give every row the gradient that it has alone; empty if it does.

    alone: None for a model whose rows alone draw other random numbers each time.
    """
    try:
        watched = watched_modules(trial.model, wiring)
        few = copied(cycled(trial.whole, _COMPARED_ROWS))
        with from_seed(trial.model):
            if used_outside_modules(trial.model, trial.loss, few, watched, _COMPARED_ROWS):
                return "it uses a weight outside of the layer that holds it"
        with quiet(trial.model):
            if wiring.expanded and not _same_losses(trial, wiring):
                return "it uses bare parameters in ways that are not by record"
            return "" if alone is None or _same_gradients(trial, wiring, alone) else NOT_BY_LAYER
    except SidelightError as error:
        return str(error).split(". ")[0]
    except FAILURES:
        return NOT_BY_LAYER


def _same_losses(trial: ModelTrial, wiring: Wiring) -> bool:
    """Whether the model is the same function where it is given its bare parameters by row, at perturbed
    weights: what slices or averages them (`w[:, :1]`, `w.mean(0)`) may then take other numbers."""
    with perturbed(trial.model):
        plain, by_row = _both_losses(trial, wiring)
    if plain is None:  # a variance may be negative there
        plain, by_row = _both_losses(trial, wiring)
    if plain is None or by_row is None:
        return plain is by_row
    short = any(p.dtype in (torch.float16, torch.bfloat16) for p in trainable(trial.model))
    tolerance = 0.1 if short else 1e-4
    return torch.allclose(by_row, plain, tolerance, 0.1 * tolerance * float(plain.abs().max()))


def _both_losses(trial: ModelTrial, wiring: Wiring) -> tuple[Tensor | None, Tensor | None]:
    """Losses of the model as it is, and with its bare parameters handed out by row; None if it fails."""
    plain, count = trial.attempted(trial.whole), trial.count
    with Capture(trial.model, wiring, rows=count, count=count, receive=None):
        return plain, trial.attempted(trial.whole)


def _same_gradients(trial: ModelTrial, wiring: Wiring, alone: Alone) -> bool:
    """Whether every parameter's gradient for a row is that of the row alone."""
    pieces = _pieces(trial, wiring)
    for i, row in enumerate(alone[: trial.count]):
        only = torch.zeros(trial.count)
        only[i] = 1
        if not _adds_up_to(row.gradients, pieces, only):
            return False
    return True


def _pieces(trial: ModelTrial, wiring: Wiring) -> dict[Tensor, Piece]:
    found: dict[Tensor, Piece] = {}
    count = trial.count
    with Capture(trial.model, wiring, rows=count, count=count, receive=found.__setitem__) as capture:
        capture.backward(trial.losses(trial.whole))
    return found


def credits_rows(trial: ModelTrial, route: Route) -> bool:
    """Whether passes by layers succeed in the present mode, and credit each row to its record: pieces,
    weighted at random, add up to the gradient of losses weighted alike."""
    with contextlib.suppress(*FAILURES):
        found = None
        with perturbed(trial.model), contextlib.suppress(Exception):  # a variance may be negative there
            found = _credits_rows(trial, route)
        return bool(_credits_rows(trial, route) if found is None else found)
    return False


def _credits_rows(trial: ModelTrial, route: Route) -> bool | None:
    """The same at the present weights; None if gradients are not finite."""
    model, count = trial.model, trial.count
    parameters = trainable(model)  # before a capture puts others in their places
    weights = torch.randn(count, generator=torch.Generator().manual_seed(count))
    capture = Capture(model, route.wiring, rows=count, count=count, receive=None)
    with from_seed(model), capture, route.branching():
        losses = trial.losses(trial.whole)
        plain = gradients_of((losses * weights.to(losses)).sum(), parameters)
    if not _finite(plain):
        return None
    with from_seed(model), route.branching():
        pieces = _pieces(trial, route.wiring)
    for piece in pieces.values():
        piece.rows(0, 1)
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
    return max(map(exact_length, gradients.values()))


def _close(found: Tensor, expected: Tensor, longest: float) -> bool:
    """Equal to rounding, in proportion to the parameter's gradient or a little of the longest one."""
    tolerance = 0.02 if expected.dtype in (torch.float32, torch.float64) else 0.2
    return exact_length(found - expected) <= tolerance * (exact_length(expected) + 0.01 * longest)


def possible_wirings(trial: ModelTrial) -> tuple[list[Wiring], str]:
    """Ways in which parameters may be handed out by row, and why there is none."""
    model = trial.model
    try:
        with quiet(model):
            one, few = (
                _calls(model, take(trial.whole, slice(0, 1))),
                _calls(model, cycled(trial.whole, _COMPARED_ROWS)),
            )
        batched = {module: _rows_of_one(module, one.get(module, []), few[module]) for module in few}
    except SidelightError as error:
        return [], str(error).split(". ")[0]
    except FAILURES:
        return [], NOT_BY_LAYER
    plain = dict.fromkeys(filter(_starts_with_one, model.modules()), 0)
    every = [{**_ranks(few, which), **plain} for which in (0, 1)] + [plain]
    distinct = [one for number, one in enumerate(every) if one and one not in every[:number]]
    return [*(Wiring(batched, expanded) for expanded in distinct), Wiring(batched)], NOT_BY_LAYER


def _bare(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that a module of a user holds itself, beside those of its layers."""
    known = rule_for(module) is not None or stand_in_for(module) is not None
    return [] if known else list(own_parameters(module).values())


def _starts_with_one(module: nn.Module) -> bool:
    return bool(own := _bare(module)) and all(p.dim() > 1 and p.shape[0] == 1 for p in own)


class _Call(NamedTuple):
    """The shapes of what a module takes and gives in one call."""

    taken: list[torch.Size]
    given: list[torch.Size]


def _ranks(calls: dict[nn.Module, list[_Call]], which: int) -> dict[nn.Module, int]:
    """The dimensions of what modules with bare parameters take (0), or of what they give (1)."""
    found = dict[nn.Module, int]()
    for module, several in calls.items():
        rank = max((len(shape) for shape in several[-1][which]), default=0)
        bare = [] if type(module).__module__.startswith("torch.nn") else _bare(module)
        if bare and all(p.dim() < rank for p in bare):
            found[module] = rank
    return found


def _calls(model: nn.Module, rows: Batch) -> dict[nn.Module, list[_Call]]:
    """The calls of the modules that hold parameters."""
    found: dict[nn.Module, list[_Call]] = {}

    def note(module: nn.Module, args: object, kwargs: object, output: object) -> None:
        shapes = _Call([x.shape for x in tensors((args, kwargs))], [x.shape for x in tensors(output)])
        found.setdefault(module, []).append(shapes)

    with from_seed(model), torch.no_grad(), contextlib.ExitStack() as stack:
        for module in model.modules():
            if own_parameters(module) and stand_in_for(module) is None:
                stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        call(model, copied(rows)[0])
    return found


def _rows_of_one(module: nn.Module, one: list[_Call], few: list[_Call]) -> tuple[int, ...]:
    """How many rows of each of a module's arguments belong to one record: 0 for none, and below 0 if they are
    in the second dimension."""
    name, rule = type(module).__name__, rule_for(module)
    if len(one) != len(few):
        raise AssumptionError(f"{name} runs more often for several records than for one")
    counts = {tuple(map(_row_count, a.taken, b.taken)) for a, b in zip(one, few, strict=True)}
    if len(counts) > 1:
        raise AssumptionError(f"{name} is called both with and without records")
    found = counts.pop()
    if min(found, default=0) < 0 and (len(found) > 1 or rule is None):
        raise AssumptionError("a layer without a rule must have the records in its first dimension")
    return found


def _row_count(one: torch.Size, few: torch.Size) -> int:
    if one == few:
        return 0
    if few[1:] == one[1:] and few[0] == _COMPARED_ROWS * one[0]:
        return one[0]
    if one[1:2] == (1,) and few == (one[0], _COMPARED_ROWS, *one[2:]):
        return -1
    raise AssumptionError("a layer's input must have the records in its first or second dimension")


# ---------------------------------------------------------------------------------------------------
# by torch.func


def vmap_is_right(trial: ModelTrial, some: Batch, alone: Alone) -> bool:
    """Whether torch.func gives the gradients of these rows alone, and reads no row beyond its own."""
    with quiet(trial.model), contextlib.suppress(*FAILURES):
        with from_seed(trial.model):
            found = by_vmap(trial.model, trial.loss, copied(some), row_count(some), randomness="same")
        each = [(i, one.gradients, _longest(one.gradients)) for i, one in enumerate(alone)]
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
        _row_alone(trial, take(rows, slice(0, 1)))
    except FAILURES:
        return False
    return True
