"""The model of the public rows alone, and how much any other model could gain over it.

A loss is never below 0, so no model of any class gains more than the mean loss of this one. If that is nearly
nothing, training on private records cannot pay. Two numbers have to say so:

    held-out public rows    which are free; they decide whether the question is worth a larger share
    private records         the released mean loss plus three standard errors (`paid_comparison`)

`_ROOM` is a share of the loss of the best constant on public rows: of the variance of a number, of the
entropy of the classes. A target whose noise nobody can predict leaves a loss that says nothing about what can
be gained, and no release of this price tells the two apart: there, training goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sidelight.arrays import Floats
from sidelight.losses import Loss, get_loss
from sidelight.methods.baselines import best_on_folds, fit_public
from sidelight.methods.probabilities import probability_scale
from sidelight.methods.task import Task

CERTAIN = 3.0  # standard errors
_ROOM = 0.002  # of the loss of a constant: what could be gained is not worth a release
_UNSEEN = 0.005  # of the records: of numbers, how many may be beyond the largest loss that counts
_LARGE = 0.95  # the quantile of public residuals whose loss is b
_MORE_WRONG = 3  # rows that may be wrong although no public one in folds was: the rule of three


@dataclass(frozen=True, eq=False)
class PublicAlone:
    """The model of the public rows alone, and its loss on rows that it has not seen.

    Args:
        weights: (outputs, p). Of a regression around a guide they are 0: the guide itself.
        loss: by which it is compared.
        bound: b, the largest loss that counts.
        scale: of the scores whose losses are compared.
        expected: the mean loss, at most b for each row, in folds of the public rows.
        spread: the standard error of that.
        constant: the loss of the best constant on public rows; 0 if it is not known.
    """

    weights: Floats
    loss: Loss
    bound: float
    scale: float
    expected: float
    spread: float
    constant: float

    @classmethod
    def of(cls, task: Task) -> PublicAlone:
        """From public rows alone. Of fewer than 10 there are no folds."""
        loss = _judging(task)
        weights = np.zeros((task.loss.outputs, task.p)) if task.residual else fit_public(task)
        scale = 1.0
        if loss.name != "square":
            scale = probability_scale(weights, task, None, "only_public")[0]
        bound = _largest(task, loss)
        losses = np.minimum(_in_folds(task, loss, scale), bound)
        error = float(losses.std() / math.sqrt(len(losses)))
        spread = math.hypot(error, _MORE_WRONG * bound / len(losses))
        return cls(weights, loss, bound, scale, float(losses.mean()), spread, _of_a_constant(task, loss))

    @property
    def room(self) -> float:
        """The mean loss below which nothing is left to gain; 0 if none is small enough to say so."""
        least = _ROOM * self.constant
        return min(least, _UNSEEN * self.bound) if self.loss.name == "square" else least

    def may_end(self, error: float) -> bool:
        """Whether public rows see nothing to gain, and a release with this standard error could agree."""
        return self.expected <= self.room / 2 and (CERTAIN + 1) * error <= self.room

    def ends(self, mean: float, error: float) -> bool:
        """Whether a released mean loss of private records says that nothing is left to gain."""
        return self.may_end(error) and mean + CERTAIN * error <= self.room


def _judging(task: Task) -> Loss:
    """The loss of the probabilities. Of two classes with a square, hinge or huber loss it is not what was
    trained: there, a model that ranks well and is too short would lose."""
    several = task.loss.outputs > 1 or task.target_bound is not None
    return task.loss if several else get_loss("logistic")


def _largest(task: Task, loss: Loss) -> float:
    """b: of a sure and wrong guess; of numbers of being wrong by 1.

    Residuals are clipped at the largest public one, and few are so long: b is what 95 % of the public ones
    stay below. If the clip is larger than any public one, these are not trusted so far (`own_guide`).
    """
    if loss.name != "square":
        return 2.0 + math.log(max(loss.outputs, 2))
    sizes = np.abs(task.public.y)
    clipped_by_public = task.residual and float(sizes.max()) >= 1 - 1e-6
    return _of_error(loss, max(float(np.quantile(sizes, _LARGE)), 1e-3) if clipped_by_public else 1.0)


def _of_error(loss: Loss, error: float) -> float:
    return float(loss.value(np.full(1, error), np.zeros(1))[0])


def _in_folds(task: Task, loss: Loss, scale: float) -> Floats:
    """The losses of public rows by models that have not seen them."""
    if task.residual:
        return _values(loss, np.zeros((task.public.n, 1)), task.public.y)
    _, z, y = best_on_folds(task.public, task.loss)
    return _values(loss, scale * z, y)


def _of_a_constant(task: Task, loss: Loss) -> float:
    """Of numbers their variance, of classes their entropy, in units of the loss."""
    y = task.public.y
    if loss.name == "square":
        spread = task.residual_spread if task.residual else float(np.var(y))
        return _of_error(loss, 1.0) * spread
    shares = np.unique(y, return_counts=True)[1] / len(y)
    return -float((shares * np.log(shares)).sum())


def _values(loss: Loss, z: Floats, y: Floats) -> Floats:
    labels = y.astype(np.intp) if loss.task == "multiclass" else y
    return np.asarray(loss.value(z if loss.outputs > 1 else z[:, 0], labels))
