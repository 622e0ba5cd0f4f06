"""Files that are there whole, or not at all."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sidelight.errors import InputError
from sidelight.files import (
    check_output_folder,
    missing,
    new_folder,
    private_folder,
    sweep,
    whole_file,
    write_bytes,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_appears_at_the_end_and_alone(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a.npy") as new:
        np.save(new, np.arange(3))  # which would add a suffix of its own to a name without it
        assert not (tmp_path / "a.npy").exists()
    assert names(tmp_path) == ["a.npy"] and np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt(), ValueError("no")])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path, error: BaseException) -> None:
    write_text(tmp_path / "a", "old")
    kind = InputError if isinstance(error, OSError) else type(error)
    with pytest.raises(kind), whole_file(tmp_path / "a") as new:
        new.write_text("half")
        raise error
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_a_secret_is_for_its_owner_alone_while_it_is_written(tmp_path: Path) -> None:
    with whole_file(tmp_path / "key", secret=True) as new:
        assert mode(new) == 0o600
    assert mode(tmp_path / "key") == 0o600
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "page", "")
    finally:
        os.umask(before)
    assert mode(tmp_path / "page") == 0o640  # anything else is for whom the user says


def test_a_secret_that_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".state.json.0123abcd.part.json"
    left.write_text("a key")
    write_bytes(tmp_path / "state.json", b"{}", secret=True)
    assert names(tmp_path) == ["state.json"]


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    for place in (tmp_path / "no" / "a", tmp_path, Path("/")):
        with pytest.raises(InputError, match="written"):
            write_text(place, "")
    with whole_file(tmp_path / "no" / "a", parents=True) as new:
        new.touch()
    assert (tmp_path / "no" / "a").exists()


# ---------------------------------------------------------------------------------------------------
# folders of writers that were killed


def _written_and_killed(folder: Path, moment: str) -> None:
    """A process that is killed while it writes, or between the two renames of a replacement."""
    child = os.fork()
    if child == 0:
        rename = os.rename

        def killed(old: object, new: object) -> None:
            rename(old, new)  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGKILL)

        with new_folder(folder) as new:
            (new / "model.json").write_text("new")
            if moment == "writing":
                os.kill(os.getpid(), signal.SIGKILL)
            os.rename = killed  # type: ignore[assignment]
    os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("moment", ["writing", "renaming"])
@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
def test_what_a_killed_writer_left_is_swept(tmp_path: Path, moment: str, there: bool) -> None:
    folder = tmp_path / "model"
    if there:
        folder.mkdir()
        (folder / "model.json").write_text("old")
    _written_and_killed(folder, moment)
    if (moment, there) != ("renaming", False):
        assert any(name.startswith(".model.") for name in names(tmp_path)), "nothing was left to sweep"
    check_output_folder(folder, sign="model.json", overwrite=True)
    wanted = {("writing", False): None, ("renaming", False): "new"}.get((moment, there), "old")
    assert names(tmp_path) == ([] if wanted is None else ["model"])
    if wanted is not None:
        assert (folder / "model.json").read_text() == wanted  # and never neither


def test_a_private_folder_is_its_owners_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with private_folder("sl") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
        assert [entry.name for entry in tmp_path.iterdir()] == [folder.name]
    assert os.listdir(tmp_path) == []
    left = subprocess.run(
        [sys.executable, "-c", _LEAVES_A_FOLDER], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert left.returncode == -9 and len(os.listdir(tmp_path)) == 1
    with private_folder("sl") as folder:
        assert os.listdir(tmp_path) == [folder.name]


_LEAVES_A_FOLDER = """
import os, signal
from sidelight.files import private_folder
with private_folder("sl"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_living_writer_or_somebody_else_has_is_left_alone(tmp_path: Path) -> None:
    with new_folder(tmp_path / "model") as new:
        (tmp_path / ".model.notes").mkdir()
        (tmp_path / ".model.00000000-1-x").mkdir()  # of another machine
        before = names(tmp_path)
        sweep(tmp_path / "model")
        assert names(tmp_path) == before and new.exists()


def test_a_path_that_leads_nowhere_says_why(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("elsewhere")
    assert missing(tmp_path / "none") == f"{tmp_path / 'none'} does not exist"
    assert missing(tmp_path / "loop").endswith("loop is a link that leads back to itself")
    assert missing(tmp_path / "dangling").endswith("is a link to elsewhere, which does not exist")
