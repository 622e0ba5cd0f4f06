"""Public models as columns: what a model of the public rows predicts for a record, before anything private.

A guide holds models that were fitted to public rows alone, as plain arrays. For every record it gives

    columns   one per nonlinear model and class: its prediction, mapped to [−1, 1], as one more feature
    offset    of a regression: the prediction of the best model, in the units of the target. What is learned
              privately is the residual, which is shorter than the target, so that the same noise hurts less

Both depend on the record and on public things alone. Public rows themselves get predictions of models that
have not seen them (`methods.public_models`): in-sample ones would look better than they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Floats, Json, Matrix, dense
from sidelight.data.own_model import OwnModel, as_log_odds

Link: TypeAlias = Literal["identity", "log", "probability"]
TOGETHER = "together"  # the combined models, among columns and offsets
_ROWS = 2_048  # at a time, so that a block of rows × trees stays in cache


class PublicModel(Protocol):
    """A model of public rows: arrays, and what they predict."""

    def predict(self, X: Floats) -> Floats:
        """(n, outputs): numbers in the units of the target, or log-odds."""

    @property
    def link(self) -> Link: ...

    def arrays(self) -> dict[str, Array]:
        """Everything that the predictions depend on."""

    def check(self, features: int) -> None:
        """Raise ValueError for arrays that do not fit together."""


@dataclass(frozen=True, eq=False)
class LinearModel:
    """X·coef + intercept; the exponential of it minus 1 if the target was a logarithm."""

    coef: Floats  # (outputs, features)
    intercept: Floats
    link: Link = "identity"

    def predict(self, X: Floats) -> Floats:
        return _linked(X @ self.coef.T + self.intercept, self.link)

    def arrays(self) -> dict[str, Array]:
        return {"coef": self.coef, "intercept": self.intercept}

    def check(self, features: int) -> None:
        if self.coef.ndim != 2 or self.coef.shape[1] != features or self.intercept.shape != (len(self.coef),):
            raise ValueError("a linear model of other features")
        if not (np.isfinite(self.coef).all() and np.isfinite(self.intercept).all()):
            raise ValueError("a linear model with weights that are not finite")


@dataclass(frozen=True, eq=False)
class TreeEnsemble:
    """A sum of trees. A node sends a record to the left if its feature is at most the threshold.

    A leaf is a node that leads to itself, any other leads to later ones. Values are in the order of nodes,
    (nodes, outputs). Trees split on sums of neighboring columns, each from one of `edges` to the next: the
    ramps of one number add up to its place between its bounds (`FeaturePlan.whole_numbers`).
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: Floats
    roots: NDArray[np.int32]
    depth: NDArray[np.int32]  # (1,), of the deepest tree
    edges: NDArray[np.int32]
    link: Link = "identity"

    def predict(self, X: Floats) -> Floats:
        rows = merged(X, self.edges)
        first = (np.arange(len(rows)) * rows.shape[1])[:, None]  # of each row, among all values
        children = np.stack([self.right, self.left], axis=1).ravel().astype(np.intp)
        feature, node = self.feature.astype(np.intp), self.roots.astype(np.intp)[None]
        for _ in range(int(self.depth[0])):  # `take` of flat arrays: a third of the time of fancy indices
            goes_left = rows.ravel().take(feature.take(node) + first) <= self.threshold.take(node)
            node = children.take(2 * node + goes_left)
        node = np.broadcast_to(node, (len(rows), len(self.roots)))
        values = [column.take(node).sum(axis=1) for column in self.value.T]
        return _linked(np.stack(values, axis=1), self.link)

    def arrays(self) -> dict[str, Array]:
        names = ("feature", "threshold", "left", "right", "value", "roots", "depth", "edges")
        return {name: getattr(self, name) for name in names}

    def check(self, features: int) -> None:
        own = np.arange(len(self.feature))
        shapes = {part.shape for part in (self.feature, self.threshold, self.left, self.right)}
        whole = (self.feature, self.left, self.right, self.roots, self.depth, self.edges)
        if shapes != {own.shape} or len(self.value) != len(own) or any(a.dtype.kind != "i" for a in whole):
            raise ValueError("trees whose arrays do not fit together")
        onwards = all(((own <= to) & (to < len(own))).all() for to in (self.left, self.right))
        inside = all(len(a) and 0 <= a.min() <= a.max() < len(own) for a in (self.roots, self.depth))
        if not (onwards and inside):
            raise ValueError("trees with dangling or cyclic nodes")
        rising = len(self.edges) > 1 and self.edges[0] == 0 and (np.diff(self.edges) > 0).all()
        if not rising or self.edges[-1] > features:
            raise ValueError("trees of other features")
        if not 0 <= self.feature.min() <= self.feature.max() < len(self.edges) - 1:
            raise ValueError("trees that split on missing columns")
        if not np.isfinite(self.value).all():
            raise ValueError("trees with values that are not finite")


def as_models_see(X: Floats, lower: Floats, upper: Floats) -> Floats:
    """Features within their bounds, as shares of the largest: trees compare in single precision."""
    largest = np.maximum(np.abs(lower), np.abs(upper))
    return np.asarray(np.clip(X, lower, upper) / np.where(largest > 0, largest, 1.0))


def merged(X: Floats, edges: NDArray[np.int32]) -> NDArray[np.float32]:
    """Sums of the columns between two edges, as trees split on them. What is behind the last is left out."""
    X = X[:, : int(edges[-1])]
    if len(edges) <= X.shape[1]:
        X = np.add.reduceat(X, edges[:-1], axis=1)
    return np.ascontiguousarray(X, dtype=np.float32)


def _linked(z: Floats, link: Link) -> Floats:
    if link == "log":
        return np.asarray(np.expm1(np.minimum(z, 300.0)))
    return as_log_odds(z) if link == "probability" else z


def ordered(outputs: Floats, order: tuple[int, ...]) -> Floats:
    """Scores with the classes reordered; for two classes there is one score, whose sign may flip."""
    if outputs.shape[1] == 1:
        return -outputs if order == (1, 0) else outputs
    return outputs[:, list(order)]


@dataclass(frozen=True, eq=False)
class GuideColumns:
    """A guide's predictions for some rows."""

    columns: Floats  # (n, k) in [−1, 1]
    offset: Floats | None  # (n,) in the units of the target


@dataclass(frozen=True, eq=False)
class PublicGuide:
    """Public models, by name.

    Args:
        models: each gives columns, unless its name is only the offset's.
        columns: the names of those that give columns, with (center, reach) of each column.
        offset: the name of the model whose prediction is subtracted from the target; None for classes.
        residual: of a regression: what is left of the target is clipped to ± this.
        limits: of a regression: no prediction of the offset's model is outside.
        lower, upper: of the features: records are clipped to them first, so that no model extrapolates.
        scores: of each model in folds of the public rows, for the report.
        together, level: Σ_k together[k]·prediction_k + level is the prediction that is called TOGETHER.
        own: an estimator of the user's own. What it says of a record stands behind the features.
        order: of a classifier of the user's: which of its classes each class is.
    """

    models: Mapping[str, PublicModel]
    columns: Mapping[str, tuple[Floats, Floats]]
    offset: str | None
    lower: Floats
    upper: Floats
    scores: Mapping[str, float]
    residual: float | None = None
    limits: tuple[float, float] | None = None
    own: OwnModel | None = None
    order: tuple[int, ...] = ()
    together: Mapping[str, float] = field(default_factory=dict)
    level: float = 0.0

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        found = []
        for name, (center, _) in self.columns.items():
            many = len(center)
            found += [f"public model: {name}" + (f" {k}" if many > 1 else "") for k in range(many)]
        return found

    @property
    def size(self) -> int:
        return sum(len(center) for center, _ in self.columns.values())

    def place(self, name: str) -> int:
        """Where the columns of a model begin."""
        before = list(self.columns).index(name)
        return sum(len(center) for center, _ in list(self.columns.values())[:before])

    def of(self, X: Matrix) -> GuideColumns:
        """For any rows that the models have not been fitted to. A row that is not finite gets zeros."""
        parts: list[GuideColumns] = []
        with np.errstate(all="ignore"):  # a warning about a private value would be an output
            for start in range(0, max(X.shape[0], 1), _ROWS):
                block = dense(X[start : start + _ROWS])
                inside = as_models_see(block[:, : len(self.lower)], self.lower, self.upper)
                inside[~np.isfinite(inside).all(axis=1)] = 0.0
                made = {name: one.predict(inside) for name, one in self.models.items()}
                if self.together:
                    made[TOGETHER] = self.level + np.sum(
                        [v * made[k] for k, v in self.together.items()], axis=0
                    )
                if self.own is not None:
                    made[self.own.name] = self.own_outputs(block)
                parts.append(self.scaled(made))
        columns = np.concatenate([part.columns for part in parts])
        offsets = [part.offset for part in parts if part.offset is not None]
        return GuideColumns(columns, np.concatenate(offsets) if offsets else None)

    def own_outputs(self, rows: Floats) -> Floats:
        """What the user's estimator says, in the order of the classes; the middle where it fails."""
        said = ordered(rows[:, len(self.lower) :], self.order)
        center = self.columns[self.own.name][0] if self.own is not None else 0.0
        return np.where(np.isnan(said), center, said)

    def scaled(self, made: Mapping[str, Floats]) -> GuideColumns:
        """Predictions of every model as columns and offset."""
        parts = [
            np.clip((made[name] - center) / reach, -1, 1) for name, (center, reach) in self.columns.items()
        ]
        rows = len(next(iter(made.values())))
        columns = np.hstack(parts) if parts else np.zeros((rows, 0))
        if self.offset is None:
            return GuideColumns(columns, None)
        return GuideColumns(columns, np.clip(made[self.offset][:, 0], *(self.limits or (None, None))))

    def to_dict(self) -> Json:
        """Everything but the arrays, for a model folder."""
        return {
            "models": [
                {"name": name, "kind": _KINDS[type(model)], "link": model.link}
                for name, model in self.models.items()
            ],
            "columns": list(self.columns),
            "offset": self.offset,
            "scores": dict(self.scores),
            "residual": self.residual,
            "together": dict(self.together),
            "level": self.level,
            "limits": None if self.limits is None else list(self.limits),
            **({} if self.own is None else {"own": self.own.to_dict(), "order": list(self.order)}),
        }

    def to_arrays(self) -> dict[str, Array]:
        """The arrays, by names that begin with "guide"."""
        found = {
            f"guide.{k}.{part}": np.ascontiguousarray(array)
            for k, model in enumerate(self.models.values())
            for part, array in model.arrays().items()
        }
        for k, (center, reach) in enumerate(self.columns.values()):
            found |= {f"guide.column.{k}.centre": center, f"guide.column.{k}.reach": reach}
        return found

    @classmethod
    def from_dict(
        cls,
        body: Json,
        stored: Mapping[str, Array],
        lower: Floats,
        upper: Floats,
        estimator: object = None,
    ) -> PublicGuide:
        """What `to_dict` and `to_arrays` made; a KeyError, TypeError or ValueError if they do not fit."""
        models = {}
        for k, entry in enumerate(body["models"]):
            arrays = {
                name.rpartition(".")[2]: array
                for name, array in stored.items()
                if name.startswith(f"guide.{k}.")
            }
            if entry["link"] not in get_args(Link):
                raise ValueError("a link that is not known")
            model = _MODELS[entry["kind"]](**arrays, link=entry["link"])
            model.check(len(lower))
            models[str(entry["name"])] = model
        columns = {
            str(name): (stored[f"guide.column.{k}.centre"], stored[f"guide.column.{k}.reach"])
            for k, name in enumerate(body["columns"])
        }
        residual, limits = None, None
        if (offset := body["offset"]) is not None:
            residual, limits = float(body["residual"]), (float(body["limits"][0]), float(body["limits"][1]))
        own = OwnModel.from_dict(body["own"], estimator) if "own" in body else None
        order = tuple(int(place) for place in body.get("order", ()))
        together = {str(name): float(v) for name, v in body.get("together", {}).items()}
        guide = cls(
            models, columns, offset, lower, upper, dict(body["scores"]), residual, limits, own, order,
            together, float(body.get("level", 0.0)),
        )  # fmt: skip
        guide._check()
        return guide

    def _check(self) -> None:
        """Raise for parts that do not fit together: one record is predicted."""
        if self.residual is not None and not 0 < self.residual < np.inf:
            raise ValueError("guide: the scale of the residuals is missing or not positive")
        if not np.isfinite([self.level, *self.together.values()]).all():
            raise ValueError("guide: a weight or the level is not finite")
        for center, reach in self.columns.values():
            if not ((reach > 0).all() and np.isfinite([center, reach]).all()):
                raise ValueError("guide: the scale of a column is missing or not positive")
        said = self.of(np.zeros((1, len(self.lower) + (0 if self.own is None else self.own.outputs))))
        if said.columns.shape != (1, self.size) or (said.offset is not None and said.offset.shape != (1,)):
            raise ValueError("a guide whose models have other outputs")


_MODELS: dict[str, type[LinearModel | TreeEnsemble]] = {"linear": LinearModel, "trees": TreeEnsemble}
_KINDS: dict[type, str] = {kind: name for name, kind in _MODELS.items()}
