"""Private gradients of a PyTorch model: Σ c_i M(g_i − o), clipped one by one and never written out.

One forward and one backward pass collect, for every layer, its inputs and the gradients of its outputs
(capture.py). From these come the norms ‖M(g_i − o)‖ (pieces.py), rounded upwards so that no record ever
exceeds its bound, and then the weighted sum, one product a layer, without a second backward pass. Memory
grows with the activations, not with records × parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sidelight.errors import AssumptionError, InputError, SidelightError
from sidelight.methods.parts import Clip, Diagonal, Metric, Projection
from sidelight.oracles.attention import attention
from sidelight.oracles.batches import Batch, call, invented, row_count, take, two_different
from sidelight.oracles.capture import Capture, Wiring, tensors, working
from sidelight.oracles.check import Losses, examine, keeps_apart, refuse, untouched
from sidelight.oracles.lengths import Answer, Coordinates, Layout, Lengths, Question, Total
from sidelight.oracles.recurrent import unrolled
from sidelight.oracles.rounding import plain_products
from sidelight.oracles.tail import Tail, TailProjection
from sidelight.privacy.events import Relation, check_relation
from sidelight.privacy.release import BoundedSum

__all__ = ["NetworkOracle"]

_STAND_INS = (attention, unrolled)  # imported so that they are registered


class NetworkOracle:
    """Questions about the gradients of `loss(model(inputs), targets)`, one number a record.

    Parameters as a flat vector: the trainable ones of model.parameters(), in order. The model is used at its
    present values and in its present mode, and left as it was. `example`, if given, is a batch of public rows
    of which two are taken to check the model's layers; without two different ones, two are invented.
    """

    def __init__(self, model: nn.Module, loss: Losses, *, example: Batch | None = None) -> None:
        self.model, self.loss = model, loss
        self._example = example
        self._wiring: tuple[tuple[int, ...], Wiring] | None = None
        if not self.parameters:
            raise InputError("the model has no trainable parameters")

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, each once."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def dimension(self) -> int:
        """The length of the flat vector."""
        return sum(p.numel() for p in self.parameters)

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
    ) -> BoundedSum:
        """Σ_i c_i·M(g_i − o) over the records of a batch, with c_i = clip.factors(‖M(g_i − o)‖).

        Formal guarantee: ‖c_i·M(g_i − o)‖ ≤ clip.bound for every record, in exact arithmetic on the numbers
        that are added up. So the sensitivity is clip.bound for add-or-remove-one and twice that for
        replace-one. The origin is inside every term and not added back: do that once, after the noise, times
        a constant. A record whose gradient is not finite contributes zero. An empty batch gives zeros.

        `augmentations`: that many consecutive rows are one record, and their gradients are averaged before
        clipping. `micro_batch` (records at a time; by default halves of a large batch) changes memory and
        speed only.

        A record on which the model or the loss fails (a class that does not exist) contributes zero as well:
        an error would tell of it, and may quote it. What fails for every record is found by `check` before.
        """
        times = 2.0 if check_relation(relation) == "replace-one" else 1.0
        question = self._question(origin, metric)
        total = question.new_total(self._records(batch, augmentations), clip.bound)
        self.check(batch)
        for some in self._parts(batch, micro_batch, augmentations):
            self._add(some, augmentations, question, clip, total)
        return BoundedSum(question.finished(total), sensitivity=times * clip.bound, relation=relation)

    def check(self, batch: Batch) -> None:
        """Raise AssumptionError if one record's gradient cannot be told from its batch.

        Of `batch` only shapes and types are used, which are public: the rows that go through the model are
        those of `example`, or two invented ones. So this may run before anything is charged.
        """
        refuse(self.model)
        self._wired(batch)

    def norms(
        self,
        batch: Batch,
        *,
        origin: Tensor | None = None,
        metric: Metric | TailProjection = None,
        micro_batch: int | None = None,
        augmentations: int = 1,
    ) -> Tensor:
        """Upper bounds of ‖M(g_i − o)‖, one a record (float64). For public records and for tests only."""
        question = self._question(origin, metric)
        parts = [torch.zeros(0, dtype=torch.float64)]
        for some in self._parts(batch, micro_batch, augmentations):
            parts.append(self._ask(some, augmentations, question).norms().cpu())
        return torch.cat(parts)

    def mean_gradient(self, batch: Batch) -> Tensor:
        """The mean gradient of public records, flat: one plain backward pass."""
        return self.loss_and_gradient(batch)[1]

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Tensor]:
        """The mean loss of public records, and its gradient."""
        parameters = self.parameters
        with torch.enable_grad():
            losses = self._losses(take(batch, slice(None)))
            loss = float(losses.detach().double().mean()) if len(losses) else 0.0
            if not (len(losses) and losses.requires_grad):
                return loss, torch.zeros(self.dimension, dtype=self._dtype, device=self._device)
            grads = torch.autograd.grad(losses.mean(), parameters, allow_unused=True)
        whole = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
        return loss, torch.cat([g.reshape(-1).to(self._dtype) for g in whole])

    def _question(self, origin: Tensor | None, metric: Metric | TailProjection) -> Question:
        layout = Layout(self.parameters, self._dtype)
        start = None if origin is None else layout.vector(origin, "the origin")
        if metric is None:
            return Lengths(layout, start, None)
        if isinstance(metric, Diagonal):
            return Lengths(layout, start, layout.vector(metric.scale, "the scale of a diagonal metric"))
        if isinstance(metric, Projection):
            return Coordinates(layout, start, torch.as_tensor(metric.basis))
        if isinstance(metric, TailProjection):
            return Tail(layout, start, metric)
        raise InputError(f"a network knows the metrics Diagonal and Projection, not {type(metric).__name__}")

    def _add(self, batch: Batch, augmentations: int, question: Question, clip: Clip, total: Total) -> None:
        try:
            answer = self._ask(batch, augmentations, question)
        except Exception as error:
            if not _tells_of_a_record(error):
                raise
            answer = None
        if answer is None:  # outside of the handler, so that the failed pass is freed
            return self._add_halves(batch, augmentations, question, clip, total)
        norms = answer.norms()
        finite = norms.isfinite()
        if not bool(finite.all()):
            # A product with NaN is NaN whatever the factor, so these records are left out from the beginning.
            rest = take(batch, finite.repeat_interleave(augmentations).to(tensors(batch)[0].device))
            return self._add(rest, augmentations, question, clip, total) if bool(finite.any()) else None
        # Rounded downwards, so that turning them into a shorter type cannot lengthen a contribution.
        factors = clip.factors(norms) * (1 - 2 * torch.finfo(self._dtype).eps)
        with plain_products(self._device):
            answer.add(factors.to(self._dtype), total)

    def _add_halves(
        self, batch: Batch, augmentations: int, question: Question, clip: Clip, total: Total
    ) -> None:
        """The pass failed: half of the records at a time, until those that it fails on are alone."""
        rows = row_count(batch)
        middle = rows // augmentations // 2 * augmentations
        if middle:
            for half in (slice(0, middle), slice(middle, rows)):
                self._add(take(batch, half), augmentations, question, clip, total)

    def _ask(self, batch: Batch, augmentations: int, question: Question) -> Answer:
        """The answer for these records."""
        refuse(self.model)
        return self._pass(batch, row_count(batch) // augmentations, question, self._wired(batch))

    def _pass(self, batch: Batch, count: int, question: Question, wiring: Wiring) -> Answer:
        """One forward and one backward pass."""
        answer, rows, before = question.answer(count), row_count(batch), self._buffers()
        with Capture(self.model, wiring, rows=rows, count=count, receive=answer.receive) as capture:
            capture.backward(self._losses(batch))
        if self._buffers() != before:
            raise AssumptionError(
                "the model changed a buffer while it saw private records, and so carries them out of the "
                "mechanism. Stop it from doing so: track_running_stats=False, or .eval() on that module"
            )
        return answer

    def _losses(self, batch: Batch) -> Tensor:
        losses = self.loss(call(self.model, batch[0]), batch[1])
        if losses.shape != (row_count(batch),):
            raise AssumptionError(
                f"the loss must give one number a record, so one dimension; it has {losses.dim()}. "
                "Use reduction='none', and average over positions yourself"
            )
        return losses

    def _wired(self, batch: Batch) -> Wiring:
        """The wiring, checked anew when other parameters are trained, or in another mode, than last time."""
        key = (*(id(p) for p in self.parameters), *(module.training for module in self.model.modules()))
        if self._wiring is None or self._wiring[0] != key:
            rows = None if self._example is None else two_different(self._example)
            rows = invented(batch, 2) if rows is None else rows  # equal rows would hide that they are mixed
            wiring = examine(self.model, self.loss, rows)
            keeps_apart(self.model, self.loss, rows)
            with untouched(self.model):  # a pass as it will be, in the present mode
                self._pass(rows, 2, self._question(None, None), wiring)
            self._wiring = key, wiring  # last: a model that was refused once is refused again
        return self._wiring[1]

    def _records(self, batch: Batch, augmentations: int) -> int:
        rows = row_count(batch)
        if augmentations < 1 or rows % augmentations:
            raise InputError(
                f"the batch is not a whole number of records of augmentations={augmentations} rows"
            )
        return rows // augmentations

    def _parts(self, batch: Batch, micro_batch: int | None, augmentations: int) -> Iterator[Batch]:
        records = self._records(batch, augmentations)
        if micro_batch is None:
            # Inputs and output gradients are held at once, where a plain step frees one for the other. Half a
            # batch at a time, that is no more memory than a plain step takes.
            micro_batch = max(1, records if records < 256 else -(-records // 2))
        if micro_batch < 1:
            raise InputError(f"micro_batch must be at least 1, not {micro_batch}")
        for low in range(0, records, micro_batch):
            yield take(batch, slice(low * augmentations, (low + micro_batch) * augmentations))

    def _buffers(self) -> list[tuple[int, int]]:
        return [(id(buffer), buffer._version) for buffer in self.model.buffers()]

    @property
    def _dtype(self) -> torch.dtype:
        return working(*(p.dtype for p in self.parameters))

    @property
    def _device(self) -> torch.device:
        return self.parameters[0].device


def _tells_of_a_record(error: Exception) -> bool:
    """Whether an error may come from a record's values; what sidelight refuses, and memory, do not."""
    if isinstance(error, SidelightError | MemoryError | torch.OutOfMemoryError):
        return False
    return "allocate memory" not in str(error)
