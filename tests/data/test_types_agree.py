"""The same rows give the same model, however the public and the private table are stored."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
from pyarrow import csv, parquet  # noqa: E402
from tests.data.whole_tables import private_frame  # noqa: E402

from sidelight.data.features import FeaturePlan, encode_target  # noqa: E402
from sidelight.data.frames import check_storage, is_frame  # noqa: E402
from sidelight.data.private_tables import open_private  # noqa: E402
from sidelight.data.schema import Column, Schema, TargetColumn  # noqa: E402
from sidelight.data.table_files import read_table, stored_types  # noqa: E402
from sidelight.errors import InputError  # noqa: E402
from sidelight.tables import fit_tables  # noqa: E402

ROWS = 80


def rows(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    flags = rng.random((ROWS, 3)) < 0.5
    dates = pd.DatetimeIndex(pd.Timestamp("2018-01-01") + pd.to_timedelta(rng.integers(0, 10**8, ROWS), "s"))
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, ROWS),
            "pay": np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(3, 1, ROWS).round(2)),
            "grade": rng.choice([1.5, 2.0, 1e-7, -0.0], ROWS),
            "children": pd.array(rng.integers(0, 5, ROWS), dtype="Int64"),
            "insured": flags[:, 0],
            "smokes": np.where(rng.random(ROWS) < 0.2, None, flags[:, 1]),
            "job": rng.choice(["nurse", " smith ", "clerk", "?", "1.50", "2e3"], ROWS),
            "price": [Decimal(int(x)).scaleb(-2) for x in rng.integers(100, 999, ROWS)],
            "born": dates.floor("D"),
            "seen": dates.where(rng.random(ROWS) < 0.9),
            "there": dates.tz_localize("Europe/Vienna"),
            "level": pd.Categorical(rng.choice(["low", "high"], ROWS)),
            "sick": flags[:, 2],
        }
    )
    frame.loc[3, "children"] = pd.NA
    return frame


def as_texts(frame: Any) -> Any:
    return frame.astype(object).map(lambda one: None if pd.isna(one) else str(one))


def _parquet(frame: Any, path: Path, change: Callable[[Any], Any] = lambda table: table) -> Path:
    parquet.write_table(change(pa.Table.from_pandas(frame, preserve_index=False)), path)
    return path


def _with_dictionaries(table: Any) -> Any:
    for i, name in enumerate(table.column_names):
        if not pa.types.is_dictionary(table.schema.field(i).type):
            table = table.set_column(i, name, table.column(i).dictionary_encode())
    return table


def _csv(frame: Any, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def _csv_of_arrow(frame: Any, path: Path) -> Path:
    """Truth values are "true" and "false" here, and texts are quoted."""
    table = pa.Table.from_pandas(frame.assign(level=frame.level.astype(str)), preserve_index=False)
    csv.write_csv(table, path)
    return path


STORES: dict[str, Callable[[Any, Path], Any]] = {
    "frame": lambda frame, folder: frame,
    "frame of objects": lambda frame, folder: frame.astype(object),
    "frame of Arrow": lambda frame, folder: pa.Table.from_pandas(frame).to_pandas(types_mapper=pd.ArrowDtype),
    "frame of polars": lambda frame, folder: pytest.importorskip("polars").from_pandas(frame),
    "csv": lambda frame, folder: _csv(frame, folder / "t.csv"),
    "csv of Arrow": lambda frame, folder: _csv_of_arrow(frame, folder / "t.csv"),
    "csv of texts": lambda frame, folder: _csv(as_texts(frame), folder / "t.csv"),
    "parquet": lambda frame, folder: _parquet(frame, folder / "t.parquet"),
    "parquet of texts": lambda frame, folder: _parquet(as_texts(frame), folder / "t.parquet"),
    "parquet of dictionaries": lambda frame, folder: _parquet(
        frame, folder / "t.parquet", _with_dictionaries
    ),
}


def stored(how: str, frame: Any, folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    return STORES[how](frame, folder)


def encoded(schema: Schema, source: Any) -> tuple[np.ndarray, list[bool | None]]:
    check_storage(schema, stored_types(source), "it")
    if is_frame(source) and not isinstance(source, pd.DataFrame):
        X, y, _ = FeaturePlan(schema).encode_private(open_private(source))
    else:
        frame = source if isinstance(source, pd.DataFrame) else private_frame(source)
        X, y = FeaturePlan(schema).encode(frame), encode_target(schema, frame[schema.target.name])
    return X, [None if one is None else str(one) == str(y[0]) for one in y]


@pytest.mark.parametrize("private", STORES)
@pytest.mark.parametrize("public", STORES)
def test_files_of_all_kinds_are_encoded_alike(public: str, private: str, tmp_path: Path) -> None:
    """A public CSV with a private Parquet file lost columns without a word."""
    source = stored(public, rows(), tmp_path / "public")
    frame = source if is_frame(source) else read_table(source)
    schema, usual = Schema.learn(frame, "sick"), Schema.learn(rows(), "sick")
    assert schema.columns == usual.columns
    X, y = encoded(schema, stored(private, rows(1), tmp_path / "private"))
    expected, labels = encoded(usual, rows(1))
    np.testing.assert_array_equal(X, expected)
    assert y == labels and None not in y


def test_a_model_of_csv_and_parquet_is_the_model_of_either(tmp_path: Path) -> None:
    models = []
    for public, private in (("csv of Arrow", "parquet"), ("parquet", "csv"), ("frame", "frame")):
        tables = [
            stored(how, rows(seed)[: ROWS - seed], tmp_path / f"{how} {seed}")
            for how, seed in ((private, 1), (public, 0))
        ]
        with pytest.warns(UserWarning, match="seed"):
            models.append(fit_tables(*tables, target="sick", epsilon=1, method="dp_sgd", random_state=0))
    for model in models[1:]:
        assert model.predict_proba(rows(2)).tolist() == models[0].predict_proba(rows(2)).tolist()


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        ("age", "number", pa.array([[1]] * ROWS)),
        ("age", "number", pa.array([0] * ROWS, pa.timestamp("us"))),
        ("insured", "boolean", pa.array([0] * ROWS, pa.date32())),
        ("born", "date", pa.array([0] * ROWS)),
        ("job", "category", pa.array([{"a": 1}] * ROWS)),
        ("sick", "category", pa.array([[b"x"]] * ROWS)),
    ],
)
def test_a_column_type_that_cannot_be_the_schemas_is_refused(
    column: str, kind: str, values: Any, tmp_path: Path
) -> None:
    """By the type that the file declares, which is public; not one value is looked at."""
    table = pa.Table.from_pandas(rows(1), preserve_index=False)
    table = table.set_column(table.column_names.index(column), column, values)
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=f"column '{column}' of the private table .*schema's {kind}; store"):
        fit_tables(tmp_path / "t.parquet", rows()[:70], target="sick", epsilon=1)


@pytest.mark.parametrize("kind", ["number", "boolean", "category", "code", "date"])
def test_every_type_of_a_schema_says_how_to_store_it(kind: str) -> None:
    """A code that was stored as a date was a KeyError."""
    column = Column(kind, (0.0, 1.0), categories=("01",), digits=2, prefix=2, parts=("position",))  # type: ignore[arg-type]
    schema = Schema(TargetColumn("y", "regression", bounds=(0.0, 1.0)), {"it": column})
    with pytest.raises(InputError, match=f"'it' of a table is stored as duration.*schema's {kind}; store"):
        check_storage(schema, {"it": "duration[us]", "y": "number"}, "a table")


def test_a_schema_of_version_0_1_reads_truth_values_and_declared_numbers_of_any_file() -> None:
    """There a truth value was a category, spelt as the public file spelt it."""
    for names in (["False", "True"], ["false", "true"]):
        schema = Schema.from_dict(
            {"sidelight_schema": 1, "target": {"name": "y", "task": "classification", "classes": names},
             "columns": {"b": {"type": "category", "categories": names},
                         "k": {"type": "category", "categories": ["1.0", "2"]}}}
        )  # fmt: skip
        for truth in (True, "True", "true", "TRUE", np.bool_(True)):
            frame = pd.DataFrame({"b": [truth], "k": [1], "y": [truth]}, dtype=object)
            assert FeaturePlan(schema).encode(frame)[0].tolist() == [0, 1, 0, 0, 1, 0, 0, 0]
            assert encode_target(schema, frame["y"]).tolist() == [names[1]]
