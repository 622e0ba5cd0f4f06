"""Private records in blocks: on disk where they do not fit in memory, or with workers of a cluster.

A sum over records is the sum of those of the blocks. So `PartitionedRows` answers a question by asking every
block and adding the shares, in the order of the blocks: who computed a share, how often and in which order
they came is of no consequence. Each share says which block and which question it answers; one that came
twice is added once, and a sum without all of them is not a sum, but an error.

Where blocks begin depends on the number of features alone. A block of 131,072 rows of 64 features is encoded
as the whole table would be, written to a scratch file and mapped into memory when it is asked. The file has
no name from the moment it is made, so that nobody can open it and the system frees it when this process ends,
however that happens.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np

from sidelight.arrays import Array, Floats, Matrix, dense
from sidelight.data.coordinates import Coordinates
from sidelight.data.features import CHANGED, EncodedRows, FeaturePlan
from sidelight.data.private_tables import PrivateTable
from sidelight.data.rows import Contents, PrivateRows, PublicRows, tally_of
from sidelight.data.rows import tally as count_marks
from sidelight.data.schema import Schema
from sidelight.data.targets import Target
from sidelight.errors import InputError, PrivacyConditionError, SidelightError
from sidelight.privacy.events import FixedSize, FullBatch, Indices, Poisson, Relation, Sampler, distinct
from sidelight.privacy.noise import Noise, keyed_generator
from sidelight.privacy.release import BoundedSum, share_of

_TOGETHER = "this method reads all records at once, but they are stored in blocks"
_NUMBERS = 1 << 23  # in a block: 32 MB as float32


# ---------------------------------------------------------------------------------------------------
# a block, and what is asked of it


class BlockRows(PrivateRows):
    """The records of one block, which begins at `start` among all."""

    __slots__ = ("_forget", "block", "start")

    def __init__(
        self,
        held: Contents,
        *,
        block: int,
        start: int,
        max_norm: float,
        forget: Callable[[], None] | None = None,
        tally: Floats | None = None,
    ) -> None:
        self.n, self.p = held.X.shape
        self.max_norm, self.block, self.start = max_norm, block, start
        self._contents, self._forget = held, forget
        self._tally = count_marks(held.null) if tally is None else tally
        self.kept = {}

    def forget(self) -> None:
        """Let go of the memory that a look at the records took; they stay where they are."""
        if self._forget is not None:
            self._forget()


class Question(Protocol):
    """A query to every block: a bounded sum over its records. It is sent to the process that holds the
    block.
    """

    def __call__(self, rows: BlockRows) -> BoundedSum: ...


class Share(NamedTuple):
    """The answer of one block. It is private: shares are added into a BoundedSum."""

    block: int
    asked: int  # the number of the question
    value: Array
    sensitivity: float
    relation: Relation

    def __repr__(self) -> str:
        return f"Share(block={self.block}, asked={self.asked}, private)"


def answer(question: Question, asked: int, rows: BlockRows) -> Share:
    """The share of a block."""
    with np.errstate(all="ignore"):  # a warning about a private value would be an output
        found = question(rows)
    rows.forget()
    return Share(rows.block, asked, share_of(found), found.sensitivity, found.relation)


def add_shares(shares: Iterable[Share], asked: int, blocks: int) -> BoundedSum:
    """The sum over all blocks, in their order.

    Guarantee: each block is in it exactly once. A share of another question, or a second one of a block, is
    not added; if one is missing there is no sum.
    """
    found: dict[int, Share] = {}
    for share in shares:
        if share.asked == asked and 0 <= share.block < blocks:
            found.setdefault(share.block, share)
    if len(found) != blocks:
        raise SidelightError("a block of private records gave no answer, so there is no sum over all records")
    ordered = [found[block] for block in range(blocks)]
    total = np.array(ordered[0].value, dtype=np.float64)
    for share in ordered[1:]:
        total += share.value
    largest = max(share.sensitivity for share in ordered)
    return BoundedSum(total, sensitivity=largest, relation=ordered[0].relation)


class Blocks(Protocol):
    """A holder of record blocks that answers queries about them."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Records in each block: public."""

    def ask(self, question: Question, asked: int) -> Iterable[Share]:
        """The share of every block, in any order."""

    def digests(self) -> Sequence[bytes]:
        """Of the records of each block, in their order; as private as these."""

    def close(self) -> None:
        """Free memory and files."""


class PartitionedRows(PrivateRows):
    """Bounded private records in blocks.

    Guarantee: as `PrivateRows`; what a record contributes to a sum depends on its own block's records no more
    than on others'. Methods that ask for sums over records can use them. Those that read all records together
    cannot, and say so before anything is charged (`methods.task.check_method`).
    """

    __slots__ = ("_numbers", "blocks")
    partitioned = True

    def __init__(self, blocks: Blocks, *, p: int, max_norm: float) -> None:
        self.n, self.p, self.max_norm = sum(blocks.sizes), p, float(max_norm)
        self.blocks = blocks
        self._numbers = itertools.count()

    def summed(self, question: Question) -> BoundedSum:
        """The question's sum over all records."""
        asked = next(self._numbers)
        return add_shares(self.blocks.ask(question, asked), asked, len(self.blocks.sizes))

    @property
    def _contents(self) -> NoReturn:  # type: ignore[override]
        raise PrivacyConditionError(_TOGETHER)

    def compute(
        self, fn: Callable[[Matrix, Floats], Floats], *, sensitivity: float, relation: Relation
    ) -> NoReturn:
        raise PrivacyConditionError(_TOGETHER)

    def mapped(self, matrix: Array, *, max_norm: float) -> NoReturn:
        raise PrivacyConditionError(_TOGETHER)

    def joined(self, public: PublicRows) -> PartitionedRows:
        """These records and the public ones, in a block of their own; all treated as private from here on."""
        return PartitionedRows(
            _WithPublic(self.blocks, public, self.max_norm), p=self.p, max_norm=self.max_norm
        )

    def bind(self, noise: Noise) -> None:
        if noise.repeatable:
            noise.bind("blocks", self.n, self.p, *self.blocks.digests())

    def __repr__(self) -> str:
        return f"PartitionedRows(n={self.n}, p={self.p})"


class _WithPublic:
    """Private blocks, plus one block of public records."""

    def __init__(self, others: Blocks, public: PublicRows, max_norm: float) -> None:
        rows = PrivateRows(dense(public.X).astype(np.float32), public.y, max_norm=max_norm)
        self._others, start = others, sum(others.sizes)
        self._own = BlockRows(rows._contents, block=len(others.sizes), start=start, max_norm=max_norm)
        self.sizes = (*others.sizes, public.n)

    def ask(self, question: Question, asked: int) -> Iterator[Share]:
        yield from self._others.ask(question, asked)
        yield answer(question, asked, self._own)

    def digests(self) -> list[bytes]:
        return [*self._others.digests(), digest_of_block(self._own)]

    def close(self) -> None:
        self._others.close()


def digest_of_block(rows: BlockRows) -> bytes:
    """A hash of the records' bytes: equal for records that agree in every bit."""
    found = hashlib.blake2b(digest_size=32)
    for part in rows._contents:
        found.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    rows.forget()
    return found.digest()


# ---------------------------------------------------------------------------------------------------
# records that lie in blocks, each of which draws its own share


@dataclass(frozen=True, eq=False)
class BlockSample:
    """The records of one step where records lie in blocks, which may be in other processes.

    The records of a block are a function of `key`, which the sampler's noise drew for this step, and of the
    number of the block: computing the share of a block a second time takes the same records.

    Args:
        key: secret, and new for every step.
        share: what each block takes: a probability for each of its records, or its number of records.
        chosen: the records themselves by their place among all, for a sampler of another kind.
    """

    key: bytes
    share: float | tuple[int, ...] | None
    chosen: Indices | None = None

    def indices(self, block: int, start: int, size: int) -> Indices:
        """Of the records of this block, which begins at `start` among all; counted within the block."""
        if self.chosen is not None:
            low, high = np.searchsorted(self.chosen, [start, start + size])
            return self.chosen[low:high] - start
        generator = keyed_generator(self.key, "block", block)
        if isinstance(self.share, float):
            return distinct(size, int(generator.binomial(size, self.share)), generator)
        return distinct(size, 0 if self.share is None else self.share[block], generator)

    def __repr__(self) -> str:
        return "BlockSample(private)"


def sample_blocks(sampler: Sampler, sizes: tuple[int, ...], noise: Noise) -> BlockSample | None:
    """The records of one step, from blocks of these sizes; None stands for all of them.

    The law is that of `sampler.indices`. Poisson: records are independent, so blocks are. Fixed size: how
    many of a uniform set lie in each block is multivariate hypergeometric, and given these numbers the sets
    within blocks are uniform and independent.
    """
    if type(sampler) is FullBatch:
        return None
    n, key = sum(sizes), noise.generator.bytes(32)
    if type(sampler) is Poisson:
        return BlockSample(key, float(sampler.sampling_probability))
    if type(sampler) is FixedSize and n < _MOST_SPLIT:
        sampler.expected_batch_size(n)
        counts = noise.generator.multivariate_hypergeometric(sizes, int(sampler.size), method="marginals")
        return BlockSample(key, tuple(int(count) for count in counts))
    chosen = sampler.indices(n, noise)
    return None if chosen is None else BlockSample(key, None, chosen)


_MOST_SPLIT = 10**9  # records that NumPy splits; of more, the set is drawn as a whole

Sample: TypeAlias = "Indices | BlockSample | None"  # the records of a step; None stands for all


# ---------------------------------------------------------------------------------------------------
# where blocks come from: a table, through its schema


class BlockSource(Protocol):
    """Private records that can be read block by block, from any block on, and give the same each time."""

    @property
    def sizes(self) -> tuple[int, ...]: ...

    @property
    def width(self) -> int:
        """Numbers of a row."""

    @property
    def max_norm(self) -> float: ...

    def read(self, blocks: range) -> Iterator[tuple[int, PrivateRows]]:
        """These blocks, in their order. Reads private records."""


def block_rows(p: int) -> int:
    """How many rows of p numbers are in a block."""
    return max(256, _NUMBERS // max(1, p))


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """The records of a table as a schema, bounds and a target make rows of them, `rows` in a block."""

    schema: Schema
    table: PrivateTable
    target: Target
    coordinates: Coordinates
    rows: int

    @property
    def width(self) -> int:
        return self.coordinates.p

    @property
    def max_norm(self) -> float:
        return self.coordinates.max_norm

    @property
    def sizes(self) -> tuple[int, ...]:
        n, rows = len(self.table), self.rows
        return tuple(min(rows, n - start) for start in range(0, n, rows))

    def read(self, blocks: range) -> Iterator[tuple[int, PrivateRows]]:
        sizes, start = self.sizes, blocks.start * self.rows
        within = range(start, start + sum(sizes[block] for block in blocks))
        pieces = FeaturePlan(self.schema, self.coordinates.own).encode_pieces(self.table, within, self.rows)
        for block, piece in zip(blocks, _regrouped(pieces, [sizes[b] for b in blocks]), strict=True):
            yield block, self.coordinates.of_target(piece.X, piece.y, self.target, misfits=piece.misfits)


def _regrouped(pieces: Iterator[EncodedRows], sizes: list[int]) -> Iterator[EncodedRows]:
    """Rows and targets in groups of these sizes."""
    waiting: list[EncodedRows] = []
    for size in sizes:
        while sum(len(piece.y) for piece in waiting) < size:
            piece = next(pieces, None)
            if piece is None:
                raise InputError(CHANGED)
            waiting.append(piece)
        whole = [np.concatenate(part) if len(part) > 1 else part[0] for part in zip(*waiting, strict=True)]
        waiting = [EncodedRows(*(part[size:] for part in whole))]
        yield EncodedRows(*(part[:size] for part in whole))
    if sum(len(piece.y) for piece in waiting) or any(len(piece.y) for piece in pieces):
        raise InputError(CHANGED)


# ---------------------------------------------------------------------------------------------------
# blocks on disk


class ScratchBlocks:
    """Encoded blocks in a file without a name, of which the part that is asked is in memory.

    Args:
        source: where the records come from.
        blocks: which of its blocks to hold; None: all.
        folder: where the file is; None takes the system's folder for temporary files.
        progress: called with the number of encoded records.
    """

    def __init__(
        self,
        source: BlockSource,
        blocks: range | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        every = source.sizes
        starts = [0, *itertools.accumulate(every)]
        layouts: list[tuple[int, _Layout, Floats]] = []
        # A warning about a private value would be an output, also in the log of a worker.
        with unnamed_file(folder) as file, np.errstate(all="ignore"):
            for block, rows in source.read(range(len(every)) if blocks is None else blocks):
                layouts.append((block, _write(file, rows._contents), tally_of(rows)))
                if progress is not None:
                    progress(starts[block] + rows.n)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # which keeps the file
        self._held = [
            BlockRows(
                layout.on(mapped), block=block, start=starts[block], max_norm=source.max_norm,
                forget=partial(layout.forget, mapped), tally=tally,
            )
            for block, layout, tally in layouts
        ]  # fmt: skip
        self.sizes = tuple(rows.n for rows in self._held)

    def ask(self, question: Question, asked: int) -> Iterator[Share]:
        for rows in self._held:
            yield answer(question, asked, rows)

    def digests(self) -> list[bytes]:
        return [digest_of_block(rows) for rows in self._held]

    def close(self) -> None:
        self._held = []  # nobody maps the file any more: it is gone


class _Layout(NamedTuple):
    """Where the arrays of a block are in a file, each a multiple of 8 bytes behind the other."""

    at: int
    kinds: list[tuple[np.dtype[np.generic], tuple[int, ...]]]

    def on(self, mapped: mmap.mmap) -> Contents:
        found, at = [], self.at
        for kind, shape in self.kinds:
            count = math.prod(shape)
            found.append(np.frombuffer(mapped, dtype=kind, count=count, offset=at).reshape(shape))
            at += _padded(count * kind.itemsize)
        return Contents(*found)

    def forget(self, mapped: mmap.mmap) -> None:
        """Pages stay in the system's cache, and count as this process's no more."""
        if hasattr(mmap, "MADV_DONTNEED"):
            length = sum(_padded(math.prod(shape) * kind.itemsize) for kind, shape in self.kinds)
            mapped.madvise(mmap.MADV_DONTNEED, self.at, length)


def _padded(size: int) -> int:
    return size + -size % 8


def _write(file: IO[bytes], held: Contents) -> _Layout:
    """Append the arrays of a block, at the beginning of a page."""
    at = file.seek(0, os.SEEK_END)
    at += -at % mmap.ALLOCATIONGRANULARITY
    file.seek(at)
    kinds = []
    try:
        for part in held:
            array = np.ascontiguousarray(part)
            file.write(array.reshape(-1).view(np.uint8).data)
            file.write(bytes(-array.nbytes % 8))
            kinds.append((array.dtype, array.shape))
        file.flush()
    except OSError as error:
        raise SidelightError(
            f"encoded records cannot be written: {error.strerror or 'output failed'}. Give a scratch folder "
            "with more room; what this run cost is spent"
        ) from None
    return _Layout(at, kinds)


def unnamed_file(folder: str | os.PathLike[str] | None) -> IO[bytes]:
    """A file for this process alone, which no folder lists."""
    try:
        return tempfile.TemporaryFile(dir=folder, prefix=".sidelight-")
    except OSError as error:
        where = tempfile.gettempdir() if folder is None else folder
        raise InputError(f"{where} cannot be written: {error.strerror or 'output failed'}") from None
