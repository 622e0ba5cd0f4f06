"""Private text: one line is one record. What it becomes, and how many there are, is no other's doing."""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.data.whole_tables import private_frame

from sidelight.data import lines
from sidelight.data.table_files import read_table
from sidelight.errors import InputError

pytest.importorskip("pyarrow")
HEADER = b"a,b,c\n"
# What a record may look like: whatever a reader of CSV finds special, and anything else.
PIECES = st.sampled_from(
    [b'"', b'""', b",", b"\r", b"\0", b"\x0b", b"\x0c", b"\x85", "\u2028".encode(), b"\xef\xbb\xbf", b"\xff",
     b" ", b"x", b"1.5", b"NA", b'"q, q"', b";", b"\\", b"'"]
)  # fmt: skip
LINES = st.lists(st.lists(PIECES, max_size=9).map(b"".join), min_size=1, max_size=12)


def rows(text: bytes, folder: Path, name: str = "t.csv") -> list[list[Any]]:
    path = folder / name
    path.write_bytes(text)
    frame = private_frame(path)
    assert all(kind == np.dtype(object) for kind in frame.dtypes)
    return [list(row) for row in frame.itertuples(index=False)]


def by_the_rule(line: bytes) -> list[Any]:
    """One line, character by character: the rule as it is documented, and nothing else."""
    line = line.removesuffix(b"\r").replace(b"\r", b" ").replace(b"\xef\xbb\xbf", b"")
    fields, field, quoted, at = [], b"", False, 0
    start = True
    while at < len(line):
        here = line[at : at + 1]
        if quoted and here == b'"' and line[at + 1 : at + 2] == b'"':
            field, at = field + b'"', at + 1
        elif here == b'"' and (quoted or start):
            quoted = not quoted
        elif here == b"," and not quoted:
            fields.append(field)
            field, start, at = b"", True, at + 1
            continue
        else:
            field += here
        start, at = False, at + 1
    fields.append(field)
    if quoted or len(fields) != 3:
        return [None] * 3
    texts = [one.decode("utf-8", "replace").strip() for one in fields]
    return [None if one in ("", "NA") else one for one in texts]


@given(LINES)
@example([b'"open', b"1,2,3", b'x,"y', b'"a""b",2,3'])
@example([b"", b"\r", b" ", b"1,2,3\r"])
def test_a_line_is_a_record_and_becomes_what_it_becomes_alone(
    tmp_path_factory: Any, some: list[bytes]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    text = HEADER + b"".join(line + b"\n" for line in some)
    assert rows(text, folder) == [by_the_rule(line) for line in some]


@given(LINES, st.integers(1, 40))
def test_blocks_do_not_change_a_record(some: list[bytes], size: int) -> None:
    """Where a block ends depends on the length of other records."""
    stream = io.BytesIO(b"".join(line + b"\n" for line in some))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BLOCK", size)
        patch.setattr(lines, "_LONGEST", 12)
        blocks = list(lines.clean_blocks(stream, ",", 3))
        wanted = dict.fromkeys("abc", False)
        found = [lines.parse_block(block, ["a", "b", "c"], ",", wanted) for block, _ in blocks]
    texts = [
        [v.decode("utf-8", "replace").strip() for v in row.values()] for t in found for row in t.to_pylist()
    ]
    expected = [by_the_rule(b'"' if len(line) > 12 else line) for line in some]
    assert [[None if one in ("", "NA") else one for one in row] for row in texts] == expected


@pytest.mark.parametrize(
    "hostile", [b'"', b'x,"y', b"", b"\r", b"1\r2,3", b"1,2,3,4", b"\0", b"\xff\xfe", b'"\r']
)
@pytest.mark.parametrize("place", [0, 30, 59])
def test_no_line_changes_another_or_their_number(tmp_path: Path, hostile: bytes, place: int) -> None:
    """One stray quote made 5 records of 60; a blank line and a bare CR made 59 and 61."""
    records = [b"%d,k,v" % i for i in range(60)]
    records[place] = hostile
    for end in (b"\n", b"\r\n"):
        found = rows(HEADER + b"".join(line + end for line in records), tmp_path)
        assert len(found) == 60
        assert [row for i, row in enumerate(found) if i != place] == [
            [str(i), "k", "v"] for i in range(60) if i != place
        ]


def test_the_last_line_may_lack_its_end_and_files_may_be_compressed(tmp_path: Path) -> None:
    text = HEADER + b"1,2,3\n4,5,6"
    assert rows(text, tmp_path) == rows(text + b"\n", tmp_path) == [["1", "2", "3"], ["4", "5", "6"]]
    assert rows(gzip.compress(text), tmp_path, "t.csv.gz") == rows(text, tmp_path)
    assert rows(b"\xef\xbb\xbf\n\n" + text, tmp_path) == rows(text, tmp_path)
    assert rows(HEADER, tmp_path) == [] and rows(HEADER + b"\n\n", tmp_path) == [[None] * 3] * 2


def test_a_line_that_is_too_long_is_a_record_of_nothing(tmp_path: Path) -> None:
    long = b"9" * (lines._LONGEST + 1)
    found = rows(HEADER + b"1,2,3\n" + long + b",,\n" + 20 * long + b"\n4,5,6\n", tmp_path)
    assert found == [["1", "2", "3"], [None] * 3, [None] * 3, ["4", "5", "6"]]


def test_one_column(tmp_path: Path) -> None:
    assert rows(b'a\n1\n\n"\n"2"\n3,4\n', tmp_path) == [["1"], [None], [None], ["2"], [None]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a,b\r1,2\r3,4\r", "carriage return alone"),
        (b'a,"b\n1,2\n', "quote in the header line .* stays open"),
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        ("a,b\n1,2\n".encode("utf-16"), "not a table in UTF-8 text"),
        (b"a" * (1 << 20), "its first line is not a header"),
    ],
)
def test_a_bad_header_is_one_clear_error(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(InputError, match=message):
        private_frame(tmp_path / "t.csv")


def test_contract_catches_a_quote_that_spans_lines(tmp_path: Path) -> None:
    """The public reader lets it, as CSV does: this is what private records must not be able to do."""
    (tmp_path / "t.csv").write_bytes(HEADER + b'1,2,"3\n4,5,6\n7,8,9"\n')
    assert len(read_table(tmp_path / "t.csv")) == 1
    assert len(private_frame(tmp_path / "t.csv")) == 3
    assert np.array_equal(rows((tmp_path / "t.csv").read_bytes(), tmp_path)[1], ["4", "5", "6"])
