"""The published forms of the datasets, in small: bytes in, arrays or a frame out."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from experiments.datasets import parsing

from sidelight.errors import InputError


def zipped(members: dict[str, str | bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return content.getvalue()


def test_libsvm_files_become_dense_arrays() -> None:
    parts = parsing.a9a([b"+1 1:1 123:1\n-1 2:1\n", b"-1 3:1\n"])
    assert parts["X"].shape == (2, 123) and parts["X"].sum() == 3
    assert parts["y"].tolist() == [1, -1] and parts["y_test"].tolist() == [-1]


def test_california_housing_is_in_the_order_of_libsvm() -> None:
    row = b"-122.23,37.88,41.0,880.0,129.0,322.0,126.0,8.3252,452600.0\n"
    parts = parsing.cadata([tarred({"CaliforniaHousing/cal_housing.data": row})])
    expected = np.array([8.3252, 41, 880, 129, 322, 126, 37.88, -122.23], np.float32)
    assert parts["X"].tolist() == [expected.tolist()] and parts["y"].tolist() == [452600]
    assert parts["feature_names"][0] == "median_income" and parts["feature_names"][-1] == "longitude"


def test_uci_archives_are_read() -> None:
    row = ",".join(str(k) for k in range(10))
    magic = parsing.magic04([zipped({"magic04.data": f"{row},g\n{row},h\n"})])
    assert magic["X"].shape == (2, 10) and magic["y"].tolist() == [1, -1]
    boone = parsing.mini_boo_ne([zipped({"MiniBooNE_PID.txt": " 1 2\n 1.0 2.0\n 3.0 4.0\n 5.0 6.0\n"})])
    assert boone["X"].shape == (3, 2) and boone["y"].tolist() == [1, -1, -1]
    header = ",".join(f'"t{k}"' for k in range(12)) + ',"stab","stabf"'
    values = ",".join(["0.5"] * 13) + ',"unstable"'
    grid = parsing.stability([zipped({"x/Data_for_UCI_named.csv": f"{header}\n{values}\n"})])
    assert grid["X"].shape == (1, 12) and grid["y"].tolist() == [0.5] and grid["feature_names"][0] == "t0"


def test_wrong_number_of_rows_or_a_changed_archive_is_refused() -> None:
    with pytest.raises(InputError, match="3 rows"):
        parsing.mini_boo_ne([zipped({"MiniBooNE_PID.txt": " 1 2\n 1.0 2.0\n"})])
    with pytest.raises(InputError, match=r"no magic04\.data"):
        parsing.magic04([zipped({"other.data": ""})])
    with pytest.raises(InputError, match="no dataset_purchase"):
        parsing.purchase100([tarred({"other": b""})])


def test_idx_files_are_read() -> None:
    images = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    pictures = gzip.compress(b"\0\0\x08\x03" + struct.pack(">3i", *images.shape) + images.tobytes())
    labels = gzip.compress(b"\0\0\x08\x01" + struct.pack(">i", 2) + bytes([5, 9]))
    parts = parsing.mnist([pictures, labels, pictures, labels])
    assert (parts["X_train"] == images).all() and (parts["X_test"] == images).all()
    assert parts["y_train"].tolist() == [5, 9] and parts["y_train"].flags.writeable
    with pytest.raises(ValueError, match="IDX"):
        parsing.mnist([labels, gzip.compress(b"<html>"), pictures, labels])


def test_cifar_records_become_images() -> None:
    """In the file a record is its label, then the red plane, the green and the blue."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (6, 32, 32, 3), np.uint8), np.arange(6, dtype=np.uint8)
    record = [
        bytes([label]) + image.transpose(2, 0, 1).tobytes()
        for image, label in zip(images, labels, strict=True)
    ]
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    members = {f"cifar-10-batches-bin/{name}": record[k] for k, name in enumerate(names)}
    parts = parsing.cifar10([tarred(members)])
    assert (parts["X_train"] == images[:5]).all() and (parts["X_test"] == images[5:]).all()
    assert parts["y_train"].tolist() == [0, 1, 2, 3, 4] and parts["y_test"].tolist() == [5]


def test_sheets_of_images_are_cut_in_reading_order() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2500, 32, 32, 3), np.uint8)
    sheet = pixels.reshape(50, 50, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(1600, 1600, 3)
    content = io.BytesIO()
    image.fromarray(sheet).save(content, "PNG", compress_level=0)
    X, y = parsing.unpack_sheets([content.getvalue()], [bytes(range(250)) * 10])
    assert (pixels == X).all() and y[251] == 1 and len(y) == 2500


def test_purchases_count_classes_from_zero() -> None:
    rows = b"1," + b",".join([b"1"] * 600) + b"\n100," + b",".join([b"0"] * 600) + b"\n"
    parts = parsing.purchase100([tarred({"dataset_purchase": rows})])
    assert parts["X"].shape == (2, 600) and parts["X"].sum() == 600 and parts["y"].tolist() == [0, 99]


def test_tables_are_read() -> None:
    pytest.importorskip("pandas")
    person = "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Own, White, Male, 1, 0, 40, Cuba, <=50K"
    adult = parsing.adult_raw([zipped({"adult.data": f"{person}\n", "adult.test": f"|1x3\n{person}.\n"})])
    assert adult["split"].tolist() == ["train", "test"] and set(adult["income"]) == {"<=50K"}
    line = ",".join(["0", "tcp", "http", "SF", *["0"] * 37, "normal."])
    kdd = parsing.kddcup99([gzip.compress(f"{line}\n".encode())])
    assert kdd.shape == (1, 42) and kdd["label"].tolist() == ["normal"]
    inner = zipped({"bank-full.csv": '"age";"job";"y"\n58;"management";"no"\n', "bank.csv": '"age"\n1\n'})
    bank = parsing.bank([zipped({"bank.zip": inner, "bank-additional.zip": b""})])
    assert bank.to_dict("list") == {"age": [58], "job": ["management"], "y": ["no"]}


def test_sentiment_joins_glue_and_the_treebank() -> None:
    pytest.importorskip("pandas")
    glue = zipped(
        {
            "SST-2/train.tsv": 'sentence\tlabel\n"quoted \t1\nbad \t0\n',
            "SST-2/dev.tsv": "sentence\tlabel\nfine\t1\n",
            "SST-2/original/dev.tsv": "nonsense",
        }
    )
    trees = "(3 (2 Good) (2 -LRB-)\n(2 (2 so) (2 so))\n(1 (2 Crème) (2 brûlée))\n"
    frame = parsing.sst2([glue, zipped({"trees/test.txt": trees})])
    assert frame.to_dict("list") == {
        "sentence": ['"quoted', "bad", "fine", "good -lrb-", "crème brûlée"],
        "label": [1, 0, 1, 1, 0],
        "split": ["train", "train", "dev", "test", "test"],
    }


def test_wikitext_is_cut_into_articles() -> None:
    pytest.importorskip("pandas")
    first = " \n = One = \n \n Text = text . \n = = Part = = \n \n a = b \n \n"
    second = " \n = Two ( film ) = \n \n More . \n \n"
    parts = {f"wikitext-2/wiki.{split}.tokens": first + second for split in ("train", "valid", "test")}
    frame = parsing.wikitext2([zipped(parts)])
    assert frame["split"].value_counts().to_dict() == {"train": 2, "valid": 2, "test": 2}
    assert list(frame["text"][:2]) == [first, second]
    assert parsing.articles("no title") == ["no title"]
