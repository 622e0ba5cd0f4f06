"""A model on disk: model.json, weights.safetensors, privacy.json, report.html. No pickle.

model.json says how tables are read and carries two checksums, its own and that of the weights, which tell a
model that was changed from one that was written.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sidelight import __version__
from sidelight.arrays import Floats, Json
from sidelight.data.bounding import Bounds, TargetScale
from sidelight.data.coordinates import Coordinates
from sidelight.data.encoding import Classes, RealTarget
from sidelight.data.schema import Schema
from sidelight.errors import InputError
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.losses import get_loss
from sidelight.privacy.contract import PrivacyStatement, plain
from sidelight.tables.features import FeaturePlan
from sidelight.tables.output_folder import check_output_folder, new_folder

if TYPE_CHECKING:
    from sidelight.estimator_base import PrivateLinear
    from sidelight.report import Card
    from sidelight.tables.model import TableModel

__all__ = ["MODEL", "PRIVACY", "REPORT", "WEIGHTS", "load", "save"]

FORMAT = 1
KIND = "sidelight table model"
WEIGHTS, MODEL, PRIVACY, REPORT = "weights.safetensors", "model.json", "privacy.json", "report.html"


def save(model: TableModel, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write all four files, or none."""
    from sidelight.report import write_report

    check_output_folder(folder, sign=MODEL, overwrite=overwrite)
    card = model.card()
    with new_folder(folder) as new:
        _write_weights(model, new / WEIGHTS)
        card.write(new / PRIVACY)
        write_report(card, new / REPORT)
        body = plain(_description(model) | {"weights": _checksum((new / WEIGHTS).read_bytes())})
        text = json.dumps(body | {"checksum": _of_json(body)}, indent=2, allow_nan=False, ensure_ascii=False)
        (new / MODEL).write_text(text + "\n", encoding="utf-8")


def _description(model: TableModel) -> Json:
    estimator = model.estimator
    return {
        "kind": KIND,
        "format": FORMAT,
        "sidelight": __version__,
        "schema": model.schema.to_dict(),
        "features": FeaturePlan(model.schema).names,
        "loss": estimator.loss,
        "max_norm": float(estimator.max_norm),
        "fit_intercept": bool(estimator.fit_intercept),
        "probability_scale": getattr(estimator, "probability_scale_", None),
        "class_weights": getattr(estimator, "class_weights_", None),
        "data": dict(model.data),
        "scores": dict(model.scores),
    }


def _write_weights(model: TableModel, path: Path) -> None:
    from safetensors.numpy import save_file

    bounds = model.estimator._coordinates.bounds
    weights: Floats = model.estimator._weights
    arrays = {"weights": weights, "lower": bounds.lower, "upper": bounds.upper, "centre": bounds.centre}
    tensors = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
    save_file(tensors, str(path))


def load(folder: str | os.PathLike[str]) -> TableModel:
    """Read a folder, refusing one that is not as it was written."""
    from sidelight.report import Card
    from sidelight.tables.model import TableModel

    path = Path(folder)
    body = _read_description(path)
    content = _read(path, WEIGHTS)
    if _checksum(content) != body["weights"]:
        raise InputError(f"{path / WEIGHTS} was changed after it was written: its checksum is another")
    _read(path, PRIVACY)
    card = Card.read(path / PRIVACY)
    try:
        schema = Schema.from_dict(body["schema"], source=body["data"].get("columns_from", "declared"))
        estimator = _rebuild(schema, body, content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise InputError(f"{path / MODEL} and {WEIGHTS} do not belong together") from None
    estimator.privacy_, estimator.history_ = _statement(card), list(card.history)
    return TableModel(schema, estimator, body["scores"], body["data"], card)


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is not a whole model folder: {name} is not there") from None
    except OSError as error:
        raise InputError(f"{path / name} cannot be read: {error.strerror or 'input failed'}") from None


def _read_description(path: Path) -> Json:
    if not path.is_dir():
        raise InputError(f"{path} is not a model folder; `sidelight fit … --out` writes one")
    try:
        body = json.loads(_read(path, MODEL).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path / MODEL} is damaged: it is no valid JSON") from None
    if not isinstance(body, dict) or body.get("kind") != KIND:
        raise InputError(f"{path / MODEL} does not describe a table model of sidelight")
    if body.get("format") != FORMAT:
        written = f"format {body.get('format')!r:.20}, written by sidelight {body.get('sidelight')!r:.20}"
        raise InputError(
            f"{path} has {written}; sidelight {__version__} reads format {FORMAT}. "
            "Use the version that wrote it, or fit again"
        )
    if body.pop("checksum", None) != _of_json(body):
        raise InputError(f"{path / MODEL} was changed after it was written: its checksum is another")
    return body


def _rebuild(schema: Schema, body: Json, content: bytes) -> PrivateLinear:
    """The estimator, from checked parts; any misfit is an error of the kinds that `load` expects."""
    from safetensors.numpy import load as tensors

    stored = tensors(content)
    target, loss = schema.target, body["loss"]
    bounds = Bounds(stored["lower"], stored["upper"], stored["centre"])
    coordinates = Coordinates(bounds, float(body["max_norm"]), bool(body["fit_intercept"]))
    weights = stored["weights"]
    many = len(target.classes) if target.task == "classification" and len(target.classes) > 2 else 1
    if bounds.features != FeaturePlan(schema).size or weights.shape != (many, coordinates.p):
        raise ValueError
    common = {
        "loss": loss,
        "max_norm": coordinates.max_norm,
        "fit_intercept": coordinates.fit_intercept,
        "bounds": bounds,
    }
    model: PrivateClassifier | PrivateRegressor
    if target.task == "classification":
        labels = np.unique(np.asarray(target.classes))
        name = loss or ("logistic" if len(labels) == 2 else "softmax")
        model = PrivateClassifier(classes=labels, **common)
        model._keep(weights, coordinates, Classes(labels, get_loss(name, classes=len(labels))))
        # Models of 0.1 have neither; a loss that is its own calibration then has probabilities as it had.
        unscaled = 1.0 if name in ("logistic", "softmax") else None
        model.probability_scale_ = _positive(body.get("probability_scale", unscaled))
        model.class_weights_ = _weights(body.get("class_weights"), len(labels))
    elif target.bounds is None:
        raise InputError("the schema of a regression has no bounds for its target")
    else:
        model = PrivateRegressor(target_bounds=target.bounds, **common)
        model._keep(weights, coordinates, RealTarget(TargetScale(*target.bounds)))
    model.n_features_in_ = bounds.features
    return model


def _positive(value: object) -> float | None:
    if value is None:
        return None
    number = float(value)  # type: ignore[arg-type]
    if not 0 < number < math.inf:
        raise ValueError
    return number


def _weights(values: object, classes: int) -> Floats | None:
    if values is None:
        return None
    weights = np.array(values, dtype=np.float64)
    if weights.shape != (classes,) or not (np.isfinite(weights).all() and (weights > 0).all()):
        raise ValueError
    return weights


def _statement(card: Card) -> PrivacyStatement:
    statement = card.statement
    return PrivacyStatement(
        epsilon=card.epsilon,
        delta=card.delta,
        relation=card.relation,
        method=card.method,
        plan=card.plan,
        assumptions=tuple(statement["assumptions"]),
        details=statement["details"],
        ledger=statement.get("ledger"),
        unit=statement.get("unit", "record"),
    )


def _checksum(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _of_json(body: Json) -> str:
    return _checksum(json.dumps(body, sort_keys=True, ensure_ascii=False).encode())
