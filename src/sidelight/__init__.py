"""Differentially private learning, guided by public data.

Estimators, trainers, tables, the ledger and errors. Methods, and what a recipe is made of, are in
`sidelight.methods`, accounting by hand in `sidelight.accounting`. Names load on first use, so that
`import sidelight` is instant and never loads PyTorch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sidelight.errors import (
    AssumptionError,
    BudgetExceeded,
    DatasetMismatch,
    InputError,
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    MissingDependency,
    NotPrivateWarning,
    PrivacyConditionError,
    PrivacyWarning,
    RankLost,
    RecordsWarning,
    RelationError,
    SidelightError,
    UnboundedSensitivity,
)
from sidelight.lazy_names import load

# MKL, PyTorch's BLAS, reads this when it first multiplies. Without it a row's last bits depend on its place
# in a pass, on some processors. No difference in speed could be measured.
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from sidelight.comparison.rehearsals import compare
    from sidelight.deep import PrivateNetClassifier, PrivateNetRegressor, PrivateStep, Trainer, diagnose
    from sidelight.estimators import PrivateClassifier, PrivateRegressor
    from sidelight.federated import FederatedServer
    from sidelight.methods.auto import auto
    from sidelight.methods.tuned import tune
    from sidelight.privacy.ledger import Ledger
    from sidelight.tables import Schema, fit_tables

__version__ = "0.2.0"

__all__ = [
    "AssumptionError",
    "BudgetExceeded",
    "DatasetMismatch",
    "FederatedServer",
    "InputError",
    "Ledger",
    "LedgerBusy",
    "LedgerDamaged",
    "LedgerError",
    "MissingDependency",
    "NotPrivateWarning",
    "PrivacyConditionError",
    "PrivacyWarning",
    "PrivateClassifier",
    "PrivateNetClassifier",
    "PrivateNetRegressor",
    "PrivateRegressor",
    "PrivateStep",
    "RankLost",
    "RecordsWarning",
    "RelationError",
    "Schema",
    "SidelightError",
    "Trainer",
    "UnboundedSensitivity",
    "__version__",
    "auto",
    "compare",
    "diagnose",
    "fit_tables",
    "tune",
]

_HOMES = {
    "FederatedServer": "sidelight.federated",
    "Ledger": "sidelight.privacy.ledger",
    "PrivateClassifier": "sidelight.estimators",
    "PrivateNetClassifier": "sidelight.deep",
    "PrivateNetRegressor": "sidelight.deep",
    "PrivateRegressor": "sidelight.estimators",
    "PrivateStep": "sidelight.deep",
    "Schema": "sidelight.tables",
    "Trainer": "sidelight.deep",
    "auto": "sidelight.methods",
    "compare": "sidelight.comparison.rehearsals",
    "diagnose": "sidelight.deep",
    "fit_tables": "sidelight.tables",
    "tune": "sidelight.methods.tuned",
}


def __getattr__(name: str) -> Any:
    value = globals()[name] = load(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
