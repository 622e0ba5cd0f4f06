"""Features from public models, or learned on public records alone, for the private linear models.

    model = PrivateClassifier(epsilon=1, text="review").fit(X, y, X_public=X_public, y_public=y_public)

    features = PatchFeatures(seed=0).fit(public_images)
    model = PrivateClassifier(epsilon=2, bounds=(-1, 1), center="zero", fit_intercept=False)
    model.fit(features.transform(images), y, X_public=features.transform(public_images), y_public=y_public)

`PatchFeatures` needs the extra [torch]; `TransformerEncoder`, `StaticEncoder` and `tune_encoder`
need [text].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidelight.errors import MissingDependency
from sidelight.lazy_names import load

if TYPE_CHECKING:
    from sidelight.features.encoder_tuning import tune_encoder
    from sidelight.features.encoders import (
        Encoder,
        HashedEncoder,
        add_encoder,
        encode_texts,
        open_encoder,
    )
    from sidelight.features.image_files import ImageEncoder, image_table, read_images
    from sidelight.features.patches import PatchFeatures
    from sidelight.features.pretrained import StaticEncoder, TransformerEncoder

__all__ = [
    "Encoder",
    "HashedEncoder",
    "ImageEncoder",
    "PatchFeatures",
    "StaticEncoder",
    "TransformerEncoder",
    "add_encoder",
    "encode_texts",
    "image_table",
    "open_encoder",
    "read_images",
    "tune_encoder",
]

_HOMES = {
    "Encoder": "sidelight.features.encoders",
    "HashedEncoder": "sidelight.features.encoders",
    "ImageEncoder": "sidelight.features.image_files",
    "PatchFeatures": "sidelight.features.patches",
    "StaticEncoder": "sidelight.features.pretrained",
    "TransformerEncoder": "sidelight.features.pretrained",
    "add_encoder": "sidelight.features.encoders",
    "encode_texts": "sidelight.features.encoders",
    "image_table": "sidelight.features.image_files",
    "open_encoder": "sidelight.features.encoders",
    "read_images": "sidelight.features.image_files",
    "tune_encoder": "sidelight.features.encoder_tuning",
}


def __getattr__(name: str) -> object:
    try:
        value = globals()[name] = load(__name__, _HOMES, name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependency("features of images need PyTorch; pip install torch") from error
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
