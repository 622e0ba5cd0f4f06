"""Datasets: found in the folder, or downloaded and checked, or one sentence that says what to do."""

import hashlib
import inspect
import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from experiments import datasets
from experiments.datasets.sources import SOURCES, Origin

from sidelight.errors import InputError, MissingDependency

ROOT = Path(__file__).parents[2]
REAL = os.environ.get("SIDELIGHT_DATA", "")  # before the fixture below
SKIN = "74\t85\t123\t1\n1\t2\t3\t2\n"


def zipped(**members: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(f"folder/{name.replace('__', '.')}", text)
    return content.getvalue()


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SIDELIGHT_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


class Web:
    """A publisher on this machine."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.promise: int | None = None  # a Content-Length that is not kept
        self.asked: list[str] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append(self.path)
                content = web.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(web.promise or len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """skin (two rows) is published here, and MNIST's four files are not."""
    web = Web()
    thread = threading.Thread(target=web.server.serve_forever, args=(0.01,))
    thread.start()
    web.files["/skin.zip"] = zipped(Skin_NonSkin__txt=SKIN)
    origin = Origin(f"{web.address}/skin.zip")
    monkeypatch.setitem(SOURCES, "skin", replace(SOURCES["skin"], origins=(origin,), rows=2))
    monkeypatch.setenv("no_proxy", "*")
    yield web
    web.server.shutdown()
    thread.join()
    web.server.server_close()


def sealed(monkeypatch: pytest.MonkeyPatch, checksum: str) -> None:
    source = SOURCES["skin"]
    origin = replace(source.origins[0], checksum=checksum)
    monkeypatch.setitem(SOURCES, "skin", replace(source, origins=(origin,)))


def test_file_in_the_folder_is_read(home: Path) -> None:
    np.savez(home / "ipums_br.npz", X=np.eye(3, dtype=np.float32), y=np.array([0, 1, 1], np.int8))
    assert datasets.available("ipums-br")
    data = datasets.ipums_br()
    assert data.task == "binary" and data.X_test is None
    assert data.y.tolist() == [-1, 1, 1]


def test_train_and_test_parts_are_told_apart(home: Path) -> None:
    images = np.zeros((3, 28, 28), np.uint8)
    np.savez(home / "mnist.npz", X_train=images, y_train=[5, 0, 4], X_test=images[:1], y_test=[7])
    data = datasets.mnist()
    assert data.X.shape == (3, 28, 28) and data.y.tolist() == [5, 0, 4]
    assert data.X_test is not None and len(data.X_test) == 1 and data.y_test is not None
    assert data.y_test.tolist() == [7]


def test_the_folder_is_the_cache_unless_it_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SIDELIGHT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert datasets.folder() == tmp_path / "sidelight"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.folder() == Path.home() / ".cache" / "sidelight"


def test_download_is_kept_in_our_form(web: Web, home: Path) -> None:
    for _ in range(2):
        data = datasets.skin()
        assert data.X.tolist() == [[74, 85, 123], [1, 2, 3]]
        assert data.y.tolist() == [1, -1]
    assert web.asked == ["/skin.zip"]
    file = home / "skin_segmentation.npz"
    assert list(home.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o644


def test_published_archive_in_the_folder_needs_no_network(web: Web, home: Path) -> None:
    (home / "skin.zip").write_bytes(web.files["/skin.zip"])
    assert datasets.skin(download=False).X.shape == (2, 3)
    assert web.asked == []


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_published_checksum_is_checked(
    web: Web, home: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    right = hashlib.new(kind, web.files["/skin.zip"]).hexdigest()
    sealed(monkeypatch, f"{kind}:{right}")
    web.files["/skin.zip"] += b"\0"
    with pytest.raises(InputError, match=f"its checksum is not {kind}:{right}"):
        datasets.skin()
    assert list(home.iterdir()) == []
    web.files["/skin.zip"] = web.files["/skin.zip"][:-1]
    assert len(datasets.skin().X) == 2


def test_published_checksum_of_a_file_in_the_folder_is_checked(
    web: Web, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "skin.zip").write_bytes(web.files["/skin.zip"] + b"\0")
    sealed(monkeypatch, f"md5:{hashlib.md5(web.files['/skin.zip']).hexdigest()}")
    with pytest.raises(InputError, match="md5"):
        datasets.skin()
    assert [path.name for path in home.iterdir()] == ["skin.zip"] and web.asked == []


def test_a_download_without_pooch_says_what_to_install(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingDependency, match=r"\[experiments\]"):
        datasets.skin()
    assert web.asked == []


def test_a_broken_connection_keeps_nothing(web: Web, home: Path) -> None:
    web.promise = 10_000
    with pytest.raises(InputError, match="connection"):
        datasets.skin()
    assert list(home.iterdir()) == []


def test_a_page_instead_of_the_file_keeps_nothing(web: Web, home: Path) -> None:
    web.files["/skin.zip"] = b"<html>Log in to continue</html>"
    with pytest.raises(InputError, match="published"):
        datasets.skin()
    assert list(home.iterdir()) == []


def test_a_cut_text_is_noticed_by_its_rows(web: Web, home: Path) -> None:
    web.files["/skin.zip"] = zipped(Skin_NonSkin__txt=SKIN.splitlines()[0])
    with pytest.raises(InputError, match="2 rows"):
        datasets.skin()
    assert list(home.iterdir()) == []


def test_a_missing_page_says_so(web: Web, home: Path) -> None:
    del web.files["/skin.zip"]
    with pytest.raises(InputError, match="404") as raised:
        datasets.skin()
    assert str(home) in str(raised.value) and "\n" not in str(raised.value)


def test_offline_says_which_file_to_put_where(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCES["magic04"]
    dead = replace(source, origins=(Origin("http://127.0.0.1:9/magic.zip"),))  # the discard port: refused
    monkeypatch.setitem(SOURCES, "magic04", dead)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(InputError) as raised:
        datasets.magic()
    message = str(raised.value)
    assert "put magic04.npz, or magic.zip as published, into" in message and str(home) in message
    assert "\n" not in message
    with pytest.raises(InputError, match="magic04"):
        datasets.magic(download=False)


def test_what_may_not_be_downloaded_says_what_to_do() -> None:
    with pytest.raises(InputError, match="terms of use"):
        datasets.ipums_us()


def test_a_damaged_download_is_noticed_when_it_is_read(web: Web, home: Path) -> None:
    datasets.skin()
    file = home / "skin_segmentation.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match="skin_segmentation"):
        datasets.skin()


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_truncated_file_is_one_clear_error(home: Path, cut: int) -> None:
    whole = io.BytesIO()
    np.savez_compressed(whole, X=np.arange(300.0).reshape(100, 3), y=np.ones(100))
    (home / "magic04.npz").write_bytes(whole.getvalue()[:cut])
    with pytest.raises(InputError, match="magic04"):
        datasets.magic()


def test_a_flipped_byte_in_a_users_file_is_one_clear_error(home: Path) -> None:
    file = home / "magic04.npz"
    np.savez_compressed(file, X=np.random.default_rng(0).normal(size=(100, 3)), y=np.ones(100))
    content = bytearray(file.read_bytes())
    content[1000] ^= 255
    file.write_bytes(content)
    with pytest.raises(InputError, match="magic04"):
        datasets.magic()


def test_a_file_with_code_in_it_is_refused(home: Path) -> None:
    np.savez(home / "magic04.npz", X=np.array([{}], dtype=object), y=np.ones(1))
    with pytest.raises(InputError, match="magic04"):
        datasets.magic()


def test_rows_and_labels_must_agree(home: Path) -> None:
    np.savez(home / "magic04.npz", X=np.ones((3, 2)), y=np.ones(2))
    with pytest.raises(InputError, match="same number"):
        datasets.magic()


def test_a_damaged_table_is_one_clear_error(home: Path) -> None:
    pytest.importorskip("pyarrow")
    (home / "bank.parquet").write_bytes(b"PAR1" + b"\0" * 100)
    with pytest.raises(InputError, match="bank"):
        datasets.bank()


def test_a_flipped_byte_in_a_stored_table_is_noticed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    inner = zipped(**{"bank-full__csv": '"age";"job";"y"\n58;"management";"no"\n'})
    with zipfile.ZipFile(home / "bank+marketing.zip", "w") as archive:
        archive.writestr("bank.zip", inner)
    monkeypatch.setitem(SOURCES, "bank", replace(SOURCES["bank"], rows=1))
    assert datasets.bank()["job"].tolist() == ["management"]
    file = home / "bank.parquet"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"management", b"manigement", 1))
    with pytest.raises(InputError, match="bank"):
        datasets.bank()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_clear_error(web: Web, home: Path) -> None:
    home.chmod(0o500)
    try:
        with pytest.raises(InputError, match="written"):
            datasets.skin()
    finally:
        home.chmod(0o700)


def test_a_file_where_the_folder_should_be_is_one_clear_error(
    web: Web, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("SIDELIGHT_DATA", str(home / "file"))
    with pytest.raises(InputError, match="written"):
        datasets.skin()


def test_a_terminal_shows_progress(
    web: Web, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    datasets.skin()
    captured = capsys.readouterr()
    assert "100%" in captured.err and captured.out == ""


def test_nothing_is_printed_into_a_pipe(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    datasets.skin()
    assert capsys.readouterr() == ("", "")


def test_names_are_checked() -> None:
    with pytest.raises(InputError, match="no dataset"):
        datasets.load("adult")
    with pytest.raises(InputError, match="load_table"):
        datasets.load("kddcup99")
    with pytest.raises(InputError, match=r"load\('skin'\)"):
        datasets.load_table("skin")


def test_every_dataset_has_a_function_with_license_and_citation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for loader in ("load", "load_table"):
        monkeypatch.setattr(datasets, loader, lambda name, download: asked.append(name))
    for name in set(datasets.__all__) - {"Dataset", "available", "folder", "load", "load_table"}:
        function = getattr(datasets, name)
        function()
        text = inspect.getdoc(function) or ""
        source = SOURCES[asked[-1]]
        assert source.file in text, name
        if name != "ipums_us":  # refers to ipums_br
            assert "Cite:" in text and ("icense" in text or "terms" in text), name
    assert sorted(asked) == sorted(SOURCES)


def test_missing_packages_are_named_and_nothing_heavy_is_imported(home: Path) -> None:
    """In a process of its own, where pandas, pillow and torch cannot be imported."""
    (home / "cifar10_train.parquet").touch()
    (home / "cifar10_test.parquet").touch()
    code = (
        "import sys\n"
        "for name in ('pandas', 'pyarrow', 'PIL', 'torch'): sys.modules[name] = None\n"
        "from experiments import datasets\n"
        "from sidelight import MissingDependency\n"
        "for load in (datasets.adult, datasets.cifar10):\n"
        "    try: load()\n"
        "    except MissingDependency as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.count("pip install '.[experiments]'") == 2


@pytest.mark.skipif(not REAL, reason="SIDELIGHT_DATA names no folder of real datasets")
def test_real_files_have_the_published_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDELIGHT_DATA", REAL)
    for name, source in SOURCES.items():
        if datasets.available(name) and name != "cifar10":  # seconds to unpack
            found = datasets.load_table(name) if source.task == "table" else datasets.load(name).X
            assert len(found) == source.rows, name
