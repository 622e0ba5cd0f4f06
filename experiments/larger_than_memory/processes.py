"""What a process and its descendants take, looked at several times a second (Linux)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

__all__ = ["Tree", "watch"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Tree:
    """The peak of the memory of all of them together, and their processor time."""

    def __init__(self, root: int) -> None:
        self.root, self.peak = root, 0
        self._seconds: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._seconds.values())

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            self.peak = max(self.peak, sum(self._memory(pid) for pid in self._members()))

    def _members(self) -> set[int]:
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))):
                parents[int(entry.name)] = int(fields[1])
        found = {self.root}
        while new := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= new
        return found

    def _memory(self, pid: int) -> int:
        fields = _stat(pid)
        if not fields:
            return 0
        self._seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
        return int(fields[21]) * _PAGE


def _stat(pid: int) -> list[str]:
    """State, parent, … of a process, behind its name; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def watch(root: int) -> Tree:
    """Look at a process until `stop`."""
    return Tree(root)
