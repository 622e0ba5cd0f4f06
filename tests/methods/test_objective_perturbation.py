"""Objective perturbation and AMP: vectors K1 to K7, and exact divergences in one dimension."""

import sys

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import norm
from tests.methods.convex_tools import AR, RO, Account, rows_of, task_of
from tests.privacy.vectors import vector

from sidelight import solvers
from sidelight.data.rows import contents
from sidelight.errors import AssumptionError, InputError, PrivacyConditionError, RelationError
from sidelight.losses import Huber, Logistic
from sidelight.methods.objective_perturbation import (
    _solve,
    amp,
    amp_noise,
    kst_noise,
    log_determinant,
    objective_perturbation,
)
from sidelight.methods.smooth import StraightBeyond, smooth
from sidelight.oracles.linear.row_sums import RowSums
from sidelight.privacy import accountants, conversions
from sidelight.privacy.noise import Noise

# ---------------------------------------------------------------------------------------------------
# vectors


@pytest.mark.parametrize("name", ["K1", "K2"])
def test_noise_of_2012_and_of_the_bound(name):
    i, o, rtol = vector(name)
    shape = {"epsilon": i["epsilon"], "delta": i["delta"]}
    std, ridge = kst_noise(**shape, lipschitz=i["zeta"], curvature=i["beta"])
    assert (std, ridge) == pytest.approx((o["sigma_kst"], o["Delta_kst"]), rel=rtol)
    c0 = log_determinant(i["beta"], ridge)
    assert c0 == pytest.approx(o["c0"], rel=rtol)
    for rank, key in ((1, "sigma_tight_add_remove"), (2, "sigma_tight_replace_one")):
        tight = conversions.objective_noise(**shape, lipschitz=i["zeta"], log_determinant=c0, rank=rank)
        assert tight == pytest.approx(o[key], rel=rtol)
    bound = conversions.objective_delta(i["epsilon"], log_determinant=c0, mu=i["zeta"] / std, rank=1)
    assert bound == pytest.approx(o["delta_bound_at_sigma_kst"], rel=1e-5)


def test_k3_k4_k5_the_bound_itself():
    for name, rank in (("K3", 1), ("K4", 1), ("K5", 2)):
        i, o, rtol = vector(name)
        c0 = log_determinant(i["beta"], i["Lambda"])
        delta = conversions.objective_delta(
            float(i["epsilon"]),
            log_determinant=c0,
            mu=i["L_over_sigma" if rank == 1 else "two_L_over_sigma"],
            rank=rank,
        )
        assert delta == pytest.approx(o["delta"], rel=rtol)
        assert c0 == pytest.approx(o.get("c0", c0), rel=rtol)


def published(i):
    return amp_noise(
        epsilon=i["epsilon"], delta=i["delta"], n=i["n"], lipschitz=i["L"], curvature=i["beta"],
        gradient_tolerance=i["n"] ** -2.0, output_share=i["eps_out_frac"], noise_share=i["eps3_frac"],
        rank=i["r"],
    )  # fmt: skip


def test_k6_amp_scales():
    i, o, rtol = vector("K6")
    ridge, inside, outside = published(i)
    assert ridge == pytest.approx(o["Lambda"], rel=rtol)
    assert inside == pytest.approx(o["sigma1"], rel=rtol)
    assert outside == pytest.approx(o["sigma2_correct"], rel=rtol)
    assert outside / 2 == pytest.approx(o["sigma2_published"], rel=rtol)


def check_output_noise(outside):
    """Two approximate minimizers at opposite ends of the ball of radius nγ/Λ around the exact one."""
    i, o, _ = vector("K6")
    radius = i["n"] * i["n"] ** -2.0 / o["Lambda"]
    delta = conversions.gaussian_delta(i["eps_out_frac"] * i["epsilon"], 2 * radius / outside)
    assert delta <= o["delta2_claimed"], delta
    return delta


def test_output_noise_of_amp_covers_the_diameter():
    check_output_noise(published(vector("K6")[0]).outside)


def test_contract_catches_the_missing_factor_two():
    i, o, _ = vector("K6")
    with pytest.raises(AssertionError) as error:
        check_output_noise(published(i).outside / 2)
    assert float(str(error.value).split()[0]) == pytest.approx(o["delta_out_with_published_sigma2"], rel=1e-6)


# ---------------------------------------------------------------------------------------------------
# exact divergences: in one dimension the law of the minimizer has a density in closed form

GRID = np.arange(-80, 80, 0.002) + 0.001  # midpoints of cells, so that kinks lie between them


def log_density(slope, curvature, ridge, std, grid=GRID):
    """Of θ: b = −(f'(θ) + Λθ) is Gaussian, times the Jacobian f'' + Λ."""
    return norm.logpdf(slope + ridge * grid, scale=std) + np.log(curvature + ridge)


def divergence(P, Q, epsilon, grid=GRID):
    """H_{e^ε}(P‖Q), both ways, by the midpoint rule."""
    step = grid[1] - grid[0]

    def one(a, b):
        integrand = np.exp(a) - np.exp(np.minimum(epsilon + b, 700))
        return float(np.maximum(integrand, 0).sum() * step)

    return max(one(P, Q), one(Q, P))


def clipped_quadratic(center, grid=GRID):
    return np.clip(grid - center, -1, 1), (np.abs(grid - center) < 1).astype(float)


def constant_slope(value, grid=GRID):
    return np.full_like(grid, value), np.zeros_like(grid)


def test_k7_exact_delta_of_one_instance():
    i, o, rtol = vector("K7")
    shape = {"epsilon": i["epsilon"], "delta": i["delta_claimed"]}
    std, ridge = kst_noise(**shape, lipschitz=i["zeta"], curvature=i["beta"])
    assert (std, ridge) == pytest.approx((o["sigma_kst"], i["Lambda"]))
    fine = np.arange(-60, 60, 0.0002) + 0.0001
    P = log_density(*clipped_quadratic(27.0, fine), ridge, std, fine)
    Q = log_density(*constant_slope(1.0, fine), ridge, std, fine)
    assert divergence(P, Q, i["epsilon"], fine) == pytest.approx(o["delta_exact"], rel=rtol)


def check_replaced(std, ridge, epsilon, delta):
    for center in (0.0, 5.0, 27.0, 35.0):
        P = log_density(*clipped_quadratic(center), ridge, std)
        for value in (-1.0, 1.0):
            assert divergence(P, log_density(*constant_slope(value), ridge, std), epsilon) <= delta


def test_replaced_records_stay_within_the_tight_budget():
    i, _, _ = vector("K7")
    c0 = log_determinant(i["beta"], i["Lambda"])
    std = conversions.objective_noise(
        epsilon=i["epsilon"], delta=i["delta_claimed"], lipschitz=i["zeta"], log_determinant=c0, rank=2
    )
    check_replaced(std, i["Lambda"], i["epsilon"], i["delta_claimed"])


def test_contract_catches_the_noise_of_2012_under_replace_one():
    i, o, _ = vector("K7")
    with pytest.raises(AssertionError):
        check_replaced(o["sigma_kst"], i["Lambda"], i["epsilon"], i["delta_claimed"])


@pytest.mark.parametrize("relation", [AR, RO])
@pytest.mark.parametrize("loss", [Logistic(), Huber(0.5)], ids=["logistic", "huber"])
def test_planned_noise_keeps_neighbors_apart_at_most_by_delta(loss, relation):
    """The plan's own Λ and σ_b, on pairs of datasets with one feature."""
    rng = np.random.default_rng(0)
    for epsilon in (0.5, 2.0):
        task = task_of(loss, n=3, p=1, n_public=0, epsilon=epsilon, delta=1e-3, relation=relation)
        plan = objective_perturbation(norm_guess=1e3).plan(task)
        ridge, std = plan.state["ridge"], plan.state["std"]
        for _ in range(6):
            x, y = rng.choice([-1.0, -0.6, 1.0], 4), rng.choice([-1.0, 1.0], 4)
            slopes = [x[i] * loss.slope(x[i] * GRID, np.full_like(GRID, y[i])) for i in range(4)]
            bends = [x[i] ** 2 * loss.curvature(x[i] * GRID, np.full_like(GRID, y[i])) for i in range(4)]
            other = [0, 1] if relation == AR else [0, 1, 3]
            laws = [
                log_density(sum(slopes[i] for i in one), sum(bends[i] for i in one), ridge, std)
                for one in ([0, 1, 2], other)
            ]
            assert divergence(*laws, epsilon) <= 1e-3


def blurred(log_law, std, shift, grid=GRID):
    """The log density of θ + shift + N(0, std²)."""
    step = grid[1] - grid[0]
    width = int(np.ceil((abs(shift) + 12 * std) / step))
    kernel = norm.pdf(np.arange(-width, width + 1) * step, loc=shift, scale=std)
    law = fftconvolve(np.exp(log_law), kernel / kernel.sum(), mode="same")
    return np.log(np.maximum(law, 1e-300))


def worst_of_amp(relation, output_share_of_noise=1.0):
    """δ of AMP with a solver that errs as far as it may, one way on D and the other way on D′."""
    loss, epsilon, delta, worst = Logistic(), 1.0, 1e-3, 0.0
    rng = np.random.default_rng(1)
    task = task_of(loss, n=3, p=1, n_public=0, epsilon=epsilon, delta=delta, relation=relation)
    plan = amp(gradient_tolerance=3.0, norm_guess=1e3, output_share=0.5).plan(task)
    scales, tolerance = plan.state["scales"], plan.state["tolerance"]
    inside = 3 * scales.inside  # in sum form
    for _ in range(8):
        x, y = rng.choice([-1.0, 1.0], 4), rng.choice([-1.0, 1.0], 4)
        slopes = [x[i] * loss.slope(x[i] * GRID, np.full_like(GRID, y[i])) for i in range(4)]
        bends = [x[i] ** 2 * loss.curvature(x[i] * GRID, np.full_like(GRID, y[i])) for i in range(4)]
        laws = [
            log_density(sum(slopes[i] for i in one), sum(bends[i] for i in one), scales.ridge, inside)
            for one in ([0, 1, 2], [0, 1] if relation == AR else [0, 1, 3])
        ]
        radius, std = tolerance / scales.ridge, scales.outside * output_share_of_noise
        for sign in (1, -1):
            apart = blurred(laws[0], std, sign * radius), blurred(laws[1], std, -sign * radius)
            worst = max(worst, divergence(*apart, epsilon))
    return worst / delta


@pytest.mark.parametrize("relation", [AR, RO])
def test_amp_keeps_neighbors_apart_at_most_by_delta_whatever_the_solver_leaves(relation):
    assert worst_of_amp(relation) <= 1


@pytest.mark.parametrize("relation", [AR, RO])
def test_contract_catches_amp_with_little_noise_on_its_solution(relation):
    assert worst_of_amp(relation, 0.05) > 1


# ---------------------------------------------------------------------------------------------------
# slopes that are clipped


@pytest.mark.parametrize("base", [Logistic(), Huber(0.5)], ids=["logistic", "huber"])
@pytest.mark.parametrize("bound", [0.2, 0.35, 0.9, 1.0])
def test_a_clipped_slope_is_that_of_a_convex_loss(base, bound):
    loss = StraightBeyond(base, bound)
    z = np.linspace(-8, 8, 4001)
    for label in (-1.0, 1.0):
        y = np.full_like(z, label)
        slope = loss.slope(z, y)
        assert np.abs(slope).max() <= bound and (np.diff(slope) >= -1e-12).all()
        np.testing.assert_allclose(np.gradient(loss.value(z, y), z)[1:-1], slope[1:-1], atol=2e-3)
        inside = np.abs(base.slope(z, y)) < bound - 1e-9
        np.testing.assert_allclose(loss.value(z, y)[inside], base.value(z, y)[inside])
        beyond = np.abs(base.slope(z, y)) > bound + 1e-9
        assert (loss.curvature(z, y)[beyond] == 0).all()
        assert loss.curvature(z, y).max() <= loss.smoothness


def test_noise_shrinks_with_the_slope():
    task = task_of(n=500, regularization=0.1)
    plans = [objective_perturbation(slope_share=share).plan(task) for share in (1.0, 0.35)]
    assert plans[1].state["std"] == pytest.approx(0.35 * plans[0].state["std"])
    assert plans[1].state["problem"].data_bound == pytest.approx(0.35)
    assert plans[1].event.mu == pytest.approx(2 * 0.35 / plans[1].state["std"])
    for method in (objective_perturbation, amp):
        with pytest.raises(InputError, match="slope_share"):
            method(slope_share=0.0).plan(task)


@pytest.mark.parametrize("loss", ["logistic", "huber", "square"])
def test_with_clipped_slopes_it_learns_and_solves_exactly(loss):
    task = task_of(loss, n=4000, epsilon=1.0)
    for method in (objective_perturbation(slope_share=0.35), amp(slope_share=0.35)):
        fitted = method.run(task, method.plan(task), account=Account(), noise=Noise(0))
        X, y = rows_of(1000, seed=5, kind="regression" if loss == "square" else "binary")
        assert np.mean(np.sign(X @ fitted.coef[0]) == np.sign(y)) > 0.9


# ---------------------------------------------------------------------------------------------------
# the methods


def test_the_solution_gives_back_the_noise_it_was_made_from():
    """θ ↦ b is a bijection: the minimizer is exact, not merely good."""
    for loss in ("logistic", "huber", "square"):
        task = task_of(loss)
        problem = smooth(task, method="m", regularization=0.0, scalar=True)
        b = 5 * np.random.default_rng(0).standard_normal(4)
        theta = _solve(task, problem, b, ridge=3.0, tolerance=3e-8)
        rows = contents(task.rows)
        back = -(RowSums(rows.X, rows.y, problem.loss).gradient(theta) + 3.0 * theta)
        assert back == pytest.approx(b, abs=3e-8)


@pytest.mark.parametrize("relation", [AR, RO])
def test_event_describes_the_noise_that_is_drawn(relation):
    task = task_of(n=500, relation=relation)
    plan = objective_perturbation().plan(task)
    rank = 1 if relation == AR else 2
    assert plan.event.rank == rank
    assert plan.event.mu == pytest.approx(rank * 1.0 / plan.state["std"])
    assert plan.event.log_determinant == pytest.approx(np.log1p(0.25 / plan.state["ridge"]))


def test_the_perturbation_has_the_planned_size(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        sys.modules[objective_perturbation.__module__],
        "minimize",
        lambda parts, *, linear, **_: drawn.append(linear) or solvers.Minimum(np.zeros(4), 0.0),
    )
    task = task_of(n=30)
    method = objective_perturbation()
    plan = method.plan(task)
    for seed in range(100):
        method.run(task, plan, account=Account(), noise=Noise(seed))
    assert np.std(drawn) == pytest.approx(plan.state["std"], rel=0.15)


def test_kst_needs_more_noise_and_is_add_or_remove_only():
    task = task_of(n=500, relation=AR)
    tight, kst = (objective_perturbation(accounting=a).plan(task) for a in ("tight", "kst"))
    assert kst.state["std"] > 1.3 * tight.state["std"]
    assert accountants.epsilon(kst.event, delta=task.delta, relation=AR) < task.epsilon
    with pytest.raises(RelationError):
        objective_perturbation(accounting="kst").plan(task_of(relation=RO))


def test_a_declared_regularization_counts_toward_the_ridge():
    task = task_of(n=500, regularization=0.4, relation=AR)
    assert objective_perturbation().plan(task).state["ridge"] == pytest.approx(200.0)
    task = task_of(n=500, regularization=1e-9, relation=AR)
    least = 0.25 / np.expm1(0.5)
    assert objective_perturbation().plan(task).state["ridge"] == pytest.approx(least)


def test_amp_tight_needs_less_noise_inside_than_the_paper():
    task = task_of(n=500, epsilon=0.5)
    tight, paper = (amp(accounting=a).plan(task) for a in ("tight", "paper"))
    assert tight.state["scales"].inside < paper.state["scales"].inside
    spent = accountants.epsilon(tight.event, delta=task.delta, relation=RO)
    assert 0.99 * task.epsilon < spent <= task.epsilon


def test_amp_solves_to_its_tolerance_and_adds_its_output_noise(monkeypatch):
    task = task_of(n=200)
    method = amp(gradient_tolerance=1e-3)
    plan = method.plan(task)
    seen = {}
    solve = solvers.minimize

    def spy(parts, **kwargs):
        seen["solution"] = solve(parts, **kwargs)
        seen.update(kwargs)
        return seen["solution"]

    monkeypatch.setattr(sys.modules[objective_perturbation.__module__], "minimize", spy)
    fitted = method.run(task, plan, account=Account(), noise=Noise(0))
    assert seen["tolerance"] == pytest.approx(0.2)  # n·γ, on the sum
    assert seen["ridge"] == plan.state["scales"].ridge
    assert 0.2 < np.linalg.norm(seen["linear"]) / (200 * plan.state["scales"].inside * 2) < 3  # in sum form
    offset = np.linalg.norm(fitted.coef.ravel() - seen["solution"].w)
    assert 0.2 < offset / (plan.state["scales"].outside * 2) < 3


@pytest.mark.parametrize("loss", ["logistic", "huber", "square"])
def test_the_minimizer_is_found_where_newtons_method_does_not_arrive(loss, monkeypatch):
    """Whether a solver arrives must not depend on the records: another one follows, and nothing raises."""
    for method in (objective_perturbation(), amp()):
        task, found = task_of(loss, n=50), []
        plan = method.plan(task)
        for steps in (300, 0):
            monkeypatch.setattr(solvers, "_MOST_STEPS", steps)
            found.append(method.run(task, plan, account=Account(), noise=Noise(0)).coef)
        assert found[0] == pytest.approx(found[1], abs=1e-7 if method.name != "amp" else 0.1)


HARD = {
    "separable": lambda rng: (x := rng.standard_normal((3000, 4)), np.sign(x @ np.ones(4))),
    "one against all": lambda rng: (
        np.where(np.arange(3000)[:, None] == 0, 1.0, 1e-3 * rng.standard_normal((3000, 4))),
        np.where(np.arange(3000) == 0, -1.0, 1.0),
    ),
    "of all sizes": lambda rng: (
        x := rng.standard_normal((3000, 4)) * 10.0 ** rng.integers(-9, 1, (3000, 1)),
        np.sign(x @ np.ones(4)),
    ),
}


@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("kind", HARD)
def test_no_records_make_the_solver_fail(kind, loss):
    """ε = 25 and λ = 1e-9 asked for a gradient that float64 cannot tell from 0, and records decided."""
    X, y = HARD[kind](np.random.default_rng(0))
    task = task_of(loss, X=X, y=y, p=4, epsilon=25.0, regularization=1e-9)
    for method in (objective_perturbation(), amp()):
        plan = method.plan(task)
        assert np.isfinite(method.run(task, plan, account=Account(), noise=Noise(1)).coef).all()


def test_a_tolerance_that_float64_cannot_tell_from_zero_is_refused_from_public_numbers():
    with pytest.raises(AssumptionError, match="float64"):
        amp(gradient_tolerance=1e-17).plan(task_of(n=200))
    tasks = (task_of(n=n, epsilon=25.0, regularization=1e-12) for n in (100, 3000))
    small, large = (objective_perturbation().plan(task).state["ridge"] for task in tasks)
    assert large > 2 * small, "a least ridge that grows with the number of records, as rounding does"


def test_what_the_proof_does_not_cover_is_refused():
    for method in (objective_perturbation(), amp()):
        with pytest.raises(AssumptionError, match="huber"):
            method.plan(task_of("hinge"))
        with pytest.raises(AssumptionError, match="rsgd_ar"):
            method.plan(task_of("softmax"))
    with pytest.raises(RelationError):
        amp(accounting="paper").plan(task_of(relation=AR))
    with pytest.raises(PrivacyConditionError, match="tight"):
        amp(accounting="paper").plan(task_of(epsilon=20.0))
    with pytest.raises(InputError):
        objective_perturbation(determinant_share=1.0).plan(task_of())


def test_wide_data_is_solved_without_a_hessian(monkeypatch):
    monkeypatch.setattr(solvers, "_DENSE", 3)
    X, y = rows_of(100, 12)
    task = task_of(X=X, y=y, p=12)
    method = objective_perturbation()
    plan = method.plan(task)
    sparse = method.run(task, plan, account=Account(), noise=Noise(3)).coef
    monkeypatch.undo()
    assert sparse == pytest.approx(method.run(task, plan, account=Account(), noise=Noise(3)).coef, abs=1e-6)
