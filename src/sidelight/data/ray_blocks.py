"""Blocks of private records that workers of a Ray cluster hold: each adds its own, the driver adds the sums.

A worker reads its part of the table and keeps the encoded blocks in a scratch file of its own. Every question
goes to all workers with the parameters, and one share a block comes back. The driver alone charges, adds and
draws noise.

A worker that ends is replaced. The new one reads the same records again, and the question is asked anew: what
a block answers is a function of its records and of the question, in which there is the key that its sample is
drawn with (`partitions.BlockSample`). So it does not matter how often it was asked. Records that are not what
they were when they were first read end the run.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array
from sidelight.data.own_model import OwnModel
from sidelight.data.partitions import BlockSource, Question, ScratchBlocks, Share
from sidelight.errors import INTERRUPTS, InputError, MissingDependency, SidelightError, first_line
from sidelight.files import private_folder

_TRIES = 10  # of one question with one worker, each with a new process
_PATIENCE = 15.0  # seconds until processors that nobody uses any more are known to be free
_TOKEN = secrets.token_hex(32)  # of clusters that this process starts: Ray reads it once
_STORE = 100 * 10**6  # bytes of shared memory; parameters and sums are small


class BlockWorker:
    """A process that holds blocks. Ray makes it an actor."""

    def __init__(self) -> None:
        self._held: ScratchBlocks | None = None

    def missing(self, files: Sequence[str]) -> list[str]:
        """Those of these files that this worker cannot read."""
        return [name for name in files if not os.access(name, os.R_OK)]

    def read(self, source: BlockSource, blocks: range, scratch: str | None) -> list[bytes]:
        """Read and encode blocks; digests of them."""
        self._held = ScratchBlocks(source, blocks, folder=scratch)
        return self._held.digests()

    def predict(self, own: OwnModel, rows: Mapping[str, Array]) -> NDArray[np.float32]:
        """What the user's estimator says here of rows that are public."""
        return own.of_columns(rows, len(next(iter(rows.values()))))

    def ask(self, question: Question, asked: int) -> list[Share]:
        """A share of each block."""
        if self._held is None:
            raise SidelightError("a worker got a request before it had read its records")
        return list(self._held.ask(question, asked))

    def process(self) -> int:
        """The number of the process, for tests that end it."""
        return os.getpid()


@dataclass(eq=False)
class RayCluster:
    """Workers that hold nothing yet: everything that can fail for public reasons has not failed."""

    ray: ModuleType
    workers: list[Any]  # handles of actors: Ray has no type for them
    scratch: str | None = None
    replaced: int = field(default=0, init=False)

    def replace(self, place: int) -> None:
        """A new process for a worker that ended."""
        self.replaced += 1
        with contextlib.suppress(Exception):
            self.ray.kill(self.workers[place])
        self.workers[place] = _worker(self.ray)

    def check_files(self, files: Sequence[str]) -> None:
        """Refuse files that some worker does not see, before anything is charged."""
        try:
            answers = self.ray.get([worker.missing.remote(list(files)) for worker in self.workers])
        except self.ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"the Ray workers did not start: {reason}") from None
        for missing in answers:
            if missing:
                raise InputError(
                    f"a Ray worker cannot read {missing[0]}; put the table where all workers find it under "
                    "one path, such as a shared file system"
                )

    def check_own(self, own: OwnModel, rows: Mapping[str, Array]) -> None:
        """Refuse an estimator that cannot be sent, or says something else there, before anything is charged.

        It must be the same in every bit: a worker that is replaced has to encode the same records.
        """
        here = BlockWorker().predict(own, rows)
        try:
            sent = self.ray.put(own)
            found = self.ray.get([worker.predict.remote(sent, rows) for worker in self.workers])
        except INTERRUPTS:
            raise
        except Exception as error:  # of many kinds: a lock in it, a library that is missing there
            why = first_line(getattr(error, "cause", None) or error)[:200]
            raise InputError(f"the workers of Ray cannot use your public_model ({why})") from None
        if any(not np.array_equal(here, there, equal_nan=True) for there in found):
            raise InputError(
                "public_model predicts something else on a worker of Ray than here: use one kind of "
                "processor and the same versions of its libraries"
            )

    def hold(self, source: BlockSource, progress: Callable[[int], None] | None = None) -> RayBlocks:
        """The blocks of the source, with these workers."""
        return RayBlocks(self, source, progress)


@contextmanager
def ray_cluster(
    *, workers: int | None = None, address: str | None = None, scratch: str | os.PathLike[str] | None = None
) -> Iterator[RayCluster]:
    """Workers on a cluster that runs at `address`, or that this process has joined; else on a new one here.

    What is started is stopped, and leaves nothing behind.
    """
    ray = _ray()
    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.enter_context(_started(ray, workers, address))
        free = _free(ray, 1 if workers is None else workers)
        count = max(1, free) if workers is None else workers
        if count > free:
            raise InputError(f"the cluster has {free} free processors, but {count} workers were requested")
        cluster = RayCluster(
            ray, [_worker(ray) for _ in range(count)], None if scratch is None else os.fspath(scratch)
        )
        stack.callback(_end, cluster)
        yield cluster


def _ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent, and nobody asked
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependency("engine='ray' needs Ray: pip install ray pandas pyarrow") from error


@contextmanager
def _started(ray: ModuleType, workers: int | None, address: str | None) -> Iterator[None]:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    with ExitStack() as stack:
        if address is None:
            # Whoever reaches the port of a cluster can run code in it: so only who has the token.
            # With one in the environment, Ray asks for it by itself, and writes none to the home folder.
            stack.enter_context(_environment("RAY_AUTH_TOKEN", _TOKEN, also="RAY_AUTH_MODE"))
            folder = stack.enter_context(private_folder("sl"))
            options: dict[str, object] = {
                "num_cpus": workers,
                "include_dashboard": False,
                "object_store_memory": _STORE,
                "_temp_dir": str(folder / "r"),  # which Ray opens to everybody, within what nobody else opens
            }
        else:
            options = {"address": address}
        try:
            ray.init(**options, **quiet)
        except Exception as error:  # of many kinds; all of them before anything is charged
            what = "a cluster of Ray could not be started" if address is None else f"no cluster at {address}"
            raise InputError(f"{what}: {str(error).strip().splitlines()[0]}") from None
        stack.callback(ray.shutdown)
        yield


@contextmanager
def _environment(name: str, value: str, *, also: str) -> Iterator[None]:
    """A variable that is set for a while, unless the user has set it, or the other that Ray sets with it."""
    if name in os.environ or also in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        os.environ.pop(also, None)


def _free(ray: ModuleType, wanted: int) -> int:
    """Processors that are free; what Ray says of it is some seconds old, so it is asked again for a while."""
    until = time.monotonic() + _PATIENCE
    while True:
        free = int(ray.available_resources().get("CPU", 0))
        hopeless = wanted > int(ray.cluster_resources().get("CPU", 0))
        if free >= wanted or hopeless or time.monotonic() > until:
            return free
        time.sleep(0.5)


def _worker(ray: ModuleType) -> Any:
    # Ray replaces and retries nothing by itself: a new worker has to read its blocks first.
    return ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(BlockWorker).remote()


def _end(cluster: RayCluster) -> None:
    for worker in cluster.workers:
        with contextlib.suppress(Exception):
            cluster.ray.kill(worker)


class RayBlocks:
    """Blocks with the workers of a cluster.

    Guarantee: `ask` gives the share of every block that its records and the request determine, even if
    happens to workers meanwhile; or it raises.
    """

    def __init__(
        self, cluster: RayCluster, source: BlockSource, progress: Callable[[int], None] | None = None
    ) -> None:
        self.sizes = source.sizes
        self._cluster = cluster
        self._source = cluster.ray.put(source)
        count = min(len(cluster.workers), len(self.sizes))
        ends = [len(self.sizes) * k // count for k in range(count + 1)]
        self._parts = [range(*ends[k : k + 2]) for k in range(count)]
        self._digests: list[list[bytes] | None] = [None] * count
        self._read = [False] * count
        done = 0
        for place, _ in self._answers(None):
            done += sum(self.sizes[block] for block in self._parts[place])
            if progress is not None:
                progress(done)

    def ask(self, question: Question, asked: int) -> Iterator[Share]:
        for _, shares in self._answers((question, asked)):
            yield from shares

    def digests(self) -> list[bytes]:
        return [digest for digests in self._digests for digest in digests or ()]

    def close(self) -> None:
        self._source = None

    def _answers(self, question: tuple[Question, int] | None) -> Iterator[tuple[int, list[Share]]]:
        """Of every worker, in the order in which they come; None: reading is all that is asked."""
        ray = self._cluster.ray
        waiting = {self._next(place, question): place for place in range(len(self._parts))}
        tries = [0] * len(self._parts)
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            place = waiting.pop(ready)
            try:
                found = ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                raise _told(error) from None
            except ray.exceptions.RayError:
                tries[place] += 1
                if tries[place] >= _TRIES:
                    raise SidelightError(
                        f"a worker of Ray ended {_TRIES} times in a row over one question, so that the run "
                        "cannot continue. What it cost is spent; see the logs of the cluster for the cause"
                    ) from None
                self._cluster.replace(place)
                self._read[place] = False
                waiting[self._next(place, question)] = place
                continue
            if not self._read[place]:
                self._check(place, found)
                if question is not None:
                    waiting[self._next(place, question)] = place
                    continue
                yield place, []
            else:
                yield place, found

    def _next(self, place: int, question: tuple[Question, int] | None) -> Any:
        """What a worker is to do now: read its blocks, or answer."""
        worker = self._cluster.workers[place]
        if not self._read[place] or question is None:
            return worker.read.remote(self._source, self._parts[place], self._cluster.scratch)
        return worker.ask.remote(*question)

    def _check(self, place: int, digests: list[bytes]) -> None:
        if self._digests[place] not in (None, digests):
            raise SidelightError(
                "the private table changed while the run went on: a worker that was replaced read other "
                "records. What the run cost is spent"
            )
        self._digests[place], self._read[place] = digests, True


def _told(error: Any) -> Exception:
    """What a worker raised, without the trace of the cluster, which may quote values."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, SidelightError):
        return type(cause)(str(cause))
    return SidelightError(
        f"a worker of Ray failed ({type(cause).__name__}), so that the run cannot continue. What it cost is "
        "spent; see the logs of the cluster"
    )
