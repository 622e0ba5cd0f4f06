"""What the PLD accountant computes bounds what it stands for: curves, grids and transforms, in 50 digits."""

import math
import random

import mpmath as mp
import numpy as np
import pytest
from scipy import fft
from tests.privacy.inversion import gaussian_delta, sampled_delta

from sidelight.privacy import accountants, conversions, events, pld, tilting
from sidelight.privacy.conversions import UNIT
from sidelight.privacy.tilting import Losses, LossSum

MUS = [1e-6, 0.003, 0.1, 0.7, 2.0, 15.0]


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(50):
        yield


def points(reach: float) -> list[float]:
    rng = random.Random(7)
    return [0.0, *(rng.random() ** 2 * reach for _ in range(30))]


def bounded(curve: pld.Divergence, exact, reach: float, tight: float) -> None:
    """The curve as computed is not below the exact one, and not far above."""
    for e in points(reach):
        found, truth = mp.mpf(float(curve(np.array([e]))[0])), exact(e)
        assert found >= truth, e
        assert found <= truth * (1 + tight) + mp.mpf(10) ** -35, e


@pytest.mark.parametrize("mu", MUS)
def test_gaussian_curves_are_rounded_up(mu):
    tight = 1e-11 / min(mu, 1.0)
    reach = 12 * mu + mu * mu / 2
    bounded(pld.gaussian_curve(mu).forward, lambda e: gaussian_delta(mp.mpf(e), mp.mpf(mu)), reach, tight)
    for e in points(reach):  # and for negative ε
        assert conversions.gaussian_delta_bound(-e, mu) >= gaussian_delta(-mp.mpf(e), mp.mpf(mu))


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("q", [1e-6, 1e-3, 0.3, 0.999])
def test_sampled_curves_are_rounded_up(q, mu):
    curve, tight = pld.poisson_curve(q, mu), 1e-11 / min(mu, 1.0)
    reach = pld._reach(curve.forward)
    bounded(curve.forward, lambda e: sampled_delta("remove", e, q, mp.mpf(mu)), reach, tight)
    bounded(curve.backward, lambda e: sampled_delta("add", e, q, mp.mpf(mu)), -math.log1p(-q) * 0.999, 1e-3)
    edge = -math.log1p(-q)
    for e in edge * (1 + 1e-15 * np.arange(-20, 20)):  # where the losses of the second order end
        assert float(curve.backward(np.array([e]))[0]) >= sampled_delta("add", e, q, mp.mpf(mu))
    replaced = pld.without_replacement_curve(q, mu).forward
    bounded(replaced, lambda e: sampled_delta("remove", e, q, mp.mpf(mu)), reach, tight)


def test_mixtures_are_rounded_up():
    mus, weights = np.array([0.1, 0.2, 0.1, 0.4]), np.array([0.1, 0.3, 0.2, 0.4])

    def exact(e):
        return sum(
            mp.mpf(w) * gaussian_delta(mp.mpf(e), mp.mpf(m)) for m, w in zip(mus, weights, strict=True)
        )

    bounded(pld.mixture_curve(mus, weights).forward, exact, 4.0, 1e-9)


@pytest.mark.parametrize("mu,c0", [(0.01, 1e-4), (0.3, 0.05), (2.0, 1.0)])
def test_objective_perturbation_is_rounded_up(mu, c0):
    m, c = mp.mpf(mu), mp.mpf(c0)

    def one(e):
        x = mp.mpf(e) - c
        below = 1 - mp.exp(x) * mp.erfc(m / mp.sqrt(2))
        return 2 * gaussian_delta(x, m) if x >= m * m / 2 else below

    def two(e):
        x = mp.mpf(e) - c
        r = max((x - m * m / 2) / m, mp.mpf(0))
        mills = mp.exp(x) * m * mp.sqrt(2 * mp.pi) * mp.erfc((r + m) / mp.sqrt(2)) / 2
        return mills if r > 0 else 1 - mp.exp(x - m * m / 2) + mills

    for rank, exact in ((1, one), (2, two)):
        bounded(pld.objective_curve(c0, mu, rank).forward, exact, c0 + 12 * mu, 1e-9)


def renyi_delta(a, r, e):
    a = mp.mpf(a)
    return min(mp.exp((a - 1) * (r - e + mp.log1p(-1 / a))) / a, mp.mpf(1))


def test_certificates_are_rounded_up():
    for a, r in ((1.001, 0.2), (16.0, 0.1), (8192.0, 3.0)):
        bounded(pld.renyi_curve(a, r).forward, lambda e, a=a, r=r: renyi_delta(a, mp.mpf(r), e), 5.0, 1e-8)
    rho, omega = 0.02, 40.0
    for e in points(3.0):
        orders = [
            min(max(1 + stretch * (e - rho) / (2 * rho), 1 + 1e-6), 39.9999)
            for stretch in (0.5, 0.75, 1, 1.25)
        ]
        least = min(renyi_delta(a, rho * mp.mpf(a), e) for a in orders)
        assert least * (1 - mp.mpf("1e-3")) <= float(pld.tcdp_curve(rho, omega).forward(np.array([e]))[0])
    for eps, delta in ((1.0, 1e-7), (0.3, 0.0), (40.0, 0.2)):
        share = (1 - mp.mpf(delta)) / (1 + mp.exp(-mp.mpf(eps)))
        bounded(
            pld.approximate_curve(eps, delta).forward,
            lambda e, d=delta, x=eps, s=share: d + s * max(-mp.expm1(mp.mpf(e) - x), mp.mpf(0)),
            1.5 * eps,
            1e-9,
        )


GRIDS = [(0.01, 1.0, 5e-4), (1e-4, 0.1, 5e-7), (0.3, 0.5, 1e-3), (1e-3, 2.0, 1e-5)]


@pytest.mark.parametrize("q,mu,step", GRIDS)
def test_the_grid_is_above_the_curve_everywhere(q, mu, step):
    """H_t of the measure on the grid, for t below and above 1, against both orders of the pair."""
    sides = pld.discretize(pld.poisson_curve(q, mu), step)
    rng = random.Random(3)
    for losses, way, other in zip(sides, ("remove", "add"), ("add", "remove"), strict=True):
        loss = [mp.mpf(int(k)) * mp.mpf(step) for k in losses.index]
        mass = [mp.mpf(float(m)) for m in losses.mass]
        assert mp.fsum(mass) + losses.infinite >= 1
        for at in [mp.mpf(0), *rng.sample(loss, 3), rng.choice(loss) * rng.random()]:
            above = mp.fsum(m * -mp.expm1(at - x) for m, x in zip(mass, loss, strict=True) if x > at)
            exact = sampled_delta(way if at >= 0 else other, abs(at), q, mp.mpf(mu))
            if at < 0:
                exact = 1 - mp.exp(at) + mp.exp(at) * exact
            assert above + losses.infinite >= exact, (way, at)


def hockey_stick(losses: Losses, step: float, e: float) -> mp.mpf:
    pairs = zip(losses.index.tolist(), losses.mass.tolist(), strict=True)
    terms = [mp.mpf(m) * -mp.expm1(mp.mpf(e) - k * mp.mpf(step)) for k, m in pairs if k * mp.mpf(step) > e]
    return mp.fsum(terms) + losses.infinite


def test_two_bounds_that_differ_at_zero_still_bound_the_reflection():
    """If only one order's bound is loose, both are raised at ε = 0, or H_t would be too small for t < 1."""
    mu, step = 0.5, 2e-2
    exact = pld.gaussian_curve(mu).forward
    for losses in pld.discretize(pld.Curve(exact, lambda e: 1.01 * exact(e), mu), step):
        for k in (-60, -25, -3, 0, 3, 25, 60):
            truth = gaussian_delta(k * mp.mpf(step), mp.mpf(mu))
            assert hockey_stick(losses, step, k * step) >= truth * (1 - mp.mpf("1e-14")), k


def test_a_bound_that_is_no_curve_of_any_pair_keeps_a_mass_of_one():
    """Objective perturbation bounds a loss that is never negative, in both orders; no pair has such."""
    for rank in (1, 2):
        curve = pld.objective_curve(0.01, 0.1, rank)
        for losses in pld.discretize(curve, 1e-3):
            assert 1 <= math.fsum(losses.mass) + losses.infinite <= 1 + 1e-11
            for e in (0.0, 0.05, 0.3):
                ahead = float(curve.forward(np.array([e]))[0])
                assert hockey_stick(losses, 1e-3, e) >= ahead * (1 - 1e-14)
                assert hockey_stick(losses, 1e-3, -e) >= (1 - math.exp(-e) * (1 - ahead)) * (1 - 1e-14)


def test_trimmed_losses_are_above_all_losses():
    rng = np.random.default_rng(5)
    mass = rng.uniform(0.5, 1.5, size=41)
    losses = Losses(np.arange(-20, 21), mass / mass.sum(), 1e-9)
    for top, bottom in ((0.1, 0.0), (0.0, 0.1), (0.1, 0.1)):
        fewer = losses.trimmed(top, bottom)
        assert 0 < fewer.mass.size < 39
        for e in np.linspace(-0.25, 0.25, 21):
            assert hockey_stick(fewer, 0.01, e) >= hockey_stick(losses, 0.01, e)


def transform_is_above(slope: float) -> float:
    """A million losses of 0 or 1 are a binomial, whose masses are known. How far above are we in the bulk?"""
    steps, p, step, size, first = 10**6, 1e-3, 1e-4, 1024, 600
    total = LossSum([(Losses(np.array([0, 1]), np.array([1 - p, p]), 0.0), steps)], step)
    mass, scale, errors = tilting._convolve(total, slope, first, size)
    farthest = 0.0
    for k in range(first, first + size, 9):
        exact = mp.binomial(steps, k) * mp.mpf(p) ** k * mp.mpf(1 - p) ** (steps - k)
        found = mp.mpf(float(mass[k - first])) + errors.largest
        bound = found * mp.exp(mp.mpf(scale) - mp.mpf(slope) * k * mp.mpf(step))
        assert bound >= exact, k
        if abs(k - 1000 * math.exp(slope * step)) < 60:
            farthest = max(farthest, float(bound / exact - 1))
    return farthest


@pytest.mark.parametrize("slope", [0.0, 40.0, 2500.0])
def test_the_transform_is_above_the_exact_convolution(slope):
    assert transform_is_above(slope) < 1e-6


@pytest.mark.parametrize("slope", [0.0, 40.0, 2500.0])
def test_contract_catches_rounding_that_is_not_counted(slope, monkeypatch):
    monkeypatch.setattr(tilting, "_FOURIER", 0.0)
    monkeypatch.setattr(tilting, "UNIT", 0.0)
    with pytest.raises(AssertionError):
        transform_is_above(slope)


WINDOWS = [(0.0, 0.3, 0.0), (0.0, 1e-3, 1e-12), (300.0, 1e-6, 0.0), (900.0, 1e-14, 1e-12), (0.0, 1e-25, 0.0)]


@pytest.mark.parametrize("slope,delta,never", WINDOWS)
def test_a_window_is_above_every_delta_inside_and_beyond_it(slope, delta, never):
    """Losses of −1 or 1 and sometimes infinity: P of a binomial, and E(1 − e^{ε−L})₊ summed in 50 digits."""
    steps, p, step = 2000, 0.52, 1e-3
    total = LossSum([(Losses(np.array([-1, 1]), np.array([1 - p, p]), never), steps)], step)
    found = tilting.Window(total, slope, math.log(delta))
    masses = [mp.binomial(steps, k) * mp.mpf(p) ** k * mp.mpf(1 - p) ** (steps - k) for k in range(steps + 1)]
    infinite = (1 + mp.mpf(never)) ** steps - 1
    last = (found.first + found.at.size) * step
    for e in [0.0, 0.0100001, 0.08, 0.0999999, 0.1, 0.1503, 0.25, 0.45, last, 1.2 * last]:
        at, losses = mp.mpf(e), [(2 * k - steps) * mp.mpf(step) for k in range(steps + 1)]
        exact = mp.fsum(m * -mp.expm1(at - x) for m, x in zip(masses, losses, strict=True) if x > at)
        bound = float(found.deltas(np.array([e]))[0])
        assert bound >= exact + infinite, e
        near = (exact + infinite) * (1 + mp.mpf("1e-4")) + max(1e-6 * delta, 1e-9 if slope == 0 else 0.0)
        assert bound <= near or found.at[0] > e, e
    answer = found.epsilon(2 * delta)
    if answer and answer < math.inf:
        assert found.deltas(np.array([answer]))[0] <= 2 * delta


@pytest.mark.parametrize("slope", [0.0, 500.0])
def test_errors_of_the_transform_reach_every_delta(slope, monkeypatch):
    """Masses that are too low by as much as they are said to be, at most or in norm, still give a bound."""
    total = LossSum([(Losses(np.array([-1, 1]), np.array([0.48, 0.52]), 0.0), 2000)], 1e-3)
    at = np.linspace(0, 0.3, 50)
    right, exact = tilting._convolve, tilting.Window(total, slope, math.log(1e-9)).deltas(at)
    for e in (tilting.Errors(1e-5, 1.0), tilting.Errors(1.0, 1e-4)):

        def low(*args, e=e):
            mass, scale, errors = right(*args)
            off = np.minimum(mass, min(e.largest, e.norm / math.sqrt(mass.size)))
            return mass - off, scale, tilting.Errors(errors.largest + e.largest, errors.norm + e.norm)

        monkeypatch.setattr(tilting, "_convolve", low)
        assert (tilting.Window(total, slope, math.log(1e-9)).deltas(at) >= exact * (1 - 1e-9)).all()


def test_negative_epsilons_follow_by_reflection():
    event = events.repeat(events.fixed_size(100, 3, 1.0), 50)
    at = [accountants.delta(event, epsilon=e, relation="replace-one") for e in (-3.0, -0.5, 0.0, 0.5, 3.0)]
    assert at == sorted(at, reverse=True)
    assert at[1] == pytest.approx(1 - math.exp(-0.5) * (1 - at[3]), rel=1e-12)
    assert at[0] == pytest.approx(1 - math.exp(-3) * (1 - at[4]), rel=1e-12)


def test_far_beyond_all_losses_delta_vanishes():
    """Losses of one order are below 65·0.0197 = 1.28, and next to never near it."""
    event = events.repeat(events.poisson(0.01953125, 2.0), 65)
    assert 4.5e-18 < accountants.delta(event, epsilon=1.0, relation="add-or-remove-one") < 4.6e-18
    for epsilon in (1.4, 5.0, 50.0):
        assert accountants.delta(event, epsilon=epsilon, relation="add-or-remove-one") < 1e-22


def test_a_chance_of_no_privacy_grows_with_the_number_of_steps():
    both = events.compose(
        events.repeat(events.ApproximateDp(0.01, 1e-9), 1000), events.repeat(events.poisson(0.001, 2.0), 1000)
    )
    assert accountants.epsilon(both, delta=0.99e-6, relation="add-or-remove-one") == math.inf
    assert accountants.epsilon(both, delta=1.01e-6, relation="add-or-remove-one") < 10
    exact = -math.expm1(1000 * math.log1p(-1e-9))
    assert exact <= accountants.delta(both, epsilon=20.0, relation="add-or-remove-one") <= exact * (1 + 1e-6)


@pytest.mark.parametrize("size", [64, 96, 3 * 2**12, 2**15])
def test_fourier_transforms_are_as_exact_as_their_bound_says(size):
    rng = np.random.default_rng(0)
    x = rng.exponential(size=size) ** 3
    found, k = fft.rfft(x), np.arange(size)
    for j in [0, 1, 2, size // 3, size // 2, *rng.integers(0, size // 2, 5)]:
        angle = 2 * np.pi * ((j * k) % size) / size
        exact = complex(math.fsum(x * np.cos(angle)), -math.fsum(x * np.sin(angle)))
        assert abs(found[j] - exact) <= tilting._FOURIER * UNIT * math.log2(size) * x.sum()


def test_powers_are_as_exact_as_their_bound_says():
    rng = np.random.default_rng(0)
    base = (1 - 1e-7 * rng.random(30)) * np.exp(1j * rng.normal(size=30))
    for exponent in (1, 2, 7, 10**4 + 1, 10**7):
        for found, z in zip(tilting._power(base, exponent), base, strict=True):
            exact = mp.mpc(complex(z)) ** exponent
            assert abs(mp.mpc(complex(found)) - exact) <= 4 * UNIT * exponent * abs(exact)
