"""Folders, patterns and Hive's partitions as one table; frames of Spark."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

from sidelight.data.persons import persons_of  # noqa: E402
from sidelight.data.private_tables import open_private, read_public, table_exists  # noqa: E402
from sidelight.errors import InputError  # noqa: E402
from sidelight.estimators.fit_records import persons_in  # noqa: E402
from sidelight.tables import fit_tables  # noqa: E402


def frame(n: int = 60, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=n)
    return pd.DataFrame({"x": X, "t": ["a", None, "c"] * (n // 3), "y": np.where(X > 0, "yes", "no")})


def lake(folder: Path, kind: str = "parquet", hive: bool = False) -> Path:
    root = folder / "lake"
    for part in range(3):
        place = root / f"year={2020 + part}" / "half=first%2Fhalf" if hive else root
        place.mkdir(parents=True, exist_ok=True)
        some = frame().iloc[part * 20 : (part + 1) * 20]
        some.to_parquet(place / f"p{part}.parquet") if kind == "parquet" else some.to_csv(
            place / f"p{part}.csv", index=False
        )
    (root / "_SUCCESS").touch()
    (root / ".p0.crc").write_bytes(b"x")
    return root


def column(source: Any, name: str) -> list[Any]:
    table = open_private(source)
    found = [pd.Series(np.asarray(block[name])).tolist() for _, block in table.blocks({name: False})]
    return [value.decode() if isinstance(value, bytes) else value for part in found for value in part]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_folder_and_a_pattern_are_one_table(tmp_path: Path, kind: str) -> None:
    root = lake(tmp_path, kind)
    for source in (
        root,
        str(root),
        root / f"*.{kind}",
        str(tmp_path / "*" / f"p*.{kind}"),
        tmp_path / "lak*",
    ):
        table = open_private(source)
        assert len(table) == 60 and table.names == ["x", "t", "y"] and table_exists(source)
        assert column(source, "y") == frame()["y"].tolist()
    assert len(read_public(root)) == 60
    assert not table_exists(tmp_path / "*.parquet")


def test_names_of_folders_are_columns(tmp_path: Path) -> None:
    root = lake(tmp_path, hive=True)
    table = open_private(root)
    assert table.names == ["x", "t", "y", "year", "half"]
    assert column(root, "year") == ["2020"] * 20 + ["2021"] * 20 + ["2022"] * 20
    assert set(column(root, "half")) == {"first/half"}
    assert column(root / "year=2021", "half") == ["first/half"] * 20  # the folder that is named gives none
    assert read_public(root)["year"].tolist() == column(root, "year")
    missing = root / "year=__HIVE_DEFAULT_PARTITION__" / "half=b"
    missing.mkdir(parents=True)
    frame(3).to_parquet(missing / "p.parquet")
    assert [value is None for value in column(root, "year")] == [False] * 60 + [True] * 3


def test_a_fit_reads_them(tmp_path: Path) -> None:
    root = lake(tmp_path, hive=True)
    public = frame(90, 1).assign(year=["2020", "2021", "2022"] * 30, half="first/half")
    model = fit_tables(root, public, target="y", epsilon=1, ignore=["half"])
    assert model.data["private_records"] == 60 and "year" in model.data["columns"]


def test_a_ledger_knows_many_files_as_one(tmp_path: Path) -> None:
    frame().to_parquet(tmp_path / "one.parquet")
    many, one = (open_private(source).identity() for source in (lake(tmp_path), tmp_path / "one.parquet"))
    assert many.digest == one.digest and many.records == one.records and many.columns == one.columns
    other = frame()
    other.loc[59, "x"] += 1e-9
    other.to_parquet(tmp_path / "one.parquet")
    assert open_private(tmp_path / "one.parquet").identity().digest != many.digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: (root / "notes.md").write_text("x"), "neither a Parquet file nor delimited text"),
        (lambda root: (root / "more.csv").write_text("x,t,y\n"), "Parquet files and others"),
        (lambda root: frame().drop(columns="t").to_parquet(root / "q.parquet"), "no column 't'"),
        (lambda root: frame().assign(z=1).to_parquet(root / "q.parquet"), "a column 'z'"),
        (lambda root: frame().assign(x="1").to_parquet(root / "q.parquet"), "stored as text in"),
        (lambda root: (root / "q.parquet").write_bytes(b"PAR1"), "not a Parquet file, or it is damaged"),
        (lambda root: (root / "latest.parquet").symlink_to(root / "p2.parquet"), "are the same file"),
        (lambda root: (root / "same.parquet").hardlink_to(root / "p0.parquet"), "are the same file"),
    ],
)
def test_files_that_do_not_belong_together_are_refused_by_name(
    tmp_path: Path, change: Any, words: str
) -> None:
    root = lake(tmp_path)
    change(root)
    with pytest.raises(InputError, match=words):
        open_private(root)


@pytest.mark.parametrize("missing", [0, 1])
def test_whether_one_file_has_a_value_of_a_column_is_not_told(tmp_path: Path, missing: int) -> None:
    """A file in which a column is empty has no type for it: one record decides that."""
    root = lake(tmp_path)
    some = frame().head(20).assign(t=None, x=None)
    some.to_parquet(root / f"p{missing}.parquet")
    assert pa.parquet.read_schema(root / f"p{missing}.parquet").field("t").type == pa.null()
    table = open_private(root)
    assert table.stored["t"] == "text" and table.stored["x"] == "number"
    assert sum(value is None or value != value for value in column(root, "x")) == 20
    public = frame(90, seed=1).fillna("c")
    model = fit_tables(root, public, target="y", epsilon=1, method="dp_sgd")
    assert model.data["private_records"] == 60


def test_a_person_is_one_in_files_that_write_numbers_otherwise(tmp_path: Path) -> None:
    """pandas writes 7 as 7.0 where another name is missing; a database may have decimals."""
    for kind, other in (("csv", [7.0, None]), ("parquet", [Decimal("7.00"), None])):
        root = tmp_path / kind
        root.mkdir()
        one, two = pd.DataFrame({"who": [7, 8]}), pd.DataFrame({"who": other})
        for number, part in enumerate((one, two)):
            path = root / f"p{number}.{kind}"
            part.to_csv(path, index=False) if kind == "csv" else part.to_parquet(path)
        persons = persons_in(open_private(root), "who")
        assert persons.count == 2 and persons.codes.tolist() == [0, 1, 0, -1]
    assert persons_of([object(), object(), 7]).codes.tolist() == [-1, -1, 0], "places in memory are no names"
    assert persons_of(["007", "7", "007.0", "1.5", "v7.0"]).count == 5


@pytest.mark.parametrize(
    ("private", "public"),
    [("", "p0.parquet"), ("", "*.parquet"), ("p*.parquet", ""), ("p0.parquet", "p*.parquet")],
)
def test_a_file_is_not_in_the_private_and_in_the_public_table(
    tmp_path: Path, private: str, public: str
) -> None:
    root = lake(tmp_path)
    with pytest.raises(InputError, match="own public"):
        fit_tables(root / private, root / public, target="y", epsilon=1)


def test_a_statement_says_that_files_are_public(tmp_path: Path) -> None:
    model = fit_tables(lake(tmp_path), frame(90, seed=1).fillna("c"), target="y", epsilon=1, method="dp_sgd")
    assert any("which files the private table has" in line for line in model.privacy_.assumptions)


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a table"):
        open_private(tmp_path)
    with pytest.raises(InputError, match="exist"):
        open_private(tmp_path / "none.parquet")
    with pytest.raises(InputError, match=r"none\*.parquet"):
        open_private(tmp_path / "none*.parquet")


def test_a_frame_of_spark_comes_through_arrow() -> None:
    class DataFrame:
        """What Spark's has of interest."""

        columns = property(lambda self: ["x", "t", "y"])

        def __init__(self, rows: Any) -> None:
            self.rows = rows

        def toArrow(self) -> Any:  # noqa: N802
            return pa.Table.from_pandas(self.rows, preserve_index=False)

    private, public = DataFrame(frame(600)), DataFrame(frame(90, 1))
    model = fit_tables(private, public, target="y", epsilon=1)  # type: ignore[arg-type]
    assert model.data["private_records"] == 600
