"""Do prediction intervals hold what they say? `python -m experiments.public_pays.intervals`.

The regressions that the default was developed on, at ε = 1, with the splits of `tables`: the share of
held-out rows within the interval, the mean of three splits, and whose residuals the width comes from.
"""

from __future__ import annotations

import warnings

import numpy as np

from experiments.public_pays.contenders import DELTA
from experiments.public_pays.tables import DEVELOPED, REGRESSIONS, TARGET, split
from sidelight.tables import fit_tables

COVERAGES, REPEATS, EPSILON = (0.5, 0.8, 0.9, 0.95, 0.99), (0, 1, 2), 1.0


def shares(name: str, repeat: int) -> tuple[list[float], str]:
    """The share of held-out rows within each interval, and the source of its width."""
    data = split(name, repeat)
    model = fit_tables(
        data.private, data.public, target=TARGET, task="regression", epsilon=EPSILON, delta=DELTA,
        relation="replace-one", random_state=repeat,
    )  # fmt: skip
    y, found = data.test[TARGET].to_numpy(float), []
    for coverage in COVERAGES:
        low, high = model.predict_interval(data.test, coverage).T
        found.append(float(np.mean((low <= y) & (y <= high))))
    return found, str(getattr(model.estimator, "intervals_").source)  # noqa: B009


def main() -> None:
    print(f"| | residuals | {' | '.join(f'{100 * one:g} %' for one in COVERAGES)} |")
    print(f"|{' --- |' * (2 + len(COVERAGES))}")
    for name in (one for one in DEVELOPED if one in REGRESSIONS):
        found, sources = zip(*(shares(name, repeat) for repeat in REPEATS), strict=True)
        cells = [f"{100 * one:.1f} %" for one in np.mean(found, axis=0)]
        print(f"| {name} | {', '.join(sorted(set(sources)))} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
