"""Noise is added in floating point: a sum of another type is converted safely, or refused by its type."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.private_values import value_of

from sidelight.errors import InputError, PrivacyConditionError
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum, release, release_on_grid, select

AR = "add-or-remove-one"


class Nothing:
    def charge(self, event: Any) -> None: ...


def released(value: Any, *, std: float = 100.0, noise: Noise | None = None) -> Any:
    total = BoundedSum(value, sensitivity=1.0, relation=AR)
    return release(
        total, std=std, event=events.gaussian(std), account=Nothing(), noise=noise or Noise()
    ).numpy()


def whole_numbers() -> list[Any]:
    found: list[Any] = [
        np.zeros(3, dtype=kind)
        for kind in ("bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
    ]
    found += [np.int64(0), 0, False, np.matrix([[0, 0]])]
    try:
        import torch
    except ImportError:
        return found
    kinds = (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
        torch.uint32, torch.uint64,
    )  # fmt: skip
    return found + [torch.zeros(3, dtype=kind) for kind in kinds]


@pytest.mark.parametrize(
    "value", whole_numbers(), ids=lambda v: f"{type(v).__name__}-{getattr(v, 'dtype', '')}"
)
def test_noise_on_whole_numbers_is_not_rounded(value: Any) -> None:
    out = released(value)
    assert str(out.dtype).endswith("float64")
    assert not np.isin(np.asarray(out), np.rint(np.asarray(out))).any()


def test_a_count_is_as_private_as_its_event_says() -> None:
    """Truncated to integers, outputs of exactly 0 would tell 0 from 1 with δ = 4e-3 at ε = 0.1."""
    event, draws = events.gaussian(100.0), 20_000
    outputs = [released(np.full(draws, count), noise=Noise(count)) for count in (0, 1)]
    for count, out in enumerate(outputs):
        assert stats.kstest((out - count) / 100.0, "norm").pvalue > 1e-4
    zeros = [float((out == 0).mean()) for out in outputs]
    claimed = accountants.delta(event, epsilon=0.1, relation=AR)
    assert zeros[0] - math.exp(0.1) * zeros[1] <= claimed + 1e-9


def test_large_whole_numbers_stay_within_their_sensitivity() -> None:
    """float64 rounds whole numbers above 2⁵³: a step of 1 could become one of 1024."""
    for kind in (np.int64, np.uint64):
        top = np.iinfo(kind).max
        pair = [
            BoundedSum(np.array([v], dtype=kind), sensitivity=1.0, relation=AR)
            for v in (top - 512, top - 511)
        ]
        moved = abs(value_of(pair[0]) - value_of(pair[1]))
        assert moved <= 1.0
    small = BoundedSum(np.array([-(2**53) - 1, 7], dtype=np.int64), sensitivity=1.0, relation=AR)
    assert value_of(small).tolist() == [-(2.0**53), 7.0]
    assert value_of(BoundedSum(10**400, sensitivity=1.0, relation=AR)) == 2.0**53


REFUSED = {
    "complex": np.zeros(2, dtype=complex),
    "long double": np.zeros(2, dtype=np.longdouble),
    "objects": np.array([1, 2.5], dtype=object),
    "text": np.array(["1"]),
    "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "masked": np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    "a list": [1.0, 2.0],
    "a text": "1",
    "None": None,
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_other_types_are_refused_whatever_they_contain(value: Any) -> None:
    with pytest.raises(InputError, match="float64"):
        BoundedSum(value, sensitivity=1.0, relation=AR)


def test_tensors_keep_their_float_type_and_nothing_else() -> None:
    torch = pytest.importorskip("torch")
    for kind, expected in (
        (torch.float64, torch.float64), (torch.float32, torch.float32), (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
    ):  # fmt: skip
        out = released(torch.ones(4, dtype=kind, requires_grad=True))
        assert out.dtype == expected and not out.requires_grad
    for value in (torch.zeros(2, dtype=torch.complex64), torch.zeros(2).to_sparse(), *strange_tensors()):
        with pytest.raises(InputError, match="tensor"):
            BoundedSum(value, sensitivity=1.0, relation=AR)


def strange_tensors() -> list[Any]:
    import torch

    kinds = [one for one in vars(torch).values() if isinstance(one, torch.dtype)]
    usual = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool}
    whole = {torch.int8, torch.int16, torch.int32, torch.int64}
    whole |= {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
    found = [
        torch.empty(2, dtype=kind) for kind in sorted(set(kinds) - usual - whole, key=str) if _made(kind)
    ]
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    return [*found, torch.empty(2, device="meta"), nested]


def _made(kind: Any) -> bool:
    import torch

    try:
        torch.empty(2, dtype=kind)
    except Exception:  # a type that this PyTorch only names
        return False
    return True


def test_large_whole_tensors_stay_within_their_sensitivity() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.int64, torch.uint64):
        top = torch.iinfo(kind).max
        values = np.array([0, 7, 2**53 - 1, 2**53 + 1, top - 512, top - 511], dtype=str(kind)[6:])
        held = value_of(BoundedSum(torch.from_numpy(values), sensitivity=1.0, relation=AR))
        assert held.tolist() == [0, 7, 2.0**53 - 1, 2.0**53, 2.0**53, 2.0**53]
    below = torch.tensor([-(2**53) - 1, -(2**63)])
    assert value_of(BoundedSum(below, sensitivity=1.0, relation=AR)).tolist() == [-(2.0**53)] * 2


def test_half_precision_is_widened_before_the_noise() -> None:
    assert released(np.zeros(3, dtype=np.float16)).dtype == np.float32


def test_a_sum_that_is_not_finite_is_not_shown() -> None:
    for bad in (np.array([np.nan, np.inf, -np.inf, 1.0]), np.array([np.nan, 1.0], dtype=np.float32)):
        assert np.isfinite(released(bad)).all()
    scores = BoundedSum(np.array([0.0, np.nan, 0.0]), sensitivity=1.0, relation=AR)
    event = events.ZeroConcentrated(0.5)
    found = {select(scores, scale=2.0, event=event, account=Nothing(), noise=Noise()) for _ in range(60)}
    assert found == {0, 1, 2}


def test_whole_numbers_pass_the_other_doors_too() -> None:
    counts = BoundedSum(np.array([3, 5, 4]), sensitivity=1.0, relation=AR)
    event = events.ZeroConcentrated(4e6)
    assert select(counts, scale=1e-3, event=event, account=Nothing(), noise=Noise(0)) == 1
    out = release_on_grid(counts, rho=50.0, account=Nothing(), noise=Noise(0)).numpy()
    np.testing.assert_allclose(out, [3, 5, 4], atol=1.0)


@pytest.mark.parametrize("std", [1e-46, 1e38, 1e300])
def test_noise_that_its_type_cannot_hold_is_refused(std: float) -> None:
    total = BoundedSum(np.zeros(2, dtype=np.float32), sensitivity=0.0, relation=AR)
    with pytest.raises(PrivacyConditionError, match="float32"):
        release(total, std=std, event=events.gaussian(1.0), account=Nothing(), noise=Noise())


@pytest.mark.parametrize("kind", [np.int64, np.float16, bool])
def test_noise_is_not_drawn_in_other_types(kind: Any) -> None:
    with pytest.raises(InputError, match="float64"):
        Noise().normal(3, dtype=kind)
