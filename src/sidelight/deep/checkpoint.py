"""Checkpoints: tensors as safetensors, everything else as JSON, written so that a crash leaves the old one.

A run that was cut repeats the steps after its last checkpoint: with the same noise they are the same values
and cost nothing. So a checkpoint holds a key for the noise of later steps (never of earlier ones). Its files
are for their owner alone (mode 0600); keep them as you keep the private records.

Noise is a function of that key and of the very sum that it hides (`privacy.noise`): whatever differs after a
resume, another loss, another forward, other data, gets noise that nobody has seen. It would still be a second
release of the same steps, which nobody pays for. Therefore

- a checkpoint is bound to settings, code and data, as far as these can be seen (`binding`);
- when the run is finished its key is erased: to resume it gives the finished model, and draws nothing;
- with a ledger, a resume is written down there, and so is the end. A copy of the folder that was made before
  is then spent. Without a ledger nobody knows of copies: do not make any.

Where sums are not the same bit by bit when they are computed again (some CUDA kernels), repeated steps get
new noise; what a log has shown of them before the cut is then not covered. Use every=1 if that matters.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from sidelight.clipping import Diagonal, Projection
from sidelight.errors import InputError
from sidelight.files import write_bytes
from sidelight.oracles.network.flat import TailProjection

__all__ = ["Checkpoints", "Lease", "pack", "unpack"]

_FORMAT = 2


@dataclass(frozen=True)
class Lease:
    """Who may go on from a checkpoint: the ledger knows the token, or the one before it (`Ledger.resume`)."""

    token: str = ""
    previous: str = ""


@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints go, and how often (in steps; None: at a stop only)."""

    path: str | os.PathLike[str]
    every: int | None = 100

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise InputError(f"checkpoints every={self.every!r} steps; it must be at least 1, or None")

    def due(self, step: int) -> bool:
        """After this many steps?"""
        return self.every is not None and step % self.every == 0

    def write(self, state: dict[str, Any], *, claim: Lease | None = None) -> None:
        """Replace the checkpoint by this state. The JSON file is the last one written, and decides."""
        folder = Path(self.path)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        body = {"format": _FORMAT, "claim": asdict(claim or Lease()), "state": pack(state, tensors)}
        data = save(tensors)
        digest = hashlib.sha256(data).hexdigest()
        name = f"tensors-{digest[:16]}.safetensors"
        write_bytes(folder / name, data, secret=True)
        self._decide({**body, "file": name, "sha256": digest})
        for old in folder.glob("*tensors-*.safetensors"):  # also what a killed run left half written
            if old.name != name:
                old.unlink(missing_ok=True)

    def read(self, device: torch.device | None = None) -> dict[str, Any] | None:
        """The last state that was written, or None."""
        folder, body = Path(self.path), self._body()
        if body is None:
            return None
        data = (folder / body["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != body["sha256"]:
            raise InputError(f"the checkpoint in {folder} is damaged: its tensors are not those it names")
        tensors = {name: tensor.to(device) for name, tensor in load(data).items()}
        state: dict[str, Any] = unpack(body["state"], tensors)
        return {**state, "claim": Lease(**body["claim"])}

    def renew(self, claim: Lease) -> None:
        """Put another claim into the checkpoint; the rest stays as it is."""
        if (body := self._body()) is not None:
            self._decide({**body, "claim": asdict(claim)})

    def _decide(self, body: dict[str, Any]) -> None:
        write_bytes(Path(self.path) / "state.json", json.dumps(body).encode(), secret=True)

    def _body(self) -> dict[str, Any] | None:
        folder = Path(self.path)
        try:
            body: dict[str, Any] = json.loads((folder / "state.json").read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise InputError(f"the checkpoint in {folder} is not one that sidelight wrote") from None
        if body.get("format") == 1:
            raise InputError(
                f"the checkpoint in {folder} is of an older version, and not bound to model, loss and data: "
                "to go on could use its noise twice. Finish it with that version, or begin a new run"
            )
        if body.get("format") != _FORMAT:
            raise InputError(f"the checkpoint in {folder} has another format than {_FORMAT}")
        return body


# ---------------------------------------------------------------------------------------------------
# values as JSON, with tensors apart


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON for a value; its tensors go into `tensors`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[pack(key, tensors), pack(one, tensors)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [pack(one, tensors) for one in value]}
    if isinstance(value, deque):
        return {"deque": [pack(one, tensors) for one in value], "maxlen": value.maxlen}
    if isinstance(value, Diagonal | Projection):
        return {type(value).__name__: pack(_matrix(value), tensors)}
    if isinstance(value, TailProjection):
        return {"TailProjection": pack((value.basis, value.start), tensors)}
    raise InputError(f"a checkpoint cannot hold a {type(value).__name__}")


def unpack(data: Any, tensors: dict[str, Tensor]) -> Any:
    """What `pack` was given."""
    if not isinstance(data, dict):
        return data
    kind = next(iter(data))
    inside = data[kind]
    if kind == "tensor":
        return tensors[inside]
    if kind == "dict":
        return {unpack(key, tensors): unpack(one, tensors) for key, one in inside}
    if kind in ("Diagonal", "Projection"):
        return (Diagonal if kind == "Diagonal" else Projection)(unpack(inside, tensors))
    if kind == "TailProjection":
        return TailProjection(*unpack(inside, tensors))
    values = [unpack(one, tensors) for one in inside]
    if kind == "deque":
        return deque(values, maxlen=data["maxlen"])
    return tuple(values) if kind == "tuple" else values


def _matrix(metric: Diagonal | Projection) -> Tensor:
    return torch.as_tensor(metric.scale if isinstance(metric, Diagonal) else metric.basis)
