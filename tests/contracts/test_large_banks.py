"""Open: an augmentation with a large memory carries one private record to the next."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from sidelight.deep.private_records import PrivateAugment  # noqa: E402


class Bank:
    """Blends an image with an earlier one: of `size` images of 3 × 32 × 32."""

    def __init__(self, size: int) -> None:
        self.bank = torch.zeros(size, 3, 32, 32)

    def __call__(self, x: Tensor) -> Tensor:
        blended = x + self.bank[:1]
        self.bank[:] = x
        return blended


@pytest.mark.parametrize(
    "size",
    [
        100,
        pytest.param(  # statements list it as an assumption: more than 2²² numbers are taken for data
            1500, marks=pytest.mark.xfail(strict=True, reason="a large tensor is not put back")
        ),
    ],
)
def test_a_bank_of_earlier_images_carries_no_record_to_another(size: int) -> None:
    augment, x, y = PrivateAugment(Bank(size)), torch.zeros(3, 3, 32, 32), torch.zeros(3)
    augment.check()
    other = x.clone()
    other[0] = 7
    one, two = (augment((rows, y), 5)[0][0] for rows in (x, other))
    assert torch.equal(one[1:], two[1:])
