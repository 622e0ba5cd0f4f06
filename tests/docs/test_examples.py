"""Every code block of README and docs runs: a page from top to bottom, in one folder and one namespace."""

import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.pages import PAGES, Block, blocks, name_of

from sidelight.errors import NotPrivateWarning

RUNNABLE = ("python", "console")
STORIES = [page for page in PAGES if any(block.language in RUNNABLE for block in blocks(page))]


@pytest.mark.parametrize("page", STORIES, ids=name_of)
def test_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with same_environment():
        run_page(page, tmp_path, monkeypatch, capsys)


@contextmanager
def same_environment() -> Iterator[None]:
    """What a page sets is gone afterwards."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if re.search(
        r"^(import|from) torch|\bTrainer\b|PrivateStep", "\n".join(b.code for b in blocks(page)), re.M
    ):
        pytest.importorskip("torch")
        for limit in ("_LEAST_SECONDS", "_PATIENCE"):  # of the choice of public training
            monkeypatch.setattr(f"sidelight.problems.public_training.{limit}", 0.0)
    if any("import polars" in block.code for block in blocks(page)):
        pytest.importorskip("polars")
    if any("transformers" in block.code for block in blocks(page) if block.language == "python"):
        pytest.importorskip("transformers", reason="`make test-models` runs this page")
    monkeypatch.chdir(tmp_path)
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # dataclasses look their module up
    found = blocks(page)
    for block, after in zip(found, [*found[1:], None], strict=True):
        if re.search(r"engine[ =]\"?ray", block.code) and find_spec("ray") is None:
            continue  # `make test-ray` runs it
        if block.language == "python" and block.reason is None:
            capsys.readouterr()
            run_python(block, module.__dict__)
            shown = shown_output(block, after)
            assert shown in (None, capsys.readouterr().out), f"{block.where}: the page shows another output"
        elif block.language == "console" and block.reason is None:
            run_console(block, capsys)


def shown_output(block: Block, after: Block | None) -> str | None:
    """What the page says that an example prints: a block of text right below it."""
    below = block.line + block.code.count("\n") + 2  # past two fences
    return after.code if after is not None and (after.language, after.line) == ("text", below) else None


def run_python(block: Block, names: dict[str, object]) -> None:
    code = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's own line
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        exec(compile(code, str(block.page), "exec"), names)


def run_console(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Every `$ sidelight …` line, in order. A trailing `# exit 3` is the exit code to expect."""
    from sidelight.cli import main

    commands = re.findall(r"^\$ (.*)$", block.code.replace("\\\n", " "), re.M)
    assert commands, f"{block.where}: a console block without a command"
    for command in commands:
        words, _, expected = command.partition("# exit ")
        program, *arguments = shlex.split(words)
        assert program == "sidelight", (
            f"{block.where}: mark blocks with other commands as not run, with a reason"
        )
        code = main(arguments)
        assert code == int(expected or 0), f"{block.where}: {command}\n{capsys.readouterr().err}"


def test_what_is_not_run_has_a_reason_and_is_rare() -> None:
    marked = [block for page in PAGES for block in blocks(page) if block.reason is not None]
    assert all(block.language in RUNNABLE for block in marked)
    assert len(marked) <= 8, [block.where for block in marked]


def test_no_example_hides_from_being_run() -> None:
    """A block in another language holds no command of ours and no Python of ours."""
    for page in PAGES:
        for block in blocks(page):
            assert block.language in (*RUNNABLE, "", "text", "json", "yaml", "toml"), block.where
            if block.language not in RUNNABLE:
                hidden = re.search(r"^(\$ )?sidelight |^(from|import) sidelight", block.code, re.M)
                assert hidden is None, f"{block.where}: {hidden and hidden.group(0)!r}"
