"""A record in a list is read alone: whatever it is, no other record becomes another one, and none is lost."""

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.contracts.hostile import NOTHING, pandas_values

from sidelight.data.inputs import private_array, private_table, private_targets
from sidelight.errors import InputError

pd = pytest.importorskip("pandas")


RECORDS: dict[str, Callable[[], Any]] = {
    **NOTHING,
    **pandas_values(),
    "too short": lambda: [0.5],
    "empty": lambda: [],
    "too long": lambda: [0.5] * 10_000,
    "a number": lambda: 0.25,
    "deeper": lambda: [[0.5, 0.25], [0.25, 0.5]],
    "much deeper": lambda: np.zeros((2,) * 20).tolist(),
    "of texts": lambda: ["a", "b"],
    "of nothing": lambda: [None, None],
}
USUAL: dict[str, Callable[[], Any]] = {
    "rows": lambda: [[0.5, "0.25"], (1, 2.0), np.ones(2), array.array("d", [5.0, 6.0]), range(7, 9)],
    "grids": lambda: [[[1.0, 2.0], [3, "4"]], np.eye(2), ([0.5, 1.5], (2.5, 3.5)), [range(2), np.ones(2)]],
}


@pytest.mark.parametrize("usual", USUAL)
@pytest.mark.parametrize("name", RECORDS)
def test_an_odd_record_of_a_list_is_null_alone(name: str, usual: str) -> None:
    """Beside rows, and beside records of two dimensions."""
    records = USUAL[usual]()
    alone = private_array(records)
    assert np.isfinite(alone).all()
    for place in (0, 2, len(records)):
        mixed = [*records[:place], RECORDS[name](), *records[place:]]
        objects = np.fromiter(mixed, dtype=object, count=len(mixed))
        for form in (mixed, tuple(mixed), objects):
            found = private_array(form)
            np.testing.assert_array_equal(np.delete(found, place, axis=0), alone)
            assert name in ("deeper", "rude list") or not np.isfinite(found[place]).all()


@pytest.mark.parametrize("name", RECORDS)
def test_an_odd_target_of_a_list_is_null_alone(name: str) -> None:
    """Beside values, and beside rows of one value, which NumPy would call a column."""
    odd = RECORDS[name]()
    for real in (True, False):
        plain = private_targets([1.0, 0.0, 1.0, odd], rows=4, real=real)
        assert plain[:3].tolist() == [1.0, 0.0, 1.0]
        with pytest.warns(UserWarning, match="column-vector"):
            found = private_targets([[1.0], (0.0,), np.array([1.0]), odd], rows=4, real=real)
        assert found[:3].tolist() == [1.0, 0.0, 1.0]


def test_rows_of_no_common_length_are_refused() -> None:
    for rows in ([[1.0], [1.0, 2.0], [1.0, 2.0, 3.0]], [[1.0, 2.0], None]):
        with pytest.raises(InputError, match="length"):
            private_table(rows)
    with pytest.raises(InputError, match="several values"):
        private_targets([[1.0], [1.0, 2.0], [1.0, 2.0, 3.0]], rows=3, real=True)


def test_scalars_of_other_libraries_are_values_and_their_vectors_rows() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for form in (list(values), [list(row) for row in values], [np.asarray(row) for row in values]):
        np.testing.assert_array_equal(private_table(form), values.numpy())


# ---------------------------------------------------------------------------------------------------
# frames: one odd cell makes a column of numbers one of objects, or of texts


def test_an_odd_record_of_a_frame_does_not_change_how_others_are_rounded() -> None:
    frame = pd.DataFrame(np.full((3, 2), 0.1, dtype=np.float32))
    odd = frame.astype(object)
    odd.loc[2] = "?"
    found = [private_array(one) for one in (frame, odd)]
    assert found[0].dtype == found[1].dtype == np.float64
    np.testing.assert_array_equal(found[0][:2], found[1][:2])


@pytest.mark.parametrize("kind", ["object", "str", "string", "string[pyarrow]"])
def test_numbers_that_were_read_as_texts_are_numbers(kind: str) -> None:
    """What a CSV file with one odd cell becomes."""
    frame = pd.DataFrame({"a": pd.Series(["1", "2.5", "about 3", "4"], dtype=kind)})
    np.testing.assert_array_equal(private_array(frame).ravel(), [1, 2.5, np.nan, 4])


def test_columns_of_categories_are_refused_by_name() -> None:
    frame = pd.DataFrame({"town": pd.Series(["Wien", "Graz", "1"], dtype="category"), "age": [1, 2, 3]})
    with pytest.raises(InputError, match="'town'") as caught:
        private_array(frame)
    assert "age" not in str(caught.value) and "Graz" not in str(caught.value)


@pytest.mark.parametrize("kind", ["object", "str"])
@pytest.mark.parametrize("texts", range(5))
def test_no_number_of_texts_in_a_column_is_an_error(kind: str, texts: int) -> None:
    """More than half of them was one, and whether there are more is up to one record."""
    values = ["Wien"] * texts + ["1"] * (4 - texts)
    found = private_array(pd.DataFrame({"town": pd.Series(values, dtype=kind)}))
    np.testing.assert_array_equal(found.ravel(), [np.nan] * texts + [1.0] * (4 - texts))
