"""Workers of Ray that hold records: the sums of one process, whatever happens to them (`make test-ray`)."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")

from tests.blocks import ArrayBlocks  # noqa: E402
from tests.contracts.neighbors import value_of  # noqa: E402

from sidelight.audit.correlated_tapes import noise_is_correlated_as_charged  # noqa: E402
from sidelight.audit.tape import listening  # noqa: E402
from sidelight.data import partitions, ray_blocks, record_storage  # noqa: E402
from sidelight.data.partitions import PartitionedRows, ScratchBlocks, sample_blocks  # noqa: E402
from sidelight.data.ray_blocks import RayBlocks, RayCluster, ray_cluster  # noqa: E402
from sidelight.errors import InputError, SidelightError  # noqa: E402
from sidelight.losses import Logistic  # noqa: E402
from sidelight.methods.correlated_noise import BandedNoise  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402
from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.privacy.contract import Contract  # noqa: E402
from sidelight.privacy.events import FixedSize, Poisson  # noqa: E402
from sidelight.privacy.ledger import Ledger  # noqa: E402
from sidelight.privacy.noise import Noise  # noqa: E402
from sidelight.problems.base import moments_of, oracle_of  # noqa: E402
from sidelight.tables import fit_tables  # noqa: E402

# Ray's own machinery warns and leaves sockets to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("default::sidelight.errors.PrivacyWarning"),
]

KILLS, P = 50, 8
ADD = "add-or-remove-one"


def source(rows: int = 6_000, size: int = 500) -> ArrayBlocks:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, P)).astype(np.float32)
    X[::97] = np.nan
    return ArrayBlocks(X, np.sign(rng.normal(size=rows)), [size] * (rows // size), admits=Logistic().admits)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[RayCluster]:
    home = set(os.listdir(Path.home()))
    with ray_blocks._started(ray, 4, None):
        folder = Path(ray._private.worker._global_node.get_session_dir_path()).parents[1]
        assert folder.stat().st_mode & 0o777 == 0o700
        with ray_cluster(workers=2) as started:
            yield started
        assert ray.is_initialized()  # whoever has joined a cluster stays in it
    assert not folder.exists()
    assert not ray.is_initialized()
    assert set(os.listdir(Path.home())) == home
    assert "RAY_AUTH_TOKEN" not in os.environ


def rows_of(blocks: Any) -> PartitionedRows:
    return PartitionedRows(blocks, p=P, max_norm=1.0)


class Killer(threading.Thread):
    """Ends a worker at random moments, until it has done so often enough, or is told to stop.

    One worker is ended eight times at most before `forgive`: a question is given up after ten, and on a busy
    machine one question may take as long as that.
    """

    def __init__(self, cluster: RayCluster, kills: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.left, self.over = cluster, kills, threading.Event()
        self.done = 0
        self.forgive()

    def forgive(self) -> None:
        self.hits = [0] * len(self.cluster.workers)

    def run(self) -> None:
        chance = random.Random(0)
        while self.left and not self.over.wait(chance.random() * 0.6):
            place = chance.randrange(len(self.cluster.workers))
            if self.hits[place] >= 8:
                continue
            try:
                pid = ray.get(self.cluster.workers[place].process.remote(), timeout=1)
            except Exception:
                continue  # it is ending or beginning just now
            os.kill(pid, signal.SIGKILL)
            self.left, self.done = self.left - 1, self.done + 1
            self.hits[place] += 1


def questions(rows: PartitionedRows, seed: int) -> list[np.ndarray]:
    """Sums of all kinds, with samples drawn from a seed."""
    oracle, noise, params = oracle_of(rows, Logistic()), Noise(seed), np.full(P, 0.1 * seed)
    found = []
    for sampler in (None, Poisson(0.05), FixedSize(300)):
        batch = None if sampler is None else sample_blocks(sampler, rows.blocks.sizes, noise)
        total = oracle.clipped_sum(params, batch, clip=Flat(0.2), origin=params / 3, relation=ADD)
        found.append(value_of(total))
    found.append(value_of(oracle.clipped_losses(params[None], bound=1.0, relation=ADD)))
    found.append(value_of(moments_of(rows, Logistic()).second_moment(params, relation=ADD)))
    return found


def test_fifty_kills_of_workers_change_no_bit_of_a_sum(cluster: RayCluster) -> None:
    here, there = rows_of(ScratchBlocks(source())), rows_of(cluster.hold(source()))
    killer, asked = Killer(cluster, KILLS), 0
    killer.start()
    try:
        while killer.left:
            killer.forgive()
            for one, other in zip(questions(here, asked), questions(there, asked), strict=True):
                assert (one == other).all()
            asked += 1
    finally:
        killer.over.set()
        killer.join()
    assert killer.done == KILLS
    assert cluster.replaced >= KILLS // 3  # two kills may hit before one question notices
    assert asked >= 3


def test_a_block_that_is_asked_twice_answers_the_same(cluster: RayCluster) -> None:
    blocks = cluster.hold(source())
    rows = rows_of(blocks)
    batch = sample_blocks(Poisson(0.1), blocks.sizes, Noise(1))
    first, second = (
        oracle_of(rows, Logistic()).clipped_sum(np.zeros(P), batch, clip=Flat(0.2), relation=ADD)
        for _ in "ab"
    )
    assert (value_of(first) == value_of(second)).all()


def test_records_that_changed_behind_a_lost_worker_end_the_run(cluster: RayCluster, tmp_path: Path) -> None:
    """The table is read again for the new worker: other records are not taken for the old ones."""
    path = tmp_path / "rows.npy"
    np.save(path, np.ones((1_000, P), dtype=np.float32))
    blocks = cluster.hold(FileBlocks(path))
    rows = rows_of(blocks)
    np.save(path, np.full((1_000, P), 0.1, dtype=np.float32))
    os.kill(ray.get(cluster.workers[0].process.remote()), signal.SIGKILL)
    with pytest.raises(SidelightError, match="changed"):
        oracle_of(rows, Logistic()).clipped_sum(np.zeros(P), clip=Flat(0.2), relation=ADD)
    cluster.replace(0)


class FileBlocks(ArrayBlocks):
    """Rows that are read from a file each time."""

    def __init__(self, path: Path) -> None:
        super().__init__(np.load(path), np.ones(1_000), [500, 500])
        self.path = path

    def read(self, blocks: range) -> Any:
        self.X = np.load(self.path)
        return super().read(blocks)


def test_a_worker_that_always_ends_is_a_clear_end(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_blocks, "_TRIES", 2)
    rows = rows_of(cluster.hold(source(1_000)))
    with pytest.raises(SidelightError, match=r"ended.*spent"):
        rows.summed(Deadly())


class Deadly:
    def __call__(self, rows: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_worker_raises_quotes_nothing(cluster: RayCluster) -> None:
    with pytest.raises(SidelightError, match=r"failed \(ValueError\)") as caught:
        rows_of(cluster.hold(source(1_000))).summed(Rude())
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


class Rude:
    def __call__(self, rows: Any) -> Any:
        raise ValueError("SECRET")


def test_files_that_workers_do_not_see_are_refused(cluster: RayCluster) -> None:
    with pytest.raises(InputError, match="/nowhere/table"):
        cluster.check_files(["/nowhere/table.parquet"])


# ---------------------------------------------------------------------------------------------------
# the face


def tables(folder: Path) -> tuple[Path, Any]:
    import pandas as pd

    def some(n: int, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 3))
        label = np.where(X @ [1, -1, 0.5] + rng.normal(size=n) > 0, "yes", "no")
        return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": label})

    lake = folder / "lake"
    lake.mkdir()
    for part in range(3):
        some(700, part).to_parquet(lake / f"part-{part}.parquet")
    return lake, some(300, 9)


def last_year() -> Any:
    """A model that was fitted elsewhere."""
    import pandas as pd
    from sklearn.linear_model import LogisticRegression

    X = pd.DataFrame(np.random.default_rng(7).normal(size=(400, 3)), columns=["a", "b", "c"])
    return LogisticRegression().fit(X, np.where(X.a - X.b + X.c / 2 > 0, "yes", "no"))


@pytest.mark.parametrize("method", ["auto", "dp_newton", "dp_sgd", "auto, own model"])
def test_a_fit_is_that_of_one_process_through_kills(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The user's own cluster (this process has joined one) is used, and left running."""
    monkeypatch.setattr(partitions, "_NUMBERS", 1 << 11)
    monkeypatch.setattr(record_storage, "fits_in_memory", lambda *_: False)
    lake, public = tables(tmp_path)
    made = []
    held = RayCluster.hold

    def watched(self: RayCluster, *given: Any) -> Any:
        made.append(Killer(self, 3))
        made[-1].start()
        return held(self, *given)

    monkeypatch.setattr(RayCluster, "hold", watched)
    models = [
        fit_tables(
            lake,
            public,
            target="y",
            epsilon=1,
            method=method.partition(",")[0],
            public_model=last_year() if "own" in method else "auto",
            random_state=3,
            engine=engine,
            workers=2 if engine == "ray" else None,
        )
        for engine in ("embedded", "ray")
    ]
    made[0].over.set()
    here, there = (model.estimator._weights for model in models)
    assert (here == there).all()
    assert any("trusted with the private records" in line for line in models[1].privacy_.assumptions)
    assert ray.is_initialized()


@pytest.mark.parametrize(
    "noise",
    [
        BandedNoise(bands=4, sampled=True, largest_batch=120, curvature="public"),
        BandedNoise(bands=4, sampled=False, inverse=True),
    ],
    ids=["sampled turns", "turns"],
)
def test_a_lost_worker_moves_no_turn_and_repeats_no_correlated_noise(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: BandedNoise
) -> None:
    monkeypatch.setattr(partitions, "_NUMBERS", 1 << 11)
    monkeypatch.setattr(record_storage, "fits_in_memory", lambda *_: False)
    lake, public = tables(tmp_path)
    asked: list[RayCluster] = []
    honest = RayBlocks.ask

    def ask(self: RayBlocks, *question: Any) -> Any:
        asked.append(self._cluster)
        if len(asked) in (3, 4, 9, 20):
            os.kill(ray.get(self._cluster.workers[len(asked) % 2].process.remote()), signal.SIGKILL)
        return honest(self, *question)

    monkeypatch.setattr(RayBlocks, "ask", ask)
    key = Contract.key  # noise also depends on the entry in a ledger: not here
    monkeypatch.setattr(Contract, "key", lambda self, noise, run, *more: key(self, noise, None, *more))
    tapes, statements, plans = [], [], []
    for engine in ("embedded", "ray"):
        book = Ledger.create(tmp_path / f"{engine}.ledger")
        book.register("lake", relation=ADD, epsilon=2, delta=1e-5)
        with listening(follow_noise=False) as tape:
            model = fit_tables(
                lake, public, target="y", epsilon=2, ledger=book, random_state=3, health_check=False,
                method=dp_sgd(steps=24, expected_batch_size=60, noise=noise), compare_with_public=False,
                engine=engine, workers=2 if engine == "ray" else None,
            )  # fmt: skip
        assert noise_is_correlated_as_charged(tape) == []
        tapes.append(tape.calls)
        statements.append(model.privacy_)
        plans.append([charge.plan for charge in book.charges("lake")])
    assert asked[0].replaced >= 3
    here, there = tapes
    assert [call.options["step"] for call in there] == list(range(24))
    assert all((one.output == other.output).all() for one, other in zip(here, there, strict=True))
    assert (statements[0].plan, statements[0].details) == (statements[1].plan, statements[1].details)
    assert plans[0] == plans[1] == [statements[1].plan]


def test_a_run_that_cannot_go_on_keeps_its_charge(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_storage, "fits_in_memory", lambda *_: False)
    lake, public = tables(tmp_path)
    book = Ledger.create(tmp_path / "book.ledger")
    book.register("lake", relation=ADD, epsilon=10, delta=1e-5)
    held = RayCluster.hold

    def vanishing(self: RayCluster, *given: Any) -> Any:
        blocks = held(self, *given)
        for file in lake.iterdir():
            file.unlink()
        os.kill(ray.get(self.workers[0].process.remote()), signal.SIGKILL)
        return blocks

    monkeypatch.setattr(RayCluster, "hold", vanishing)
    with pytest.raises(SidelightError, match="exist"):
        fit_tables(lake, public, target="y", epsilon=1, ledger=book, engine="ray", workers=2)
    assert len(book.charges("lake")) == 1


def test_more_workers_than_processors_are_refused_before_the_charge(
    cluster: RayCluster, tmp_path: Path
) -> None:
    lake, public = tables(tmp_path)
    book = Ledger.create(tmp_path / "book.ledger")
    book.register("lake", relation=ADD, epsilon=10, delta=1e-5)
    with pytest.raises(InputError, match="workers"):
        fit_tables(lake, public, target="y", epsilon=1, ledger=book, engine="ray", workers=64)
    assert len(book.charges("lake")) == 0


class Elsewhere:
    """A classifier that says something else in another process."""

    classes_ = np.array(["no", "yes"])

    def __init__(self) -> None:
        self.home = os.getpid()

    def predict_proba(self, X: Any) -> Any:
        likely = np.full(len(X), 0.3 if os.getpid() == self.home else 0.4)
        return np.column_stack([1 - likely, likely])


class Unsendable(Elsewhere):
    """A classifier that holds a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("model", [Elsewhere, Unsendable])
def test_an_own_model_that_workers_cannot_use_is_refused_before_the_charge(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    monkeypatch.setattr(record_storage, "fits_in_memory", lambda *_: False)
    lake, public = tables(tmp_path)
    book = Ledger.create(tmp_path / "book.ledger")
    book.register("lake", relation=ADD, epsilon=10, delta=1e-5)
    with pytest.raises(InputError, match="public_model"):
        fit_tables(
            lake, public, target="y", epsilon=1, ledger=book, engine="ray", workers=2, public_model=model()
        )
    assert len(book.charges("lake")) == 0
