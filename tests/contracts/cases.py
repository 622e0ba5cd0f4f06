"""Every declared method, small for speed, and the settings of it that behave differently.

A new method needs nothing here: it is tried as it declares (`small`, `variants`), with a loss that it can do.
Below are harder settings for some: a clip norm that clips, a batch that is drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sidelight.audit.subjects import ADD_REMOVE, REPLACE
from sidelight.methods.adadps import adadps
from sidelight.methods.adamix import adamix
from sidelight.methods.auto import PrivateSelection
from sidelight.methods.baselines import majority
from sidelight.methods.coupling import coupling, sample_mechanism
from sidelight.methods.declare import DECLARATIONS
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_agd import agd_avg, dp_agd
from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private, sgd_adv
from sidelight.methods.dpmd import dpmd
from sidelight.methods.health_check import CheckPlan, HealthCheck, WithHealthCheck
from sidelight.methods.output_perturbation import output_perturbation
from sidelight.methods.ppsgd import ppsgd
from sidelight.methods.public_whitening import public_whitening
from sidelight.methods.task import Method
from sidelight.privacy.events import FullBatch, Relation

STEPS = 4


class LoudCheck(HealthCheck):
    """A health check that is made for few records too, where its noise hides what it counts."""

    def plan(self, n: int, *, relation: Relation, **_: object) -> CheckPlan:
        return CheckPlan(20.0, FullBatch(relation), n, relation)


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
        steps=STEPS, clip_norm=0.3, start="warm", extended=True, expected_batch_size=27, origin_limit=0.2
    ),
    "coupling-theorem": lambda: coupling(steps=STEPS, weight="theorem", bound=0.1),
    "dpmd-exact": lambda: dpmd(steps=STEPS, mirror="exact", lam=0.1, step_size=0.1, clip_norm=0.3),
    "adamix-sampled": lambda: adamix(steps=STEPS, rank=2, expected_batch_size=22),
    "adadps-fixed": lambda: adadps(steps=STEPS, clip_norm=0.5, start="cold"),
    "public_whitening-scaled": lambda: public_whitening(steps=STEPS, regression=True, clip_norm=0.3),
    "majority-private": lambda: majority(labels="private"),
    "private_selection": lambda: PrivateSelection(
        ((public_whitening(steps=STEPS), 0.0), (dp_sgd(steps=STEPS, clip_norm=0.3), 0.3))
    ),
    "dp_sgd-checked": lambda: WithHealthCheck(dp_sgd(steps=STEPS, clip_norm=0.3), LoudCheck()),
    "ppsgd-checked": lambda: WithHealthCheck(ppsgd(planned_steps=STEPS, clip_norm=0.3), LoudCheck()),
    "output_perturbation-checked": lambda: WithHealthCheck(output_perturbation(), LoudCheck()),
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
    loss: str = "logistic"

    @property
    def seed(self) -> int:
        """A seed under which the record that neighbors differ in is drawn."""
        return 8 if self.name == "ppsgd-tcdp" else 7

    def __str__(self) -> str:
        return f"{self.name}-{self.relation}"


def loss_of(name: str) -> str:
    """The loss to try a method with: logistic, or the first that it can do."""
    losses = DECLARATIONS[name].losses if name in DECLARATIONS else ("logistic",)
    return "logistic" if "logistic" in losses else losses[0]


def declared_cases() -> dict[str, tuple[str, Callable[[], Method]]]:
    """What the methods declare: the name of a case → (its method, how to make it)."""
    found: dict[str, tuple[str, Callable[[], Method]]] = {}
    for name, declared in DECLARATIONS.items():
        if name not in NOT_PRIVATE:
            found |= {key.replace(", ", "-"): (name, make) for key, make in declared.examples().items()}
    return found


def cases() -> list[Case]:
    makers = declared_cases()
    makers |= {key: (key.split("-")[0], make) for key, make in {**SMALL, **VARIANTS}.items()}
    found = [
        Case(key, make, relation, loss_of(name))
        for key, (name, make) in makers.items()
        for relation in make().relations
        if (key, relation) != ("ppsgd-sampled", REPLACE)  # refused, and rightly
    ]
    return [*found, Case("ppsgd-poisson", ADAPTIVE_SAMPLED, ADD_REMOVE)]


CASES = cases()
RECIPES = [case for case in CASES if hasattr(case.make(), "with_parts")]
SAMPLED = [case for case in RECIPES if "sampled" in case.name and case.relation == ADD_REMOVE]
assert {case.relation for case in CASES} == {ADD_REMOVE, REPLACE}
