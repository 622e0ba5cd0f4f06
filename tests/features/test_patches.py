"""Features come from public images alone; a private image's depend on that image and on nothing else."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline

from sidelight.errors import InputError, NotPrivateWarning
from sidelight.estimators import PrivateClassifier
from sidelight.features import PatchFeatures
from sidelight.features.patch_layers import (
    learn_components,
    learn_kernel_components,
    learn_layer,
    learn_similarity,
)


def stripes(rows: int, seed: int, size: int = 20) -> tuple[Any, Any]:
    """Bytes of stripes at a random phase: the class is their direction, which no single pixel tells."""
    generator = np.random.default_rng(seed)
    across, down = np.meshgrid(np.arange(size), np.arange(size))
    y = np.arange(rows) % 3
    angle = np.pi * y / 3 + 0.2
    waves = np.cos(angle)[:, None, None] * across + np.sin(angle)[:, None, None] * down
    gray = np.sin(1.3 * waves + generator.uniform(0, 6, rows)[:, None, None])
    images = 128 + 50 * gray[..., None] + generator.normal(0, 15, (rows, size, size, 3))
    return images.clip(0, 255).astype(np.uint8), y


def small(**changes: Any) -> PatchFeatures:
    options = {"patches": 24, "first_patches": 8, "components": 20, "mirror": False, "seed": 1, **changes}
    return PatchFeatures(**options)


PUBLIC, LABELS = stripes(60, 0)


@pytest.fixture(scope="module")
def fitted() -> PatchFeatures:
    return small().fit(PUBLIC)


def test_direct_filters_and_similarities_are_there_unless_left_out(fitted: PatchFeatures) -> None:
    learned = fitted._learned
    assert len(learned.layers["direct"].shift) == 24
    assert learned.similarity is not None and learned.similarity.landmarks.shape == (2 * 2 * 24 * 9, 60)
    plain = small(direct_patches=0, kernel=None).fit(PUBLIC)._learned
    assert "direct" not in plain.layers and plain.similarity is None


# -------------------------------------------------------------------------------------------------------
# one image, alone


def test_rows_have_length_one(fitted: PatchFeatures) -> None:
    rows = fitted.transform(stripes(70, 1)[0])
    assert rows.shape == (70, fitted.n_features_out_) and rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_neighbors_change_nothing_of_an_image(fitted: PatchFeatures) -> None:
    """Whatever the other images hold, in the same block or another, an image's row is the same to the bit."""
    images = stripes(40, 1)[0].astype(np.float64)
    rows = fitted.transform(images)
    for other in (np.full_like(images[0], 255.0), np.full_like(images[0], np.nan), images[3]):
        changed = images.copy()
        changed[5], changed[39] = other, other
        kept = np.delete(np.arange(40), [5, 39])
        assert np.array_equal(fitted.transform(changed)[kept], rows[kept])


def test_the_number_of_images_changes_nothing(fitted: PatchFeatures) -> None:
    images = stripes(40, 1)[0]
    rows = fitted.transform(images)
    for count in (1, 7, 33):
        assert np.array_equal(fitted.transform(images[:count]), rows[:count])
    np.testing.assert_allclose(fitted.transform(images[::-1])[::-1], rows, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_image_that_cannot_be_read_is_null_and_silent(fitted: PatchFeatures, value: float) -> None:
    images = stripes(5, 1)[0].astype(np.float64)
    images[2, 3, 4, 1] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = fitted.transform(images)
    assert not rows[2].any()
    assert np.linalg.norm(np.delete(rows, 2, axis=0), axis=1).min() > 0.99


class Panics:
    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("a secret")


@pytest.mark.parametrize(
    "bad",
    [None, "text", 3, [[1, 2], [3]], np.zeros((4, 4, 3)), np.zeros((20, 20)), np.full((20, 20, 3), "a"),
     np.full((20, 20, 3), 1j), np.full((20, 20, 3), None), Panics()],
    ids=["none", "text", "number", "ragged", "small", "gray", "letters", "complex", "objects", "panics"],
)  # fmt: skip
def test_a_bad_image_in_a_list_is_null_and_silent(fitted: PatchFeatures, bad: Any) -> None:
    images = list(stripes(4, 1)[0])
    whole = fitted.transform(images)
    images[1] = bad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = fitted.transform(images)
    assert not rows[1].any()
    kept = [0, 2, 3]
    assert np.array_equal(rows[kept], whole[kept])


def test_huge_pixels_are_clipped_to_the_public_range(fitted: PatchFeatures) -> None:
    images = stripes(3, 1)[0].astype(np.float64)
    images[1, 4:8, 4:8] = 1e300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        huge = fitted.transform(images)
    images[1, 4:8, 4:8] = float(PUBLIC.max())
    assert np.array_equal(huge, fitted.transform(images))
    assert np.linalg.norm(huge[1]) == pytest.approx(1, abs=1e-5)


def test_brightness_and_contrast_hardly_matter(fitted: PatchFeatures) -> None:
    images = stripes(6, 1)[0].astype(np.float64) * 0.6
    rows = fitted.transform(images)
    brighter, sharper = fitted.transform(images + 60), fitted.transform(images * 1.5)
    assert (rows * brighter).sum(axis=1).min() > 0.999
    assert (rows * sharper).sum(axis=1).min() > 0.95


def test_mirrored_images_have_the_same_features_if_asked() -> None:
    images = stripes(6, 1)[0]
    both = small(mirror=True).fit(PUBLIC)
    np.testing.assert_allclose(both.transform(images[:, :, ::-1]), both.transform(images), atol=1e-4)
    one = small().fit(PUBLIC)
    assert np.abs(one.transform(images[:, :, ::-1]) - one.transform(images)).max() > 0.01


def test_a_gray_image_may_leave_out_its_channel() -> None:
    gray = PUBLIC[..., 0]
    made = small().fit(gray)
    assert made.image_shape_ == (20, 20, 1)
    assert np.array_equal(made.transform(gray[:3]), made.transform(gray[:3, :, :, None]))


# -------------------------------------------------------------------------------------------------------
# public images


def test_fit_depends_on_the_seed_and_the_public_images_alone() -> None:
    images = stripes(4, 1)[0]
    first = small().fit(PUBLIC).transform(images)
    torch.manual_seed(7)
    assert np.array_equal(small().fit(PUBLIC).transform(images), first)
    assert not np.allclose(small(seed=2).fit(PUBLIC).transform(images), first, atol=0.05)


def with_nan(images: Any) -> Any:
    images = images.astype(float)
    images[1, 2, 3, 0] = np.nan
    return images


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (with_nan(PUBLIC), "finite"),
        (PUBLIC[:, 0, 0], "height, width"),
        (PUBLIC[:1], "at least two"),
        (PUBLIC[:, :6, :6], "too small"),
        (np.full((5, 20, 20), 3), "one color"),
        (np.full((5, 20, 20), "a"), "numbers"),
        ([PUBLIC[0], PUBLIC[1, :5]], "one shape"),
        (PUBLIC[:0], "height, width"),
    ],
    ids=["nan", "flat", "single", "small", "blank", "text", "ragged", "empty"],
)
def test_bad_public_images_are_one_clear_error(images: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small().fit(images)


def test_direct_filters_need_room_for_the_grid() -> None:
    with pytest.raises(InputError, match="direct"):
        small(direct_size=17).fit(PUBLIC)


@pytest.mark.parametrize(
    "changes",
    [{"patches": 0}, {"grid": 1.5}, {"components": 0}, {"whitening": 0.0}, {"shifts": -1}, {"dtype": "half"},
     {"ridges": (0.1,)}, {"thresholds": (0.1, float("nan"))}, {"patches": True}, {"direct_patches": -1},
     {"strides": (1, 0)}, {"strides": 2}, {"power": 0.0}, {"kernel": -1.0}, {"direct_ridge": "a"},
     {"direct_threshold": float("inf")}, {"direct_size": 0}],
)  # fmt: skip
def test_bad_parameters_are_named(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        small(**changes).fit(PUBLIC)


@pytest.mark.parametrize("images", [PUBLIC[:, :10], PUBLIC.astype("U3"), 5, "images", {"a": 1}])
def test_an_array_of_another_shape_is_an_error(fitted: PatchFeatures, images: Any) -> None:
    with pytest.raises(InputError, match="images must"):
        fitted.transform(images)


def test_bfloat16_gives_nearly_the_same(fitted: PatchFeatures) -> None:
    images = stripes(6, 1)[0]
    fast = small(dtype="bfloat16").fit(PUBLIC)
    fast._keep(fitted._learned)
    assert (fast.transform(images) * fitted.transform(images)).sum(axis=1).min() > 0.98


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_place_in_a_block_changes_no_bit(dtype: str) -> None:
    """One image more in front moves every other by a place."""
    images, _ = stripes(70, 3)
    made = small(dtype=dtype).fit(stripes(60, 1)[0])
    rows = made.transform(images)
    assert np.array_equal(rows[1:], made.transform(images[1:]))
    assert np.array_equal(rows, made.transform(images[::-1])[::-1])


class Panic:
    """An image whose reading raises what is no Exception, as a panic of Rust code does."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise BaseException("a private value")


def test_an_image_that_panics_is_null_and_silent(fitted: PatchFeatures) -> None:
    images, _ = stripes(3, 3)
    rows = fitted.transform([images[0], Panic(), images[2]])
    assert not rows[1].any() and np.array_equal(rows[[0, 2]], fitted.transform(images)[[0, 2]])


def test_shifted_copies_join_the_components() -> None:
    with_copies = small(shifts=2, components=None).fit(PUBLIC[:20])
    assert with_copies.n_features_out_ > small(components=None).fit(PUBLIC[:20]).n_features_out_


# -------------------------------------------------------------------------------------------------------
# the maths


def test_a_layer_is_its_formula() -> None:
    """Contrast, whitening and rectification of every patch by itself, against the one convolution."""
    maps = torch.rand(30, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    layer = learn_layer(
        maps, size=3, count=5, ridge=0.1, threshold=0.3, generator=torch.Generator().manual_seed(1)
    )
    got = layer(maps[:4], torch.float32)
    for row, down, right in ((0, 0, 0), (3, 6, 2), (1, 4, 5)):
        patch = maps[row, :, down : down + 3, right : right + 3].reshape(-1)
        flat = (patch - patch.mean()) / (patch.var(unbiased=False) + layer.contrast).sqrt()
        response = layer.filters.reshape(5, -1) @ flat + layer.shift
        expected = torch.cat([(response - 0.3).relu(), (-response - 0.3).relu()])
        torch.testing.assert_close(got[row, :, down, right], expected, atol=1e-4, rtol=1e-4)


def test_responses_have_unit_variance_over_public_patches() -> None:
    maps = torch.rand(200, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    layer = learn_layer(
        maps, size=3, count=5, ridge=0.1, threshold=0.0, generator=torch.Generator().manual_seed(1)
    )
    both = layer(maps, torch.float32)
    response = both[:, :5] - both[:, 5:]
    assert response.std(dim=(0, 2, 3)).numpy() == pytest.approx(1, abs=0.1)
    assert response.mean(dim=(0, 2, 3)).numpy() == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(("stride", "grid"), [(1, 3), (2, 3), (1, 2), (2, 4)])
def test_averages_are_those_of_the_responses(stride: int, grid: int) -> None:
    """Patches written out, against the convolution; windows that do not divide the places evenly, too."""
    maps = torch.rand(30, 2, 10, 13, generator=torch.Generator().manual_seed(0))
    layer = learn_layer(
        maps, size=3, count=600, ridge=0.1, threshold=0.3, generator=torch.Generator().manual_seed(1)
    )
    columns = layer.columns(torch.float32)
    got = torch.stack([layer.pooled(one, columns, stride=stride, grid=grid) for one in maps[:3]])
    responses = layer(maps[:3], torch.float32)[:, :, ::stride, ::stride]
    expected = torch.nn.functional.adaptive_avg_pool2d(responses, grid).flatten(1)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_components_of_similarities_are_whitened_and_need_no_other_centering() -> None:
    """Against kernel principal components written out, for public rows and for a new one."""
    generator = torch.Generator().manual_seed(0)
    rows, new = torch.randn(60, 9, generator=generator), torch.randn(4, 9, generator=generator)
    similarity = learn_similarity(rows, width=0.7, dtype=torch.float32)
    both = similarity(rows)
    cosines = torch.nn.functional.normalize((rows - rows.mean(0)) / rows.std(0))
    torch.testing.assert_close(both, ((cosines @ cosines.T - 1) / 0.7).exp(), atol=1e-5, rtol=1e-5)
    components = learn_kernel_components(both, count=12, ridge=1e-6)
    projected = (both - components.mean) @ components.projection
    torch.testing.assert_close(projected.T @ projected / 60, torch.eye(12), atol=1e-3, rtol=0)
    k = similarity(new)
    centered = k - both.mean(0) - k.mean(1, keepdim=True) + both.mean()
    torch.testing.assert_close(
        (k - components.mean) @ components.projection, centered @ components.projection, atol=1e-3, rtol=1e-3
    )


def test_components_are_whitened() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(80, 200, generator=generator) * torch.linspace(0.1, 3, 200)
    components = learn_components(rows, count=30, ridge=1e-6)
    projected = (rows - components.mean) @ components.projection
    torch.testing.assert_close(projected.T @ projected / 80, torch.eye(30), atol=1e-3, rtol=0)


# -------------------------------------------------------------------------------------------------------
# with a model, and on disk


def test_a_private_model_learns_from_features_what_pixels_do_not_tell() -> None:
    images, y = stripes(900, 1)
    unseen, y_unseen = stripes(150, 2)
    made = small(mirror=False, components=40).fit(PUBLIC)
    model = PrivateClassifier(
        epsilon=2, bounds=(-1, 1), center="zero", fit_intercept=False, random_state=0, calibration=None
    )
    model.fit(made.transform(images), y, X_public=made.transform(PUBLIC), y_public=LABELS)
    assert model.score(made.transform(unseen), y_unseen) > 0.8


def pipeline(features: Any) -> Any:
    model = PrivateClassifier(
        "dp_sgd",
        epsilon=2,
        bounds=(-1, 1),
        center="zero",
        fit_intercept=False,
        random_state=0,
        calibration=None,
    )
    model.set_fit_request(X_public=True, y_public=True)
    return Pipeline([("features", features), ("model", model)], transform_input=["X_public"])


def test_a_pipeline_of_frozen_features_is_the_same_in_one_call(fitted: PatchFeatures) -> None:
    images, y = stripes(90, 1)
    with sklearn.config_context(enable_metadata_routing=True):
        whole = pipeline(FrozenEstimator(fitted)).fit(images, y, X_public=PUBLIC, y_public=LABELS)
        apart = pipeline(FrozenEstimator(fitted))[-1]
        apart.fit(fitted.transform(images), y, X_public=fitted.transform(PUBLIC), y_public=LABELS)
        assert np.array_equal(whole[-1].coef_, apart.coef_)
        assert np.array_equal(whole.predict(images), apart.predict(fitted.transform(images)))


def test_a_pipeline_that_fits_features_to_private_images_is_warned_of() -> None:
    images, y = stripes(90, 1)
    with (
        sklearn.config_context(enable_metadata_routing=True),
        pytest.warns(NotPrivateWarning, match="step 'features'"),
    ):
        pipeline(small()).fit(images, y, X_public=PUBLIC, y_public=LABELS)


def test_saved_features_are_the_same(fitted: PatchFeatures, tmp_path: Path) -> None:
    images = stripes(4, 1)[0]
    for place in (tmp_path / "mine.safetensors", tmp_path):
        fitted.save(place)
        again = PatchFeatures.load(place)
        assert np.array_equal(again.transform(images), fitted.transform(images))
        assert again.get_params() == fitted.get_params()
    assert (tmp_path / "features.safetensors").exists()


def test_a_file_that_is_none_of_ours_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else")
    for name in ("other", "missing"):
        with pytest.raises(InputError, match="no features"):
            PatchFeatures.load(tmp_path / name)


def test_without_torch_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nfrom sidelight.features import HashedEncoder, PatchFeatures"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDependency" in done.stderr and "pip install torch" in done.stderr
