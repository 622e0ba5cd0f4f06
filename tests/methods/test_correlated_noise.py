"""Correlated noise as a part of recipes: what is planned, charged and refused, on every problem."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.blocks import in_blocks
from tests.federated.fleet import run, server_of
from torch import nn

from sidelight import PrivateClassifier
from sidelight.audit.subjects import scene
from sidelight.deep import PrivateStep
from sidelight.errors import BudgetExceeded, InputError, PrivacyConditionError, SidelightError
from sidelight.methods import BandedNoise, MeanLastHalf, adadps, dope_sgd, dp_sgd, public_whitening
from sidelight.methods.workload import Workload, averaging, best_bands
from sidelight.privacy import accountants, events
from sidelight.privacy.correlated import CorrelatedGaussian, reduced
from sidelight.privacy.correlation import Correlation
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.open_accounts import OpenAccount
from sidelight.privacy.turns import Turns
from sidelight.report import card_of, html

AR, RO = "add-or-remove-one", "replace-one"
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(600, 4))
Y = (X @ [1.0, -2.0, 0.5, 1.0] > 0).astype(int)


def fitted(noise: BandedNoise, **options: object) -> PrivateClassifier:
    method = dp_sgd(steps=24, expected_batch_size=30, noise=noise)
    model = PrivateClassifier(
        **{"epsilon": 2.0, "delta": 1e-5, "method": method, "classes": [0, 1], "bounds": (-1, 1), **options}
    )
    return model.fit(X, Y)


def correlated(event: events.Event) -> CorrelatedGaussian:
    (found,) = [part for part in events.elementary(event) if isinstance(part, CorrelatedGaussian)]
    return found


# ---------------------------------------------------------------------------------------------------
# plans


@pytest.mark.parametrize(
    "noise",
    [
        BandedNoise(),
        BandedNoise(bands=4, sampled=True),
        BandedNoise(bands=2, cycle=5, sampled=True),
        BandedNoise(sampled=False),
        BandedNoise(bands=4, sampled=False, inverse=True),
        BandedNoise(bands=4, sampled=True, largest_batch=70),
    ],
)
@pytest.mark.parametrize("relation", [AR, RO])
def test_the_plan_is_one_run_within_the_budget(noise, relation):
    if relation == RO and (noise.sampled or noise.largest_batch):
        with pytest.raises(SidelightError, match="add-or-remove-one"):
            fitted(noise, relation=relation)
        return
    stated = fitted(noise, relation=relation).privacy_
    event = correlated(stated.plan)
    assert stated.epsilon <= 2.0 * (1 + 1e-6)
    assert stated.epsilon > 1.9
    assert event.steps == 24 and event.turns == -(-24 // event.separation)
    if relation == RO:
        assert event.sampling_probability == 1
    if noise.largest_batch:
        assert event.overflow > 0


def test_bands_that_are_left_open_are_the_best_for_the_budget():
    small = [fitted(BandedNoise(), epsilon=epsilon).privacy_.details["noise_bands"] for epsilon in (0.2, 8.0)]
    assert small[0] <= small[1] and small[1] > 1


def test_noise_of_more_bands_adds_up_to_less():
    work = Workload(200)
    errors = []
    for bands in (1, 2, 4, 8, 16):
        strategy = best_bands(work, bands)
        reach = strategy.sensitivity(steps=200, separation=16, participations=13)
        errors.append(reach * math.sqrt(work.error(strategy)))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.35 * errors[0]


def test_a_factorization_is_best_for_its_own_workload():
    works = [
        Workload(100),
        Workload(100, momentum=0.9),
        Workload(100, averaged=averaging(MeanLastHalf(), 100)),
        Workload(100, curvature=((0.5, 1.0),)),
    ]
    made = [best_bands(work, 6) for work in works]

    def cost(work: Workload, k: int) -> float:
        return work.error(made[k]) * float(np.sum(np.square(made[k].coefficients)))

    for own, work in enumerate(works):
        assert all(cost(work, own) <= cost(work, other) * (1 + 1e-6) for other in range(len(works)))


def test_the_error_of_a_workload_is_that_of_its_matrices():
    work = Workload(30, momentum=0.5, averaged=(0.25, 0.25, 0.5), curvature=((0.1, 0.3), (0.4, 0.7)))
    strategy = best_bands(work, 4)
    lower = [[strategy.column(30)[i - j] if i >= j else 0.0 for j in range(30)] for i in range(30)]
    total = 0.0
    for contraction, weight in work.curvature:
        response = np.linalg.inv(
            sum(c * np.eye(30, k=-k) for k, c in enumerate(work.denominator(contraction)))
        )
        made = response @ np.linalg.inv(lower)
        result = np.array([0.25, 0.25, 0.5]) @ made[-3:]
        total += weight * ((made**2).sum() / 30 + result @ result) / 2
    assert work.error(strategy) == pytest.approx(total)


# ---------------------------------------------------------------------------------------------------
# charges


def test_a_ledger_is_charged_with_the_whole_run_once(tmp_path: Path):
    ledger = Ledger.create(tmp_path / "ledger.db")
    ledger.register("people", epsilon=2.5, delta=1e-5, relation=AR)
    model = fitted(BandedNoise(bands=4, sampled=True), ledger=ledger, dataset="people", delta=None)
    (charge,) = ledger.charges("people")
    assert correlated(charge.plan) == correlated(model.privacy_.plan)
    with pytest.raises(BudgetExceeded):
        fitted(BandedNoise(bands=4, sampled=True), ledger=ledger, dataset="people", delta=None)


def test_a_report_says_what_was_released():
    text = html(card_of(fitted(BandedNoise(bands=4, sampled=True))))
    assert "correlated Gaussian noise" in text and "turns" in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BandedNoise(inverse=True, sampled=True), "proved for turns without sampling"),
        (lambda: BandedNoise(bands=8, cycle=4, sampled=True), "one for each band"),
        (lambda: BandedNoise(sampled=False, largest_batch=9), "for sampled turns"),
        (lambda: BandedNoise(bands=0), "bands"),
        (lambda: BandedNoise(momentum=1.0), "momentum"),
        (lambda: BandedNoise(curvature="private"), "curvature"),
        (lambda: fitted(BandedNoise(bands=64, sampled=True)), "take smaller batches"),
        (lambda: fitted(BandedNoise(bands=4, sampled=True, largest_batch=31)), "rarely full|no amount"),
        (lambda: fitted(BandedNoise(curvature="public")), "public records"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_before_the_charge(make, message, monkeypatch):
    monkeypatch.setattr(Correlation, "draw", lambda *_: pytest.fail("noise was drawn"))
    with pytest.raises(SidelightError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------
# problems


def test_blocks_give_what_rows_give():
    base = scene("logistic")
    task = base.task(AR)
    method = dp_sgd(steps=8, expected_batch_size=10, clip_norm=0.3, noise=BandedNoise(bands=3, sampled=True))
    plan = method.plan(task)
    account = OpenAccount()
    blocks = in_blocks(base.X, base.y, 7, max_norm=task.rows.max_norm)
    found = method.run(replace(task, rows=blocks), plan, account=account, noise=Noise(3))
    assert np.isfinite(found.coef).all() and len(found.history) == 8
    assert events.elementary(account.released) == events.elementary(plan.event)


@pytest.mark.parametrize(
    "method",
    [
        dope_sgd(steps=6, expected_batch_size=10),
        adadps(steps=6, expected_batch_size=10),
        public_whitening(steps=6, expected_batch_size=10),
        dp_sgd(steps=6, expected_batch_size=10, momentum=0.9, finish=MeanLastHalf()),
    ],
)
@pytest.mark.parametrize("curvature", [None, "public"])
def test_it_combines_with_guides_metrics_and_finishes(method, curvature):
    recipe = method.with_parts(noise=BandedNoise(bands=3, sampled=True, curvature=curvature))
    task = scene("logistic").task(AR)
    plan, account = recipe.plan(task), OpenAccount()
    found = recipe.run(task, plan, account=account, noise=Noise())
    assert np.isfinite(found.coef).all()
    assert account.released == plan.event


def test_public_curvature_needs_no_labels():
    task = scene("logistic").task(AR)
    recipe = dp_sgd(steps=6, expected_batch_size=10, noise=BandedNoise(curvature="public"))
    assert recipe.needs_public and recipe.takes_unlabeled
    assert recipe.plan(task).details["noise_bands"] >= 1


def test_clients_take_turns_that_may_be_seen():
    method = dp_sgd(clip_norm=0.5, noise=BandedNoise(bands=3, sampled=False))
    server = server_of(method, rounds=9, expected_cohort=20)
    asked = run(server)
    rounds_of: dict[object, list[int]] = {}
    for number, ask in enumerate(asked):
        for client in ask.clients:
            rounds_of.setdefault(client, []).append(number)
    assert len(asked) == 9 and all(set(np.diff(r)) <= {3} and len(r) == 3 for r in rounds_of.values())
    stated = server.privacy_
    assert stated.epsilon <= 3.0 * (1 + 1e-6)
    assert not any("only the server learns who was asked" in line for line in stated.assumptions)
    assert server._loop is not None and server._loop.noise.correlation.state_dict()["kept"] is None


def test_sampled_clients_are_told_what_a_seen_cohort_costs():
    server = server_of(dp_sgd(clip_norm=0.5, noise=BandedNoise(bands=2, sampled=True)), expected_cohort=15)
    run(server)
    seen = server.privacy_.details["epsilon_if_cohorts_are_seen"]
    assert seen > server.privacy_.epsilon
    assert any("only the server learns who was asked" in line for line in server.privacy_.assumptions)


def test_a_step_of_ones_own_loop_draws_turns_and_ends_after_the_plan():
    model, x, y = nn.Linear(4, 2), torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    step = PrivateStep(
        model, nn.CrossEntropyLoss(reduction="none"),
        method=dp_sgd(noise=BandedNoise(bands=3, sampled=False)),
        n_private=600, expected_batch_size=60, epsilon=2.0, delta=1e-5, steps=20,
    )  # fmt: skip
    seen = []
    for _ in range(20):
        drawn = step.sample()
        seen.append(set(drawn.tolist()))
        step((x[drawn], y[drawn]))
    assert seen[0] == seen[10] and not seen[0] & seen[1]
    assert step.privacy_.epsilon == pytest.approx(2.0)
    with pytest.raises(BudgetExceeded):
        drawn = step.sample()
        step((x[drawn], y[drawn]))
    step.finish()
    assert step._loop is not None and step._loop.noise.correlation.state_dict()["kept"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": 1.0, "steps": 10}, "planned for a budget"),
        ({"epsilon": 1.0, "delta": 1e-5, "steps": 10, "own_sampling": True}, "sample()"),
    ],
)
def test_a_loop_that_cannot_keep_turns_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        PrivateStep(
            nn.Linear(4, 2), nn.CrossEntropyLoss(reduction="none"), method=dp_sgd(noise=BandedNoise(bands=2)),
            n_private=600, expected_batch_size=60, **options,
        )  # fmt: skip


def test_turns_are_no_sampler_by_themselves():
    turns = Turns(0.5, 4, 10, best_bands(Workload(10), 2))
    assert accountants.epsilon(turns.event(100, 5.0), delta=1e-5, relation=AR) == accountants.epsilon(
        reduced(turns.event(100, 5.0)), delta=1e-5, relation=AR
    )
    with pytest.raises(PrivacyConditionError):
        turns.indices(100, Noise())
