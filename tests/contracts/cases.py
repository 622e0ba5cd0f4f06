"""Every method of the registry, and the settings of it that behave differently, made small for speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.contracts.scenes import ADD_REMOVE, REPLACE

from sidelight.erm.baselines import majority
from sidelight.erm.dp_agd import agd_avg, dp_agd
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
from sidelight.privacy.events import Relation

STEPS = 4
SMALL: dict[str, Callable[[], Method]] = {
    "dp_sgd": lambda: dp_sgd(steps=STEPS, clip_norm=0.3, momentum=0.5),
    "ppsgd": lambda: ppsgd(planned_steps=STEPS, clip_norm=0.3, clip_threshold=1.0),
    "dope_sgd": lambda: dope_sgd(steps=STEPS, clip_norm=0.3),
    "coupling": lambda: coupling(steps=STEPS, gamma=0.1),
    "dpmd": lambda: dpmd(steps=STEPS, clip_norm=0.3),
    "adamix": lambda: adamix(steps=STEPS, rank=2),
    "adadps": lambda: adadps(steps=STEPS),
    "sample_mechanism": lambda: sample_mechanism(steps=STEPS, clip_norm=0.3),
    "public_whitening": lambda: public_whitening(steps=STEPS),
    "sgd_adv": lambda: sgd_adv(steps=STEPS, clip_norm=0.3, expected_batch_size=22),
    "only_private": lambda: only_private(steps=STEPS),
    "full_private": lambda: full_private(steps=STEPS),
    "dp_agd": lambda: dp_agd(splits=4),
    "agd_avg": lambda: agd_avg(dp_agd(splits=4)),
}
VARIANTS: dict[str, Callable[[], Method]] = {
    "dp_sgd-sampled": lambda: dp_sgd(steps=STEPS, clip_norm=0.3, expected_batch_size=22),
    "ppsgd-tcdp": lambda: ppsgd(accounting="tcdp", planned_steps=STEPS, clip_norm=0.3, clip_test="max"),
    "dope_sgd-extended": lambda: dope_sgd(
        steps=STEPS, clip_norm=0.3, start="extended", expected_batch_size=27, origin_limit=0.2
    ),
    "coupling-theorem": lambda: coupling(steps=STEPS, weight="theorem", bound=0.1),
    "dpmd-exact": lambda: dpmd(steps=STEPS, mirror="exact", lam=0.1, step_size=0.1, clip_norm=0.3),
    "adamix-sampled": lambda: adamix(steps=STEPS, rank=2, expected_batch_size=22),
    "adadps-fixed": lambda: adadps(steps=STEPS, clip_norm=0.5, warm=False),
    "public_whitening-scaled": lambda: public_whitening(steps=STEPS, regression=True, clip_norm=0.3),
    "majority-private": lambda: majority(labels="private"),
    "private_selection": lambda: PrivateSelection(
        ((public_whitening(steps=STEPS), 0.0), (dp_sgd(steps=STEPS, clip_norm=0.3), 0.3))
    ),
    "full_private-sampled": lambda: full_private(steps=STEPS, clip_norm=0.3, expected_batch_size=27),
}
NOT_PRIVATE = ("non_private",)
ADAPTIVE_SAMPLED: Callable[[], Method] = lambda: ppsgd(  # noqa: E731  # Poisson batches, so one relation
    planned_steps=STEPS, clip_norm=0.3, expected_batch_size=22
)


@dataclass(frozen=True)
class Case:
    """A method under one relation."""

    name: str
    make: Callable[[], Method]
    relation: Relation

    @property
    def seed(self) -> int:
        """A seed under which the record that neighbours differ in is drawn."""
        return 8 if self.name == "ppsgd-tcdp" else 7

    def __str__(self) -> str:
        return f"{self.name}-{self.relation}"


def _cases() -> list[Case]:
    makers: dict[str, Callable[[], Any]] = {name: SMALL.get(name, make) for name, make in METHODS.items()}
    makers |= VARIANTS
    found = [
        Case(name, make, relation)
        for name, make in makers.items()
        if name not in NOT_PRIVATE
        for relation in make().relations
    ]
    return [*found, Case("ppsgd-poisson", ADAPTIVE_SAMPLED, ADD_REMOVE)]


CASES = _cases()
RECIPES = [case for case in CASES if hasattr(case.make(), "with_parts")]
SAMPLED = [case for case in RECIPES if "sampled" in case.name and case.relation == ADD_REMOVE]
assert {case.relation for case in CASES} == {ADD_REMOVE, REPLACE}
