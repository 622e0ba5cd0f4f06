"""Step sizes that fall, and a guard against runs that diverge or learn nothing.

The guard sees released parameters and held-out public records alone, so that its decisions cost nothing.
Steps that diverge are taken back, and the next are shorter. A run that is dead is stopped.

A fixed plan that stops early by such a rule is post-processing of the whole plan, and the statement stays
that of the whole plan. It may be lower only where a filter admitted the run: `Run.finish` lowers the charge
in a ledger then, and leaves it otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch

from sidelight.arrays import Json
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems.flat_parameters import read, write
from sidelight.problems.network_public import HeldOut, Score

MOMENTUM = 0.9

_LOOKS = 20  # at held-out records in a run
_DEAD_SHARE = 1 / 3  # of the plan without a sign of life,
_FEWEST_DEAD = 50  # and at least so many steps: some networks begin slowly
_FEWEST_JUDGES = 20  # held-out records without which nobody is called dead
_LEARNED = 0.01  # of a loss: less than this is no progress, and no better than chance
_LOST = 0.1  # of what a trained start is better than chance by


def annealed(step: int, steps: int) -> float:
    """The share of the step size at this step: along half a cosine, from all of it to nothing."""
    return 0.5 * (1 + math.cos(math.pi * min(step, steps) / max(1, steps)))


def annealed_sgd(
    parameters: Iterable[torch.nn.Parameter],
    step_size: float,
    steps: int,
    *,
    momentum: float = MOMENTUM,
    scale: Callable[[], float] = lambda: 1.0,
    constant: bool = False,
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """SGD whose step size falls, or is constant; `scale` shortens it further while the run continues."""
    optimizer = torch.optim.SGD(parameters, lr=step_size, momentum=momentum)

    def share(step: int) -> float:
        return scale() * (1.0 if constant else annealed(step, steps))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def largest_live_loss(start: Score) -> float:
    """The held-out loss below which a network is alive.

    From a start that is no better than chance (the class shares of the held-out records): better than both
    by a hundredth. From a start that is: a tenth of what it is better by may be lost, since steps on private
    records may lead away from public ones. Where there are no classes: better than the start.
    """
    chance = start.chance
    if chance is None:
        return start.loss
    if start.loss < (1 - _LOST) * chance:
        return start.loss + _LOST * (chance - start.loss)
    return (1 - _LEARNED) * min(chance, start.loss)


class Guard:
    """Takes back steps that diverge, and says when a run is dead, by held-out public records.

    A run is dead that shows no life for a third of its plan, or 50 steps if that is more: no look is below
    `largest_live_loss`, and none is lower by a hundredth than all before. Without held-out records only
    parameters that are not finite are noticed.

    Args:
        seen: whether the judges were learned from. Their loss at a warm start is then lower than that of any
            other record, so that they can only tell what is much worse than chance and than the start.
        shortens: whether steps that diverge are taken back and `scale` is halved. A user's own optimizer and
            scheduler know nothing of `scale`: there, a loss that is not finite ends the run.
        stops: whether a dead run is stopped.
    """

    _KEPT = ("scale", "seen", "kept", "best", "best_params", "best_at", "alive_at", "shortened_at", "verdict")

    def __init__(
        self,
        oracle: NetworkOracle,
        held_out: HeldOut | None,
        *,
        steps: int,
        seen: bool = False,
        shortens: bool = True,
        stops: bool = True,
    ) -> None:
        self.model, self.judge, self.steps = oracle.model, held_out, steps
        self.shortens, self.stops = shortens, stops
        self.patience = max(_FEWEST_DEAD, _DEAD_SHARE * steps)
        self.every, self.scale, self.seen = max(1, steps // _LOOKS), 1.0, 0
        start = None if held_out is None else held_out.score()
        self._named = held_out is not None and len(held_out) >= _FEWEST_JUDGES
        self.chance = None if start is None else start.chance
        self.reference: float | None = None  # of what diverges; None: the best loss so far
        if seen and start is not None:
            self.reference = None if self.chance is None else max(self.chance, start.loss)
            start = None if self.chance is None else Score(np.array([self.chance]), chance=self.chance)
            self.judge = None if start is None else held_out
        self.limit = math.inf if start is None else largest_live_loss(start)
        self.kept = self.best_params = read(self.model)
        self.best = 0.0 if start is None else start.loss
        self.best_at = self.alive_at = 0
        self.shortened_at: list[int] = []
        self.verdict = ""  # why the run is to be stopped

    def after_step(self) -> bool:
        """Look, if it is time: go back to the last good parameters if these are none, or give up.

        Returns whether it went back.
        """
        self.seen += 1
        params = read(self.model)
        finite = math.isfinite(float(params @ params))  # as `Loop` asks after each step
        if finite and self.seen % self.every:
            return False
        loss = self._loss() if finite else math.inf
        self._note(loss)
        known = self.best if self.reference is None else self.reference
        diverges = loss > known + abs(known) + 0.2
        back = diverges and self.shortens
        if back:
            write(self.model, self.kept)
            self.scale /= 2
            self.shortened_at.append(self.seen)
        elif not diverges:
            self.kept = read(self.model)
        self._judge(loss)
        return back

    def _note(self, loss: float) -> None:
        """Whether this look shows life, and whether it is the best so far."""
        if self.judge is None:
            return
        if loss < self.limit or loss < self.best - _LEARNED * abs(self.best):
            self.alive_at = self.seen
        if loss < self.best:
            self.best, self.best_at, self.best_params = loss, self.seen, read(self.model)

    def _judge(self, loss: float) -> None:
        if not self.stops or self.judge is None:
            return
        if not (math.isfinite(loss) or self.shortens):
            write(self.model, self.best_params)
            self.verdict = "training diverged: the loss of held-out public records is not finite"
        elif self._named and self.seen < self.steps and self.seen - self.alive_at >= self.patience:
            by = "" if self.chance is None else f", {self.chance:.4g} by chance"
            self.verdict = (
                f"a third of the plan brought nothing: the loss of held-out public records is {loss:.4g} "
                f"({self.limit:.4g} would be a sign of life{by})"
            )

    @property
    def notes(self) -> list[str]:
        if not self.shortened_at:
            return []
        steps = ", ".join(map(str, self.shortened_at))
        return [f"held-out public records saw steps diverge (step {steps}): the step size was halved there"]

    def state_dict(self) -> Json:
        return {name: getattr(self, name) for name in self._KEPT}

    def load_state_dict(self, state: Json) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def _loss(self) -> float:
        return 0.0 if self.judge is None else self.judge.score().loss
