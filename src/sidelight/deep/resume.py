"""What a checkpoint holds of a fit, and how a fit goes on from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sidelight.deep.checkpoint import get_state, set_state
from sidelight.deep.flat import trainable
from sidelight.errors import PrivacyConditionError
from sidelight.privacy import events
from sidelight.privacy.ledger import Run
from sidelight.privacy.release import Account

if TYPE_CHECKING:
    from sidelight.deep.fit import Fit

__all__ = ["restore", "state_of"]


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
    }


def state_of(fit: Fit) -> dict[str, Any]:
    """Everything that the next step depends on."""
    loop = fit.loop
    return {
        "settings": settings_of(fit),
        "step": fit.step,
        "seed": fit.seed,
        "start": fit.start,  # parts begin here again; what they estimated is then the same
        "rng_start": fit.rng_start,
        "rng": torch.get_rng_state(),
        "model": dict(fit.model.state_dict()),
        "w": loop.w,
        "velocity": loop.velocity,
        "optimizer": fit.optimizer.state_dict(),
        "scheduler": None if fit.scheduler is None else fit.scheduler.state_dict(),
        "parts": [get_state(part) for part in _parts(fit)],
        "noise": fit.noise.get_state(),
        "history": loop.history,
        "charge": {"run": fit.charge.number, "released": events.to_json(fit.charge.released)},
    }


def restore(fit: Fit, saved: dict[str, Any]) -> tuple[Run, Account]:
    """Bring a fit that was begun anew to where the checkpoint was written; its charge and account."""
    now, then = settings_of(fit), saved["settings"]
    if different := [name for name, value in now.items() if value != then.get(name)]:
        raise PrivacyConditionError(
            f"the checkpoint is of a run with another {', '.join(different)}. To go on with changed settings "
            "would use its noise twice; begin a new run instead"
        )
    charge, loop = saved["charge"], fit.loop
    accounts = fit.contract.resume(charge["run"], events.from_json(charge["released"]))
    fit.model.load_state_dict(saved["model"])
    fit.optimizer.load_state_dict(saved["optimizer"])
    if fit.scheduler is not None:
        fit.scheduler.load_state_dict(saved["scheduler"])
    for part, state in zip(_parts(fit), saved["parts"], strict=True):
        set_state(part, state)
    loop.w, loop.velocity, loop.history = saved["w"], saved["velocity"], saved["history"]
    fit.noise.set_state(saved["noise"])
    fit.step = saved["step"]
    torch.set_rng_state(saved["rng"].cpu())
    return accounts


def _parts(fit: Fit) -> tuple[Any, ...]:
    return fit.loop.metric, fit.loop.clip, fit.loop.noise, fit.loop.finish
