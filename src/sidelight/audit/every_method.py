"""What `sidelight audit --all` runs: every declared method, and settings of it that differ in kind.

Methods of many steps declare few for this. Their noise is calibrated to the same ε for however many steps
there are, so that a fault in a step, its noise or its accounting shows as well, and an audit takes seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.public_whitening import public_whitening
from sidelight.methods.registry import DECLARATIONS
from sidelight.methods.selection import PrivateSelection
from sidelight.methods.task import Method

__all__ = ["linear", "networks"]

_STEPS = 6


def linear() -> dict[str, Callable[[], Method]]:
    """Every method on a linear model; "dp_sgd, sampled" is a variant of dp_sgd."""
    found: dict[str, Callable[[], Method]] = {}
    for declared in DECLARATIONS.values():
        found |= declared.examples()
    return {**found, "private selection": _selection}


def networks() -> dict[str, Callable[[], Method]]:
    """On networks: every recipe of steps that `Trainer` takes."""
    return {
        name: functools.partial(declared.make, **declared.on_network)
        for name, declared in DECLARATIONS.items()
        if declared.networks and hasattr(declared.make(), "with_parts")
    }


def _selection() -> Method:
    return PrivateSelection(((public_whitening(steps=_STEPS), 0.0), (dp_sgd(steps=_STEPS), 0.3)))
