"""A run whose own filter was never asked is stopped by the account."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.contracts.replay import Nothing

from sidelight.audit.subjects import ADD_REMOVE, REPLACE, scene
from sidelight.data.rows import UnreadRows
from sidelight.errors import BudgetExceeded, PrivacyConditionError
from sidelight.methods.part_kinds import Setting
from sidelight.methods.ppsgd import GrowingBudget, GrowingBudgetState, ppsgd
from sidelight.methods.recipe import Recipe
from sidelight.methods.task import fit_charged
from sidelight.privacy import events
from sidelight.privacy.events import Event
from sidelight.privacy.noise import Noise
from sidelight.privacy.open_accounts import Certified


@dataclass(frozen=True)
class Asleep(GrowingBudget):
    """Plans like PPSGD, and never asks."""

    def begin(self, setting: Setting) -> GrowingBudgetState:
        state = super().begin(setting)
        state.admit = lambda event: None  # type: ignore[method-assign]
        return state


def asleep(recipe: Recipe) -> Recipe:
    rule = recipe.noise
    return recipe.with_parts(
        noise=Asleep(planned_steps=rule.planned_steps, growth=rule.growth, accounting=rule.accounting)
    )


CASES = [
    (ppsgd(planned_steps=4, growth=0.0), REPLACE),
    (ppsgd(planned_steps=4, growth=0.0, expected_batch_size=22), ADD_REMOVE),
    (ppsgd(planned_steps=30, growth=0.0, accounting="tcdp"), REPLACE),
]


@pytest.mark.parametrize(("recipe", "relation"), CASES, ids=["gaussian", "renyi", "tcdp"])
def test_a_filter_that_sleeps_is_noticed(recipe: Recipe, relation: Any) -> None:
    task = scene().task(relation)
    unread = replace(task, rows=UnreadRows(task.n, task.p, max_norm=1.0))
    fitted, statement = fit_charged(recipe, unread, read=lambda: task.rows, payer=None, noise=Noise(0))
    assert statement.epsilon <= task.epsilon * (1 + 1e-9) and len(fitted.history) > 1
    with pytest.raises(BudgetExceeded, match="certificate"):
        fit_charged(asleep(recipe), unread, read=lambda: task.rows, payer=None, noise=Noise(0))


def test_what_fits_passes_and_what_does_not_is_not_charged() -> None:
    charged: list[Event] = []

    class Book:
        def charge(self, event: Event) -> None:
            charged.append(event)

    account = Certified(Book(), events.gaussian(1.0), relation=REPLACE)
    for _ in range(4):
        account.charge(events.gaussian(2.0))
    for event in (events.gaussian(1e3), events.poisson(0.5, 1e3), events.NonPrivate()):
        with pytest.raises(BudgetExceeded):
            account.charge(event)
    assert charged == [events.gaussian(2.0)] * 4


def test_a_step_that_breaks_a_condition_is_refused() -> None:
    account = Certified(Nothing(), events.TruncatedConcentrated(1.0, 50.0), relation=REPLACE)
    account.charge(events.ZeroConcentrated(0.1))
    with pytest.raises(PrivacyConditionError):
        account.charge(events.fixed_size(100, 50, 10.0))


def test_a_certificate_without_a_sum_is_left_to_the_filter() -> None:
    account = Certified(Nothing(), events.ApproximateDp(1.0, 1e-5), relation=REPLACE)
    account.charge(events.gaussian(1.0))
