"""The health check: records that contribute nothing and values that do not fit, reported as intervals.

Margins are six standard deviations of the noise, so that no test fails by chance.
"""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sidelight.errors import NotPrivateWarning, RecordsWarning
from sidelight.estimators import PrivateClassifier, PrivateRegressor
from sidelight.methods.health_check import HEALTH_CHECK, SHARE, HealthCheck
from sidelight.privacy import events
from sidelight.privacy.events import Poisson
from sidelight.privacy.ledger import Ledger
from sidelight.tables import fit_tables

# Public and private records that disagree may also be seen by the comparison of `auto`.
pytestmark = pytest.mark.filterwarnings("ignore::sidelight.errors.PrivacyWarning")

N, PUBLIC = 5_000, 500
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N + PUBLIC, 4))
Y = (X @ [3, -2, 1, 0.5] + RNG.normal(size=len(X)) > 0).astype(int)


def fit(y: Any = Y[:N], rows: Any = X[:N], **settings: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"epsilon": 1.0, **settings}).fit(rows, y, X[N:], Y[N:])


def found(model: Any) -> dict[str, Any]:
    check = model.privacy_.details["health_check"]
    assert isinstance(check, dict)
    return check


def table(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    job = rng.choice(["nurse", "smith", "baker"], n, p=[0.6, 0.3, 0.1])
    age = rng.uniform(20, 60, n)
    sick = np.where(age + 10 * (job == "smith") + rng.normal(0, 5, n) > 42, "yes", "no")
    return pd.DataFrame({"job": job, "age": age, "pay": rng.uniform(1, 5, n), "sick": sick})


PRIVATE_TABLE, PUBLIC_TABLE = table(N, 1), table(PUBLIC, 2)


# ---------------------------------------------------------------------------------------------------
# what is reported


def test_a_total_mismatch_of_labels_is_reported() -> None:
    with pytest.warns(RecordsWarning, match="contributed nothing"):
        model = fit(Y[:N] + 5)
    low, high = found(model)["ignored"]
    assert low > 0.85 * N and high > 0.95 * N
    assert f"{N:,} private records contributed nothing" in str(model.privacy_)


def test_a_sound_table_is_quiet_and_its_interval_begins_at_zero() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecordsWarning)
        model = fit()
    low, high = found(model)["ignored"]
    assert low < 0.05 * N and high < 0.14 * N
    assert model.history_[-1]["released"] == "health check"
    assert model.history_[-1][HEALTH_CHECK]["ignored"] == [low, high]
    assert len(found(model)["misfits"]) == 5
    json.dumps(model.privacy_.to_dict())


def test_half_of_the_labels_shifted_away_is_seen_as_half() -> None:
    with pytest.warns(RecordsWarning, match="target"):
        low, high = found(fit(Y[:N] + 1))["ignored"]
    truth = (Y[:N] + 1 == 2).sum()
    assert low < truth + 0.05 * N and high > truth - 0.05 * N


def test_another_unit_of_one_feature_is_named() -> None:
    rows = X[:N].copy()
    rows[:, 2] *= 1000
    with pytest.warns(RecordsWarning, match="'x2'"):
        model = fit(rows=rows)
    shares = {row["column"]: (row["low"], row["high"]) for row in found(model)["misfits"]}
    assert shares["x2"][0] > 0.75
    assert max(low for name, (low, _) in shares.items() if name != "x2") < 0.1


@pytest.mark.parametrize("unit", ["record", "who"])
def test_a_renamed_category_is_found_by_its_column(unit: str) -> None:
    private = PRIVATE_TABLE.replace({"job": {"nurse": "Nurse"}})
    if unit == "who":
        private = private.assign(who=np.repeat(np.arange(N // 2), 2))
    with pytest.warns(RecordsWarning, match="'job'"):
        model = fit_tables(private, PUBLIC_TABLE, target="sick", epsilon=1.0, unit=unit)
    shares = {row["column"]: (row["low"], row["high"]) for row in found(model)["misfits"]}
    assert 0.35 < shares["job"][0] < 0.7 and 0.5 < shares["job"][1] < 0.85
    assert max(shares["age"][0], shares["sick"][0]) < 0.1


def test_a_renamed_category_is_found_where_records_lie_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "private.parquet"
    many = pd.concat([PRIVATE_TABLE.replace({"job": {"nurse": "Nurse"}})] * 4, ignore_index=True)
    many.to_parquet(path)
    with pytest.warns(RecordsWarning, match="'job'"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidelight.data.record_storage.fits_in_memory", lambda *_: False)
        patch.setattr("sidelight.data.partitions._NUMBERS", 1 << 14)
        model = fit_tables(path, PUBLIC_TABLE, target="sick", epsilon=1.0)
    (job,) = [row for row in found(model)["misfits"] if row["column"] == "job"]
    assert 0.4 < job["low"] < 0.7 and 0.5 < job["high"] < 0.8


def test_a_regression_sees_another_unit_of_its_target() -> None:
    y = X @ [1.0, 2.0, 0.0, -1.0]
    model = PrivateRegressor(epsilon=1.0)
    with pytest.warns(RecordsWarning, match="'target'"):
        model.fit(X[:N], 1000 * y[:N], X[N:], y[N:])
    assert found(model)["ignored"][0] < 0.05 * N  # they are clipped, and used


def test_values_that_are_missing_in_public_rows_too_are_no_surprise() -> None:
    gaps = [
        frame.assign(pay=frame.pay.where(frame.index % 10 > 5)) for frame in (PRIVATE_TABLE, PUBLIC_TABLE)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecordsWarning)
        model = fit_tables(*gaps, target="sick", epsilon=1.0)
    (pay,) = [row for row in found(model)["misfits"] if row["column"] == "pay"]
    assert pay["low"] < 0.7 and pay["high"] > 0.5 and pay["public"] == pytest.approx(0.6, abs=0.05)


def test_a_person_counts_once() -> None:
    """Persons whose every row is unusable, among persons with many rows each."""
    each, bad = 10, 100
    names = np.repeat(np.arange(N // each), each)
    labels = np.where(names < bad, 7, Y[:N])
    model = PrivateClassifier("dp_sgd", epsilon=8.0).fit(X[:N], labels, X[N:], Y[N:], persons=names)
    check = found(model)
    assert check["records"] == N // each
    assert check["ignored"][0] < 1.5 * bad and 0.5 * bad < check["ignored"][1] < 2 * bad


# ---------------------------------------------------------------------------------------------------
# what it costs, and when it is not made


def test_the_whole_plan_costs_what_was_asked_for_and_a_ledger_is_charged_once() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=1.0, delta=1e-5)
    model = fit(ledger=ledger, delta=1e-5)
    assert 0.999 < model.privacy_.epsilon <= 1.0
    (charge,) = ledger.charges("people")
    multiplier = found(model)["noise_multiplier"]
    assert events.elementary(charge.plan)[events.gaussian(multiplier)] == 1
    assert found(model)["share_of_budget"] <= SHARE * (1 + 1e-9)


def test_it_can_be_switched_off_everywhere() -> None:
    model = fit(health_check=False)
    assert "switched off" in model.privacy_.health
    assert HEALTH_CHECK not in model.history_[-1]
    tables = fit_tables(PRIVATE_TABLE, PUBLIC_TABLE, target="sick", epsilon=1.0, health_check=False)
    assert "switched off" in tables.privacy_.health


def test_few_records_are_not_counted_and_the_statement_says_so() -> None:
    model = PrivateClassifier(epsilon=0.5).fit(X[:200], Y[:200], X[N:], Y[N:])
    assert "its noise would hide" in model.privacy_.health


@pytest.mark.parametrize("method", ["only_public", "majority"])
def test_a_method_that_reads_no_private_record_checks_none(method: str) -> None:
    model = fit(method=method)
    assert model.privacy_.epsilon == 0
    assert "no private record was used" in model.privacy_.health


def test_a_plan_of_pure_dp_has_no_room_for_it() -> None:
    from sidelight.methods.baselines import majority

    model = fit(method=majority(labels="private"))
    assert "no room" in model.privacy_.health
    assert model.privacy_.epsilon == pytest.approx(1.0, abs=1e-4)


@pytest.mark.filterwarnings("ignore::sidelight.errors.NotPrivateWarning")
def test_a_method_without_a_guarantee_counts_nothing() -> None:
    assert "protects no record" in fit(method="non_private").privacy_.health


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("n", [1_000, 5_000, 10**6])
def test_noise_is_as_wanted_or_as_large_as_the_share_allows(n: int, relation: Any) -> None:
    from sidelight.privacy import conversions

    plan = HealthCheck(("a", "b")).plan(n, epsilon=1.0, delta=1e-5, relation=relation)
    assert plan is not None
    reach = 1.0 if relation == "add-or-remove-one" else math.sqrt(2)
    std = plan.multiplier * reach / 0.625
    share = (1 / plan.multiplier / conversions.gdp_mu(1.0, 1e-5)) ** 2
    assert share <= SHARE * (1 + 1e-9)
    assert std == pytest.approx(0.015 * n) or share == pytest.approx(SHARE)


# ---------------------------------------------------------------------------------------------------
# the intervals


@pytest.mark.parametrize("rate", [1.0, 0.2])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_intervals_contain_the_truth_and_their_own_estimate(share: float, rate: float) -> None:
    check = HealthCheck() if rate < 1 else HealthCheck(("a", "b", "c"))
    sampler = Poisson(rate) if rate < 1 else None
    plan = check.plan(N, epsilon=1.0, delta=1e-5, relation="add-or-remove-one", sampler=sampler)
    assert plan is not None
    rng, missed = np.random.default_rng(3), 0
    for _ in range(400):
        drawn = rng.binomial(int(share * N), rate)
        truth = np.array([drawn, 0.0, share * N, 0.1 * N])[: 1 + len(check.columns)]
        noisy = truth * check._scales + rng.normal(0, plan.multiplier, len(truth))
        health = check.read(noisy, std=plan.multiplier, plan=plan, unit="record")
        estimate = float(np.clip(noisy[0] / check._scales[0] / rate, 0, N))
        assert health.low <= estimate + 1 and estimate - 1 <= health.high
        columns = zip(health.columns, (0.0, share, 0.1), strict=False)
        inside = all(one.low <= real <= one.high for one, real in columns)
        missed += not (health.low <= share * N <= health.high and inside)
    assert missed <= 0.09 * 400


def test_two_fits_draw_their_own_noise() -> None:
    ends = {tuple(row["high"] for row in found(fit())["misfits"]) for _ in range(2)}
    assert len(ends) == 2


def test_a_seed_repeats_the_check_with_the_fit() -> None:
    with pytest.warns(NotPrivateWarning):
        checks = [found(fit(random_state=4)) for _ in range(2)]
    assert checks[0] == checks[1]


def test_the_report_and_the_folder_have_it(tmp_path: Path) -> None:
    with pytest.warns(RecordsWarning):
        model = fit(Y[:N] + 5)
    model.save(tmp_path / "model")
    page = (tmp_path / "model" / "report.html").read_text()
    assert "Health check" in page and "contributed nothing" in page and "by column" in page
    again = PrivateClassifier.load(tmp_path / "model")
    assert again.privacy_.health == model.privacy_.health
