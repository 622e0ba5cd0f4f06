"""A fitted table model: schema, encoding, linear model, and what it cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Json
from sidelight.data.schema import Schema
from sidelight.data.storage import check_storage
from sidelight.data.table_files import TableSource, is_frame, read_table, stored_types
from sidelight.errors import InputError
from sidelight.estimator_base import PrivateLinear
from sidelight.privacy.contract import PrivacyStatement
from sidelight.tables.features import FeaturePlan

if TYPE_CHECKING:
    from sidelight.privacy.ledger import Ledger
    from sidelight.report import Card

__all__ = ["TableModel"]


@dataclass(eq=False)
class TableModel:
    """What `fit_tables` returns and a model folder holds.

    Args:
        schema: how tables are read.
        estimator: the fitted PrivateClassifier or PrivateRegressor on the encoded columns.
        scores: on held-out public rows: see `tables.validation`.
        data: rows, columns and sources, for the report.
        stored: the card that a loaded model came with.
    """

    schema: Schema
    estimator: PrivateLinear
    scores: Mapping[str, object] = field(default_factory=dict)
    data: Mapping[str, object] = field(default_factory=dict)
    stored: Card | None = None

    @property
    def privacy_(self) -> PrivacyStatement:
        """ε, δ, relation, method, events and assumptions of the fit."""
        return self.estimator.privacy_

    @property
    def history_(self) -> list[Json]:
        return self.estimator.history_

    def predict(self, frame: TableSource) -> Array:
        """The class, or the number, of every record of a frame or of a file."""
        return self.estimator.predict(self._encoded(frame))

    def predict_proba(self, frame: TableSource) -> NDArray[np.float64]:
        """(n, classes) probabilities, in the order of `estimator.classes_`."""
        probabilities = getattr(self.estimator, "predict_proba", None)
        if probabilities is None:
            raise InputError(
                "this model has no probabilities: it is a regression, or was saved by sidelight 0.1 with a "
                "loss that had none"
            )
        return np.asarray(probabilities(self._encoded(frame)))

    def card(self) -> Card:
        """The privacy card of the fit; of a loaded model, the one that it was saved with."""
        from sidelight.report import card_of

        if self.stored is not None:
            return self.stored
        title = f"A model of {self.schema.target.name}"
        return card_of(self, title=title, data=self.data, scores=self.scores, ledger=self._ledger())

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write model.json, weights.safetensors, privacy.json and report.html, all or nothing."""
        from sidelight.tables.folder import save

        save(self, folder, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TableModel:
        """The model in a folder that `save` wrote."""
        from sidelight.tables.folder import load

        return load(folder)

    def _ledger(self) -> Ledger | None:
        from sidelight.privacy.ledger import Ledger

        book = self.estimator.ledger
        return book if book is None or isinstance(book, Ledger) else Ledger.open(book)

    def _encoded(self, source: TableSource) -> NDArray[np.float32]:
        # From a file, each record by itself, as in `fit`.
        frame = source if is_frame(source) else read_table(source, typed=False)
        names = [str(name) for name in frame.columns]
        self.schema.check_needed(names, "the table", target=False)
        check_storage(self.schema, stored_types(source), "the table", target=False)
        return FeaturePlan(self.schema).encode(frame.set_axis(names, axis=1))
