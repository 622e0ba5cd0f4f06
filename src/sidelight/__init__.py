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
    from sidelight.comparison.rehearsals import compare
    from sidelight.deep import PrivateNetClassifier, PrivateNetRegressor, PrivateStep, Trainer
    from sidelight.estimators import PrivateClassifier, PrivateRegressor
    from sidelight.privacy.accountants import delta, epsilon
    from sidelight.privacy.calibrate import noise_multiplier
    from sidelight.privacy.events import Relation
    from sidelight.privacy.ledger import Ledger
    from sidelight.privacy.noise import Noise
    from sidelight.privacy.release import BoundedSum, Released, release
    from sidelight.privacy.statement import PrivacyStatement

if TYPE_CHECKING:  # methods: begin
    from sidelight.methods.adadps import adadps
    from sidelight.methods.adamix import adamix
    from sidelight.methods.adassp import adassp
    from sidelight.methods.auto import auto
    from sidelight.methods.baselines import majority, non_private, only_public
    from sidelight.methods.coupling import coupling
    from sidelight.methods.dope_sgd import dope_sgd
    from sidelight.methods.dp_agd import agd_avg, dp_agd
    from sidelight.methods.dp_newton import dp_newton
    from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private
    from sidelight.methods.dpmd import dpmd
    from sidelight.methods.objective_perturbation import amp, objective_perturbation
    from sidelight.methods.output_perturbation import output_perturbation
    from sidelight.methods.pnsgd import pnsgd
    from sidelight.methods.ppsgd import ppsgd
    from sidelight.methods.public_whitening import public_whitening
    from sidelight.methods.rsgd_ar import nsgd, rsgd_ar
    from sidelight.methods.sample_mechanism import sample_mechanism
    from sidelight.methods.sgd_adv import sgd_adv
# methods: end

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
    "compare",
    "delta",
    "epsilon",
    "noise_multiplier",
    "release",
]

# This list of methods and the one above are for type checkers and editors; `make tables` writes them. At run
# time a method is found by its declaration.
__all__ += [
    # methods: begin
    "adadps",
    "adamix",
    "adassp",
    "agd_avg",
    "amp",
    "auto",
    "coupling",
    "dope_sgd",
    "dp_agd",
    "dp_newton",
    "dp_sgd",
    "dpmd",
    "full_private",
    "majority",
    "non_private",
    "nsgd",
    "objective_perturbation",
    "only_private",
    "only_public",
    "output_perturbation",
    "pnsgd",
    "ppsgd",
    "public_whitening",
    "rsgd_ar",
    "sample_mechanism",
    "sgd_adv",
    # methods: end
]

# The same names as under TYPE_CHECKING, without the methods; a test compares the two.
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
    "compare": "sidelight.comparison.rehearsals",
    "delta": "sidelight.privacy.accountants",
    "epsilon": "sidelight.privacy.accountants",
    "noise_multiplier": "sidelight.privacy.calibrate",
    "release": "sidelight.privacy.release",
}


def _methods() -> dict[str, str]:
    """Where each method is, by its declaration; nothing is imported."""
    from sidelight.methods.declare import homes

    return {name: home.module for name, home in homes().items()}


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name) or (None if name.startswith("_") else _methods().get(name))
    if home is None:
        raise AttributeError(f"module 'sidelight' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_methods()})
