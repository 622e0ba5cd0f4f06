"""Differentially private learning, guided by public data.

What a user imports is here; where it lives is an internal matter. Names load on first use (PEP 562), so that
`import sidelight` is instant and never loads PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sidelight.errors import (
    AssumptionError,
    BudgetExceeded,
    InputError,
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    MissingDependency,
    NotPrivateWarning,
    PrivacyConditionError,
    PrivacyWarning,
    RelationError,
    SidelightError,
    UnboundedSensitivity,
)

if TYPE_CHECKING:
    from sidelight.privacy.accountants import delta, epsilon
    from sidelight.privacy.calibrate import noise_multiplier
    from sidelight.privacy.events import Relation
    from sidelight.privacy.ledger import Ledger
    from sidelight.privacy.noise import Noise
    from sidelight.privacy.release import BoundedSum, Released, release

__version__ = "0.1.0"

__all__ = [
    "AssumptionError",
    "BoundedSum",
    "BudgetExceeded",
    "InputError",
    "Ledger",
    "LedgerBusy",
    "LedgerDamaged",
    "LedgerError",
    "MissingDependency",
    "Noise",
    "NotPrivateWarning",
    "PrivacyConditionError",
    "PrivacyWarning",
    "Relation",
    "RelationError",
    "Released",
    "SidelightError",
    "UnboundedSensitivity",
    "__version__",
    "delta",
    "epsilon",
    "noise_multiplier",
    "release",
]

# The same names as under TYPE_CHECKING; a test compares the two.
_LAZY = {
    "BoundedSum": "sidelight.privacy.release",
    "Ledger": "sidelight.privacy.ledger",
    "Noise": "sidelight.privacy.noise",
    "Relation": "sidelight.privacy.events",
    "Released": "sidelight.privacy.release",
    "delta": "sidelight.privacy.accountants",
    "epsilon": "sidelight.privacy.accountants",
    "noise_multiplier": "sidelight.privacy.calibrate",
    "release": "sidelight.privacy.release",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sidelight' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
