"""Differentially private learning, guided by public data.

Faces, methods and errors. What a recipe is made of is in `sidelight.methods`, accounting by hand in
`sidelight.accounting`. Names load on first use, so that `import sidelight` is instant and never loads
PyTorch.
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
from sidelight.lazy_names import homes_of, load

# MKL, PyTorch's BLAS, reads this when it first multiplies. Without it a row's last bits depend on its place
# in a pass, on some processors. No difference in speed could be measured.
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from sidelight.comparison.rehearsals import compare
    from sidelight.deep import PrivateNetClassifier, PrivateNetRegressor, PrivateStep, Trainer, diagnose
    from sidelight.estimators import PrivateClassifier, PrivateRegressor
    from sidelight.privacy.ledger import Ledger

if TYPE_CHECKING:  # methods: begin
    from sidelight.methods.adadps import adadps
    from sidelight.methods.adamix import adamix
    from sidelight.methods.adassp import adassp
    from sidelight.methods.auto import auto
    from sidelight.methods.baselines import majority, non_private, only_public
    from sidelight.methods.boosted_adassp import boosted_adassp
    from sidelight.methods.coupling import coupling, sample_mechanism
    from sidelight.methods.dope_sgd import dope_sgd
    from sidelight.methods.dp_agd import agd_avg, dp_agd
    from sidelight.methods.dp_newton import dp_newton
    from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private, sgd_adv
    from sidelight.methods.dpmd import dpmd
    from sidelight.methods.hessian_mixing import hessian_mixing
    from sidelight.methods.objective_perturbation import amp, objective_perturbation
    from sidelight.methods.output_perturbation import output_perturbation
    from sidelight.methods.pmt import pmt
    from sidelight.methods.pnsgd import pnsgd
    from sidelight.methods.ppsgd import ppsgd
    from sidelight.methods.precision import precision_weighting
    from sidelight.methods.public_whitening import public_whitening
    from sidelight.methods.rsgd_ar import nsgd, rsgd_ar
# methods: end

__version__ = "0.1.0"

__all__ = [
    "AssumptionError",
    "BudgetExceeded",
    "DatasetMismatch",
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
    "SidelightError",
    "Trainer",
    "UnboundedSensitivity",
    "__version__",
    "compare",
    "diagnose",
]

# This list of methods and the one above are written by `make tables`, from their declarations.
__all__ += [
    # methods: begin
    "adadps",
    "adamix",
    "adassp",
    "agd_avg",
    "amp",
    "auto",
    "boosted_adassp",
    "coupling",
    "dope_sgd",
    "dp_agd",
    "dp_newton",
    "dp_sgd",
    "dpmd",
    "full_private",
    "hessian_mixing",
    "majority",
    "non_private",
    "nsgd",
    "objective_perturbation",
    "only_private",
    "only_public",
    "output_perturbation",
    "pmt",
    "pnsgd",
    "ppsgd",
    "precision_weighting",
    "public_whitening",
    "rsgd_ar",
    "sample_mechanism",
    "sgd_adv",
    # methods: end
]

_HOMES = homes_of(__file__)  # faces and methods, as listed above


def __getattr__(name: str) -> Any:
    value = globals()[name] = load(__name__, _HOMES if name in _HOMES else _declared(), name)
    return value


def _declared() -> dict[str, str]:
    """Where each method is, by its declaration: a file that was laid beside the others is found, too."""
    from sidelight.methods.declare import homes

    return {name: home.module for name, home in homes().items()}


def __dir__() -> list[str]:
    return sorted({*__all__, *_declared()})
