"""Rehearsal: private training simulated on data synthesised from public records, at the true n and ε.

Half of the public records make the synthetic private data (a bootstrap with noise of a kernel's width), a
quarter stay public, a quarter are the test set. It spends nothing, and is as reliable as the public records.
Measured with 300 and 1000 public records (docs/reproductions/rehearsal.md), it helps where the noise is
strong and costs a little elsewhere; `auto` follows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sidelight.arrays import Array, Floats, dense
from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.methods.task import Method, Task
from sidelight.privacy import conversions
from sidelight.privacy.events import Event
from sidelight.privacy.noise import Noise

MOST_ROWS = 5_000  # a larger private set is rehearsed at this size, with less noise: n·μ is kept
_NO_NOISE = 500.0  # an ε at which noise no longer matters


class _NoAccount:
    """Synthetic records are public: nothing is charged."""

    def charge(self, event: Event) -> None: ...


def rehearse(
    task: Task, candidates: Sequence[Method], *, repeats: int = 2, seed: int = 0
) -> tuple[int, list[float]]:
    """The index of the best candidate, and the mean score of each (accuracy, or minus the squared error)."""
    X = dense(task.public.X)
    scores = np.zeros((repeats, len(candidates)))
    for r in range(repeats):
        rng = np.random.default_rng(seed + r)  # public data only: no private record is sampled here
        order = rng.permutation(len(X))
        train, guide, test = np.split(order, [len(X) // 2, 3 * len(X) // 4])
        synthetic = _synthetic(task, X, train, guide, rng)
        for c, method in enumerate(candidates):
            plan = method.plan(synthetic)
            coef = method.run(synthetic, plan, account=_NoAccount(), noise=Noise(seed + r)).coef
            scores[r, c] = _score(task, X[test] @ coef.T, task.public.y[test])
    mean = [float(s) for s in scores.mean(axis=0)]
    return int(np.argmax(mean)), mean


def _synthetic(task: Task, X: Floats, train: Array, guide: Array, rng: np.random.Generator) -> Task:
    """The task on synthetic private records."""
    n = min(task.n, MOST_ROWS)
    chosen = rng.choice(train, size=n)
    width = X[train].std(axis=0) * len(train) ** (-1 / (X.shape[1] + 4))
    rows = X[chosen] + rng.normal(size=(n, X.shape[1])) * width * 0.5
    return replace(
        task,
        rows=PrivateRows(rows, task.public.y[chosen], max_norm=task.max_norm),
        public=PublicRows(X[guide], task.public.y[guide]),
        epsilon=scaled_epsilon(task.epsilon, task.delta, rows=task.n, rehearsed=n),
    )


def scaled_epsilon(epsilon: float, delta: float, *, rows: int, rehearsed: int) -> float:
    """The ε at which a mean of the rehearsed rows has as much noise as one of all rows at the true ε."""
    if rehearsed == rows:
        return epsilon
    mu = conversions.gdp_mu(epsilon, delta) * rows / rehearsed
    return max(epsilon, min(conversions.gaussian_epsilon(delta, mu), _NO_NOISE))


def _score(task: Task, z: Floats, y: Array) -> float:
    if task.target_bound is not None:
        return -float(((z[:, 0] - y) ** 2).mean())
    if task.loss.outputs > 1:
        return float((z.argmax(axis=1) == y).mean())
    return float(((z[:, 0] >= 0) == (y > 0)).mean())
