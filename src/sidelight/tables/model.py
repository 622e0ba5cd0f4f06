"""A fitted table model: schema, linear model, scores on public rows, and what it cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Json, TableLike
from sidelight.data.frames import Frame, check_storage, is_frame
from sidelight.data.private_tables import open_private
from sidelight.data.schema import Schema
from sidelight.data.table_files import TableSource, read_table, stored_types
from sidelight.data.values import as_truth, pandas
from sidelight.errors import InputError
from sidelight.estimator_base import PrivateLinear
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.model_folder import Facts, load, save
from sidelight.privacy.contract import PrivacyStatement

if TYPE_CHECKING:
    from sidelight.report import Card

__all__ = ["TableModel"]


@dataclass(eq=False)
class TableModel:
    """What `fit_tables` returns and a model folder holds.

    Args:
        schema: how tables are read.
        estimator: the fitted PrivateClassifier or PrivateRegressor, which takes frames.
        scores: on held-out public rows: see `tables.fitting.scores`.
        data: rows, columns and sources, for the report.
    """

    schema: Schema
    estimator: PrivateLinear
    scores: Mapping[str, object] = field(default_factory=dict)
    data: Mapping[str, object] = field(default_factory=dict)

    @property
    def privacy_(self) -> PrivacyStatement:
        """ε, δ, relation, method, events and assumptions of the fit."""
        return self.estimator.privacy_

    @property
    def history_(self) -> list[Json]:
        return self.estimator.history_

    def predict(self, frame: TableSource) -> Array:
        """The class, or the number, of every record of a frame or of a file."""
        return self.estimator.predict(self._readable(frame))

    def predict_proba(self, frame: TableSource) -> NDArray[np.float64]:
        """(n, classes) probabilities, in the order of `estimator.classes_`."""
        probabilities = getattr(self.estimator, "predict_proba", None)
        if probabilities is None:
            raise InputError(
                "this model has no probabilities: it is a regression, or was saved by sidelight 0.1 with a "
                "loss that had none"
            )
        return np.asarray(probabilities(self._readable(frame)))

    def card(self) -> Card:
        """The privacy card of the fit; of a loaded model, the one that it was saved with."""
        return self.estimator._to_store(data=self.data, scores=self.scores).card

    def save(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, facts: Facts | None = None
    ) -> None:
        """Write model.json, weights.safetensors, privacy.json and report.html, all or nothing.

        facts: what somebody declares for the report, or a TOML file of it (`report.review`).
        """
        stored = self.estimator._to_store(data=self.data, scores=self.scores)
        save(stored, folder, overwrite=overwrite, facts=facts)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TableModel:
        """The model in a folder that `save`, or an estimator's `save`, wrote."""
        stored = load(folder)
        kind = PrivateClassifier if stored.schema.target.task == "classification" else PrivateRegressor
        return cls(stored.schema, kind._restored(stored), stored.scores, stored.data)

    def _readable(self, source: TableSource) -> TableLike:
        """A frame with the columns of the model, in which each record of a file is read by itself."""
        frame = source if is_frame(source) else read_table(source, typed=False)
        table = open_private(frame, "the table")
        self.schema.check_needed(table.names, "the table", target=False)
        check_storage(self.schema, stored_types(source), "the table", target=False)
        return frame if self.estimator.schema_ is not None else self._numbers(frame)

    def _numbers(self, frame: Frame) -> TableLike:
        """The columns of a model of plain numbers, in its order; truth values may be words."""
        names = list(self.schema.used)
        read = {name: np.empty(0) for name in names}
        for _, block in open_private(frame).blocks(dict.fromkeys(names, True)):
            read = {name: np.append(read[name], as_truth(block[name])) for name in names}
        columns = pandas().DataFrame(read)
        return columns if hasattr(self.estimator, "feature_names_in_") else columns.to_numpy()
