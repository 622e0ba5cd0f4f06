"""What private learning is measured against: public data alone, no privacy at all, the most common label."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import ClassVar, Literal

import numpy as np

from sidelight.arrays import Array, Floats, Matrix
from sidelight.data.rows import PrivateRows, PublicRows, stacked
from sidelight.errors import AssumptionError, NotPrivateWarning, one_of
from sidelight.losses import Hinge, Huber, Loss
from sidelight.methods.declare import method
from sidelight.methods.task import NOT_USED, NOTHING, PUBLIC_APART, Fitted, Flags, Plan, Task, check_method
from sidelight.oracles.linear.linear_oracle import check_public
from sidelight.oracles.linear.row_sums import RowSums, label_counts, usable_rows
from sidelight.privacy import events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, private_process, select
from sidelight.solvers import minimize, ridge_minimum

_STRENGTHS = (100.0, 10.0, 1.0, 0.1, 0.01)  # λ times the number of public records, tried on folds of them
_WEAKER = (10.0, 1.0, 0.1, 0.01, 0.001, 0.0001)  # the same of all records, of which there are more
_ENOUGH_TO_FOLD, _MOST_FOLDED, _MOST_OF_ALL = 10, 500, 10_000
_SCALES = tuple(float(scale) for scale in np.exp(np.linspace(-3.0, 3.0, 25)))  # of a model that was given
_HINGE_WIDTHS = (0.5, 0.1, 0.02, 0.004, 0.001)  # ever sharper; the last is within 0.00025 of the hinge


def solve(
    data: Sequence[PrivateRows | PublicRows], loss: Loss, regularization: float, *, strict: bool = True
) -> Floats:
    """argmin of the mean loss over all rows in `data` plus (λ/2)‖w‖². The hinge is huberized sharply.

    strict: whether a solver that does not arrive raises. Private records must not be able to make it.
    """
    widths = [Huber(h) for h in _HINGE_WIDTHS] if isinstance(loss, Hinge) else []
    w: Floats | None = None
    for rough in widths[:-1]:
        w = _minimum(data, rough, regularization, start=w, strict=strict)
    return _minimum(data, widths[-1] if widths else loss, regularization, start=w, strict=strict)


def _minimum(
    data: Sequence[PrivateRows | PublicRows],
    loss: Loss,
    regularization: float,
    *,
    start: Floats | None,
    strict: bool,
) -> Floats:
    parts = [RowSums.of(rows, loss) for rows in data]
    ridge = sum(part.n for part in parts) * regularization
    minimum = minimize(parts, ridge=ridge, tolerance=1e-8 * ridge, start=start)
    if strict and minimum.gradient > 1e-8 * ridge:
        raise AssumptionError(
            "the solver did not reach the accuracy that was asked for; raise regularization and try again"
        )
    return minimum.w


def fit_public(task: Task) -> Floats:
    """The model of the public records alone, (outputs, p); λ is the task's, or the best in folds of them."""
    check_public(task.public, task.loss)
    if (given := given_model(task.public, task.loss)) is not None:
        return given
    w = ridge_minimum(task.loss, task.public.X, task.public.y, public_strength(task))
    return w.reshape(task.loss.outputs, task.p)


@lru_cache(maxsize=2)
def given_model(public: PublicRows, loss: Loss) -> Floats | None:
    """The model that came with the public records, if it is better on them than theirs is in folds.

    Zeros are no correction of a guide, which has learned from these records already.
    """
    if public.given is None or public.n == 0 or not public.given.any():
        return public.given if public.n else None
    scale, lowest = _best_scale(public, loss, public.given)
    if public.n >= _ENOUGH_TO_FOLD:
        _, z, y = _in_folds(public, loss)
        if _mean_loss(loss, z, y) <= lowest:
            return None
    return scale * public.given


def _best_scale(public: PublicRows, loss: Loss, weights: Floats) -> tuple[float, float]:
    """The factor of these weights with the least mean loss, and that loss."""
    z = np.asarray(public.X @ weights.T)
    losses = [_mean_loss(loss, scale * z, public.y) for scale in _SCALES]
    return _SCALES[int(np.argmin(losses))], min(losses)


def _mean_loss(loss: Loss, z: Floats, y: Array) -> float:
    labels = y.astype(np.intp) if loss.task == "multiclass" else y
    return float(loss.value(z if loss.outputs > 1 else z[:, 0], labels).mean())


def public_strength(task: Task) -> float:
    """λ for the public records alone: the task's, or the one of the least mean loss in folds."""
    m = task.public.n
    if task.regularization or m < _ENOUGH_TO_FOLD:
        return task.regularization or 1 / max(m, 1)
    return best_on_folds(task.public, task.loss)[0] / m


def best_on_folds(public: PublicRows, loss: Loss) -> tuple[float, Floats, Array]:
    """λ·m, and predictions of held-out records with their targets: five folds of at most 500.

    If a model that came with the public records is better, the predictions are its own.
    """
    strength, z, y = _in_folds(public, loss)
    given = given_model(public, loss)
    return (strength, z if given is None else np.asarray(public.X[_evenly(public.n)] @ given.T), y)


@lru_cache(maxsize=2)
def _in_folds(public: PublicRows, loss: Loss) -> tuple[float, Floats, Array]:
    """The same of the public records alone. Remembered: several ask for it."""
    return _folded(public.X, public.y, loss, _STRENGTHS, most=_MOST_FOLDED)


def _evenly(rows: int, most: int = _MOST_FOLDED) -> Array:
    """The records that are folded."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(np.intp))


def _folded(
    X: Matrix, y: Floats, loss: Loss, strengths: tuple[float, ...], *, most: int
) -> tuple[float, Floats, Array]:
    """The best of these strengths in five folds, with predictions of the rows that took part and targets."""
    some = _evenly(len(y), most)
    X, y = X[some], y[some]
    place = np.arange(len(y)) % 5  # every fifth: a sorted table, too
    z = np.zeros((len(strengths), len(y), loss.outputs))
    for fold in range(5):
        held, rest = place == fold, place != fold
        w = np.zeros(loss.outputs * X.shape[1])
        for i, strength in enumerate(strengths):  # from strong to weak, each from where the last one ended
            w = ridge_minimum(loss, X[rest], y[rest], strength / int(rest.sum()), start=w, tolerance=1e-4)
            z[i, held] = X[held] @ w.reshape(loss.outputs, -1).T
    losses = [_mean_loss(loss, part, y) for part in z]
    best = int(np.argmin(losses))
    return strengths[best], z[best], y


@method(
    group="baseline",
    paper="a baseline: the model of the public records",
    wins="when n·ε is too small or public rows suffice, so that spending budget gains nothing",
    loses="whenever private records still improve the model",
    networks=True,
)
@dataclass(frozen=True, kw_only=True)
class OnlyPublic(Flags):
    """OnlyPub: the exact model of the public records.

    Guarantee: perfect, since the private records are not read.
    Assumes: public records that do not depend on the private ones.
    Departs: an exact solver instead of SGD. The hinge is huberized with half-width 0.001.
    """

    name: ClassVar[str] = "only_public"
    needs_public: ClassVar[bool] = True
    takes_persons: ClassVar[bool] = True
    takes_partitions: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        check_public(task.public, task.loss)
        details = {
            "regularization": public_strength(task),
            "public_records": task.public.n,
        }
        return replace(
            NOTHING,
            details=details,
            assumptions=(PUBLIC_APART,),
        )

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        return Fitted(fit_public(task), notes=[NOT_USED])


only_public = OnlyPublic


@method(
    group="baseline",
    paper="a baseline: the model of all records, without protection",
    wins="upper reference, for data that is not secret",
    loses="never for a release: it warns, and no ledger admits it",
    networks=True,
)
@dataclass(frozen=True, kw_only=True)
class NonPrivate(Flags):
    """NonPriv: the exact model of private and public records together, without noise.

    Guarantee: none. It warns with NotPrivateWarning and is charged as a non-private release, which no ledger
    with a budget admits.
    Assumes: nothing. λ = 0 takes the best in folds of the records: it is the ceiling of linear models. In an
    estimator it has the public models and the trees of `auto`, too (`trees=False`, `public_model=None`).
    Departs: an exact solver instead of SGD. The hinge is huberized with half-width 0.001.
    """

    name: ClassVar[str] = "non_private"
    private: ClassVar[bool] = False

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        check_public(task.public, task.loss)
        chosen = task.regularization or "the best in folds"
        return Plan(events.NonPrivate(), details={"regularization": chosen})

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        warnings.warn(
            "non_private fits the private records without any noise: its result carries no guarantee",
            NotPrivateWarning,
            stacklevel=2,
        )

        def process(_: Noise) -> Floats:
            weight = task.regularization or self._strength(task) / (task.n + task.public.n)
            return solve([task.rows, task.public], task.loss, weight, strict=False)

        w = private_process(process, event=plan.event, account=account, noise=noise).numpy()
        return Fitted(w.reshape(task.loss.outputs, task.p), notes=["this model is not private"])

    @staticmethod
    def _strength(task: Task) -> float:
        """λ times the number of records, in folds of the records themselves: a ceiling should be one."""
        X, y = usable_rows(task.rows, task.loss)
        X, y = stacked(X, task.public.X), np.concatenate([y, task.public.y])
        if len(y) < _ENOUGH_TO_FOLD:
            return 1.0
        return _folded(X, y, task.loss, _WEAKER, most=_MOST_OF_ALL)[0]


non_private = NonPrivate


@method(
    group="baseline",
    paper="a baseline of Chen, Lee & Kifer, AISTATS 2019",
    wins="baseline: the most common class",
    loses="everywhere else",
    needs="an intercept",
    losses=("hinge", "huber", "logistic", "softmax"),
    variants={
        "private": {"labels": "private"},
    },
)
@dataclass(frozen=True, kw_only=True)
class Majority(Flags):
    """Majority: always the most frequent label.

    Guarantee: with public labels nothing private is read. With private labels the counts are a query: one
    exponential mechanism (Gumbel noise of scale 1/ε, or 2/ε under replace-one) of ε-DP.
    Assumes: the last feature is the intercept's column, since a linear model has no other constant.
    Departs: the private count of Chen, Lee & Kifer 2019 has no noise and is not private.
    """

    labels: Literal["public", "private"] = "public"

    name: ClassVar[str] = "majority"
    takes_partitions: ClassVar[bool] = True

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        return self.labels == "public"

    @property
    def takes_persons(self) -> bool:  # type: ignore[override]
        return self.labels == "public"

    def plan(self, task: Task) -> Plan:
        one_of("labels", self.labels, ("public", "private"))
        check_method(self, task)
        if task.loss.task == "regression":
            raise AssumptionError("majority predicts the most common label, which a regression does not have")
        if not (task.public.X[:, [-1]] > 0).sum() == task.public.n:
            raise AssumptionError(
                "majority is a constant, and needs the intercept's column (positive, and the last one); "
                "set fit_intercept=True"
            )
        assumptions = ("the last feature is the intercept's column, positive in every row",)
        if self.labels == "public":
            return replace(NOTHING, details={"labels": "public"}, assumptions=assumptions)
        details = {"labels": "private", "gumbel_scale": _gumbel_scale(task)}
        return Plan(events.ApproximateDp(task.epsilon, 0.0), details=details, assumptions=assumptions)

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        classes = np.arange(task.loss.outputs) if task.loss.outputs > 1 else np.array([-1, 1])
        if self.labels == "public":
            winner = int(np.argmax((task.public.y[:, None] == classes).sum(axis=0)))
        else:
            winner = select(
                task.rows.summed(partial(label_counts, classes=classes, relation=task.relation)),
                scale=_gumbel_scale(task),
                mechanism="gumbel",
                monotone=True,
                event=plan.event,
                account=account,
                noise=noise,
            )
        coef = np.zeros((task.loss.outputs, task.p))
        if task.loss.outputs > 1:
            coef[winner, -1] = 1.0
        else:
            coef[0, -1] = classes[winner]
        return Fitted(coef, [{"released": "label", "labels": self.labels}])


majority = Majority


def _gumbel_scale(task: Task) -> float:
    """One record moves one count (add or remove) or two in opposite directions (replace): range 1 or 2.

    Gumbel noise of scale range/η is the exponential mechanism, η-bounded-range and so η-DP: all of ε is η.
    """
    return (1 if task.relation == "add-or-remove-one" else 2) / task.epsilon
