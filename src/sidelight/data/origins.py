"""How the published files of the benchmark tables are read: bytes in, arrays or a frame out.

Values stay the originals. `datasets` says where the files come from, under which licence.
"""

from __future__ import annotations

import gzip
import io
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
    """LIBSVM's cadata: eight features, the target is the median house value in dollars."""
    X, y = _libsvm(files[0], features=8)
    return {"X": X.astype(np.float32), "y": y.astype(np.float32)}


def magic04(files: list[bytes]) -> dict[str, Array]:
    """magic04.data: ten numbers and g (gamma, +1) or h (hadron, −1)."""
    rows = [line.split(",") for line in _unzipped(files[0], "magic04.data").decode().split()]
    X = np.array([row[:10] for row in rows], dtype=np.float32)
    return {"X": X, "y": np.array([1 if row[10] == "g" else -1 for row in rows], dtype=np.int8)}


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


def adult_raw(files: list[bytes]) -> Any:
    """adult.data and adult.test as one frame; `split` says which. A missing value is "?"."""
    import pandas as pd

    options: dict[str, Any] = {"names": ADULT_COLUMNS, "skipinitialspace": True, "comment": "|"}
    parts = []
    for member, split in (("adult.data", "train"), ("adult.test", "test")):
        part = pd.read_csv(io.BytesIO(_unzipped(files[0], member)), **options)
        parts.append(part.assign(income=part["income"].str.rstrip("."), split=split))
    return pd.concat(parts, ignore_index=True)


def kddcup99(files: list[bytes]) -> Any:
    """kddcup.data_10_percent.gz: 41 attributes and a label, whose full stop is removed."""
    import pandas as pd

    frame = pd.read_csv(io.BytesIO(gzip.decompress(files[0])), names=KDD_COLUMNS)
    return frame.assign(label=frame["label"].str.rstrip("."))


def _libsvm(content: bytes, *, features: int) -> tuple[Array, Array]:
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(io.BytesIO(content), n_features=features)
    return X.toarray(), y


def _unzipped(content: bytes, member: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            if name.rsplit("/", 1)[-1] == member:
                return archive.read(name)
    raise InputError(f"the archive has no {member}; its publisher may have changed it")
