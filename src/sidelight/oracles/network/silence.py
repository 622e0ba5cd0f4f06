"""What user code says while it sees private records is dropped: warnings, log lines, prints."""

from __future__ import annotations

import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

import numpy as np


@contextmanager
def silent() -> Iterator[Muted]:
    """No warning, no line in a log and nothing printed: one about a private value would reveal it."""
    out, error = Muted(sys.stdout), Muted(sys.stderr)
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        _LOGS,
        redirect_stdout(out),
        redirect_stderr(error),
    ):
        warnings.simplefilter("ignore")
        yield out


class Muted(io.TextIOBase):
    """Drops what this thread prints, and notes that it did; progress bars of other threads go on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread, self.used = stream, threading.get_ident(), False

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        self.used = True
        return len(text)


class _NoLogs:
    """Python's logs go nowhere while somebody is inside. (`logging.disable` takes 1 ms.)"""

    def __init__(self) -> None:
        self._inside, self._before = 0, logging.Logger.callHandlers

    def __enter__(self) -> None:
        self._inside += 1
        logging.Logger.callHandlers = _dropped  # type: ignore[method-assign,assignment]

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            logging.Logger.callHandlers = self._before  # type: ignore[method-assign]


def _dropped(logger: logging.Logger, record: logging.LogRecord) -> None:
    """In place of handing a record to handlers."""


_LOGS = _NoLogs()
