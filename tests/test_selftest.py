"""`python -m sidelight.selftest`: a record of 80 columns, and exit code 1 if a check fails."""

from typing import Any

import numpy as np
import pytest

from sidelight import selftest
from sidelight.privacy.noise import Noise


def test_an_installation_that_works_passes_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "passed" and max(map(len, lines)) <= 80
    assert sum(line.startswith("ok ") for line in lines) == len(selftest.CHECKS)
    assert any(line.strip().startswith(f"numpy {np.__version__}") for line in lines)


class Weak(Noise):
    """Noise with nine tenths of its standard deviation."""

    def normal(self, *shape: Any, **options: Any) -> Any:
        return 0.9 * super().normal(*shape, **options)


class Repeated(Noise):
    """Every source has the same key."""

    def __init__(self) -> None:
        super().__init__(7)


class Swapped:
    """Another cipher."""

    def __init__(self, *, key: int, counter: int) -> None:
        self.words = np.array([key, counter % 2**64], dtype=np.uint64)

    def random_raw(self, _: int) -> Any:
        return self.words


@pytest.mark.filterwarnings("ignore:a seed")
@pytest.mark.parametrize(
    ("name", "broken", "check"),
    [("Noise", Weak, "noise"), ("Noise", Repeated, "keys"), ("AESCounter", Swapped, "generator"),
     ("epsilon", lambda *_, **__: 1.0, "accounting"), ("replay_neighbors", None, "replay")],
)  # fmt: skip
def test_a_fault_is_named_and_is_an_exit_code(
    name: str, broken: Any, check: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selftest, name, broken)
    monkeypatch.setattr(selftest, "CHECKS", {check: selftest.CHECKS[check]})
    assert selftest.main() == 1
    out = capsys.readouterr().out
    assert f"FAILED  {check}" in out and out.endswith("1 of 1 checks FAILED\n")
