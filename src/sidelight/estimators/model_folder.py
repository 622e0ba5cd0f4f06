"""A model on disk: model.json, weights.safetensors, privacy.json, report.html. No pickle.

model.json says how tables are read and carries two checksums, its own and that of the weights, which tell a
model that was changed from one that was written.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from sidelight import __version__
from sidelight.arrays import Floats, Json
from sidelight.data.coordinates import Bounds, Coordinates
from sidelight.data.features import FeaturePlan
from sidelight.data.guide import PublicGuide
from sidelight.data.leaves import LeafModel
from sidelight.data.own_model import load_estimator, stored_estimator
from sidelight.data.schema import Schema
from sidelight.data.schema_entries import one_of
from sidelight.errors import InputError
from sidelight.files import MODEL, check_output_folder, new_folder, read_whole
from sidelight.methods.intervals import Intervals
from sidelight.privacy.statement import PrivacyStatement, plain

if TYPE_CHECKING:
    from sidelight.report import Card

__all__ = [
    "MODEL",
    "PRIVACY",
    "REPORT",
    "WEIGHTS",
    "StoredModel",
    "load",
    "save",
    "statement_of",
    "with_facts",
]

Facts: TypeAlias = Mapping[str, object] | str | os.PathLike[str]

FORMAT = 2  # 1 has no public models and no trees beside the weights
KIND = "sidelight table model"
_NAMES: tuple[Literal["named", "unnamed"], ...] = ("named", "unnamed")
WEIGHTS, PRIVACY, REPORT = "weights.safetensors", "privacy.json", "report.html"
OWN = "public_model.skops"  # an estimator of the user's own, if there is one
PUBLIC = "public_table_sha256"  # among the data of a model


@dataclass(frozen=True, eq=False)
class StoredModel:
    """What a folder holds.

    Args:
        schema: the columns and the target.
        coordinates, weights: of the model.
        numbers: the columns are features as they are, with names of their own or without; None: the schema
            encodes them.
        truths: whether the classes "False" and "True" are truth values.
        loss, probability_scale, class_weights, intervals: as of the estimator.
        data, scores: for a reader.
        card: what it cost.
    """

    schema: Schema
    coordinates: Coordinates
    weights: Floats
    card: Card
    numbers: Literal["named", "unnamed"] | None = None
    truths: bool = False
    loss: str | None = None
    probability_scale: float | None = None
    class_weights: Floats | None = None
    trees: LeafModel | None = None
    intervals: Intervals | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    scores: Mapping[str, object] = field(default_factory=dict)

    @property
    def features(self) -> list[str]:
        """The columns that there are weights for."""
        own = list(self.schema.used) if self.numbers else FeaturePlan(self.schema).names
        return own + ([] if self.coordinates.guide is None else self.coordinates.guide.names)


def save(
    model: StoredModel, folder: str | os.PathLike[str], *, overwrite: bool = False, facts: Facts | None = None
) -> None:
    """Write all four files, or none. `facts`: what somebody declares for the report, or a TOML file of it."""
    from sidelight.report import write_report

    check_output_folder(folder, sign=MODEL, overwrite=overwrite)
    with new_folder(folder) as new:
        _write_weights(model, new / WEIGHTS)
        weights = checksum((new / WEIGHTS).read_bytes())
        hashes = {WEIGHTS: weights, "schema": _of_json(plain(model.schema.to_dict()))}
        hashes |= {} if (digest := model.data.get(PUBLIC)) is None else {"public table": str(digest)}
        hashes["sidelight's source"] = _source()
        card = replace(with_facts(model.card, facts), hashes=hashes)
        card.write(new / PRIVACY)
        write_report(card, new / REPORT)
        body = plain(_description(model) | {"weights": weights} | _write_own(model, new / OWN))
        text = json.dumps(body | {"checksum": _of_json(body)}, indent=2, allow_nan=False, ensure_ascii=False)
        (new / MODEL).write_text(text + "\n", encoding="utf-8")


def with_facts(card: Card, facts: Facts | None) -> Card:
    """The card with these facts, or with those that it has."""
    from sidelight.report.facts import check_facts, read_facts

    if facts is None:
        return card
    known = check_facts(facts) if isinstance(facts, Mapping) else read_facts(facts)
    return replace(card, facts=known, title=known.get("title", card.title))


def _description(model: StoredModel) -> Json:
    return {
        "kind": KIND,
        "format": 1 if model.coordinates.guide is None and model.trees is None else FORMAT,
        "sidelight": __version__,
        "schema": model.schema.to_dict(),
        "features": model.features,
        **({"numbers": model.numbers} if model.numbers else {}),
        **({"truths": True} if model.truths else {}),
        **({} if model.coordinates.guide is None else {"guide": model.coordinates.guide.to_dict()}),
        "loss": model.loss,
        "max_norm": model.coordinates.max_norm,
        "fit_intercept": model.coordinates.fit_intercept,
        "probability_scale": model.probability_scale,
        "class_weights": model.class_weights,
        **({} if model.intervals is None else {"intervals": asdict(model.intervals)}),
        "data": dict(model.data),
        "scores": dict(model.scores),
    }


def _write_weights(model: StoredModel, path: Path) -> None:
    from safetensors.numpy import save_file

    bounds = model.coordinates.bounds
    arrays = {
        "weights": model.weights, "lower": bounds.lower, "upper": bounds.upper, "centre": bounds.center,
    }  # fmt: skip
    tensors = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
    guide = model.coordinates.guide
    tensors |= {} if guide is None else guide.to_arrays()
    tensors |= {} if model.trees is None else model.trees.to_arrays()
    save_file(tensors, str(path))


def _write_own(model: StoredModel, path: Path) -> Json:
    """Write the user's estimator, and say what to know it by."""
    if (own := model.coordinates.own) is None:
        return {}
    content = stored_estimator(own.estimator)
    path.write_bytes(content)
    return {"public_model": checksum(content)}


def _read_own(path: Path, body: Json, trusted: Sequence[str]) -> object:
    """The user's estimator, if the folder has one."""
    if "public_model" not in body:
        return None
    content = _read(path, OWN)
    if checksum(content) != body["public_model"]:
        raise _changed(path / OWN)
    return load_estimator(content, trusted)


def load(folder: str | os.PathLike[str], *, trusted: Sequence[str] = ()) -> StoredModel:
    """Read a folder, refusing one that is not as it was written.

    trusted: types of the user's `public_model` that are not scikit-learn's, and may be made.
    """
    from sidelight.report import Card

    path = Path(folder)
    body = _read_description(path)
    content = _read(path, WEIGHTS)
    if checksum(content) != body["weights"]:
        raise _changed(path / WEIGHTS)
    _read(path, PRIVACY)
    card, estimator = Card.read(path / PRIVACY), _read_own(path, body, trusted)
    try:
        return _rebuild(body, content, card, estimator)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise InputError(f"{path / MODEL} and {WEIGHTS} do not belong together") from None


def _read(path: Path, name: str) -> bytes:
    try:
        return read_whole(path / name)
    except FileNotFoundError:
        raise InputError(f"{path} is not a whole model folder: {name} is not there") from None
    except OSError as error:
        raise InputError(f"{path / name} cannot be read: {error.strerror or 'input failed'}") from None


def _read_description(path: Path) -> Json:
    if not path.is_dir():
        raise InputError(f"{path} is not a model folder; `save`, or the command `sidelight fit`, writes one")
    try:
        body = json.loads(_read(path, MODEL).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path / MODEL} is damaged: it is not valid JSON") from None
    if not isinstance(body, dict) or body.get("kind") != KIND:
        raise InputError(f"{path / MODEL} does not describe a table model of sidelight")
    if body.get("format") not in (1, FORMAT):
        written = f"format {body.get('format')!r:.20}, written by sidelight {body.get('sidelight')!r:.20}"
        raise InputError(
            f"{path} has {written}; sidelight {__version__} reads formats 1 and {FORMAT}. "
            "Use the version that wrote it, or fit again"
        )
    if body.pop("checksum", None) != _of_json(body):
        raise _changed(path / MODEL)
    return body


def _changed(path: Path) -> InputError:
    return InputError(f"{path} was changed after it was written: its checksum does not match")


def _rebuild(body: Json, content: bytes, card: Card, estimator: object = None) -> StoredModel:
    """The model from checked parts; any misfit is an error of the kinds that `load` expects."""
    from safetensors.numpy import load as tensors

    schema = Schema.from_dict(body["schema"], source=body["data"].get("columns_from", "declared"))
    stored, target = tensors(content), schema.target
    bounds = Bounds(stored["lower"], stored["upper"], stored["centre"])  # its key in files
    guide = None
    if "guide" in body:
        guide = PublicGuide.from_dict(body["guide"], stored, bounds.lower, bounds.upper, estimator)
    classes = len(target.classes)
    many = classes if target.task == "classification" and classes > 2 else 1
    coordinates = Coordinates(bounds, float(body["max_norm"]), bool(body["fit_intercept"]), guide)
    model = StoredModel(
        schema,
        coordinates,
        stored["weights"],
        card,
        numbers=None if "numbers" not in body else one_of(body["numbers"], _NAMES, "numbers"),
        truths=bool(body.get("truths", False)),
        loss=body["loss"],
        probability_scale=_positive(body.get("probability_scale", _unscaled(body["loss"], classes))),
        class_weights=_weights(body.get("class_weights"), classes),
        intervals=_intervals(body.get("intervals")),
        trees=LeafModel.from_arrays(stored, p=coordinates.p, outputs=many),
        data=body["data"],
        scores=body["scores"],
    )
    p = model.coordinates.p
    if len(model.features) + model.coordinates.fit_intercept != p or model.weights.shape != (many, p):
        raise ValueError
    return model


def _unscaled(loss: str | None, classes: int) -> float | None:
    """Models of 0.1 have no scale: a loss that is its own calibration has probabilities as it had them."""
    name = loss or ("logistic" if classes == 2 else "softmax")
    return 1.0 if name in ("logistic", "softmax") else None


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


def _intervals(body: Json | None) -> Intervals | None:
    if body is None:
        return None
    level, width = (np.array(body[name], dtype=np.float64) for name in ("level", "width"))
    return Intervals(level, width, body["source"])


def statement_of(card: Card) -> PrivacyStatement:
    """The statement that a card was made from."""
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


def checksum(content: bytes) -> str:
    """How a card and model.json name the contents of a file."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def changed_files(card: Card, folder: Path) -> list[str]:
    """The weights beside a card, unless they are those that it was written with; none if there are none."""
    if WEIGHTS not in card.hashes or not (folder / WEIGHTS).exists():
        return []
    try:
        same = checksum(read_whole(folder / WEIGHTS)) == card.hashes[WEIGHTS]
    except OSError:
        same = False
    return [] if same else [WEIGHTS]


@functools.cache
def _source() -> str:
    """Of the code that ran, name by name: a version may have been edited."""
    root = Path(__file__).parents[1]
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return _of_json({name: checksum((root / name).read_bytes()) for name in files})


def _of_json(body: Json) -> str:
    return checksum(json.dumps(body, sort_keys=True, ensure_ascii=False).encode())
