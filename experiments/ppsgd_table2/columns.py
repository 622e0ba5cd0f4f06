"""The columns of the table: the paper's nine in our correct versions, and ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sidelight.methods.declare import get_method
from sidelight.methods.dope_sgd import PublicGradient
from sidelight.methods.dp_sgd import sgd_adv
from sidelight.methods.output_perturbation import output_perturbation
from sidelight.methods.ppsgd import ppsgd
from sidelight.methods.public_whitening import public_whitening

HUBER = "huber"  # stands in where a method refuses the hinge: its proof needs a smooth loss


@dataclass(frozen=True)
class Run:
    """What a column may depend on: all of it is public."""

    regression: bool
    private_rows: int


@dataclass(frozen=True)
class Column:
    """A method as it is run.

    Args:
        make: the method.
        group: columns of one group are settings of one method; the table shows the best of them on the test
            part, as the paper does for SgdAdv and OutPert and (η, s and λ) presumably for PPSGD.
        smooth: the huberized hinge stands in for the hinge.
        repeats: at most this many; slow ones get fewer, and the table says how many.
        turn: columns of turn 0 are run first, those of turn 2 last.
    """

    make: Callable[[Run], Any]
    group: str
    smooth: bool = False
    repeats: int = 20
    turn: int = 1

    def loss(self, name: str) -> str:
        return HUBER if self.smooth and name == "hinge" else name


def named(name: str) -> Callable[[Run], Any]:
    return lambda run: get_method(name)


def ppsgd_paper(step_size: float | None, reuse: float) -> Callable[[Run], Any]:
    """The paper's accounting, with its conditions enforced. It states neither η nor s; s is 3 % here."""

    def make(run: Run) -> Any:
        size = max(1, round(0.03 * run.private_rows))
        method = ppsgd(accounting="tcdp", reuse=reuse, expected_batch_size=size)
        return method.with_parts(step_size=step_size)

    return make


def ppsgd_whitened(run: Run) -> Any:
    """PPSGD's adaptive budget and clipping on publicly whitened features."""
    return ppsgd(reuse=None, whitening=True, momentum=0.8)


def whitening_around_origin(run: Run) -> Any:
    """Public whitening with DOPE-SGD's origin."""
    return public_whitening(regression=run.regression).with_parts(origin=PublicGradient())


def stepped(step_size: float) -> Callable[[Run], Any]:
    return lambda run: sgd_adv(step_size=step_size)


def regularized(regularization: float) -> Callable[[Run], Any]:
    return lambda run: output_perturbation(regularization=regularization)


COLUMNS = {
    "auto": Column(named("auto"), "auto", repeats=20, turn=0),
    "ppsgd": Column(named("ppsgd"), "ppsgd", repeats=20, turn=0),
    "ppsgd_whitened": Column(ppsgd_whitened, "ppsgd_whitened", repeats=20, turn=0),
    "only_public": Column(named("only_public"), "OnlyPub", repeats=20, turn=0),
    "whitening_origin": Column(whitening_around_origin, "whitening_origin", repeats=20, turn=0),
    "ppsgd_paper_1_0.1": Column(ppsgd_paper(1.0, 0.1), "PPSGD"),
    "ppsgd_paper_1_1": Column(ppsgd_paper(1.0, 1.0), "PPSGD"),
    "ppsgd_paper_rule_0.1": Column(ppsgd_paper(None, 0.1), "PPSGD"),
    "ppsgd_paper_rule_1": Column(ppsgd_paper(None, 1.0), "PPSGD"),
    "sgd_adv_0.1": Column(stepped(0.1), "SgdAdv"),
    "sgd_adv_1": Column(stepped(1.0), "SgdAdv"),
    "sgd_adv_10": Column(stepped(10.0), "SgdAdv"),
    "objective_perturbation": Column(named("objective_perturbation"), "ObjPert", smooth=True),
    "output_perturbation_0.001": Column(regularized(0.001), "OutPert", smooth=True),
    "output_perturbation_0.01": Column(regularized(0.01), "OutPert", smooth=True),
    "output_perturbation_0.1": Column(regularized(0.1), "OutPert", smooth=True),
    "pnsgd": Column(named("pnsgd"), "PNSGD", smooth=True),
    "non_private": Column(named("non_private"), "NonPriv", repeats=10, turn=2),
    "dp_agd": Column(named("dp_agd"), "Agd", repeats=3, turn=2),
    "agd_avg": Column(named("agd_avg"), "AgdAvg", repeats=3, turn=2),
}
