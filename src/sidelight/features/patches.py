"""PatchFeatures: filters that are patches of public images, then similarities to public images, whitened.

    maps   ← layer 1 of the image, averaged in squares of 2 × 2
    cells  ← layer 2 of the maps, averaged over a grid             all rectified both ways
    direct ← larger patches of the image itself, averaged over the grid
    x      ← √ of the cells and direct, of the image and its mirror image on average
    k_j    ← exp((cos(x, x̂_j) − 1)/width)                          x̂_j a public image, both standardized
    x̃      ← P(k − mean) , brought to length 1                     P from public images, whitens

Guarantee: what an image becomes depends on that image and on public images alone, and has length 1 (a null
image: 0). So a private model of the features has the guarantee that it states, and computing them costs
nothing.
Assumes: the images given to `fit` are public, and do not depend on the private ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
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
from sidelight.errors import InputError, guarded, not_negative, one_of, positive, whole
from sidelight.features.patch_layers import (
    Components,
    PatchLayer,
    Similarity,
    learn_components,
    learn_kernel_components,
    learn_layer,
    learn_similarity,
)

# ---------------------------------------------------------------------------------------------------
# the features


Images = Array | Sequence[Array]
FILE = "features.safetensors"
_KIND = "sidelight patch features"
_BLOCK_IMAGES = 32  # images at a time; a constant, so that results do not depend on how many there are


@dataclass(frozen=True, eq=False)
class _Learned:
    """Everything that `fit` learns from public images."""

    shape: tuple[int, ...]  # of an image: height, width, channels
    low: float
    high: float
    layers: Mapping[str, PatchLayer]  # "first", "second", and "direct" if there is one
    similarity: Similarity | None
    components: Components


class PatchFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features of images from patches of public images, for a private linear model.

    `fit` takes PUBLIC images only: the features depend on everything that it sees. `transform` treats every
    image by itself. A private image that cannot be read (missing or infinite pixels, or in a list another
    shape) silently becomes a row of zeros; a public one like that is an error.

    Args:
        patches: filters of the second layer; each gives two features per cell of the grid.
        first_patches: filters of the first layer.
        first_size, second_size: edge of a patch, in pixels and in averaged maps.
        direct_patches: filters that see the image itself, beside the two layers. None: as many as `patches`.
        direct_size, direct_ridge, direct_threshold: of these filters.
        strides: of the second layer and of the direct filters; a stride of 2 skips three of four positions.
        grid: both are averaged over grid × grid cells.
        power: of the averages, before they are standardized.
        kernel: width of the similarities to public images, exp((cos − 1)/kernel), whose components are taken.
            None takes the components of the averages themselves.
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
        patches: int = 1_024,
        first_patches: int = 48,
        first_size: int = 5,
        second_size: int = 3,
        direct_patches: int | None = None,
        direct_size: int = 6,
        direct_ridge: float = 0.05,
        direct_threshold: float = 0.8,
        strides: tuple[int, int] = (1, 2),
        grid: int = 3,
        power: float = 0.5,
        kernel: float | None = 2.0,
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
        self.direct_patches = direct_patches
        self.direct_size = direct_size
        self.direct_ridge = direct_ridge
        self.direct_threshold = direct_threshold
        self.strides = strides
        self.grid = grid
        self.power = power
        self.kernel = kernel
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
        layers = {"first": self._layer(images, 0, generator)}
        maps = torch.cat([self._maps(layers, some) for some in torch.split(images, _BLOCK_IMAGES)])
        layers["second"] = self._layer(maps, 1, generator)
        del maps
        if self._direct:
            layers["direct"] = self._layer(images, 2, generator)
        copies = [images, *(_shifted(images, generator) for _ in range(self.shifts))]
        encode = self._cells(layers)
        cells = torch.cat([encode(some) for each in copies for some in torch.split(each, _BLOCK_IMAGES)])
        similarity, components = self._compared(cells)
        self._keep(_Learned(tuple(public.shape[1:]), low, high, layers, similarity, components))
        return self

    def _compared(self, cells: Tensor) -> tuple[Similarity | None, Components]:
        """Components of the public cells, or of their similarities."""
        count = len(cells) if self.components is None else self.components
        if self.kernel is None:
            return None, learn_components(cells, count=count, ridge=self.whitening)
        similarity = learn_similarity(cells, width=self.kernel, dtype=self._type)
        similarities = torch.cat([similarity(some) for some in torch.split(cells, _BLOCK_IMAGES)])
        return similarity, learn_kernel_components(similarities, count=count, ridge=self.whitening)

    def _keep(self, learned: _Learned) -> None:
        self._learned = learned
        self.image_shape_ = learned.shape
        self.n_features_out_ = int(learned.components.projection.shape[1])

    def _layer(self, maps: Tensor, depth: int, generator: torch.Generator) -> PatchLayer:
        """Layer 1, layer 2, or the direct filters, from public maps."""
        size = (self.first_size, self.second_size, self.direct_size)[depth]
        room = (min(maps.shape[2:]) - size) // (1, *self.strides)[depth] + 1
        if room < (2, self.grid, self.grid)[depth]:
            name = ("layer 1", "layer 2", "direct filters")[depth]
            raise InputError(
                f"public images are too small: {name}: {maps.shape[2]} × {maps.shape[3]} places"
                f" for patches of edge {size} and a grid of {self.grid}; use smaller ones"
            )
        return learn_layer(
            maps,
            size=size,
            count=(self.first_patches, self.patches, self._direct)[depth],
            ridge=(*self.ridges, self.direct_ridge)[depth],
            threshold=(*self.thresholds, self.direct_threshold)[depth],
            generator=generator,
        )

    def _check_parameters(self) -> None:
        least = dict.fromkeys(
            ("patches", "first_patches", "first_size", "second_size", "direct_size", "grid", "components"), 1
        )
        for name, low in {**least, "direct_patches": 0, "shifts": 0}.items():
            optional = name in ("components", "direct_patches")
            whole(name, getattr(self, name), least=low, optional=optional)
        for name in ("whitening", "power", "kernel"):
            positive(name, getattr(self, name), optional=name == "kernel")
        for name in ("direct_ridge", "direct_threshold"):
            not_negative(name, getattr(self, name))
        one_of("dtype", self.dtype, ("float32", "bfloat16"))
        for name, check in (("ridges", not_negative), ("thresholds", not_negative), ("strides", whole)):
            pair = getattr(self, name)
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise InputError(f"{name} must be two numbers, one per layer, not {pair!r}")
            for one in pair:
                check(name, one)

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
        encode = self._cells(learned.layers)
        for start, block, good in _blocks(X, learned):
            rows = self._rows(learned, encode(block))
            rows = torch.where(good & rows.isfinite().all(dim=1, keepdim=True), rows, 0.0)
            out[start : start + _BLOCK_IMAGES] = rows[: len(out) - start].numpy()
        return out

    def _rows(self, learned: _Learned, cells: Tensor) -> Tensor:
        if learned.similarity is None:
            return learned.components(cells, self._type)
        return learned.components(learned.similarity(cells), torch.float32)

    @property
    def _direct(self) -> int:
        return self.patches if self.direct_patches is None else self.direct_patches

    @property
    def _type(self) -> torch.dtype:
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    def _maps(self, layers: Mapping[str, PatchLayer], images: Tensor) -> Tensor:
        return functional.avg_pool2d(layers["first"](images, self._type), 2).float()

    def _cells(self, layers: Mapping[str, PatchLayer]) -> Callable[[Tensor], Tensor]:
        """Images → the averages of all filters over the grid, flat; the mean of both sides if mirrored."""
        pooled = [
            (layers[name], layers[name].columns(self._type), stride)
            for name, stride in zip(("second", "direct"), self.strides, strict=True)
            if name in layers
        ]

        def one(*sources: Tensor) -> Tensor:  # maps of the first layer, and the image itself
            each = zip(pooled, sources, strict=False)
            return torch.cat([
                layer.pooled(source, columns, stride=stride, grid=self.grid)
                for (layer, columns, stride), source in each
            ])  # fmt: skip

        def side(images: Tensor) -> Tensor:
            return torch.stack([one(*each) for each in zip(self._maps(layers, images), images, strict=True)])

        def both(images: Tensor) -> Tensor:
            cells = (side(images) + side(images.flip(3))) / 2 if self.mirror else side(images)
            return cells if self.power == 1 else cells.clamp_min(0) ** self.power

        return both

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
            "contrast": [layer.contrast for layer in learned.layers.values()],
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
            for name in ("ridges", "thresholds", "strides"):  # JSON has lists
                setattr(made, name, tuple(getattr(made, name)))
            made._keep(_restored(made, numbers, tensors))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{_file(path)} holds no features of images ({error})") from None
        return made


def _file(path: str | os.PathLike[str]) -> Path:
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


def _tensors(learned: _Learned) -> dict[str, Tensor]:
    components, similarity = learned.components, learned.similarity
    out = {"mean": components.mean, "projection": components.projection}
    for name, layer in learned.layers.items():
        out |= {f"{name}.filters": layer.filters, f"{name}.shift": layer.shift}
    if similarity is not None:
        names = ("mean", "inverse", "landmarks")
        out |= {f"similarity.{name}": getattr(similarity, name) for name in names}
    return out


def _restored(made: PatchFeatures, numbers: dict[str, list[float]], tensors: dict[str, Tensor]) -> _Learned:
    thresholds = (*made.thresholds, made.direct_threshold)
    layers = {
        name: PatchLayer(tensors[f"{name}.filters"], tensors[f"{name}.shift"], contrast, threshold)
        for name, contrast, threshold in zip(
            ("first", "second", "direct"), numbers["contrast"], thresholds, strict=False
        )
    }
    similarity = None
    if made.kernel is not None:
        mean, inverse, landmarks = (
            tensors[f"similarity.{name}"] for name in ("mean", "inverse", "landmarks")
        )
        similarity = Similarity(mean, inverse, landmarks, made.kernel)
    low, high = numbers["range"]
    shape = tuple(int(edge) for edge in numbers["shape"])
    components = Components(tensors["mean"], tensors["projection"])
    return _Learned(shape, low, high, layers, similarity, components)


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
        raise InputError("public images must not all be of one color")
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
    for start in range(0, len(X), _BLOCK_IMAGES):
        block = np.full((_BLOCK_IMAGES, *learned.shape), learned.low, dtype=np.float32)
        good = np.zeros((_BLOCK_IMAGES, 1), dtype=np.bool_)
        for place, image in enumerate(X[start : start + _BLOCK_IMAGES]):
            pixels = _pixels(image, learned)
            if pixels is not None:
                block[place], good[place] = pixels, True
        yield start, _scaled(block, learned.low, learned.high), torch.from_numpy(good)


def _pixels(image: object, learned: _Learned) -> Array | None:
    """One image as numbers within the range of public pixels; None if it cannot be read."""
    pixels: Array | None = guarded(np.asarray, image, None)
    if pixels is None or pixels.dtype.kind not in "uifb":
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
