"""Training that leaves public rows alone if its first step shows that they are of another kind.

Public rows give precision weighting its start, its metric and a part of each gradient. The first release, at
the model of the public rows, says how far that is off (`measured_shift`): r times as far as m rows of the
private kind would be by chance. Rows that are off by so much are worth m/r of that kind. If these are fewer
than a row has features, they do not determine a model, and the rest of the run does without any:

    r ← from the first release, less two standard errors
    if m/r < p and r > 4:
        H ← mean of a tenth of the releases that are left ;  DP-Newton with the others, from 0

Both ways make the same releases with the same noise, so that the plan is charged before the choice. The
choice depends on a release alone, as composition allows: for each outcome of the first, what follows is the
same composition of Gaussians (Theorem 3.2 of Dong, Roth & Su, arXiv:1905.02383v3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sidelight.errors import PrivacyWarning, warn_charged
from sidelight.methods.dp_newton import DpNewton
from sidelight.methods.measured_shift import MeasuredShift
from sidelight.methods.recipe import Loop, Recipe
from sidelight.methods.side_release import WrappedMethod
from sidelight.methods.task import Fitted, Plan, Task
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account

_FAR = 4.0  # above what four tables without a shift showed
UNUSED = "public_rows_unused"  # among what was found: public rows were not used beyond the first step


@dataclass(frozen=True, repr=False)
class PublicGuard(WrappedMethod):
    """A recipe of full-batch steps with a mix that measures shift, and what is done without public rows.

    Args:
        method: the recipe.
        unguided: takes over its releases.
    """

    method: Recipe
    unguided: DpNewton

    def plan(self, task: Task) -> Plan:
        plan = self.method.plan(task)
        self.unguided.plan_of_releases(task, releases=64, noise_multiplier=1.0)  # what fails, fails here
        return plan

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        loop = self.method.reading(task, plan)
        loop.take_steps(account=account, noise=noise, observers=task.observers, stop=lambda: True)
        if not _far(loop, task):
            loop.take_steps(account=account, noise=noise, observers=task.observers)
            return self.method.fitted(task, loop)
        left = loop.setting.steps - loop.steps_taken
        plan = self.unguided.plan_of_releases(task, releases=left, noise_multiplier=loop.first_multiplier)
        fitted = self.unguided.run(task, plan, account=account, noise=noise)
        lines = [{**line, "step": loop.steps_taken + k} for k, line in enumerate(fitted.history)]
        note = (
            f"public and private records disagree: the {task.public.n:,} public rows are worth fewer than "
            f"{task.p} of the private kind, and training went on without them"
        )
        warn_charged(note, PrivacyWarning)
        found = {**fitted.found, UNUSED: True}
        return replace(fitted, history=[*loop.history, *lines], notes=[note, *fitted.notes], found=found)


def _far(loop: Loop, task: Task) -> bool:
    ratio = loop.mix.ratio if isinstance(loop.mix, MeasuredShift) else 1.0
    return ratio > max(_FAR, task.public.n / task.p)
