"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from sidelight.errors import InputError
from sidelight.files import whole_file, write_bytes, write_text


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
        with pytest.raises(InputError, match="cannot be written"):
            write_text(place, "")
    with whole_file(tmp_path / "no" / "a", parents=True) as new:
        new.touch()
    assert (tmp_path / "no" / "a").exists()
