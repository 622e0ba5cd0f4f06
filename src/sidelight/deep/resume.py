"""What a checkpoint holds of a fit, and how a fit goes on from it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from sidelight.deep.binding import fingerprints, structure_of
from sidelight.deep.checkpoint import Lease
from sidelight.errors import PrivacyConditionError
from sidelight.methods.part import State
from sidelight.oracles.network.flat import trainable
from sidelight.privacy import events
from sidelight.privacy.contract import Observer
from sidelight.privacy.ledger import Run
from sidelight.privacy.release import Account

if TYPE_CHECKING:
    from sidelight.deep.fit import Fit

__all__ = ["Writer", "restore", "state_of", "things_of"]


def settings_of(fit: Fit) -> dict[str, Any]:
    """What must be the same for a run to be continued."""
    trainer = fit.trainer
    return {
        "method": repr(fit.recipe),
        "relation": fit.relation,
        "number of private records": len(fit.private),
        "number of public records": 0 if fit.public is None else len(fit.public),
        "shape of parameters": [list(p.shape) for p in trainable(fit.model)],
        "epsilon": trainer.epsilon,
        "delta": trainer.delta,
        "augmentations": trainer.augmentations,
        "random_state": trainer.random_state,
        "optimizer": type(fit.optimizer).__name__,
        "plan": events.to_json(fit.contract.event),
        **fingerprints(things_of(fit), key=fit.secret),
    }


def things_of(fit: Fit) -> dict[str, Any]:
    """Code and data that decide a run, by the names that a refusal gives them."""
    trainer = fit.trainer
    public = None if fit.public is None else fit.public.dataset
    return {
        "model": structure_of(fit.model),
        "loss": trainer.loss,
        "augment": trainer.augment,
        "collate": trainer.loading.collate,
        "scheduler": trainer.scheduler,
        "public_augment": trainer.public_augment,
        "private data": fit.private_source,
        "public data": public,
    }


class Writer(Observer):
    """Writes the checkpoints of a run, where it has any."""

    def __init__(self, fit: Fit) -> None:
        self._fit, self._written = fit, -1

    def on_step(self, step: int, entry: Mapping[str, Any]) -> None:
        folder = self._fit.trainer.checkpoints
        if folder is not None and folder.due(step):
            self.write()

    def write(self) -> None:
        """Write one now, unless this step has one."""
        fit, step = self._fit, self._fit.loop.steps_taken
        if fit.trainer.checkpoints is not None and self._written != step:
            fit.trainer.checkpoints.write(state_of(fit), claim=fit.claim)
            self._written = step


def state_of(fit: Fit) -> dict[str, Any]:
    """Everything that the next step depends on."""
    loop = fit.loop
    secret = {} if fit.finished else {"secret": fit.secret.hex(), "noise": fit.noise.get_state()}
    return {
        **secret,  # of a finished run nothing is kept that its noise could be drawn from
        "finished": fit.finished,
        "settings": settings_of(fit),
        "step": loop.steps_taken,
        "seed": fit.seed,
        "start": fit.start,  # parts begin here again; what they estimated is then the same
        "rng_start": fit.rng_start,
        "rng": torch.get_rng_state(),
        "model": dict(fit.model.state_dict()),
        "w": loop.w,
        "velocity": loop.velocity,
        "optimizer": fit.optimizer.state_dict(),
        "scheduler": None if fit.scheduler is None else fit.scheduler.state_dict(),
        "parts": [{} if part is None else part.state_dict() for part in _parts(fit)],
        "history": loop.history,
        "public_training": fit.problem.public_training,
        "choice": None if fit.choice is None else fit.choice.to_json(),
        "guard": None if fit.guard is None else fit.guard.state_dict(),
        "charge": {"run": fit.charge.number, "released": events.to_json(fit.charge.released)},
    }


def restore(fit: Fit, saved: dict[str, Any]) -> tuple[Run, Account]:
    """Bring a fit that was begun anew to where the checkpoint was written; its charge and account."""
    fit.finished = saved["finished"]
    if not fit.finished:
        fit.secret = bytes.fromhex(saved["secret"])
    _check_same(fit, saved["settings"])
    loop, accounts = fit.loop, _accounts(fit, saved)
    fit.model.load_state_dict(saved["model"])
    fit.optimizer.load_state_dict(saved["optimizer"])
    if fit.scheduler is not None:
        fit.scheduler.load_state_dict(saved["scheduler"])
    if fit.guard is not None and saved.get("guard") is not None:
        fit.guard.load_state_dict(saved["guard"])
    for part, state in zip(_parts(fit), saved["parts"], strict=True):
        if part is not None:
            part.load_state_dict(state)
    loop.w, loop.velocity, loop.history = saved["w"], saved["velocity"], saved["history"]
    loop.steps_taken = saved["step"]
    torch.set_rng_state(saved["rng"].cpu())
    return accounts


def _check_same(fit: Fit, then: dict[str, Any]) -> None:
    now = settings_of(fit)
    if fit.finished:  # the key of these fingerprints was erased; nothing more is drawn
        now = {name: value for name, value in now.items() if name not in things_of(fit)}
    if different := [name for name, value in now.items() if value != then.get(name)]:
        raise PrivacyConditionError(
            f"the checkpoint is of a run with another {', '.join(different)}. To go on with something else "
            "would release its steps a second time; begin a new run instead"
        )


def _accounts(fit: Fit, saved: dict[str, Any]) -> tuple[Run, Account]:
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


def _parts(fit: Fit) -> tuple[State | None, ...]:
    return fit.loop.metric, fit.loop.clip, fit.loop.noise, fit.loop.finish
