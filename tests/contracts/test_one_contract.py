"""Every face takes the same path: a plan above its budget is refused before it is charged."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.contracts.over_budget import FACES, fault_of

from sidelight.privacy.ledger import Ledger

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("face", FACES.values(), ids=FACES.keys())
def test_plan_above_its_budget_is_refused_before_the_charge(face: Callable[[Ledger], None]) -> None:
    assert fault_of(face) is None


def test_plan_above_its_budget_is_refused_without_asserts() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "tests.contracts.over_budget"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused", *FACES]
