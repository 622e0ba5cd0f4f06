"""Private gradients of a PyTorch model: Σ c_i M(g_i − o), clipped one by one and never written out.

One forward and one backward pass collect, for every layer, its inputs and the gradients of its outputs
(routes.py). From these come the norms ‖M(g_i − o)‖ (pieces.py), rounded upwards so that no record ever
exceeds its bound, and then the weighted sum, one product a layer, without a second backward pass. Memory
grows with the activations, not with records × parameters.
"""

from __future__ import annotations

import functools
import logging
import math
import secrets
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import (
    keystr,
    tree_flatten_with_path,
    tree_leaves,
    tree_structure,
    tree_unflatten,
)

from sidelight.clipping import Clip, Diagonal, Metric, Projection
from sidelight.errors import INTERRUPTS, AssumptionError, InputError, first_line
from sidelight.oracles.network.batches import (
    Batch,
    Losses,
    as_errors,
    call,
    copied,
    joined,
    placeholder_rows,
    row_count,
    seed_torch,
    take,
    tensors,
)
from sidelight.oracles.network.branches import OtherBranch
from sidelight.oracles.network.check import EXAMINED_RECORDS, examine, refuse, refuse_parameters
from sidelight.oracles.network.flat import (
    Answer,
    ClippedSumRule,
    Layout,
    ProjectedNorms,
    RunningSum,
    ScaledNorms,
    TailProjection,
    joined_flat,
    parameters_of,
    trainable,
)
from sidelight.oracles.network.frozen_part import FrozenPart, find_frozen_part
from sidelight.oracles.network.gradient_check import no_losses
from sidelight.oracles.network.layers import settled_norms
from sidelight.oracles.network.module_calls import unroll
from sidelight.oracles.network.passes import records_a_pass, work_of_a_pass
from sidelight.oracles.network.pieces import Rows, plain_products, rounded_down, working
from sidelight.oracles.network.routes import (
    Capture,
    Watched,
    gradients_of,
    watched_modules,
)
from sidelight.oracles.network.silence import silent
from sidelight.oracles.network.state import CodeState, restored, without_gradients
from sidelight.oracles.network.trial import Route, eagerly, untouched
from sidelight.oracles.network.trial_rows import chosen, cycled, distinct_rows
from sidelight.oracles.network.written_out import (
    by_loop,
    by_vmap,
    is_record_dependent,
    records_at_once,
)
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

_LOG = logging.getLogger("sidelight")
_MAX_FORMS = 64  # shapes of records for which the examined route is remembered


Put: TypeAlias = Callable[[Answer, Tensor], None]  # takes the answer of a pass, and who is left out


class _Pass(NamedTuple):
    """Rows that go through the model together: `copies` consecutive ones are a record."""

    rows: Batch
    copies: int
    seed: int | None
    trial: bool = False  # of rows that are not private: what fails on one says so
    weights: Tensor | None = None  # of each row in its record's gradient; None: all the same


class _Examined(NamedTuple):
    """The route for records of one form and passes of one size, and the modules that it watches."""

    route: Route
    watched: list[Watched]
    frozen: FrozenPart | None = None

    def given(self, inputs: object) -> AbstractContextManager[None]:
        """Inside, a pass need not compute what it has computed before of the frozen part."""
        return nullcontext() if self.frozen is None else self.frozen.given(inputs)


@dataclass(frozen=True)
class _Known:
    """What follows from a model as long as its state is not altered: its parts, and routes found for it."""

    state: CodeState
    every: list[nn.Parameter]
    layout: Layout
    routes: dict[tuple[Hashable, int], _Examined] = field(default_factory=dict)  # by form and rows of a pass

    @property
    def moved(self) -> bool:
        """Whether the model is on another device, which its state does not tell."""
        return self.layout.parameters[0].device != self.layout.device

    @classmethod
    def of(cls, model: nn.Module, loss: Losses) -> _Known:
        parameters = trainable(model)
        layout = Layout(parameters, working(*(p.dtype for p in parameters)))
        return cls(CodeState(model, loss), parameters_of(model), layout)


class NetworkOracle:
    """Questions about the gradients of `loss(model(inputs), targets)`, one number per record.

    Parameters as a flat vector: the trainable ones of model.parameters(), in order. The model is used at its
    present values and in its present mode, and left as it was.

    Args:
        example: a batch of public rows, of which a few are taken to check the model; without two different
            ones, placeholders are made.
        pass_size: records in each pass through the model. A public number: passes are filled up to it.
        expected: how many records a batch has on average. Passes then have the size that takes least work.
        cache_bytes: activations of the model's frozen part that are remembered (`frozen_part`); 0: none.
        draw_seed: a seed for the model's random numbers, once a call; by default from the operating system.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Losses,
        *,
        example: Batch | None = None,
        pass_size: int = 64,
        expected: float | None = None,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(63),
        cache_bytes: int = 0,
    ) -> None:
        self.model, self.loss, self.cache_bytes = model, as_errors(loss), cache_bytes
        self.pass_size, self.expected, self.draw_seed = pass_size, expected, draw_seed
        # Copied now: a collate may hand out views of a buffer that it fills again.
        self._public_rows = None if example is None else distinct_rows(example)
        self._kept: dict[tuple[Hashable, ...], tuple[float, int]] = {}  # see _kept_for_a_row, by form
        self._fills: dict[tuple[Hashable, ...], Batch] = {}  # rows to fill passes up with, by form
        self._calls = 0
        self._known: _Known | None = None
        self._route: Route | None = None
        self._said: set[tuple[str, str]] = set()  # slower routes, which the log has
        if not self.parameters:
            raise InputError("the model has no trainable parameters")

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, each once."""
        return trainable(self.model)

    @property
    def dimension(self) -> int:
        """The length of the flat vector."""
        return sum(p.numel() for p in self.parameters)

    @property
    def route(self) -> Route:
        """How gradients were taken when the model was last examined, and why by no faster way."""
        if self._route is None:
            raise InputError("the model was not examined yet; call check(batch) first")
        return self._route

    def clipped_sum(
        self,
        batch: Batch,
        *,
        clip: Clip,
        relation: Relation,
        origin: Tensor | None = None,
        metric: Metric | TailProjection = None,
        micro_batch: int | None = None,
        augmentations: int = 1,
        weights: Tensor | None = None,
    ) -> BoundedSum:
        """Σ_i c_i·M(g_i − o) over the records of a batch, with c_i = clip.factors(‖M(g_i − o)‖).

        Formal guarantee: ‖c_i·M(g_i − o)‖ ≤ clip.bound for every record, in exact arithmetic on the numbers
        that are added up. So the sensitivity is clip.bound for add-or-remove-one and twice that for
        replace-one. The origin is inside every term and not added back: do that once, after the noise, times
        a constant. A record whose gradient is not finite contributes zero. An empty batch gives zeros.

        A record is alone: what it contributes depends on itself and on random numbers of its own. Every pass
        has the same number of rows, filled up with rows that are not private, so the model does not see how
        many records there are; its random numbers come from a fresh secret for each call, a part for each
        record; and it is left as it was, or refused.

        `augmentations`: that many consecutive rows are one record, and their gradients are averaged before
        clipping. `micro_batch` (records at a time; by default `pass_size`) changes memory and speed only.
        `weights`, one per row, make that a weighted sum: a person with fewer rows than others is filled up
        with rows of weight 0. Whatever they are, the bound holds: what is clipped is what is added up.

        A record on which the model or the loss fails (a class that does not exist) contributes zero as well:
        an error would reveal it, and may quote it. What fails for every record is found by `check` before,
        and by a pass over trial rows at the first, second, fourth, eighth, … call.
        """
        times = 2.0 if check_relation(relation) == "replace-one" else 1.0
        records = self._records(batch, augmentations)
        with untouched(self.model), settled_norms(self.model), silent(), without_gradients(self.model):
            size = self._ready(batch, micro_batch, augmentations)
            layout = self._present.layout
            question = question_about(layout, origin, metric)
            total = question.new_total(records, clip)
            put = functools.partial(add_clipped, layout=layout, clip=clip, total=total)
            for one, taken in self._drawn_passes(batch, size, augmentations, weights):
                self._add(one, taken, question, put)
        return BoundedSum(question.finished(total), sensitivity=times * clip.bound, relation=relation)

    def count_ignored(
        self,
        batch: Batch,
        *,
        relation: Relation,
        micro_batch: int | None = None,
        augmentations: int = 1,
        weights: Tensor | None = None,
    ) -> BoundedSum:
        """How many records of a batch contribute nothing: the model fails on them, or their gradient is not
        finite. Arguments as in `clipped_sum`, and a record is alone as it is there.

        Guarantee: a record adds 0 or 1, so that one added, removed or replaced moves the count by at most 1.
        """
        records = self._records(batch, augmentations)
        ignored = torch.full((1,), float(records), dtype=torch.float64, device=self._device)

        def put(answer: Answer, left_out: Tensor) -> None:
            ignored.sub_((answer.norms().isfinite() & ~left_out).sum())

        with untouched(self.model), settled_norms(self.model), silent(), without_gradients(self.model):
            size = self._ready(batch, micro_batch, augmentations)
            question = question_about(self._present.layout, None, None)
            for one, taken in self._drawn_passes(batch, size, augmentations, weights):
                self._add(one, taken, question, put)
        return BoundedSum(ignored, sensitivity=1.0, relation=check_relation(relation))

    def _drawn_passes(
        self, batch: Batch, size: int, augmentations: int, weights: Tensor | None
    ) -> Iterator[tuple[_Pass, Tensor]]:
        """Full passes with random numbers of their own, and a mask of the records that are from the batch."""
        # A secret of this call's own. From a state that the caller knows, the model's random numbers
        # would tell which record was where; and how far that state moves, how many records there were.
        seed = self.draw_seed()
        for number, (rows, count) in enumerate(self._passes(batch, size, augmentations)):
            low = number * size * augmentations
            each = None if weights is None else _padded(weights[low:], size * augmentations)
            yield _Pass(rows, augmentations, seed ^ (number + 1), weights=each), _first(count, size)

    def _ready(self, batch: Batch, micro_batch: int | None, augmentations: int) -> int:
        """Checked for batches of this form, and tried again now and then; records in a pass.

        Norms are settled, and parameters have no gradients.
        """
        self._look()
        size = self._pass_size(batch, micro_batch, augmentations)
        self._calls += 1
        if self._calls & (self._calls - 1) == 0:
            self._try(cycled(self._trial_rows(batch), size * augmentations), augmentations)
        return size

    def _survey(self) -> _Known:
        """Refuse a model by its layers, and note its state; a route found under another is not trusted."""
        with settled_norms(self.model), without_gradients(self.model):
            return self._look()

    def _look(self) -> _Known:
        """The same, of a model whose norms are settled and whose parameters have no gradients.

        What follows from a state is asked again only where that was altered: modules, modes, hooks, rules.
        """
        known = self._known
        if known is None or known.moved or known.state.altered():
            refuse(self.model)
            self._known = _Known.of(self.model, self.loss)
        else:
            refuse_parameters(self.model, known.every)
            known.state.renew()
        return self._present

    @property
    def _present(self) -> _Known:
        """What is known of the model as it is, since the last look at its state."""
        return self._known or self._survey()

    @property
    def _state(self) -> CodeState:
        return self._present.state

    def _try(self, rows: Batch, copies: int) -> None:
        """A pass over these rows, which are not private: it tells a failure of all records from that of one.

        If they branch otherwise by now, the weights did it, which are public: the model is examined again.
        """
        question = question_about(self._present.layout, None, None)
        try:
            with restored(self._state):
                self._ask(_Pass(rows, copies, 0, trial=True), question)
        except OtherBranch:
            self._present.routes.clear()
        except BaseException as error:
            if isinstance(error, INTERRUPTS) or not is_record_dependent(error):
                raise
            raise AssumptionError(
                f"the model or the loss fails ({first_line(error)}) on rows that are not private, "
                "and so presumably on every record"
            ) from error

    def check(self, batch: Batch, *, micro_batch: int | None = None, augmentations: int = 1) -> None:
        """Raise AssumptionError if one record's gradient cannot be told from its batch.

        Of `batch` only shapes and types are used, which are public: the rows that go through the model are
        those of `example`, or placeholders. So this may run before anything is charged. `micro_batch` and
        `augmentations` as in `clipped_sum`: they say how many rows a pass has.
        """
        self._survey()
        self._pass_size(batch, micro_batch, augmentations)
        self._say_route()

    def _say_route(self) -> None:
        """One line in the log for each slower route, and why it is taken. Nothing private decides it."""
        route = self.route
        if route.kind != "layers" and (said := (route.kind, route.reason)) not in self._said:
            self._said.add(said)
            _LOG.warning("gradients are taken by %s, a slower route: %s", route.kind, route.reason)

    def check_metric(self, metric: Metric | TailProjection) -> None:
        """Raise InputError for a metric that is not known, or has another shape."""
        question_about(self._survey().layout, None, metric)  # the model may be another than at the last look

    def norms(
        self,
        batch: Batch,
        *,
        origin: Tensor | None = None,
        metric: Metric | TailProjection = None,
        micro_batch: int | None = None,
        augmentations: int = 1,
    ) -> Tensor:
        """Upper bounds of ‖M(g_i − o)‖, one per record (float64). For public records and for tests only."""
        self._survey()
        size = self._pass_size(batch, micro_batch, augmentations)
        question = question_about(self._present.layout, origin, metric)
        parts = [torch.zeros(0, dtype=torch.float64)]
        with settled_norms(self.model):
            for rows, count in self._passes(batch, size, augmentations):
                answer = self._ask(_Pass(rows, augmentations, None), question)
                parts.append(answer.norms()[:count].cpu())
        return torch.cat(parts)

    def mean_gradient(self, batch: Batch) -> Tensor:
        """The mean gradient of public records, flat: one plain backward pass."""
        return self.loss_and_gradient(batch)[1]

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Tensor]:
        """The mean loss of public records, and its gradient."""
        with torch.enable_grad(), self._remembered(batch):
            losses = self._losses(copied(batch))  # which the model or the loss may write into
            parameters = self.parameters
            dtype = working(*(p.dtype for p in parameters))
            if not len(losses):
                return 0.0, torch.zeros(self.dimension, dtype=dtype, device=parameters[0].device)
            gradients = gradients_of(losses.mean(), parameters)
        flat = joined_flat([grad.to(dtype) for grad in gradients.values()])
        return float(losses.detach().double().mean()), flat

    def _add(self, one: _Pass, taken: Tensor, question: ClippedSumRule, put: Put) -> None:
        """Add those records of a full pass that are taken; what it changed in the model is put back.

        If the pass fails, or records may branch otherwise than trial rows: half of its records at a time, so
        that those are alone. The others keep their place and their random numbers; rows that are not private
        stand in between.
        """
        with restored(self._state):
            try:
                answer: Answer | None = self._ask(one, question)
            except OtherBranch:
                answer = None
            except BaseException as error:
                if isinstance(error, INTERRUPTS) or not is_record_dependent(error):
                    raise
                answer = None
        if answer is not None:
            self._put(put, answer, ~taken)
            return
        rows = row_count(one.rows)
        fill, route = cycled(self._trial_rows(one.rows), rows), self._route_for(one.rows, rows).route
        if route.answers:
            with suppress(AssumptionError):  # what came now because of a record must not be said now
                self._try(fill, one.copies)
            if self._route_for(one.rows, rows).route is not route:
                self._add(one, taken, question, put)
                return
        places = taken.nonzero().flatten()
        for half in places.tensor_split(2) if len(places) > 1 else ():
            some = torch.zeros_like(taken).index_fill_(0, half, True)
            mixed = chosen(one.rows, fill, some.repeat_interleave(one.copies))
            self._add(one._replace(rows=mixed), some, question, put)
        if len(places) == 1 and route.answers:
            self._add_alone(one, int(places), question, put)

    def _add_alone(self, one: _Pass, place: int, question: ClippedSumRule, put: Put) -> None:
        """Add one record of a pass by a call of its own, with the branches that it takes."""
        own = slice(place * one.copies, (place + 1) * one.copies)
        weights = None if one.weights is None else one.weights[own]
        seed = None if one.seed is None else one.seed + (place + 1) * 0x9E3779B97F4A7C15
        alone = one._replace(rows=take(one.rows, own), weights=weights, seed=seed)
        with restored(self._state), eagerly():
            answer = self._written_out(alone, Route("loop"), 1, question)
        self._put(put, answer, torch.zeros(1, dtype=torch.bool))

    def _put(self, put: Put, answer: Answer, left_out: Tensor) -> None:
        with plain_products(self._device):
            put(answer, left_out.to(self._device))

    def _ask(self, one: _Pass, question: ClippedSumRule) -> Answer:
        """The answer for the records of one pass, on the model's route."""
        batch, rows = copied(one.rows), row_count(one.rows)  # a model may write into its input
        count = rows // one.copies
        examined, answer = self._route_for(batch, rows), question.answer(count)
        route = examined.route
        with eagerly(), examined.given(batch[0]):  # which draws random numbers of its own, before the seed
            if one.seed is not None:
                seed_torch(one.seed)
            if route.kind != "layers":
                return self._written_out(one._replace(rows=batch), route, count, question)
            seen = Capture(
                self.model, route.wiring, rows=rows, count=count, receive=answer.receive,
                watched=examined.watched,
            )  # fmt: skip
            with route.branching(), seen:
                seen.backward(self._losses(batch), one.weights)
        return answer

    def _written_out(self, one: _Pass, route: Route, count: int, question: ClippedSumRule) -> Answer:
        """The same by a route that writes gradients out."""
        answer = question.answer(count)
        if route.kind == "vmap":
            found = by_vmap(self.model, self.loss, one.rows, count, one.weights)
        else:
            found = by_loop(
                self.model, self.loss, one.rows, count, one.weights,
                seed=one.seed, restore=self._state.restore, strict=one.trial,
            )  # fmt: skip
        for parameter, gradients in found.items():
            answer.receive(parameter, Rows(gradients, parameter.shape))
        return answer

    def _losses(self, batch: Batch) -> Tensor:
        losses: object = self.loss(call(self.model, batch[0]), batch[1])
        if not isinstance(losses, Tensor) or losses.shape != (row_count(batch),):
            raise AssumptionError(no_losses(losses))
        return losses

    def _route_for(self, batch: Batch, rows: int) -> _Examined:
        """The route, examined anew for other states, forms of records and sizes of a pass."""
        routes = self._present.routes
        form = self._form_of(batch)
        if (form, rows) not in routes:
            # With fewer rows than these an examination shows little.
            others = (
                one.route
                for (other, size), one in routes.items()
                if other == form and size >= EXAMINED_RECORDS
            )
            route = examine(self.model, self.loss, self._trial_rows(batch), rows, next(others, None))
            while len(routes) >= _MAX_FORMS:
                routes.pop(next(iter(routes)))
            self._route = route
            alike = next((one for (other, _), one in routes.items() if other == form), None)
            frozen = self._frozen_part(batch, route, rows) if alike is None else alike.frozen
            routes[form, rows] = _Examined(route, watched_modules(self.model, route.wiring), frozen)
        return routes[form, rows]

    def _frozen_part(self, batch: Batch, route: Route, rows: int) -> FrozenPart | None:
        """What of the model gives a record the same numbers in each pass, by layers and without branches."""
        if route.kind != "layers" or route.answers or not self.cache_bytes:
            return None
        with untouched(self.model), silent(), restored(self._state), eagerly():
            return find_frozen_part(self.model, self._trial_rows(batch), most=self.cache_bytes, held=rows)

    def _remembered(self, batch: Batch) -> AbstractContextManager[None]:
        """The same for a pass over public records, if private ones of this form have been prepared for."""
        if self._known is None or not self.cache_bytes:
            return nullcontext()
        form = self._form_of(batch)
        found = (one for (other, _), one in self._known.routes.items() if other == form)
        examined = next(found, None)
        return nullcontext() if examined is None else examined.given(batch[0])

    def _form_of(self, batch: Batch) -> tuple[Hashable, ...]:
        """What routes are known by: the parts of a batch, and the types that the model computes with."""
        device = self._device.type
        return (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), tuple(_form(batch))

    def _trial_rows(self, batch: Batch) -> Batch:
        """Rows of the batch's form that are not private: public ones, if there are two different ones."""
        rows = self._public_rows
        if rows is None or _form(rows) != _form(batch):
            return placeholder_rows(batch, 4)  # equal rows would hide that they are mixed
        same: Batch = tree_unflatten(tree_leaves(rows), tree_structure(batch))  # a list may be a tuple there
        return same

    def _records(self, batch: Batch, augmentations: int) -> int:
        rows = row_count(batch)
        if augmentations < 1 or rows % augmentations:
            raise InputError(
                f"the batch is not a whole number of records of augmentations={augmentations} rows"
            )
        return rows // augmentations

    def _pass_size(self, batch: Batch, micro_batch: int | None, augmentations: int) -> int:
        """Records in a pass: as many as asked for, or fewer where their gradients are written out.

        Afterwards the passes of a call have been examined, and none of them meets a form that was not.
        """
        size = self._usual_size(batch, augmentations) if micro_batch is None else micro_batch
        if size < 1:
            raise InputError(f"micro_batch must be at least 1, not {micro_batch}")
        route = self._route_for(batch, size * augmentations).route
        if route.kind != "layers":
            size = records_at_once(self.dimension, size)
            route = self._route_for(batch, size * augmentations).route
        if route.kind == "loop" or route.answers:
            self._state.renew(copies=True)  # a record may write into any weight; the next must not see it
        return size

    def _usual_size(self, batch: Batch, augmentations: int) -> int:
        """As asked for, or as takes least work by what the model keeps for rows that are not private."""
        if self.expected is None:
            return self.pass_size
        form = tuple(_form(batch))
        if form not in self._kept:
            while len(self._kept) >= _MAX_FORMS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[form] = self._kept_for_a_row(batch)
        kept, operations = self._kept[form]
        work = work_of_a_pass(self._present.layout.dimension, operations, self._device.type)
        return records_a_pass(self.expected, each=augmentations, kept=kept, fixed=work)

    def _kept_for_a_row(self, batch: Batch) -> tuple[float, int]:
        """Numbers that a pass keeps for each row until its gradient is taken, and in how many tensors; 0
        where it fails."""
        kept, rows = list[list[int]](), self._trial_rows(batch)

        def keep(x: Tensor) -> Tensor:
            kept[-1].append(x.numel())
            return x

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
        with untouched(self.model), settled_norms(self.model), silent(), without_gradients(self.model):
            try:
                for number in (2, 4):
                    kept.append([])
                    with restored(self._state), torch.enable_grad(), eagerly(), hooks, ExitStack() as stack:
                        unroll(stack, self.model)  # as a pass takes recurrent layers
                        self._losses(copied(cycled(rows, number)))
            except INTERRUPTS:
                raise
            except BaseException:  # of rows that are not private; the examination says what is wrong
                return 0.0, 0
        return (sum(kept[1]) - sum(kept[0])) / 2, len(kept[1])

    def _passes(self, batch: Batch, size: int, augmentations: int) -> Iterator[tuple[Batch, int]]:
        """Full passes, and how many of their records are from the batch."""
        records = self._records(batch, augmentations)
        for low in range(0, records, size):
            high = min(low + size, records)
            some = take(batch, slice(low * augmentations, high * augmentations))
            yield self._filled(some, size * augmentations), high - low

    def _filled(self, rows: Batch, wanted: int) -> Batch:
        """Filled up to this many rows with rows that are not private and do not count."""
        missing = wanted - row_count(rows)
        if not missing:
            return rows
        return joined(rows, take(self._fill(rows, wanted), slice(0, missing)))

    def _fill(self, rows: Batch, count: int) -> Batch:
        """`count` rows that are not private, of this form; they are copied before the model sees them."""
        key = (*_form(rows), count, *(x.device for x in tensors(rows)))
        if key not in self._fills:
            self._fills.clear()  # most runs have one form
            self._fills[key] = copied(cycled(self._trial_rows(rows), count))
        return self._fills[key]

    @property
    def _device(self) -> torch.device:
        return self._present.layout.device


def question_about(layout: Layout, origin: Tensor | None, metric: Metric | TailProjection) -> ClippedSumRule:
    """Which norms, and which sum, an origin and a metric ask for."""
    start = None if origin is None else layout.vector(origin, "the origin")
    if metric is None:
        return ScaledNorms(layout, start, None)
    if isinstance(metric, Diagonal):
        return ScaledNorms(layout, start, layout.vector(metric.scale, "the scale of a diagonal metric"))
    if isinstance(metric, Projection):
        return ProjectedNorms(layout, start, torch.as_tensor(metric.basis))
    if isinstance(metric, TailProjection):
        return ProjectedNorms(layout, start, metric.basis, metric.start)
    raise InputError(f"a network knows the metrics Diagonal and Projection, not {type(metric).__name__}")


def add_clipped(answer: Answer, left_out: Tensor, layout: Layout, clip: Clip, total: RunningSum) -> None:
    """Add the records of a pass, clipped, but for those that are left out or whose gradient is not finite."""
    norms = answer.norms()
    if not math.isfinite(float(norms.sum())):
        spoiled = ~norms.isfinite()
        answer.silence(spoiled)
        norms, left_out = norms.masked_fill(spoiled, 1.0), left_out | spoiled
    # A little less, for the rounding of what they multiply.
    factors = rounded_down(clip.factors(norms), layout.dtype, spare=2).masked_fill_(left_out, 0.0)
    answer.add(factors, total)


@functools.lru_cache(maxsize=1024)
def _first(count: int, size: int) -> Tensor:
    """A mask of the first records of a pass."""
    return torch.arange(size) < count


def _padded(weights: Tensor, rows: int) -> Tensor:
    """The weights of the rows of a pass; those that it is filled up with count for nothing."""
    mine = weights[:rows]
    return torch.cat([mine, mine.new_ones(rows - len(mine))])


def _form(batch: Batch) -> list[tuple[str, tuple[torch.Size, torch.dtype] | None]]:
    """The parts of a batch by their places and names, which decide what a model does with them."""
    if type(batch) is tuple and len(batch) == 2 and all(type(leaf) is Tensor for leaf in batch):
        return [(f"[{i}]", (leaf.shape[1:], leaf.dtype)) for i, leaf in enumerate(batch)]
    return [
        (keystr(path), (leaf.shape[1:], leaf.dtype) if isinstance(leaf, Tensor) else None)
        for path, leaf in tree_flatten_with_path(batch)[0]
    ]
