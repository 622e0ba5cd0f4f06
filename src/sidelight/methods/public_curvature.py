"""The curvature of public records, for noise that is shaped by it (NoiseCurve, arXiv:2510.05416).

An error in a direction of curvature λ costs λ/2 times its square, and is forgotten at the rate ηλ. Directions
are grouped by λ: for a linear model these are the eigenvalues of the second moment of public rows, labeled or
not, times the largest curvature of the loss; for a network those of the public loss's Hessian, as a few
products with it show them (Lanczos).

A metric changes both. Under features M, noise z is mapped back through Mᵀ: with w = Mᵀv, an error in v is
multiplied by I − η·MHMᵀ in each step, and costs v·MHMᵀv/2. A diagonal metric S is applied once: with
w = √S·u, it is multiplied by I − η·√S·H·√S, and noise is that of S^(−1/2)z in u.
"""

from __future__ import annotations

import numpy as np

from sidelight.arrays import Floats
from sidelight.errors import InputError
from sidelight.methods.part_kinds import Setting
from sidelight.problems.base import LinearProblem

_GROUPS = 12


def contractions(setting: Setting) -> tuple[tuple[float, float], ...]:
    """(ηλ, weight) of groups of directions, for a `Workload`; a direction weighs as much as its λ."""
    values, weights = _spectrum(setting)
    keep = values > 1e-6 * values.max(initial=0.0)
    if not keep.any():
        return ((0.0, 1.0),)
    values, weights = values[keep], (weights * values)[keep]
    rate = setting.problem.longest_step or setting.step_size or 1 / float(values.max())
    order = np.argsort(values)
    groups = [g for g in np.array_split(order, min(_GROUPS, len(order))) if len(g)]
    total = float(weights.sum())
    return tuple(
        (
            float(min(1.0, rate * float(weights[g] @ values[g]) / float(weights[g].sum()))),
            float(weights[g].sum()) / total,
        )
        for g in groups
    )


def _spectrum(setting: Setting) -> tuple[Floats, Floats]:
    """Curvatures, and how many directions have each, up to a common factor."""
    problem = setting.problem
    if isinstance(problem, LinearProblem):
        return problem.public_spectrum(setting.metric)
    guide = setting.public("noise shaped by public curvature")
    spectrum = getattr(guide, "spectrum", None)
    if spectrum is None:
        raise InputError("public curvature needs public records with a loss, which clients do not send")
    values, weights = spectrum(setting.metric)
    return np.abs(values), weights
