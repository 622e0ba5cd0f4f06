"""What a run released since its last checkpoint: repeated exactly, or not at all.

A run that was killed goes on from its last checkpoint, and takes the steps after it once more. With the same
records, code and machine every sum comes out as it was, and with it the same noise: nothing new is released.
With another micro-batch a sum differs in its last bits, and its noise, which depends on it, altogether: then
the step is released a second time, and no budget was charged for that. So a keyed digest of each value is
written, and synced, before its noise is drawn; a step that is in the journal with another digest is refused.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from sidelight.errors import InputError, PrivacyConditionError

__all__ = ["Journal"]


class Journal:
    """The journal of the run with this secret, in the folder of its checkpoints."""

    def __init__(self, folder: str | os.PathLike[str], secret: bytes) -> None:
        self._folder = Path(folder)
        tag = hashlib.sha256(b"journal" + secret).hexdigest()[:16]
        self._path = self._folder / f"released-{tag}.log"
        self._known: dict[str, str] = {}
        self._count: dict[int, int] = {}
        if self._path.exists():
            lines = (line.split() for line in self._path.read_text().splitlines())
            # A line that was cut was written for a value that was never released: noise comes after it.
            self._known = {line[0]: line[1] for line in lines if len(line) == 2 and len(line[1]) == 32}

    def witness(self, step: int, digest: str) -> None:
        """Before noise is drawn in this step: write the digest of what it hides, or refuse another one."""
        place = self._count.get(step, 0)
        self._count[step] = place + 1
        name = f"{step}.{place}"
        if name not in self._known:
            self._append(f"\n{name} {digest}\n")  # the first ends a line that was cut
            self._known[name] = digest
        elif self._known[name] != digest:
            raise PrivacyConditionError(
                f"step {step} was released before the run was cut, and would now be released with another "
                "value: the model, the loss, the records, the micro-batch or the machine is not the same. "
                "Go on as before, or begin a new run"
            )

    def close(self) -> None:
        """The run has ended: nothing of it can be repeated."""
        self._path.unlink(missing_ok=True)

    def _append(self, line: str) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{self._path} cannot be written: {error.strerror or error}") from None
