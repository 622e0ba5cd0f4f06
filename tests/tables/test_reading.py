"""Files into frames: what is found, what is refused, and that private contents decide nothing."""

import gzip
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from tests.data.whole_tables import private_frame
from tests.tables.small import pd

from sidelight.data.table_files import read_table, write_csv
from sidelight.data.values import as_number, as_text
from sidelight.errors import InputError


def table(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_the_delimiter_is_found_in_the_header(tmp_path: Path, delimiter: str) -> None:
    frame = read_table(
        table(tmp_path, delimiter.join("abc") + "\n" + delimiter.join(["1", "x y", "2.5"]) + "\n")
    )
    assert list(frame.columns) == ["a", "b", "c"]
    assert frame.iloc[0].tolist() == [1, "x y", 2.5]


def test_quotes_blanks_byte_order_mark_and_gzip(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbf\n"first, name" , b\n "x",1\n"a ""b"", c" ,2\n"two\nlines",3\n'
    for name, content in {"t.csv": text, "t.csv.gz": gzip.compress(text)}.items():
        frame = read_table(table(tmp_path, content, name))
        assert list(frame.columns) == ["first, name", "b"]
        assert frame["b"].tolist() == [1, 2, 3]
        assert frame.iloc[2, 0] == "two\nlines"


def test_public_columns_are_numbers_if_all_values_are(tmp_path: Path) -> None:
    frame = read_table(table(tmp_path, "n,gaps,text,code,empty\n1,2,a,007,\n-3e2,?,NA,113,NaN\n"))
    assert frame["n"].tolist() == [1.0, -300.0]
    assert np.isnan(frame["gaps"][1]) and frame["gaps"].dtype == np.float64
    assert frame["text"].tolist() == ["a", None]
    assert frame["code"].tolist() == ["007", "113"]
    assert frame["empty"].tolist() == [None, None]


def test_private_text_stays_text_whatever_it_holds(tmp_path: Path) -> None:
    """Types must not depend on values: one record would decide over all others."""
    clean = private_frame(table(tmp_path, "a,b\n1,2\n3,4\n"))
    dirty = private_frame(table(tmp_path, "a,b\n1,2\n3,x\n"))
    assert list(clean.dtypes) == list(dirty.dtypes) == [object, object]


def test_a_broken_private_row_is_a_row_of_nothing(tmp_path: Path) -> None:
    frame = private_frame(table(tmp_path, b"a,b\n1,2\n3\n4,5,6\n\xff\xfe,7\n"))
    assert len(frame) == 4
    assert frame.iloc[0].tolist() == ["1", "2"]
    assert frame.iloc[3]["b"] == "7"
    assert frame.iloc[1:3].isna().all().all()


def test_a_broken_public_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 3 .*3 fields"):
        read_table(table(tmp_path, "a,b\n1,2\n4,5,6\n"))


def test_parquet_and_csv_agree(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2], "x": [0.5, None], "t": ["a", None], "flag": [True, False]})
    frame.to_parquet(tmp_path / "t.parquet")
    write_csv(frame, tmp_path / "t.csv")
    for read in (read_table, private_frame):
        one, other = (read(tmp_path / name) for name in ("t.parquet", "t.csv"))
        for name in frame.columns:
            assert as_text(one[name]).tolist() == as_text(other[name]).tolist()
        np.testing.assert_array_equal(as_number(one["x"]), as_number(other["x"]))


def test_numbers_and_texts_of_anything() -> None:
    odd = [
        1,
        2.0,
        "3",
        " 4.50 ",
        "x",
        None,
        np.nan,
        pd.NA,
        True,
        Decimal("1.5"),
        [1],
        10**400,
        "1_0",
        "?",
        b"7",
    ]
    numbers = as_number(pd.Series(odd, dtype=object))
    np.testing.assert_array_equal(numbers[:5], [1, 2, 3, 4.5, np.nan])
    assert np.isnan(numbers[[5, 6, 7, 10, 11, 12, 13]]).all()
    assert numbers[8] == 1 and numbers[9] == 1.5
    texts = as_text(pd.Series(odd, dtype=object))
    assert texts[:6].tolist() == ["1", "2", "3", "4.5", "x", None]
    assert [one is None for one in texts[[6, 7, 13]]] == [True] * 3


def test_gaps_do_not_change_the_text_of_whole_numbers() -> None:
    """pandas turns whole numbers into floats when another record has a gap."""
    full, gap = pd.Series([2**53 + 1, 7, 1]), pd.Series([2**53 + 1, 7, None])
    assert as_text(full)[:2].tolist() == as_text(gap)[:2].tolist()


def test_written_predictions_replace_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.csv"
    write_csv(pd.DataFrame({"a": ["x,y", "z"]}), path)
    assert path.read_text() == 'a\n"x,y"\nz\n'

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sidelight.files.os.fsync", full)
    with pytest.raises(InputError, match="No space"):
        write_csv(pd.DataFrame({"b": [1]}), path)
    assert [one.name for one in tmp_path.iterdir()] == ["p.csv"]
    assert path.read_text().startswith("a\n")
