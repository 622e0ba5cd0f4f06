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
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

from sidelight import PrivateClassifier
from sidelight.audit.subjects import scene
from sidelight.clipping import Diagonal, Features, ThinFeatures
from sidelight.deep import PrivateStep, Trainer
from sidelight.errors import BudgetExceeded, InputError, PrivacyConditionError, SidelightError
from sidelight.methods import (
    BandedNoise,
    MeanLastHalf,
    adadps,
    correlated_noise,
    dope_sgd,
    dp_sgd,
    dpmd,
    public_curvature,
    public_whitening,
)
from sidelight.methods.workload import Workload, averaging, best_bands
from sidelight.privacy import accountants, events
from sidelight.privacy.correlated import CorrelatedGaussian, reduced
from sidelight.privacy.correlation import Correlation
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.open_accounts import OpenAccount
from sidelight.privacy.strategies import Strategy, inverse_square_root
from sidelight.privacy.turns import Turns
from sidelight.report import card_of, html

AR, RO = "add-or-remove-one", "replace-one"
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(600, 4))
Y = (X @ [1.0, -2.0, 0.5, 1.0] > 0).astype(int)


COSINE = tuple(0.5 * (1 + math.cos(math.pi * t / 100)) for t in range(100))


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
        Workload(100, step_sizes=COSINE),
    ]
    made = [best_bands(work, 6) for work in works]

    def cost(work: Workload, k: int) -> float:
        return work.error(made[k]) * float(np.sum(np.square(made[k].coefficients)))

    for own, work in enumerate(works):
        assert all(cost(work, own) <= cost(work, other) * (1 + 1e-6) for other in range(len(works)))


def matrix_error(work: Workload, strategy: Strategy) -> float:
    """The error as it is defined: every step of every direction, by its matrices."""
    steps, total = work.steps, 0.0
    lower = np.array([np.pad(strategy.column(steps)[: steps - j], (j, 0)) for j in range(steps)]).T
    sizes = np.diag(work.step_sizes or np.ones(steps))
    ones, back = np.eye(steps), np.eye(steps, k=-1)
    for contraction, weight in work.curvature:
        # w = back·w − sizes·v and v = β·back·v + contraction·back·w + ẑ
        velocity = np.linalg.inv(ones - work.momentum * back)
        made = np.linalg.inv(ones - back + contraction * sizes @ velocity @ back) @ sizes @ velocity
        made = made @ np.linalg.inv(lower)
        result = np.asarray(work.averaged) @ made[-len(work.averaged) :]
        total += weight * ((made**2).sum() / steps + result @ result) / 2
    return float(total)


@pytest.mark.parametrize("sizes", [COSINE, tuple(np.linspace(1, 0.01, 100)), (1.0,) * 50 + (0.1,) * 50])
def test_bands_for_steps_that_decay_have_less_error_there_than_those_for_equal_steps(sizes):
    work = Workload(100, momentum=0.5, averaged=(0.5, 0.5), step_sizes=sizes)
    even = best_bands(replace(work, step_sizes=()), 8)
    own = best_bands(work, 8)
    errors = [matrix_error(work, one) * np.sum(np.square(one.coefficients)) for one in (own, even)]
    assert 0.96 * errors[1] < errors[0] < 0.999 * errors[1]  # squares: less than 2 % of the noise
    assert [matrix_error(work, one) for one in (own, even)] == pytest.approx(
        [work.error(own), work.error(even)]
    )


def test_steps_of_one_size_have_the_same_error_either_way():
    work = Workload(60, momentum=0.9, averaged=(1 / 30,) * 30, curvature=((0.05, 1.0),))
    barely = replace(work, step_sizes=(1.0,) * 59 + (1 - 1e-12,))
    for strategy in (best_bands(work, 5), inverse_square_root(5, work.denominator())):
        assert barely.error(strategy) == pytest.approx(work.error(strategy))
    assert best_bands(barely, 5).coefficients == pytest.approx(best_bands(work, 5).coefficients, rel=1e-3)


def test_long_runs_are_looked_at_by_evenly_spaced_steps():
    def error(steps: int) -> float:
        work = Workload(steps, averaged=(1 / steps,) * steps, step_sizes=tuple(np.linspace(1, 0, steps)))
        return work.error(best_bands(work, 4)) / min(steps, 1000)

    assert error(4000) == pytest.approx(error(1000), rel=0.01)


def test_a_regularizer_and_a_falling_private_share_change_the_bands_and_not_the_kind_of_event():
    base = scene("logistic")
    noise = BandedNoise(bands=4, sampled=True)
    plain = dp_sgd(steps=12, expected_batch_size=10, step_size=0.5, noise=noise)
    mirror = dpmd(steps=12, expected_batch_size=10, step_size=0.5, mirror="first-order").with_parts(
        noise=noise
    )
    task = base.task(AR)
    found = [
        correlated(recipe.plan(one).event)
        for recipe, one in (
            (plain, replace(task, regularization=0.0)),
            (plain, replace(task, regularization=0.5)),
            (mirror, replace(task, regularization=0.0)),
        )
    ]
    assert len({event.coefficients for event in found}) == 3
    kinds = {(event.inverse, event.steps, event.separation, event.sampling_probability) for event in found}
    assert len(kinds) == 1


def test_the_steps_of_a_networks_optimizer_are_foreseen():
    data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(Y))

    def linear(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        return lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 12)

    def planned(**options: object) -> CorrelatedGaussian:
        torch.manual_seed(0)
        trainer = Trainer(
            nn.Linear(4, 2), nn.CrossEntropyLoss(reduction="none"),
            **{"method": dp_sgd(noise=BandedNoise(bands=4, sampled=False)), "epsilon": 2.0, "delta": 1e-5,
               "expected_batch_size": 60, "steps": 12, "progress": False} | options,
        )  # fmt: skip
        return correlated(trainer.fit(data).privacy_.plan)

    def sgd(decay: float):
        return lambda chosen: torch.optim.SGD(chosen, lr=0.5, weight_decay=decay)

    even = planned(optimizer=sgd(0.0))
    assert even.coefficients == pytest.approx(best_bands(Workload(12), 4).coefficients)
    falling = planned(optimizer=sgd(0.0), scheduler=linear)
    sizes = tuple(1 - step / 12 for step in range(12))
    assert falling.coefficients == pytest.approx(best_bands(Workload(12, step_sizes=sizes), 4).coefficients)
    shrunk = planned(optimizer=sgd(0.2))
    small = Workload(12, curvature=((0.1, 1.0),))
    assert shrunk.coefficients == pytest.approx(best_bands(small, 4).coefficients)
    annealed = planned()
    sizes = tuple(0.5 * (1 + math.cos(math.pi * step / 12)) for step in range(12))
    own = best_bands(Workload(12, momentum=0.9, step_sizes=sizes), 4)
    assert annealed.coefficients == pytest.approx(own.coefficients)
    assert {event.sampling_probability for event in (even, falling, shrunk, annealed)} == {1.0}


def test_the_error_of_a_workload_is_that_of_its_matrices():
    work = Workload(30, momentum=0.5, averaged=(0.25, 0.25, 0.5), curvature=((0.1, 0.3), (0.4, 0.7)))
    assert work.error(best_bands(work, 4)) == pytest.approx(matrix_error(work, best_bands(work, 4)))


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
    assert "correlated Gaussian noise" in text and "turns" in text and "limit" not in text


def test_a_report_says_that_batches_are_limited_and_what_that_adds():
    text = html(card_of(fitted(BandedNoise(bands=4, sampled=True, largest_batch=70))))
    assert "larger than a fixed limit" in text and "counted in δ" in text


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


def recursion_error(multiply: np.ndarray, cost: np.ndarray, steps: int) -> float:
    """Half the mean over iterates and half the last: E[eᵀ·cost·e] of e ← multiply·e + z."""
    spread, errors = np.zeros_like(cost), []
    for _ in range(steps):
        spread = multiply @ spread @ multiply.T + np.eye(len(cost))
        errors.append(float(np.trace(cost @ spread)))
    return (float(np.mean(errors)) + errors[-1]) / 2


@pytest.mark.parametrize("kind", ["none", "diagonal", "features", "thin"])
def test_the_spectrum_under_a_metric_is_that_of_the_steps(kind):
    problem, steps, size = scene("logistic").task(AR).problem(guided=True), 9, 0.7
    X = np.asarray(problem.public.rows.every)
    p, rng = X.shape[1], np.random.default_rng(0)
    curve = X.T @ X / len(X) / 4
    scale, root = rng.uniform(0.3, 3.0, size=p), rng.normal(size=(p, p)) / p
    thin = ThinFeatures(X[:3], np.eye(3) / 2, 0.5)
    metric, multiply, cost = {
        "none": (None, np.eye(p) - size * curve, curve),
        "diagonal": (Diagonal(scale), np.eye(p) - size * scale[:, None] * curve, curve),
        "features": (Features(root), np.eye(p) - size * root @ curve @ root.T, root @ curve @ root.T),
        "thin": (thin, None, None),
    }[kind]
    if kind == "thin":
        written = thin.apply(np.eye(p).reshape(-1)).reshape(p, p)
        cost = written @ curve @ written.T
        multiply = np.eye(p) - size * cost
    values, weights = problem.public_spectrum(metric)
    known = tuple((size * v, w * v) for v, w in zip(values, weights, strict=True))
    assert Workload(steps, curvature=known).error(Strategy((1.0,))) == pytest.approx(
        recursion_error(multiply, cost, steps), rel=1e-8
    )


@pytest.mark.parametrize("method", [dp_sgd, adadps, public_whitening])
def test_bands_are_planned_for_the_step_size_and_the_metric_of_the_run(method, monkeypatch):
    seen = []
    honest = public_curvature.contractions
    monkeypatch.setattr(
        correlated_noise, "contractions", lambda setting: seen.append(setting) or honest(setting)
    )
    recipe = method(steps=6, expected_batch_size=10).with_parts(noise=BandedNoise(curvature="public"))
    task = scene("logistic").task(AR)
    plan = recipe.plan(task)
    settled = plan.state["setting"]
    assert seen[-1].step_size == settled.step_size == plan.details["step_size"]
    assert (seen[-1].metric is None) == (recipe.metric is None)
    assert recipe.noise_plan(settled).event == plan.event
    account = OpenAccount()
    recipe.run(task, plan, account=account, noise=Noise())
    assert account.released == plan.event


def test_public_curvature_needs_no_labels():
    task = scene("logistic").task(AR)
    recipe = dp_sgd(steps=6, expected_batch_size=10, noise=BandedNoise(curvature="public"))
    assert recipe.needs_public and recipe.takes_unlabeled
    assert recipe.plan(task).details["noise_bands"] >= 1


@pytest.mark.parametrize("noise", [BandedNoise(bands=2, sampled=True), BandedNoise(bands=2, sampled=False)])
def test_persons_take_turns_as_a_whole(noise):
    persons = np.arange(400) // 2
    X = np.random.default_rng(0).uniform(-1, 1, size=(400, 3))
    model = PrivateClassifier(
        epsilon=3.0, delta=1e-4, method=dp_sgd(steps=8, expected_batch_size=20, noise=noise), classes=[0, 1],
        bounds=(-1, 1), random_state=0,
    )  # fmt: skip
    stated = model.fit(X, (X[:, 0] > 0).astype(int), persons=persons).privacy_
    event = correlated(stated.plan)
    assert stated.unit != "record" and stated.epsilon <= 3.0 * (1 + 1e-6)
    assert event.separation == (2 if noise.sampled else 10)  # 200 persons, not 400 rows


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
