"""What a lifetime budget lets through: never more than (ε, δ), however the runs were chosen."""

import math
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from sidelight.errors import BudgetExceeded, RelationError
from sidelight.privacy import accountants, conversions, events, filters
from sidelight.privacy.events import Event
from sidelight.privacy.filters import Budget, Tally
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.release import Run

ADD = "add-or-remove-one"
EPSILON, DELTA = 3.0, 1e-6
STEP = events.poisson(0.01, 1.0)
SMALL = events.gaussian(20.0)  # epsilon 0.19


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger.in_memory()
    made.register("patients", relation=ADD, epsilon=EPSILON, delta=DELTA)
    return made


def begin(ledger: Ledger, plan: Event, *, dataset: str = "patients") -> Run:
    return ledger.begin(dataset, plan, relation=ADD, method="test")


def in_force(ledger: Ledger) -> list[Event]:
    return [charge.event for charge in ledger.charges("patients")]


def test_a_run_that_would_overspend_is_refused_and_told_why(ledger: Ledger) -> None:
    begin(ledger, events.gaussian(2.0))
    with pytest.raises(BudgetExceeded) as caught:
        begin(ledger, events.gaussian(2.5))
    message = re.fullmatch(
        r"the run needs epsilon=1\.766 \(at delta=1e-06\); (\S+) of 3 is left for dataset 'patients' after "
        r"one earlier run\. Nothing was charged\.",
        str(caught.value),
    )
    assert message and float(message[1]) == pytest.approx(ledger.remaining("patients"), rel=1e-3)
    assert in_force(ledger) == [events.gaussian(2.0)]


def test_what_remains_is_what_one_more_gaussian_run_may_need(ledger: Ledger) -> None:
    begin(ledger, events.repeat(STEP, 100))
    left = ledger.remaining("patients")
    assert 2.0 < left < EPSILON
    with pytest.raises(BudgetExceeded):
        begin(ledger, events.gaussian(1 / conversions.gdp_mu(left * 1.001, DELTA)))
    begin(ledger, events.gaussian(1 / conversions.gdp_mu(left * 0.999, DELTA)))
    assert ledger.remaining("patients") < 0.1


def test_the_first_plan_may_use_all_of_the_budget_and_nothing_follows(ledger: Ledger) -> None:
    exact = events.gaussian(1 / conversions.gdp_mu(EPSILON, DELTA))
    with pytest.raises(BudgetExceeded, match=r"3\.00"):
        begin(ledger, events.gaussian(exact.noise_multiplier * 0.999))
    run = begin(ledger, events.repeat(events.gaussian(exact.noise_multiplier * math.sqrt(2)), 2))
    assert ledger.charges("patients")[0].rule == "exact" and ledger.remaining("patients") == 0
    with pytest.raises(BudgetExceeded, match="left"):
        begin(ledger, events.gaussian(1e4))
    run.charge(events.gaussian(exact.noise_multiplier * math.sqrt(2)))
    run.finish()  # exact accounting is certain for the whole plan only
    assert in_force(ledger) == [run.plan]
    total = ledger.total("patients")
    assert total.epsilon == total.epsilon_adaptive == pytest.approx(EPSILON)
    begin(ledger, events.NoOp())  # public data only: free


def test_a_first_plan_that_released_nothing_leaves_the_dataset_as_new(ledger: Ledger) -> None:
    plan = events.gaussian(1 / conversions.gdp_mu(EPSILON, DELTA))
    begin(ledger, plan).finish()
    assert ledger.remaining("patients") == EPSILON
    begin(ledger, plan)
    assert [charge.rule for charge in ledger.charges("patients")] == ["exact", "exact"]


def test_an_approximate_run_spends_delta(ledger: Ledger) -> None:
    half = events.ApproximateDp(0.1, 3e-7)
    begin(ledger, half)
    with pytest.raises(BudgetExceeded, match=r"3e-07 .*2e-07"):
        begin(ledger, half)
    begin(ledger, events.ApproximateDp(0.1, 2e-7))
    begin(ledger, SMALL)


def test_a_renyi_bound_counts_at_its_order_and_below() -> None:
    budget = Budget(3.0, 1e-6, ADD, (7, 9, 12))
    assert budget.spent([events.RenyiBound(9, 0.25)]).rdp == (0.25, 0.25, math.inf)
    assert budget.spent([events.TruncatedConcentrated(0.1, 10)]).rdp == pytest.approx((0.7, 0.9, math.inf))
    # Below all orders, only the (ε, δ) statement is left.
    low = budget.spent([events.RenyiBound(5, 0.25)])
    assert max(low.rdp) < math.inf and low.leak == 1e-6 / 64


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 8.0, 20.0])
def test_the_filter_gives_away_little(epsilon: float, delta: float) -> None:
    budget = Budget.new(epsilon=epsilon, delta=delta, relation=ADD)
    rho = max(limit / a for a, limit in zip(budget.orders, budget.limits(), strict=True))
    assert conversions.gaussian_epsilon(delta, math.sqrt(2 * rho)) > 0.78 * epsilon


def test_a_non_private_release_is_never_admitted(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded, match="epsilon=inf"):
        begin(ledger, events.NonPrivate())


def test_the_total_composes_every_event_in_force(ledger: Ledger) -> None:
    assert ledger.total("patients").epsilon == ledger.total("patients").epsilon_adaptive == 0
    begin(ledger, events.repeat(STEP, 100))
    begin(ledger, SMALL).charge(SMALL)
    with begin(ledger, events.repeat(STEP, 400)) as run:
        run.charge(events.repeat(STEP, 50))
    total = ledger.total("patients")
    everything = events.compose(events.repeat(STEP, 150), SMALL)
    assert total.epsilon == pytest.approx(
        accountants.epsilon(everything, delta=DELTA, relation=ADD), rel=1e-3
    )
    assert total.epsilon < total.epsilon_adaptive < EPSILON == total.budget


def test_the_adaptive_total_is_the_least_budget_that_admits(ledger: Ledger) -> None:
    for _ in range(5):
        begin(ledger, events.gaussian(12.0))
    least = ledger.total("patients").epsilon_adaptive
    for epsilon, fits in ((least * 0.999, False), (least * 1.001, True)):
        budget = Budget.new(epsilon=epsilon, delta=DELTA, relation=ADD)
        assert budget.fits(budget.spent(in_force(ledger))) == fits


def test_an_event_of_the_other_relation_is_refused(ledger: Ledger) -> None:
    with pytest.raises(RelationError):
        begin(ledger, events.fixed_size(100, 10, 5.0))
    assert not in_force(ledger)


@pytest.mark.parametrize("kept", ["memory", "file"])
def test_threads_never_overspend_together(kept: str, tmp_path: Path) -> None:
    ledger = Ledger.in_memory() if kept == "memory" else Ledger.create(tmp_path / "a.ledger")
    ledger.register("patients", relation=ADD, epsilon=EPSILON, delta=DELTA)
    outcomes: list[str] = []

    def work() -> None:
        for _ in range(4):
            try:
                begin(ledger, events.gaussian(5.0))
                outcomes.append("admitted")
            except Exception as error:
                outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    budget = ledger.datasets()["patients"].budget
    room = max(int(limit / (a / 50)) for a, limit in zip(budget.orders, budget.limits(), strict=True))
    assert outcomes.count("admitted") == len(in_force(ledger)) == room
    assert outcomes.count("BudgetExceeded") == 24 - room


# ---------------------------------------------------------------------------------------------------
# never past the budget

plans = st.one_of(
    st.floats(0.8, 60).map(events.gaussian),
    st.builds(
        lambda q, z, n: events.repeat(events.poisson(q, z), n),
        st.sampled_from([0.001, 0.01, 0.1]),
        st.sampled_from([0.7, 1.0, 2.0]),
        st.integers(1, 2000),
    ),
    st.builds(events.ApproximateDp, st.floats(0.01, 1.0), st.floats(0, 4e-7)),
)


def spent_by_hand(admitted: list[Event], orders: tuple[int, ...]) -> tuple[list[float], float]:
    """Rényi costs by dp-accounting and by Bun & Steinke, not by our accountants."""
    accountant, pure, leak = RdpAccountant(list(orders)), np.zeros(len(orders)), 0.0
    for event in admitted:
        if isinstance(event, events.ApproximateDp):
            rho = event.epsilon * math.tanh(event.epsilon / 2)
            pure += np.minimum(event.epsilon, rho * np.array(orders))
            leak += event.delta
        else:
            accountant.compose(event)
    return list(accountant.rdp + pure), leak


def check_never_overspent(wanted: list[Event]) -> None:
    """The contract: whatever was admitted is (ε, δ)-DP, by the first plan alone or by one order."""
    ledger, admitted = Ledger.in_memory(), list[Event]()
    ledger.register("d", relation=ADD, epsilon=EPSILON, delta=DELTA)
    for plan in wanted:
        try:
            begin(ledger, plan, dataset="d")
        except BudgetExceeded:
            continue
        admitted.append(plan)
    orders = ledger.datasets()["d"].budget.orders
    costs, leak = spent_by_hand(admitted, orders)
    share = DELTA / 2 / len(orders)
    filtered = min(conversions.rdp_to_dp(a, r, share) for a, r in zip(orders, costs, strict=True))
    by_filter = leak <= DELTA / 2 and filtered <= EPSILON * (1 + 1e-12)
    alone = len(admitted) == 1 and accountants.epsilon(admitted[0], delta=DELTA, relation=ADD) <= EPSILON * (
        1 + 1e-9
    )
    assert not admitted or by_filter or alone
    assert [charge.event for charge in ledger.charges("d")] == admitted


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(plans, min_size=1, max_size=8))
def test_no_sequence_of_runs_overspends(wanted: list[Event]) -> None:
    check_never_overspent(wanted)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("limits", lambda self: (math.inf,) * len(self.orders)),
        ("leak", property(lambda self: 1.0)),
        ("share", property(lambda self: self.delta)),
        ("exact", lambda self, event: 0.0),
    ],
)
def test_contract_catches_a_filter_that_lets_through(
    name: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {
        "leak": [events.ApproximateDp(0.01, 3e-7)] * 2,
        "exact": [events.gaussian(1.0)],
    }.get(name, [events.gaussian(12.0)] * 60)
    check_never_overspent(wanted)
    monkeypatch.setattr(Budget, name, fault)
    with pytest.raises(AssertionError):
        check_never_overspent(wanted)


def test_what_is_in_force_is_what_the_charges_add_up_to(ledger: Ledger) -> None:
    for count, released in ((5, 5), (7, 2), (3, 0)):
        with begin(ledger, events.repeat(STEP, count)) as run:
            for _ in range(released):
                run.charge(STEP)
    book = ledger._read()
    listed = events.elementary(events.compose(*in_force(ledger)))
    assert events.elementary(events.compose(*book.in_force("patients"))) == listed == {STEP: 7}
    assert book.runs("patients") == 3


kinds = st.one_of(
    st.builds(events.poisson, st.floats(1e-4, 1.0), st.floats(0.5, 50.0)),
    st.builds(events.ApproximateDp, st.floats(1e-3, 2.0), st.floats(1e-12, 1e-7)),
    st.just(events.TruncatedConcentrated(0.1, 3.0)),  # infinite at most orders
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(kinds, st.integers(1, 2000)), max_size=8), st.data())
def test_a_tally_is_the_cost_of_what_was_not_taken_back(
    wanted: list[tuple[Event, int]], data: st.DataObject
) -> None:
    budget = Budget.new(epsilon=EPSILON, delta=DELTA, relation=ADD)
    tally, kept = Tally(budget), []
    for event, count in wanted:
        tally.add(events.repeat(event, count))
        back = data.draw(st.integers(0, count))
        tally.add(event, -back)
        kept.append(events.repeat(event, count - back))
    found, expected = tally.spent(), budget.spent(kept)
    assert found.rdp == pytest.approx(expected.rdp, rel=1e-13) and found.leak == pytest.approx(
        expected.leak, rel=1e-13
    )
    for event in kept:
        tally.add(event, -1)
    assert not any(tally.spent().rdp) and tally.spent().leak == 0


def test_a_charge_is_priced_alone_however_many_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.register("patients", relation=ADD, epsilon=EPSILON, delta=DELTA)
    plans = [events.poisson(0.001, 40.0 + i) for i in range(40)]
    for plan in plans[:30]:
        begin(ledger, plan).charge(plan)
    asked: list[Event] = []
    priced = filters._priced

    def watched(budget: Budget, part: Event) -> tuple[float, ...]:
        asked.append(part)
        return priced(budget, part)

    monkeypatch.setattr(filters, "_priced", watched)
    begin(ledger, plans[30])
    assert set(asked) <= set(plans[29:31])
    asked.clear()
    begin(Ledger.open(tmp_path / "a.ledger"), plans[31])  # another process reads all of them, once
    assert set(asked) == set(plans[:32])
    begin(ledger, plans[32])
    budget = ledger.datasets()["patients"].budget
    found = ledger._read().tally("patients").spent()
    assert found.rdp == pytest.approx(budget.spent(in_force(ledger)).rdp, rel=1e-13)


def test_an_interrupt_while_earlier_charges_are_priced_gives_no_budget_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of prices that is only half made is kept by nobody."""
    plan, options = events.gaussian(7.0), {"relation": "add-or-remove-one", "method": "m"}
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.register("d", relation="add-or-remove-one", epsilon=1.0, delta=1e-6)
    with pytest.raises(BudgetExceeded):
        for _ in range(1000):
            ledger.begin("d", plan, **options)
    again, usual = Ledger.open(tmp_path / "a.ledger"), filters._priced

    def interrupted(*_: object) -> tuple[float, ...]:
        monkeypatch.setattr(filters, "_priced", usual)
        raise KeyboardInterrupt

    monkeypatch.setattr(filters, "_priced", interrupted)
    with pytest.raises(KeyboardInterrupt):
        again.begin("d", plan, **options)
    with pytest.raises(BudgetExceeded):
        again.begin("d", plan, **options)
