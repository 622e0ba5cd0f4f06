"""Images in files, as a column of a table: each path becomes the row that `PatchFeatures` computes.

    features = PatchFeatures(mirror=False).fit(read_images(public_paths, size=(32, 32)))
    features.save("features.safetensors")
    sidelight fit private.csv --public public.csv --target kind --image photo --encoder features.safetensors …

Guarantee: the row of an image depends on that file and on the features alone. A file that is missing, is no
image, is larger than 64 MB or 50 million pixels, or is not a file at all (a pipe) silently becomes a row of
zeros.
Assumes: the features were learned on public images; paths and contents of private ones may be anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array
from sidelight.errors import InputError, MissingDependency, guarded
from sidelight.features.patches import PatchFeatures
from sidelight.files import digest

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
_MAX_BYTES, _MAX_PIXELS = 1 << 26, 50_000_000
_BLOCK_IMAGES = 32


class ImageEncoder:
    """An encoder whose texts are paths of images; relative ones from where the program runs.

    Args:
        file: what `PatchFeatures.save` wrote.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        _pillow()
        self._features = PatchFeatures.load(file)
        self.name = os.fspath(file)
        self.dimension = int(self._features.n_features_out_)
        self.sha256 = digest(Path(file).read_bytes())
        self._alike = self._places_are_alike()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """32 images at a time, or one, if their places in a block changed a rounding."""
        size = _BLOCK_IMAGES if self._alike else 1
        shape: tuple[int, ...] = self._features.image_shape_
        rows = [np.zeros((0, self.dimension), dtype=np.float32)]
        for start in range(0, len(texts), size):
            found = [read_image(path, shape) for path in texts[start : start + size]]
            nothing = np.empty(0)  # of no shape, and so a row of zeros
            rows.append(self._features.transform([nothing if one is None else one for one in found]))
        return np.concatenate(rows)

    def _places_are_alike(self) -> bool:
        """Tried on one made-up image, 32 times."""
        shape: tuple[int, ...] = self._features.image_shape_
        probe = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        rows = self._features.transform(np.repeat(probe[None], _BLOCK_IMAGES, axis=0))
        return bool((rows == rows[:1]).all())


def read_image(path: str | os.PathLike[str], shape: tuple[int, ...]) -> Array | None:
    """(height, width, channels) bytes of an image, scaled to this size; None if it cannot be read."""
    return guarded(lambda one: _read_image(one, shape), path, None)


def _read_image(path: str | os.PathLike[str], shape: tuple[int, ...]) -> Array | None:
    from PIL import Image

    # A file of no bytes may be one of the kernel's that never ends.
    if not os.path.isfile(path) or not 0 < os.path.getsize(path) <= _MAX_BYTES:
        return None
    with Image.open(path, formats=_FORMATS) as image:
        if image.width * image.height > _MAX_PIXELS:
            return None
        mode = "L" if shape[2] == 1 else "RGB"
        small = image.convert(mode).resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
        return np.asarray(small, dtype=np.uint8).reshape(shape)


def read_images(
    paths: Sequence[str | os.PathLike[str]], *, size: tuple[int, int], channels: int = 3
) -> NDArray[np.uint8]:
    """PUBLIC images as one array (n, height, width, channels), for `PatchFeatures.fit`, or an error."""
    _pillow()
    if channels not in (1, 3):
        raise InputError(f"channels must be 1 or 3, not {channels!r}")
    images = [read_image(path, (*size, channels)) for path in paths]
    if wrong := [path for path, image in zip(paths, images, strict=True) if image is None]:
        raise InputError(f"{os.fspath(wrong[0])} is not an image that can be read ({', '.join(_FORMATS)})")
    return np.stack([image for image in images if image is not None])


def image_table(folder: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The images of a folder with one folder for each class: {"image": paths, "class": names}, sorted.

    As for any table, the number of its files is taken to be public knowledge.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder with one subfolder per class")
    files = sorted(file for kind in root.iterdir() if kind.is_dir() for file in kind.iterdir())
    if not files:
        raise InputError(f"{root} has no folders with images in them")
    return {"image": [str(file) for file in files], "class": [file.parent.name for file in files]}


def _pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise MissingDependency("images in files need Pillow: pip install pillow") from None
