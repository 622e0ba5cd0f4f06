"""Where private records are held: in memory as a whole, in blocks on disk, or with workers of a cluster.

That depends on how many there are, how many features they have, and what memory there is: all of it public.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from sidelight.arrays import Array
from sidelight.data.own_model import OwnModel
from sidelight.data.partitions import Blocks, BlockSource, ScratchBlocks, unnamed_file
from sidelight.data.ray_blocks import ray_cluster
from sidelight.errors import InputError, spelled

Engine = Literal["embedded", "ray"]
Progress = Callable[[int], None]


_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ki|mi|gi|ti|k|m|g|t|)b?\s*", re.IGNORECASE)
_PROCESS = 400 * 10**6  # libraries, a block that is read, encoded and asked
_LEAST = 500 * 10**6
_REMEMBERED = 25  # bytes of a record that an oracle remembers: two lengths, a class, a mark


def bytes_of(memory: str | int) -> int:
    """Of a number, or of "2GB", "1.5 GiB", "800 MB". Libraries and a block need at least 500 MB."""
    found = _SIZE.fullmatch(memory) if isinstance(memory, str) else None
    if isinstance(memory, int) and not isinstance(memory, bool):
        size = memory
    elif found is not None:
        size = int(float(found[1]) * _UNITS[found[2].lower()])
    else:
        raise InputError(f"memory is a size such as 2GB or 800MB, not {memory!r}")
    if size < _LEAST:
        raise InputError(f"memory must be at least 500 MB (libraries take half), not {memory!r}")
    return size


class Holder(Protocol):
    """What can hold blocks of records: this process, or a cluster."""

    def check_own(self, own: OwnModel, rows: Mapping[str, Array]) -> None:
        """Refuse an estimator of the user's that cannot be asked where blocks are encoded."""

    def hold(self, source: BlockSource, progress: Progress | None = None) -> Blocks:
        """The blocks of the source. Reads private records."""


@dataclass(frozen=True)
class RecordStorage:
    """Where blocks of records are held: on disk by this process, or by workers of Ray.

    Args:
        scratch: the folder of the file that holds encoded records; None takes the system's temporary one.
        engine: "embedded" or "ray".
        workers: of Ray; None: one for each processor.
        address: of a running cluster of Ray; None starts one on this machine, and stops it.
    """

    scratch: str | os.PathLike[str] | None = None
    engine: Engine = "embedded"
    workers: int | None = None
    address: str | None = None

    @contextmanager
    def started(self, files: Sequence[str]) -> Iterator[Holder]:
        """Whoever will hold the blocks, ready: what can fail for public reasons fails here, uncharged."""
        if self.engine == "embedded":
            yield self
            return
        with ray_cluster(workers=self.workers, address=self.address, scratch=self.scratch) as cluster:
            cluster.check_files(files)
            yield cluster

    def check_own(self, own: OwnModel, rows: Mapping[str, Array]) -> None:
        """Nothing: this process has asked it already."""

    def hold(self, source: BlockSource, progress: Progress | None = None) -> Blocks:
        """The blocks of the source, read and encoded by this process."""
        return ScratchBlocks(source, folder=self.scratch, progress=progress)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a statement has to say of it."""
        if self.engine == "embedded":
            return ()
        return ("the workers of the cluster are trusted with the private records, as this machine is",)

    def check(self, n: int, p: int) -> None:
        """Refuse a scratch folder that has no room for n rows of p numbers, before anything is charged."""
        folder = tempfile.gettempdir() if self.scratch is None else os.fspath(self.scratch)
        with unnamed_file(folder):
            free = shutil.disk_usage(folder).free
        needed = n * (4 * p + 17)
        if needed > free:
            raise InputError(
                f"{folder} has {free / 1e9:.1f} GB free, and encoded records need {needed / 1e9:.1f} GB; "
                f"give another folder ({spelled('scratch=', '--scratch')})"
            )


def storage_for(n: int, p: int, *, memory: str | int | None, placed: RecordStorage) -> RecordStorage | None:
    """Where n rows of p numbers go; None: they are better held in memory as a whole.

    Args:
        memory: what the process may take; None: half of what the machine has free.
    """
    limit = None if memory is None else bytes_of(memory)
    if placed.engine == "embedded" and fits_in_memory(n, p, limit):
        return None
    least = _PROCESS + n * _REMEMBERED
    if placed.engine == "embedded" and limit is not None and least > limit:
        raise InputError(
            f"{n:,} records need at least {least / 1e9:.1f} GB, whatever is on disk; {memory!r} is less"
        )
    if placed.address is None:
        placed.check(n, p)
    return placed


def fits_in_memory(n: int, p: int, memory: int | None) -> bool:
    """Whether n rows of p features are better held as a whole; None: in half of what the machine has free."""
    limit = memory if memory is not None else (_free() or 0) // 2
    return limit == 0 or _PROCESS + n * (12 * p + 60) <= limit


def _free() -> int | None:
    """Bytes that are free on this machine and within the limit of this container; None if nobody says."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            return min(free, int(file.read()))
    except (OSError, ValueError):  # no container, or one without a limit
        return free
