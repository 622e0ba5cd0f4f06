"""Transforms move every image by itself, by chance, and lose nothing else."""

from typing import Any

import pytest
import torch

from sidelight.augment import Compose, crop, flip, shift
from sidelight.errors import InputError


def dots(rows: int = 200, size: int = 9) -> Any:
    """One bright pixel in the middle of each image; the channels differ."""
    images = torch.zeros(rows, 2, size, size)
    images[:, 0, size // 2, size // 2] = 1
    images[:, 1, size // 2, size // 2] = 2
    return images


def test_shifts_reach_every_place_within_their_bound_and_no_other() -> None:
    moved = shift(2)(dots(800))
    places = moved[:, 0].nonzero()[:, 1:] - 4
    assert len(places) == 800  # nothing was lost: the dot is further from the edge
    assert {tuple(p) for p in places.tolist()} == {(a, b) for a in range(-2, 3) for b in range(-2, 3)}
    assert torch.equal(moved[:, 1], 2 * moved[:, 0])  # channels move together


def test_what_comes_in_over_the_edge_is_as_asked() -> None:
    image = torch.arange(1.0, 17).reshape(1, 1, 4, 4)
    torch.manual_seed(0)
    zero, mirror, edge = (
        torch.cat([shift(2, fill=fill)(image) for _ in range(60)]) for fill in ("zeros", "reflect", "edge")
    )
    assert (zero == 0).any() and not (mirror == 0).any() and not (edge == 0).any()
    assert {tuple(x.flatten().tolist()) for x in edge} >= {
        (1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 5.0, 5.0, 5.0, 6.0)
    }


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    images = torch.rand(30, 3, 8, 8)
    for made, image in zip(crop(2, size=6)(images), images, strict=True):
        padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
        windows = [padded[:, i : i + 6, j : j + 6] for i in range(7) for j in range(7)]
        assert any(torch.equal(made, window) for window in windows)


def test_flips_are_mirror_images_for_about_the_asked_share() -> None:
    images = torch.rand(400, 1, 4, 4)
    made = flip(0.25)(images)
    same, turned = ((made == other).all(3).all(2)[:, 0] for other in (images, images.flip(3)))
    assert bool((same ^ turned).all()) and 60 < int(turned.sum()) < 140
    assert torch.equal(flip(1.0, vertical=True)(images), images.flip(2))


@pytest.mark.parametrize(
    "change", [shift(2), flip(), crop(1, size=5), Compose(crop(2, fill="reflect"), flip())]
)
def test_a_row_depends_on_itself_and_chance_alone(change: Any) -> None:
    images = torch.rand(20, 3, 8, 8)
    other = images.clone()
    other[1:] = torch.rand(19, 3, 8, 8)
    torch.manual_seed(1)
    one = change(images)[0]
    torch.manual_seed(1)
    assert torch.equal(one, change(other)[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_types_are_kept_and_an_empty_batch_stays_empty(dtype: Any) -> None:
    change = Compose(crop(4, fill="reflect"), flip())
    made = change(torch.ones(3, 1, 8, 8, dtype=dtype))
    assert made.dtype == dtype and bool((made == 1).all())
    assert change(torch.ones(0, 1, 8, 8, dtype=dtype)).shape == (0, 1, 8, 8)


def test_rows_get_different_random_numbers() -> None:
    images = torch.rand(1, 1, 16, 16).expand(50, -1, -1, -1)
    assert len({tuple(x.flatten().tolist()) for x in shift(3)(images)}) > 20


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: shift(-1), "at least 0"),
        (lambda: crop(1.5), "whole number"),
        (lambda: crop(2, fill="gray"), "fill must be one of"),
        (lambda: flip(2.0), "chance must be"),
        (lambda: shift(2)(torch.zeros(4, 4)), "rows, channels"),
        (lambda: crop(0, size=9)(torch.zeros(1, 1, 4, 4)), "does not fit"),
        (lambda: crop(4, fill="reflect")(torch.zeros(1, 1, 4, 4)), "to reflect"),
    ],
)
def test_bad_input_is_told_in_a_sentence(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
