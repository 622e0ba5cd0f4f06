"""DP-AGD and AgdAvg: vectors N1 to N4 and P3, the line search, and the filter."""

import itertools
import sys

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chisquare
from tests.methods.convex_tools import AR, RO, Account, rows_of, task_of
from tests.privacy.vectors import vector
from tests.private_values import value_of

from sidelight.data.rows import PrivateRows
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.methods.baselines import only_public
from sidelight.methods.dp_agd import (
    _Search,
    agd_avg,
    average_models,
    blend,
    budgets,
    dp_agd,
    line_scores,
    selection_scale,
)
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import BoundedSum, select


def exact_probabilities(scores, scale):
    """P(argmax(score + Exp(scale)) = k), by quadrature."""
    scores = np.asarray(scores, dtype=float) / scale

    def density(e, k):
        gaps = scores[k] + e - np.delete(scores, k)
        return np.exp(-e) * np.prod(-np.expm1(-np.maximum(gaps, 0)))

    out = {}
    for k in np.unique(scores, return_index=True)[1]:  # equal scores, equal chances
        kinks = sorted({0.0, *(s - scores[k] for s in scores if s > scores[k])})
        pieces = [*kinks, 60.0 + max(scores) - scores[k]]
        out[scores[k]] = sum(quad(density, a, b, args=(k,))[0] for a, b in itertools.pairwise(pieces))
    return np.array([out[s] for s in scores])


def losses_task(losses):
    """One record a loss level cannot give arbitrary lines; so the scores are handed in directly."""
    return BoundedSum(-np.asarray(losses, dtype=float), sensitivity=1.0, relation=AR)


def check_selection(draw, *, rounds=4000):
    """The frequencies of a selection are those of report-noisy-max with noise of the right sign."""
    i, o, rtol = vector("N1")
    want = exact_probabilities(-np.array(i["losses"]), i["scale"])
    assert want == pytest.approx(o["prob"], rel=rtol)
    counts = np.bincount([draw(np.array(i["losses"]), i["scale"]) for _ in range(rounds)], minlength=3)
    assert chisquare(counts, rounds * want).pvalue > 1e-4


def test_n1_selection_probabilities():
    noise, event = Noise(11), events.ZeroConcentrated(20.0)
    check_selection(
        lambda losses, scale: select(
            losses_task(losses), scale=scale, event=event, account=Account(), noise=noise
        )
    )


def test_contract_catches_noise_of_the_wrong_sign():
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError):
        check_selection(lambda losses, scale: int(np.argmin(losses + rng.exponential(scale, losses.size))))


def test_n2_initial_budgets():
    i, o, rtol = vector("N2")
    _, rho_n = budgets(epsilon=i["epsilon"], delta=i["delta"], splits=i["splits"])
    assert rho_n == pytest.approx(o["rho_nmax"], rel=rtol)
    assert np.sqrt(2 * rho_n) == pytest.approx(o["eps_nmax"], rel=rtol)
    totals = conversions.tcdp_totals(i["epsilon"], i["delta"], totals="paper")
    assert totals[0] == pytest.approx(o["rho_total"], rel=rtol)
    for selection, relation, key in (
        ("exponential", AR, "exp_scale_add_remove"),
        ("exponential", RO, "exp_scale_replace"),
        ("gumbel", AR, "gumbel_scale_same_rho_add_remove"),
    ):
        scale = selection_scale(bound=i["C_obj"], rho=rho_n, selection=selection, relation=relation)
        assert scale == pytest.approx(o[key], rel=rtol)


def test_n3_gradient_averaging():
    i, o, rtol = vector("N3")
    shape = {"rho_old": i["rho_old"], "rho_new": i["rho_new"]}
    averaged = blend(np.array(i["g_old"]), np.array(i["g_fresh"]), **shape)
    assert averaged == pytest.approx(o["averaged"], rel=rtol)
    assert blend(1.0, 0.0, **shape) == pytest.approx(o["weight_old"], rel=rtol)
    fresh = i["C"] / np.sqrt(2 * (i["rho_new"] - i["rho_old"]))
    assert fresh == pytest.approx(o["sigma_fresh"], rel=rtol)
    after = np.hypot(blend(i["C"] / np.sqrt(2 * i["rho_old"]), 0.0, **shape), blend(0.0, fresh, **shape))
    assert after == pytest.approx(o["sigma_after"], rel=rtol)


def privacy_loss(probabilities_of, bound):
    """Over records that add `bound` to the losses of one candidate, or of all but one."""
    i, _, _ = vector("N4")
    worst = 0.0
    for raised in (np.eye(i["candidates"])[0], 1 - np.eye(i["candidates"])[0]):
        before, after = probabilities_of(np.zeros(i["candidates"])), probabilities_of(bound * raised)
        worst = max(worst, float(np.abs(np.log(before / after)).max()))
    return worst


def check_claim(probabilities_of):
    i, _, _ = vector("N4")
    loss = privacy_loss(probabilities_of, 1.0)
    assert loss <= i["claimed_eps"] * (1 + 1e-9), loss


def right_sign(losses):
    i, _, _ = vector("N4")
    return exact_probabilities(-losses, 1 / i["claimed_eps"])


def wrong_sign(losses):
    """argmin(loss + Exp): between two losses, all candidates below are in a race of equal clocks."""
    i, _, _ = vector("N4")
    rate = i["claimed_eps"]
    low, gap = losses.min(), losses.max() - losses.min()
    first = losses == low
    survive = np.exp(-rate * gap * first.sum())  # no low candidate has gone off before the high ones start
    return np.where(first, (1 - survive) / first.sum(), 0.0) + survive / losses.size


def test_n4_selection_costs_what_it_claims():
    check_claim(right_sign)


def test_n4_contract_catches_the_released_code():
    _, o, rtol = vector("N4")
    with pytest.raises(AssertionError) as error:
        check_claim(wrong_sign)
    assert float(str(error.value).split()[0]) == pytest.approx(o["true_eps"], rel=rtol)


def test_gumbel_selection_is_the_exponential_mechanism():
    losses, scale, noise = np.array([0.3, 0.1, 0.5]), 0.4, Noise(2)
    want = np.exp(-losses / scale) / np.exp(-losses / scale).sum()
    shape = {"scale": scale, "mechanism": "gumbel", "event": events.ZeroConcentrated(5.0), "noise": noise}
    draws = [select(losses_task(losses), account=Account(), **shape) for _ in range(4000)]
    assert chisquare(np.bincount(draws, minlength=3), 4000 * want).pvalue > 1e-4


def test_p3_average():
    i, o, rtol = vector("P3")
    assert average_models(np.array(i["w_agd"]), np.array(i["w_onlypub"])) == pytest.approx(o["w"], rel=rtol)


# ---------------------------------------------------------------------------------------------------
# the method


@pytest.mark.parametrize("loss", ["logistic", "hinge", "huber", "square", "softmax"])
def test_one_record_lowers_every_score_by_at_most_the_bound(loss):
    """Scores are monotone and of range C_obj: what the scale of the selection is calibrated for."""
    task = task_of(loss, n=30, p=3)
    X, y = rows_of(30, 3, kind=task.loss.task)
    fewer = task_of(loss, n=29, p=3, X=X[:-1], y=y[:-1])
    rng = np.random.default_rng(1)
    for _ in range(20):
        w, d = 3 * rng.standard_normal((2, task.dimension))
        steps = np.linspace(0, 2, 9)
        bound = float(rng.choice([0.1, 0.7]))  # 0.1 rounds upwards in single precision
        more, less = (line_scores(t, w, d, steps, bound=bound) for t in (task, fewer))
        moved = value_of(more) - value_of(less)
        assert more.sensitivity == bound
        assert moved.min() >= -bound * (1 + 1e-12) and moved.max() <= 1e-9


def test_scores_prefer_the_smaller_loss():
    task = task_of(n=200)
    descent = -np.linspace(2, 1, 4)  # w − η·descent goes to the truth
    scores = value_of(line_scores(task, np.zeros(4), descent, np.array([0.0, 0.2]), bound=1.0))
    assert scores[1] > scores[0]


def test_the_step_applied_is_the_one_selected(monkeypatch):
    picks = iter([3, 0, 1])

    def pick(scores, *, account, event, **_):
        account.charge(event)
        return next(picks)

    monkeypatch.setattr(sys.modules[_Search.__module__], "select", pick)
    task, account = task_of(n=50), Account()
    search = _Search(dp_agd(candidates=4), task, account, Noise(0))
    assert search._step()
    assert search.chosen == [1.5] and np.linalg.norm(search.w) == pytest.approx(1.5)
    first = search.rho_g
    assert search._step()  # 0 first: more budget for the same gradient, then step 1
    assert search.rho_g == pytest.approx(1.1 * first)
    assert search.chosen == [1.5, 0.5]
    spent = [e.rho for e in account.events]
    rho_n = search.rho_n
    assert spent == pytest.approx([first, rho_n, first, rho_n, 0.1 * first, rho_n])


@pytest.mark.parametrize("relation", [AR, RO])
@pytest.mark.parametrize("selection", ["exponential", "gumbel"])
def test_what_is_spent_is_what_was_charged_and_within_the_total(relation, selection):
    task, account = task_of(n=60, relation=relation), Account()
    method = dp_agd(splits=8, selection=selection)
    plan = method.plan(task)
    fitted = method.run(task, plan, account=account, noise=Noise(1))
    assert plan.filtered
    spent = sum(e.rho for e in account.events)
    assert spent <= plan.event.rho
    assert [h["rho"] for h in fitted.history] == [e.rho for e in account.events]
    _, rho_n = budgets(epsilon=1.0, delta=1e-6, splits=8)
    assert plan.event.rho - spent < max(h["rho"] for h in fitted.history) + rho_n  # it was used up
    assert accountants.epsilon(plan.event, delta=task.delta, relation=relation) <= 1.0 + 1e-9


def test_noise_of_a_gradient_follows_the_relation():
    stds = []
    for relation in (AR, RO):
        task = task_of(n=60, relation=relation)
        method = dp_agd(splits=8, clip_norm=0.5)
        history = method.run(task, method.plan(task), account=Account(), noise=Noise(1)).history
        stds.append(history[0]["noise_std"])
        assert stds[-1] == pytest.approx((0.5 if relation == AR else 1.0) / np.sqrt(2 * history[0]["rho"]))
    assert stds[1] == 2 * stds[0]


def test_nothing_is_released_when_the_account_refuses():
    task, noise = task_of(n=30), Noise(1)
    before = noise.get_state()
    method = dp_agd(splits=8)
    with pytest.raises(Exception, match="refused"):
        method.run(task, method.plan(task), account=Account(refuse=True), noise=noise)
    assert noise.get_state() == before


def test_a_plan_that_cannot_take_one_step_is_refused():
    with pytest.raises(PrivacyConditionError, match="splits"):
        dp_agd(splits=1).plan(task_of(epsilon=0.5))
    with pytest.raises(InputError, match="selection"):
        dp_agd(selection="laplace").plan(task_of())


def test_agd_avg_is_the_mean_of_both_models():
    task = task_of(n=60)
    agd = dp_agd(splits=8)
    alone = agd.run(task, agd.plan(task), account=Account(), noise=Noise(4)).coef
    method = agd_avg(agd)
    both = method.run(task, method.plan(task), account=Account(), noise=Noise(4)).coef
    public = only_public()
    assert both == pytest.approx(
        (alone + public.run(task, public.plan(task), account=Account(), noise=Noise(4)).coef) / 2
    )


def test_rows_go_through_the_holder(monkeypatch):
    """The line search computes inside PrivateRows, so that its value is wrapped at once."""
    calls = []
    compute = PrivateRows.compute
    monkeypatch.setattr(
        PrivateRows, "compute", lambda self, fn, **kw: calls.append(kw) or compute(self, fn, **kw)
    )
    task = task_of(n=30)
    method = dp_agd(splits=5)
    method.run(task, method.plan(task), account=Account(), noise=Noise(1))
    assert calls and all(c["sensitivity"] == 1.0 for c in calls)
