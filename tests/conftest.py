"""Settings for all tests."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

import sidelight  # noqa: F401  (before PyTorch multiplies: it sets MKL_CBWR)

# A time limit per example fails on a busy machine, and says nothing about the code. In CI the same examples
# are drawn each time, so that a red run can be repeated; at a desk they differ, so that new ones are found.
settings.register_profile("sidelight", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("sidelight")

HAS_TORCH = find_spec("torch") is not None


# These take longest and begin first: a long file that begins last keeps a core waiting.
LONGEST = (
    "tests/docs/test_examples.py",
    "tests/contracts/test_random_networks.py",
    "tests/mistakes/test_zoo.py",
    "tests/contracts/test_methods.py",
    "tests/contracts/test_guided_estimators.py",
    "tests/deep/test_network_auto.py",
    "tests/estimators/test_sklearn_checks.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others in their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.split("::")[0], len(places)))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without PyTorch, files that import it at their head are left out."""
    python = collection_path.suffix == ".py"
    return True if python and not HAS_TORCH and "\nimport torch\n" in collection_path.read_text() else None


@pytest.fixture(autouse=True)
def first_guess(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Public training of networks tries its first setting alone: others depend on how fast a machine is."""
    module = sys.modules.get("sidelight.problems.public_training")
    if module is not None and request.path.stem != "test_public_training":
        monkeypatch.setattr(module, "_LEAST_SECONDS", 0.0)
        monkeypatch.setattr(module, "_PATIENCE", 0.0)


@pytest.fixture
def same_noise() -> Iterator[None]:
    """Noise that depends on its seed alone, to compare two ways of computing one thing."""
    from sidelight.audit.tape import same_noise

    with same_noise():
        yield
