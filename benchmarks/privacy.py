"""Calibration against dp-accounting's own, and what a charge costs in a ledger that grows.

    python -m benchmarks.privacy [FOLDER]

Calibration: the same answer to 1e-3, at least five times faster. A charge should cost the same in a long
ledger as in a short one; its times are processor time. FOLDER is where ledgers are made (a fast disk shows
most), else the folder for temporary files.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dp_accounting
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from sidelight.accounting import poisson, repeat
from sidelight.privacy import accountants
from sidelight.privacy.ledger import Ledger

CALIBRATED = [(0.01, 1000, 2.0, 1e-5), (0.001, 5000, 1.0, 1e-6), (0.1, 100, 4.0, 1e-5)]  # q, T, ε, δ
ROUNDS = (100, 900, 4_000, 5_000)  # runs of one plan, one after the other
PLANS = (100, 1_000)  # different plans, all in one total


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


def timed(function: Callable[..., float], plan: tuple[float, ...]) -> tuple[float, float]:
    start = time.perf_counter()
    value = function(*plan)
    return value, time.perf_counter() - start


def calibration() -> None:
    timed(ours, (0.5, 2, 1.0, 1e-3))  # imports and first FFT plans are not what is compared
    print(f"{'plan':<34}{'dp-accounting':>22}{'sidelight':>22}{'ratio':>8}{'difference':>12}")
    for plan in CALIBRATED:
        a, ta = timed(theirs, plan)
        b, tb = min((timed(ours, plan) for _ in range(3)), key=lambda r: r[1])
        name = "q={:g} T={} ε={:g} δ={:g}".format(*plan)
        print(f"{name:<34}{a:>12.5f} {ta:>7.2f} s{b:>12.5f} {tb:>7.2f} s{ta / tb:>7.1f}x{b / a - 1:>+12.1e}")


def one_run(ledger: Ledger, probability: float) -> None:
    plan = repeat(poisson(probability, 2.0), 5)
    with ledger.begin("records", plan, relation="add-or-remove-one", method="benchmark") as run:
        run.charge(poisson(probability, 2.0))


def new(folder: Path) -> Ledger:
    ledger = Ledger.create(folder / "benchmark.ledger")
    ledger.register("records", relation="add-or-remove-one", epsilon=1e6, delta=1e-6)
    return ledger


def charges(folder: Path) -> None:
    print("runs in the ledger    ms a run, of processor time (begin, one charge, settled)")
    done = 0
    with new(folder) as ledger:
        for count in ROUNDS:
            start = time.process_time()
            for _ in range(count):
                one_run(ledger, 0.001)
            spent = time.process_time() - start
            print(f"{done:>6,} to {done + count:>6,}      {1e3 * spent / count:6.2f}")
            done += count


def totals(folder: Path, plans: int) -> None:
    with new(folder) as ledger:
        for number in range(plans):
            one_run(ledger, 0.001 + number * 1e-6)
        start = time.process_time()
        epsilon = ledger.total("records").epsilon
        spent = time.process_time() - start
        print(f"total over {plans:>5,} different plans: {spent:5.2f} s (ε = {epsilon:.4f})")


def main() -> None:
    calibration()
    where = sys.argv[1] if len(sys.argv) > 1 else None
    for job in (charges, *(partial(totals, plans=plans) for plans in PLANS)):
        with tempfile.TemporaryDirectory(dir=where) as folder:
            job(Path(folder))


if __name__ == "__main__":
    main()
