"""How the published files of the benchmark tables are read: bytes in, arrays or a frame out.

Values stay the originals. `sources` says where the files come from.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import InputError

Array = NDArray[Any]

ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
    "income",
)  # fmt: skip
HOUSING_COLUMNS = (
    "median_income", "housing_median_age", "total_rooms", "total_bedrooms", "population", "households",
    "latitude", "longitude",
)  # fmt: skip
MAGIC_COLUMNS = (
    "fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist",
)  # fmt: skip
KDD_COLUMNS = (
    "duration", "protocol_type", "service", "flag", "src_bytes", "dst_bytes", "land", "wrong_fragment",
    "urgent", "hot", "num_failed_logins", "logged_in", "num_compromised", "root_shell", "su_attempted",
    "num_root", "num_file_creations", "num_shells", "num_access_files", "num_outbound_cmds", "is_host_login",
    "is_guest_login", "count", "srv_count", "serror_rate", "srv_serror_rate", "rerror_rate",
    "srv_rerror_rate", "same_srv_rate", "diff_srv_rate", "srv_diff_host_rate", "dst_host_count",
    "dst_host_srv_count", "dst_host_same_srv_rate", "dst_host_diff_srv_rate", "dst_host_same_src_port_rate",
    "dst_host_srv_diff_host_rate", "dst_host_serror_rate", "dst_host_srv_serror_rate",
    "dst_host_rerror_rate", "dst_host_srv_rerror_rate", "label",
)  # fmt: skip


def a9a(files: list[bytes]) -> dict[str, Array]:
    """LIBSVM's a9a and a9a.t: 123 indicators, labels −1/+1."""
    X, y = _libsvm(files[0], features=123)
    X_test, y_test = _libsvm(files[1], features=123)
    indicators = {"X": X.astype(np.uint8), "X_test": X_test.astype(np.uint8)}
    return {**indicators, "y": y.astype(np.int8), "y_test": y_test.astype(np.int8)}


def cadata(files: list[bytes]) -> dict[str, Array]:
    """cal_housing.data: eight features in LIBSVM's order, and the median house value in dollars."""
    table = np.loadtxt(io.BytesIO(_untarred(files[0], "cal_housing.data")), delimiter=",", ndmin=2)
    order = [7, 2, 3, 4, 5, 6, 1, 0]
    X, y = table[:, order].astype(np.float32), table[:, 8].astype(np.float32)
    return {"X": X, "y": y, "feature_names": np.array(HOUSING_COLUMNS)}


def magic04(files: list[bytes]) -> dict[str, Array]:
    """magic04.data: ten numbers and g (gamma, +1) or h (hadron, −1)."""
    rows = [line.split(",") for line in _unzipped(files[0], "magic04.data").decode().split()]
    X = np.array([row[:10] for row in rows], dtype=np.float32)
    y = np.array([1 if row[10] == "g" else -1 for row in rows], dtype=np.int8)
    return {"X": X, "y": y, "feature_names": np.array(MAGIC_COLUMNS)}


def mini_boo_ne(files: list[bytes]) -> dict[str, Array]:
    """MiniBooNE_PID.txt: a line with the numbers of signal (+1) and background (−1) rows, then the rows."""
    text = _unzipped(files[0], "MiniBooNE_PID.txt").decode()
    first, _, rest = text.lstrip().partition("\n")
    signal, background = (int(count) for count in first.split())
    X = np.loadtxt(io.StringIO(rest), dtype=np.float32, ndmin=2)
    if len(X) != signal + background:
        raise InputError(f"MiniBooNE should have {signal + background} rows; this file has {len(X)}")
    return {"X": X, "y": np.repeat(np.array([1, -1], dtype=np.int8), [signal, background])}


def skin(files: list[bytes]) -> dict[str, Array]:
    """Skin_NonSkin.txt: B, G, R and 1 (skin, +1) or 2 (not, −1)."""
    table = np.loadtxt(io.BytesIO(_unzipped(files[0], "Skin_NonSkin.txt")), dtype=np.int16, ndmin=2)
    return {"X": table[:, :3].astype(np.uint8), "y": np.where(table[:, 3] == 1, 1, -1).astype(np.int8)}


def stability(files: list[bytes]) -> dict[str, Array]:
    """Data_for_UCI_named.csv: twelve features, the real number `stab`, and a label that is its sign."""
    lines = _unzipped(files[0], "Data_for_UCI_named.csv").decode().split()
    header = [name.strip('"') for name in lines[0].split(",")]
    table = np.array([line.split(",")[:13] for line in lines[1:]], dtype=np.float64)
    return {"X": table[:, :12], "y": table[:, 12], "feature_names": np.array(header[:12])}


def mnist(files: list[bytes]) -> dict[str, Array]:
    """The four IDX files: training images and labels, test images and labels."""
    names = ("X_train", "y_train", "X_test", "y_test")
    return {name: _idx(gzip.decompress(content)) for name, content in zip(names, files, strict=True)}


def cifar10(files: list[bytes]) -> dict[str, Array]:
    """The binary version (the Python one is pickled): records of a label and 3 × 32 × 32 pixels."""
    parts = [_cifar_records(_untarred(files[0], f"data_batch_{k}.bin")) for k in range(1, 6)]
    X_test, y_test = _cifar_records(_untarred(files[0], "test_batch.bin"))
    X, y = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    return {"X_train": X, "y_train": y, "X_test": X_test, "y_test": y_test}


def purchase100(files: list[bytes]) -> dict[str, Array]:
    """dataset_purchase: the class, 1 to 100 (here 0 to 99), then 600 indicators."""
    content = io.BytesIO(_untarred(files[0], "dataset_purchase"))
    table = np.loadtxt(content, delimiter=",", dtype=np.uint8, ndmin=2)
    return {"X": table[:, 1:], "y": table[:, 0] - 1}


def adult_raw(files: list[bytes]) -> Any:
    """adult.data and adult.test as one frame; `split` says which. A missing value is "?"."""
    import pandas as pd

    options: dict[str, Any] = {"names": ADULT_COLUMNS, "skipinitialspace": True, "comment": "|"}
    parts = []
    for member, split in (("adult.data", "train"), ("adult.test", "test")):
        part = pd.read_csv(io.BytesIO(_unzipped(files[0], member)), **options)
        parts.append(part.assign(income=part["income"].str.rstrip("."), split=split))
    return pd.concat(parts, ignore_index=True)


def bank(files: list[bytes]) -> Any:
    """bank-full.csv, in bank.zip in the archive: 16 attributes and y."""
    import pandas as pd

    return pd.read_csv(io.BytesIO(_unzipped(_unzipped(files[0], "bank.zip"), "bank-full.csv")), sep=";")


def kddcup99(files: list[bytes]) -> Any:
    """kddcup.data_10_percent.gz: 41 attributes and a label, whose full stop is removed."""
    import pandas as pd

    text = {name: "category" for name in ("protocol_type", "service", "flag")}
    frame = pd.read_csv(io.BytesIO(gzip.decompress(files[0])), names=KDD_COLUMNS, dtype=text)
    return frame.assign(label=frame["label"].str.rstrip(".").astype("category"))


def sst2(files: list[bytes]) -> Any:
    """train.tsv and dev.tsv of GLUE; the test part, whose labels GLUE keeps, from the treebank itself."""
    import csv

    import pandas as pd

    parts = []
    for split in ("train", "dev"):
        member = io.BytesIO(_unzipped(files[0], f"{split}.tsv", folder="SST-2"))
        part = pd.read_csv(member, sep="\t", quoting=csv.QUOTE_NONE, dtype={"label": np.int8})
        parts.append(part.assign(sentence=part["sentence"].str.strip(), split=split))
    trees = _unzipped(files[1], "test.txt").decode().splitlines()
    test = [(_leaves(tree), int(tree[1] > "2")) for tree in trees if tree[1:2] not in ("", "2")]
    frame = pd.DataFrame(test, columns=["sentence", "label"]).astype({"label": np.int8})
    return pd.concat([*parts, frame.assign(split="test")], ignore_index=True)


def wikitext2(files: list[bytes]) -> Any:
    """wiki.{train,valid,test}.tokens, an article a row; joined without a separator they are the files."""
    import pandas as pd

    rows = []
    for split in ("train", "valid", "test"):
        text = _unzipped(files[0], f"wiki.{split}.tokens").decode()
        rows += [(split, article) for article in articles(text)]
    return pd.DataFrame(rows, columns=["split", "text"])


def articles(text: str) -> list[str]:
    """A WikiText file cut before each title: a line " = Title = " between two empty ones."""
    starts = [match.start() for match in re.finditer(r"(?m)^ \n(?= = [^=\n](?:.*[^=\n])? = \n \n)", text)]
    starts = [0, *starts[1:]] if starts else [0]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def unpack_sheets(sheets: list[bytes], labels: list[bytes]) -> tuple[Array, Array]:
    """CIFAR-10 as pictures of 50 × 50 images, and a byte of label an image."""
    from PIL import Image

    images = []
    for sheet in sheets:
        with Image.open(io.BytesIO(sheet)) as picture:
            pixels = np.asarray(picture.convert("RGB")).reshape(50, 32, 50, 32, 3)
        images.append(pixels.transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3))
    return np.concatenate(images), np.concatenate([np.frombuffer(part, np.uint8) for part in labels])


def _idx(content: bytes) -> Array:
    """LeCun's IDX format, of unsigned bytes."""
    if content[:3] != b"\x00\x00\x08":
        raise ValueError("not an IDX file of unsigned bytes")
    axes = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


def _cifar_records(content: bytes) -> tuple[Array, Array]:
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(), records[:, 0].copy()


def _leaves(tree: str) -> str:
    """The words of a bracketed tree, lower case as in GLUE."""
    return " ".join(re.findall(r" ([^()\s]+)\)", tree)).lower()


def _libsvm(content: bytes, *, features: int) -> tuple[Array, Array]:
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(io.BytesIO(content), n_features=features)
    return X.toarray(), y


def _unzipped(content: bytes, member: str, *, folder: str = "") -> bytes:
    """A file of a ZIP archive by its name, in whatever folder; or, of several, in the one named."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            parts = name.split("/")
            if parts[-1] == member and (not folder or parts[-2:-1] == [folder]):
                return archive.read(name)
    raise InputError(f"the archive has no {member}; its publisher may have changed it")


def _untarred(content: bytes, member: str) -> bytes:
    """A file of a tar archive by its name. Nothing is extracted to disk."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for name in archive.getnames():
            if name.rsplit("/", 1)[-1] == member and (file := archive.extractfile(name)) is not None:
                return file.read()
    raise InputError(f"the archive has no {member}; its publisher may have changed it")
