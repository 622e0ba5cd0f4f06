"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# A time limit per example fails on a busy machine, and says nothing about the code. In CI the same examples
# are drawn each time, so that a red run can be repeated; at a desk they differ, so that new ones are found.
settings.register_profile("sidelight", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("sidelight")
