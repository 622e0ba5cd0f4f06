"""Datasets: found in the folder, or read from their published form, or one sentence that says what to do."""

from __future__ import annotations

import gzip
import io
import urllib.error
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sidelight.data import datasets, origins
from sidelight.errors import InputError


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SIDELIGHT_DATA", str(tmp_path))
    return tmp_path


def zipped(**members: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(f"folder/{name.replace('__', '.')}", text)
    return content.getvalue()


def test_file_in_the_folder_is_read(empty_folder: Path) -> None:
    np.savez(empty_folder / "ipums_br.npz", X=np.eye(3, dtype=np.float32), y=np.array([0, 1, 1], np.int8))
    assert datasets.available("ipums-br")
    data = datasets.load("ipums-br")
    assert data.task == "binary"
    assert data.y.tolist() == [-1, 1, 1]


def test_missing_file_without_a_licence_to_download_says_what_to_do(empty_folder: Path) -> None:
    with pytest.raises(InputError, match=r"put ipums_us\.npz into"):
        datasets.load("ipums-us")


def test_offline_says_which_file_to_put_where(monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> None:
    def offline(url: str) -> bytes:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(datasets, "_read", offline)
    with pytest.raises(InputError) as raised:
        datasets.load("magic04")
    assert "magic04.npz" in str(raised.value) and str(empty_folder) in str(raised.value)
    with pytest.raises(InputError, match="is not there"):
        datasets.load("magic04", download=False)


def test_download_is_kept(monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> None:
    calls = []

    def fetch(url: str) -> bytes:
        calls.append(url)
        return zipped(Skin_NonSkin__txt="74\t85\t123\t1\n1\t2\t3\t2\n")

    monkeypatch.setattr(datasets, "_read", fetch)
    for _ in range(2):
        data = datasets.load("skin")
        assert data.X.tolist() == [[74, 85, 123], [1, 2, 3]]
        assert data.y.tolist() == [1, -1]
    assert len(calls) == 1


def test_names_are_checked() -> None:
    with pytest.raises(InputError, match="there is no dataset"):
        datasets.load("adult")
    with pytest.raises(InputError, match="load_table"):
        datasets.load("kddcup99")
    with pytest.raises(InputError, match=r"load\('skin'\)"):
        datasets.load_table("skin")


def test_libsvm_files_become_dense_arrays() -> None:
    parts = origins.a9a([b"+1 1:1 123:1\n-1 2:1\n", b"-1 3:1\n"])
    assert parts["X"].shape == (2, 123) and parts["X"].sum() == 3
    assert parts["y"].tolist() == [1, -1] and parts["y_test"].tolist() == [-1]
    assert origins.cadata([b"452600 1:8.3 8:-122.2\n"])["X"].shape == (1, 8)


def test_uci_archives_are_read() -> None:
    row = ",".join(str(k) for k in range(10))
    magic = origins.magic04([zipped(magic04__data=f"{row},g\n{row},h\n")])
    assert magic["X"].shape == (2, 10) and magic["y"].tolist() == [1, -1]
    boone = origins.mini_boo_ne([zipped(MiniBooNE_PID__txt=" 1 2\n 1.0 2.0\n 3.0 4.0\n 5.0 6.0\n")])
    assert boone["X"].shape == (3, 2) and boone["y"].tolist() == [1, -1, -1]
    header = ",".join(f'"t{k}"' for k in range(12)) + ',"stab","stabf"'
    values = ",".join(["0.5"] * 13) + ',"unstable"'
    grid = origins.stability([zipped(Data_for_UCI_named__csv=f"{header}\n{values}\n")])
    assert grid["X"].shape == (1, 12) and grid["y"].tolist() == [0.5] and grid["feature_names"][0] == "t0"


def test_wrong_number_of_rows_or_a_changed_archive_is_refused() -> None:
    with pytest.raises(InputError, match="should have 3 rows"):
        origins.mini_boo_ne([zipped(MiniBooNE_PID__txt=" 1 2\n 1.0 2.0\n")])
    with pytest.raises(InputError, match=r"no magic04\.data"):
        origins.magic04([zipped(other__data="")])


def test_tables_are_read() -> None:
    pytest.importorskip("pandas")
    person = "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Own, White, Male, 1, 0, 40, Cuba, <=50K"
    adult = origins.adult_raw([zipped(adult__data=f"{person}\n", adult__test=f"|1x3\n{person}.\n")])
    assert adult["split"].tolist() == ["train", "test"] and set(adult["income"]) == {"<=50K"}
    line = ",".join(["0", "tcp", "http", "SF", *["0"] * 37, "normal."])
    kdd = origins.kddcup99([gzip.compress(f"{line}\n".encode())])
    assert kdd.shape == (1, 42) and kdd["label"].tolist() == ["normal"]
