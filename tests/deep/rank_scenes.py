"""Scenes on several ranks: processes that are forked here, and talk over gloo on this machine."""

import contextlib
import multiprocessing as mp
import os
import pickle
import socket
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

Scene = Callable[[int], Any]  # rank → what is compared; it is pickled


class Ended(NamedTuple):
    """How a rank ended: its value, or the kind and the text of an error; neither if it was killed."""

    value: Any = None
    error: str = ""
    text: str = ""


class Running:
    """Processes that run a scene."""

    def __init__(self, scene: Scene, size: int) -> None:
        context, port = mp.get_context("fork"), _free_port()
        self._pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(scene, rank, size, port, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()

    def ended(self, seconds: float) -> list[Ended]:
        """What came of each rank. Raises TimeoutError, and ends them, if one is still there then."""
        deadline = time.monotonic() + seconds
        found = []
        try:
            for rank, pipe in enumerate(self._pipes):
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"rank {rank} hangs")
                try:
                    found.append(Ended(*pickle.loads(pipe.recv_bytes())))
                except EOFError:  # killed
                    found.append(Ended())
        finally:
            for process in self.processes:
                process.join(0.5)
                if process.is_alive():
                    process.kill()
        return found


def on_ranks(scene: Scene, *, size: int = 2, seconds: float = 90.0) -> list[Ended]:
    """Run a scene on every rank, and wait for all."""
    return Running(scene, size).ended(seconds)


def values(ended: list[Ended]) -> list[Any]:
    """What each rank returned; none has failed."""
    assert not any(one.error for one in ended), ended
    return [one.value for one in ended]


def _run(scene: Scene, rank: int, size: int, port: int, pipe: Connection) -> None:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    warnings.simplefilter("ignore")
    code = 0
    try:
        pipe.send_bytes(pickle.dumps((scene(rank),)))  # tensors too: nothing is shared with who has ended
    except BaseException as error:
        code = 1
        with contextlib.suppress(BrokenPipeError):
            pipe.send_bytes(pickle.dumps((None, type(error).__name__, str(error))))
    pipe.close()
    os._exit(code)  # no clean-up of the test run's own


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
