"""Private tables in blocks: the fast way gives what each value gives alone, whatever stands beside it."""

import datetime as dt
import gzip
import io
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.data.whole_tables import private_frame
from tests.tables.small import pd

import sidelight.data.lines as lines
from sidelight.data.features import FeaturePlan, encode_target
from sidelight.data.moments import FORMATS, as_moment, moment_of
from sidelight.data.private_tables import open_private
from sidelight.data.schema import Column, Schema, TargetColumn
from sidelight.data.values import as_indices, as_number, as_truth, number_of, text_of, truth_of
from sidelight.errors import InputError
from sidelight.tables import fit_tables

SCHEMA = Schema(
    TargetColumn("y", "classification", ("no", "yes")),
    {
        "n": Column("number", (0.0, 10.0), (5.0,)),
        "b": Column("boolean"),
        "c": Column("category", categories=("a", "1", "�")),
        "z": Column("code", categories=("00", "01"), digits=3, prefix=2),
        "d": Column("date", (0.0, 1e9), parts=("position", "year", "month", "weekday", "hour")),
        "skip": Column("ignore"),
    },
)
HEADER = b"n,b,c,z,d,skip,y\n"
USUAL = b"2.5,true,a,007,1999-12-31 10:00:00,x,yes"

VALUES = st.sampled_from(
    [b"1", b"2.5", b"-3e1", b"+4", b" 5 ", b"1e999", b"nan", b"nan(7)", b"inf", b"0x1", b"1_0", b"\xd9\xa3",
     b"yes", b"TRUE", b"off", b"a", b"1.0", b"007", b"7", b"", b"?", b"NA", b" NA ", b"null", b"\xff", b"\0",
     b"1999-12-31", b"1999-12-31T10:00:00", b"1999-12-31 25:00:00", b"1999-02-30", b"1999-12-3 T10:00:00",
     b" 1999-1-31 10:00:00", b"1999-12-31 10:00:00Z", b"no", b'"q"', b'"a ""b"', b'"', b'1"', b"\r",
     b"\xef\xbb\xbf1"]
)  # fmt: skip
LINES = st.lists(
    st.just(USUAL)
    | st.lists(VALUES, min_size=7, max_size=7).map(b",".join)
    | st.lists(VALUES, max_size=9).map(b",".join)
    | st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")),
    min_size=1,
    max_size=9,
)  # fmt: skip


def encoded(path: Path) -> tuple[np.ndarray, list[Any]]:
    X, y, _ = FeaturePlan(SCHEMA).encode_private(open_private(path))
    return X, y.tolist()


@given(LINES)
@example([USUAL, b"x" + USUAL, USUAL])
def test_a_record_becomes_what_it_becomes_alone_and_as_text(tmp_path_factory: Any, some: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "t.csv"
    path.write_bytes(HEADER + b"".join(line + b"\n" for line in some))
    X, y = encoded(path)
    frame = private_frame(path)
    assert len(open_private(path)) == len(X) == len(some)
    np.testing.assert_array_equal(X, FeaturePlan(SCHEMA).encode(frame))
    assert y == encode_target(SCHEMA, frame["y"]).tolist()
    for i, line in enumerate(some):
        path.write_bytes(HEADER + line + b"\n")
        alone, target = encoded(path)
        np.testing.assert_array_equal(alone, X[i : i + 1])
        assert target == y[i : i + 1]


def test_contract_catches_a_block_that_one_value_spoils(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that gives up on a column because of one value would make others missing."""
    import pyarrow as pa

    path, parsed = tmp_path / "t.csv", lines._parsed

    def gives_up(block: bytes, names: list[str], delimiter: str, types: dict[str, Any]) -> Any:
        try:
            return parsed(block, names, delimiter, types)
        except pa.ArrowInvalid:
            table = parsed(block, names, delimiter, dict.fromkeys(types, pa.large_binary()))
            return table.set_column(0, "n", pa.nulls(len(table), pa.float64()))

    def first_of(*some: bytes) -> list[float]:
        path.write_bytes(HEADER + b"".join(line + b"\n" for line in some))
        return encoded(path)[0][0].tolist()

    assert first_of(USUAL) == first_of(USUAL, b"x" + USUAL)
    monkeypatch.setattr(lines, "_parsed", gives_up)
    assert first_of(USUAL) != first_of(USUAL, b"x" + USUAL)


@given(LINES, st.integers(1, 200))
def test_blocks_do_not_change_a_record(tmp_path_factory: Any, some: list[bytes], size: int) -> None:
    path = tmp_path_factory.getbasetemp() / "t.csv"
    path.write_bytes(HEADER + b"\n".join([*some, USUAL]))
    whole, targets = encoded(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BLOCK", size)
        X, y = encoded(path)
    np.testing.assert_array_equal(X, whole)
    assert y == targets


@given(LINES, st.booleans())
def test_lines_are_counted_as_they_are_read(some: list[bytes], ended: bool) -> None:
    text = b"\n".join(some) + (b"\n" if ended else b"")
    read = sum(count for _, count in lines.clean_blocks(io.BytesIO(text), ",", 7))
    assert lines.count_lines(io.BytesIO(text)) == read


@given(LINES)
def test_blocks_without_quotes_are_checked_as_any_other(some: list[bytes]) -> None:
    text = b"".join(line.replace(b'"', b"") + b"\n" for line in some)
    fast = list(lines.clean_blocks(io.BytesIO(text), ",", 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_plain_lines", lambda *_: None)
        assert list(lines.clean_blocks(io.BytesIO(text), ",", 7)) == fast


TEXTS = st.lists(
    st.none() | VALUES | st.binary(max_size=8) | st.from_regex(rb"[-+]?[0-9.eE]{1,9}", fullmatch=True)
)


@given(TEXTS)
def test_texts_of_arrow_are_read_as_each_alone(some: list[bytes | None]) -> None:
    import pyarrow as pa

    values = [None if one is None else one.decode("utf-8", "replace") for one in some]
    plain = pa.array(some, pa.binary())
    for column in (plain, plain.dictionary_encode(), pa.chunked_array([plain.slice(0, 1), plain.slice(1)])):
        same = np.testing.assert_array_equal
        same(as_number(column), [number_of(one) for one in values])
        same(as_truth(column), [truth_of(one) for one in values])
        same(as_indices(column, _length), [_length(text_of(one)) for one in values])
        for how in FORMATS:
            same(as_moment(column, how), [moment_of(one, how) for one in values])


def _length(text: str | None) -> int:
    return -1 if text is None else len(text)


@given(st.lists(st.none() | st.floats(width=32)), st.sampled_from(["float32", "float64"]))
def test_floats_of_arrow_have_the_text_that_their_digits_have(some: list[float | None], kind: str) -> None:
    import pyarrow as pa

    column = pa.array(some, getattr(pa, kind)())
    short = np.dtype(kind).type  # a whole number has all of its digits
    texts = [None if one is None else str(one if one.is_integer() else short(one)) for one in some]
    seen: list[str | None] = []
    as_indices(column, lambda text: seen.append(text) or 0)
    assert set(seen) == {text_of(text) for text in texts} | {None}
    wide = [math.nan if one is None else float(one) for one in some]
    np.testing.assert_array_equal(as_number(column), wide)


def test_typed_columns_of_arrow_agree_with_values_of_python() -> None:
    import pyarrow as pa

    moment = dt.datetime(2020, 12, 31, 10, 30, 15)
    for column in (
        pa.array([moment, None]), pa.array([moment, None], pa.timestamp("ns")), pa.array([b"12", None]),
        pa.array([moment.date(), None]), pa.array([b"12", None], pa.binary(2)),
        pa.array([1.5, None], pa.float16()),
        pa.array(["12", None], pa.string_view()), pa.array([b"12", None], pa.binary_view()),
        pa.array([moment.date(), None], pa.date64()), pa.array([moment, None], pa.timestamp("s", "UTC")),
        pa.array([moment.time(), None]), pa.array([Decimal("1.50"), None]), pa.array([True, None]),
        pa.array([[1], None]), pa.array([2**63 + 1, None], pa.uint64()), pa.nulls(2),
        pa.array([{"a": 1}, None]), pa.array([dt.timedelta(1), None]),
    ):  # fmt: skip
        values = [one.decode() if isinstance(one, bytes) else one for one in column.to_pylist()]
        same = np.testing.assert_array_equal
        same(as_number(column), [number_of(one) for one in values])
        same(as_truth(column), [truth_of(one) for one in values])
        same(as_indices(column, _length), [_length(text_of(one)) for one in values])
        for how in FORMATS:
            same(as_moment(column, how), [moment_of(one, how) for one in values])


def test_a_date_beyond_the_calendar_and_text_that_is_none_are_values_like_any_other(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    broken = pa.array([b"\xff", b"a"], pa.binary()).view(pa.string())
    far = pa.array([2**53, 0], pa.timestamp("ms"))
    table = pa.table({"n": broken, "b": broken, "c": broken, "z": broken, "d": far, "y": broken})
    parquet.write_table(table, tmp_path / "t.parquet")
    X, y = encoded(tmp_path / "t.parquet")
    names = FeaturePlan(SCHEMA).names
    assert X[:, names.index("d: missing")].tolist() == [1, 0]
    assert X[:, names.index("c: = �")].tolist() == [1, 0] and y == [None, None]


def test_files_of_many_blocks_and_compressed_ones_are_read_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"n": rng.normal(5, 3, 9000).round(3), "b": "no", "c": rng.choice(["a", "b"], 9000), "z": "012",
         "d": "1999-12-31", "skip": "x" * 400, "y": rng.choice(["yes", "no"], 9000)}
    )  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes(), 1))
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=1000)
    expected = FeaturePlan(SCHEMA).encode(frame)
    for name in ("t.csv", "t.csv.gz", "t.parquet"):
        X, y = encoded(tmp_path / name)
        np.testing.assert_array_equal(X, expected)
        assert y == frame.y.tolist()


def test_a_file_that_changes_while_it_is_read_stops_the_fit(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(HEADER + USUAL + b"\n")
    table = open_private(path)
    for text in (HEADER, HEADER + 2 * (USUAL + b"\n")):
        path.write_bytes(text)
        with pytest.raises(InputError, match="changed"):
            FeaturePlan(SCHEMA).encode_private(table)


@pytest.mark.parametrize(("name", "word"), [("t.parquet", "not a Parquet file"), ("t.csv.gz", "damaged")])
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, word: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1 secret")
    with pytest.raises(InputError, match=word) as caught:
        fit_tables(tmp_path / name, schema=SCHEMA, epsilon=1)
    assert "secret" not in str(caught.value)
    (tmp_path / "folder.csv").mkdir()
    for source, message in (
        (tmp_path / "folder.csv", "is a folder"),
        (tmp_path / "no.csv", "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            fit_tables(source, schema=SCHEMA, epsilon=1)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_ledger_knows_a_file_by_what_it_knew_it_by(tmp_path: Path, kind: str) -> None:
    """Facts and fingerprints are those of the whole table, which is read only if somebody asks."""
    from sidelight.privacy.identity import Identity

    frame = pd.DataFrame({" n ": [1.5, None], "t": ["x", "y"], "d": pd.to_datetime(["2020-01-01", None])})
    path = tmp_path / f"t.{kind}"
    frame.to_parquet(path, row_group_size=1) if kind == "parquet" else frame.to_csv(path, index=False)
    whole, known = Identity.of(private_frame(path, decode=False)), open_private(path).identity()
    assert known.records == 2 and known.digest == whole.digest
    assert known.columns == {"n": "number" if kind == "parquet" else None, "t": None, "d": None}
