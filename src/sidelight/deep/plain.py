"""Methods that are no private steps: public records alone, and no privacy at all."""

from __future__ import annotations

import math
import secrets
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import ConcatDataset, Dataset

from sidelight.deep.account import Contract
from sidelight.deep.flat import read, write
from sidelight.deep.prepare import planned_steps, public_parts, sound_delta
from sidelight.deep.public_training import PublicTraining, plain_steps
from sidelight.deep.records import Records
from sidelight.deep.watch import scores
from sidelight.errors import InputError, NotPrivateWarning
from sidelight.methods.charged import Purse
from sidelight.oracles.network import NetworkOracle
from sidelight.privacy.events import NonPrivate, NoOp
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import private_process
from sidelight.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    from sidelight.deep.trainer import Trainer

__all__ = ["fit_plainly"]


def fit_plainly(
    trainer: Trainer, method: Any, private: Dataset[Any], public: Dataset[Any] | None, purse: Purse | None
) -> tuple[PrivacyStatement, list[dict[str, Any]]]:
    """Train by plain steps, on the public records or (with a warning) on all of them."""
    alone = method.name == "only_public"
    n: int = len(private)  # type: ignore[arg-type]
    seed = secrets.randbits(63) if trainer.random_state is None else int(trainer.random_state)
    device = next(trainer.model.parameters()).device
    shown, held_out = public_parts(trainer, public, seed, device)
    if alone and shown is None:
        raise InputError("only_public needs public records; pass a public dataset")
    contract = Contract(
        method=method.name,
        event=NoOp() if alone else NonPrivate(),
        filtered=False,
        relation=trainer.relation or "add-or-remove-one",
        epsilon=trainer.epsilon,
        delta=sound_delta(trainer.delta, n),
        n=n,
        private=alone,
        assumptions=("the public records do not depend on the private ones",) if alone else (),
        purse=None if alone else purse,
    )
    if not alone:
        warnings.warn(
            "non_private uses the private records without protection: its result carries no guarantee",
            NotPrivateWarning,
            stacklevel=3,
        )
        both = private if shown is None else ConcatDataset([private, shown.dataset])
        shown = Records(both, trainer.loading, device)
    assert shown is not None
    (run, account), history = contract.begin(), list[dict[str, Any]]()
    oracle, how = NetworkOracle(trainer.model, trainer.loss), _how(trainer, len(shown))

    def each(step: int) -> bool:
        history.append({"step": step})
        if held_out is not None and (step + 1) % max(1, how.steps // 10) == 0:
            found = scores(trainer.model, trainer.loss, held_out)
            history[-1] |= {f"validation_{name}": value for name, value in found.items()}
        return True

    def process(_: Noise) -> Any:
        plain_steps(oracle, shown, how, seed=seed, each=each)
        return read(trainer.model)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        trainer.model.train()
        if alone:
            process(Noise())
        else:
            result = private_process(process, event=contract.event, account=account, noise=Noise())
            write(trainer.model, result.numpy())
    run.finish()
    return contract.statement(run, notes=["the private records were not used"] if alone else []), history


def _how(trainer: Trainer, size: int) -> PublicTraining:
    """Steps and batches as the trainer was told, or as for a warm start."""
    usual = trainer.warm_up or PublicTraining()
    batch = trainer.expected_batch_size or usual.batch_size
    steps = planned_steps(trainer, size, batch)
    make = trainer.optimizer or usual.optimizer
    return PublicTraining(
        steps=usual.steps if steps is None else steps,
        batch_size=max(1, math.ceil(min(batch, size))),
        optimizer=make or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        augment=usual.augment or trainer.public_augment,
    )
