"""One fit of a recipe: everything public is made ready, the plan is charged, and then steps are taken."""

from __future__ import annotations

import math
import secrets
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from sidelight.deep.account import Contract
from sidelight.deep.checkpoint import get_state, set_state
from sidelight.deep.flat import read, set_gradients, trainable, write
from sidelight.deep.guide import NetworkGuide
from sidelight.deep.loop import NetworkLoop, network_setting
from sidelight.deep.public_training import PublicNetwork, PublicTraining
from sidelight.deep.records import Records, shared_records
from sidelight.deep.watch import Bar, Stop, scores, stop_at_interrupt
from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning
from sidelight.methods.charged import Purse
from sidelight.methods.dope_sgd import Warm
from sidelight.methods.recipe import Cold, Recipe
from sidelight.oracles.batches import Batch, take
from sidelight.oracles.network import NetworkOracle
from sidelight.privacy import events
from sidelight.privacy.ledger import Run
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum
from sidelight.privacy.statement import PrivacyStatement

if TYPE_CHECKING:
    from sidelight.deep.trainer import Trainer

__all__ = ["Fit", "public_parts", "sound_delta"]

_STEP_SIZE = 0.5  # where neither the method nor the user has one
_LOOKS = 10  # scores on public records during a run


class Fit:
    """The state of one training run."""

    loop: NetworkLoop
    contract: Contract
    account: Run
    statement: PrivacyStatement

    def __init__(
        self, trainer: Trainer, recipe: Recipe, private: Dataset[Any], public: Dataset[Any] | None, purse: Purse | None
    ) -> None:
        self.trainer, self.model, self.purse = trainer, trainer.model, purse
        self.device = next(self.model.parameters()).device
        self.seed = secrets.randbits(63) if trainer.random_state is None else int(trainer.random_state)
        self.noise = Noise(trainer.random_state)
        if recipe.public_rows == "private" and public is not None:
            private, public = ConcatDataset([private, public]), None
        self.private = Records(private, trainer.loading, self.device)
        self.public, self.held_out = public_parts(trainer, public, self.seed, self.device)
        self.relation = trainer.relation or (
            "add-or-remove-one" if "add-or-remove-one" in recipe.relations else recipe.relations[0]
        )
        self.recipe = self._configured(recipe)
        self.stopped, self.step = False, 0

    # -----------------------------------------------------------------------------------------------
    # before the charge: public things only

    def _configured(self, recipe: Recipe) -> Recipe:
        """The recipe with the trainer's batch size, steps and start."""
        t, n = self.trainer, len(self.private)
        if t.steps is not None and t.epochs is not None:
            raise InputError("pass steps or epochs, not both")
        batch = recipe.expected_batch_size if t.expected_batch_size is None else t.expected_batch_size
        steps = recipe.steps if t.steps is None else t.steps
        if t.epochs is not None:
            pool = n + (len(self.public) if recipe.extended and self.public is not None else 0)
            steps = max(1, math.ceil(t.epochs * pool / min(pool, pool if batch is None else batch)))
        start = recipe.start if t.warm_up is None else Warm()
        return recipe.with_parts(expected_batch_size=batch, steps=steps, start=start)

    def _prepare(self, saved: dict[str, Any] | None) -> None:
        """Guide, warm start, parts and contract. A saved run begins again where it began."""
        oracle = NetworkOracle(self.model, self.trainer.loss, example=self._example())
        self.oracle = oracle
        guide = self._guide(oracle)
        network = PublicNetwork(guide, oracle, self.trainer.warm_up or PublicTraining(), seed=self.seed)
        recipe = self.recipe
        if saved is not None:
            write(self.model, saved["start"].to(self.device))
            torch.set_rng_state(saved["rng_start"])
            recipe = recipe.with_parts(start=Cold())
        setting = network_setting(
            recipe, n=len(self.private), dimension=oracle.dimension, epsilon=self.trainer.epsilon,
            delta=sound_delta(self.trainer.delta, len(self.private)), relation=self.relation, guide=guide,
            network=network,
        )  # fmt: skip
        if saved is None:
            write(self.model, recipe.start(setting))
            recipe = recipe.with_parts(start=Cold())
            torch.manual_seed(self.seed)  # so that a resumed run can begin here
        self.rng_start, self.start = torch.get_rng_state(), read(self.model)
        if guide is not None:
            guide.draw(0)
        self.guide, self.optimizer = guide, self._optimizer(recipe)
        self.scheduler = None if self.trainer.scheduler is None else self.trainer.scheduler(self.optimizer)
        self.loop = NetworkLoop(recipe, setting, apply=self._apply)
        self.contract = self._contract(recipe)

    def _example(self) -> Batch | None:
        enough = self.public is not None and len(self.public) >= 2
        return take(self.public.fetch([0, 1]), slice(None)) if enough and self.public is not None else None

    def _guide(self, oracle: NetworkOracle) -> NetworkGuide | None:
        if self.public is None or self.recipe.public_rows != "guide":
            return None
        t = self.trainer
        return NetworkGuide(
            oracle, self.public, batch_size=t.public_batch_size, held_out=self.held_out, seed=self.seed,
            augment=t.public_augment, micro_batch=t.loading.micro_batch,
        )  # fmt: skip

    def _optimizer(self, recipe: Recipe) -> torch.optim.Optimizer:
        if self.trainer.optimizer is not None:
            return self.trainer.optimizer(trainable(self.model))
        return torch.optim.SGD(trainable(self.model), lr=recipe.step_size or _STEP_SIZE)

    def _contract(self, recipe: Recipe) -> Contract:
        setting = self.loop.setting
        event, filtered, details = recipe.noise.plan(setting)
        contract = Contract(
            method=recipe.name, event=event, filtered=filtered, relation=self.relation,
            epsilon=setting.epsilon, delta=setting.delta, n=setting.n, purse=self.purse,
            details={**self.loop.choices(), **details, "optimizer": type(self.optimizer).__name__,
                     "public_records": 0 if self.public is None else len(self.public)},
            assumptions=(*recipe._assumptions(setting), f"the number of private records ({setting.n}) and the shape of a record are public"),
        )  # fmt: skip
        assert contract.cost >= 0  # raises if the plan is above the budget
        return contract

    # -----------------------------------------------------------------------------------------------
    # the run

    def run(self, *, resume: bool) -> Any:
        """All steps; the finished parameters (in the model too), or several of them for an ensemble."""
        saved = self._saved() if resume else None
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), stop_at_interrupt() as stop:
            torch.manual_seed(self.seed)
            self.model.train()
            self._prepare(saved)
            if saved is None:
                self.account = self.contract.begin()
            else:
                self._restore(saved)
            try:
                self._train(stop)
            finally:
                self.private.close()
            return self._finish()

    def _train(self, stop: Stop) -> None:
        setting, every = self.loop.setting, self.trainer.checkpoints
        with Bar(self.trainer.progress, total=setting.steps, delta=setting.delta, relation=self.relation) as bar:
            while not self.stopped and self._one_step():
                self._look(bar)
                self.stopped = stop.asked
                if every is not None and (every.due(self.step) or self.stopped):
                    every.write(self._state())

    def _one_step(self) -> bool:
        """Take a step; False when the plan, or the filter, ends the run."""
        if self.guide is not None:
            self.guide.draw(self.step)
        multiplier = self.loop.noise.at(self.step)
        if multiplier is None:
            return False
        sums = self._clipped_sum
        if not self.loop.step(self.step, multiplier, sums, account=self.account, noise=self.noise):
            return False
        self.step += 1
        return True

    def _clipped_sum(self, w: Any, indices: Any, **question: Any) -> BoundedSum:
        inputs, targets = self.private.fetch(indices)
        t, copies = self.trainer, self.trainer.augmentations
        if copies > 1:
            inputs, targets = _repeated((inputs, targets), copies)
        inputs = inputs if t.augment is None else t.augment(inputs)
        return self.oracle.clipped_sum(
            (inputs, targets), micro_batch=t.loading.micro_batch, augmentations=copies, **question
        )

    def _apply(self, gradient: Tensor) -> Tensor:
        set_gradients(self.model, gradient)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        return read(self.model)

    def _look(self, bar: Bar) -> None:
        """Scores on held-out public records, every now and then; never on private ones."""
        due = self.step % max(1, self.loop.setting.steps // _LOOKS) == 0
        told: dict[str, float] = {}
        if due and self.held_out is not None:
            told = {f"validation_{k}": v for k, v in scores(self.model, self.trainer.loss, self.held_out).items()}
            self.loop.history[-1].update(told)
        bar.update(self.step, self.account.released if due and bar.shown else None, told)

    def _finish(self) -> Any:
        if not self.stopped:
            self.account.finish()  # a run that was stopped keeps its charge, and may be resumed
        notes = [*self.loop.notes]
        for part in (self.loop.clip, self.loop.noise):
            notes.extend(getattr(part, "notes", ()))
        if self.stopped:
            notes.append(f"stopped by the user after {self.step} steps; the whole plan stays charged")
        self.statement = self.contract.statement(self.account, notes=notes, assumptions=self.noise.assumptions)
        result = self.loop.finish.result(self.start)
        if isinstance(result, Tensor):
            write(self.model, result)
        return result

    # -----------------------------------------------------------------------------------------------
    # checkpoints

    def _settings(self) -> dict[str, Any]:
        """What must be the same for a run to be continued."""
        shapes = [list(p.shape) for p in trainable(self.model)]
        return {
            "method": repr(self.recipe), "relation": self.relation, "n": len(self.private), "shapes": shapes,
            "public": 0 if self.public is None else len(self.public), "epsilon": self.trainer.epsilon,
            "delta": self.trainer.delta, "augmentations": self.trainer.augmentations,
            "random_state": self.trainer.random_state, "optimizer": type(self.optimizer).__name__,
            "plan": events.to_json(self.contract.event),
        }  # fmt: skip

    def _state(self) -> dict[str, Any]:
        loop = self.loop
        return {
            "settings": self._settings(), "step": self.step, "seed": self.seed,
            "start": self.start, "rng_start": self.rng_start, "rng": torch.get_rng_state(),
            "model": dict(self.model.state_dict()), "w": loop.w, "velocity": loop.velocity,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "parts": [get_state(part) for part in (loop.metric, loop.clip, loop.noise, loop.finish)],
            "noise": self.noise.get_state(), "history": loop.history,
            "charge": {"run": self.account.number, "released": events.to_json(self.account.released)},
        }  # fmt: skip

    def _saved(self) -> dict[str, Any] | None:
        if self.trainer.checkpoints is None:
            raise InputError("resume=True needs checkpoints=, the folder to resume from")
        saved = self.trainer.checkpoints.read()
        if saved is not None:
            self.seed = saved["seed"]
            self.public, self.held_out = public_parts(self.trainer, self._public_source, self.seed, self.device)
        return saved

    def _restore(self, saved: dict[str, Any]) -> None:
        now, then = self._settings(), saved["settings"]
        if different := [name for name, value in now.items() if value != then.get(name)]:
            raise PrivacyConditionError(
                f"the checkpoint is of a run with another {', '.join(different)}. To go on with changed "
                "settings would use its noise twice; begin a new run instead"
            )
        charge, loop = saved["charge"], self.loop
        self.account = self.contract.go_on(charge["run"], events.from_json(charge["released"]))
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(saved["scheduler"])
        for part, state in zip((loop.metric, loop.clip, loop.noise, loop.finish), saved["parts"], strict=True):
            set_state(part, state)
        loop.w, loop.velocity, loop.history = saved["w"].to(self.device), saved["velocity"], saved["history"]
        self.noise.set_state(saved["noise"])
        self.step = saved["step"]
        torch.set_rng_state(saved["rng"])


def _repeated(batch: Batch, copies: int) -> Batch:
    from torch.utils._pytree import tree_map

    repeated: Batch = tree_map(lambda x: x.repeat_interleave(copies, 0) if isinstance(x, Tensor) else x, batch)
    return repeated


def sound_delta(delta: float | None, n: int) -> float:
    """The user's δ, with a warning from 1/n on, or min(1e-5, n^−1.1)."""
    if delta is None:
        return min(1e-5, float(n) ** -1.1)
    if not 0 < delta < 1:
        raise InputError(f"delta must be between 0 and 1, both excluded, not {delta!r}")
    if delta >= 1 / n:
        warnings.warn(
            f"delta={delta:.3g} is at least 1/n for n = {n} private records: publishing one of them at random "
            "would satisfy it. Choose a smaller delta, or None",
            PrivacyWarning,
            stacklevel=5,
        )
    return delta


def public_parts(
    trainer: Trainer, public: Dataset[Any] | None, seed: int, device: torch.device
) -> tuple[Records | None, Records | None]:
    """Public records to learn from, and others that are set apart."""
    validation, loading = trainer.validation, trainer.loading
    if not isinstance(validation, int | float):
        if trainer._private is not None and shared_records(validation, trainer._private):
            raise PrivacyConditionError("validation holds private records; pass public or test records")
        apart = Records(validation, loading, device)
        return (None if public is None else Records(public, loading, device)), apart
    if not 0 <= validation < 1:
        raise InputError(f"validation is a dataset or a share in [0, 1), not {validation!r}")
    if public is None or not len(public):  # type: ignore[arg-type]
        return None, None
    size = len(public)  # type: ignore[arg-type]
    count = int(validation * size)
    if count == 0:
        return Records(public, loading, device), None
    order = np.random.default_rng([seed, 2**41]).permutation(size)
    pick = [np.sort(order[count:]).tolist(), np.sort(order[:count]).tolist()]
    learn, apart = (Records(Subset(public, rows), loading, device) for rows in pick)
    return learn, apart
