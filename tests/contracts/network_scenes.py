"""Networks trained on neighboring datasets: every method, the record that differs, and what is compared.

A run is recorded at `release`, and its neighbors are given the released values of the first run. So both are
asked the same questions, and what differs outside of the private sums has not come through the door. Import
once torch is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from tests.contracts.replay import Everything
from tests.deep.networks import Tape, blobs, loss, mlp, vector
from torch import Tensor

from sidelight.audit.tape import same_noise
from sidelight.deep import LastLayer, Loading, MajorityVote, PublicTraining, Trainer
from sidelight.methods.adadps import adadps
from sidelight.methods.adamix import adamix
from sidelight.methods.coupling import coupling, sample_mechanism
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd, full_private, only_private
from sidelight.methods.dpmd import dpmd
from sidelight.methods.health_check import CheckPlan, HealthCheck
from sidelight.methods.parts import Automatic, Ema
from sidelight.methods.ppsgd import GrowingBudget, ppsgd
from sidelight.privacy import accountants
from sidelight.privacy.events import FullBatch, Poisson, Relation, Sampler

ADD_REMOVE: Relation = "add-or-remove-one"
REPLACE: Relation = "replace-one"
CHANGED = 7  # the record in which neighbors differ
CLIP = 0.1

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A method, and how its trainer is set up."""

    make: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)
    relations: tuple[Relation, ...] = (ADD_REMOVE,)
    checked: Sampler | None = None  # who is counted by a health check, which has too few records otherwise


def _shifted(x: Tensor) -> Tensor:
    return x + 0.05 * torch.randn_like(x)


WARM = {"warm_up": PublicTraining(steps=2, batch_size=10)}
WARM_AUG = {"warm_up": PublicTraining(steps=2, batch_size=10, augment=_shifted), "public_augment": _shifted}
FULL = {"expected_batch_size": None}

CASES: dict[str, Case] = {
    "dp_sgd": Case(lambda: dp_sgd(clip_norm=CLIP, momentum=0.5), {}, (ADD_REMOVE, REPLACE)),
    "dp_sgd, full batch": Case(lambda: dp_sgd(clip_norm=CLIP), FULL, (ADD_REMOVE, REPLACE)),
    "dope_sgd": Case(lambda: dope_sgd(clip_norm=CLIP), {}, (ADD_REMOVE, REPLACE)),
    "dope_sgd, warm": Case(lambda: dope_sgd(clip_norm=CLIP, start="warm"), WARM),
    "dope_sgd, warm-aug": Case(lambda: dope_sgd(clip_norm=CLIP, start="warm"), WARM_AUG),
    "dope_sgd, extended": Case(lambda: dope_sgd(clip_norm=CLIP, start="warm", extended=True), WARM),
    "dope_sgd, cold-ext": Case(lambda: dope_sgd(clip_norm=CLIP, start="cold", extended=True)),
    "dope_sgd, limited origin": Case(lambda: dope_sgd(clip_norm=CLIP, origin_limit=0.05)),
    "dope_sgd, micro-batches": Case(lambda: dope_sgd(clip_norm=CLIP), {"loading": Loading(micro_batch=3)}),
    "dope_sgd, augmented": Case(
        lambda: dope_sgd(clip_norm=CLIP), {"augmentations": 3, "augment": lambda x: 1.1 * x}
    ),
    "coupling": Case(lambda: coupling(bound=CLIP, gamma=0.01), {}, (ADD_REMOVE, REPLACE)),
    "coupling, weight by hand": Case(lambda: coupling(weight=0.3, reduction="mean", bound=CLIP)),
    "dpmd": Case(lambda: dpmd(clip_norm=CLIP), WARM),
    "adamix": Case(lambda: adamix(rank=5), WARM, (ADD_REMOVE, REPLACE)),
    "adamix, last layer": Case(
        lambda: adamix().with_parts(metric=LastLayer(4, refresh=2)), WARM, (ADD_REMOVE, REPLACE)
    ),
    "adamix, no projection": Case(lambda: adamix().with_parts(metric=None), WARM),
    "adadps": Case(lambda: adadps(), WARM, (ADD_REMOVE, REPLACE)),
    "adadps, fixed clip": Case(lambda: adadps(clip_norm=CLIP, start="cold")),
    "sample_mechanism": Case(lambda: sample_mechanism(clip_norm=CLIP)),
    "ppsgd": Case(lambda: ppsgd(planned_steps=4, clip_threshold=1.0, reuse=0.1), WARM),
    "ppsgd, full batch": Case(
        lambda: ppsgd(planned_steps=4, clip_threshold=1.0, growth=0.5, ratio=0.1, reuse=None),
        FULL,
        (ADD_REMOVE, REPLACE),
    ),
    "only_private": Case(lambda: only_private(clip_norm=CLIP)),
    "full_private": Case(lambda: full_private(clip_norm=CLIP), {"expected_batch_size": 60}),
    "parts of four papers": Case(
        lambda: dope_sgd(finish=Ema(0.8)).with_parts(
            clip=Automatic(CLIP, 0.1), noise=GrowingBudget(planned_steps=4)
        )
    ),
    "dp_sgd, all records checked": Case(
        lambda: dp_sgd(clip_norm=CLIP), {}, (ADD_REMOVE, REPLACE), FullBatch()
    ),
    "dp_sgd, some records checked": Case(lambda: dp_sgd(clip_norm=CLIP), {}, checked=Poisson(0.9)),
    "dope_sgd, augmented and checked": Case(
        lambda: dope_sgd(clip_norm=CLIP),
        {"augmentations": 3, "augment": lambda x: 1.1 * x},
        checked=FullBatch(),
    ),
    "ppsgd, checked": Case(
        lambda: ppsgd(planned_steps=4, clip_threshold=1.0, reuse=0.1), WARM, checked=FullBatch()
    ),
    "an ensemble": Case(lambda: dope_sgd(clip_norm=CLIP, finish=MajorityVote(3))),
}


def base() -> Data:
    return blobs(40, 1, torch.float64)


def with_record(x: float | Tensor, y: int) -> Data:
    """The private dataset, but for one record."""
    data = base()
    data[0][CHANGED], data[1][CHANGED] = x, y
    return data


def null() -> Data:
    """The dataset without the record, at a public number of records."""
    return with_record(float("nan"), 0)


def worst() -> Data:
    """A record as an adversary would choose it: far out, and labeled wrongly."""
    x, y = base()
    return with_record(-50 * x[CHANGED], int(y[CHANGED] + 1) % 3)


def neighboring(relation: Relation) -> tuple[Data, list[Data]]:
    """A dataset, and neighbors of it: ordinary, adversarial and broken records in one place."""
    x, y = base()
    away = with_record(50 * x[CHANGED].flip(0), int(y[CHANGED] + 2) % 3)
    broken = with_record(x[CHANGED], 17)  # a class that does not exist: the loss fails on it
    if relation == ADD_REMOVE:
        return null(), [base(), worst(), broken]
    return worst(), [base(), away, broken]


@dataclass
class Recorded:
    """What one run did at the door, and all that leaves it otherwise."""

    tape: Tape
    trainer: Trainer
    observer: Everything

    @property
    def outside(self) -> Any:
        t = self.trainer
        state = {name: value.tolist() for name, value in t.model_.state_dict().items()}
        return t.history_, t.privacy_, t.stopped_, state, vector(t.model).tolist(), self.observer.heard


def record(case: Case, data: Data, relation: Relation, *, like: Tape | None = None) -> Recorded:
    """Train with these private records; with `like`, on the released values of that run."""
    tape = Tape(like)
    options: dict[str, Any] = {
        "epsilon": 3, "delta": 1e-4, "expected_batch_size": 24, "steps": 3, **case.options,
        "random_state": 3 if relation == ADD_REMOVE else 4,  # the record in question is drawn
    }  # fmt: skip
    observer = Everything()
    sampler = case.checked if isinstance(case.checked, Poisson) else FullBatch(relation)
    plan = CheckPlan(20.0, sampler, len(data[0]), relation)
    trainer = Trainer(
        mlp(dtype=torch.float64), loss, method=case.make(), relation=relation, public_batch_size=20,
        observers=[observer], **options,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidelight.methods.part_kinds.release", tape)
        patch.setattr("sidelight.deep.fit.release", tape)
        if case.checked is not None:
            patch.setattr(HealthCheck, "plan", lambda *_, **__: plan)
        patch.setattr(accountants, "noise_multiplier", _calibrated)
        patch.setattr(accountants, "epsilon", _cost)
        with same_noise():
            trainer.fit(data, blobs(30, 2, torch.float64))
    assert observer.heard, "nobody was notified"
    return Recorded(tape, trainer, observer)


def contract(case: Case, relation: Relation = ADD_REMOVE, here: Recorded | None = None) -> float:
    """No record moves a sum beyond its sensitivity, nor anything outside of the sums. The largest move."""
    first, others = neighboring(relation)
    here = record(case, first, relation) if here is None else here
    shares = []
    for other in others:
        there = record(case, other, relation, like=here.tape)
        share = here.tape.largest_share(there.tape)
        assert share <= 1 + 1e-9, f"one record moved a private sum by {share:.6g} times its sensitivity"
        assert here.outside == there.outside, "something beside the private sums depends on a record"
        shares.append(share)
    return max(shares)


def every() -> list[Any]:
    """A parameter for each case under each of its relations."""
    return [
        pytest.param((case, relation), id=f"{name}-{relation}")
        for name, case in CASES.items()
        for relation in case.relations
    ]


_noise_multiplier, _cost = accountants.noise_multiplier, cache(accountants.epsilon)


@cache
def _remembered(items: tuple[tuple[str, Any], ...]) -> float:
    return _noise_multiplier(**dict(items))


def _calibrated(**plan: Any) -> float:
    """The same plan is calibrated once: it is most of the time of a short run."""
    return _remembered(tuple(sorted(plan.items())))
