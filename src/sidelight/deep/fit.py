"""One fit of a recipe: everything public is made ready, the plan is charged, and then steps are taken."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from sidelight.augment.mixing import row_by_row
from sidelight.deep.binding import fingerprints
from sidelight.deep.checkpoint import Lease
from sidelight.deep.ensemble import without_history
from sidelight.deep.journal import Journal
from sidelight.deep.network_auto import Choice, Guard, batch_for, choose, recipe_of
from sidelight.deep.network_rehearsal import decayed_sgd
from sidelight.deep.prepare import (
    configured,
    public_parts,
    sound_optimizer,
    sound_scheduler,
)
from sidelight.deep.private_augment import PrivateAugment
from sidelight.deep.private_batches import RecordBatches
from sidelight.deep.private_records import PrivateRecords
from sidelight.deep.resume import Writer, restore, state_of, things_of
from sidelight.deep.rows_alone import same_parts
from sidelight.deep.watch import Bar, Stop, due, scores, stop_at_interrupt
from sidelight.errors import InputError, PrivacyConditionError, SidelightError
from sidelight.methods.loop import Loop
from sidelight.methods.recipe import Cold, Recipe
from sidelight.methods.task import relation_of
from sidelight.oracles.network.batches import Batch, Records, invented, take
from sidelight.oracles.network.check import refuse
from sidelight.oracles.network.flat import read, tensor, train_mode, trainable, write
from sidelight.oracles.network.layers import refresh_norms
from sidelight.oracles.network.network_oracle import NetworkOracle, records_a_pass
from sidelight.oracles.network.state import KEPT_NOWHERE
from sidelight.privacy.contract import Contract, Payer, PrivacyStatement, delta_of
from sidelight.privacy.events import NoOp
from sidelight.privacy.ledger import Run
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account
from sidelight.problems.network import NetworkProblem
from sidelight.problems.network_public import NetworkGuide

if TYPE_CHECKING:
    from sidelight.deep.trainer import Trainer

__all__ = ["Fit"]

_STEP_SIZE = 0.5  # where neither the method nor the user has one
_ALONE = "an item of the private dataset, as it is collated and augmented, depends on one record alone"
_READABLE = "that records of the private dataset can be read, and what parts and types they have, is public"
_ROWS_TO_CHECK = 16  # public rows among which two different ones are sought


class Fit:
    """The state of one training run."""

    loop: Loop
    contract: Contract
    charge: Run
    account: Account  # the charge, behind a second look at a filter
    journal: Journal  # where there are checkpoints
    statement: PrivacyStatement
    choice: Choice | None = None  # of `auto`
    guard: Guard | None = None  # likewise

    def __init__(
        self,
        trainer: Trainer,
        recipe: Recipe | None,
        private: Dataset[Any],
        public: Dataset[Any] | None,
        payer: Payer | None,
    ) -> None:
        self.trainer, self.model, self.payer = trainer, trainer.model, payer
        self.device = next(self.model.parameters()).device
        self.seed = secrets.randbits(63) if trainer.random_state is None else int(trainer.random_state)
        self.noise = Noise(trainer.random_state, repeatable=trainer.checkpoints is not None)
        self.secret, self.claim = secrets.token_bytes(32), Lease()
        self.auto = recipe is None
        if recipe is None:
            recipe = _unchosen(len(private))  # type: ignore[arg-type]
        if recipe.public_rows == "private" and public is not None:
            private, public = ConcatDataset([private, public]), None
        self.private_source = private
        self.private = PrivateRecords(private, trainer.loading, self.device)
        if not len(self.private):
            raise InputError("there are no private records")
        self._public_source = public
        self._split_public()
        self.relation = relation_of(recipe, trainer.relation, payer)
        self.recipe = configured(trainer, recipe, n=len(self.private), n_public=_size(self.public))
        self.stopped, self.finished = False, False
        self._ledger_seen = ""  # the ledger's last entry when it was last asked who may go on

    # -----------------------------------------------------------------------------------------------
    # before the charge: public things only

    def _split_public(self) -> None:
        self.public, self.held_out = public_parts(self.trainer, self._public_source, self.seed, self.device)

    def _prepare(self, saved: dict[str, Any] | None) -> None:
        """Guide, warm start, parts and contract. A saved run begins again where it began."""
        self.augment = PrivateAugment(self.trainer.augment, self.trainer.augmentations)
        self.augment.check()
        self.private.prepare(self.public if self.held_out is None else self.held_out)
        example = self._example()
        oracle = NetworkOracle(
            self.model, self.trainer.loss, example=example, draw_seed=self.noise.seed,
            pass_size=records_a_pass(self.recipe.expected_batch_size or len(self.private)),
        )  # fmt: skip
        self.oracle = oracle
        self.example, self.checked = example, example is not None
        refuse(self.model)
        row_by_row(self.trainer.augment, None if example is None else example[0])
        if example is not None:
            self._refuse_mixing(example)  # here, before the charge
        guide = self._guide(oracle)
        problem = NetworkProblem(
            oracle, n=len(self.private), guide=guide, warm_up=self.trainer.warm_up, seed=self.seed,
            augmentations=self.trainer.augmentations, micro_batch=self.trainer.loading.micro_batch,
        )  # fmt: skip
        if self.auto:
            self.choice = choose(self, problem) if saved is None else _chosen_then(saved)
            guided = self.public is not None and len(self.public) > 0
            self.recipe = recipe_of(self.choice, guided=guided)
        recipe = self.recipe
        if saved is not None:
            write(self.model, saved["start"].to(self.device))
            torch.set_rng_state(saved["rng_start"].cpu())
            problem.public_training = saved.get("public_training") or {}
            recipe = recipe.with_parts(start=Cold())
        delta = delta_of(self.trainer.delta, len(self.private), self.payer)
        setting = recipe.setting(problem, epsilon=self.trainer.epsilon, delta=delta, relation=self.relation)
        if recipe.needs_public:
            setting.public(recipe.name)
        if saved is None:
            if not self.auto:  # whoever chose has left the model at the start
                write(self.model, tensor(recipe.start(setting)))
            recipe = recipe.with_parts(start=Cold())
            torch.manual_seed(self.seed)  # so that a resumed run can begin here
        self.rng_start, self.start = torch.get_rng_state(), read(self.model)
        problem.begin_step(0)
        self._make_optimizer(recipe, problem)
        problem.move, problem.score = self._move, self._judge
        self.problem = problem
        self.loop = recipe.with_parts(finish=without_history(recipe.finish)).begin(setting)
        self.contract = self._contract(recipe)

    def _example(self) -> Batch | None:
        """Two rows to check the model with: public ones, or invented ones of the private tensors' shape.

        None where only a look at a private record would tell its shape; then the check comes after the
        charge, which is given back if it fails (`_begin`).
        """
        for records in (self.public, self.held_out):
            if records is not None and len(records):
                return records.fetch(range(min(len(records), _ROWS_TO_CHECK)))
        form = self.private.form()
        return None if form is None else invented(form, 2)

    def _guide(self, oracle: NetworkOracle) -> NetworkGuide | None:
        if self.public is None or self.recipe.public_rows != "guide":
            return None
        t = self.trainer
        return NetworkGuide(
            oracle, self.public, batch_size=t.public_batch_size, held_out=self.held_out, seed=self.seed,
            augment=t.public_augment, micro_batch=t.loading.micro_batch,
        )  # fmt: skip

    def _make_optimizer(self, recipe: Recipe, problem: NetworkProblem) -> None:
        """The user's, or SGD with the recipe's step size; that of `auto` decays, and is guarded."""
        parameters, trainer = trainable(self.model), self.trainer
        step_size = recipe.step_size or _STEP_SIZE
        if trainer.optimizer is not None:
            self.optimizer = sound_optimizer(trainer.optimizer(parameters))
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=step_size)
        self.scheduler = sound_scheduler(trainer.scheduler, self.optimizer)
        if self.choice is not None and trainer.optimizer is None and trainer.scheduler is None:
            guard = self.guard = Guard(problem, steps=self.choice.steps)
            self.optimizer, self.scheduler = decayed_sgd(
                parameters, step_size, self.choice.steps, scale=lambda: guard.scale
            )

    @property
    def choice_details(self) -> dict[str, Any]:
        """What `auto` chose, and why; nothing for other methods."""
        return {} if self.choice is None else self.choice.details

    def _contract(self, recipe: Recipe) -> Contract:
        setting, plan = self.loop.setting, recipe.plan_of(self.loop)
        known = f"the number of private records ({setting.n}) and the shape of a record are public"
        chosen = {"optimizer": type(self.optimizer).__name__, "public_records": _size(self.public)}
        return Contract(
            method=recipe.name, event=plan.event, filtered=plan.filtered, relation=self.relation,
            epsilon=setting.epsilon, delta=setting.delta, n=setting.n, payer=self.payer,
            details={**plan.details, **chosen, **self.choice_details},
            assumptions=(*plan.assumptions, known, _ALONE, _READABLE, KEPT_NOWHERE),
        )  # fmt: skip

    # -----------------------------------------------------------------------------------------------
    # the run

    def run(self, *, resume: bool) -> Any:
        """All steps; the finished parameters (in the model too), or several of them for an ensemble."""
        saved = self._saved() if resume else None
        if saved is not None:
            self.seed = saved["seed"]
            self._split_public()
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), stop_at_interrupt() as stop:
            torch.manual_seed(self.seed)
            train_mode(self.model)
            self._prepare(saved)
            if stop.asked:
                raise KeyboardInterrupt  # nothing was charged yet
            if self.choice is not None and self.choice.method == "only_public":
                return self._without_steps()
            self._begin(saved)
            try:
                if not self.finished:
                    self._train(stop)
            finally:
                self.private.close()
            return self._finish()

    def _without_steps(self) -> Tensor:
        """The warm start is the model: no private record is read, and nothing is charged."""
        free = replace(
            self.contract, event=NoOp(), filtered=False, payer=None,
            details={**self.problem.details, **self.choice_details, "public_records": _size(self.public)},
        )  # fmt: skip
        run, _ = free.begin()
        self.statement = free.statement(run, notes=["the private records were not used"])
        write(self.model, self.start)
        return self.start

    def _begin(self, saved: dict[str, Any] | None) -> None:
        """Charge the plan. A model that is refused on the shape of a record has released nothing yet."""
        if saved is not None:
            self.charge, self.account = restore(self, saved)
            if self.finished:
                return
        else:
            self.charge, self.account = self.contract.begin()
            if self.noise.repeatable:
                seen = fingerprints(things_of(self), key=b"")
                self.contract.key(self.noise, self.charge, str(sorted(seen.items())), self.start)
        if self.trainer.checkpoints is not None:
            self.journal = Journal(self.trainer.checkpoints.path, self.secret)
            self.noise.witness = self._witness
        self.private.forget()
        try:
            self._check_form(self.private.learn())
        except SidelightError:
            if saved is None:
                self.charge.finish()
            raise

    def _witness(self, digest: str) -> None:
        """Before noise is drawn: nobody else has gone on with the run, and no other value was released."""
        self._ledger_seen = self.contract.check_claim(
            self.charge, token=self.claim.token, seen=self._ledger_seen
        )
        self.journal.witness(self.loop.steps_taken, digest)

    def _refuse_mixing(self, rows: Batch) -> None:
        t = self.trainer
        self.oracle.check(rows, micro_batch=t.loading.micro_batch, augmentations=t.augmentations)

    def _check_form(self, form: Batch) -> None:
        """Does the model take private records? Nothing is left of them but parts, types and shapes."""
        rows = invented(form, 2)
        if not self.checked:
            row_by_row(self.trainer.augment, rows[0])
            self._refuse_mixing(rows)
        elif self.example is not None and not same_parts(form, self.example):
            raise InputError(
                "private records are made of other parts or types than the public ones (float32 and float64, "
                "say); convert one of them"
            )
        empty = take(self.augment.of_public(take(rows, slice(0, 1))), slice(0, 0))
        self.problem.batches = RecordBatches(
            self.private, empty, augment=self.augment, draw_seed=self.noise.seed
        )

    def _train(self, stop: Stop) -> None:
        loop, setting = self.loop, self.loop.setting
        with Bar(
            self.trainer.progress, total=setting.steps, delta=setting.delta, relation=self.relation,
            released=lambda: self.charge.released, share_spent=loop.noise.share_spent,
        ) as bar:  # fmt: skip
            writer = Writer(self)
            loop.train(
                account=self.account, noise=self.noise, observers=(bar, writer), stop=lambda: stop.asked
            )
            self.stopped = stop.asked
            if self.stopped:
                writer.write()

    def _saved(self) -> dict[str, Any] | None:
        if self.trainer.checkpoints is None:
            raise InputError("resume=True needs checkpoints=, the folder to resume from")
        return self.trainer.checkpoints.read(self.device)

    def _move(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.guard is not None:
            self.guard.after_step()
        refresh_norms(self.model)
        if self.scheduler is not None:
            self.scheduler.step()

    def _judge(self, step: int) -> dict[str, float]:
        """Scores on held-out public records, every now and then; never on private ones."""
        if self.held_out is None or not due(step, self.loop.setting.steps):
            return {}
        found = scores(self.model, self.trainer.loss, self.held_out)
        return {f"validation_{name}": value for name, value in found.items()}

    def _finish(self) -> Any:
        if not self.stopped:
            self._close()  # a run that was stopped keeps its charge, and may be resumed
        result = self.loop.finish.result(self.start)
        notes = [*self.loop.all_notes(), *([] if self.guard is None else self.guard.notes)]
        if self.stopped:
            notes.append(
                f"stopped by the user after {self.loop.steps_taken} steps; the whole plan stays charged"
            )
        self.statement = self.contract.statement(self.charge, notes=notes, assumptions=self.noise.assumptions)
        if isinstance(result, Tensor):
            write(self.model, result)
        return result

    def _close(self) -> None:
        """End well. What could repeat the noise is erased first, in the checkpoint and in the ledger."""
        if self.trainer.checkpoints is not None and not self.finished:
            self.finished = True
            self.trainer.checkpoints.write(state_of(self), claim=self.claim)
            self.contract.close(self.charge)
            self.journal.close()
        self.charge.finish()


def _unchosen(n: int) -> Recipe:
    """What `auto` is before it has chosen: its batch size, which depends on n alone."""
    return recipe_of(Choice("dp_sgd", batch_for(n), 1, _STEP_SIZE), guided=False).with_parts(steps=None)


def _chosen_then(saved: dict[str, Any]) -> Choice:
    """The choice of the run that a checkpoint is of."""
    if saved.get("choice") is None:
        raise PrivacyConditionError("the checkpoint is of a run with another method, and not of auto")
    return Choice.from_json(saved["choice"])


def _size(records: Records | None) -> int:
    return 0 if records is None else len(records)
