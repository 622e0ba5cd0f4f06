"""The best of several runs, chosen on private records: for those without public records to rehearse on.

    PrivateClassifier(epsilon=2, method=tune([dp_sgd(step_size=s) for s in (0.1, 1.0, 10.0)]))

A random number of runs is made (Papernot & Steinke, ICLR 2022, arXiv:2110.03620v2), each of a candidate that
is drawn uniformly, with a noisy private loss as its score. The model of the best run is returned, and nothing
of the others. What that costs is the event `BestOf` (`privacy.selections`), charged before the first run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sidelight.data.rows import PrivateRows
from sidelight.errors import (
    AssumptionError,
    BudgetExceeded,
    InputError,
    PrivacyConditionError,
    first_line,
)
from sidelight.methods.declare import as_method
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import (
    Fitted,
    Flags,
    Method,
    Plan,
    Task,
    check_method,
    takes_partitions,
)
from sidelight.privacy import accountants, conversions, events, selections
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, Run, release
from sidelight.problems.base import oracle_of

_SCORE_SHARE = 0.05  # of μ² of a run, for its score
_MOST_ZEROS = 2**26  # numbers of rows that candidates are tried on
_ROUNDS = 9  # of the search for the ε of a run
_TIME = "how long a fit takes, which tells how many runs there were, is not part of the output"


def tune(candidates: Sequence[Method | str], *, expected_runs: float = 5.0, shape: float = 0.0) -> Tuned:
    """A method that makes some runs of these candidates and returns the best, by a noisy private loss.

    Formal guarantee: one event `BestOf`, which covers however many runs there are.
    It refuses candidates whose plan it cannot account for: those that choose their steps while training.

    Args:
        candidates: methods with a fixed plan, or names of them.
        expected_runs: how many runs there are on average, at least a little above 1.
        shape: η of the law of their number, at most 20; 0 is logarithmic, and costs least.
    """
    return Tuned(tuple(as_method(one) for one in candidates), float(expected_runs), float(shape))


@dataclass(frozen=True)
class Tuned(Flags):
    """See `tune`."""

    candidates: tuple[Method, ...]
    expected_runs: float = 5.0
    shape: float = 0.0
    name: ClassVar[str] = "tune"

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InputError("tune needs candidates to choose from")
        if not 0 <= self.shape <= 20:  # beyond, the least probabilities are no numbers any more
            raise InputError(f"shape must be in [0, 20], not {self.shape!r}")
        selections.gamma_for(self.expected_runs, self.shape)
        for one in self.candidates:
            if not one.private or isinstance(one, Tuned):
                raise InputError(
                    f"tune chooses among private methods with a plan of their own, not {one.name}"
                )

    @property
    def relations(self) -> tuple[Relation, ...]:  # type: ignore[override]
        first, *rest = (one.relations for one in self.candidates)
        return tuple(relation for relation in first if all(relation in known for known in rest))

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        return any(one.needs_public for one in self.candidates)

    @property
    def takes_partitions(self) -> bool:  # type: ignore[override]
        return all(takes_partitions(one) for one in self.candidates)

    def plan(self, task: Task) -> Plan:
        check_method(self, task)
        gamma = selections.gamma_for(self.expected_runs, self.shape)
        low, high, best = 0.0, task.epsilon, None
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            plans, event = self._planned(task, middle, gamma)
            if accountants.epsilon(event, delta=task.delta, relation=task.relation) <= task.epsilon:
                low, best = middle, (plans, event, middle)
            else:
                high = middle
        if best is None:
            raise PrivacyConditionError(
                f"epsilon={task.epsilon:g} is too small for {self.expected_runs:g} runs; make fewer"
            )
        plans, event, each = best
        for one, (inner, z) in zip(self.candidates, plans, strict=True):
            _rehearse(one, self._of_one_run(task, each), inner, z)
        details = {
            "candidates": [self._label(k) for k in range(len(self.candidates))],
            "expected_runs": event.expected,
            "epsilon_of_a_run": each,
            "score_bound": loss_bound(task),
        }
        said = tuple(dict.fromkeys(line for plan, _ in plans for line in plan.assumptions))
        return Plan(event, False, details, (*said, _TIME), {"plans": plans, "epsilon": each})

    def _planned(
        self, task: Task, epsilon: float, gamma: float
    ) -> tuple[list[tuple[Plan, float]], events.BestOf]:
        """The plan of every candidate at this ε of a run, the noise of its score, and the whole event."""
        inner, plans = self._of_one_run(task, epsilon), []
        z = 1 / (math.sqrt(_SCORE_SHARE) * conversions.gdp_mu(inner.epsilon, inner.delta))
        for one in self.candidates:
            plan = one.plan(inner)
            if plan.filtered or isinstance(plan.event, events.NonPrivate):
                raise PrivacyConditionError(
                    f"{one.name} chooses its steps while training, and what the best of several such runs "
                    "costs is not known: give tune methods with a fixed plan"
                )
            if "trees" in plan.details:
                raise InputError(f"{one.name} would grow trees here, and tune scores linear models alone")
            plans.append((plan, z))
        whole = tuple(dict.fromkeys(_with_score(plan, z) for plan, z in plans))
        return plans, events.BestOf(whole, self.shape, gamma)

    def _of_one_run(self, task: Task, epsilon: float) -> Task:
        """The task with the budget of a run, which a candidate may ask for again while it runs."""
        return replace(task, epsilon=epsilon, delta=task.delta / (2 * self.expected_runs), observers=())

    def _label(self, k: int) -> str:
        return f"{k + 1}: {self.candidates[k].name}"

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        event = plan.event
        if not isinstance(event, events.BestOf):
            raise PrivacyConditionError("this is not a plan of tune")
        account.charge(event)
        own = noise.bound("tune", repr(event))
        best: tuple[float, float, int, Fitted] | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of runs of which nothing is shown
            for number in range(selections.draw_count(event, own)):
                k = int(own.generator.integers(len(self.candidates)))
                found = self._once(task, plan, k, own.bound("run", number))
                if found is not None:
                    mine = (found[0], float(own.generator.random()), k, found[1])
                    best = mine if best is None or mine[:2] < best[:2] else best
        if best is None:
            raise AssumptionError("training diverged in every run that was made; lower step_size")
        _, _, k, fitted = best
        fitted.notes = [*fitted.notes, f"chosen by a noisy private loss: {self._label(k)}"]
        return fitted

    def _once(self, task: Task, plan: Plan, k: int, noise: Noise) -> tuple[float, Fitted] | None:
        """A run of a candidate and its noisy loss; None for one that failed, which loses."""
        inner, z = plan.state["plans"][k]
        run = Run(0, _with_score(inner, z), rule="exact", covered_by_filter=False, settle=lambda *_: None)
        try:
            one = self._of_one_run(task, plan.state["epsilon"])
            fitted = self.candidates[k].run(one, inner, account=run, noise=noise)
            total = oracle_of(task.rows, task.loss).clipped_losses(
                fitted.coef.reshape(1, -1), bound=loss_bound(task), relation=task.relation
            )
            noisy = release(
                total, std=z * total.sensitivity, event=events.gaussian(z), account=run, noise=noise
            )
        except (PrivacyConditionError, BudgetExceeded):  # plans and their price are public
            raise
        except Exception:  # what failed is a function of what this run released
            return None
        score = float(np.asarray(noisy.numpy()).reshape(-1)[0])
        return (score, fitted) if math.isfinite(score) else None


def _rehearse(one: Method, task: Task, plan: Plan, z: float) -> None:
    """Run a candidate on rows of zeros, before the charge: a mistake in its code would lose every run.

    A recipe has asked its parts already. What depends on the values of records is no mistake: it passes.
    """
    if isinstance(one, Recipe) or task.n * task.p > _MOST_ZEROS:
        return
    rows = PrivateRows(np.zeros((task.n, task.p)), np.zeros(task.n), max_norm=task.max_norm)
    account = Run(0, _with_score(plan, z), rule="exact", covered_by_filter=False, settle=lambda *_: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.run(replace(task, rows=rows), plan, account=account, noise=Noise(0))
    except (InputError, TypeError, AttributeError, NameError, LookupError, NotImplementedError) as error:
        raise InputError(f"{one.name} fails on rows of zeros ({first_line(error)})") from error
    except Exception:  # of zeros, and of noise drawn for them
        return


def _with_score(plan: Plan, z: float) -> Event:
    return events.compose(plan.event, events.gaussian(z))


def loss_bound(task: Task) -> float:
    """Twice the largest loss of a model that says 0: losses above it count as that."""
    loss, outputs = task.loss, task.loss.outputs
    if loss.task == "multiclass":
        return 2 * float(loss.value(np.zeros((1, outputs)), np.zeros(1, dtype=np.intp))[0])
    top = 1.0 if task.target_bound is None else task.target_bound
    return 2 * float(np.max(loss.value(np.zeros(2), np.array([-top, top]))))
