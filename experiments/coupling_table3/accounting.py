"""python -m experiments.coupling_table3.accounting: Table 6 and Figure 5 of the Coupling paper.

Both are accounting alone. Table 6: σ is what the paper's B, number of epochs and (ε, 1e-5) ask for, by PLD
for Poisson batches. With that σ, ε at δ = n_priv^-1.1 is stated twice: by PLD, and by its own accountant, the
central limit theorem of Gaussian differential privacy (its equation 2). Figure 5: σ for (ε, n_priv^-1.1).
Writes accounting.csv here; a few seconds of one core.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from scipy.optimize import brentq
from scipy.stats import norm

from experiments.figures import markdown
from experiments.sweep import Job, read, sweep
from sidelight.privacy import accountants, events

__all__ = ["FIGURE5", "TABLE6", "figure5", "lines", "table6"]

HERE = Path(__file__).parent
BATCH, DELTA = 1_000, 1e-5
FIELDS, RESULTS = ("delta", "data", "records", "epochs", "epsilon"), ("sigma", "by_pld", "by_clt")


class Setting(NamedTuple):
    """A line of Table 6: ε is that at δ = 1e-5, `paper` that at δ = n^-1.1."""

    data: str
    records: int
    epochs: int
    epsilon: float
    paper: float


TABLE6 = (
    Setting("CIFAR-10", 47_500, 5, 2.0, 2.00001),
    Setting("CIFAR-10", 40_000, 5, 2.0, 2.00001),
    Setting("CIFAR-10", 40_000, 5, 5.0, 5.00003),
    Setting("SST-2", 53_879, 3, 2.0, 2.00001),
    Setting("QNLI", 83_794, 6, 2.0, 2.00001),
)
FIGURE5 = tuple(
    Setting("CIFAR-10", records, 5, epsilon, math.nan)
    for epsilon in (0.5, 1.0, 2.0, 5.0)
    for records in (10_000, 20_000, 40_000, 80_000)
)


def main() -> None:
    jobs = [
        {"delta": delta, **line._asdict()}
        for delta, lines in (("1e-5", TABLE6), ("n^-1.1", FIGURE5))
        for line in lines
    ]
    sweep(jobs, run, HERE / "accounting.csv", fields=FIELDS, results=RESULTS, workers=1, title="accounting")
    print(table6(), figure5(), sep="\n\n")


def run(job: Job) -> dict[str, Any]:
    """σ of one line at its δ, and ε at n^-1.1 with that σ."""
    records, steps = job["records"], job["epochs"] * job["records"] // BATCH
    rate, smaller = BATCH / records, records**-1.1
    delta = DELTA if job["delta"] == "1e-5" else smaller
    sigma = accountants.noise_multiplier(
        epsilon=job["epsilon"],
        delta=delta,
        sampling_probability=rate,
        steps=steps,
        relation="add-or-remove-one",
    )
    run_of = events.repeat(events.poisson(rate, sigma), steps)
    by_pld = accountants.epsilon(run_of, delta=smaller, relation="add-or-remove-one")
    mu = least_mu(job["epsilon"], delta)  # by the limit theorem μ is what (ε, 1e-5) says, whatever σ
    return {"sigma": f"{sigma:.4f}", "by_pld": f"{by_pld:.4f}", "by_clt": f"{epsilon_of(mu, smaller):.4f}"}


def delta_of(mu: float, epsilon: float) -> float:
    """δ of μ-GDP at ε (Dong, Roth & Su 2022, Corollary 1)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def least_mu(epsilon: float, delta: float) -> float:
    return float(brentq(lambda mu: delta_of(mu, epsilon) - delta, 1e-3, 10.0))


def epsilon_of(mu: float, delta: float) -> float:
    return float(brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, 50.0))


def lines(delta: str) -> list[dict[str, str]]:
    return [row for row in read(HERE / "accounting.csv") if row["delta"] == delta]


def table6() -> str:
    rows = []
    for line, found in zip(TABLE6, lines("1e-5"), strict=True):
        about = [line.data, f"{line.records:,}", f"{line.epsilon:g}", f"{line.records**-1.1:.3g}"]
        rows.append([*about, f"{line.paper:.5f}", found["by_pld"], found["by_clt"]])
    head = [
        "data",
        "n_priv",
        "ε at 1e-5",
        "δ = n_priv^-1.1",
        "the paper's ε",
        "by PLD",
        "by the paper's accountant",
    ]
    return markdown(head, rows)


def figure5() -> str:
    """σ of every ε (lines) and number of private records (columns)."""
    found = {(row["epsilon"], row["records"]): row["sigma"] for row in lines("n^-1.1")}
    sizes = list(dict.fromkeys(str(line.records) for line in FIGURE5))
    epsilons = list(dict.fromkeys(str(line.epsilon) for line in FIGURE5))
    rows = [[f"{float(e):g}", *(f"{float(found[e, n]):.3f}" for n in sizes)] for e in epsilons]
    return markdown(["ε", *(f"n_priv = {int(n):,}" for n in sizes)], rows)


if __name__ == "__main__":
    main()
