"""Run the command in this process, and see what a shell would see."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sidelight.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    folded: str  # stderr as it was printed

    @property
    def err(self) -> str:
        """What was printed on stderr, without the folds of its lines."""
        return self.folded.replace("\n  ", " ")

    @property
    def words(self) -> str:
        """What was printed, without the folds of its lines."""
        return " ".join(self.out.split())

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=_no_constants)

    def is_one_line_error(self, code: int, *words: str) -> None:
        """Nothing on stdout, one message of 80 columns on stderr with these words, and this exit code."""
        assert self.code == code, self.err
        assert self.out == ""
        assert self.err.count("\n") == 1 and self.err.endswith("\n"), self.err
        assert [line for line in self.folded.splitlines() if len(line) > 80 and " " in line.strip()] == []
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err, self.err


def _no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


Run = Callable[..., Outcome]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("SIDELIGHT_DEBUG", raising=False)

    def call(*args: object) -> Outcome:
        capfd.readouterr()
        code = main([str(a) for a in args])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call
