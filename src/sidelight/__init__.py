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
    DatasetMismatch,
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
    from sidelight.deep import PrivateNetClassifier, PrivateNetRegressor, PrivateStep, Trainer
    from sidelight.erm.baselines import majority, non_private, only_public
    from sidelight.erm.dp_agd import agd_avg, dp_agd
    from sidelight.erm.objective_perturbation import amp, objective_perturbation
    from sidelight.erm.output_perturbation import output_perturbation
    from sidelight.erm.pnsgd import pnsgd
    from sidelight.erm.rsgd_ar import nsgd, rsgd_ar
    from sidelight.estimators import PrivateClassifier, PrivateRegressor
    from sidelight.methods.adadps import adadps
    from sidelight.methods.adamix import adamix
    from sidelight.methods.auto import auto
    from sidelight.methods.coupling import coupling
    from sidelight.methods.dope_sgd import dope_sgd
    from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private
    from sidelight.methods.dpmd import dpmd
    from sidelight.methods.ppsgd import ppsgd
    from sidelight.methods.public_whitening import public_whitening
    from sidelight.methods.sample_mechanism import sample_mechanism
    from sidelight.methods.sgd_adv import sgd_adv
    from sidelight.privacy.accountants import delta, epsilon
    from sidelight.privacy.calibrate import noise_multiplier
    from sidelight.privacy.events import Relation
    from sidelight.privacy.ledger import Ledger
    from sidelight.privacy.noise import Noise
    from sidelight.privacy.release import BoundedSum, Released, release
    from sidelight.privacy.statement import PrivacyStatement
    from sidelight.rehearsals import compare

__version__ = "0.1.0"

__all__ = [
    "AssumptionError",
    "BoundedSum",
    "BudgetExceeded",
    "DatasetMismatch",
    "InputError",
    "Ledger",
    "LedgerBusy",
    "LedgerDamaged",
    "LedgerError",
    "MissingDependency",
    "Noise",
    "NotPrivateWarning",
    "PrivacyConditionError",
    "PrivacyStatement",
    "PrivacyWarning",
    "PrivateClassifier",
    "PrivateNetClassifier",
    "PrivateNetRegressor",
    "PrivateRegressor",
    "PrivateStep",
    "Relation",
    "RelationError",
    "Released",
    "SidelightError",
    "Trainer",
    "UnboundedSensitivity",
    "__version__",
    "adadps",
    "adamix",
    "agd_avg",
    "amp",
    "auto",
    "compare",
    "coupling",
    "delta",
    "dope_sgd",
    "dp_agd",
    "dp_sgd",
    "dpmd",
    "epsilon",
    "full_private",
    "majority",
    "noise_multiplier",
    "non_private",
    "nsgd",
    "objective_perturbation",
    "only_private",
    "only_public",
    "output_perturbation",
    "pnsgd",
    "ppsgd",
    "public_whitening",
    "release",
    "rsgd_ar",
    "sample_mechanism",
    "sgd_adv",
]

# The same names as under TYPE_CHECKING; a test compares the two.
_LAZY = {
    "BoundedSum": "sidelight.privacy.release",
    "Ledger": "sidelight.privacy.ledger",
    "Noise": "sidelight.privacy.noise",
    "PrivacyStatement": "sidelight.privacy.statement",
    "PrivateClassifier": "sidelight.estimators",
    "PrivateNetClassifier": "sidelight.deep",
    "PrivateNetRegressor": "sidelight.deep",
    "PrivateRegressor": "sidelight.estimators",
    "PrivateStep": "sidelight.deep",
    "Relation": "sidelight.privacy.events",
    "Released": "sidelight.privacy.release",
    "Trainer": "sidelight.deep",
    "adadps": "sidelight.methods.adadps",
    "adamix": "sidelight.methods.adamix",
    "agd_avg": "sidelight.erm.dp_agd",
    "amp": "sidelight.erm.objective_perturbation",
    "auto": "sidelight.methods.auto",
    "compare": "sidelight.rehearsals",
    "coupling": "sidelight.methods.coupling",
    "delta": "sidelight.privacy.accountants",
    "dope_sgd": "sidelight.methods.dope_sgd",
    "dp_agd": "sidelight.erm.dp_agd",
    "dp_sgd": "sidelight.methods.dp_sgd",
    "dpmd": "sidelight.methods.dpmd",
    "epsilon": "sidelight.privacy.accountants",
    "full_private": "sidelight.methods.dp_sgd",
    "majority": "sidelight.erm.baselines",
    "noise_multiplier": "sidelight.privacy.calibrate",
    "non_private": "sidelight.erm.baselines",
    "nsgd": "sidelight.erm.rsgd_ar",
    "objective_perturbation": "sidelight.erm.objective_perturbation",
    "only_private": "sidelight.methods.dp_sgd",
    "only_public": "sidelight.erm.baselines",
    "output_perturbation": "sidelight.erm.output_perturbation",
    "pnsgd": "sidelight.erm.pnsgd",
    "ppsgd": "sidelight.methods.ppsgd",
    "public_whitening": "sidelight.methods.public_whitening",
    "release": "sidelight.privacy.release",
    "rsgd_ar": "sidelight.erm.rsgd_ar",
    "sample_mechanism": "sidelight.methods.sample_mechanism",
    "sgd_adv": "sidelight.methods.sgd_adv",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sidelight' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
