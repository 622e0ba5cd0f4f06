"""Before the first private step: is every record's gradient what we think it is?

A few trial rows (public ones, or placeholders of the same form) go through the model. No private record takes
part, so a refusal tells nothing. What is established:

1. *No record depends on another.* Losses in a batch are those of each record alone, wherever it stands; in
   the mode of training, with its random numbers, they stay the same when the other rows get other values,
   other targets, labels that the trial lacks, values far beyond any data, or NaN. So they do at perturbed
   weights, where gates that are closed at first are open.
2. *Nothing is decided by records, drawn for several at once, or kept.* Every operation of a pass is watched,
   forward and backward (observe.py), and everything that the model can change is compared (state.py). With
   that, each later pass of the same shape performs the same operations.
3. *Per-record gradients are right* (gradient_check.py).

A model that fails 1, or that keeps records, is refused. One that fails the rest takes a slower route, where
it holds by construction. The routes: `layers` (book-keeping), `vmap` (torch.func), `loop` (one call per
record). A model whose row alone gives other numbers each time (it draws whatever its mode) is compared with
itself from one seed only.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError, SidelightError, first_line
from sidelight.oracles.network.batches import Batch, Losses, call, copied, row_count, take
from sidelight.oracles.network.branches import Answers
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.gradient_check import (
    MIXED,
    NOT_BY_LAYER,
    Alone,
    credits_rows,
    each_alone,
    possible_wirings,
    vmap_is_right,
    wrong_gradients,
)
from sidelight.oracles.network.layers import problem, settled_norms
from sidelight.oracles.network.observe import ChangedDraws, OperationWatch, observed
from sidelight.oracles.network.routes import Capture, Wiring, gradients_of
from sidelight.oracles.network.silence import silent
from sidelight.oracles.network.state import CodeState, refuse_change, restored, without_gradients
from sidelight.oracles.network.trial import (
    FAILURES,
    ModelTrial,
    Route,
    eagerly,
    from_seed,
    perturbed,
    quiet,
    untouched,
    without_dropout,
)
from sidelight.oracles.network.trial_rows import (
    OTHER_ROWS,
    Change,
    changes,
    cycled,
    halves,
    mixed,
    only_row,
    with_integers_beyond,
)
from sidelight.oracles.network.written_out import by_loop, by_vmap

_LOG = logging.getLogger("sidelight")
_SCRIPTED = (
    "was compiled by torch.jit, which shows neither what it does nor what it keeps of a record. Use the "
    "module that it was made from"
)
_OTHER_RANDOMNESS = (
    "the model or the loss draws random numbers that PyTorch's generator does not give (Python's random, "
    "NumPy, a generator of its own), so they cannot be kept apart by record. Draw them with torch.rand and "
    "its like, without generator="
)
_RESEEDED = "the model sets the state of PyTorch's generator, so random numbers go by places in the batch"
_READABLE = {
    "_local_scalar_dense": "a number, as by .item() or if",
    "index": "rows that a mask selects",
    "index_put_": "rows that a mask selects",
    "nonzero": "rows that a mask selects",
}
EXAMINED_RECORDS = 8  # for larger passes, what was found with so many is looked for in passes of that size
COMPARED_RECORDS = 3  # of passes that are compared with those of the examination


def refuse(model: nn.Module) -> None:
    """Raise if a layer, in its present mode, cannot have a gradient for each record."""
    for name, module in model.named_modules():
        reason = _SCRIPTED if isinstance(module, torch.jit.ScriptModule) else problem(module)
        if reason is not None:
            raise AssumptionError(f"{type(module).__name__} {name!r} {reason}.")
    refuse_parameters(model, list(model.parameters()))


def refuse_parameters(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """The part of `refuse` that the state of a model (`CodeState.altered`) does not tell."""
    if torch.is_inference_mode_enabled():
        raise AssumptionError("there are no gradients under torch.inference_mode(). Train outside of it")
    if not any(p.is_inference() or (p.requires_grad and _unfit(p)) for p in parameters):
        return
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


def _unfit(parameter: nn.Parameter) -> bool:
    return bool(parameter._backward_hooks) or not parameter.is_floating_point()


def examine(model: nn.Module, loss: Losses, rows: Batch, records: int, known: Route | None = None) -> Route:
    """The route for passes of this many records, or an AssumptionError; no row of `rows` is private.

    known: the route that was found before an attribute or a hook changed, or for passes of another size; it
        is kept if the same holds here. Larger passes are examined with a few records first.
    The model is left as it was, even by what it makes at its first call: how many forms of records are
    examined is not public.
    """
    with silent() as printed:
        route = _examine(model, loss, rows, records, known)
    if printed.used:
        _LOG.warning("the model or the loss prints while it sees records; what it prints is dropped")
    return route


def _examine(model: nn.Module, loss: Losses, rows: Batch, records: int, known: Route | None) -> Route:
    whole = cycled(rows, records)
    with untouched(model), eagerly(), settled_norms(model), without_gradients(model):
        trial = ModelTrial(model, loss, rows, whole, CodeState(model, loss, copies=True))
        try:
            if known is None and records > 2 * EXAMINED_RECORDS:
                known = _examined(replace(trial, whole=cycled(rows, EXAMINED_RECORDS)))
                trial.before.restore()
            if known is not None and _holds(trial, known):
                return known
            trial.before.restore()
            return _examined(trial)
        except SidelightError:
            raise
        except Exception as error:
            raise AssumptionError(
                f"the model or the loss cannot be examined ({first_line(error)}), so nothing "
                "can be said about its gradients. Replace the operation that fails"
            ) from error
        finally:
            trial.before.restore()


def _examined(trial: ModelTrial) -> Route:
    model = trial.model
    with quiet(model):
        alone = each_alone(trial)
        repeats = not _draws(trial)
    # What a model makes once, at its first call, is made now.
    trial.seeded(only_row(trial.rows, 0, trial.count))
    state = CodeState(model, trial.loss, copies=True)
    try:
        if repeats:
            with quiet(model):
                _same_as_alone(trial, alone)
        seen = _own_draws(trial, trial.whole)
    finally:
        refuse_change(state)
    route = _fastest(trial, alone, repeats=repeats, decides=bool(seen.decisions))
    branching = replace(trial, route=route)
    _neighbors(branching, route)
    _same_places(branching)
    return route


def _draws(trial: ModelTrial) -> bool:
    """Whether a row draws random numbers, so that it has another loss each time."""
    with from_seed(trial.model), observed(row := copied(take(trial.rows, slice(0, 1)))) as watch:
        trial.loss(call(trial.model, row[0]), row[1])
    return bool(watch.draws)


def _fastest(trial: ModelTrial, alone: Alone, *, repeats: bool, decides: bool) -> Route:
    """The fastest route that is right. repeats: whether a row alone has the same loss each time; decides:
    whether a plain pass looked at values of records."""
    wirings, reason = possible_wirings(trial)
    for wiring in wirings:
        found = _by_layers(trial, wiring, alone if repeats else None, decides=decides)
        if isinstance(found, Route):
            return found
        reason = found if reason == NOT_BY_LAYER else reason
    some = take(trial.whole, slice(0, min(4, trial.count)))
    if vmap_is_right(trial, some, alone):  # and in the present mode, with its dropout?
        with contextlib.suppress(*FAILURES):
            if _apart_by_vmap(trial, some):
                return Route("vmap", reason=reason)
    _own_draws(trial, some, Route("loop"))
    return Route("loop", reason=reason)


def _by_layers(trial: ModelTrial, wiring: Wiring, alone: Alone | None, *, decides: bool) -> Route | str:
    """The route by layers with this wiring, or why not."""
    if reason := wrong_gradients(trial, wiring, alone):
        return reason
    found = _attempted(trial, wiring, decides=decides)
    if isinstance(found, str):
        return found
    if not _stays_in_place(replace(trial, route=found)):
        return "it may read another record by an index or a label that trial rows lack"
    return found if credits_rows(trial, found) else NOT_BY_LAYER


def _attempted(trial: ModelTrial, wiring: Wiring, *, decides: bool) -> Route | str:
    """The route by layers, or why not.

    To hand out bare parameters by record is an attempt. A model that cannot take them so (they are made into
    weights of a layer, or chosen by an index) is no fault: other routes are examined by themselves.
    """
    try:
        return _steady(trial, Route("layers", wiring, static=decides))
    except (AssumptionError, *FAILURES):
        if not wiring.expanded:
            raise
        return "it uses bare parameters in ways that are not by record"


def _holds(trial: ModelTrial, route: Route) -> bool:
    """Whether a route that was found under another state, or for fewer records, is right here as well.

    All that follows from the form and the number of records is looked at again: every operation is watched,
    nothing is kept, each row is credited to its record, and no row changes with others.
    """
    with contextlib.suppress(Exception):  # whatever is wrong now, a full examination says it
        trial.seeded(trial.whole)  # what a model makes at its first call of this size is made
        state = CodeState(trial.model, trial.loss, copies=True)
        branching = replace(trial, route=route)
        with _mode_of(trial, route):
            if not _same_places(branching):
                before = branching.seeded(trial.whole)
                _unmoved(branching, trial.whole, before, halves(trial.count)[2:], OTHER_ROWS)
        refuse_change(state)
        if route.kind == "layers":
            return _steady(trial, route) == route and credits_rows(trial, route)
        some = take(trial.whole, slice(0, 4))
        if route.kind == "vmap":
            return _apart_by_vmap(trial, some)
        _own_draws(trial, some, route)
        return True
    return False


# ---------------------------------------------------------------------------------------------------
# 1. records do not depend on each other


def _mode_of(trial: ModelTrial, route: Route) -> contextlib.AbstractContextManager[None]:
    """Without random numbers where each record draws its own, which depend on no other."""
    return quiet(trial.model) if route.kind == "loop" else contextlib.nullcontext()


def _same_as_alone(trial: ModelTrial, alone: Alone) -> None:
    """In batches of several sizes every row has the loss that it has alone, wherever it stands."""
    rows = trial.rows
    rest = [trial.one_a_row(take(rows, slice(i, i + 1))) for i in range(len(alone), row_count(rows))]
    if any(one is None for one in rest):
        raise AssumptionError(MIXED)
    values = [row.loss for row in alone] + [float(one) for one in rest if one is not None]
    few = take(rows, slice(0, COMPARED_RECORDS))
    for batch, shift in ((few, 0), (trial.whole, 0), (_shifted(trial.whole), 1)):
        losses = trial.one_a_row(batch)
        count = row_count(batch)
        wanted = torch.tensor(
            [values[(i - shift) % count % len(values)] for i in range(count)], dtype=torch.float64
        )
        if losses is None or not _close(trial, losses, wanted):
            raise AssumptionError(_why_mixed(trial, batch))


def _shifted(batch: Batch) -> Batch:
    """Every row one place further, the last one first."""
    count = row_count(batch)
    return take(batch, (torch.arange(count) - 1) % count)


def _close(trial: ModelTrial, losses: Tensor, wanted: Tensor) -> bool:
    """Whether these are the same losses in two batches, whose kernels may add up in another order."""
    short = any(p.dtype in (torch.float16, torch.bfloat16) for p in trial.model.parameters())
    relative, absolute = (0.1, 1e-2) if short else (1e-3, 1e-6)
    return torch.allclose(losses, wanted, relative, absolute, equal_nan=True)


def _same_places(trial: ModelTrial) -> bool:
    """Without dropout: a row gives the same one place further, with other neighbors; False if it draws other
    random numbers there."""
    with without_dropout(trial.model):
        if _draws(trial):
            return False
        changed = halves(trial.count)[2]
        both = trial.whole, _shifted(mixed(trial.whole, changed, OTHER_ROWS[0], 0))
        with perturbed(trial.model):
            before, after = map(trial.attempted, both)
        if before is None:
            before, after = map(trial.seeded, both)
    kept = ~changed.roll(1)
    if before is None or after is None or not _close(trial, after[kept], before.roll(1)[kept]):
        raise AssumptionError(MIXED)
    return True


def _why_mixed(trial: ModelTrial, batch: Batch) -> str:
    """What a refusal says: random numbers that go by positions make records depend on each other too."""
    outside = _outside()
    seen = _watched(trial, batch, None)
    if seen.own_generator or _outside() != outside:
        return _OTHER_RANDOMNESS
    first, again = trial.seeded(batch), trial.seeded(batch)
    if first is not None and again is not None and not _close(trial, again, first):
        return _OTHER_RANDOMNESS  # of a generator that it makes anew
    return f"{_RESEEDED}. Draw from it as it is" if seen.reseeded else MIXED


def _neighbors(trial: ModelTrial, route: Route) -> None:
    """In the present mode, from equal random states: change some rows, and look at those in between."""
    splits, far = halves(trial.count), route.kind == "layers"
    kinds = changes(trial.whole, far=far, absent=True)
    with _mode_of(trial, route):
        before = trial.seeded(trial.whole)
        _unmoved(trial, trial.whole, before, splits[:2], kinds)
        with perturbed(trial.model):
            if (moved := trial.attempted(trial.whole)) is not None:
                _unmoved(trial, trial.whole, moved, splits[2:], changes(trial.whole, far=far))
                return
        _unmoved(trial, trial.whole, before, splits[2:], kinds)


def _unmoved(
    trial: ModelTrial,
    base: Batch,
    before: Tensor | None,
    splits: Sequence[Tensor],
    kinds: Sequence[Sequence[Change]],
) -> None:
    """Raise if a row that is not changed has another loss than before, in the base."""
    if trial.count < 2:
        return
    if before is None:
        raise AssumptionError(MIXED)
    for number, changed in enumerate(splits):
        waiting = list(kinds)
        while waiting:
            kind = waiting.pop()
            try:
                after = trial.seeded(mixed(base, changed, kind, number))
            except SidelightError:
                raise
            except Exception:  # the model refuses such a row, whoever its neighbors are
                waiting.extend([one] for one in kind if len(kind) > 1)
                continue
            if after is None or not _equal(after[~changed], before[~changed]):
                raise AssumptionError(MIXED)


def _equal(after: Tensor, before: Tensor) -> bool:
    """Whether these are the same losses in two batches of one size."""
    return torch.allclose(after, before, rtol=1e-6, atol=0, equal_nan=True)


def _stays_in_place(trial: ModelTrial) -> bool:
    """Whether rows do not depend on others for integers that no trial row has, if the model takes them."""
    for base in with_integers_beyond(trial.whole):
        try:
            _unmoved(trial, base, trial.seeded(base), halves(trial.count)[2:], OTHER_ROWS)
        except AssumptionError:
            return False
        except FAILURES:
            continue
    return True


def _draws_apart(trial: ModelTrial) -> bool:
    """Whether a row does not depend on the random numbers that were drawn for others, nor on its place."""
    before = trial.seeded(trial.whole)
    for changed in halves(trial.count)[:3]:
        with ChangedDraws(trial.count, changed):
            after = trial.seeded(trial.whole)
        if before is None or after is None or not _close(trial, after[~changed], before[~changed]):
            return False
    with ChangedDraws(trial.count):
        here, further = trial.seeded(trial.whole), trial.seeded(_shifted(trial.whole))
    return here is not None and further is not None and _close(trial, further, here.roll(1))


# ---------------------------------------------------------------------------------------------------
# 2. nothing is decided by records, drawn for several at once, or kept: shown by watching passes


def _steady(trial: ModelTrial, first: Route) -> Route | str:
    """The route by layers, if what it saw in the trial holds for every record; else why not.

    Both ways of `Route.static` are tried, first the one that is given; the static one too where a kernel is
    chosen by the number of rows.
    """

    def watched(batch: Batch) -> OperationWatch:
        with restored(trial.before):
            return _own_draws(trial, batch, route)

    trial.before.restore()
    route, seen = first, None
    with contextlib.suppress(*FAILURES if route.static else ()):  # then the other way may be possible
        seen = watched(trial.whole)
    if seen is None or seen.decisions:
        route = replace(route, static=not route.static)
        with contextlib.suppress(*FAILURES if route.static else ()):
            seen = watched(trial.whole)
    if seen is None or seen.decisions:
        route = replace(route, static=False, answers=_branches(trial))
        seen = watched(trial.whole) if route.answers else seen
    if seen is None or seen.decisions:
        name = seen.decisions[0] if seen else "of records"
        return f"it decides by values ({_READABLE.get(name.split()[0], name)})"
    many, few = trial.count, COMPARED_RECORDS if trial.count != COMPARED_RECORDS else 2
    other = watched(cycled(trial.rows, few))
    if not _in_proportion(seen.draws, other.draws, many, few):
        return "it draws random numbers for several records at once"
    if seen.draws and not _draws_apart(replace(trial, route=route)):
        return "random numbers of one record are given to others, or its place in the batch matters"
    if seen.along != other.along:
        return "it sorts or moves records, or adds up along them"
    if not _same_names(seen.operands, other.operands):
        if not (route.static or first.static or route.answers):
            return _steady(trial, replace(route, static=True))
        return "what it does depends on the number of records"
    if not _in_proportion(seen.operands[: seen.forward], other.operands[: other.forward], many, few):
        if route.answers:  # a branch that compares what it made of all records
            return "it decides by values of several records"
        raise AssumptionError(MIXED)
    if not _in_proportion(seen.operands, other.operands, many, few):
        return "gradients of several records meet on the way back"
    return _RESEEDED if seen.reseeded or other.reseeded else route


def _branches(trial: ModelTrial) -> tuple[bool, ...]:
    """The branches that trial rows take by their values, if these are those that each takes alone."""
    with contextlib.suppress(*FAILURES), from_seed(trial.model), Answers() as mode:
        trial.losses(trial.whole)
        return tuple(mode.given) if mode.sure else ()
    return ()


def _same_names(seen: list[tuple[str, int]], other: list[tuple[str, int]]) -> bool:
    return [name for name, _ in seen] == [name for name, _ in other]


def _in_proportion(seen: list[tuple[str, int]], other: list[tuple[str, int]], many: int, few: int) -> bool:
    """Whether two passes have the same operations, and numbers in proportion to their records."""
    pairs = zip(seen, other, strict=False)
    return _same_names(seen, other) and all(
        name != "randperm" and a * few == b * many for (name, a), (_, b) in pairs
    )


def _apart_by_vmap(trial: ModelTrial, some: Batch) -> bool:
    """Whether torch.func is given no seed, which would be one for all records. (Where values of records
    decide, it fails.)"""
    return not _own_draws(trial, some, Route("vmap")).reseeded


def _own_draws(trial: ModelTrial, batch: Batch, route: Route | None = None) -> OperationWatch:
    """Raise if the model draws from another generator than PyTorch's."""
    outside = _outside()
    watch = _watched(trial, batch, route)
    if _outside() != outside or watch.own_generator:
        raise AssumptionError(_OTHER_RANDOMNESS)
    return watch


def _outside() -> tuple[object, ...]:
    """The states of generators that are not PyTorch's."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), rest


def _watched(trial: ModelTrial, batch: Batch, route: Route | None) -> OperationWatch:
    """A pass forward and backward in the present mode, with every operation seen; plain without a route."""
    batch, branching = copied(batch), (route or Route("layers")).branching()
    with from_seed(trial.model), torch.enable_grad(), observed(batch) as watch, branching:
        _pass(trial, batch, route, watch)
    return watch


def _pass(trial: ModelTrial, batch: Batch, route: Route | None, watch: OperationWatch) -> None:
    """What a route does with a batch, but for the gradients, of which nothing is left."""
    model, loss, rows = trial.model, trial.loss, row_count(batch)
    if route is None:
        gradients_of(loss(call(model, batch[0]), batch[1]).sum(), trainable(model))
    elif route.kind == "layers":
        with Capture(model, route.wiring, rows=rows, count=rows, receive=None) as capture:
            losses = loss(call(model, batch[0]), batch[1])
            watch.forward = len(watch.operands)
            capture.backward(losses)
    elif route.kind == "vmap":
        by_vmap(model, loss, batch, rows)
    else:
        by_loop(model, loss, take(batch, slice(0, 2)), min(rows, 2))
