"""Probabilities from scores: softmax(a·z), with one number a for each model.

Clipped gradients, strong noise and few steps leave a model that ranks well and whose scores are too small (or
too large) to be log-odds. One scale a mends that: labels, ranks and scores stay as they are. It is fitted to

- counts of private records by the gap of their scores (`count_gaps`): one more Gaussian
  release, for a small share of μ² of the plan. Its noise is known, and the fit allows for it;
- public records. The model is too sure of those that took part in training, the more so the more features
  there are for each: they count half, and less than that with fewer than ten for a weight; `only_public` is
  asked in folds, so that no record is judged by a model that has seen it;
- a prior with heavy tails: log a is near the value at which the loss is its own calibration, and the more
  weight public rows have in the model, the nearer to the value that makes scores as long as theirs alone.

With right of c = right + wrong records around a gap g and p = 1/(1 + exp(−a g)), the derivative of
the records' log loss by a is S(a) = −Σ ω g ((1 − p)·right − p·wrong), and its variance V(a) is known: that of
the labels, c p(1−p), and that of the noise on each count, s²(p² + (1−p)²), times ω²g² and summed. The fit
adds S²/2V: it asks for the a of the least log loss, also of a model whose scores are no log-odds at any
scale, and asks the less, the stronger the noise is. ω = c²/(c² + 4s²) leaves out gaps around which there is
only noise. There, c is what public rows lead one to expect: a noisy count would be large where its noise is,
and a would be too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from scipy.special import expit, logsumexp

from sidelight.arrays import Floats
from sidelight.data.rows import PublicRows
from sidelight.errors import AssumptionError
from sidelight.losses import Loss
from sidelight.methods.baselines import best_on_folds, fit_public
from sidelight.methods.public_guard import UNUSED
from sidelight.methods.side_release import PlanWithSideRelease, WrappedMethod, plan_with_side_release
from sidelight.methods.task import Fitted, Plan, Task
from sidelight.oracles.linear.score_counts import count_gaps, gaps
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, release

SHARE = 0.03  # of μ², for the counts
Source = Literal["private", "public"]
_GAPS = 32  # around which records are counted, each √2 times the one before
_FEWEST, _MOST = 20, 5_000  # public records that a scale is fitted to
_IN_SAMPLE = 0.5  # the weight of a record that the model was trained on
_GRID = np.linspace(-4.0, 6.0, 501)  # log a
# Where log a is expected, and how far from there it often is.
_EXPECTED = {"logistic": (0.0, 0.25), "softmax": (0.0, 0.25), "square": (0.8, 0.6)}
_MARGIN = (1.5, 0.6)  # of hinge and huber, which stop at a margin of 1
# Of methods that end elsewhere: at a fraction of the model's length, or beyond it, as clipped gradients do.
_ENDING = {"public_whitening": (1.0, 0.6), "precision_weighting": (-0.3, 0.25)}
_ENDING_OF_SEVERAL = {"precision_weighting": (-0.1, 0.25)}  # classes


@dataclass(frozen=True, eq=False)
class GapCounts:
    """Released counts of right and wrong records around some gaps, and the noise on each.

    expected: how many records public rows lead one to expect there; None: as many as were counted.
    """

    gap: Floats
    right: Floats
    wrong: Floats
    std: float
    expected: Floats | None = None


@dataclass
class ScaledFit(Fitted):
    """A model whose probabilities are the softmax of `scale` times its scores."""

    scale: float = 1.0


@dataclass(frozen=True, repr=False)
class WithProbabilities(WrappedMethod):
    """A method, and after it the scale of its scores.

    Args:
        method: is planned with the budget that the counts leave.
        source: "private" releases counts of private records, where the plan consists of Gaussian releases
            of all of them; "public" spends nothing on it.
        share: of μ², for the counts.
        required: whether "private" raises for another kind of plan; else public records have to do.
    """

    source: Source = "public"
    share: float = SHARE
    required: bool = False

    def plan(self, task: Task) -> Plan:
        """The method's plan and one Gaussian release more."""
        if task.unit != "record" and self.required:
            raise AssumptionError(
                "calibration='private' counts rows, and a person has several; use calibration='public'"
            )
        if self.source == "public" or task.unit != "record":
            return self._alone(task)
        z = 1 / (math.sqrt(self.share) * conversions.gdp_mu(task.epsilon, task.delta))
        found = plan_with_side_release(
            events.gaussian(z),
            lambda rest: self.method.plan(replace(task, epsilon=rest)),
            epsilon=task.epsilon,
            delta=task.delta,
            relation=task.relation,
        )
        if found is None:
            return self._spared(task, "leaves nothing for training at so small an ε")
        if not found.spends:
            return _wrapped(found.inner)
        if found.inner.filtered or accountants.gdp(found.inner.event) is None:
            return self._spared(
                task, f"needs Gaussian releases over all records, and {self.name} makes others"
            )
        details = {**found.inner.details, "noise_multiplier_counts": z}
        return replace(found.plan, details=details, state={"plan": found.inner, "z": z, "beside": found})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> ScaledFit:
        z: float | None = plan.state["z"]
        beside: PlanWithSideRelease | None = plan.state.get("beside")
        asked = task if beside is None else beside.task(task)
        fitted = self.method.run(asked, plan.state["plan"], account=account, noise=noise)
        if UNUSED in fitted.found:
            task = replace(task, public=PublicRows.empty(task.p))
        reach = _largest_gap(fitted, task.max_norm)
        counts = None
        if z is not None and 0 < reach < math.inf:
            counts = _release_counts(task, fitted, reach, z, account=account, noise=noise)
        name = str(plan.details.get("chosen", self.name))
        worth, share = plan.details.get("noise_worth"), _public_share(plan, name)
        shrunk = 1 + (1 - share) * task.p / worth if isinstance(worth, float) else 1.0
        if UNUSED in fitted.found:
            name, shrunk, share = "dp_newton", 1.0, 0.0
        scale, note = probability_scale(fitted.coef, task, counts, name, shrunk, public_share=share)
        notes = [*fitted.notes, note]
        return ScaledFit(fitted.coef, fitted.history, notes, fitted.found, scale=scale)

    def _alone(self, task: Task) -> Plan:
        return _wrapped(self.method.plan(task))

    def _spared(self, task: Task, why: str) -> Plan:
        """The plan without counts of private records, unless these were asked for."""
        if self.required:
            raise AssumptionError(
                f"calibration='private' {why}; choose calibration='public', or another method or budget"
            )
        return self._alone(task)


def _public_share(plan: Plan, name: str) -> float:
    """The weight of the public gradients under precision weighting; 0 for other methods."""
    share = plan.details.get("weight")
    return share if name == "precision_weighting" and isinstance(share, float) else 0.0


def _wrapped(plan: Plan) -> Plan:
    return replace(plan, state={"plan": plan, "z": None})


def _largest_gap(fitted: Fitted, max_norm: float) -> float:
    """An upper bound on the gap of any record."""
    longest = float(np.linalg.norm(fitted.coef, axis=1).max()) * max_norm
    return longest * (1 if len(fitted.coef) == 1 else 2)


def _expected_counts(task: Task, fitted: Fitted, at: Floats) -> Floats | None:
    """How many private records there are around each gap, if they are as the public ones; None if too few."""
    if task.public.n < _FEWEST:
        return None
    z = np.asarray(task.public.X @ fitted.coef.T)
    gap = gaps(z[:, 0] if len(fitted.coef) == 1 else z, task.public.y)[0]
    place = np.interp(gap, [0.0, *at], np.arange(len(at) + 1.0))
    below = np.minimum(place.astype(np.intp), len(at) - 1)
    found = np.bincount(below, weights=1 - (place - below), minlength=len(at) + 1)
    found += np.bincount(below + 1, weights=place - below, minlength=len(at) + 1)
    return np.asarray(task.n / task.public.n * found[1:])


def _release_counts(
    task: Task, fitted: Fitted, reach: float, z: float, *, account: Account, noise: Noise
) -> GapCounts:
    at = reach * 2.0 ** (-np.arange(_GAPS)[::-1] / 2)
    question = partial(count_gaps, weights=fitted.coef, at=at, loss=task.loss, relation=task.relation)
    total = task.rows.summed(question)
    std = z * total.sensitivity
    noisy = release(total, std=std, event=events.gaussian(z), account=account, noise=noise).numpy()
    fitted.history.append(
        {"step": len(fitted.history), "released": "score counts", "noise_multiplier": z, "noise_std": std}
    )
    return GapCounts(at, noisy[:_GAPS], noisy[_GAPS:], std, _expected_counts(task, fitted, at))


# ---------------------------------------------------------------------------------------------------
# the fit


def fit_scale(
    *,
    expected: tuple[float, float],
    public: tuple[Floats, Floats] | None = None,
    weight: float = 1.0,
    counts: GapCounts | None = None,
) -> float:
    """The scale a with the least penalized loss.

    Args:
        expected: where log a is expected, and how far from there it often is.
        public: (scores, targets), each as the loss has them: (n,) and ±1, or (n, classes) and indices.
        weight: of a public record.
    """
    center, spread = expected
    total = np.log1p(((_GRID - center) / spread) ** 2)
    scales = np.exp(_GRID)
    if public is not None:
        total += weight * _public_losses(scales, *public)
    if counts is not None:
        total += _count_losses(scales, counts)
    return float(np.exp(_vertex(total)))


def _public_losses(scales: Floats, z: Floats, y: Floats) -> Floats:
    """The log loss of public records at each scale."""
    if z.ndim == 1:
        return np.asarray(np.logaddexp(0, np.multiply.outer(scales, -y * z)).sum(axis=1))
    own = z[np.arange(len(z)), y.astype(np.intp)]
    return np.array([(logsumexp(a * z, axis=1) - a * own).sum() for a in scales])


def _count_losses(scales: Floats, counts: GapCounts) -> Floats:
    """What noisy counts say against each scale."""
    p = expit(np.multiply.outer(scales, counts.gap))
    size = np.maximum(counts.right + counts.wrong, 0.0) if counts.expected is None else counts.expected
    weight = counts.gap * size**2 / np.maximum(size**2 + 4 * counts.std**2, 1e-300)
    slope = (weight * ((1 - p) * counts.right - p * counts.wrong)).sum(axis=1)
    variance = size * p * (1 - p) + counts.std**2 * (p**2 + (1 - p) ** 2)
    return np.asarray(slope**2 / np.maximum(2 * (weight**2 * variance).sum(axis=1), 1e-300))


def _vertex(total: Floats) -> float:
    """Where a parabola through the least value on the grid and its neighbors has its least one."""
    at = int(np.clip(np.argmin(total), 1, len(total) - 2))
    before, here, after = total[at - 1 : at + 2]
    bend = before - 2 * here + after
    shift = 0.5 * (before - after) / bend if bend > 0 else 0.0
    return float(_GRID[at] + np.clip(shift, -1, 1) * (_GRID[1] - _GRID[0]))


def probability_scale(
    weights: Floats,
    task: Task,
    counts: GapCounts | None,
    name: str,
    shrunk: float = 1.0,
    *,
    public_share: float = 0.0,
) -> tuple[float, str]:
    """The scale, and what it was fitted to.

    shrunk: by what factor a model of p weights per class is too small that noise kept near its start, 1 +
    (1 − s)p/n′: it has learned from n′/(1 − s) gradients what n would tell (`precision`).
    public_share: s. Such a model is near that of the public rows alone, whose scale is known in folds.
    """
    loss, public = task.loss, task.public
    proper = loss.name in ("logistic", "softmax")
    if proper and name == "non_private":
        return 1.0, "probabilities: those of the loss, whose exact minimum this is"
    expected = _EXPECTED.get(loss.name, _MARGIN)
    if proper:
        several = _ENDING_OF_SEVERAL if loss.outputs > 1 else {}
        expected = several.get(name, _ENDING.get(name, expected))
    center = expected[0] + math.log(shrunk)
    if public_share > 0:
        center = (1 - public_share) * center + public_share * _center_of_public(weights, task)
    expected = (center, expected[1])
    rows, weight = _public_scores(weights, public, loss, name)
    scale = fit_scale(expected=expected, public=rows, weight=weight, counts=counts)
    parts = [] if counts is None else ["noisy counts of private records"]
    parts += [] if rows is None else [f"{len(rows[1])} public rows"]
    if not parts:
        return scale, "probabilities: not fitted to any record, since there are too few public ones"
    return scale, f"probabilities: scaled by {scale:.3g}, fitted to {' and '.join(parts)}"


def _center_of_public(weights: Floats, task: Task) -> float:
    """log a at which the scores are as long, over public rows, as those of public rows alone."""
    alone = fit_public(task)
    scale = probability_scale(alone, task, None, "only_public")[0]
    own, theirs = (float(np.asarray(task.public.X @ w.T).std()) for w in (weights, alone))
    return math.log(scale * max(theirs, 1e-300) / max(own, 1e-300))


def _public_scores(
    weights: Floats, public: PublicRows, loss: Loss, name: str
) -> tuple[tuple[Floats, Floats] | None, float]:
    """Scores and targets of public records, and what each of them counts; None if they are too few."""
    if public.n < _FEWEST or len(np.unique(public.y)) < 2:
        return None, 0.0
    if name == "only_public":
        _, z, y = best_on_folds(public, loss)
        return (z if loss.outputs > 1 else z[:, 0], y), 1.0
    some = np.unique(np.linspace(0, public.n - 1, min(public.n, _MOST)).astype(np.intp))
    z = np.asarray(public.X[some] @ weights.T)
    return (z if loss.outputs > 1 else z[:, 0], public.y[some]), _IN_SAMPLE * max(
        0.0, 1 - 2 * public.p * loss.outputs / public.n
    )
