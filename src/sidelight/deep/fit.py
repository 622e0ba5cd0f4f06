"""One fit of a recipe: everything public is made ready, the plan is charged, and then steps are taken.

Around the steps: checks of settings before them, scores on public records, a progress bar with the budget
spent, and a stop at Ctrl-C.
"""

from __future__ import annotations

import math
import secrets
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from sidelight.arrays import Json
from sidelight.augment.transforms import row_by_row
from sidelight.data.rows import Persons
from sidelight.deep.binding import fingerprints
from sidelight.deep.checkpoint import Journal, Lease, RunState, Writer, restore, state_of, things_of
from sidelight.deep.gradient_points import batch_for, step_size_for
from sidelight.deep.language import TokenLoss
from sidelight.deep.network_auto import (
    Choice,
    Guard,
    choose,
    decayed_sgd,
    real_plan,
    recipe_of,
)
from sidelight.deep.network_parts import Several
from sidelight.deep.person_records import PersonBatches, with_public
from sidelight.deep.private_records import PrivateAugment, PrivateRecords, RecordBatches, same_parts
from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning, SidelightError, users_line
from sidelight.methods.declare import DECLARATIONS
from sidelight.methods.dope_sgd import PublicGradient, Warm
from sidelight.methods.part import FinishRule, Models
from sidelight.methods.parts import AllRecords, Cold, ConstantNoise, MeanLastHalf, MeanTail, Reuse
from sidelight.methods.recipe import Loop, Recipe
from sidelight.methods.task import relation_of
from sidelight.oracles.network.batches import (
    Batch,
    Losses,
    Records,
    as_dataset,
    placeholder_rows,
    record_count,
    shared_records,
    take,
)
from sidelight.oracles.network.check import refuse
from sidelight.oracles.network.flat import read, tensor, train_mode, trainable, write
from sidelight.oracles.network.layers import refresh_norms
from sidelight.oracles.network.network_oracle import NetworkOracle, records_a_pass
from sidelight.oracles.network.state import KEPT_NOWHERE
from sidelight.privacy import accountants
from sidelight.privacy.contract import Contract, Observer, Payer, PrivacyStatement, delta_of
from sidelight.privacy.events import Event, Indices, NoOp, Relation
from sidelight.privacy.ledger import Run
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum
from sidelight.problems.network import NetworkProblem
from sidelight.problems.network_public import NetworkGuide, outputs_of
from sidelight.problems.network_ranks import (
    RANKS_TRUSTED,
    Done,
    Ranks,
    Seeds,
    Setup,
    SumQuestion,
    refuse_wrapped,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from sidelight.deep.trainer import Trainer

__all__ = [
    "Fit", "Helper", "RateSchedule", "check_model", "due", "planned_steps", "public_parts",
    "refuse_linear", "scores",
]  # fmt: skip

_ORIGIN_LIMIT = 0.5  # a public gradient of a network may be many times as long as a clipped private one
_STEP_SIZE = 0.5  # where neither the method nor the user has one
_ALONE = "an item of the private dataset, as it is collated and augmented, depends on one record alone"
_READABLE = "that records of the private dataset can be read, and what parts and types they have, is public"
_SAME_ORDER = "every rank has the same record at the same place of the private dataset"
_ROWS_TO_CHECK = 16  # public rows among which two different ones are sought
_LOOKS = 10  # scores, and the budget spent, are shown so often in a run


class RateSchedule(Protocol):
    """What is asked of a learning-rate scheduler."""

    def step(self) -> object: ...

    def state_dict(self) -> Json: ...

    def load_state_dict(self, state: Json, /) -> object: ...


class Fit:
    """The state of one training run."""

    loop: Loop
    contract: Contract
    charge: Run
    account: Account  # the charge, behind a second look at a filter
    journal: Journal  # where there are checkpoints
    optimizer: torch.optim.Optimizer
    scheduler: RateSchedule | None
    statement: PrivacyStatement
    choice: Choice | None = None  # of `auto`
    step_size: float | None = None  # the first, of another method that leaves steps and their size open
    guard: Guard | None = None  # of either

    def __init__(
        self,
        trainer: Trainer,
        recipe: Recipe | None,
        private: Dataset[object],
        public: Dataset[object] | None,
        payer: Payer | None,
        persons: Persons | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.trainer, self.model, self.payer, self.ranks = trainer, trainer.model, payer, ranks
        self.device = next(self.model.parameters()).device
        self.seed = secrets.randbits(63) if trainer.random_state is None else int(trainer.random_state)
        self.noise = Noise(trainer.random_state, repeatable=trainer.checkpoints is not None)
        self.seeds = Seeds(self.noise.seed)
        self.secret, self.claim = secrets.token_bytes(32), Lease()
        self.auto = recipe is None
        if recipe is None:
            recipe = _unchosen(record_count(private) if persons is None else persons.count)
        if recipe.public_rows == "private" and public is not None:
            persons = None if persons is None else with_public(persons, record_count(public))
            private, public = ConcatDataset([private, public]), None
        self.persons = persons
        self.private_source = private
        self.private = PrivateRecords(private, trainer.loading, self.device)
        if not len(self.private):
            raise InputError("there are no private records")
        self._public_source = public
        self._split_public()
        self.relation = relation_of(recipe, trainer.relation, payer)
        self.recipe = configured(trainer, recipe, n=self.n, n_public=_size(self.public))
        self.stopped, self.finished = False, False
        self._ledger_seen = ""  # the ledger's last entry when it was last asked who may go on

    @property
    def n(self) -> int:
        """Private records, or persons."""
        return len(self.private) if self.persons is None else self.persons.count

    @property
    def unit(self) -> str:
        return "record" if self.persons is None else self.persons.unit

    @property
    def copies(self) -> int:
        """Rows that are one contribution: augmentations of a record, or the rows of a person."""
        return self.trainer.augmentations * (1 if self.persons is None else self.trainer.max_rows)

    # -----------------------------------------------------------------------------------------------
    # before the charge: public things only

    def _split_public(self) -> None:
        self.public, self.held_out = public_parts(self.trainer, self._public_source, self.seed, self.device)

    def _prepare(self, saved: RunState | None) -> None:
        """Guide, warm start, parts and contract. A saved run begins again where it began."""
        problem = self.problem = self._make_problem()
        if self.auto:
            self.choice = choose(self, problem) if saved is None else _chosen_then(saved)
            self.recipe = recipe_of(self.choice, guided=_size(self.public) > 0)
        else:
            self._fill_in(problem.dimension)
        recipe = self.recipe
        if saved is not None:
            write(self.model, saved["start"].to(self.device))
            torch.set_rng_state(saved["rng_start"].cpu())
            problem.public_training = saved.get("public_training") or {}
            recipe = recipe.with_parts(start=Cold())
        delta = delta_of(self.trainer.delta, self.n, self.payer)
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
        self._make_optimizer(recipe, setting.steps)
        problem.move, problem.score = self._move, self._judge
        self.loop = recipe.with_parts(finish=without_history(recipe.finish)).begin(setting)
        self.contract = self._contract(recipe)

    def _make_problem(self) -> NetworkProblem:
        """The model under an oracle, examined as far as is possible before a private record is read."""
        t = self.trainer
        self.augment = PrivateAugment(t.augment, self.copies, dataset=self.private_source)
        self.augment.check()
        self.private.prepare(self.public if self.held_out is None else self.held_out)
        self.example = self._example()
        self.oracle = NetworkOracle(
            self.model, t.loss, example=self.example, draw_seed=self.seeds, pass_size=self._pass_size(),
            largest_pass=self._pass_size(most=4096),
        )  # fmt: skip
        refuse(self.model)
        row_by_row(t.augment, None if self.example is None else self.example[0])
        if self.example is not None:
            self._refuse_mixing(self.example)
        return NetworkProblem(
            self.oracle, n=self.n, guide=self._guide(), warm_up=t.warm_up, seed=self.seed,
            augmentations=self.copies, micro_batch=t.loading.micro_batch, unit=self.unit, ranks=self.ranks,
            seeds=self.seeds,
        )  # fmt: skip

    def _pass_size(self, *, most: int = 512) -> int:
        """Records that a rank takes through the model at a time."""
        ranks = 1 if self.ranks is None else self.ranks.size
        mine = max(1.0, (self.recipe.expected_batch_size or self.n) / ranks)
        return records_a_pass(mine, most=most, each=1 if self.persons is None else self.trainer.max_rows)

    def _fill_in(self, dimension: int) -> None:
        """The number and the size of steps that the method and the user leave open, as `auto` plans them.

        Only where all steps have the same noise: other rules (a budget that adapts, a pool of private and
        public records) have numbers of their own.
        """
        recipe = self.recipe
        if recipe.steps is None and isinstance(recipe.noise, ConstantNoise) and not recipe.extended:
            plan = real_plan(self, dimension)
            self.recipe = recipe.with_parts(steps=plan.steps)
            if self.trainer.optimizer is None and recipe.step_size is None:
                self.step_size = (1 - recipe.momentum) * step_size_for(plan, dimension)

    def _example(self) -> Batch | None:
        """Two rows to check the model with: public ones, or made-up ones of the private tensors' shape.

        None where only a look at a private record would tell its shape; then the check comes after the
        charge, which is given back if it fails (`_begin`).
        """
        for records in (self.public, self.held_out):
            if records is not None and len(records):
                return records.fetch(range(min(len(records), _ROWS_TO_CHECK)))
        form = self.private.form()
        return None if form is None else placeholder_rows(form, 2)

    def _guide(self) -> NetworkGuide | None:
        if self.public is None or self.recipe.public_rows != "guide":
            return None
        t = self.trainer
        return NetworkGuide(
            self.oracle, self.public, batch_size=t.public_batch_size, held_out=self.held_out, seed=self.seed,
            augment=t.public_augment, micro_batch=t.loading.micro_batch,
        )  # fmt: skip

    def _make_optimizer(self, recipe: Recipe, steps: int) -> None:
        """The user's, or SGD. Steps that were left to us decay, and held-out records watch over them."""
        parameters, trainer = trainable(self.model), self.trainer
        size = recipe.step_size or self.step_size or _STEP_SIZE
        if trainer.optimizer is not None:
            self.optimizer = sound_optimizer(trainer.optimizer(parameters))
        elif trainer.scheduler is None and (self.auto or self.step_size is not None):
            guard = self.guard = Guard(self.problem, steps=steps)
            self.optimizer, self.scheduler = decayed_sgd(parameters, size, steps, scale=lambda: guard.scale)
            return
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=size)
        self.scheduler = sound_scheduler(trainer.scheduler, self.optimizer)

    @property
    def choice_details(self) -> Json:
        """What `auto` chose, and why; nothing for other methods."""
        return {} if self.choice is None else self.choice.details

    def _contract(self, recipe: Recipe) -> Contract:
        setting, plan = self.loop.setting, recipe.plan_of(self.loop)
        counted = "records" if self.persons is None else "persons"
        known = f"the number of private {counted} ({setting.n}) and the shape of a record are public"
        chosen: Json = {
            "optimizer": type(self.optimizer).__name__, "private_records": setting.n,
            "public_records": _size(self.public),
        }  # fmt: skip
        if self.step_size is not None:
            chosen["step_size"] = self.step_size
        whose: tuple[str, ...] = () if self.ranks is None else (_SAME_ORDER, RANKS_TRUSTED)
        if self.persons is not None:
            chosen["max_rows"] = self.trainer.max_rows
            whose = (
                *whose,
                f"all rows of a person have one name in {self.unit!r}, and no other's do",
            )
        return Contract(
            method=recipe.name, event=plan.event, filtered=plan.filtered, relation=self.relation,
            epsilon=setting.epsilon, delta=setting.delta, n=setting.n, unit=self.unit, payer=self.payer,
            details={**plan.details, **chosen, **self.choice_details}, observers=self.trainer.observers,
            assumptions=(*plan.assumptions, known, *whose, _ALONE, _READABLE, KEPT_NOWHERE),
        )  # fmt: skip

    # -----------------------------------------------------------------------------------------------
    # the run

    def run(self, *, resume: bool) -> Several | None:
        """All steps. The result is in the model; or it is several parameter vectors, for an ensemble."""
        saved = self._saved() if resume else None
        if saved is not None:
            self.seed = saved["seed"]
            self._split_public()
        if self.ranks is not None:
            self.ranks.tell(Setup(self.seed))
        devices = [self.device] if self.device.type == "cuda" else []
        with (
            Bar(self.trainer.progress) as bar,
            torch.random.fork_rng(devices=devices),
            stop_at_interrupt() as stop,
        ):
            torch.manual_seed(self.seed)
            train_mode(self.model)
            self._prepare(saved)
            if stop.asked:
                raise KeyboardInterrupt  # nothing was charged yet
            if self.choice is not None and self.choice.method == "only_public":
                self._without_steps()
                return None
            self._begin(saved)
            try:
                if not self.finished:
                    self._train(stop, bar)
            finally:
                self.private.close()
            return self._finish()

    def _without_steps(self) -> None:
        """The warm start is the model: no private record is read, and nothing is charged."""
        free = replace(
            self.contract, event=NoOp(), filtered=False, payer=None,
            details={**self.problem.details, **self.choice_details, "public_records": _size(self.public)},
        )  # fmt: skip
        run, _ = free.begin()
        self.statement = free.statement(run, notes=["the private records were not used"])
        write(self.model, self.start)

    def _begin(self, saved: RunState | None) -> None:
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

    def prepare_to_help(self, seed: int) -> None:
        """On another rank than 0: records and model as rank 0 has them, which has planned and charged."""
        self.seed = seed
        self._split_public()
        self.problem = self._make_problem()
        self._check_form(self.private.learn())

    def _refuse_mixing(self, rows: Batch) -> None:
        t = self.trainer
        self.oracle.check(rows, micro_batch=t.loading.micro_batch, augmentations=self.copies)

    def _check_form(self, form: Batch) -> None:
        """Does the model take private records? Nothing is left of them but parts, types and shapes."""
        rows = placeholder_rows(form, 2)
        if self.example is None:
            row_by_row(self.trainer.augment, rows[0])
            self._refuse_mixing(rows)
        elif not same_parts(form, self.example):
            raise InputError(
                "private records are made of other parts or types than the public ones (float32 and float64, "
                "say); convert one of them"
            )
        empty = take(self.augment.of_public(take(rows, slice(0, 1))), slice(0, 0))
        self.problem.batches = self._batches(empty)

    def _batches(self, empty: Batch) -> RecordBatches:
        if self.persons is None:
            return RecordBatches(self.private, empty, augment=self.augment, draw_seed=self.seeds)
        return PersonBatches(
            self.private, empty, persons=self.persons, max_rows=self.trainer.max_rows, augment=self.augment,
            draw_seed=self.seeds,
        )  # fmt: skip

    def _train(self, stop: Stop, bar: Bar) -> None:
        loop, setting = self.loop, self.loop.setting
        bar.begin(
            total=setting.steps, delta=setting.delta, relation=self.relation,
            released=lambda: self.charge.released, share_spent=loop.noise.share_spent,
        )  # fmt: skip
        folder = self.trainer.checkpoints
        writer = None if folder is None else Writer(self, folder)
        ours = (bar,) if writer is None else (bar, writer)
        loop.train(
            account=self.account, noise=self.noise, observers=(*ours, *self.trainer.observers),
            stop=lambda: stop.asked,
        )  # fmt: skip
        self.stopped = stop.asked
        if self.stopped and writer is not None:
            writer.write()

    def _saved(self) -> RunState | None:
        if self.trainer.checkpoints is None:
            raise InputError("resume=True needs checkpoints=, the folder to resume from")
        saved = self.trainer.checkpoints.read(self.device)
        if saved is None:
            warnings.warn(
                f"resume=True, but {str(self.trainer.checkpoints.path)!r} holds no checkpoint: a new run "
                "begins, and all of it is charged",
                PrivacyWarning,
                stacklevel=users_line(),
            )
        return saved

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

    def _finish(self) -> Several | None:
        if not self.stopped:
            self._close()  # a run that was stopped keeps its charge, and may be resumed
        result = self.loop.finish.result(self.start)
        notes = [*self.loop.all_notes(), *([] if self.guard is None else self.guard.notes)]
        if self.stopped:
            notes.append(
                f"stopped by the user after {self.loop.steps_taken} steps; the whole plan stays charged"
            )
        self.statement = self.contract.statement(self.charge, notes=notes, assumptions=self.noise.assumptions)
        if self.stopped:
            self._warn_of_the_stop()
        if isinstance(result, Several):
            return result
        if isinstance(result, Models):
            raise InputError(
                f"a network's ensemble is made of Several iterates, not of {type(result).__name__}"
            )
        write(self.model, tensor(result))
        return None

    def _warn_of_the_stop(self) -> None:
        how = (
            "fit(..., resume=True) continues from the last checkpoint, and spends nothing more"
            if self.trainer.checkpoints is not None
            else "There is no checkpoint to continue from; checkpoints=folder keeps them"
        )
        warnings.warn(
            f"stopped at Ctrl-C after {self.loop.steps_taken} of {self.loop.setting.steps} steps. The whole "
            f"plan is charged: ε = {self.statement.epsilon:.4g} at δ = {self.statement.delta:.3g}. {how}",
            PrivacyWarning,
            stacklevel=users_line(),
        )

    def _close(self) -> None:
        """End well. What could repeat the noise is erased first, in the checkpoint and in the ledger."""
        if self.trainer.checkpoints is not None and not self.finished:
            self.finished = True
            self.trainer.checkpoints.write(state_of(self), claim=self.claim)
            self.contract.close(self.charge)
            self.journal.close()
        self.charge.finish()


class Helper:
    """A rank other than 0: it answers the questions of rank 0, and gets from it what came of the run.

    make: the fit of this rank, made at the first question: what fails in it is then told to the others.
    """

    def __init__(self, ranks: Ranks, model: nn.Module, n: int, make: Callable[[], Fit]) -> None:
        self._ranks, self._model, self.n, self._make = ranks, model, n, make
        self._seed = 0
        self._fit: Fit | None = None

    def run(self) -> object:
        """Until rank 0 has ended: its result."""
        device = next(self._model.parameters()).device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), stop_at_interrupt():
            train_mode(self._model)
            try:
                while not isinstance(message := self._ranks.hear(), Done):
                    if isinstance(message, Setup):
                        self._seed = message.seed
                    elif isinstance(message, SumQuestion):
                        self._ranks.answer(self, self._model, message)
                return message.result
            finally:
                if self._fit is not None:
                    self._fit.private.close()

    def own_sum(self, question: SumQuestion, indices: Indices) -> BoundedSum:
        if self._fit is None:
            fit = self._make()
            fit.prepare_to_help(self._seed)
            self._fit = fit
        return self._fit.problem.own_sum(question, indices)


def _unchosen(n: int) -> Recipe:
    """What `auto` is before it has chosen: its batch size, which depends on n alone."""
    return recipe_of(Choice("dp_sgd", batch_for(n), 1, _STEP_SIZE), guided=False).with_parts(steps=None)


def _chosen_then(saved: RunState) -> Choice:
    """The choice of the run that a checkpoint is of."""
    if (choice := saved.get("choice")) is None:
        raise PrivacyConditionError("the checkpoint is of a run with another method, and not of auto")
    return Choice.from_json(choice)


def _size(records: Records | None) -> int:
    return 0 if records is None else len(records)


# ---------------------------------------------------------------------------------------------------
# before the charge: settings that cannot be meant are refused, those that are left out are filled in


def check_model(model: object) -> None:
    """A module with something to train."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    refuse_wrapped(model)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise InputError("the model has lazy layers without parameters yet; call it on a made-up batch first")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("the model has no trainable parameters")
    if any(p.is_meta for p in model.parameters()):
        raise InputError("the model has parameters on the meta device, which hold no values; load them first")


def refuse_linear(method: object) -> None:
    """Raise InputError for a method that asks for what a linear model alone has."""
    name = getattr(method, "name", type(method).__name__)
    declared = DECLARATIONS.get(name)
    if declared is None or declared.networks:  # a recipe of one's own: the part that it is about is named
        for part in method.parts if isinstance(method, Recipe) else ():
            if part.linear_only:
                raise InputError(
                    f"{type(part).__name__} is for linear models; a network takes another {part.kind}="
                )
    if not (isinstance(method, Recipe) and method.on_networks):
        able = ", ".join(name for name, one in DECLARATIONS.items() if one.networks)
        raise InputError(f"{name} is for linear models. Networks take: {able}")


def configured(trainer: Trainer, recipe: Recipe, *, n: int, n_public: int) -> Recipe:
    """The recipe with the trainer's batch size, steps and start; the batch of `auto` where nobody has one."""
    asked = trainer.expected_batch_size
    batch = recipe.expected_batch_size if asked is None else asked
    if batch is None and isinstance(recipe.batch, AllRecords) and not recipe.extended:
        batch = batch_for(n)
    pool = n + (n_public if recipe.extended else 0)
    steps = planned_steps(trainer, pool, batch)
    origin = recipe.origin
    if isinstance(origin, PublicGradient) and origin.limit is None:
        origin = PublicGradient(_ORIGIN_LIMIT)
    return recipe.with_parts(
        origin=origin,
        expected_batch_size=batch,
        steps=recipe.steps if steps is None else steps,
        start=recipe.start if trainer.warm_up is None else Warm(),
    )


def without_history(finish: FinishRule) -> FinishRule:
    """The same finish without keeping half of all iterates in memory."""
    if isinstance(finish, MeanLastHalf):
        return MeanTail(0.5)
    if isinstance(finish, Reuse):
        return replace(finish, inner=without_history(finish.inner))
    return finish


def planned_steps(trainer: Trainer, pool: int, batch: float | None) -> int | None:
    """What steps= or epochs= ask for."""
    if trainer.steps is not None and trainer.epochs is not None:
        raise InputError("pass steps or epochs, not both")
    if trainer.epochs is None:
        return trainer.steps
    if not trainer.epochs > 0:
        raise InputError(f"epochs must be positive, not {trainer.epochs!r}")
    return max(1, math.ceil(trainer.epochs * pool / min(pool, pool if batch is None else batch)))


def sound_optimizer(made: object) -> torch.optim.Optimizer:
    """What optimizer= returned, if it can take a step with a gradient that is given."""
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            f"optimizer= returned {type(made).__name__}; it must return an optimizer of the parameters that "
            "it is given, as lambda p: torch.optim.SGD(p, lr=0.1) does"
        )
    if isinstance(made, torch.optim.LBFGS):
        raise InputError(
            "LBFGS asks for the loss several times per step, and each would be a release; use another"
        )
    return made


def sound_scheduler(
    make: Callable[[torch.optim.Optimizer], RateSchedule] | None, optimizer: torch.optim.Optimizer
) -> RateSchedule | None:
    """A scheduler that is stepped after every step, or None."""
    made = None if make is None else make(optimizer)
    if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau) or not (
        made is None or hasattr(made, "step")
    ):
        raise InputError(f"scheduler= returned {type(made).__name__}; its step() must need no score")
    return made


def public_parts(
    trainer: Trainer, public: Dataset[object] | None, seed: int, device: torch.device
) -> tuple[Records | None, Records | None]:
    """Public records to learn from, and others that are set apart."""
    validation, loading = trainer.validation, trainer.loading
    if not isinstance(validation, int | float):
        validation = as_dataset(validation)
        if trainer._private is not None and shared_records(validation, trainer._private):
            raise PrivacyConditionError("validation holds private records; pass public or test records")
        apart = Records(validation, loading, device)
        return (None if public is None else Records(public, loading, device)), apart
    if not 0 <= validation < 1:
        raise InputError(f"validation is a dataset or a share in [0, 1), not {validation!r}")
    if public is None or not (size := record_count(public)):
        return None, None
    count = int(validation * size)
    if count == 0:
        return Records(public, loading, device), None
    order = np.random.default_rng([seed, 2**41]).permutation(size)
    pick = [np.sort(order[count:]).tolist(), np.sort(order[:count]).tolist()]
    learn, apart = (Records(Subset(public, rows), loading, device) for rows in pick)
    return learn, apart


# ---------------------------------------------------------------------------------------------------
# scores on public records


def due(step: int, steps: int) -> bool:
    """Whether it is time for scores after this step."""
    return step % max(1, steps // _LOOKS) == 0


def scores(model: nn.Module, loss: Losses, records: Records) -> dict[str, float]:
    """Mean loss; for classes accuracy, for tokens perplexity. Of public records."""
    total, right, count, classes = 0.0, 0, 0, False
    words, nats = 0, 0.0
    for outputs, targets in outputs_of(model, records):
        with torch.no_grad():
            losses = loss(outputs, targets).double()
        total, count = total + float(losses.sum()), count + len(losses)
        found = getattr(outputs, "logits", outputs)
        if _are_classes(found, targets):
            classes, right = True, right + int((found.argmax(1) == targets).sum())
        if isinstance(loss, TokenLoss):
            tokens = loss.tokens(targets)
            words, nats = words + int(tokens.sum()), nats + float((losses * tokens).sum())
    if not count:
        return {}
    more = {"accuracy": right / count} if classes else {}
    return {"loss": total / count, **more, **({"perplexity": _exp(nats / words)} if words else {})}


def _are_classes(found: object, targets: object) -> bool:
    if not (isinstance(found, Tensor) and isinstance(targets, Tensor)):
        return False
    return found.dim() == 2 and not targets.is_floating_point()


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


# ---------------------------------------------------------------------------------------------------
# a progress bar, and a stop at Ctrl-C


class Stop:
    """Whether the user asked to stop."""

    asked = False


@contextmanager
def stop_at_interrupt() -> Iterator[Stop]:
    """The first Ctrl-C asks for a stop after the step at hand, a second one interrupts at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set handlers
        return
    previous = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)


class Bar(Observer):
    """A progress bar on a terminal; nothing elsewhere, unless asked for.

    It is there from the first second on, while public records are trained on and methods are rehearsed.
    """

    def __init__(self, visible: bool | None) -> None:
        self.visible = sys.stderr.isatty() if visible is None else visible
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        if self.visible:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._progress.start()
            self._task = self._progress.add_task("public records and plan", total=None)
        return self

    def begin(
        self,
        *,
        total: int,
        delta: float,
        relation: Relation,
        released: Callable[[], Event],
        share_spent: Callable[[], float | None],
    ) -> None:
        """Private steps begin.

        released, share_spent: what was released so far, and for a filter the share of its budget, whose ε is
        that of its certificate at any step.
        """
        self._released, self._share_spent = released, share_spent
        self._total, self._delta, self._relation = total, delta, relation
        if self._progress is not None:
            self._progress.update(self._task, total=total, description="training")

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        """Show the step; now and then the budget spent as well, which takes a moment to compute."""
        if self._progress is None:
            return
        self._progress.update(self._task, completed=step)
        if due(step, self._total):
            share = self._share_spent()
            spent = {"ε": self.epsilon(self._released())} if share is None else {
                "of the budget": share
            }  # fmt: skip
            known = {
                name.removeprefix("validation_"): value for name, value in entry.items() if "valid" in name
            }
            text = "  ".join(f"{name} {value:.3g}" for name, value in {**spent, **known}.items())
            self._progress.update(self._task, description=text)

    def epsilon(self, released: Event) -> float:
        """What these releases cost, if no more follow."""
        return accountants.epsilon(
            released, delta=self._delta, relation=self._relation, accountant="pld-coarse"
        )
