"""`sidelight demo`: it computes what it says, and what it says to type next works."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sidelight.cli import demo_command as demo
from sidelight.cli import terminal
from sidelight.comparison.stages import Comparison, Trial, gaussian


def sidelight(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, in a process and a folder of its own."""
    home = str(Path(demo.__file__).parents[2])
    env = os.environ | {"PYTHONPATH": home, "COLUMNS": "100"}
    command = [sys.executable, "-m", "sidelight", *args]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """One small demonstration, in a process of its own."""
    folder = tmp_path_factory.mktemp("demo")
    done = sidelight("demo", "--epsilon", "1", "--repeats", "1", "--out", "here", folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, folder


def test_the_table_has_every_method_of_both_problems(shown: tuple[str, str, Path]) -> None:
    out, err, _ = shown
    assert err == ""  # the warning of non_private is said in words, not shouted
    for method in demo.METHODS:
        assert len(re.findall(rf"^ {method} +\d\d\.\d ±\d\.\d", out, re.MULTILINE)) == 2
    assert out.count("*") >= 3 and "\x1b" not in out
    assert "no guarantee" in out


def test_public_rows_buy_much_where_features_are_correlated(shown: tuple[str, str, Path]) -> None:
    second = shown[0].split("2. The same labels")[1]
    score = {m: float(re.search(rf"^ {m} +(\d\d\.\d)", second, re.MULTILINE)[1]) for m in demo.METHODS}  # type: ignore[index]
    assert score["auto"] > score["dp_sgd"] + 5 > score["only_public"]
    assert score["non_private"] + 1 > score["auto"]


def test_reports_and_tables_are_written_whole(shown: tuple[str, str, Path]) -> None:
    folder = shown[2] / "here"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["new.csv", "private.csv", "public.csv", "report-correlated.html", "report.html"]
    for name in ("report.html", "report-correlated.html"):
        page = (folder / name).read_text()
        assert "rsgd_ar" in page and "coupling" in page
    with open(folder / "public.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 51 and len(rows[0]) == 101 and rows[0][-1] == "label"
    assert {row[-1] for row in rows[1:]} == {"no", "yes"}
    with open(folder / "new.csv", newline="") as file:
        assert "label" not in next(csv.reader(file))


def test_what_to_type_next_works(shown: tuple[str, str, Path]) -> None:
    out, _, folder = shown
    # By name, or by the place of an environment that is not active.
    whole = re.sub(r" \\\n +", " ", out)
    lines = [line.strip() for line in whole.splitlines() if re.match(r"  (\S*/)?sidelight ", line)]
    assert [line.split()[1] for line in lines] == [
        *("fit", "predict", "report", "compare", "schema", "methods", "audit")
    ]
    for line in lines[:3]:
        done = sidelight(*shlex.split(line)[1:], folder=folder)
        assert done.returncode == 0, (line, done.stderr)
    with open(folder / "here" / "predictions.csv", newline="") as file:
        found = [row[-1] for row in csv.reader(file)][1:]
    stage = gaussian(0, "correlated")
    assert np.mean(np.array(found) == stage.y_test[:1000]) > 0.6  # a model was learned, and used


def test_the_same_seed_gives_the_same_numbers(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "METHODS", ("only_public", "dp_sgd", "auto", "non_private"))
    first, again = (
        run("demo", "--json", "--epsilon", "2", "--repeats", "1", "--seed", "3", "--out", tmp_path).json
        for _ in range(2)
    )
    assert first == again
    assert (gaussian(3000).X != gaussian(4000).X).all()  # another seed, other data
    assert first["problems"][0]["features"] == "isotropic"
    assert {row["method"] for row in first["problems"][0]["comparison"]} == set(demo.METHODS)
    assert Path(first["files"]["private"]).exists()


def test_dp_sgd_sees_no_public_row() -> None:
    stage = gaussian(0, "correlated")
    model = demo._estimator("dp_sgd", 1.0, stage)
    assert model.method.public_rows == "unused" and not model.method.needs_public
    assert demo._estimator("auto", 1.0, stage).method.name == "auto"


def comparison(**scores: float) -> Comparison:
    """Methods with these scores at ε = 1, on three stages that differ a little."""
    found = Comparison(demo.METHODS, (1.0,))
    for i, wobble in enumerate((-0.001, 0.0, 0.001)):
        for method, score in scores.items():
            ids = np.arange(2) + 2 * i
            found.add(Trial(method, 1.0, np.full(2, score + wobble * (method == "auto")), ids))
    return found


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"dp_sgd": 0.6, "auto": 0.7, "only_public": 0.5}, "buy up to 10.0 points over dp_sgd (ε = 1, auto)"),
        ({"dp_sgd": 0.7, "auto": 0.6, "only_public": 0.5}, "they buy nothing"),
        ({"dp_sgd": 0.6, "auto": 0.6001, "only_public": 0.5}, "they buy nothing"),
        # rsgd_ar uses no public row: its gain is not theirs
        ({"dp_sgd": 0.6, "rsgd_ar": 0.8, "auto": 0.5, "only_public": 0.5}, "they buy nothing"),
    ],
)
def test_the_verdict_says_what_the_table_says(scores: dict[str, float], words: str) -> None:
    assert words in demo._verdict(comparison(**scores))


def test_marks(run: Any) -> None:
    found = comparison(dp_sgd=0.6, auto=0.7, only_public=0.7, non_private=0.9)
    assert found.best(1.0) in ("auto", "only_public") and found.level("auto", 1.0)
    assert found.level("only_public", 1.0) and not found.level("dp_sgd", 1.0)
    assert found.best(1.0, among=("dp_sgd",)) == "dp_sgd"
    cells = {
        m: terminal._cell(found, m, 1.0, bare=True) for m in ("auto", "dp_sgd", "non_private", "coupling")
    }
    assert "70.0" in cells["auto"] and cells["dp_sgd"] == "60.0 " and cells["non_private"] == "90.0 "
    assert "·" in cells["coupling"]


def test_narrow_screens_leave_errors_out() -> None:
    found = comparison(**dict.fromkeys(demo.METHODS, 0.5))
    wide, narrow = (terminal.grid(found, width=width) for width in (80, 20))
    assert "±" in str(list(wide.columns[1].cells)) and "±" not in str(list(narrow.columns[1].cells))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--epsilon", "0"), "--epsilon: expected"),
        (("--epsilon", "1,x"), "'x'"),
        (("--epsilon", ""), "--epsilon: expected"),
        (("--epsilon", "1,1"), "different numbers"),
        (("--epsilon", ",".join(map(str, range(1, 14)))), "at most 12"),
        (("--repeats", "0"), "--repeats: expected"),
        (("--repeats", "1.5"), "--repeats: expected"),
        (("--seed", "-1"), "--seed"),
        (("more",), "unexpected extra argument"),
    ],
)
def test_bad_usage_is_one_line(run: Any, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    run("demo", "--out", tmp_path / "x", *args).is_one_line_error(2, words)
    assert not (tmp_path / "x").exists()


def test_a_file_in_place_of_the_folder_stops_it_before_the_work(run: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    run("demo", "--out", tmp_path / "x").is_one_line_error(2, "cannot be a folder")
    assert (tmp_path / "x").read_text() == "mine"


def test_the_tour(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = run("demo", "--tour").out
    for words in ("What a budget buys", "BoundedSum", "refused:", "composed ε"):
        assert words in out
    assert list(tmp_path.iterdir()) == []
