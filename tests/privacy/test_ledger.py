"""What a ledger promises, wherever it is kept. Files and their accidents are in test_ledger_file.py."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from sidelight.errors import (
    BudgetExceeded,
    InputError,
    LedgerDamaged,
    LedgerError,
    PrivacyWarning,
    RelationError,
)
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Event
from sidelight.privacy.ledger import Ledger, Run, fingerprint
from sidelight.privacy.ledger_budget import Budget

ADD = "add-or-remove-one"
EPSILON, DELTA = 3.0, 1e-6
STEP = events.poisson(0.01, 1.0)
SMALL = events.gaussian(20.0)  # epsilon 0.19


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    made = Ledger.in_memory() if request.param == "memory" else Ledger.create(tmp_path / "a.ledger")
    made.register("patients", relation=ADD, epsilon=EPSILON, delta=DELTA, fingerprint="f" * 64)
    return made


def begin(ledger: Ledger, plan: Event, *, covered_by_filter: bool = False, dataset: str = "patients") -> Run:
    return ledger.begin(dataset, plan, relation=ADD, method="test", covered_by_filter=covered_by_filter)


def in_force(ledger: Ledger) -> list[Event]:
    return [charge.event for charge in ledger.charges("patients")]


# ---------------------------------------------------------------------------------------------------
# datasets


def test_same_declaration_again_changes_nothing(ledger: Ledger) -> None:
    head = ledger.verify()
    ledger.register("patients", relation=ADD, epsilon=EPSILON, delta=DELTA, fingerprint="f" * 64)
    assert ledger.verify() == head and list(ledger.datasets()) == ["patients"]


@pytest.mark.parametrize(
    "change", [{"epsilon": 4.0}, {"delta": 1e-5}, {"relation": "replace-one"}, {"fingerprint": "e" * 64}]
)
def test_a_declaration_cannot_be_changed(ledger: Ledger, change: dict[str, object]) -> None:
    declared = {"relation": ADD, "epsilon": EPSILON, "delta": DELTA, "fingerprint": "f" * 64, **change}
    with pytest.raises(LedgerError, match="cannot be changed"):
        ledger.register("patients", **declared)  # type: ignore[arg-type]
    assert ledger.datasets()["patients"].budget.epsilon == EPSILON


def test_the_same_data_under_a_second_name_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"'patients' already.*double its budget"):
        ledger.register("more", relation=ADD, epsilon=EPSILON, delta=DELTA, fingerprint="f" * 64)


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"epsilon": math.nan}, {"delta": 0.0}, {"delta": 1.0}]
)
def test_a_budget_is_a_budget(ledger: Ledger, wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="lifetime"):
        ledger.register("new", relation=ADD, **{"epsilon": 1.0, "delta": 1e-6, **wrong})
    with pytest.raises(RelationError):
        ledger.register("new", relation="user", epsilon=1.0, delta=1e-6)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name"):
        ledger.register("", relation=ADD, epsilon=1.0, delta=1e-6)


def test_a_run_belongs_to_its_dataset_its_data_and_its_relation(ledger: Ledger) -> None:
    ledger.register("others", relation=ADD, epsilon=1.0, delta=1e-6, fingerprint="e" * 64)
    with pytest.raises(LedgerError, match=r"no dataset 'nobody'.*'patients', 'others'"):
        begin(ledger, SMALL, dataset="nobody")
    with pytest.raises(RelationError, match="cannot be added up"):
        ledger.begin("patients", SMALL, relation="replace-one", method="test")
    with pytest.raises(LedgerError, match="charge it to 'others'"):
        ledger.begin("patients", SMALL, relation=ADD, method="test", fingerprint="e" * 64)
    with pytest.raises(LedgerError, match="name of its own") as caught:
        ledger.begin("patients", SMALL, relation=ADD, method="test", fingerprint="d" * 64)
    assert "ffff" not in str(caught.value) and "dddd" not in str(caught.value)
    assert not ledger.charges("patients") and not ledger.charges("others")
    ledger.begin("patients", SMALL, relation=ADD, method="test", fingerprint="f" * 64)


# ---------------------------------------------------------------------------------------------------
# a run and its plan


def test_the_whole_plan_is_in_the_ledger_before_the_run_exists(ledger: Ledger) -> None:
    plan = events.repeat(STEP, 100)
    details = {"steps": 100}
    run = ledger.begin("patients", plan, relation=ADD, method="dp_sgd", note="first", details=details)
    [charge] = ledger.charges("patients")
    assert charge.number == run.number and charge.plan == charge.event == plan
    assert (charge.method, charge.note, charge.details, charge.rule) == ("dp_sgd", "first", details, "filter")


def test_a_run_releases_its_plan_and_nothing_else(ledger: Ledger) -> None:
    run = begin(ledger, events.compose(events.repeat(STEP, 3), SMALL, events.repeat(SMALL, 2)))
    run.charge(events.repeat(STEP, 2))
    run.charge(events.compose(SMALL, STEP, SMALL))
    run.charge(SMALL)
    for extra in (STEP, SMALL, events.gaussian(1.0), events.gaussian(20.5)):
        with pytest.raises(BudgetExceeded, match="Nothing was released"):
            run.charge(extra)
    assert events.elementary(run.released) == events.elementary(run.plan)


def test_a_filter_certificate_covers_whatever_its_filter_let_through(ledger: Ledger) -> None:
    run = begin(ledger, events.RenyiBound(12, 0.3), covered_by_filter=True)
    run.charge(STEP)
    run.charge(events.gaussian(9.0))
    run.finish()
    assert in_force(ledger) == [events.RenyiBound(12, 0.3)]


@pytest.mark.parametrize("covered", [False, True])
def test_a_run_that_released_nothing_costs_nothing(ledger: Ledger, covered: bool) -> None:
    with begin(ledger, SMALL, covered_by_filter=covered):
        pass
    assert in_force(ledger) == [events.NoOp()] and ledger.remaining("patients") == EPSILON
    assert ledger.charges("patients")[0].plan == SMALL


def test_a_plan_cut_short_costs_what_was_released(ledger: Ledger) -> None:
    with begin(ledger, events.repeat(STEP, 100)) as run:
        for _ in range(7):
            run.charge(STEP)
    assert in_force(ledger) == [events.repeat(STEP, 7)]
    run.finish()
    with pytest.raises(LedgerError, match="finished"):
        run.charge(STEP)


def test_a_run_that_fails_or_never_ends_keeps_its_full_charge(ledger: Ledger) -> None:
    plan = events.repeat(STEP, 50)
    with pytest.raises(ZeroDivisionError), begin(ledger, plan) as run:
        run.charge(STEP)
        raise ZeroDivisionError
    begin(ledger, plan).charge(STEP)
    with begin(ledger, plan) as whole:
        whole.charge(plan)
    assert in_force(ledger) == [plan, plan, plan]


def test_a_charge_that_cannot_be_lowered_is_said_not_lost(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(ledger, events.repeat(STEP, 5))
    run.charge(STEP)
    ledger.close()
    with pytest.warns(PrivacyWarning, match="full plan"):
        run.finish()


def test_runs_and_ledgers_are_not_duplicated(ledger: Ledger) -> None:
    run = begin(ledger, events.repeat(SMALL, 2))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="twice"):
            duplicate(run)
    assert copy.copy(ledger) is ledger and copy.deepcopy({"ledger": ledger})["ledger"] is ledger
    if "memory" in repr(ledger):
        with pytest.raises(TypeError, match="stays in its process"):
            pickle.dumps(ledger)
    else:
        assert len(pickle.loads(pickle.dumps(ledger)).charges("patients")) == 1


def test_a_run_stays_in_its_process(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(ledger, SMALL)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(LedgerError, match="process that began it"):
        run.charge(SMALL)
    if "memory" in repr(ledger):
        with pytest.raises(LedgerError, match="stays in its process"):
            begin(ledger, SMALL)


def test_what_cannot_be_written_as_json_is_refused(ledger: Ledger) -> None:
    for details in ({"array": np.zeros(2)}, {"loss": math.nan}):
        with pytest.raises(InputError, match="JSON"):
            ledger.begin("patients", SMALL, relation=ADD, method="test", details=details)
    assert not ledger.charges("patients")


# ---------------------------------------------------------------------------------------------------
# the lifetime budget


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
    with pytest.raises(BudgetExceeded, match=r"needs epsilon=3\.00"):
        begin(ledger, events.gaussian(exact.noise_multiplier * 0.999))
    run = begin(ledger, events.repeat(events.gaussian(exact.noise_multiplier * math.sqrt(2)), 2))
    assert ledger.charges("patients")[0].rule == "exact" and ledger.remaining("patients") == 0
    with pytest.raises(BudgetExceeded, match="0 of 3 is left"):
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
    with pytest.raises(BudgetExceeded, match=r"needs delta=3e-07 .*; 2e-07 of 5e-07 is left"):
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


# ---------------------------------------------------------------------------------------------------
# totals, exports, fingerprints


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


def test_an_export_is_json_and_keeps_the_fingerprint_to_itself(ledger: Ledger) -> None:
    begin(ledger, events.RenyiBound(12, 0.2), covered_by_filter=True)
    begin(ledger, events.TruncatedConcentrated(0.001, math.inf))
    text = json.dumps(ledger.export(), allow_nan=False)
    assert "ffff" not in text and json.loads(text) == ledger.export("patients")
    dataset = ledger.export("patients", fingerprints=True)["datasets"]["patients"]
    assert dataset["fingerprint"] == "f" * 64
    assert [events.from_json(run["in_force"]) for run in dataset["runs"]] == in_force(ledger)
    assert "ffff" not in repr(ledger.datasets())


def test_a_head_kept_elsewhere_shows_a_ledger_that_was_replaced(ledger: Ledger) -> None:
    begin(ledger, SMALL)
    head = ledger.verify()
    begin(ledger, SMALL)
    assert ledger.verify(head) != head
    with pytest.raises(LedgerDamaged, match="replaced"):
        Ledger.in_memory().verify(head)


def test_a_fingerprint_knows_data_again() -> None:
    X = np.arange(12.0).reshape(4, 3)
    y = np.array(["a", "b", "a", "c"], dtype=object)
    same = fingerprint(X, y)
    assert same == fingerprint(np.asfortranarray(X), y.copy())
    others = [
        fingerprint(X + np.eye(4, 3), y),
        fingerprint(X[::-1], y),
        fingerprint(X.T, y),
        fingerprint(X, y[::-1]),
        fingerprint(X.astype(np.float32), y),
        fingerprint(X),
        fingerprint(sparse.csr_matrix(X), y),
    ]
    assert len({same, *others}) == 1 + len(others)
    coo = sparse.coo_matrix(X)
    assert fingerprint(coo) == fingerprint(sparse.csr_matrix(X))
