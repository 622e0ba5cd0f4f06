"""Every method by its name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from sidelight.erm.baselines import majority, non_private, only_public
from sidelight.erm.dp_agd import agd_avg, dp_agd
from sidelight.erm.objective_perturbation import amp, objective_perturbation
from sidelight.erm.output_perturbation import output_perturbation
from sidelight.erm.pnsgd import pnsgd
from sidelight.erm.rsgd_ar import nsgd, rsgd_ar
from sidelight.errors import InputError
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
from sidelight.methods.task import Method

METHODS: dict[str, Callable[[], Method]] = {
    make.__name__: make
    for make in (
        auto, dp_sgd, ppsgd, dope_sgd, coupling, dpmd, adamix, adadps, sample_mechanism, public_whitening,
        rsgd_ar, nsgd, output_perturbation, objective_perturbation, amp, dp_agd, sgd_adv, pnsgd, agd_avg,
        only_public, only_private, full_private, non_private, majority,
    )
}  # fmt: skip


def get_method(name: str) -> Method:
    """The method of this name with its defaults."""
    if name not in METHODS:
        close = get_close_matches(str(name), METHODS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"there is no method {name!r}.{hint} Known: {', '.join(sorted(METHODS))}")
    return METHODS[name]()
