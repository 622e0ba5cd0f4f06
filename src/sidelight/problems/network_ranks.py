"""The processes of one run on a network: rank 0 decides, every rank sums its share of a batch.

    rank 0        plans, charges, draws batches and noise, releases, moves the parameters, writes everything
    every rank    Σ clip(M(g_i − o)) over its share: every size-th record of the batch that rank 0 has drawn
    together      rank 0's question and parameters go to all; one reduce of the sums in float64 to rank 0

So there is one account, one source of noise and one sampling, as with one process, and a rank has no state
that could differ: each question brings the parameters with it. Ranks see each other's sums before the noise,
and each reads private records: they are trusted alike, and so is the network between them.

A rank that fails tells the others, and a rank that dies closes its connections: every other rank then raises
`RankLost`, once. What was charged stays charged, since rank 0 ends without settling it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sidelight import errors
from sidelight.arrays import Json
from sidelight.clipping import Clip, Metric
from sidelight.errors import INTERRUPTS, InputError, RankLost, SidelightError
from sidelight.oracles.network.flat import trainable
from sidelight.privacy.events import Indices, Relation
from sidelight.privacy.release import BoundedSum, across
from sidelight.problems.isolation import record_seed

RANKS_TRUSTED = (
    "the ranks and the network between them are trusted with the private records, as this machine is"
)
_PATIENCE = timedelta(days=7)  # for the work of rank 0 on public records before the first step
_DEFAULT_TIMEOUT = timedelta(minutes=30)
_KEPT = "What was charged stays charged; fit(..., resume=True) continues where there are checkpoints"


# ---------------------------------------------------------------------------------------------------
# what rank 0 tells the others


class Setup(NamedTuple):
    """Everything is agreed on; the seed by which public records are split."""

    seed: int


class SumQuestion(NamedTuple):
    """A clipped sum over the records at these indices (None: all), of which every rank takes its share."""

    indices: Indices | None
    seed: int  # a secret of this question, for the random numbers of models and augmentations
    expected: float | None  # records of a rank's share, on average: sizes of passes follow
    clip: Clip | None  # None: not the sum, but how many of these records contribute nothing to it
    origin: Tensor | None
    metric: Metric
    relation: Relation
    buffers: dict[str, Tensor]  # that have changed since the last question


class Drawn(NamedTuple):
    """The records of the next batch, of a loop that is the caller's own."""

    indices: Indices | None


class Applied(NamedTuple):
    """A direction follows, and this may be shown of its step."""

    entry: Json


class Done(NamedTuple):
    """The run has ended; the model's state follows."""

    result: object


class _Failed(NamedTuple):
    kind: str
    text: str


class Summing(Protocol):
    """What can answer a question by itself."""

    @property
    def n(self) -> int: ...

    def own_sum(self, question: SumQuestion, indices: Indices) -> BoundedSum: ...


class Seeds:
    """Seeds for what a model or an augmentation draws: of the question at hand, else from a source."""

    def __init__(self, source: Callable[[], int]) -> None:
        self._source, self._count = source, 0
        self._secret: int | None = None

    def begin(self, question: SumQuestion, rank: int) -> None:
        """Draw from this question's secret, in this rank's part of it."""
        self._secret, self._count = record_seed(question.seed, rank), 0

    def end(self) -> None:
        """The question is answered: draw from the source again."""
        self._secret = None

    def __call__(self) -> int:
        if self._secret is None:
            return self._source()
        self._count += 1
        return record_seed(self._secret, self._count) >> 1


# ---------------------------------------------------------------------------------------------------


class Ranks:
    """Talks to the other ranks. Every method is called by all of them, in the same order.

    rank, size: which of how many this is.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device
        self.world, self.broken = dist.group.WORLD, False
        usual = _timeout()
        with self._connected():
            # Messages go over gloo also where sums go over nccl, whose waiting would be cut short.
            self._patient = dist.new_group(backend="gloo", timeout=usual)
            self._usual = dist.new_group(backend="gloo", timeout=usual)
            kind = "nccl" if device.type == "cuda" else "gloo"
            self._sums = dist.new_group(backend=kind, timeout=usual)
            _wait_longer(self._patient)  # not before: a rank may die while the groups are made
        self._asked = False  # a question: from then on rank 0 is not long in coming
        self._sent: dict[str, Tensor] = {}

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def agree(self, terms: Mapping[str, str] | SidelightError) -> None:
        """Raise on every rank if one has other terms than rank 0, or an error in place of them."""
        self._asked, self._sent = False, {}
        mine = _said(terms) if isinstance(terms, SidelightError) else dict(terms)
        every = self._gather(mine)
        if isinstance(terms, SidelightError):
            raise terms
        for rank, one in enumerate(every):
            if isinstance(one, _Failed):
                raise _as_error(one, rank)
        other = [rank for rank in range(self.size) if every[rank] != every[0]]
        if other:
            names = [name for name in every[0] if every[other[0]].get(name) != every[0][name]]
            raise InputError(
                f"rank {other[0]} has another {', '.join(names) or 'set of settings'} than rank 0. Every "
                "rank runs the same script, with the same settings and the whole dataset: each batch is "
                "split over the ranks by sidelight. Nothing was charged"
            )

    def tell(self, message: object) -> None:
        """Rank 0's message to all others."""
        self._pass_on(message)

    def hear(self) -> object:
        """What rank 0 tells; an error of rank 0 is raised."""
        message = self._pass_on(None)
        if isinstance(message, _Failed):
            raise _as_error(message, 0)
        return message

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """On rank 0: an error here is raised on the other ranks, too."""
        try:
            yield
        except BaseException as error:
            if not self.broken:
                with contextlib.suppress(SidelightError):
                    self.tell(_said(error))
            raise

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's values into these tensors of every rank."""
        with self._connected(), torch.no_grad():
            for one in tensors:
                whole = one.detach().contiguous()
                dist.broadcast(whole, src=0, group=self._group_for(whole))
                if whole.data_ptr() != one.data_ptr():
                    one.copy_(whole)

    def share_state(self, model: nn.Module) -> None:
        """Parameters and buffers, trained or not."""
        self.share([*model.parameters(), *model.buffers()])

    # -----------------------------------------------------------------------------------------------
    # a sum

    def ask(self, problem: Summing, model: nn.Module, question: SumQuestion) -> BoundedSum:
        """On rank 0: the sum over all ranks."""
        changed = {name: one for name, one in _buffers(model).items() if not _same(one, self._sent.get(name))}
        self._sent |= changed
        self.tell(question._replace(buffers=changed, origin=_on_host(question.origin)))
        total = self.answer(problem, model, question)
        if total is None:
            raise RankLost("rank 0 has no sum")
        return total

    def answer(self, problem: Summing, model: nn.Module, question: SumQuestion) -> BoundedSum | None:
        """This rank's share, added to those of the others; the sum on rank 0, and None elsewhere."""
        own = dict(model.named_buffers())
        with torch.no_grad():
            for name, value in question.buffers.items():
                own[name].copy_(value)
        self.share(trainable(model))
        part, error = None, None
        try:
            part = problem.own_sum(question, self.share_of(question.indices, problem.n))
        except INTERRUPTS:
            raise
        except BaseException as raised:
            error = raised
        every = self._gather(None if error is None else _said(error))
        failed = [rank for rank, one in enumerate(every) if one is not None]
        if failed:
            self.broken = True  # all ranks leave here
        if error is not None:
            raise error
        if failed or part is None:
            raise _as_error(every[failed[0]], failed[0])
        return across(part, self._reduced)

    def share_of(self, indices: Indices | None, n: int) -> Indices:
        """The records of this rank: every size-th of the batch."""
        return np.arange(self.rank, n, self.size) if indices is None else indices[self.rank :: self.size]

    def _reduced(self, value: Tensor) -> Tensor | None:
        with self._connected():
            dist.reduce(value, dst=0, group=self._sums)
        return value if self.leads else None

    # -----------------------------------------------------------------------------------------------

    def _gather(self, mine: object) -> list[Any]:
        every: list[Any] = [None] * self.size
        with self._connected():
            dist.all_gather_object(every, mine, group=self._usual)
        return every

    def _pass_on(self, message: object) -> object:
        asked, group = isinstance(message, SumQuestion), self._usual if self._asked else self._patient
        try:
            pickle.dumps(message)
        except Exception as error:
            kind = type(error).__name__
            raise InputError(
                f"a part of the method cannot be sent to other ranks ({kind}): define its class on the top "
                "level of a module"
            ) from None
        box = [message]
        with self._connected():
            dist.broadcast_object_list(box, src=0, group=group)
        self._asked = self._asked or asked or isinstance(box[0], SumQuestion | Drawn)
        return box[0]

    def _group_for(self, one: Tensor) -> Any:
        return self._sums if one.device.type == self.device.type else self._usual

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        if self.broken:
            raise RankLost(f"rank {self.rank} has lost the others before. {_KEPT}")
        try:
            yield
        except RuntimeError as error:  # of gloo and nccl; it tells of sockets and no records
            self.broken = True
            first = str(error).strip().split("\n")[0][:200]
            raise RankLost(
                f"another rank has ended, or does not answer ({first}). Rank {self.rank} of {self.size} ends "
                f"too. {_KEPT}"
            ) from None


_known: Ranks | None = None


def ranks_of(device: torch.device) -> Ranks | None:
    """The other processes, if there are any: of torch.distributed, or as torchrun has started them."""
    global _known
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if any(name not in os.environ for name in needed) or int(os.environ["WORLD_SIZE"]) < 2:
            return None
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        except RuntimeError as error:
            first = str(error).strip().split("\n")[0][:200]
            raise RankLost(f"the ranks could not connect ({first}). Nothing was charged") from None
    if dist.get_world_size() < 2:
        return None
    if _known is None or _known.world is not dist.group.WORLD or _known.broken or _known.device != device:
        _known = Ranks(device)
    return _known


def refuse_wrapped(model: nn.Module) -> None:
    """Raise InputError for a model whose gradients or parameters somebody else spreads over ranks."""
    wrappers = [m for m in model.modules() if type(m).__name__ in ("DistributedDataParallel", "DataParallel")]
    if wrappers:
        kind = type(wrappers[0]).__name__
        raise InputError(
            f"the model is wrapped in {kind}, which would average gradients before they are clipped. Pass "
            "the model itself, Trainer(model.module, ...), without DDP, fabric.setup or accelerator.prepare: "
            "sidelight splits each batch over the ranks"
        )
    sharded = any(type(m).__name__.startswith("FullyShardedDataParallel") for m in model.modules())
    if sharded or any(type(p.data).__name__ == "DTensor" for p in model.parameters()):
        raise InputError(
            "the parameters of the model are spread over ranks (FSDP, tensor parallel), and sidelight needs "
            "all of them on each: pass the model as it was before"
        )


def _wait_longer(group: Any) -> None:
    """Let a group wait for rank 0 as long as its public training may take, where PyTorch can (2.13 does)."""
    lengthen = getattr(dist.distributed_c10d, "_set_pg_timeout", None)
    if lengthen is not None:
        lengthen(_PATIENCE, group)


def _timeout() -> timedelta:
    """That of the process group, as the user has set it."""
    try:
        group: Any = dist.group.WORLD
        found = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return _DEFAULT_TIMEOUT
    return found if isinstance(found, timedelta) else _DEFAULT_TIMEOUT


def _said(error: BaseException) -> _Failed:
    """An error for other ranks. Only what sidelight says itself: anything else may quote a record."""
    own = isinstance(error, SidelightError)
    return _Failed(type(error).__name__, str(error) if own else "")


def _as_error(failed: _Failed, rank: int) -> SidelightError:
    kind = getattr(errors, failed.kind, None)
    if failed.text and isinstance(kind, type) and issubclass(kind, SidelightError):
        return kind(f"rank {rank}: {failed.text}")
    return RankLost(f"rank {rank} failed ({failed.kind}), and all others end. {_KEPT}")


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().cpu().clone() for name, one in model.named_buffers()}


def _same(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)


def _on_host(origin: Tensor | None) -> Tensor | None:
    return None if origin is None else origin.detach().cpu()
