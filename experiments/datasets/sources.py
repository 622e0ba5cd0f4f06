"""Which file a dataset is, where its original is published, and how to read that.

Checksums: md5 as stated by the publisher (CIFAR-10) or pinned for years by torchvision (MNIST) and torchtext
(SST-2); sha256 as pinned by scikit-learn (KDD Cup, California housing). The rest is trusted as it comes.
`rows` is what the publisher states, so that a cut file is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from experiments.datasets import parsing

__all__ = ["SOURCES", "Origin", "Source", "Task"]

Task = Literal["binary", "multiclass", "regression", "table"]


@dataclass(frozen=True)
class Origin:
    """A published file. `checksum` is "md5:…" or "sha256:…", or None: then what is downloaded is trusted."""

    url: str
    checksum: str | None = None
    file: str = ""

    @property
    def name(self) -> str:
        """The name of the published file: the last part of its address, unless that says nothing."""
        return self.file or self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Source:
    """A file of the data folder. `table`: a frame in Parquet; otherwise arrays in .npz."""

    file: str
    task: Task
    rows: int
    origins: tuple[Origin, ...] = ()
    parse: Callable[[list[bytes]], Any] | None = None
    note: str = ""
    packed: tuple[str, ...] = ()  # another form that is read if all of these files are there


_UCI = "https://archive.ics.uci.edu/static/public/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FIGSHARE = "https://ndownloader.figshare.com/files/"
_IPUMS = "its terms of use allow no download from here; see https://github.com/ppmlguy/DP-AGD"


_AS_PARQUET = "has to be written as Parquet (docs/reproductions/public_pays.md says where it is published)"


def _uci(path: str) -> tuple[Origin, ...]:
    return (Origin(_UCI + path),)


SOURCES: dict[str, Source] = {
    "adult-a": Source(
        "a9a.npz",
        "binary",
        32_561,
        (Origin(f"{_LIBSVM}binary/a9a"), Origin(f"{_LIBSVM}binary/a9a.t")),
        parsing.a9a,
    ),
    "ipums-br": Source("ipums_br.npz", "binary", 38_000, note=_IPUMS),
    "ipums-us": Source("ipums_us.npz", "binary", 40_000, note=_IPUMS),
    "magic04": Source(
        "magic04.npz", "binary", 19_020, _uci("159/magic+gamma+telescope.zip"), parsing.magic04
    ),
    "mini-boo-ne": Source(
        "mini_boo_ne.npz",
        "binary",
        130_064,
        _uci("199/miniboone+particle+identification.zip"),
        parsing.mini_boo_ne,
    ),
    "skin": Source(
        "skin_segmentation.npz", "binary", 245_057, _uci("229/skin+segmentation.zip"), parsing.skin
    ),
    "cadata": Source(
        "cadata.npz",
        "regression",
        20_640,
        (
            Origin(
                f"{_FIGSHARE}5976036",
                "sha256:aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
                "cal_housing.tgz",
            ),
        ),
        parsing.cadata,
    ),
    "stability": Source(
        "grid_stability.npz",
        "regression",
        10_000,
        _uci("471/electrical+grid+stability+simulated+data.zip"),
        parsing.stability,
    ),
    "mnist": Source(
        "mnist.npz",
        "multiclass",
        60_000,
        (
            Origin(f"{_MNIST}train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            Origin(f"{_MNIST}train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432"),
            Origin(f"{_MNIST}t10k-images-idx3-ubyte.gz", "md5:9fb629c4189551a2d022fa330f9573f3"),
            Origin(f"{_MNIST}t10k-labels-idx1-ubyte.gz", "md5:ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        parsing.mnist,
    ),
    "cifar10": Source(
        "cifar10.npz",
        "multiclass",
        50_000,
        (
            Origin(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        parsing.cifar10,
        packed=("cifar10_train.parquet", "cifar10_test.parquet"),
    ),
    "purchase100": Source(
        "purchase100.npz",
        "multiclass",
        197_324,
        (Origin("https://github.com/privacytrustlab/datasets/raw/master/dataset_purchase.tgz"),),
        parsing.purchase100,
    ),
    "flights": Source("flights.parquet", "table", 336_776, note=_AS_PARQUET),
    "bike": Source("bike.parquet", "table", 17_379, note=_AS_PARQUET),
    "traffic": Source("traffic.parquet", "table", 48_204, note=_AS_PARQUET),
    "satellite": Source("satellite.parquet", "table", 6_435, note=_AS_PARQUET),
    "poker": Source("poker.parquet", "table", 99_998, note=_AS_PARQUET),
    "adult-raw": Source("adult_raw.parquet", "table", 48_842, _uci("2/adult.zip"), parsing.adult_raw),
    "bank": Source("bank.parquet", "table", 45_211, _uci("222/bank+marketing.zip"), parsing.bank),
    "kddcup99": Source(
        "kddcup99_10pct.parquet",
        "table",
        494_021,
        (
            Origin(
                f"{_FIGSHARE}5976042",
                "sha256:8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561",
                "kddcup.data_10_percent.gz",
            ),
        ),
        parsing.kddcup99,
    ),
    "sst2": Source(
        "sst2.parquet",
        "table",
        70_042,
        (
            Origin(
                "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip", "md5:9f81648d4199384278b86e315dac217c"
            ),
            Origin("https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"),
        ),
        parsing.sst2,
    ),
    "wikitext2": Source(
        "wikitext2.parquet",
        "table",
        720,
        (Origin("https://wikitext.smerity.com/wikitext-2-v1.zip"),),
        parsing.wikitext2,
    ),
}
