"""A small release beside a method: one plan, within the budget, and no more noise than that takes."""

from dataclasses import replace

import pytest
from tests.contracts.cases import CASES, Case

from sidelight.audit.subjects import ADD_REMOVE, scene
from sidelight.errors import BudgetExceeded
from sidelight.methods.baselines import only_public
from sidelight.methods.ppsgd import ppsgd
from sidelight.methods.side_release import PlanWithSideRelease, plan_with_side_release
from sidelight.methods.task import Method, Plan
from sidelight.privacy import accountants, events
from sidelight.privacy.contract import Contract
from sidelight.privacy.open_accounts import certificate_of

SIDE = events.gaussian(40.0)
PURE = "majority-private"  # ε-DP and nothing more: a Gaussian beside it would take much of ε


def beside(method: Method, case: Case | None = None, side: events.Event = SIDE) -> PlanWithSideRelease | None:
    task = scene("logistic" if case is None else case.loss).task(
        method.relations[0] if case is None else case.relation
    )
    return plan_with_side_release(
        side, lambda rest: method.plan(replace(task, epsilon=rest)), epsilon=task.epsilon, delta=task.delta,
        relation=task.relation,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_cost_at_most_the_budget_and_use_it(case: Case) -> None:
    task = scene(case.loss).task(case.relation)
    found = beside(case.make(), case)
    assert found is not None
    if not found.spends:
        assert found.plan is found.inner
        return
    cost = accountants.epsilon(found.plan.event, delta=task.delta, relation=task.relation)
    alone = accountants.epsilon(case.make().plan(task).event, delta=task.delta, relation=task.relation)
    assert cost <= task.epsilon
    assert cost >= (0.9 if case.name == PURE else 0.99) * min(alone, task.epsilon)
    assert SIDE in events.elementary(found.plan.event)


def test_a_release_that_takes_everything_is_refused() -> None:
    assert beside(ppsgd(planned_steps=4), side=events.gaussian(0.5)) is None


def test_a_method_that_spends_nothing_has_nothing_beside_it() -> None:
    found = beside(only_public())
    assert found is not None
    assert not found.spends
    assert found.plan.event == events.NoOp()


def contract_of(plan: Plan) -> Contract:
    task = scene("logistic").task(ADD_REMOVE)
    return Contract(
        method="test", event=plan.event, filtered=plan.filtered, relation=ADD_REMOVE, epsilon=task.epsilon,
        delta=task.delta, n=task.n,
    )  # fmt: skip


def test_a_filter_admits_the_small_release_once_and_keeps_its_own_limit() -> None:
    found = beside(ppsgd(planned_steps=4))
    assert found is not None
    assert found.plan.filtered
    certificate, rest = certificate_of(found.plan.event)
    assert (certificate, rest[SIDE]) == (found.inner.event, 1)
    run, account = contract_of(found.plan).begin()
    account.charge(SIDE)
    account.charge(certificate)  # all that the filter may spend
    with pytest.raises(BudgetExceeded, match="certificate"):
        account.charge(SIDE)
    assert events.elementary(run.released) == events.elementary(found.plan.event)


def test_a_resumed_run_may_have_released_both() -> None:
    found = beside(ppsgd(planned_steps=4))
    assert found is not None
    contract = contract_of(found.plan)
    _, account, _ = contract.resume(0, found.plan.event)
    with pytest.raises(BudgetExceeded, match="certificate"):
        account.charge(SIDE)
