"""A paid comparison: do private records agree with the public ones, and did private training help?

Public rows that were held out cannot say whether private training helped where the public rows differ from
the private ones. Private records can, at a small price. Two Gaussian releases, inside the plan of the method:

    before   Σ min(ℓ_i(ŵ), b)               the loss of the public model ŵ on the private records. If it is
                                            larger than in folds of the public rows, they are of another kind,
                                            and a warning says so (`measured_shift` limits their weight). If
                                            it is nearly 0, nothing can be gained (`public_alone`): ŵ is
                                            returned, and training does not begin
    after    Σ clip(ℓ_i(ŵ) − ℓ_i(w), ±b)    if the private model w is clearly worse, ŵ is returned. Of
                                            classes also how many records ŵ and w predict correctly

b is the largest loss that counts, a public number. ŵ is the model of the public rows alone, in the same
coordinates; of a regression around a guide it is the guide itself (ŵ = 0). A person counts with the mean over
the rows that can be used.

A run that stops releases a part of its fixed plan. Which part depends on a release alone, so the plan bounds
it, and the statement keeps the plan. What was not released is taken back in a ledger whose filter admitted
the run: a filter adds up events as they happen, however they were chosen (`Run.finish`, `privacy.filters`).

w was trained on the records that judge it. Differential privacy bounds how much that flatters it: for a loss
in [0, b] and a w that is μ-GDP under replace-one, the means over training records and over new ones differ in
expectation by at most b(2Φ(μ/2) − 1), the total variation by which one record moves w (stability under the
exchange of one record; Bassily et al., arXiv:1511.02513v1). So no record has to be set apart. The bound is
loose at large ε, where there are many records for each parameter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sidelight.arrays import Floats
from sidelight.errors import PrivacyWarning, warn_charged
from sidelight.methods.probabilities import ScaledFit, WithProbabilities, probability_scale
from sidelight.methods.public_alone import CERTAIN, PublicAlone
from sidelight.methods.side_release import WrappedMethod, plan_with_side_release
from sidelight.methods.task import STOPPED, Fitted, Plan, Task
from sidelight.oracles.linear.loss_sums import clipped_losses, loss_differences
from sidelight.privacy import conversions, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, release

SHARE = 0.04  # of μ², for both releases together
_LARGER_SHARE = 0.25  # for the first, if public rows see nothing to gain and only then private ones can agree
_COARSEST = 0.02  # of b: a mean loss that is known less well than that is not worth its price
_DOUBTED = 2.0  # standard errors by which the private model has to be worse to be given up
_WARNED = 0.1  # of the loss: public and private records disagree
_COUNTED = 1 / 3  # of b, for a right prediction: it adds at most 11 % to the noise on the loss
COMPARED, RETURNED = "compared_with_public", "returned"  # among the details of a statement
_PUBLIC_MODEL = "the model of the public rows alone"


class _Multipliers(NamedTuple):
    """The noise multipliers of the two releases."""

    before: float
    after: float

    def share(self, task: Task) -> float:
        """Of μ², for both."""
        mu = conversions.gdp_mu(task.epsilon, task.delta)
        return round(sum((z * mu) ** -2 for z in self), 6)


@dataclass(frozen=True, repr=False)
class PaidComparison(WrappedMethod):
    """A method with public records, and what private records say of it against public records alone.

    Args:
        method: is planned with the budget that the two releases leave.
        share: of μ², for both.
    """

    share: float = SHARE
    losses: ClassVar[tuple[str, ...]] = ("logistic", "softmax", "square", "hinge", "huber")

    def plan(self, task: Task) -> Plan:
        if why := self._unsuited(task):
            return self._alone(task, why)
        public = PublicAlone.of(task)
        noise = self._noise(task, public)
        factor = 1 if task.relation == "add-or-remove-one" else 2
        if noise.after * factor > _COARSEST * task.n:
            return self._alone(task, "n·ε is too small for a comparison on private records")
        found = plan_with_side_release(
            events.compose(*map(events.gaussian, noise)),
            lambda rest: self.method.plan(replace(task, epsilon=rest)),
            epsilon=task.epsilon,
            delta=task.delta,
            relation=task.relation,
        )
        if found is None or found.inner.filtered:
            return self._alone(task, "the method's plan leaves no part of the budget to a comparison")
        if not found.spends:
            return self._alone(task)
        details = {**found.inner.details, "comparison_share": noise.share(task)}
        state = {"plan": found.inner, "noise": noise, "beside": found, "public": public}
        return replace(found.plan, details=details, state=state)

    def _noise(self, task: Task, public: PublicAlone) -> _Multipliers:
        """Less noise on the first release if that lets a run end that cannot gain."""
        mu = conversions.gdp_mu(task.epsilon, task.delta)
        usual, less = math.sqrt(2 / self.share) / mu, 1 / math.sqrt(_LARGER_SHARE) / mu
        may_end = [public.may_end(z * public.bound / task.n) for z in (usual, less)]
        return _Multipliers(less if may_end == [False, True] else usual, usual)

    def _unsuited(self, task: Task) -> str:
        """Why nothing is compared, or an empty text."""
        if task.public.n < 10:
            return f"there are {task.public.n} public rows" if task.public.n else "there are no public rows"
        return "" if task.loss.name in self.losses else f"the {task.loss.name} loss has no bound"

    def _alone(self, task: Task, why: str = "") -> Plan:
        """The plan of the method without a comparison, for a reason or because it spends nothing."""
        plan = self.method.plan(task)
        told = f"the private model, not compared with public rows alone: {why}"
        if plan.event == events.NoOp():
            reasons = plan.details.get("reasons")
            told = ": ".join([_PUBLIC_MODEL, *(reasons[-1:] if isinstance(reasons, list) else ())])
        return replace(plan, details={**plan.details, RETURNED: told}, state={"plan": plan, "noise": None})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        inner: Plan = plan.state["plan"]
        multipliers: _Multipliers | None = plan.state["noise"]
        if multipliers is None:
            return self.method.run(task, inner, account=account, noise=noise)
        judge = _Judge(task, plan.state["public"], multipliers, account, noise)
        line = judge.before()
        if judge.ends(line):
            return judge.ended(line, scaled=_scales(self.method))
        asked = plan.state["beside"].task(task)
        fitted = self.method.run(asked, inner, account=account, noise=noise)
        return judge.after(fitted, line)


class _Judge:
    """The two releases of one run, and what follows from them."""

    def __init__(
        self, task: Task, public: PublicAlone, z: _Multipliers, account: Account, noise: Noise
    ) -> None:
        self.task, self.alone, self.z, self._account, self._noise = task, public, z, account, noise
        self.public, self.scale = public.weights, public.scale
        self.loss, self.bound = public.loss, public.bound

    def before(self) -> dict[str, object]:
        """Whether public and private records agree: a line for the history, and a warning if they do not."""
        question = partial(
            clipped_losses, weights=self.scale * self.public, loss=self.loss, bound=self.bound,
            relation=self.task.relation,
        )  # fmt: skip
        means, error = self._means(self.task.rows.summed(question), self.z.before)
        mean = float(means[0])
        expected, spread = self.alone.expected, self.alone.spread
        doubt = max(0.0, mean - expected - CERTAIN * math.hypot(error, spread)) / max(expected, 1e-12)
        if doubt > _WARNED:
            warn_charged(
                f"public and private records disagree: the public model's mean loss is {mean:.3g} on private "
                f"records and {expected:.3g} on held-out public ones",
                PrivacyWarning,
            )
        return {
            "released": "mean loss of the public model", "value": mean, "error": error,
            "in_public_folds": expected,
        }  # fmt: skip

    def ends(self, before: dict[str, Any]) -> bool:
        """Whether nothing is left to gain: by what was released, and by public rows."""
        return self.alone.ends(before["value"], before["error"])

    def ended(self, before: dict[str, Any], *, scaled: bool) -> Fitted:
        """The model of the public rows alone, without a step of training."""
        bounded = 100 * (before["value"] + CERTAIN * before["error"]) / self.alone.constant
        what = "variance of the target" if self.loss.name == "square" else "entropy of the classes"
        why = (
            f"on private records its mean loss is at most {bounded:.2g}\u202f% of the {what}, and no model "
            "gains more than that"
        )
        found: dict[str, object] = {RETURNED: f"{_PUBLIC_MODEL}: {why}", STOPPED: why}
        line: dict[str, object] = {"step": 0, **before, "ends": True}
        if not scaled:
            return Fitted(self.public, [line], [], found)
        about = probability_scale(self.public, self.task, None, "only_public")[1]
        return ScaledFit(self.public, [line], [about], found, scale=self.scale)

    def after(self, fitted: Fitted, before: dict[str, object]) -> Fitted:
        """The private model, unless it is worse by two standard errors.

        Noise alone does not speak against it: it weighs public and private gradients by their precision, so
        that it is expected to be better where the two kinds of records agree, and even more if they do not.
        """
        own = self._scale(fitted.coef, "precision_weighting")
        if isinstance(fitted, ScaledFit):
            own = fitted.scale
        question = partial(
            loss_differences, first=self.scale * self.public, second=own * fitted.coef, loss=self.loss,
            bound=self.bound, relation=self.task.relation, counted=self._counted,
            trees=None if fitted.leaves is None else fitted.leaves.times(own),
        )  # fmt: skip
        means, error = self._means(self.task.rows.summed(question), self.z.after)
        gain = float(means[0])
        kept = gain > -_DOUBTED * error
        after = {"released": "gain over public rows alone", "value": gain, "error": error, "kept": kept}
        if len(means) > 1:
            right = np.clip(means[1:] / self._counted, 0, 1)
            after |= {"accuracy_public": float(right[0]), "accuracy": float(right[1])}
            after |= {"accuracy_error": error / self._counted}
        numbered = [{"step": len(fitted.history) + k, **line} for k, line in enumerate((before, after))]
        compared = {**after, "loss": self.loss.name, "loss_public": before["value"]}
        found = {**fitted.found, COMPARED: compared, RETURNED: _returned(compared)}
        told = replace(fitted, history=[*fitted.history, *numbered], found=found)
        if kept:
            return told
        if isinstance(told, ScaledFit):  # whose last note is about its own scale
            about = probability_scale(self.public, self.task, None, "only_public")[1]
            told = replace(told, scale=self.scale, notes=[*told.notes[:-1], about])
        return replace(told, coef=self.public, leaves=None)

    @property
    def _counted(self) -> float:
        """What a right prediction adds beside the loss; a regression has none."""
        return 0.0 if self.loss.name == "square" else _COUNTED * self.bound

    def _means(self, total: BoundedSum, z: float) -> tuple[Floats, float]:
        """Noisy means over n records, and the standard deviation of their noise."""
        std, event = z * total.sensitivity, events.gaussian(z)
        noisy = release(total, std=std, event=event, account=self._account, noise=self._noise).numpy()
        return noisy / self.task.n, std / self.task.n

    def _scale(self, weights: Floats, name: str) -> float:
        """Of the scores whose losses are compared; a regression has none."""
        return 1.0 if self.loss.name == "square" else probability_scale(weights, self.task, None, name)[0]


def _returned(compared: dict[str, Any]) -> str:
    """Which model was returned, and why."""
    gain, error, before = (float(compared[name]) for name in ("value", "error", "loss_public"))
    name, unit = "log loss", ""
    if compared["loss"] == "square":
        name = "squared error"
        if before > 0:  # in the user's units it would be a number that nobody can judge
            gain, error, unit = (100 * gain / before, 100 * error / before, " %")
    accuracy = ""
    if "accuracy" in compared:
        values = (100 * float(compared[key]) for key in ("accuracy", "accuracy_error", "accuracy_public"))
        accuracy = "; accuracy {:.1f} ± {:.1f}\u202f%, public rows alone {:.1f}\u202f%".format(*values)
    size = f"{abs(gain):.3g} ± {error:.2g}{unit}"
    which = "the private model" if compared["kept"] else _PUBLIC_MODEL
    whose = "its" if compared["kept"] else "the private model's"
    way = "below" if gain > 0 else "above"
    told = f"{which}: on private records {whose} mean {name} is {size} {way} that of public rows alone"
    return told + accuracy


def _scales(method: object) -> bool:
    """Whether the method gives the scale of its probabilities."""
    if isinstance(method, WithProbabilities):
        return True
    return isinstance(method, WrappedMethod) and _scales(method.method)
