"""One fit of a recipe: what was prepared is charged, then steps are taken until plan or user end them."""

from __future__ import annotations

import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import numpy as np
import torch
from torch import Tensor, nn

from sidelight.arrays import Json
from sidelight.augment.transforms import row_by_row
from sidelight.deep.binding import fingerprints
from sidelight.deep.checkpoint import (
    Journal,
    RunState,
    Writer,
    restore,
    run_identity,
    state_of,
)
from sidelight.deep.language import TokenLoss
from sidelight.deep.network_auto import Choice
from sidelight.deep.network_parts import EnsembleWeights
from sidelight.deep.paid_choice import COMPARED, HALFWAY, between, describe_choice, way_of
from sidelight.deep.person_records import PersonBatches
from sidelight.deep.prepare import Preparation, public_counts, size_of
from sidelight.deep.private_records import RecordBatches, same_parts
from sidelight.deep.temperature import fold_temperature, scale_scores
from sidelight.errors import InputError, PrivacyWarning, SidelightError, users_line, warn_charged
from sidelight.methods.health_check import HEALTH_CHECK, UNUSED, HealthCheck, skipped
from sidelight.methods.part_kinds import Models
from sidelight.methods.task import NOT_USED
from sidelight.numbers import plain_up
from sidelight.observers import TrainingProgress, due
from sidelight.oracles.network.batches import Batch, Losses, placeholder_rows, take
from sidelight.oracles.network.flat import tensor
from sidelight.oracles.network.layers import refresh_norms
from sidelight.privacy.events import Indices, NoOp
from sidelight.privacy.release import Account, BoundedSum, Run, release
from sidelight.privacy.statement import PrivacyStatement
from sidelight.problems.datasets import Records
from sidelight.problems.flat_parameters import drop_gradients, train_mode, write
from sidelight.problems.network_public import outputs_of
from sidelight.problems.network_ranks import Done, Ranks, Setup, SumQuestion
from sidelight.problems.public_training import FACTOR


class Fit(Preparation):
    """A training run: the charge, the steps, and the statement of what was spent."""

    charge: Run
    account: Account  # the charge, behind a second look at a filter
    journal: Journal  # where there are checkpoints
    statement: PrivacyStatement
    stopped = False
    finished = False
    _ledger_seen = ""  # the ledger's last entry when it was last asked who may go on

    def run(self, *, resume: bool) -> EnsembleWeights | None:
        """All steps. The result is in the model; or it is several parameter vectors, for an ensemble."""
        saved = self._saved() if resume else None
        if saved is not None:
            self.seed = saved["seed"]
            self._split_public()
        if self.ranks is not None:
            self.ranks.tell(Setup(self.seed))
        devices = [self.device] if self.device.type == "cuda" else []
        with (
            TrainingProgress(self.trainer.progress) as bar,
            torch.random.fork_rng(devices=devices),
            stop_at_interrupt() as stop,
        ):
            torch.manual_seed(self.seed)
            train_mode(self.model)
            self._prepare(saved)
            self.problem.move, self.problem.score = self._move, self._judge
            if stop.asked:
                raise KeyboardInterrupt("stopped at Ctrl-C before anything was charged")
            if self.choice is not None and self.choice.method == "only_public":
                self._without_steps(self.choice)
                return None
            self._begin(saved)
            try:
                if not self.finished:
                    self._train(stop, bar)
                    self._check_health()
                    self._compare()
            finally:
                self.private.close()
            return self._finish()

    def _without_steps(self, choice: Choice) -> None:
        """The warm start is the model: no private record is read, and nothing is charged."""
        free = replace(
            self.contract, event=NoOp(), filtered=False, payer=None,
            details={
                **self.problem.details, **choice.details, **public_counts(self.public, self.held_out),
                "health_check": skipped(UNUSED),
                "returned": f"the start, trained on public records alone: {'; '.join(choice.reasons)}",
            },
        )  # fmt: skip
        run, _ = free.begin()
        write(self.model, self.start)
        folded = self._fold_public()
        self.statement = free.statement(run, notes=[NOT_USED, *folded])

    def _begin(self, saved: RunState | None) -> None:
        """Charge the plan. A model that is refused on the shape of a record has released nothing yet."""
        if saved is not None:
            self.charge, self.account = restore(self, saved)
            if self.finished:
                return
        else:
            self.charge, self.account = self.contract.begin()
            if self.noise.repeatable:
                seen = fingerprints(run_identity(self), key=b"")
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

    def _check_form(self, form: Batch) -> None:
        """Does the model take private records? Nothing is left of them but parts, types and shapes."""
        rows = placeholder_rows(form, 2)
        if self.example is None:
            row_by_row(self.trainer.augment, rows[0])
        made = self.augment.of_public(take(rows, slice(0, 1)))
        if self.example is None:
            self._refuse_mixing(made)
        elif not same_parts(form, self.example):
            raise InputError(
                "private records have other parts or types than the public ones (float32 and float64, "
                "say); convert one of them"
            )
        self.problem.batches = self._batches(take(made, slice(0, 0)))

    def _batches(self, empty: Batch) -> RecordBatches:
        if self.persons is None:
            return RecordBatches(self.private, empty, augment=self.augment, draw_seed=self.seeds)
        return PersonBatches(
            self.private, empty, persons=self.persons, max_rows=self.trainer.max_rows, augment=self.augment,
            draw_seed=self.seeds,
        )  # fmt: skip

    def _train(self, stop: Stop, bar: TrainingProgress) -> None:
        loop, setting = self.loop, self.loop.setting
        bar.begin(
            total=setting.steps, delta=setting.delta, relation=self.relation,
            released=lambda: self.charge.released, share_spent=loop.noise.share_spent,
        )  # fmt: skip
        folder = self.trainer.checkpoints
        writer = None if folder is None else Writer(self, folder)
        ours = (bar,) if writer is None else (bar, writer)
        loop.take_steps(
            account=self.account, noise=self.noise, observers=(*ours, *self.trainer.observers),
            stop=lambda: stop.asked or bool(self.guard.verdict),
        )  # fmt: skip
        self.stopped = stop.asked and not self.guard.verdict
        if self.stopped and writer is not None:
            writer.write()

    def _check_health(self) -> None:
        """Count records that contribute nothing, after the last step. A run that may go on has not been."""
        if self.check is None or self.stopped or not self.loop.history:
            return
        indices = self.check.sampler.indices(self.n, self.noise)
        total = self.problem.count_ignored(indices, relation=self.relation)
        std = self.check.multiplier * total.sensitivity
        noisy = release(total, std=std, event=self.check.event, account=self.account, noise=self.noise)
        found = np.asarray(tensor(noisy.numpy()).cpu())
        health = HealthCheck().read(found, std=std, plan=self.check, unit=self.unit)
        self.loop.history[-1][HEALTH_CHECK] = health.to_dict()
        health.warn()

    def _compare(self) -> None:
        """Private records choose between the result and the start, unless the run may go on."""
        if self.paid is None or self.stopped or self.guard.verdict or not self.loop.history:
            return
        result = self.loop.result(self.start)
        if not isinstance(result, Models):
            self.loop.history[-1][COMPARED] = self.paid.choose(
                self.problem, self.start, tensor(result), relation=self.relation, account=self.account,
                noise=self.noise,
            )  # fmt: skip

    def _place(self, result: Tensor, *, dead: bool) -> list[str]:
        """Write the network that is returned into the model; notes on its scores."""
        found = self.loop.history[-1].get(COMPARED) if self.loop.history else None
        if not isinstance(found, dict):
            write(self.model, between(self.start, result, self._way_unasked(dead=dead)))
            return fold_temperature(self.oracle, self.held_out)
        write(self.model, between(self.start, result, found["way"]) if found["way"] else self.start)
        if not found["way"] and "scales" not in found:
            return self._fold_public()
        scale_scores(self.model, found["scale"])
        return []

    def _fold_public(self) -> list[str]:
        """The temperature of a network that public records alone have trained."""
        factor = float(str(self.problem.public_training.get(FACTOR, 1.0)))
        return fold_temperature(self.oracle, self.held_out, learned=self.public, factor=factor)

    def _way_unasked(self, *, dead: bool) -> float:
        """How far to go from a warm start where private records are not asked."""
        chosen = self.auto and size_of(self.public) > 0 and self.trainer.optimizer is None
        return HALFWAY if chosen and not (dead or self.stopped) else 1.0

    def _returned(self, *, dead: bool) -> Json:
        """What `auto` returned, and why."""
        found = self.loop.history[-1].get(COMPARED) if self.loop.history else None
        if not self.auto or dead or self.stopped:
            return {}
        if isinstance(found, dict):
            return {"returned": describe_choice(found)}
        why = (
            ""
            if self.paid_details is None
            else f": private records were not asked, since {self.paid_details['skipped']}"
        )
        return {"returned": way_of(self._way_unasked(dead=dead)) + why}

    def _health(self) -> Json:
        """What the check found, for the statement; also of a finished run that was resumed."""
        last = self.loop.history[-1] if self.loop.history else {}
        found = last.get(HEALTH_CHECK)
        return {**self.check_details, **found} if isinstance(found, dict) else self.check_details

    def _comparison(self) -> Json:
        """What the comparison cost and said, for the statement."""
        found = self.loop.history[-1].get(COMPARED) if self.loop.history else None
        if self.paid_details is None:
            return {}
        return {COMPARED: {**self.paid_details, **(found if isinstance(found, dict) else {})}}

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
        drop_gradients(self.optimizer)
        if self.guard.after_step():
            self.optimizer.state.clear()  # momentum of the steps that were taken back
        refresh_norms(self.model)
        if self.scheduler is not None and self.plateau is None:
            self.scheduler.step()

    def _judge(self, step: int) -> dict[str, float]:
        """Scores on held-out public records, every now and then; never on private ones."""
        if self.held_out is None or not due(step, self.loop.setting.steps):
            return {}
        found = scores(self.model, self.trainer.loss, self.held_out)
        if self.plateau is not None:
            self.plateau.step(found["loss"])
        return {f"validation_{name}": value for name, value in found.items()}

    def _finish(self) -> EnsembleWeights | None:
        if not self.stopped:
            self._close()  # a run that was stopped keeps its charge, and may be resumed
        dead = self._end_of_a_dead_run() if self.guard.verdict else []
        result = self.guard.best_params if dead else self.loop.result(self.start)
        folded: list[str] = []
        if not isinstance(result, Models):
            folded = self._place(tensor(result), dead=bool(dead))
        notes = [*self.loop.all_notes(), *self.guard.notes, *dead, *folded]
        if self.stopped:
            notes.append(
                f"stopped by the user after {self.loop.steps_taken} steps; the whole plan stays charged"
            )
        self.statement = self.contract.statement(
            self.charge, notes=notes, assumptions=self.noise.assumptions,
            found={"health_check": self._health(), **self._comparison(), **self._returned(dead=bool(dead))},
        )  # fmt: skip
        if self.stopped:
            self._warn_of_the_stop()
        if isinstance(result, EnsembleWeights):
            return result
        if isinstance(result, Models):
            raise InputError(
                f"a network's ensemble is made of EnsembleWeights, not of {type(result).__name__}"
            )
        return None

    def _end_of_a_dead_run(self) -> list[str]:
        """Leave the remaining steps unspent, and say why.

        The statement keeps the whole plan: when the run stopped depends on what was released, and only a
        filter proves that the steps taken cost no more than they would by themselves.
        """
        lowered = self.contract.settle(self.charge)
        cost = "the ledger is charged for these steps alone" if lowered else "the whole plan stays charged"
        taken, planned = self.loop.steps_taken, self.loop.setting.steps
        note = (
            f"stopped after {taken} of {planned} steps: {self.guard.verdict}. The model "
            f"is the best iterate, that of step {self.guard.best_at}; {cost}"
        )
        advice = "Shorten the steps, begin at a warm start, or leave both to method='auto'"
        warn_charged(f"{note}. {advice}", PrivacyWarning)
        return [note]

    def _warn_of_the_stop(self) -> None:
        how = (
            "fit(..., resume=True) continues from the last checkpoint, and spends nothing more"
            if self.trainer.checkpoints is not None
            else "There is no checkpoint to continue from; checkpoints=folder keeps them"
        )
        warn_charged(
            f"stopped at Ctrl-C after {self.loop.steps_taken} of {self.loop.setting.steps} steps. The whole "
            f"plan is charged: ε = {plain_up(self.statement.epsilon, 4)} at "
            f"δ = {plain_up(self.statement.delta, 3)}. {how}",
            PrivacyWarning,
        )

    def _close(self) -> None:
        """End well. What could repeat the noise is erased first, in the checkpoint and in the ledger."""
        if self.trainer.checkpoints is not None and not self.finished:
            self.finished = True
            self.loop.noise.forget()
            self.trainer.checkpoints.write(state_of(self), claim=self.claim)
            self.contract.close(self.charge)
            self.journal.close()


class Helper:
    """A rank other than 0: it answers the questions of rank 0, and gets from it what came of the run.

    make: the fit of this rank, made at the first question: its failures are then sent to the others.
    """

    def __init__(self, ranks: Ranks, model: nn.Module, n: int, make: Callable[[], Fit]) -> None:
        self._ranks, self._model, self.n, self._make = ranks, model, n, make
        self._seed = 0
        self._fit: Fit | None = None

    def run(self) -> object:
        """Answer questions until rank 0 has ended; returns its result."""
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


# ---------------------------------------------------------------------------------------------------
# scores on public records, and a stop at Ctrl-C


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
