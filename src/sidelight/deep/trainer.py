"""Train a network under (ε, δ): sampling, calibration, checkpoints, and a statement of what was spent."""

from __future__ import annotations

import math
import os
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset

from sidelight.arrays import Array, Floats, Json
from sidelight.augment.transforms import Augment
from sidelight.data.persons import Persons
from sidelight.deep.binding import fingerprints, structure_of, without_addresses
from sidelight.deep.checkpoint import Checkpoints, sole_run
from sidelight.deep.fit import Fit, Helper, scores
from sidelight.deep.language import loss_of, save_model
from sidelight.deep.network_parts import Ensemble, EnsembleWeights
from sidelight.deep.per_example import per_example, scores_of
from sidelight.deep.person_records import Key, given_persons
from sidelight.deep.prepare import (
    check_loss,
    check_model,
    planned_steps,
    public_counts,
    public_parts,
    refuse_linear,
)
from sidelight.deep.private_records import digest_of_sample
from sidelight.deep.rehearsal import RateSchedule, try_records, try_training
from sidelight.deep.temperature import fold_temperature
from sidelight.errors import (
    InputError,
    NotPrivateWarning,
    PrivacyConditionError,
    RankLost,
    SidelightError,
    callable_or_none,
    kind_of,
    positive,
    users_line,
    whole,
)
from sidelight.familiar_words import knows_familiar_words
from sidelight.methods.auto import Auto
from sidelight.methods.declare import as_method
from sidelight.methods.health_check import UNUSED, skipped
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import NOT_USED, PUBLIC_APART, Method
from sidelight.observers import due
from sidelight.oracles.network.batches import Losses
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.contract import Contract, Payer, delta_of, open_payer, relation_of
from sidelight.privacy.events import Event, NonPrivate, NoOp, Relation
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.observer import Observer, check_observers
from sidelight.privacy.release import private_process
from sidelight.privacy.statement import PrivacyStatement
from sidelight.problems.dataset_overlap import check_held_out, repeats_a_record, shared_records
from sidelight.problems.datasets import Loading, Records, as_dataset, as_tensor, identity_of, record_count
from sidelight.problems.flat_parameters import read, train_mode, write
from sidelight.problems.network_public import outputs_of
from sidelight.problems.network_ranks import Done, Ranks, ranks_of
from sidelight.problems.public_training import FACTOR, Optimizer, PublicTraining, train_well
from sidelight.report.notebook import budget_box, budget_line, budget_words

_PLAIN = ("only_public", "non_private")  # methods without private steps

Data: TypeAlias = Dataset[object] | tuple[Tensor, Tensor] | Mapping[str, Tensor]
History = list[Json]


class TrainingData(NamedTuple):
    """A method and the data that it is run on, checked as far as settings and types tell."""

    method: Method
    private: Dataset[object]
    public: Dataset[object] | None
    persons: Persons | None
    identity: Identity | None

    @property
    def n(self) -> int:
        """Private records, or persons."""
        return record_count(self.private) if self.persons is None else self.persons.count


class Result(NamedTuple):
    """What a fit leaves besides the model; the same on every rank."""

    statement: PrivacyStatement
    history: History
    stopped: bool
    several: EnsembleWeights | None


class Trainer:
    """A network, a method and a budget.

        trainer = Trainer(model, loss, epsilon=2)
        trainer.fit(private, public)

    Formal guarantee: `fit` releases what `privacy_` says and is (epsilon, delta)-DP under its relation for
    the records of `private`, as is everything computed from the result. The number of private records and
    the shape of a record are public. A record on which the model or the loss fails, or whose gradient is not
    finite, is ignored: it silently contributes zero to every sum, since an error would reveal it.

    Before the charge the model is tried on two public rows, or on two made-up ones of the private tensors'
    shape, and refused if it mixes records. If a dataset does not consist of tensors, the shape comes from one
    record, read after the charge; the charge is returned if the model is refused.

    Args:
        model: any module that keeps records apart. It is trained in place, not wrapped, in training mode
            except for norms whose averages you froze with .eval().
        loss: (outputs, targets) → one loss per record; a module with reduction='mean' is converted. None is
            that of a transformers model's head, averaged within each record (`language.loss_of`).
        method: a recipe (dope_sgd(), …), only_public(), non_private(), or a name. "auto" is DP-SGD from
            a warm start on the public records, with batch, steps and step size by rules of public numbers
            (`network_auto`), except for what is given here.
        delta: None takes the ledger's, and without a ledger min(1e-5, 1/(100·n)).
        expected_batch_size: B; every record joins a step with probability B/n. None: the method's; where it
            has none an eighth of the records, and all if they are few.
        steps, epochs: at most one of them; an epoch is n/B steps. Neither: the method's, or else 20 epochs,
            or fewer if the noise of a step would be long.
        relation: which datasets are neighbors; None uses the ledger's, and without a ledger
            add-or-remove-one, or replace-one for a method that is proved only for that.
        optimizer: parameters → optimizer; None is SGD with the method's step size, or else with momentum and
            a step size that is as large as the noise allows and decays to zero along a cosine.
        scheduler: optimizer → scheduler, stepped after every step. Copies of both take every step of the plan
            on zeros before the charge, so that neither ends a charged run. ReduceLROnPlateau is
            stepped with each loss of held-out public records.
        warm_up: pre-training on public records. None leaves it to the method, with PublicTraining().
        public_batch_size: public records in each public gradient.
        public_augment: inputs → inputs, for public batches; or `mixup`, which blends targets too.
        validation: public records for scores and for estimates that need unseen records: a dataset, or the
            share of the public records to set apart. None is no record for "auto" and for methods without
            private steps, and a tenth for others. Of a dataset that the private records are part of, it
            takes only what `public` has too, and that is then not learned from.
        augment, augmentations: every private record enters `augmentations` times, through `augment`; its
            gradients are averaged before clipping. `augment` takes a batch of inputs and gives one. Private
            rows are given to it one at a time, as batches of one, each with random numbers of its own, and
            what it keeps from a call is reset; only the transforms of `sidelight.augment` get many rows
            at once. One that blends records is refused if a trial on two public or made-up rows
            shows it.
        unit: what the guarantee protects: one "record", or all rows of a person, if persons have several: a
            function of an item of the dataset that names its person, or any other text, the label of the
            names given to `fit(persons=...)`. A person's gradients are averaged before
            clipping; persons are counted and drawn, and expected_batch_size is a number of persons.
        max_rows: rows of a person in a step, drawn anew each time; persons with fewer rows cost as much time.
        health_check: count records that contribute nothing (they cannot be read, the model or the loss fails
            on them, their gradient is not finite), with noise, after the last step. It takes at most 2 % of
            the budget's μ² and is reported as an interval in `privacy_` and `history_`, and as a warning if
            most records are affected. At most 4,096 records are drawn for it.
        stop_if_dead: stop a run whose held-out public loss shows nothing learned for a third of the plan
            (`guard`), with a warning and the best iterate so far. A ledger takes the remaining
            steps back if its filter admitted the run. False takes all steps.
        loading: workers and micro-batches; they change speed and memory only.
        checkpoints: a folder, or Checkpoints(folder, every=...). The files must stay secret (see
            `checkpoint`).
        ledger, dataset: where the whole plan is charged before a private record is read.
        random_state: for tests and papers, with a warning; None draws noise that nobody can repeat.
        progress: show a bar; None: on a terminal.
        observers: notified of the charge, of every step and of the statement (`sidelight.observers`).

    Ctrl-C stops after the step at hand, with a warning that says what was spent and how to continue.
    """

    model: nn.Module
    privacy_: PrivacyStatement
    history_: History
    stopped_: bool

    @knows_familiar_words
    def __init__(
        self,
        model: nn.Module,
        loss: Losses | None = None,
        *,
        epsilon: float,
        method: Method | str = "auto",
        delta: float | None = None,
        expected_batch_size: float | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        relation: Relation | None = None,
        optimizer: Optimizer | None = None,
        scheduler: Callable[[torch.optim.Optimizer], RateSchedule] | None = None,
        warm_up: PublicTraining | None = None,
        public_batch_size: int = 640,
        public_augment: Augment | None = None,
        validation: Dataset[object] | float | None = None,
        augment: Augment | None = None,
        augmentations: int = 1,
        unit: str | Key = "record",
        max_rows: int = 8,
        stop_if_dead: bool = True,
        health_check: bool = True,
        loading: Loading | None = None,
        checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
        progress: bool | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.model, self.method = model, method
        self.loss = per_example(loss_of(model) if loss is None else loss)
        self.epsilon, self.delta, self.relation = epsilon, delta, relation
        self.expected_batch_size, self.steps, self.epochs = expected_batch_size, steps, epochs
        self.optimizer, self.scheduler, self.warm_up = optimizer, scheduler, warm_up
        self.public_batch_size, self.public_augment = public_batch_size, public_augment
        self.validation, self.augment, self.augmentations = validation, augment, augmentations
        self.unit, self.max_rows, self.stop_if_dead = unit, max_rows, stop_if_dead
        self.health_check = health_check
        self.loading = Loading() if loading is None else loading
        self.checkpoints: Checkpoints | None = (
            Checkpoints(checkpoints) if isinstance(checkpoints, str | os.PathLike) else checkpoints
        )
        self.ledger, self.dataset = ledger, dataset
        self.random_state, self.progress = random_state, progress
        self.observers = check_observers(observers)
        self._private: Dataset[object] | None = None
        self._ensemble: Ensemble | None = None

    def fit(
        self,
        private: Data,
        public: Data | None = None,
        *,
        persons: ArrayLike | Tensor | None = None,
        resume: bool = False,
    ) -> Self:
        """Train on private records with the help of public ones. Every call spends budget, except a `resume`.

        Args:
            private: a map-style dataset of (inputs, targets), or of dictionaries with `labels`; a pair of
                tensors, or a dictionary of them.
            public: the same, of records that need no protection and do not depend on the private ones.
            persons: the person of each private record, if persons have several: one name or number for each.
                The guarantee is then for all rows of a person (see `unit`).
            resume: continue from the checkpoint, with the same charge and the same
                noise. Only with the same code, data and settings (see `checkpoint`). A finished run
                returns its model. Without a checkpoint a new run begins and is charged, after a
                warning, so a job that is restarted repeatedly may always pass it.
        """
        return self._fit(private, public, persons=persons, resume=resume)

    def _fit(
        self,
        private: Data,
        public: Data | None,
        *,
        persons: object = None,
        resume: bool = False,
        identity: Identity | None = None,
    ) -> Self:
        """`fit`; `identity` is that of the table which the dataset was made from, if there is one."""
        check_model(self.model)
        ranks = ranks_of(next(self.model.parameters()).device)
        if ranks is None:
            self._run(self._job(private, public, persons, identity), None, resume=resume)
            return self
        try:
            job = self._job(private, public, persons, identity)
            terms = self._terms(job, resume=resume)
        except SidelightError as error:
            ranks.agree(error)
            raise
        ranks.agree(terms)
        ranks.share_state(self.model)
        if ranks.leads:
            with ranks.leading():
                result = self._run(job, ranks, resume=resume)
                ranks.tell(Done(result))
        else:
            self._finish(Helper(ranks, self.model, job.n, lambda: self._begin(job, None, ranks)).run())
        ranks.share_state(self.model)
        return self

    def _job(
        self, private: Data, public: Data | None, persons: object, identity: Identity | None
    ) -> TrainingData:
        """What is to be done, checked as far as settings and types tell."""
        check_trainer(self)
        records = as_dataset(private)
        guide = None if public is None else as_dataset(public, public=True)
        method = as_method(self.method)
        if getattr(method, "name", None) not in (*_PLAIN, "auto"):
            refuse_linear(method)
        if guide is not None and shared_records(records, guide):
            raise InputError("some records are in both datasets, but a public record cannot be protected")
        if not isinstance(self.validation, int | float | None):
            check_held_out(as_dataset(self.validation, public=True), records, guide)
        if isinstance(method, Recipe | Auto) and repeats_a_record(records):
            raise PrivacyConditionError(
                "the private dataset (a Subset or a ConcatDataset) names a record more than once, so its "
                "influence is a multiple of what is accounted for. Name each once; to weigh records, weigh "
                "their losses"
            )
        self._private = records
        whose = persons if isinstance(persons, Persons) else given_persons(records, self.unit, persons)
        return TrainingData(method, records, guide, whose, identity)

    def _begin(self, job: TrainingData, payer: Payer | None, ranks: Ranks | None) -> Fit:
        recipe = job.method if isinstance(job.method, Recipe) else None
        return Fit(self, recipe, job.private, job.public, payer, job.persons, ranks)

    def _run(self, job: TrainingData, ranks: Ranks | None, *, resume: bool) -> Result:
        """Charge and train, on this process or led by it."""
        payer = open_payer(self.ledger, self.dataset)
        if payer is not None:
            known = identity_of(job.private) if job.identity is None else job.identity
            if job.persons is not None:  # how many rows persons have is in no output
                known = replace(known, records=job.n, unit=job.persons.unit)
            payer = replace(payer, identity=known)
        if isinstance(job.method, Recipe | Auto):
            fit = self._begin(job, payer, ranks)
            with nullcontext() if self.checkpoints is None else sole_run(self.checkpoints.path):
                several = fit.run(resume=resume)
            return self._finish(Result(fit.statement, fit.loop.history, fit.stopped, several))
        if resume:
            raise InputError(f"{job.method.name} keeps no checkpoints to resume from; fit it again")
        found = fit_plainly(self, job.method, job.private, job.public, payer, job.persons)
        return self._finish(Result(*found, stopped=False, several=None))

    def _finish(self, found: object) -> Result:
        if not isinstance(found, Result):
            raise RankLost("rank 0 sent no result")
        self.privacy_, self.history_, self.stopped_ = found.statement, found.history, found.stopped
        self._ensemble = None if found.several is None else Ensemble(self.model, found.several)
        return found

    def _terms(self, job: TrainingData, *, resume: bool) -> dict[str, str]:
        """What every rank must have alike: settings, code, and the data as far as it is seen."""
        plain = ("epsilon", "delta", "relation", "expected_batch_size", "steps", "epochs", "augmentations",
                 "public_batch_size", "max_rows", "random_state", "dataset", "health_check")  # fmt: skip
        code = {"loss": self.loss, "augment": self.augment, "collate": self.loading.collate,
                "unit": self.unit, "validation": self.validation}  # fmt: skip
        things: dict[str, object] = {"private data": job.private, "public data": job.public, **code}
        if job.persons is not None:
            things["persons"] = torch.from_numpy(job.persons.codes)
        return {
            "number of private records": str(record_count(job.private)),
            "model": structure_of(self.model),
            "method": without_addresses(job.method),
            "resume": str(resume),
            **{name: str(getattr(self, name)) for name in plain},
            **fingerprints(things, key=b""),
            # A dataset that is not a tensor may be in another order elsewhere (files as a folder lists them).
            "order of the private records": digest_of_sample(job.private),
        }

    def __repr__(self) -> str:
        return f"{self._title} {budget_line(self._budget())}"

    def _repr_html_(self) -> str:
        return budget_box(self._title, self._budget(), getattr(self, "privacy_", None))

    @property
    def _title(self) -> str:
        return f"Trainer({type(self.model).__name__})"

    def _budget(self) -> dict[str, str]:
        return budget_words(
            getattr(self, "privacy_", None), epsilon=self.epsilon, delta=self.delta, relation=self.relation,
            method=getattr(self.method, "name", self.method),
        )  # fmt: skip

    @property
    def model_(self) -> nn.Module:
        """What to deploy: the model, or an ensemble if the method ends in one."""
        return self.model if self._ensemble is None else self._ensemble

    def evaluate(self, data: Data | DataLoader[Any]) -> dict[str, float]:
        """Mean loss, and accuracy for classes, on records that need no protection (or their DataLoader)."""
        loader = data if isinstance(data, DataLoader) else None  # a score needs no batches drawn by chance
        dataset = as_dataset(data if loader is None else loader.dataset, public=True)
        if self._private is not None and shared_records(dataset, self._private):
            raise PrivacyConditionError(
                "a score on private records reveals something about them and is not covered by the "
                "guarantee. Pass public or test records"
            )
        collate = self.loading.collate if loader is None else loader.collate_fn
        return scores(self.model_, self.loss, self._records(dataset, collate))

    def predict(self, data: Data | Tensor | Array) -> Tensor:
        """Class numbers, if the model has one output per class; else its outputs. Of inputs or a dataset."""
        if isinstance(data, np.ndarray):
            data = as_tensor(data)
        if isinstance(data, Tensor):
            data = TensorDataset(data, torch.zeros(len(data)))
        records = self._records(as_dataset(data, public=True), self.loading.collate)
        outputs = [scores_of(outputs) for outputs, _ in outputs_of(self.model_, records)]
        if not outputs:
            raise InputError("there are no records to predict for")
        found = torch.cat(outputs)
        return found.argmax(1) if found.dim() == 2 and found.shape[1] > 1 else found

    def save_pretrained(self, folder: str | os.PathLike[str], *, tokenizer: object = None) -> Path:
        """Save a model of transformers or peft with its guarantee: weights, README.md and privacy.json.

        Args:
            tokenizer: saved beside it, if it is given.
        """
        return save_model(self, folder, tokenizer=tokenizer)

    def _records(self, dataset: Dataset[object], collate: Callable[[Any], Any] | None) -> Records:
        return Records(dataset, Loading(collate=collate), next(self.model.parameters()).device)


def check_trainer(trainer: Trainer) -> None:
    """Raise InputError at the first setting that cannot be meant."""
    check_model(trainer.model)
    positive("epsilon", trainer.epsilon)
    positive("delta", trainer.delta, optional=True)
    positive("expected_batch_size", trainer.expected_batch_size, optional=True)
    positive("epochs", trainer.epochs, optional=True)
    whole("steps", trainer.steps, optional=True)
    whole("public_batch_size", trainer.public_batch_size)
    whole("augmentations", trainer.augmentations)
    whole("max_rows", trainer.max_rows)
    whole("random_state", trainer.random_state, least=0, optional=True)
    kind_of("stop_if_dead", trainer.stop_if_dead, bool)
    kind_of("health_check", trainer.health_check, bool)
    kind_of("loading", trainer.loading, Loading)
    kind_of("checkpoints", trainer.checkpoints, Checkpoints)
    kind_of("warm_up", trainer.warm_up, PublicTraining)
    _check_factories(trainer)
    for name in ("augment", "public_augment"):
        callable_or_none(name, getattr(trainer, name))
    check_loss(trainer.loss)
    if not (isinstance(trainer.unit, str) and trainer.unit) and not callable(trainer.unit):
        raise InputError(
            f'unit must be "record", or a text or a function that names persons, not {trainer.unit!r}; the '
            "names themselves go into fit(..., persons=names)"
        )
    as_method(trainer.method)


def _check_factories(trainer: Trainer) -> None:
    """Optimizer and scheduler are functions that make one: the steps come later, and may be repeated."""
    makes = {"optimizer": "parameters: torch.optim", "scheduler": "optimizer: torch.optim.lr_scheduler"}
    for name, maker in makes.items():
        given = getattr(trainer, name)
        if given is not None and not callable(given):
            kind = type(given).__name__
            raise InputError(
                f"{name} must be a function that makes one, such as "
                f"lambda {maker}.{kind}({maker.partition(':')[0]}, ...), not {kind}"
            )


# ---------------------------------------------------------------------------------------------------
# methods that take no private steps: public records alone, and no privacy at all


def fit_plainly(
    trainer: Trainer,
    method: Method,
    private: Dataset[object],
    public: Dataset[object] | None,
    payer: Payer | None,
    persons: Persons | None = None,
) -> tuple[PrivacyStatement, History]:
    """Train by plain steps, on the public records or (with a warning) on all of them."""
    seed = secrets.randbits(63) if trainer.random_state is None else int(trainer.random_state)
    device = next(trainer.model.parameters()).device
    learn, held_out = public_parts(trainer, public, seed, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        train_mode(trainer.model)
        if method.name == "only_public":
            n, unit = (record_count(private), "record") if persons is None else (persons.count, persons.unit)
            return _only_public(trainer, method, n, learn, held_out, seed, payer, unit)
        both = private if learn is None else ConcatDataset([private, learn.dataset])
        records = Records(both, trainer.loading, device)
        return _non_private(trainer, method, records, held_out, seed, payer)


def _only_public(
    trainer: Trainer,
    method: Method,
    n: int,
    learn: Records | None,
    held_out: Records | None,
    seed: int,
    payer: Payer | None,
    unit: str,
) -> tuple[PrivacyStatement, History]:
    """Nobody is charged; the statement has the ledger's relation and δ all the same."""
    if learn is None:
        raise InputError("only_public needs public records; pass a public dataset")
    contract = replace(
        _plain_contract(trainer, method, NoOp(), n, payer),
        payer=None,
        assumptions=(PUBLIC_APART,),
        unit=unit,
    )
    oracle = NetworkOracle(trainer.model, trainer.loss)
    for name, records in (("validation=", held_out), ("the public dataset", learn)):
        if records is not None:
            try_records(oracle, records, name)
    try_training(oracle, learn, _plain_training(trainer, len(learn)))
    history, evidence = _train(trainer, learn, held_out, seed)
    told = {
        **public_counts(learn, held_out), "public_training": evidence, "health_check": skipped(UNUSED),
    }  # fmt: skip
    contract = replace(contract, details=told)
    run, _ = contract.begin()
    factor = float(evidence.get(FACTOR, 1.0))
    folded = fold_temperature(oracle, held_out, learned=learn, factor=factor)
    return contract.statement(run, notes=[NOT_USED, *folded]), history


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
    contract = replace(_plain_contract(trainer, method, NonPrivate(), len(records), payer), private=False)
    run, account = contract.begin()
    history: History = []

    def process(_: Noise) -> Floats:
        history.extend(_train(trainer, records, held_out, seed)[0])
        return np.asarray(read(trainer.model).double().cpu())

    result = private_process(process, event=contract.event, account=account, noise=Noise())
    write(trainer.model, torch.as_tensor(result.numpy()))
    run.finish()
    return contract.statement(run, notes=["this model is not private"]), history


def _plain_contract(trainer: Trainer, method: Method, event: Event, n: int, payer: Payer | None) -> Contract:
    return Contract(
        method=method.name, event=event, filtered=False, epsilon=trainer.epsilon, n=n, payer=payer,
        relation=relation_of(method, trainer.relation, payer), delta=delta_of(trainer.delta, n, payer),
    )  # fmt: skip


def _train(trainer: Trainer, records: Records, held_out: Records | None, seed: int) -> tuple[History, Json]:
    """The history, and what was chosen on held-out public records."""
    how, history = _plain_training(trainer, len(records)), History()
    steps = how.steps_for(len(records))

    def each(step: int) -> bool:
        history.append({"step": step})
        if held_out is not None and due(step + 1, steps):
            found = scores(trainer.model, trainer.loss, held_out)
            history[-1] |= {f"validation_{name}": value for name, value in found.items()}
        return True

    oracle = NetworkOracle(trainer.model, trainer.loss)
    return history, train_well(oracle, records, how, seed=seed, each=each)


def _plain_training(trainer: Trainer, size: int) -> PublicTraining:
    """Steps and batches as the trainer says, or as for a warm start."""
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
