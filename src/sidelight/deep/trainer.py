"""Train a network under (ε, δ): sampling, calibration, checkpoints, and a statement of what was spent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from sidelight.arguments import kind_of
from sidelight.data.torch_datasets import as_dataset, identity_of, repeats_a_record, shared_records
from sidelight.deep.checkpoint import Checkpoints
from sidelight.deep.ensemble import Ensemble
from sidelight.deep.fit import Fit
from sidelight.deep.lock import sole_run
from sidelight.deep.plain import fit_plainly
from sidelight.deep.settings import check_trainer, refuse_linear
from sidelight.deep.watch import outputs_of, scores
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.methods.auto import Auto
from sidelight.methods.declare import get_method
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.batches import Loading, Losses, Records
from sidelight.oracles.network.flat import per_example
from sidelight.privacy.contract import PrivacyStatement, open_payer
from sidelight.privacy.events import Relation
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger
from sidelight.problems.network_public import Augment, Optimizer, PublicTraining
from sidelight.report.box import budget_line, budget_words

__all__ = ["Trainer"]

_PLAIN = ("only_public", "non_private")


class Trainer:
    """A network, a method and a budget.

        trainer = Trainer(model, loss, epsilon=2)
        trainer.fit(private, public)

    Formal guarantee: `fit` releases what `privacy_` says and is (epsilon, delta)-DP under its relation for
    the records of `private`, as is everything computed from the result. The number of private records and
    the shape of a record are public. A record on which the model or the loss fails, or whose gradient is not
    finite, takes part in nothing, and without a word: an error would tell of it.

    Before the charge the model is tried on two public rows, or on two invented ones of the private tensors'
    shape, and refused if it mixes records. A dataset that is no tensor shows its shape in one record; that is
    read after the charge, which is given back if the model is refused.

    Args:
        model: any module that keeps records apart; it is trained in place, and not wrapped. It is put into
            training mode, but for norms whose averages you froze with .eval().
        loss: (outputs, targets) → one loss a record; a module with reduction='mean' is converted.
        method: a recipe (dope_sgd(), …), only_public(), non_private(), or a name. "auto" chooses batch,
            steps, step size and method on public records, by a rehearsal under the plan's noise
            (`network_auto`); what is given here it keeps.
        delta: None takes the ledger's, and without a ledger min(1e-5, n^-1.1).
        expected_batch_size: B; every record joins a step with probability B/n. None: all records; auto
            takes a thirtieth.
        steps, epochs: one of them, or neither; an epoch is n/B steps.
        relation: which datasets are neighbours; None takes the ledger's, and without a ledger
            add-or-remove-one, or replace-one for a method that is proved for that alone.
        optimizer: parameters → optimizer; None is SGD with the method's step size, or 0.5. With one of
            your own, auto rehearses nothing.
        scheduler: optimizer → scheduler, stepped after every step.
        warm_up: pre-training on public records. None leaves it to the method, with PublicTraining().
        public_batch_size: public records in each public gradient.
        public_augment: inputs → inputs, for public batches; or `mixup`, which blends targets too.
        validation: public records for scores and for estimates that need unseen records: a dataset, or the
            share of the public records to set apart.
        augment, augmentations: every private record enters `augmentations` times, through `augment`; its
            gradients are averaged before clipping. `augment` takes a batch of inputs and gives one. Private
            rows are given to it one at a time, as batches of one, each with random numbers of its own, and
            what it keeps from a call is put back; only the transforms of `sidelight.augment` get many rows
            at once. One that blends records does nothing of use so, and is refused where a trial on two
            public or invented rows shows it.
        loading: workers and micro-batches; they change speed and memory only.
        checkpoints: a folder, or Checkpoints(folder, every=...). Its files are secret (see `checkpoint`).
        ledger, dataset: where the whole plan is charged before a private record is read.
        random_state: for tests and papers, with a warning; None draws noise that nobody can repeat.
        progress: show a bar; None: on a terminal.
    """

    model: nn.Module
    privacy_: PrivacyStatement
    history_: list[dict[str, Any]]
    stopped_: bool

    def __init__(
        self,
        model: nn.Module,
        loss: Losses,
        *,
        epsilon: float,
        method: Any = "auto",
        delta: float | None = None,
        expected_batch_size: float | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        relation: Relation | None = None,
        optimizer: Optimizer | None = None,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        warm_up: PublicTraining | None = None,
        public_batch_size: int = 640,
        public_augment: Augment | None = None,
        validation: Dataset[Any] | float = 0.1,
        augment: Augment | None = None,
        augmentations: int = 1,
        loading: Loading | None = None,
        checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
        progress: bool | None = None,
    ) -> None:
        self.model, self.loss, self.method = model, per_example(loss), method
        self.epsilon, self.delta, self.relation = epsilon, delta, relation
        self.expected_batch_size, self.steps, self.epochs = expected_batch_size, steps, epochs
        self.optimizer, self.scheduler, self.warm_up = optimizer, scheduler, warm_up
        self.public_batch_size, self.public_augment = public_batch_size, public_augment
        self.validation, self.augment, self.augmentations = validation, augment, augmentations
        self.loading = Loading() if loading is None else loading
        self.checkpoints: Checkpoints | None = (
            Checkpoints(checkpoints) if isinstance(checkpoints, str | os.PathLike) else checkpoints
        )
        self.ledger, self.dataset = ledger, dataset
        self.random_state, self.progress = random_state, progress
        self._private: Any = None

    def fit(self, private: Any, public: Any = None, *, resume: bool = False) -> Self:
        """Train on private records with the help of public ones. Every call spends budget, but a `resume`.

        Args:
            private: a map-style dataset of (inputs, targets), or a pair of tensors.
            public: the same, of records that need no protection and do not depend on the private ones.
            resume: go on from the checkpoint, if there is one, as if nothing had happened: the same
                charge, the same noise. Only with the same code, data and settings (see `checkpoint`). A run
                that is finished gives its model back.
        """
        return self._fit(private, public, resume=resume)

    def _fit(
        self, private: Any, public: Any, *, resume: bool = False, identity: Identity | None = None
    ) -> Self:
        """`fit`; `identity` is that of the table which the dataset was made from, if there is one."""
        check_trainer(self)
        kind_of("loading", self.loading, Loading)
        kind_of("checkpoints", self.checkpoints, Checkpoints)
        kind_of("warm_up", self.warm_up, PublicTraining)
        private, public = as_dataset(private), None if public is None else as_dataset(public)
        method = get_method(self.method) if isinstance(self.method, str) else self.method
        if getattr(method, "name", None) not in (*_PLAIN, "auto"):
            refuse_linear(method)
        if public is not None and shared_records(private, public):
            raise InputError("some records are in both datasets: a record that is public cannot be protected")
        if isinstance(method, Recipe) and repeats_a_record(private):
            raise PrivacyConditionError(
                "the private dataset (a Subset or a ConcatDataset) names a record more than once, so its "
                "influence is a multiple of what is accounted for. Name each once; to weigh records, weigh "
                "their losses"
            )
        self._private = private
        shown = identity_of(private) if identity is None else identity
        payer = open_payer(self.ledger, self.dataset, shown)
        if isinstance(method, Recipe | Auto):
            fit = Fit(self, method if isinstance(method, Recipe) else None, private, public, payer)
            with sole_run(None if self.checkpoints is None else self.checkpoints.path):
                result = fit.run(resume=resume)
            self.stopped_, self.history_, self.privacy_ = fit.stopped, fit.loop.history, fit.statement
            self._ensemble = Ensemble(self.model, result) if not isinstance(result, Tensor) else None
        else:
            if resume:
                raise InputError(f"{method.name} keeps no checkpoints to resume from; fit it anew")
            self.privacy_, self.history_ = fit_plainly(self, method, private, public, payer)
            self.stopped_, self._ensemble = False, None
        return self

    def __repr__(self) -> str:
        method = getattr(self.method, "name", self.method)
        words = budget_words(
            getattr(self, "privacy_", None), epsilon=self.epsilon, delta=self.delta, relation=self.relation,
            method=method,
        )  # fmt: skip
        return f"Trainer({type(self.model).__name__}) {budget_line(words)}"

    @property
    def model_(self) -> nn.Module:
        """What to deploy: the model, or an ensemble if the method ends in one."""
        ensemble = getattr(self, "_ensemble", None)
        return self.model if ensemble is None else ensemble

    def evaluate(self, data: Any) -> dict[str, float]:
        """Mean loss, and accuracy for classes, on records that need no protection."""
        dataset = as_dataset(data)
        self._refuse_private(dataset)
        return scores(self.model_, self.loss, self._records(dataset))

    def predict(self, data: Any) -> Tensor:
        """Class numbers, where the model has an output a class; else its outputs. Of inputs or a dataset."""
        if isinstance(data, Tensor):
            data = TensorDataset(data, torch.zeros(len(data)))
        outputs = [outputs for outputs, _ in outputs_of(self.model_, self._records(as_dataset(data)))]
        if not outputs:
            raise InputError("there are no records to predict for")
        found = torch.cat(outputs)
        return found.argmax(1) if found.dim() == 2 and found.shape[1] > 1 else found

    def _refuse_private(self, dataset: Any) -> None:
        if self._private is not None and shared_records(dataset, self._private):
            raise PrivacyConditionError(
                "a score on private records tells about them and is not covered by the guarantee. Pass "
                "public or test records"
            )

    def _records(self, dataset: Dataset[Any]) -> Records:
        return Records(dataset, Loading(collate=self.loading.collate), next(self.model.parameters()).device)
