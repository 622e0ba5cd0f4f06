"""Plan, check, charge, read, run: planted faults in a method are caught whatever it does."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from sidelight.data.rows import PrivateRows, PublicRows, UnreadRows, contents
from sidelight.errors import BudgetExceeded, InputError, LedgerError, PrivacyConditionError, RelationError
from sidelight.losses import Logistic
from sidelight.methods.task import Fitted, Plan, Task, fit_charged
from sidelight.privacy import accountants, events
from sidelight.privacy.contract import Payer, open_payer
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import SEED_ASSUMPTION, Noise
from sidelight.privacy.release import release

N, P = 20, 3


@dataclass(frozen=True)
class Mean:
    """Releases the sum of the rows, `times` times, and plans for one."""

    times: int = 1
    planned_epsilon: float | None = None
    peeks: bool = False
    fails: bool = False

    name: ClassVar[str] = "mean"
    relations: ClassVar[tuple[Any, ...]] = ("add-or-remove-one",)
    needs_public: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def plan(self, task: Task) -> Plan:
        if self.peeks:
            contents(task.rows)
        sigma = accountants.noise_multiplier(
            epsilon=self.planned_epsilon or task.epsilon, delta=task.delta, relation=task.relation
        )
        return Plan(events.gaussian(sigma), details={"sigma": np.float64(sigma)}, state={"sigma": sigma})

    def run(self, task: Task, plan: Plan, *, account: Any, noise: Noise) -> Fitted:
        if self.fails:
            raise RuntimeError("the machine stops")
        total = task.rows.compute(lambda X, y: X.sum(axis=0), sensitivity=1.0, relation=task.relation)
        for _ in range(self.times):
            out = release(total, std=plan.state["sigma"], event=plan.event, account=account, noise=noise)
        return Fitted(out.numpy()[None, :])


def task(epsilon: float = 1.0) -> Task:
    return Task(
        rows=UnreadRows(N, P, max_norm=1.0),
        public=PublicRows.empty(P),
        loss=Logistic(),
        epsilon=epsilon,
        delta=1e-6,
        relation="add-or-remove-one",
    )


def read() -> PrivateRows:
    return PrivateRows(np.ones((N, P)), np.ones(N), max_norm=1.0)


def never() -> PrivateRows:
    raise AssertionError("private records were read")


@pytest.fixture
def payer() -> Payer:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=1.0, delta=1e-6)
    return Payer(ledger, "people")


def test_statement_and_ledger_agree(payer: Payer) -> None:
    fitted, statement = fit_charged(Mean(), task(), read=read, payer=payer, noise=Noise(0))
    (charge,) = payer.ledger.charges("people")
    assert charge.event == statement.plan == statement.events[0]
    assert statement.epsilon == pytest.approx(1.0, rel=1e-6) and statement.epsilon <= 1 + 1e-6
    assert statement.ledger is not None and statement.ledger["run"] == charge.order
    assert SEED_ASSUMPTION in statement.assumptions
    assert fitted.coef.shape == (1, P)


def test_charge_is_written_before_records_are_read(payer: Payer) -> None:
    def fail() -> PrivateRows:
        assert len(payer.ledger.charges("people")) == 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        fit_charged(Mean(), task(), read=fail, payer=payer, noise=Noise())
    assert payer.ledger.total("people").epsilon == pytest.approx(1.0, rel=1e-4)


def test_failed_run_stays_charged(payer: Payer) -> None:
    with pytest.raises(RuntimeError):
        fit_charged(Mean(fails=True), task(), read=read, payer=payer, noise=Noise())
    assert len(payer.ledger.charges("people")) == 1


def test_plan_that_looks_at_records_is_caught(payer: Payer) -> None:
    with pytest.raises(PrivacyConditionError, match="charged"):
        fit_charged(Mean(peeks=True), task(), read=never, payer=payer, noise=Noise())
    assert payer.ledger.charges("people") == []


def test_plan_over_its_budget_is_caught(payer: Payer) -> None:
    with pytest.raises(PrivacyConditionError, match="more than the 1"):
        fit_charged(Mean(planned_epsilon=1.01), task(), read=never, payer=payer, noise=Noise())
    assert payer.ledger.charges("people") == []


@pytest.mark.parametrize("with_ledger", [True, False])
def test_run_that_releases_more_than_planned_is_caught(payer: Payer, with_ledger: bool) -> None:
    payer = payer if with_ledger else None
    with pytest.raises(BudgetExceeded, match="released"):
        fit_charged(Mean(times=2), task(), read=read, payer=payer, noise=Noise())


def test_refused_run_reads_nothing(payer: Payer) -> None:
    fit_charged(Mean(), task(), read=read, payer=payer, noise=Noise())
    with pytest.raises(BudgetExceeded):
        fit_charged(Mean(), task(), read=never, payer=payer, noise=Noise())
    assert len(payer.ledger.charges("people")) == 1


def test_ledger_under_the_other_relation_is_refused() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=1.0, delta=1e-6)
    with pytest.raises(RelationError):
        fit_charged(Mean(), task(), read=never, payer=Payer(ledger, "people"), noise=Noise())


def test_payer_finds_the_only_dataset(tmp_path: Any, payer: Payer) -> None:
    assert open_payer(None, None) is None
    assert open_payer(payer.ledger, None) == payer
    with Ledger.create(tmp_path / "one.ledger") as ledger:
        ledger.register("a", relation="replace-one", epsilon=1.0, delta=1e-6)
    opened = open_payer(tmp_path / "one.ledger", None)
    assert opened is not None and opened.dataset == "a"
    payer.ledger.register("others", relation="replace-one", epsilon=1.0, delta=1e-6)
    with pytest.raises(InputError, match="datasets"):
        open_payer(payer.ledger, None)
    with pytest.raises(InputError, match="without the ledger"):
        open_payer(None, "people")
    with pytest.raises(LedgerError):
        open_payer(tmp_path / "none.ledger", None)
