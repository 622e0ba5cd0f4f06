"""Before the first private step: is every record's gradient what we think it is?

A few trial rows (public ones, or placeholders of the same form) go through the model. No private record takes
part, so a refusal tells nothing. What is established:

1. *No record depends on another.* Losses in a batch are those of each record alone; in the mode of training,
   with its random numbers, they stay the same, bit for bit, when the other rows get other values, other
   targets, values far beyond any data, or NaN.
2. *Nothing is decided by records, joins them, is drawn for several at once, or kept.* Every operation of a
   pass is watched, forward and backward (observe.py): it must be known to keep records apart. What is no
   record must be the same for each place in the batch or drawn for it, and rows of a layer must go record by
   record. Everything that the model can change is compared (state.py). With that, each later pass of the same
   shape performs the same operations, and 1 holds for it too, as long as model and loss are what they were.
3. *Per-record gradients are right.* They are compared with those of each row alone, parameter by parameter.

A model that fails 1, or that keeps records, is refused. One that fails the rest takes a slower route, where
it holds by construction. The routes: `layers` (book-keeping), `vmap` (torch.func), `loop` (a call a record).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sidelight.errors import AssumptionError, SidelightError, first_line
from sidelight.oracles.network.batches import (
    Batch,
    Losses,
    call,
    copied,
    cycled,
    far_away,
    only_row,
    other_rows,
    row_count,
    seed_torch,
    take,
    tensors,
    variations,
)
from sidelight.oracles.network.flat import evaluating, parameters_of, trainable
from sidelight.oracles.network.layers import problem, rule_for, settled_norms, stand_in_for
from sidelight.oracles.network.observe import (
    EVERYTHING,
    Memories,
    OperationWatch,
    living,
    memories_of,
    observed,
)
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
    by_loop,
    by_vmap,
    gradients_of,
    own_parameters,
    watched_modules,
)
from sidelight.oracles.network.state import CodeState, refuse_change, restored, silent, without_gradients

__all__ = [
    "FEW", "Route", "as_if_compiling", "eagerly", "examine", "no_losses", "refuse",
    "refuse_parameters", "untouched",
]  # fmt: skip

_SEED = 0x5EED_0F_7121A1  # which no model sets by itself: that is noticed by the state it leads to
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssumptionError)
_Found = TypeVar("_Found")
_Alone: TypeAlias = list[tuple[float, Gradients]]  # loss and gradient of some rows, each by itself
_SCRIPTED = (
    "was compiled by torch.jit, which shows neither what it does nor what it keeps of a record. Use the "
    "module that it was made from"
)
_MIXED = (
    "the loss of one record depends on the others of its batch, so its influence cannot be bounded. "
    "Normalise each record by itself (GroupNorm, LayerNorm), average tokens within each record (token_loss "
    "of sidelight.deep), and keep no statistics of batches"
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
_ALONE = 4  # rows whose gradients are compared with those of the row alone
FEW = 8  # records of the examination; for more, what it found is looked for in passes of that size


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


@dataclass(frozen=True)
class _Trial:
    """A model, its loss, and rows that are not private.

    whole: as many rows as a pass has.
    before: what the model and the loss held before the trial. Private passes start from it.
    living: the memory of all tensors there were before, once somebody has asked for it.
    """

    model: nn.Module
    loss: Losses
    rows: Batch
    whole: Batch
    before: CodeState
    living: list[Memories] = field(default_factory=list)

    @property
    def count(self) -> int:
        return row_count(self.whole)

    def losses(self, batch: Batch) -> Tensor:
        """Of a copy, since a model may write into its input."""
        return self.loss(call(self.model, copied(batch)[0]), batch[1])

    def one_a_row(self, batch: Batch) -> Tensor | None:
        """One loss a row (float64, on the CPU); None if that is not what comes."""
        with torch.enable_grad():
            losses = self.losses(batch)
        if not isinstance(losses, Tensor) or losses.shape != (row_count(batch),):
            return None
        return losses.detach().double().cpu()

    def seeded(self, batch: Batch) -> Tensor | None:
        """The same, from one state of random numbers."""
        with _from_seed(self.model):
            return self.one_a_row(batch)


def examine(model: nn.Module, loss: Losses, rows: Batch, records: int, known: Route | None = None) -> Route:
    """The route for passes of this many records, or an AssumptionError; no row of `rows` is private.

    known: the route that was found before an attribute or a hook changed, or for passes of another size; it
        is kept if the same holds here. Larger passes are examined with a few records first.
    The model is left as it was, even by what it makes at its first call: how many forms of records are
    examined is not public.
    """
    whole = cycled(rows, records)
    with untouched(model), eagerly(), settled_norms(model), silent(), without_gradients(model):
        trial = _Trial(model, loss, rows, whole, CodeState(model, loss, copies=True))
        try:
            if known is None and records > 2 * FEW:
                known = _examined(replace(trial, whole=cycled(rows, FEW)))
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


def _examined(trial: _Trial) -> Route:
    model = trial.model
    with _quiet(model):
        alone = _tried(trial)
    # What a model makes once, at its first call, is made now.
    trial.seeded(only_row(trial.rows, 0, trial.count))
    state = CodeState(model, trial.loss, copies=True)
    trial.seeded(only_row(trial.rows, 1, trial.count))
    refuse_change(state)  # also what follows from the last batch alone, since that was another
    try:
        with _quiet(model):
            _same_as_alone(trial, alone)
        seen = _keeps_nothing(trial, trial.whole)
        wiring = _right_wiring(trial, alone)
    finally:
        refuse_change(state)
    route = _fastest(trial, alone, wiring, decides=bool(seen.decisions))
    with _mode_of(trial, route):
        _neighbours(trial, variations(trial.whole, far=route.kind == "layers"))
    return route


def _mode_of(trial: _Trial, route: Route) -> contextlib.AbstractContextManager[None]:
    """Without random numbers where each record draws its own, which depend on no other."""
    return _quiet(trial.model) if route.kind == "loop" else contextlib.nullcontext()


def _fastest(trial: _Trial, alone: _Alone, wiring: Wiring | None, *, decides: bool) -> Route:
    """The fastest route that is right; decides: whether a plain pass looked at values of records."""
    reason = "its gradients cannot be told apart by layer"
    if wiring is not None:
        found = _steady(trial, Route("layers", wiring, static=decides))
        if not isinstance(found, str) and _runs_by_layers(trial, found):
            return found
        reason = found if isinstance(found, str) else reason
    some = take(trial.whole, slice(0, min(len(alone), trial.count)))
    with _quiet(trial.model):
        right = _vmap_is_right(trial, some, alone) and not used_outside_torch_func(
            trial.model, trial.loss, copied(some)
        )
    if right:  # and possible in the present mode, with its dropout?
        with contextlib.suppress(*_FAILURES):
            if _apart_by_vmap(trial, some):
                return Route("vmap", reason=reason)
    _keeps_nothing(trial, some, Route("loop"))
    return Route("loop", reason=reason)


def _holds(trial: _Trial, route: Route) -> bool:
    """Whether a route that was found under another state, or for fewer records, is right here as well.

    All that follows from the form and the number of records is looked at again: every operation is watched,
    nothing is kept, gradients add up, and no row changes with others.
    """
    with contextlib.suppress(Exception):  # whatever is wrong now, a full examination says it
        with _mode_of(trial, route):
            before = trial.seeded(trial.whole)  # what a model makes at its first call of this size is made
            state = CodeState(trial.model, trial.loss, copies=True)
            _neighbours(trial, other_rows(trial.whole), before)
            refuse_change(state)
        if route.kind == "layers":
            return _steady(trial, route) == route and _runs_by_layers(trial, route)
        some = take(trial.whole, slice(0, _ALONE))
        if route.kind == "vmap":
            return _apart_by_vmap(trial, some)
        _keeps_nothing(trial, some, route)
        return True
    return False


# ---------------------------------------------------------------------------------------------------
# 1. records do not depend on each other


def _tried(trial: _Trial) -> _Alone:
    """Loss and gradient of some rows, each alone in a batch of one."""
    some = [take(trial.rows, slice(i, i + 1)) for i in range(min(_ALONE, row_count(trial.rows)))]
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
    if not all(value.isfinite().all() for _, gradients in found for value in gradients.values()):
        raise AssumptionError(
            "gradients are not finite on the two rows on which the model was tried. Without public records "
            "these are placeholders: pass a few public rows, as example= or as validation="
        )
    refuse_untrained(trial.model, trial.loss, leaves)
    return found


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


def _plain(trial: _Trial, row: Batch) -> tuple[float, Gradients]:
    losses = trial.losses(row)
    if not isinstance(losses, Tensor) or losses.shape != (1,):
        raise AssumptionError(no_losses(losses))
    return float(losses.detach()), gradients_of(losses.sum(), trainable(trial.model))


def _same_as_alone(trial: _Trial, alone: _Alone) -> None:
    """In batches of several sizes every row has the loss that it has alone, wherever it stands."""
    rows = trial.rows
    rest = [trial.one_a_row(take(rows, slice(i, i + 1))) for i in range(len(alone), row_count(rows))]
    if any(one is None for one in rest):
        raise AssumptionError(_MIXED)
    values = [value for value, _ in alone] + [float(one) for one in rest if one is not None]
    sizes = {len(alone), min(3, len(alone))}
    for batch in (*(take(rows, slice(0, size)) for size in sizes), trial.whole):
        losses = trial.one_a_row(batch)
        wanted = torch.tensor([values[i % len(values)] for i in range(row_count(batch))], dtype=torch.float64)
        if losses is None or not torch.allclose(losses, wanted, *_tolerance(trial.model), equal_nan=True):
            _complain(trial, batch)
            raise AssumptionError(_MIXED)


def _tolerance(model: nn.Module) -> tuple[float, float]:
    """Relative and absolute, for a loss in two batches, whose kernels may add up in another order."""
    short = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    return (0.1, 1e-2) if short else (1e-3, 1e-6)


def _complain(trial: _Trial, batch: Batch) -> None:
    """Let a layer that knows what is wrong with its input say so."""
    rows = row_count(batch)
    try:
        with Capture(trial.model, Wiring(), rows=rows, count=rows, receive=lambda *_: None):
            trial.losses(batch)
    except SidelightError:
        raise
    except Exception:
        return


def _neighbours(trial: _Trial, varied: Iterator[tuple[Tensor, Batch]], before: Tensor | None = None) -> None:
    """In the present mode, from equal random states: change some rows, and look at those in between.

    before: the losses of the batch itself, if they are known.
    """
    if trial.count < 2:
        return
    before = trial.seeded(trial.whole) if before is None else before
    if before is None:
        raise AssumptionError(_MIXED)
    for changed, batch in varied:
        try:
            after = trial.seeded(batch)
        except SidelightError:
            raise
        except Exception:
            continue  # the model refuses such a row, whoever its neighbours are
        kept = ~changed
        if after is None or not torch.allclose(after[kept], before[kept], rtol=1e-6, atol=0, equal_nan=True):
            raise AssumptionError(_MIXED)


# ---------------------------------------------------------------------------------------------------
# 2. nothing is decided by records, joined, drawn for several at once, or kept: shown by watching passes


def _steady(trial: _Trial, route: Route) -> Route | str:
    """The route by layers, if what it saw in the trial holds for every record; else why not.

    Both ways of `Route.static` are tried, first the one that is given.
    """
    return _among_known(trial, lambda alive: _steady_among(trial, route, alive))


def _steady_among(trial: _Trial, route: Route, alive: Memories) -> Route | str:
    """The same, if `alive` is what was there before."""
    whole = trial.whole

    def watched(batch: Batch, seed: int = _SEED) -> OperationWatch:
        with restored(trial.before):
            return _keeps_nothing(trial, batch, route, alive, seed)

    trial.before.restore()
    seen = None
    with contextlib.suppress(*_FAILURES if route.static else ()):  # then the other way may be possible
        seen = watched(whole)
    if seen is None or seen.decisions:
        route = replace(route, static=not route.static)
        with contextlib.suppress(*_FAILURES if route.static else ()):
            seen = watched(whole)
    if seen is None or seen.decisions:
        return f"it decides by values ({seen.decisions[0] if seen else 'of records'})"
    many, few = trial.count, 3 if trial.count != 3 else 2
    other = watched(cycled(trial.rows, few))
    if not _in_proportion(seen.draws, other.draws, many, few):
        return "it draws random numbers for several records at once"
    if not _same_names(seen.operands, other.operands):
        return "what it does depends on the number of records"
    if not _in_proportion(seen.operands[: seen.forward], other.operands[: other.forward], many, few):
        raise AssumptionError(_MIXED)
    if not _in_proportion(seen.operands, other.operands, many, few):
        return "gradients of several records meet on the way back"
    joins = [name for one in (seen, other) for name in one.joins]
    if joins:
        return f"it is not known to keep records apart ({joins[0]})"
    if seen.reseeded or other.reseeded:
        return _RESEEDED
    with contextlib.suppress(*_FAILURES):  # a model may refuse such rows
        other = watched(far_away(whole), _SEED + 1)
        if other.trace == seen.trace and not other.reseeded:
            return route
    with contextlib.suppress(*_FAILURES):  # was it the values, or the random numbers?
        if watched(far_away(whole)).trace != seen.trace:
            return "values of records take a way that cannot be watched"
    other = watched(whole, _SEED + 1)
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


def _apart_by_vmap(trial: _Trial, some: Batch) -> bool:
    """Whether torch.func keeps records and their random numbers apart.

    It makes one more dimension of them: an index beyond it reads another record, and a seed is one for all.
    """

    def look(alive: Memories) -> bool:
        route = Route("vmap")
        seen, other = (_keeps_nothing(trial, some, route, alive, seed) for seed in (_SEED, _SEED + 1))
        steady = seen.trace == other.trace and not (seen.reseeded or other.reseeded)
        return steady and not (seen.joins or seen.decisions)

    return _among_known(trial, look)


def _keeps_nothing(
    trial: _Trial,
    batch: Batch,
    route: Route | None = None,
    alive: Memories | None = None,
    seed: int = _SEED,
) -> OperationWatch:
    """Raise if the model holds on to what it saw, or draws from another generator than PyTorch's.

    Whether a tensor comes from nowhere (`joins` of the answer) is noted only if `alive` says what was there.
    """
    outside = _outside()
    observer = _watched(trial, batch, route, EVERYTHING if alive is None else alive, seed)
    if _outside() != outside or observer.own_generator:
        raise AssumptionError(_OTHER_RANDOMNESS)
    if observer.writes or observer.kept():
        raise AssumptionError(_KEPT)
    return observer


def _outside() -> tuple[object, ...]:
    """The states of generators that are not PyTorch's."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), rest


def _watched(trial: _Trial, batch: Batch, route: Route | None, alive: Memories, seed: int) -> OperationWatch:
    """A pass forward and backward in the present mode, with every operation seen; plain without a route."""
    batch, static = copied(batch), route is not None and route.static
    with (
        _from_seed(trial.model, seed),
        torch.enable_grad(),
        as_if_compiling(static),
        observed(batch, alive) as observer,
    ):
        _pass(trial, batch, route, observer)
    if observer.nowhere and not alive.complete:
        raise _NotAmongKnown
    return observer


def _pass(trial: _Trial, batch: Batch, route: Route | None, observer: OperationWatch) -> None:
    """What a route does with a batch, but for the gradients, of which nothing is left."""
    model, loss, rows = trial.model, trial.loss, row_count(batch)
    if route is None:
        gradients_of(loss(call(model, batch[0]), batch[1]).sum(), trainable(model))
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


class _NotAmongKnown(Exception):
    """A pass uses a tensor that neither it made nor model and loss reach: was it there before?"""


def _among_known(trial: _Trial, look: Callable[[Memories], _Found]) -> _Found:
    """What `look` finds, given the memory that was there before its passes.

    Most models use nothing but what they and their loss reach. Only where a pass uses more, every tensor of
    the process is looked up (`living`): with millions of objects that takes longer than all passes.
    """
    with contextlib.suppress(_NotAmongKnown):
        return look(memories_of(trial.before.tensors(), complete=False))
    if not trial.living:
        trial.living.append(living())
    return look(trial.living[0])


# ---------------------------------------------------------------------------------------------------
# 3. gradients by layer, by torch.func and of each record alone: are they the same?


def _vmap_is_right(trial: _Trial, some: Batch, alone: _Alone) -> bool:
    with contextlib.suppress(*_FAILURES):
        found = by_vmap(trial.model, trial.loss, copied(some), row_count(some))
        each = [(i, gradients, _longest(gradients)) for i, (_, gradients) in enumerate(alone)]
        return all(
            _close(found[p][i], gradients[p].reshape(-1), longest)
            for i, gradients, longest in each[: row_count(some)]
            for p in gradients
        )
    return False


def _right_wiring(trial: _Trial, alone: _Alone) -> Wiring | None:
    with _quiet(trial.model):
        for wiring in _wirings(trial):
            with contextlib.suppress(*_FAILURES):
                if _same_gradients(trial, wiring, alone) and not _used_outside(trial, wiring):
                    return wiring
    return None


def _used_outside(trial: _Trial, wiring: Wiring) -> bool:
    watched = watched_modules(trial.model, wiring)
    return used_outside_modules(trial.model, trial.loss, copied(trial.whole), watched, trial.count)


def _same_gradients(trial: _Trial, wiring: Wiring, alone: _Alone) -> bool:
    """Whether every parameter's gradient for a row is that of the row alone."""
    pieces: dict[Tensor, Piece] = {}
    count = trial.count
    with Capture(trial.model, wiring, rows=count, count=count, receive=pieces.__setitem__) as capture:
        capture.backward(trial.losses(trial.whole))
    for i, (_, gradients) in enumerate(alone[:count]):
        only = torch.zeros(count)
        only[i] = 1
        if not _adds_up_to(gradients, pieces, only):
            return False
    return True


def _runs_by_layers(trial: _Trial, route: Route) -> bool:
    """Whether a pass by layers succeeds in the present mode, and adds up to the gradient of the batch."""
    pieces: dict[Tensor, Piece] = {}
    model, count = trial.model, trial.count
    parameters = trainable(model)  # before a capture puts others in their places
    with contextlib.suppress(*_FAILURES), as_if_compiling(route.static):
        with _from_seed(model), Capture(model, route.wiring, rows=count, count=count, receive=None):
            plain = gradients_of(trial.losses(trial.whole).sum(), parameters)
        with (
            _from_seed(model),
            Capture(model, route.wiring, rows=count, count=count, receive=pieces.__setitem__) as capture,
        ):
            capture.backward(trial.losses(trial.whole))
        for piece in pieces.values():
            piece.rows(0, 1)
        with _from_seed(model):
            if _used_outside(trial, route.wiring):
                return False
        return _adds_up_to(plain, pieces, torch.ones(count))
    return False


def _adds_up_to(wanted: Gradients, pieces: dict[Tensor, Piece], weights: Tensor) -> bool:
    """Whether the weighted sums of pieces are these gradients."""
    longest = _longest(wanted)
    for parameter, expected in wanted.items():
        found = expected.new_zeros(expected.shape, dtype=working(parameter.dtype))
        if parameter in pieces:
            pieces[parameter].add_weighted(weights.to(found.device), found)
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


def _wirings(trial: _Trial) -> Iterator[Wiring]:
    with contextlib.suppress(*_FAILURES):
        batched = _which_arguments(trial)
        containers = frozenset(m for m in trial.model.modules() if _starts_with_one(m))
        if containers:
            yield Wiring(batched, containers)
        yield Wiring(batched)


def _starts_with_one(module: nn.Module) -> bool:
    own = own_parameters(module)
    if not own or rule_for(module) is not None or stand_in_for(module) is not None:
        return False
    return all(p.dim() > 1 and p.shape[0] == 1 for p in own.values())


def _which_arguments(trial: _Trial) -> dict[nn.Module, tuple[int, ...]]:
    """For every watched module: how many rows of each of its arguments belong to one record; 0 for none."""
    rows = cycled(trial.whole, 2)
    one, two = _shapes(trial.model, take(rows, slice(0, 1))), _shapes(trial.model, rows)
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

    def note(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        shapes.setdefault(module, []).append([x.shape for x in tensors((args, kwargs))])

    watched = [m for m in model.modules() if own_parameters(m) and stand_in_for(m) is None]
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in watched]
    try:
        with torch.no_grad():
            call(model, copied(rows)[0])
    finally:
        for handle in handles:
            handle.remove()
    return shapes


# ---------------------------------------------------------------------------------------------------
# how passes run


@dataclass(frozen=True)
class Route:
    """How per-record gradients are taken, and why by no faster way.

    static: the model decides by values of records (`if mask.all()`), but not while it is being compiled;
        so it is told that it is (`as_if_compiling`).
    """

    kind: Literal["layers", "vmap", "loop"]
    wiring: Wiring = field(default_factory=Wiring)
    static: bool = False
    reason: str = ""


@contextlib.contextmanager
def as_if_compiling(static: bool) -> Iterator[None]:
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


def _devices(model: nn.Module) -> list[torch.device]:
    device = parameters_of(model)[0].device
    return [device] if device.type == "cuda" else []


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever is drawn inside has no influence on what is drawn afterwards."""
    devices, state = _devices(model), torch.default_generator.get_state()
    others = [torch.cuda.get_rng_state(device) for device in devices]
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        for device, other in zip(devices, others, strict=True):
            torch.cuda.set_rng_state(other, device)


@contextlib.contextmanager
def _from_seed(model: nn.Module, seed: int = _SEED) -> Iterator[None]:
    with untouched(model):
        seed_torch(seed)
        yield


def eagerly() -> contextlib.AbstractContextManager[None]:
    """Compiled modules and functions run as they are written, so that their layers can be watched."""
    stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


@contextlib.contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """No dropout, no autocast; random states and modes are left as they were."""
    device = next(model.parameters()).device
    with (
        evaluating(model),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.backends.cudnn.flags(enabled=False),  # its RNNs have no gradient in this mode
    ):
        yield
