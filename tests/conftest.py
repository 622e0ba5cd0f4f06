"""Settings for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

import sidelight  # noqa: F401  (before PyTorch multiplies: it sets MKL_CBWR)

# A time limit per example fails on a busy machine, and says nothing about the code. In CI the same examples
# are drawn each time, so that a red run can be repeated; at a desk they differ, so that new ones are found.
settings.register_profile("sidelight", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("sidelight")


@pytest.fixture
def same_noise() -> Iterator[None]:
    """Noise that depends on its seed alone, to compare two ways of computing one thing."""
    from sidelight.audit.tape import same_noise

    with same_noise():
        yield
