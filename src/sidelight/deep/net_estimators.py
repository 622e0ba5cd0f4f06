"""scikit-learn's interface to networks: arrays in, a network fitted under (ε, δ), predictions out.

    PrivateNetClassifier(model, epsilon=2).fit(X, y, X_public=Xp, y_public=yp)

What holds for `PrivateClassifier` holds here: classes and target bounds are declared or come from public
records; a private record that cannot be used (a missing value, a label that is none of the classes) is
ignored; every `fit` spends budget; no guarantee covers scores on private records. Features enter as they are,
in the type of the model's parameters: put a normalization that needs no private data into the model. For
datasets that do not fit in memory, workers, checkpoints or schedulers use `Trainer`.
"""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from sidelight.arrays import Array, Floats, Json, TableLike
from sidelight.data.frames import is_frame, names_of, without_column
from sidelight.data.inputs import (
    as_array,
    check_real,
    check_table,
    check_targets,
    private_array,
    private_targets,
    read_off,
)
from sidelight.data.persons import Persons
from sidelight.data.private_tables import open_private
from sidelight.data.targets import (
    Classes,
    TargetScale,
    natural_labels,
    range_of_targets,
    resolve_classes,
    resolve_target,
)
from sidelight.deep.network_parts import Ensemble
from sidelight.deep.person_records import given_persons
from sidelight.deep.prepare import check_model
from sidelight.deep.trainer import Trainer
from sidelight.errors import InputError, PrivacyConditionError, first_line
from sidelight.estimators.fit_records import persons_in
from sidelight.estimators.sklearn_context import (
    ScoreWarning,
    memory_around,
    remember_records,
    warn_outside_fit,
)
from sidelight.familiar_words import knows_familiar_words
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import NestedMethod
from sidelight.oracles.network.flat import evaluating
from sidelight.privacy.events import Relation
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.statement import PrivacyStatement
from sidelight.problems.dataset_overlap import rows_in_memory
from sidelight.problems.public_training import Optimizer, PublicTraining

_ROWS = 1024  # predicted at a time


class PrivateNet(NestedMethod, BaseEstimator):  # type: ignore[misc]
    """What the two estimators share."""

    model: nn.Module
    model_: nn.Module
    privacy_: PrivacyStatement
    history_: list[Json]
    n_features_in_: int
    _may_assume: ClassVar[tuple[str, ...]] = ()
    _settings = ("method", "epsilon", "delta", "relation", "expected_batch_size", "epochs", "steps",
                 "optimizer", "warm_up", "validation", "unit", "max_rows", "health_check", "ledger",
                 "dataset", "random_state")  # fmt: skip

    def fit(
        self,
        X: TableLike,
        y: ArrayLike,
        X_public: TableLike | None = None,
        y_public: ArrayLike | None = None,
        *,
        persons: ArrayLike | None = None,
    ) -> Self:
        """Train a copy of the model on private records with the help of public ones; spends budget.

        Args:
            X: (n, features) or (n, channels, …): real numbers, one record per row.
            y: one label or number per record.
            X_public, y_public: the same, of records that need no protection.
            persons: (n,) whose each row is, where a person has several: the guarantee is then for all of
                them. Or X is a frame, and `unit` the column that names persons.
        """
        around = (*warn_outside_fit(), *self._assumed(y_public))
        check_model(self.model)
        named = self._persons(X, persons)
        if self.unit != "record":
            X, X_public = without_column(X, self.unit), without_column(X_public, self.unit)
        model = copy.deepcopy(self.model)
        inputs = self._tensor(X, "X", private=True)
        targets = private_targets(y, rows=len(inputs), real=self._real)
        public, labels = self._public(X_public, y_public, inputs)
        width = self._learn_target(labels, targets)
        _check_outputs(model, inputs, width)
        _check_held_out(self.validation, X)
        options = {name: getattr(self, name) for name in self._settings}
        trainer = Trainer(model, self._loss, progress=False, **options)
        guide = None
        if public is not None and labels is not None:  # they come together
            guide = TensorDataset(public, self._encode(labels, public))
        encoded = self._encode(targets, inputs)
        records = TensorDataset(inputs, encoded)
        whose = named if isinstance(named, Persons) else given_persons(records, self.unit, named)
        if whose is not None:  # a row that cannot be used is nobody's, and leaves its person's others alone
            whose = replace(whose, codes=np.where(self._unusable(encoded), -1, whose.codes))
        shaped = X if len(getattr(X, "shape", ())) == inputs.ndim else inputs
        trainer._fit(records, guide, persons=whose, identity=Identity.of(shaped, y))
        self.model_, self.privacy_, self.history_ = trainer.model_, trainer.privacy_, trainer.history_
        self.privacy_ = replace(self.privacy_, assumptions=(*self.privacy_.assumptions, *around))
        remember_records(self, X, None if whose is not None else len(inputs))
        self._shape = inputs.shape[1:]
        self.n_features_in_ = int(np.prod(self._shape))
        return self

    _real = False

    def _persons(self, X: TableLike, given: ArrayLike | None) -> Persons | ArrayLike | None:
        """Whose each row is, by a column of a frame; else what is given."""
        if given is None and self.unit != "record" and is_frame(X) and self.unit in names_of(X, "X"):
            return persons_in(open_private(X, "X"), self.unit)
        return given

    @staticmethod
    def _unusable(encoded: Tensor) -> Array:
        """Which rows `_encode` has marked."""
        return np.asarray(encoded.isnan() if encoded.is_floating_point() else encoded < 0)

    def _assumed(self, y_public: ArrayLike | None) -> tuple[str, ...]:
        """What is read off the private records, because the user says it is public; for the report."""
        if unknown := [one for one in self.assume_public if one not in self._may_assume]:
            raise InputError(f"assume_public accepts {', '.join(self._may_assume)}, not {unknown[0]!r}")
        if y_public is not None:
            return ()
        return tuple(read_off(what) for what in self.assume_public if getattr(self, what) is None)

    @abstractmethod
    def _learn_target(self, known: Array | None, targets: Array) -> int:
        """Classes or bounds, from what is declared or public; how many outputs the model needs."""

    @abstractmethod
    def _encode(self, targets: Array, inputs: Tensor) -> Tensor:
        """Targets for the loss; a record that cannot be used is marked."""

    @staticmethod
    @abstractmethod
    def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
        """One number a record; not finite, with its gradient, for a record that was marked."""

    def _tensor(self, X: TableLike, name: str, *, private: bool = False) -> Tensor:
        """Inputs in the type of the model; the contents of private ones decide nothing (`data.inputs`)."""
        dtype = next(self.model.parameters()).dtype
        if sp.issparse(X):
            raise InputError(f"{name} is sparse, and networks take dense arrays; pass {name}.toarray()")
        if private:
            array = private_array(X, name=name)
        elif hasattr(X, "columns") and hasattr(X, "dtypes"):
            array = np.asarray(check_table(X, name=name), dtype=np.float64)
        else:
            array = check_real(as_array(X, name), name=name)
        if array.ndim < 2:
            raise InputError(f"{name} must have one record per row, so two dimensions at least")
        return torch.as_tensor(np.ascontiguousarray(array)).to(dtype)

    def _public(
        self, X: TableLike | None, y: ArrayLike | None, like: Tensor
    ) -> tuple[Tensor | None, Array | None]:
        if X is None and y is None:
            return None, None
        if X is None or y is None:
            raise InputError("X_public and y_public go together")
        inputs = self._tensor(X, "X_public")
        if inputs.shape[1:] != like.shape[1:]:
            raise InputError(
                f"a record of X_public has shape {tuple(inputs.shape[1:])}, one of X {tuple(like.shape[1:])}"
            )
        if not bool(inputs.isfinite().all()):
            raise InputError("X_public must be finite; remove or fill the missing values")
        return inputs, check_targets(y, rows=len(inputs), of="X_public", name="y_public", real=self._real)

    def _outputs(self, X: TableLike) -> Tensor:
        check_is_fitted(self, "privacy_")
        if self.unit != "record":
            X = without_column(X, self.unit)
        inputs = self._tensor(X, "X")
        if inputs.shape[1:] != self._shape:
            raise InputError(
                f"a record must have shape {tuple(self._shape)}, as in fit, not {tuple(inputs.shape[1:])}"
            )
        if not bool(inputs.isfinite().all()):
            raise InputError("X must be finite; remove or fill the missing values")
        device = next(self.model_.parameters()).device
        with torch.no_grad(), evaluating(self.model_):
            parts = [self.model_(some.to(device)).cpu() for some in torch.split(inputs, _ROWS)]
        return torch.cat(parts)


class PrivateNetClassifier(ScoreWarning, ClassifierMixin, PrivateNet):  # type: ignore[misc]
    """A network that classifies, under (ε, δ)-differential privacy.

    Args:
        model: a module with one output per class. It is copied; `fit` starts from its present parameters.
        method: a recipe (`dope_sgd()`, …) or a name. Its parameters are reached as `method__name`. "auto"
            chooses, as in `Trainer`.
        epsilon, delta, relation, expected_batch_size, epochs, steps, optimizer, warm_up, validation: as in
            `Trainer`.
        unit: "record", or the column of X that names persons, if one has several rows (it is no feature).
        max_rows: rows of a person in a step, as in `Trainer`.
        health_check: whether ignored records are counted, with noise, as in `Trainer`.
        classes: the labels; None takes those of y_public.
        assume_public: "classes" in here may be read off the private records, uncharged, if nothing else tells
            them. Only for what is public.
        ledger, dataset, random_state: as in `Trainer`.

    Attributes:
        model_: the trained module, or an `Ensemble` if the method ends in one.
        classes_: the labels, sorted, in the order of the outputs.
        privacy_, history_: as everywhere.
    """

    classes_: Array
    _may_assume = ("classes",)

    @knows_familiar_words
    def __init__(
        self,
        model: nn.Module,
        *,
        method: str | Recipe = "auto",
        epsilon: float,
        delta: float | None = None,
        relation: Relation | None = None,
        expected_batch_size: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        optimizer: Optimizer | None = None,
        warm_up: PublicTraining | None = None,
        validation: float | Dataset[object] | None = None,
        unit: str = "record",
        max_rows: int = 8,
        health_check: bool = True,
        classes: Sequence[object] | Array | None = None,
        assume_public: tuple[str, ...] = (),
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
    ) -> None:
        self.model = model
        self.method = method
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.expected_batch_size = expected_batch_size
        self.epochs = epochs
        self.steps = steps
        self.optimizer = optimizer
        self.warm_up = warm_up
        self.validation = validation
        self.unit = unit
        self.max_rows = max_rows
        self.health_check = health_check
        self.classes = classes
        self.assume_public = assume_public
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state

    def predict(self, X: TableLike) -> Array:
        """The label of the largest output."""
        labels: Array = self.classes_[self._outputs(X).argmax(1).numpy()]
        return labels

    def predict_proba(self, X: TableLike) -> Floats:
        """(n, classes): softmax of the outputs; the shares of the votes for an ensemble that votes."""
        outputs, model = self._outputs(X).double(), self.model_
        if isinstance(model, Ensemble) and model.vote == "majority":
            return np.asarray(outputs.floor() / len(model.members))  # what is below 1 breaks ties
        return np.asarray(outputs.softmax(1))

    def _learn_target(self, known: Array | None, targets: Array) -> int:
        assumed = natural_labels(targets) if "classes" in self.assume_public and known is None else None
        classes: Classes = resolve_classes(self.classes, known, assumed, loss="softmax")
        if known is not None:
            classes.encode_public(known)
        self._known, self.classes_ = classes, classes.labels
        return len(classes.labels)

    def _encode(self, targets: Array, inputs: Tensor) -> Tensor:
        places = torch.as_tensor(np.nan_to_num(self._known.index(targets), nan=-1)).long()
        return places.masked_fill_(~inputs.flatten(1).isfinite().all(1), -1)

    @staticmethod
    def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(outputs, targets.clamp(min=0), reduction="none")
        return losses * _marked(targets < 0, losses)


class PrivateNetRegressor(ScoreWarning, RegressorMixin, PrivateNet):  # type: ignore[misc]
    """A network that predicts a number, by the square loss, under (ε, δ)-differential privacy.

    Targets are clipped into `target_bounds` and mapped to [−1, 1] for training.

    Args:
        model: a module with one output.
        target_bounds: (low, high) of the targets; None takes the range of y_public.
        assume_public: as in `PrivateNetClassifier`; here "target_bounds".
        others: as in `PrivateNetClassifier`.
    """

    _real = True
    _may_assume = ("target_bounds",)

    @knows_familiar_words
    def __init__(
        self,
        model: nn.Module,
        *,
        method: str | Recipe = "auto",
        epsilon: float,
        delta: float | None = None,
        relation: Relation | None = None,
        expected_batch_size: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        optimizer: Optimizer | None = None,
        warm_up: PublicTraining | None = None,
        validation: float | Dataset[object] | None = None,
        unit: str = "record",
        max_rows: int = 8,
        health_check: bool = True,
        target_bounds: tuple[float, float] | None = None,
        assume_public: tuple[str, ...] = (),
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
    ) -> None:
        self.model = model
        self.method = method
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.expected_batch_size = expected_batch_size
        self.epochs = epochs
        self.steps = steps
        self.optimizer = optimizer
        self.warm_up = warm_up
        self.validation = validation
        self.unit = unit
        self.max_rows = max_rows
        self.health_check = health_check
        self.target_bounds = target_bounds
        self.assume_public = assume_public
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state

    def predict(self, X: TableLike) -> Floats:
        """The expected target."""
        outputs = self._outputs(X).double().reshape(-1).numpy()
        return np.asarray(self._scale.inverse(outputs), dtype=np.float64)

    def _learn_target(self, known: Array | None, targets: Array) -> int:
        declared = self.target_bounds
        if declared is None and known is None and "target_bounds" in self.assume_public:
            declared = range_of_targets(targets)
        self._scale: TargetScale = resolve_target(declared, known)
        return 1

    def _encode(self, targets: Array, inputs: Tensor) -> Tensor:
        scaled = torch.as_tensor(self._scale.transform(targets)).to(inputs.dtype)
        return scaled.masked_fill_(~inputs.flatten(1).isfinite().all(1), float("nan"))

    @staticmethod
    def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.reshape(-1) - targets).square() / 2


def _check_held_out(validation: object, X: TableLike) -> None:
    """Refuse scores on rows of the array that X is a part of; `Trainer` sees only the tensors made of X."""
    memory = memory_around(X)
    if memory is not None and isinstance(validation, Dataset) and rows_in_memory(validation, *memory):
        raise PrivacyConditionError(
            "validation is part of the array that X is part of, and its scores are released without noise; "
            "pass records from elsewhere, or a share of X_public"
        )


def _marked(bad: Tensor, like: Tensor) -> Tensor:
    """NaN where a record is marked, else 1: a product with it has no gradient there."""
    return torch.ones_like(like).masked_fill_(bad, float("nan"))


def _check_outputs(model: nn.Module, like: Tensor, width: int) -> None:
    """Does the model take such records, and give so many outputs? Asked with zeros."""
    device = next(model.parameters()).device
    try:
        with torch.no_grad(), evaluating(model):
            outputs = model(torch.zeros(2, *like.shape[1:], dtype=like.dtype, device=device))
    except Exception as error:
        raise InputError(
            f"the model does not take records of shape {tuple(like.shape[1:])}: {first_line(error)}"
        ) from error
    shapes = ((2, width), (2,)) if width == 1 else ((2, width),)
    if not isinstance(outputs, Tensor) or tuple(outputs.shape) not in shapes:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(f"the model must give {width} output(s) per record; for two records it gave {found}")
