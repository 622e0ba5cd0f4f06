"""What `sidelight audit --all` runs: every method of the registry, and settings of it that differ in kind.

Methods of many steps take few here. Their noise is calibrated to the same ε for however many steps there
are, so that a fault in a step, its noise or its accounting shows as well, and an audit takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from sidelight.erm.baselines import majority
from sidelight.erm.dp_agd import agd_avg, dp_agd
from sidelight.erm.pnsgd import pnsgd
from sidelight.methods.adadps import adadps
from sidelight.methods.adamix import adamix
from sidelight.methods.coupling import coupling
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private
from sidelight.methods.dpmd import dpmd
from sidelight.methods.ppsgd import ppsgd
from sidelight.methods.public_whitening import public_whitening
from sidelight.methods.registry import METHODS
from sidelight.methods.sample_mechanism import sample_mechanism
from sidelight.methods.selection import PrivateSelection
from sidelight.methods.sgd_adv import sgd_adv
from sidelight.methods.task import Method

__all__ = ["CATALOGUE", "NETWORKS"]

_STEPS = 6
_HALF = 22  # of the 44 records of the built-in problem

CATALOGUE: dict[str, Callable[[], Method]] = {
    **METHODS,
    "dp_sgd": lambda: dp_sgd(steps=_STEPS),
    "ppsgd": lambda: ppsgd(planned_steps=_STEPS),
    "dope_sgd": lambda: dope_sgd(steps=_STEPS),
    "coupling": lambda: coupling(steps=_STEPS, gamma=0.01),
    "dpmd": lambda: dpmd(steps=_STEPS),
    "adamix": lambda: adamix(steps=_STEPS, rank=2),
    "adadps": lambda: adadps(steps=_STEPS),
    "sample_mechanism": lambda: sample_mechanism(steps=_STEPS),
    "public_whitening": lambda: public_whitening(steps=_STEPS),
    "only_private": lambda: only_private(steps=_STEPS),
    "full_private": lambda: full_private(steps=_STEPS),
    "sgd_adv": lambda: sgd_adv(steps=_STEPS, expected_batch_size=_HALF),
    "dp_agd": lambda: dp_agd(splits=3),
    "agd_avg": lambda: agd_avg(dp_agd(splits=3)),
    "pnsgd": lambda: pnsgd(batch_size=11),
    "dp_sgd, sampled": lambda: dp_sgd(steps=_STEPS, expected_batch_size=_HALF),
    "ppsgd, sampled": lambda: ppsgd(planned_steps=_STEPS, expected_batch_size=_HALF),
    "ppsgd, tcdp": lambda: ppsgd(accounting="tcdp", planned_steps=_STEPS),
    "dope_sgd, extended": lambda: dope_sgd(steps=_STEPS, start="extended", expected_batch_size=27),
    "dp_agd, gumbel": lambda: dp_agd(splits=3, selection="gumbel"),
    "majority, private": lambda: majority(labels="private"),
    "private selection": lambda: PrivateSelection(
        ((public_whitening(steps=_STEPS), 0.0), (dp_sgd(steps=_STEPS), 0.3))
    ),
}

# On networks: every recipe that `Trainer` takes.
NETWORKS: dict[str, Callable[[], Method]] = {
    "dp_sgd": dp_sgd,
    "ppsgd": lambda: ppsgd(planned_steps=4),
    "dope_sgd": dope_sgd,
    "coupling": coupling,
    "dpmd": dpmd,
    "adamix": lambda: adamix(rank=2),
    "adadps": adadps,
    "sample_mechanism": sample_mechanism,
    "only_private": only_private,
    "full_private": full_private,
}
