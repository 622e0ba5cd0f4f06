"""Checkpoints: what is kept of a run, and how it is resumed, with the same noise or not at all.

A run that was cut repeats the steps after its last checkpoint: with the same noise they are the same values
and cost nothing. So a checkpoint holds a key for the noise of later steps (never of earlier ones). Its files
are for their owner alone (mode 0600); keep them as you keep the private records.

Noise is a function of that key and of the sum that it hides (`privacy.noise`): anything that differs after a
resume, another loss, another forward, other data, gets noise that nobody has seen. It would still be a second
release of the same steps, which nobody pays for. Therefore

- a checkpoint is bound to settings, code and data, as far as these can be seen (`binding`);
- a journal knows what was released after it, and a step that comes out otherwise is refused (`Journal`);
- one run at a time uses its folder (`sole_run`);
- when the run is finished its key is erased: to resume it gives the finished model, and draws nothing;
- with a ledger, a resume is written down there, and so is the end. A copy of the folder that was made before
  is then spent. Without a ledger nobody knows of copies: do not make any.

Where sums are not the same bit by bit when they are computed again (some CUDA kernels), repeated steps get
new noise; what a log has shown of them before the cut is then not covered. Use every=1 if that matters.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict, cast

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from sidelight.arrays import Json, Vector
from sidelight.clipping import Diagonal, Projection
from sidelight.deep.binding import fingerprints, structure_of
from sidelight.deep.rehearsal import RateSchedule
from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning, users_line
from sidelight.files import write_bytes
from sidelight.methods.part_kinds import State
from sidelight.methods.recipe import Loop
from sidelight.oracles.network.flat import TailProjection, trainable
from sidelight.privacy import events
from sidelight.privacy.observer import Observer
from sidelight.privacy.release import Account, Run

if TYPE_CHECKING:
    from sidelight.deep.fit import Fit

_FORMAT = 2


# ---------------------------------------------------------------------------------------------------
# the files: tensors as safetensors, everything else as JSON, written so that a crash leaves the old one


@dataclass(frozen=True)
class Lease:
    """Who may resume a checkpoint: the ledger knows the token, or the one before it (`Ledger.resume`)."""

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
        """Whether a checkpoint is due after this many steps."""
        return self.every is not None and step % self.every == 0

    def write(self, state: Mapping[str, object], *, claim: Lease | None = None) -> None:
        """Replace the checkpoint by this state. The JSON file is the last one written, and decides."""
        folder = Path(self.path)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        body = {"format": _FORMAT, "claim": asdict(claim or Lease()), "state": pack(dict(state), tensors)}
        data = save(tensors)
        digest = hashlib.sha256(data).hexdigest()
        name = f"tensors-{digest[:16]}.safetensors"
        write_bytes(folder / name, data, secret=True)
        self._decide({**body, "file": name, "sha256": digest})
        for old in folder.glob("*tensors-*.safetensors"):  # also what a killed run left half written
            if old.name != name:
                old.unlink(missing_ok=True)

    def read(self, device: torch.device | None = None) -> RunState | None:
        """The last state that was written, or None."""
        folder, body = Path(self.path), self._body()
        if body is None:
            return None
        data = (folder / body["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != body["sha256"]:
            raise InputError(f"the checkpoint in {folder} is damaged: its tensors are not those it names")
        tensors = {name: tensor.to(device) for name, tensor in load(data).items()}
        return cast(RunState, {**unpack(body["state"], tensors), "claim": Lease(**body["claim"])})

    def renew(self, claim: Lease) -> None:
        """Put another claim into the checkpoint; the rest stays as it is."""
        if (body := self._body()) is not None:
            self._decide({**body, "claim": asdict(claim)})

    def _decide(self, body: Json) -> None:
        write_bytes(Path(self.path) / "state.json", json.dumps(body).encode(), secret=True)

    def _body(self) -> Json | None:
        folder = Path(self.path)
        try:
            body: Json = json.loads((folder / "state.json").read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise InputError(f"the checkpoint in {folder} is not one that sidelight wrote") from None
        if body.get("format") == 1:
            raise InputError(
                f"the checkpoint in {folder} is of an older version, and not bound to model, loss and data: "
                "continuing could use its noise twice. Finish it with that version, or begin a new run"
            )
        if body.get("format") != _FORMAT:
            raise InputError(f"the checkpoint in {folder} has another format than {_FORMAT}")
        return body


Packed: TypeAlias = "bool | int | float | str | list[Packed] | dict[str, Packed] | None"


def pack(value: object, tensors: dict[str, Tensor]) -> Packed:
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
    if isinstance(value, Diagonal):
        return {"Diagonal": pack(torch.as_tensor(value.scale), tensors)}
    if isinstance(value, Projection):
        return {"Projection": pack(torch.as_tensor(value.basis), tensors)}
    if isinstance(value, TailProjection):
        return {"TailProjection": pack((value.basis, value.start), tensors)}
    if isinstance(value, np.generic):
        return pack(value.item(), tensors)
    raise InputError(f"a checkpoint cannot hold a {type(value).__name__}")


def unpack(data: Packed, tensors: Mapping[str, Tensor]) -> Any:
    """What `pack` was given."""
    if not isinstance(data, dict):
        return data
    kind = next(iter(data))
    inside: Any = data[kind]
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
        return deque(values, maxlen=cast(int | None, data["maxlen"]))
    return tuple(values) if kind == "tuple" else values


# ---------------------------------------------------------------------------------------------------
# what a checkpoint holds of a run


class _Charged(TypedDict):
    run: int  # its number in the ledger
    released: Json


class RunState(TypedDict):
    """Everything that the next step depends on."""

    finished: bool
    secret: NotRequired[str]  # of a finished run nothing is kept that its noise could be drawn from
    noise: NotRequired[Json]
    settings: dict[str, object]
    step: int
    seed: int
    start: Tensor  # parts begin here again; what they estimated is then the same
    rng_start: Tensor
    rng: Tensor
    model: dict[str, Tensor]
    w: Vector
    velocity: Vector | None
    optimizer: Json
    scheduler: Json | None
    parts: list[dict[str, object]]
    history: list[dict[str, object]]
    public_training: NotRequired[Json]
    curvatures: NotRequired[tuple[list[float], list[float]] | None]  # of public records, for correlated noise
    choice: NotRequired[Json | None]  # of `auto`
    guard: NotRequired[Json | None]  # checkpoints of 0.1 have none
    charge: _Charged
    claim: NotRequired[Lease]  # written beside the state, since a resume changes it alone


def state_of(fit: Fit) -> RunState:
    """The state of a run after its last step."""
    loop = fit.loop
    state: RunState = {
        "finished": fit.finished,
        "settings": settings_of(fit),
        "step": loop.steps_taken,
        "seed": fit.seed,
        "start": fit.start,
        "rng_start": fit.rng_start,
        "rng": torch.get_rng_state(),
        "model": dict(fit.model.state_dict()),
        "w": loop.w,
        "velocity": loop.velocity,
        "optimizer": fit.optimizer.state_dict(),
        "scheduler": None if fit.scheduler is None else fit.scheduler.state_dict(),
        "parts": [{} if part is None else part.state_dict() for part in _parts(fit.loop)],
        "history": loop.history,
        "public_training": fit.problem.public_training,
        "curvatures": None if fit.problem.guide is None else fit.problem.guide.curvatures,
        "choice": None if fit.choice is None else fit.choice.to_json(),
        "guard": fit.guard.state_dict(),
        "charge": {"run": fit.charge.number, "released": events.to_json(fit.charge.released)},
    }
    if not fit.finished:
        state["secret"], state["noise"] = fit.secret.hex(), fit.noise.get_state()
    return state


def settings_of(fit: Fit) -> dict[str, object]:
    """What must be the same for a run to be continued."""
    trainer = fit.trainer
    return {
        "method": repr(fit.recipe),
        "relation": fit.relation,
        "number of private records": fit.n,
        **({} if fit.persons is None else {"unit": fit.unit, "max_rows": trainer.max_rows}),
        "number of public records": 0 if fit.public is None else len(fit.public),
        "shape of parameters": [list(p.shape) for p in trainable(fit.model)],
        "epsilon": trainer.epsilon,
        "delta": trainer.delta,
        "augmentations": trainer.augmentations,
        "random_state": trainer.random_state,
        "optimizer": type(fit.optimizer).__name__,
        "plan": events.to_json(fit.contract.event),
        **fingerprints(run_identity(fit), key=fit.secret),
    }


def run_identity(fit: Fit) -> dict[str, object]:
    """Code and data that decide a run, by the names that a refusal gives them."""
    trainer = fit.trainer
    return {
        "model": structure_of(fit.model),
        "loss": trainer.loss,
        "augment": trainer.augment,
        "collate": trainer.loading.collate,
        "scheduler": trainer.scheduler,
        "public_augment": trainer.public_augment,
        "private data": fit.private_source,
        **({} if fit.persons is None else {"persons": torch.from_numpy(fit.persons.codes)}),
        "public data": None if fit.public is None else fit.public.dataset,
    }


def _parts(loop: Loop) -> tuple[State | None, ...]:
    return loop.metric, loop.clip, loop.noise, loop.finish


def check_writable(loop: Loop, optimizer: torch.optim.Optimizer, scheduler: RateSchedule | None) -> None:
    """Before the charge: raise InputError if a checkpoint cannot hold one of these states."""
    for one in (optimizer, scheduler, *_parts(loop)):
        pack({} if one is None else one.state_dict(), {})


class Writer(Observer):
    """Writes the checkpoints of a run."""

    def __init__(self, fit: Fit, folder: Checkpoints) -> None:
        self._fit, self._folder, self._written = fit, folder, -1

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        if self._folder.due(step):
            self.write()

    def write(self) -> None:
        """Write one now, unless this step has one."""
        if self._written != self._fit.loop.steps_taken:
            self._folder.write(state_of(self._fit), claim=self._fit.claim)
            self._written = self._fit.loop.steps_taken


# ---------------------------------------------------------------------------------------------------
# going on from it


def restore(fit: Fit, saved: RunState) -> tuple[Run, Account]:
    """Bring a fit that was begun anew to where the checkpoint was written; its charge and account."""
    fit.finished = saved["finished"]
    if not fit.finished:
        fit.secret = bytes.fromhex(saved["secret"])
    _check_same(fit, saved["settings"])
    loop, accounts = fit.loop, _accounts(fit, saved)
    fit.model.load_state_dict(saved["model"])
    fit.optimizer.load_state_dict(saved["optimizer"])
    if fit.scheduler is not None and saved["scheduler"] is not None:
        fit.scheduler.load_state_dict(saved["scheduler"])
    guard = saved.get("guard")
    if guard is not None:
        fit.guard.load_state_dict(guard)
    for part, state in zip(_parts(fit.loop), saved["parts"], strict=True):
        if part is not None:
            part.load_state_dict(state)
    loop.w, loop.velocity, loop.history = saved["w"], saved["velocity"], saved["history"]
    loop.steps_taken = saved["step"]
    torch.set_rng_state(saved["rng"].cpu())
    return accounts


def _check_same(fit: Fit, then: dict[str, object]) -> None:
    now = settings_of(fit)
    if fit.finished:  # the key of these fingerprints was erased; nothing more is drawn
        now = {name: value for name, value in now.items() if name not in run_identity(fit)}
    method = re.sub(r" default_relation='[\w-]+',", "", str(then.get("method")))  # recipes had it in 0.1
    then = {**then, "method": method}
    if different := [name for name, value in now.items() if value != then.get(name)]:
        raise PrivacyConditionError(
            f"the checkpoint is of a run with another {', '.join(different)}. Continuing with other "
            "settings would release its steps a second time; begin a new run instead"
        )


def _accounts(fit: Fit, saved: RunState) -> tuple[Run, Account]:
    """The charge of the run, claimed; of a finished one, an account that covers nothing more."""
    number, released = saved["charge"]["run"], events.from_json(saved["charge"]["released"])
    if fit.finished:
        run = fit.contract.ended(number)
        return run, run
    claim, folder = saved["claim"], fit.trainer.checkpoints
    run, account, token = fit.contract.resume(number, released, known=(claim.token, claim.previous))
    fit.claim = Lease(secrets.token_hex(16), token)
    if folder is not None:
        folder.renew(fit.claim)  # before the ledger: if this fails, or the ledger does, one can try again
    fit.contract.claim(run, expected=token, token=fit.claim.token)
    fit.noise.set_state(saved["noise"])
    return run, account


# ---------------------------------------------------------------------------------------------------
# what was released since the last checkpoint


class Journal:
    """The values that a run released since its last checkpoint: repeated exactly, or not at all.

    A run that was killed takes the steps after its last checkpoint once more. With the same records, code and
    machine every sum comes out as it was, and with it the same noise: nothing new is released. With another
    micro-batch a sum differs in its last bits, and its noise, which depends on it, altogether: then the step
    is released a second time, and no budget was charged for that. So a keyed digest of each value is written,
    and synced, before its noise is drawn; a step that is in the journal with another digest is refused.
    """

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
                f"step {step} was released before the run was interrupted, and would now be released with "
                "another value: the model, the loss, the records, the micro-batch or the machine is not the "
                "same. Continue as before, or begin a new run"
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


# ---------------------------------------------------------------------------------------------------
# one run at a time in a folder

_LOCK_NAME = "lock"
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)


@contextlib.contextmanager
def sole_run(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of this folder; refuse if another run has it.

    Two processes that resume one checkpoint release its steps twice, and nothing but a ledger would tell
    them apart. So a run holds a lock on its folder from before the checkpoint is read until it ends. The lock
    is the operating system's: it is released when the process ends, even by kill -9.
    """
    file = Path(folder) / _LOCK_NAME
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}") from None
    try:
        _take(descriptor, file.parent)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno in _TAKEN:
            raise PrivacyConditionError(
                f"another run is using the checkpoints in {folder}. Two runs that continue from one "
                "checkpoint would release its steps twice: wait for it to end, or use another folder"
            ) from None
        warnings.warn(
            f"{folder} cannot be locked ({error.strerror or error}): see to it that no other run uses it",
            PrivacyWarning,
            stacklevel=users_line(),
        )


def _lock(descriptor: int) -> None:
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
