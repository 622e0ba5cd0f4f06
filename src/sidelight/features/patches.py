"""PatchFeatures: two layers of patch filters learned on public images, then their principal components.

    maps   ← layer 1 of the image, averaged in squares of 2 × 2
    cells  ← layer 2 of the maps, averaged over a grid             both rectified both ways (`patch_layers`)
    x      ← mean of the cells of the image and of its mirror image
    x̃      ← P(x − mean) , brought to length 1                     P from public images, whitens

Guarantee: what an image becomes depends on that image and on public images alone, and has length 1 (a null
image: 0). So a private model of the features has the guarantee that it states, and computing them costs
nothing.
Assumes: the images given to `fit` are public, and do not depend on the private ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn import functional

from sidelight.arrays import Array
from sidelight.errors import INTERRUPTS, InputError, positive

__all__ = ["Components", "PatchFeatures", "PatchLayer", "learn_components", "learn_layer"]


# ---------------------------------------------------------------------------------------------------
# a layer of patch filters, and the components of what it gives; learned on public maps, applied row by row
#
#     p ← (patch − its mean)/√(its variance + c)           contrast; c = 0.05 × the mean public variance
#     z ← (p − m) A^(−1/2) ,  A ← cov p + ridge·tr/d       m and cov over public patches (ZCA)
#     r_k ← ⟨f_k, z⟩ / its standard deviation              f_k a public z of length 1
#     r⁺, r⁻ ← max(±r − t, 0)                              t the threshold
#
# All of r is one convolution of the map, divided by the local deviation: A^(−1/2) is symmetric, so it is
# applied to the filters once and not to every patch.

_CONTRAST = 0.05  # of the mean variance of a public patch: what counts as flat
_SAMPLED = 20_000  # patches that a layer learns from
_SMALL = 1e-12


@dataclass(frozen=True, eq=False)
class PatchLayer:
    """Filters (count, channels, size, size) with what their responses are scaled and shifted by."""

    filters: Tensor
    shift: Tensor
    contrast: float
    threshold: float

    @property
    def size(self) -> int:
        return int(self.filters.shape[2])

    def __call__(self, maps: Tensor, dtype: torch.dtype) -> Tensor:
        """(rows, channels, h, w) → (rows, 2·count, h − size + 1, w − size + 1)."""
        weight = self.filters.to(dtype=dtype, memory_format=torch.channels_last)
        response = functional.conv2d(maps.to(dtype=dtype, memory_format=torch.channels_last), weight)
        response = response * self._inverse_deviation(maps).to(dtype) + self.shift.to(dtype)[:, None, None]
        return torch.cat([(response - self.threshold).relu_(), (-response - self.threshold).relu_()], dim=1)

    def _inverse_deviation(self, maps: Tensor) -> Tensor:
        def local(values: Tensor) -> Tensor:
            return functional.avg_pool2d(values.mean(dim=1, keepdim=True), self.size, stride=1)

        return ((local(maps**2) - local(maps) ** 2).clamp_min(0) + self.contrast).rsqrt()


def learn_layer(
    maps: Tensor, *, size: int, count: int, ridge: float, threshold: float, generator: torch.Generator
) -> PatchLayer:
    """Filters for maps like these, from patches of them. Everything here is public."""
    patches = _sample(maps, size, max(_SAMPLED, count), generator)
    variance = patches.var(dim=1, unbiased=False, keepdim=True)
    contrast = _CONTRAST * float(variance.mean()) + _SMALL
    patches = (patches - patches.mean(dim=1, keepdim=True)) / (variance + contrast).sqrt()
    middle = patches.mean(dim=0)
    patches = patches - middle
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    root = (vectors * (values.clamp_min(0) + ridge * values.mean() + _SMALL).rsqrt()) @ vectors.T
    white = patches @ root
    chosen = functional.normalize(white[:count])
    deviation = (white[: _SAMPLED // 2] @ chosen.T).std(dim=0).clamp_min(1e-6)
    filters = (chosen @ root) / deviation[:, None]
    shift = -(filters @ middle)
    filters = filters - filters.mean(dim=1, keepdim=True)  # takes off the patch's mean
    return PatchLayer(filters.reshape(count, maps.shape[1], size, size), shift, contrast, threshold)


def _sample(maps: Tensor, size: int, count: int, generator: torch.Generator) -> Tensor:
    """(count, channels·size·size) patches, at random places of random rows."""
    rows, _, height, width = maps.shape

    def draw(below: int) -> Tensor:
        return torch.randint(below, (count, 1, 1), generator=generator)

    row, top, left = draw(rows), draw(height - size + 1), draw(width - size + 1)
    offsets = torch.arange(size)
    found = maps[row, :, top + offsets[None, :, None], left + offsets[None, None, :]]
    return found.permute(0, 3, 1, 2).reshape(count, -1)


# ---------------------------------------------------------------------------------------------------
# components


@dataclass(frozen=True, eq=False)
class Components:
    """x ↦ P(x − mean), brought to length 1: standardised, projected on public components, whitened."""

    mean: Tensor
    projection: Tensor

    def __call__(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        centred = (rows - self.mean).to(dtype)
        return functional.normalize((centred @ self.projection.to(dtype)).float())


def learn_components(rows: Tensor, *, count: int, ridge: float) -> Components:
    """The first principal components of public rows, each divided by √(its variance + ridge × the largest).

    By the rows' Gram matrix: there are fewer rows than features.
    """
    mean, deviation = rows.mean(dim=0), rows.std(dim=0).clamp_min(1e-6)
    standard = (rows - mean) / deviation
    squares, left = torch.linalg.eigh(standard @ standard.T)
    squares, left = squares.flip(0)[:count], left.flip(1)[:, :count]
    kept = squares > 1e-6 * squares[0].clamp_min(_SMALL)
    squares, left = squares[kept], left[:, kept]
    variance = squares / len(rows)
    scale = 1 / (squares * (variance + ridge * variance[0])).sqrt()
    return Components(mean, (standard.T @ (left * scale)) / deviation[:, None])


# ---------------------------------------------------------------------------------------------------
# the features


Images = Array | Sequence[Array]
FILE = "features.safetensors"
_KIND = "sidelight patch features"
_BLOCK = 32  # images at a time; a constant, so that results do not depend on how many there are


@dataclass(frozen=True, eq=False)
class _Learned:
    """Everything that `fit` learns from public images."""

    shape: tuple[int, ...]  # of an image: height, width, channels
    low: float
    high: float
    first: PatchLayer
    second: PatchLayer
    components: Components | None = None


class PatchFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features of images from patches of public images, for a private linear model.

    `fit` takes PUBLIC images only: whatever it sees is in the features. `transform` treats every image by
    itself. A private image that cannot be read (missing or infinite pixels, or in a list another shape)
    becomes a row of zeros, in silence; a public one like that is an error.

    Args:
        patches: filters of the second layer; each gives two features a cell of the grid.
        first_patches: filters of the first layer.
        first_size, second_size: edge of a patch, in pixels and in averaged maps.
        grid: the second layer is averaged over grid × grid cells.
        components: principal components of the public images, at most; None takes all.
        whitening: a component is divided by √(its variance + whitening × the largest).
        ridges: of both layers' whitening, in units of the mean variance.
        thresholds: of both layers, in standard deviations of a response.
        mirror: average the features of an image and of its mirror image. Not for digits or letters.
        shifts: copies of each public image, shifted by up to two pixels, that join it for the components.
        dtype: "bfloat16" is about twice as fast on processors that have it. It affects speed and the third
            digit of a feature, never privacy.
        seed: of the choice of patches. It is public: no noise depends on it.

    Attributes:
        n_features_out_: length of a row.
        image_shape_: height, width and channels of the images.
    """

    def __init__(
        self,
        *,
        patches: int = 512,
        first_patches: int = 48,
        first_size: int = 5,
        second_size: int = 3,
        grid: int = 3,
        components: int | None = 1_500,
        whitening: float = 0.003,
        ridges: tuple[float, float] = (0.1, 0.3),
        thresholds: tuple[float, float] = (0.5, 0.8),
        mirror: bool = True,
        shifts: int = 0,
        dtype: Literal["float32", "bfloat16"] = "float32",
        seed: int = 0,
    ) -> None:
        self.patches = patches
        self.first_patches = first_patches
        self.first_size = first_size
        self.second_size = second_size
        self.grid = grid
        self.components = components
        self.whitening = whitening
        self.ridges = ridges
        self.thresholds = thresholds
        self.mirror = mirror
        self.shifts = shifts
        self.dtype = dtype
        self.seed = seed

    # -----------------------------------------------------------------------------------------------
    # learning, from public images

    @torch.no_grad()
    def fit(self, X: Images, y: object = None) -> Self:
        """Learn filters and components from public images.

        Args:
            X: PUBLIC images: (n, height, width) or (n, height, width, channels), bytes or numbers.
            y: not used.
        """
        self._check_parameters()
        public = _public_images(X)
        generator = torch.Generator().manual_seed(self.seed)
        low, high = float(public.min()), float(public.max())
        images = _scaled(public, low, high)
        first = self._layer(images, 0, generator)
        maps = torch.cat([self._maps(first, some) for some in torch.split(images, _BLOCK)]).float()
        second = self._layer(maps, 1, generator)
        del maps
        learned = _Learned(tuple(public.shape[1:]), low, high, first, second)
        copies = [images, *(_shifted(images, generator) for _ in range(self.shifts))]
        cells = torch.cat(
            [self._cells(learned, some) for each in copies for some in torch.split(each, _BLOCK)]
        )
        count = len(cells) if self.components is None else self.components
        components = learn_components(cells, count=count, ridge=self.whitening)
        self._keep(_Learned(learned.shape, low, high, first, second, components))
        return self

    def _keep(self, learned: _Learned) -> None:
        self._learned = learned
        self.image_shape_ = learned.shape
        self.n_features_out_ = int(_components(learned).projection.shape[1])

    def _layer(self, maps: Tensor, depth: int, generator: torch.Generator) -> PatchLayer:
        size = (self.first_size, self.second_size)[depth]
        count = (self.first_patches, self.patches)[depth]
        room = min(maps.shape[2:]) - size + 1
        if room < (2, self.grid)[depth]:
            raise InputError(
                f"public images are too small: layer {depth + 1}: {maps.shape[2]} × {maps.shape[3]} places"
                f" for patches of edge {size} and a grid of {self.grid}; take smaller ones"
            )
        ridge, threshold = self.ridges[depth], self.thresholds[depth]
        return learn_layer(
            maps, size=size, count=count, ridge=ridge, threshold=threshold, generator=generator
        )

    def _check_parameters(self) -> None:
        for name in ("patches", "first_patches", "first_size", "second_size", "grid", "components"):
            value = getattr(self, name)
            if value is None and name == "components":
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
        positive("whitening", self.whitening)
        if not isinstance(self.shifts, int | np.integer) or self.shifts < 0:
            raise InputError(f"shifts must be a whole number of at least 0, not {self.shifts!r}")
        if self.dtype not in ("float32", "bfloat16"):
            raise InputError(f"dtype must be 'float32' or 'bfloat16', not {self.dtype!r}")
        for name in ("ridges", "thresholds"):
            pair = getattr(self, name)
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(0 <= v < np.inf for v in pair)):
                raise InputError(f"{name} must be two numbers of at least 0, one a layer, not {pair!r}")

    # -----------------------------------------------------------------------------------------------
    # features of any image

    @torch.no_grad()
    def transform(self, X: Images) -> NDArray[np.float32]:
        """(n, n_features_out_) rows of length 1, or of zeros for an image that cannot be read.

        Memory beyond the result is that of 32 images.
        """
        check_is_fitted(self, "image_shape_")
        learned: _Learned = self._learned
        out = np.zeros((len(_batch(X, learned.shape)), self.n_features_out_), dtype=np.float32)
        for start, block, good in _blocks(X, learned):
            rows = _components(learned)(self._cells(learned, block), self._type)
            rows = torch.where(good & rows.isfinite().all(dim=1, keepdim=True), rows, 0.0)
            out[start : start + _BLOCK] = rows[: len(out) - start].numpy()
        return out

    @property
    def _type(self) -> torch.dtype:
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    def _maps(self, first: PatchLayer, images: Tensor) -> Tensor:
        return functional.avg_pool2d(first(images, self._type), 2)

    def _cells(self, learned: _Learned, images: Tensor) -> Tensor:
        """The averages of the second layer over the grid, flat; the mean of both sides if mirrored."""

        def one(side: Tensor) -> Tensor:
            maps = self._maps(learned.first, side).float()
            return (
                functional.adaptive_avg_pool2d(learned.second(maps, self._type), self.grid).float().flatten(1)
            )

        return (one(images) + one(images.flip(3))) / 2 if self.mirror else one(images)

    def get_feature_names_out(self, input_features: object = None) -> Array:
        """patch0, patch1, …: components have no names of their own."""
        check_is_fitted(self, "image_shape_")
        return np.array([f"patch{k}" for k in range(self.n_features_out_)], dtype=object)

    # -----------------------------------------------------------------------------------------------
    # on disk

    def save(self, path: str | os.PathLike[str]) -> None:
        """One file of safetensors, with every parameter; in a model's folder it is features.safetensors."""
        from safetensors.torch import save_file

        check_is_fitted(self, "image_shape_")
        learned: _Learned = self._learned
        tensors = {name: value.contiguous() for name, value in _tensors(learned).items()}
        numbers = {
            "kind": _KIND,
            "parameters": self.get_params(),
            "shape": learned.shape,
            "range": (learned.low, learned.high),
            "contrast": (learned.first.contrast, learned.second.contrast),
        }
        file = _file(path)
        try:
            save_file(tensors, str(file), metadata={"sidelight": json.dumps(numbers)})
        except OSError as error:
            raise InputError(f"{file} cannot be written: {error.strerror or 'output failed'}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """What `save` wrote."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(_file(path)), framework="pt") as file:
                numbers = json.loads((file.metadata() or {})["sidelight"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            made = cls(**numbers["parameters"])
            (a, b), (c, d) = made.ridges, made.thresholds  # JSON has lists
            made.ridges, made.thresholds = (a, b), (c, d)
            made._keep(_restored(made, numbers, tensors))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{_file(path)} holds no features of images ({error})") from None
        return made


def _file(path: str | os.PathLike[str]) -> Path:
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


def _tensors(learned: _Learned) -> dict[str, Tensor]:
    components = _components(learned)
    return {
        "first.filters": learned.first.filters,
        "first.shift": learned.first.shift,
        "second.filters": learned.second.filters,
        "second.shift": learned.second.shift,
        "mean": components.mean,
        "projection": components.projection,
    }


def _restored(made: PatchFeatures, numbers: dict[str, list[float]], tensors: dict[str, Tensor]) -> _Learned:
    first, second = (
        PatchLayer(tensors[f"{name}.filters"], tensors[f"{name}.shift"], contrast, threshold)
        for name, contrast, threshold in zip(
            ("first", "second"), numbers["contrast"], made.thresholds, strict=True
        )
    )
    low, high = numbers["range"]
    shape = tuple(int(edge) for edge in numbers["shape"])
    return _Learned(shape, low, high, first, second, Components(tensors["mean"], tensors["projection"]))


def _components(learned: _Learned) -> Components:
    if learned.components is None:
        raise InputError("these features were not learned to the end; call fit(public_images)")
    return learned.components


# ---------------------------------------------------------------------------------------------------
# images


def _public_images(X: Images) -> Array:
    """(n, height, width, channels) finite numbers, or one clear error."""
    try:
        images = np.asarray(X)
    except ValueError:
        raise InputError("public images must all have one shape") from None
    if images.dtype.kind not in "uif":
        raise InputError(f"public images must be numbers, not {images.dtype}")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise InputError(
            "public images must be (n, height, width) or (n, height, width, channels), not of shape "
            f"{np.shape(X)}"
        )
    if len(images) < 2:
        raise InputError("features are learned from at least two public images")
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise InputError("public images must be finite; remove those with missing pixels")
    if images.min() == images.max():
        raise InputError("public images must not all be of one colour")
    return images


def _batch(X: Images, shape: tuple[int, ...]) -> Images:
    """The images of `transform`. The shape of an array is public, that of one image in a list is not."""
    if not isinstance(X, np.ndarray) or X.dtype == object:
        if not isinstance(X, Sized) or isinstance(X, str | bytes | Mapping):
            raise InputError(f"images must be an array or a list of arrays, not {type(X).__name__}")
        return X
    plain = shape[:2] if shape[2] == 1 else shape
    if X.shape[1:] not in (shape, plain) or X.dtype.kind not in "uifb":
        raise InputError(
            f"images must be numbers of shape (n, {', '.join(map(str, plain))}), as the public ones were, "
            f"not {X.dtype} of shape {X.shape}"
        )
    return X


def _blocks(X: Images, learned: _Learned) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Where a block starts, its 32 images (zeros behind the last), and which of them can be read."""
    for start in range(0, len(X), _BLOCK):
        block = np.full((_BLOCK, *learned.shape), learned.low, dtype=np.float32)
        good = np.zeros((_BLOCK, 1), dtype=np.bool_)
        for place, image in enumerate(X[start : start + _BLOCK]):
            pixels = _pixels(image, learned)
            if pixels is not None:
                block[place], good[place] = pixels, True
        yield start, _scaled(block, learned.low, learned.high), torch.from_numpy(good)


def _pixels(image: object, learned: _Learned) -> Array | None:
    """One image as numbers within the range of public pixels; None if it cannot be read."""
    try:
        pixels = np.asarray(image)
    except INTERRUPTS:
        raise
    except BaseException:  # whatever a private record holds, it must not be heard of
        return None
    if pixels.dtype.kind not in "uifb":
        return None
    if pixels.ndim == 2 and learned.shape[2] == 1:
        pixels = pixels[..., None]
    if pixels.shape != learned.shape or not bool(np.isfinite(pixels).all()):
        return None
    return np.clip(pixels.astype(np.float64), learned.low, learned.high)  # 1e300 is no float32


def _scaled(images: Array, low: float, high: float) -> Tensor:
    """(n, channels, height, width), mapped from the range of public pixels to [0, 1]."""
    scaled = (torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32)) - low) / (high - low)
    return scaled.permute(0, 3, 1, 2)


def _shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image by up to two pixels to any side; its edge is repeated."""
    height, width = images.shape[2:]
    padded = functional.pad(images, (2, 2, 2, 2), mode="replicate")
    moves = torch.randint(5, (len(images), 2), generator=generator).tolist()
    return torch.stack(
        [each[:, a : a + height, b : b + width] for each, (a, b) in zip(padded, moves, strict=True)]
    )
