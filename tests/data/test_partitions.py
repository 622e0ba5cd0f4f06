"""Records in blocks: the same records, the same sums, one share a block, and nothing left on disk."""

import datetime
import itertools
import os
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402
from tests.blocks import ArrayBlocks, in_blocks  # noqa: E402
from tests.contracts.neighbors import value_of  # noqa: E402
from tests.oracles.reference import CLIPS, LOSSES, METRICS, P, make_data, make_metric  # noqa: E402

from sidelight.data import partitions, record_storage  # noqa: E402
from sidelight.data.coordinates import Coordinates  # noqa: E402
from sidelight.data.features import FeaturePlan  # noqa: E402
from sidelight.data.partitions import (  # noqa: E402
    EncodedTable,
    ScratchBlocks,
    Share,
    add_shares,
    sample_blocks,
)
from sidelight.data.private_tables import open_private  # noqa: E402
from sidelight.data.record_storage import RecordStorage, bytes_of, storage_for  # noqa: E402
from sidelight.data.rows import PrivateRows, contents  # noqa: E402
from sidelight.data.schema import Schema  # noqa: E402
from sidelight.data.targets import Classes  # noqa: E402
from sidelight.errors import InputError, SidelightError  # noqa: E402
from sidelight.losses import Logistic, Loss  # noqa: E402
from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.oracles.linear.linear_oracle import LinearOracle  # noqa: E402
from sidelight.oracles.linear.row_sums import label_counts  # noqa: E402
from sidelight.oracles.linear.score_counts import count_gaps  # noqa: E402
from sidelight.privacy.events import FixedSize, FullBatch, Poisson  # noqa: E402
from sidelight.privacy.noise import Noise  # noqa: E402
from sidelight.problems.base import oracle_of  # noqa: E402
from sidelight.tables import fit_tables  # noqa: E402

ADD = "add-or-remove-one"

# ---------------------------------------------------------------------------------------------------
# sums


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: v.name)
def test_sums_are_those_of_rows_in_memory(loss: Loss) -> None:
    rng = np.random.default_rng(1)
    X, y = make_data(loss, 50, rng)
    X[7], y[31] = np.nan, np.inf
    memory = PrivateRows(X, y, max_norm=1.0, admits=loss.admits)
    rows = in_blocks(X, y, 13, admits=loss.admits)
    dimension = P * loss.outputs
    params, origin = rng.standard_normal(dimension), 0.3 * rng.standard_normal(dimension)
    one, other = LinearOracle(memory, loss), oracle_of(rows, loss)
    for name, clip, o in itertools.product(METRICS, CLIPS, (None, origin)):
        metric = make_metric(name, dimension, rng)
        for indices in (None, np.array([3, 4, 17]), np.array([40, 12, 13]), np.array([], dtype=int)):
            options = {"clip": clip, "origin": o, "metric": metric, "relation": ADD}
            for _ in "ab":  # what a block remembers is right the second time
                expected, found = (
                    value_of(who.clipped_sum(params, indices, **options)) for who in (one, other)
                )
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_losses_and_counts_are_those_of_rows_in_memory() -> None:
    loss, rng = Logistic(), np.random.default_rng(2)
    X, y = make_data(loss, 50, rng)
    X[7], y[31] = np.nan, np.inf
    memory, rows = (
        PrivateRows(X, y, max_norm=1.0, admits=loss.admits),
        in_blocks(X, y, 13, admits=loss.admits),
    )
    candidates = rng.standard_normal((3, P))
    classes, at = np.array([-1.0, 1.0]), np.array([0.1, 0.5])
    oracles = LinearOracle(memory, loss), oracle_of(rows, loss)
    pairs = [
        [oracle.clipped_losses(candidates, bound=1.0, relation=ADD) for oracle in oracles],
        [
            label_counts(memory, classes, relation=ADD),
            rows.summed(partial(label_counts, classes=classes, relation=ADD)),
        ],
        [
            count_gaps(memory, candidates[:1], at, loss=loss, relation=ADD),
            rows.summed(partial(count_gaps, weights=candidates[:1], at=at, loss=loss, relation=ADD)),
        ],
    ]
    for expected, found in pairs:
        np.testing.assert_allclose(value_of(found), value_of(expected), rtol=1e-12, atol=1e-13)
        assert found.sensitivity == expected.sensitivity


def shares(*blocks: int, asked: int = 5) -> list[Share]:
    return [Share(block, asked, np.array([10.0**block]), 0.5, ADD) for block in blocks]


def test_each_block_is_added_once_in_the_order_of_blocks() -> None:
    assert value_of(add_shares(shares(2, 0, 1), 5, 3)).tolist() == [111.0]
    assert value_of(add_shares(shares(0, 1, 1, 0, 2, 2), 5, 3)).tolist() == [111.0]
    late = shares(0, 1, 2, asked=4)
    assert value_of(add_shares([*late, *shares(0, 1, 2)], 5, 3)).tolist() == [111.0]
    order = np.array([1e16, 1.0, -1e16])
    found = [Share(k, 0, order[[k]], 1.0, ADD) for k in (2, 1, 0)]
    assert value_of(add_shares(found, 0, 3)).tolist() == [(1e16 + 1.0) - 1e16]


@pytest.mark.parametrize("given", [(), (0, 2), (0, 1, 1), (0, 1, 7), (0, 1, -1)])
def test_a_sum_without_all_blocks_is_none(given: tuple[int, ...]) -> None:
    with pytest.raises(SidelightError, match="no answer"):
        add_shares(shares(*given), 5, 3)


# ---------------------------------------------------------------------------------------------------
# samples


SIZES = (5, 3, 4)


def drawn(sampler: Any, noise: Noise) -> np.ndarray:
    batch = sample_blocks(sampler, SIZES, noise)
    starts = (0, 5, 8)
    found = [batch.indices(k, starts[k], SIZES[k]) + starts[k] for k in range(3)]  # type: ignore[union-attr]
    return np.bincount(np.concatenate(found), minlength=12)


@pytest.mark.parametrize("sampler", [Poisson(0.3), FixedSize(4)], ids=["poisson", "fixed size"])
def test_samples_of_blocks_have_the_law_of_the_sampler(sampler: Any) -> None:
    noise, draws = Noise(3), 3_000
    marks = np.array([drawn(sampler, noise) for _ in range(draws)])
    assert marks.max() == 1
    rate = 0.3 if isinstance(sampler, Poisson) else 4 / 12
    both = rate**2 if isinstance(sampler, Poisson) else rate * 3 / 11
    together = marks.T @ marks / draws
    error = 5 * np.sqrt(rate * (1 - rate) / draws)
    assert np.abs(np.diag(together) - rate).max() < error
    assert np.abs(together[~np.eye(12, dtype=bool)] - both).max() < error
    if isinstance(sampler, FixedSize):
        assert (marks.sum(axis=1) == 4).all()
    else:  # the size is binomial: independent within blocks and between them
        assert abs(marks.sum(axis=1).var() - 12 * 0.3 * 0.7) < 0.4


def test_a_block_draws_the_same_again_and_each_step_anew() -> None:
    noise = Noise()
    first, second = (sample_blocks(Poisson(0.5), (1000, 1000), noise) for _ in "ab")
    assert first is not None and second is not None
    assert (first.indices(1, 1000, 1000) == first.indices(1, 1000, 1000)).all()
    assert set(first.indices(1, 1000, 1000)) != set(second.indices(1, 1000, 1000))
    assert set(first.indices(1, 1000, 1000)) != set(first.indices(0, 0, 1000))
    assert "private" in repr(first)


def test_a_full_batch_draws_nothing() -> None:
    noise, other = Noise(1), Noise(1)
    assert sample_blocks(FullBatch(), SIZES, noise) is None
    assert noise.generator.integers(10**9) == other.generator.integers(10**9)


def test_a_sampler_of_another_kind_is_asked_for_all_records() -> None:
    class EveryThird(Poisson):
        def indices(self, n: int, noise: Noise) -> Any:
            return np.arange(0, n, 3)

    assert drawn(EveryThird(0.3), Noise(1)).tolist() == [1, 0, 0] * 4
    many = sample_blocks(FixedSize(5), (10**9, 10**9), Noise(1))
    assert many is not None and many.chosen is not None and len(many.chosen) == 5


# ---------------------------------------------------------------------------------------------------
# on disk


def test_scratch_has_no_name_and_the_memory_of_a_block_is_let_go(tmp_path: Path) -> None:
    X = np.ones((200_000, 20), dtype=np.float32)
    blocks = ScratchBlocks(ArrayBlocks(X, np.ones(len(X)), [50_000] * 4), folder=tmp_path)
    assert os.listdir(tmp_path) == []
    held = [contents(rows) for rows in blocks._held]
    assert all(np.allclose(part.X, 20**-0.5) and not part.X.flags.writeable for part in held)
    rows = partitions.PartitionedRows(blocks, p=20, max_norm=1.0)
    oracle_of(rows, Logistic()).clipped_sum(np.zeros(20), clip=Flat(1.0), relation=ADD)
    if (smaps := Path("/proc/self/smaps")).exists():
        assert _resident(smaps.read_text(), tmp_path) < 8_000  # kB, of 18,800 that are mapped
    blocks.close()


def _resident(text: str, folder: Path) -> int:
    """kB of the deleted file that are in this process."""
    found, mine = 0, False
    for line in text.splitlines():
        if " " in line and "-" in line.split(" ", 1)[0]:
            mine = "(deleted)" in line and str(folder) in line
        elif mine and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_a_full_disk_is_said_and_quotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __getattr__(self, name: str) -> Any:
            raise OSError(28, "No space left on device")

        def seek(self, *_: int) -> int:
            return 0

    with pytest.raises(SidelightError, match=r"No space.*spent"):
        partitions._write(Full(), contents(PrivateRows(np.ones((3, 2)), np.ones(3), max_norm=1.0)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2GB", 2 * 10**9),
        ("1.5 GiB", int(1.5 * 2**30)),
        ("800 mb", 8 * 10**8),
        (10**9, 10**9),
        ("3t", 3 * 10**12),
    ],
)
def test_sizes_of_memory(given: Any, expected: int) -> None:
    assert bytes_of(given) == expected


@pytest.mark.parametrize("given", ["much", "", "-2GB", "2 GBs", "400MB", 0, True, 2.5, "GB"])
def test_other_sizes_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match="memory"):
        bytes_of(given)


def test_small_tables_stay_in_memory_and_large_ones_do_not(tmp_path: Path) -> None:
    placed = RecordStorage(scratch=tmp_path)
    assert storage_for(100_000, 75, memory="2GB", placed=placed) is None
    assert storage_for(100_000, 75, memory=None, placed=placed) is None
    assert storage_for(5_000_000, 75, memory="2GB", placed=placed) is placed
    with pytest.raises(InputError, match="at least"):
        storage_for(10**9, 75, memory="2GB", placed=placed)
    with pytest.raises(InputError, match="GB free"):
        storage_for(10**9, 10**5, memory="100GB", placed=placed)
    with pytest.raises(InputError, match="written"):
        storage_for(5_000_000, 75, memory="2GB", placed=RecordStorage(scratch=tmp_path / "none"))


# ---------------------------------------------------------------------------------------------------
# private contents of files: the records of the in-memory reader, and not a word


def hostile() -> Any:
    """A table of Parquet with what its types can hold."""
    n = 40
    floats = np.linspace(-3, 3, n)
    floats[3:9] = [np.nan, np.inf, -np.inf, 1e308, -5e-324, 1e30]
    texts = ["a", "b", "", "NA", "\0", "é" * 300, None, " a ", "1e5", "nan"] * 4
    dates = [datetime.date(2020, 1, 1), None, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)] * 10
    return pa.table(
        {
            "x": pa.array(floats),
            "whole": pa.array([1, None, -(2**63), 2**63 - 1] * 10, pa.int64()),
            "kind": pa.array(texts),
            "when": pa.array(dates),
            "exact": pa.array([Decimal("1.50"), None, Decimal("-99999.99"), Decimal("0")] * 10),
            "flag": pa.array([True, None, False, True] * 10),
            "coded": pa.array(["u", "v", None, "w"] * 10).dictionary_encode(),
            "y": pa.array(["yes", "no", None, "maybe", "", "yes", "no", "YES", "no", "yes"] * 4),
        }
    )


def public() -> Any:
    n = 80
    return pd.DataFrame(
        {
            "x": np.linspace(-1, 1, n), "whole": np.arange(n) % 5, "kind": ["a", "b"] * (n // 2),
            "when": pd.to_datetime(["2020-01-01", "2021-06-30"] * (n // 2)), "exact": np.arange(n) / 7,
            "flag": [True, False] * (n // 2), "coded": ["u", "v"] * (n // 2), "y": ["yes", "no"] * (n // 2),
        }
    )  # fmt: skip


def encoded(source: Any, schema: Schema, rows: int) -> tuple[Any, Any]:
    """What an oracle would see: of all records at once, and of blocks joined again."""
    plan, table = FeaturePlan(schema), open_private(source)
    target = Classes(np.array(["no", "yes"]), Logistic())
    coordinates = Coordinates(plan.bounds(), 1.0, True)
    with np.errstate(all="ignore"):
        X, y, _ = plan.encode_private(table)
        whole = contents(coordinates.private(X, target.encode(y), target.loss.admits))
    blocks = ScratchBlocks(EncodedTable(schema, table, target, coordinates, rows))
    parts = [contents(one) for one in blocks._held]
    return whole, [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


@pytest.mark.parametrize("form", ["one file", "row groups", "files", "csv", "csv files"])
@pytest.mark.parametrize("rows", [1, 7, 39, 40, 1000])
def test_hostile_contents_are_the_same_null_records_in_blocks(tmp_path: Path, form: str, rows: int) -> None:
    table, source = hostile(), tmp_path / "t.parquet"
    if form in ("one file", "row groups"):
        parquet.write_table(table, source, row_group_size=11 if form == "row groups" else None)
    elif form == "csv":
        source = tmp_path / "t.csv"
        _as_text(table).to_csv(source, index=False)
    else:
        source = tmp_path / "lake"
        source.mkdir()
        for k, start in enumerate(range(0, 40, 9)):
            if form == "files":
                parquet.write_table(table.slice(start, 9), source / f"{k}.parquet")
            else:
                _as_text(table.slice(start, 9)).to_csv(source / f"{k}.csv", index=False)
    with np.errstate(all="raise"):
        whole, blocks = encoded(source, Schema.learn(public(), "y"), rows)
    for one, other in zip(whole, blocks, strict=True):
        assert one.dtype == other.dtype and (one == other).all()
    assert whole.null.any() and not whole.null.all()


def _as_text(table: Any) -> Any:
    return (
        table.drop_columns(["kind"])
        .append_column("kind", pa.array(["a", "b,", 'q"', "x"] * 10)[: table.num_rows])
        .to_pandas()
    )


def test_ranges_of_records_are_those_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    frame = pd.DataFrame({"x": np.arange(100.0)})
    parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=13)
    frame.to_csv(tmp_path / "t.csv", index=False)
    lake = tmp_path / "lake"
    lake.mkdir()
    for k in range(5):
        frame[k * 20 : (k + 1) * 20].to_parquet(lake / f"{k}.parquet")
    for source in (path, tmp_path / "t.csv", lake, frame):
        table = open_private(source)
        for start, stop in itertools.product((0, 1, 12, 13, 40, 99), (1, 13, 14, 26, 60, 100)):
            if start < stop:
                found = [
                    np.asarray(block["x"], dtype=float)
                    for _, block in table.blocks({"x": True}, range(start, stop))
                ]
                assert np.concatenate(found).tolist() == list(range(start, stop))


@pytest.mark.parametrize("change", [-1, 1])
def test_a_table_that_changes_its_size_is_noticed(tmp_path: Path, change: int) -> None:
    parquet.write_table(hostile(), tmp_path / "t.parquet")
    schema, table = Schema.learn(public(), "y"), open_private(tmp_path / "t.parquet")
    parquet.write_table(pa.concat_tables([hostile()] * 2).slice(0, 40 + change), tmp_path / "t.parquet")
    coordinates = Coordinates(FeaturePlan(schema).bounds(), 1.0, True)
    source = EncodedTable(schema, table, Classes(np.array(["no", "yes"]), Logistic()), coordinates, 7)
    with pytest.raises(InputError, match="changed"):
        list(source.read(range(len(source.sizes))))


# ---------------------------------------------------------------------------------------------------
# the face


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_NUMBERS", 1 << 12)
    monkeypatch.setattr(record_storage, "fits_in_memory", lambda n, p, memory: memory is None)


def records(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    label = np.where(X @ [1, -1, 0.5] + rng.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": label})


@pytest.mark.parametrize("method", ["auto", "dp_newton", "dope_sgd", "full_private"])
@pytest.mark.usefixtures("forced", "same_noise")
def test_a_fit_is_that_in_memory_to_rounding(tmp_path: Path, method: str) -> None:
    records(3_000, 1).to_parquet(tmp_path / "t.parquet")
    seen: list[tuple[int, int]] = []

    class Watch(placing_observer()):  # type: ignore[misc]
        def on_read(self, done: int, records: int) -> None:
            seen.append((done, records))

    models = [
        fit_tables(
            tmp_path / "t.parquet", records(300, 2), target="y", epsilon=1, method=method, random_state=3,
            memory=memory, observers=[Watch()],
        )
        for memory in (None, "2GB")
    ]  # fmt: skip
    here, there = (model.estimator._weights for model in models)
    np.testing.assert_allclose(there, here, rtol=1e-6, atol=1e-9)
    assert seen[-1] == (3_000, 3_000) and len(seen) > 5


def placing_observer() -> Any:
    from sidelight.privacy.observer import Observer

    return Observer


@pytest.mark.usefixtures("forced")
def test_a_method_that_reads_all_records_refuses_and_spends_nothing(tmp_path: Path) -> None:
    from sidelight.privacy.ledger import Ledger

    records(500, 1).to_parquet(tmp_path / "t.parquet")
    book = Ledger.create(tmp_path / "book.ledger")
    book.register("t", relation="replace-one", epsilon=10, delta=1e-5)
    with pytest.raises(InputError, match="output_perturbation"):
        fit_tables(
            tmp_path / "t.parquet", records(300, 2), target="y", epsilon=1, method="output_perturbation",
            memory="2GB", ledger=book,
        )  # fmt: skip
    assert len(book.charges("t")) == 0


def test_persons_are_held_in_memory_and_memory_is_a_size(tmp_path: Path) -> None:
    some = records(500, 1).assign(who=np.arange(500) // 5)
    some.to_parquet(tmp_path / "t.parquet")
    for source, options, words in (
        (tmp_path / "t.parquet", {"memory": "2GB", "unit": "who"}, "held in memory"),
        (tmp_path / "t.parquet", {"engine": "ray", "unit": "who"}, "the unit is a record"),
        (records(500, 1), {"memory": "much"}, "a size such as 2GB"),
    ):
        with pytest.raises(InputError, match=words):
            fit_tables(source, records(300, 2), target="y", epsilon=1, ignore=(), **options)  # type: ignore[arg-type]


def test_an_engine_that_nobody_has_is_refused(tmp_path: Path) -> None:
    records(500, 1).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="'spark'"):
        fit_tables(tmp_path / "t.parquet", records(300, 2), target="y", epsilon=1, engine="spark")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="frame"):
        fit_tables(records(500, 1), records(300, 2), target="y", epsilon=1, engine="ray")
