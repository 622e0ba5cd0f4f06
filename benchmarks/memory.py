"""The peak memory of a function, as the operating system sees it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

__all__ = ["peak_above_rest", "status"]


def peak_above_rest(function: Callable[[], object], *, before: int = 1) -> int:
    """Bytes of resident memory that a call needs on top of what the process held before it.

    before: calls that are made first. What they leave behind counts as held.
    """
    for _ in range(before):
        function()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far (Linux)
    rest = status("VmRSS")
    function()
    return status("VmHWM") - rest


def status(field: str) -> int:
    """Bytes that Linux reports of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{field} is not in /proc/self/status")
