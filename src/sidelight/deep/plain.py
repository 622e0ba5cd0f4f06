"""Methods that are no private steps: public records alone, and no privacy at all."""

from __future__ import annotations

import math
import secrets
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import ConcatDataset, Dataset

from sidelight.deep.prepare import planned_steps, public_parts
from sidelight.deep.watch import due, scores
from sidelight.errors import InputError, NotPrivateWarning, users_line
from sidelight.methods.task import Method, relation_of
from sidelight.oracles.network.batches import Records
from sidelight.oracles.network.flat import read, train_mode, write
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.calibrate import resolve_delta
from sidelight.privacy.contract import Contract, Payer, PrivacyStatement, delta_of
from sidelight.privacy.events import NonPrivate, NoOp
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import private_process
from sidelight.problems.network_public import HeldOut, PublicTraining, train_well

if TYPE_CHECKING:
    from sidelight.deep.trainer import Trainer

__all__ = ["fit_plainly"]

History = list[dict[str, Any]]


def fit_plainly(
    trainer: Trainer, method: Method, private: Dataset[Any], public: Dataset[Any] | None, payer: Payer | None
) -> tuple[PrivacyStatement, History]:
    """Train by plain steps, on the public records or (with a warning) on all of them."""
    seed = secrets.randbits(63) if trainer.random_state is None else int(trainer.random_state)
    device = next(trainer.model.parameters()).device
    shown, held_out = public_parts(trainer, public, seed, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        train_mode(trainer.model)
        if method.name == "only_public":
            return _only_public(trainer, method, len(private), shown, held_out, seed)  # type: ignore[arg-type]
        both = private if shown is None else ConcatDataset([private, shown.dataset])
        records = Records(both, trainer.loading, device)
        return _non_private(trainer, method, records, held_out, seed, payer)


def _only_public(
    trainer: Trainer, method: Method, n: int, shown: Records | None, held_out: Records | None, seed: int
) -> tuple[PrivacyStatement, History]:
    if shown is None:
        raise InputError("only_public needs public records; pass a public dataset")
    contract = Contract(
        method="only_public",
        event=NoOp(),
        filtered=False,
        relation=relation_of(method, trainer.relation),
        epsilon=trainer.epsilon,
        delta=resolve_delta(trainer.delta, n),
        n=n,
        assumptions=("the public records do not depend on the private ones",),
    )
    history, evidence = _train(trainer, shown, held_out, seed)
    contract = replace(contract, details={"public_records": len(shown), "public_training": evidence})
    run, _ = contract.begin()
    return contract.statement(run, notes=["the private records were not used"]), history


def _non_private(
    trainer: Trainer,
    method: Method,
    records: Records,
    held_out: Records | None,
    seed: int,
    payer: Payer | None,
) -> tuple[PrivacyStatement, History]:
    warnings.warn(
        "non_private uses the private records without protection: its result carries no guarantee",
        NotPrivateWarning,
        stacklevel=users_line(),
    )
    contract = Contract(
        method="non_private",
        event=NonPrivate(),
        filtered=False,
        relation=relation_of(method, trainer.relation, payer),
        epsilon=trainer.epsilon,
        delta=delta_of(trainer.delta, len(records), payer),
        n=len(records),
        private=False,
        payer=payer,
    )
    run, account = contract.begin()
    history: History = []

    def process(_: Noise) -> Any:
        history.extend(_train(trainer, records, held_out, seed)[0])
        return read(trainer.model)

    result = private_process(process, event=contract.event, account=account, noise=Noise())
    write(trainer.model, result.numpy())
    run.finish()
    return contract.statement(run, notes=["this model is not private"]), history


def _train(
    trainer: Trainer, records: Records, held_out: Records | None, seed: int
) -> tuple[History, dict[str, Any]]:
    """The history, and what was chosen on held-out public records."""
    how, history = _how(trainer, len(records)), list[dict[str, Any]]()
    steps = how.steps_for(len(records))

    def each(step: int) -> bool:
        history.append({"step": step})
        if held_out is not None and due(step + 1, steps):
            found = scores(trainer.model, trainer.loss, held_out)
            history[-1] |= {f"validation_{name}": value for name, value in found.items()}
        return True

    oracle = NetworkOracle(trainer.model, trainer.loss)
    judged = None if held_out is None else HeldOut(oracle, held_out)
    return history, train_well(oracle, records, how, held_out=judged, seed=seed, each=each)


def _how(trainer: Trainer, size: int) -> PublicTraining:
    """Steps and batches as the trainer was told, or as for a warm start."""
    usual = trainer.warm_up or PublicTraining()
    batch = trainer.expected_batch_size or usual.batch_size
    steps = planned_steps(trainer, size, batch)
    return PublicTraining(
        steps=usual.steps if steps is None else steps,
        batch_size=max(1, math.ceil(min(batch, size))),
        optimizer=trainer.optimizer or usual.optimizer,
        augment=usual.augment or trainer.public_augment,
        scheduler=trainer.scheduler or usual.scheduler,
    )
