"""Accounting by hand: what a plan costs, the noise that a budget needs, and the release of private sums.

    from sidelight.accounting import epsilon, poisson, repeat

    epsilon(repeat(poisson(0.01, 1.1), 1000), delta=1e-6, relation="add-or-remove-one")

Estimators, tables and trainers do all of this by themselves.
"""

from __future__ import annotations

from sidelight.privacy.accountants import default_delta, delta, epsilon, noise_multiplier
from sidelight.privacy.events import Event, Relation, compose, fixed_size, gaussian, poisson, repeat
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum, Released, release, release_on_grid, select
from sidelight.privacy.statement import PrivacyStatement

__all__ = [
    "BoundedSum",
    "Event",
    "Ledger",
    "Noise",
    "PrivacyStatement",
    "Relation",
    "Released",
    "compose",
    "default_delta",
    "delta",
    "epsilon",
    "fixed_size",
    "gaussian",
    "noise_multiplier",
    "poisson",
    "release",
    "release_on_grid",
    "repeat",
    "select",
]
