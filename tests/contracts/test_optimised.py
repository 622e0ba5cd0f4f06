"""Every guard raises under `python -O` too, where no assert is executed.

pytest rewrites the asserts of test files before they are compiled, so these hold there all the same; asserts
of anything else vanish. `over_budget` has the faces that take long to import.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUARDS = [
    "tests/privacy/test_release.py",
    "tests/privacy/test_filters.py",
    "tests/privacy/test_floats.py",
    "tests/privacy/test_ledger.py",
    "tests/privacy/test_ledger_budget.py",
    "tests/privacy/test_accounts.py",
    "tests/privacy/test_events.py",
    "tests/methods/test_charged.py",
]
SLOW = "not exact and not elsewhere and not only"  # frequencies and sources, which -O does not change
NOTICE = "ignore:assertions not in test modules:pytest.PytestConfigWarning"


def optimized(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-O", "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-W", NOTICE, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_privacy_tests_hold_without_asserts() -> None:
    done = optimized(*GUARDS, "-k", SLOW)
    assert done.returncode == 0, done.stdout[-3000:]


def test_contract_catches_a_guard_that_is_an_assert() -> None:
    done = optimized("-p", "tests.contracts.planted_assert", "tests/privacy/test_filters.py")
    assert done.returncode == 1 and "test_never_past_the_budget" in done.stdout, done.stdout[-3000:]


def test_asserts_of_test_files_are_executed(tmp_path: Path) -> None:
    (tmp_path / "test_false.py").write_text("def test_false():\n    assert not __debug__\n    assert False\n")
    done = optimized(str(tmp_path), f"--rootdir={tmp_path}")
    assert done.returncode == 1 and ":3: AssertionError" in done.stdout, done.stdout[-3000:]
