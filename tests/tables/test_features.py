"""The encoding: every record by itself, bounded, and no value is an error."""

from typing import Any

import numpy as np
import pytest
from tests.tables.small import pd, private_frame, public_frame

from sidelight.data.coordinates import bound_rows
from sidelight.data.features import FeaturePlan, encode_target
from sidelight.data.schema import Column, Schema, TargetColumn

SCHEMA = Schema(
    TargetColumn("y", "classification", ("no", "yes")),
    {
        "n": Column("number", (0.0, 10.0)),
        "k": Column("number", (0.0, 10.0), (5.0,)),
        "c": Column("category", categories=("a", "b")),
        "skip": Column("ignore"),
    },
)


def encode(**record: Any) -> dict[str, float]:
    features = FeaturePlan(SCHEMA)
    frame = pd.DataFrame({name: [record.get(name)] for name in ("c", "k", "n")})
    return dict(zip(features.names, features.encode(frame)[0].tolist(), strict=True))


def test_a_record() -> None:
    row = encode(n=7.5, k=7.5, c="b")
    assert row == {
        "n: 0 to 10": 0.75, "n: missing": 0, "k: 0 to 5": 1, "k: 5 to 10": 0.5, "k: missing": 0,
        "c: = a": 0, "c: = b": 1, "c: other": 0, "c: missing": 0,
    }  # fmt: skip


def test_outside_the_bounds_is_clipped() -> None:
    assert encode(n=1e300)["n: 0 to 10"] == encode(n=np.inf)["n: 0 to 10"] == 1
    assert encode(n="-1e999")["n: 0 to 10"] == 0


def test_an_unseen_category_is_other_and_a_gap_is_missing() -> None:
    assert encode(c="zebra")["c: other"] == 1
    row = encode(n="no number", c="?")
    assert row["c: missing"] == 1 and row["n: missing"] == 1 and row["n: 0 to 10"] == 0.5


def test_huge_and_empty_bounds() -> None:
    columns = {"h": Column("number", (-1e300, 1e300)), "e": Column("number", (3.0, 3.0))}
    X = FeaturePlan(Schema(SCHEMA.target, columns)).encode(pd.DataFrame({"h": [0, 1e308], "e": [3, 9]}))
    np.testing.assert_allclose(X, [[0.5, 0, 0.5, 0], [1, 0, 0.5, 0]])


def test_a_number_weighs_at_most_as_much_as_a_category() -> None:
    """However many knots it has: the row is scaled as a whole, and one column must not drown the others."""
    for knots in ((), (5.0,), tuple(float(i) for i in range(1, 10))):
        features = FeaturePlan(Schema(SCHEMA.target, {"x": Column("number", (0.0, 10.0), knots)}))
        X, bounds = features.encode(pd.DataFrame({"x": [-1, 0, 4, 10, None]})), features.bounds()
        lengths = np.linalg.norm((X - bounds.center) * bounds.inverse_reach(bounds.center), axis=1)
        np.testing.assert_allclose(lengths[[0, 1, 3, 4]], 1, atol=1e-6)
        assert lengths[2] <= 1 + 1e-6


def test_every_value_is_within_its_bounds() -> None:
    schema = Schema.learn(public_frame(), "sick")
    features = FeaturePlan(schema)
    X, bounds = features.encode(private_frame()), features.bounds()
    assert (bounds.lower <= X).all() and (bounds.upper >= X).all()
    assert (np.linalg.norm(bound_rows(X, bounds), axis=1) <= 1).all()


ODD = [
    {"age": 10**400, "job": "x", "pay": None},
    {"age": "many", "job": 7, "pay": np.inf},
    {"age": [1, 2], "job": {"a": 1}, "pay": "1,5"},
    {"age": -np.inf, "job": b"\xff", "pay": "\x00"},
    {"age": pd.Timestamp("2020-01-01"), "job": np.nan, "pay": pd.NA},
]


@pytest.mark.parametrize("odd", ODD, ids=[str(i) for i in range(len(ODD))])
def test_a_record_changes_its_own_row_alone(odd: dict[str, Any]) -> None:
    """The neighbor contract of the encoding: without it one record could move the gradients of others."""
    schema = Schema.learn(public_frame(), "sick")
    frame = private_frame()
    other = frame.copy()
    for name, value in odd.items():
        other.at[17, name] = value
    other.at[17, "sick"] = [3]
    here, there = FeaturePlan(schema).encode(frame), FeaturePlan(schema).encode(other)
    rest = np.arange(len(frame)) != 17
    np.testing.assert_array_equal(here[rest], there[rest])
    assert np.isfinite(there).all()
    y, z = (encode_target(schema, one["sick"]) for one in (frame, other))
    assert y[rest].tolist() == z[rest].tolist() and z[17] is None


def test_targets() -> None:
    assert encode_target(SCHEMA, pd.Series(["yes", "NO", None, 3])).tolist() == ["yes", None, None, None]
    numbers = Schema(TargetColumn("y", "classification", (0, 1)), SCHEMA.columns)
    found = encode_target(numbers, pd.Series(["1", "0.0", "2", "x", None]))
    np.testing.assert_array_equal(found, [1, 0, np.nan, np.nan, np.nan])
    real = Schema(TargetColumn("y", "regression", bounds=(0.0, 1.0)), SCHEMA.columns)
    np.testing.assert_array_equal(encode_target(real, pd.Series(["0.5", "x"])), [0.5, np.nan])
