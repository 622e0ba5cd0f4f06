"""What the tests of convex methods share: reference numbers, small tasks, an account that remembers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from tests.private_values import value_of

from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.errors import BudgetExceeded
from sidelight.losses import Loss, Softmax, get_loss
from sidelight.methods.task import Fitted, Method, Task
from sidelight.privacy.noise import Noise

AR, RO = "add-or-remove-one", "replace-one"


class Account:
    """Remembers what was charged; refuses everything if told to."""

    def __init__(self, refuse: bool = False) -> None:
        self.events: list[Any] = []
        self.refuse = refuse

    def charge(self, event: Any) -> None:
        if self.refuse:
            raise BudgetExceeded("refused")
        self.events.append(event)


def fitter(make: Callable[..., Method]) -> Callable[..., Fitted]:
    """fit(task, noise, **settings): a run of the method with these settings, which nothing pays for."""

    def fit(task: Task, noise: Noise | None = None, **settings: Any) -> Fitted:
        method = make(**settings)
        return method.run(task, method.plan(task), account=Account(), noise=noise or Noise(0))

    return fit


def rows_of(n: int, p: int = 4, seed: int = 0, *, kind: str = "binary") -> tuple[np.ndarray, np.ndarray]:
    """Nearly separable records of norm at most 1, with an intercept's column last."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    X[:, -1] = 0.5
    truth = np.linspace(2, 1, p)
    X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
    z = X @ truth
    if kind == "regression":
        return X, np.clip(0.5 * z + 0.05 * rng.standard_normal(n), -1, 1)
    if kind == "multiclass":
        return X, np.argmax(X[:, :3], axis=1).astype(float)
    return X, np.where(z + 0.1 * rng.standard_normal(n) > 0, 1.0, -1.0)


def task_of(
    loss: str | Loss = "logistic",
    *,
    n: int = 200,
    p: int = 4,
    n_public: int = 20,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    relation: Any = RO,
    seed: int = 0,
    regularization: float = 0.0,
    X: Any = None,
    y: Any = None,
    max_norm: float = 1.0,
) -> Task:
    """A small task; X and y override the private records."""
    made = (Softmax(3) if loss == "softmax" else get_loss(loss)) if isinstance(loss, str) else loss
    kind = made.task
    private = rows_of(n, p, seed, kind=kind) if X is None else (X, y)
    public = rows_of(n_public, p, 1000, kind=kind)
    return Task(
        rows=PrivateRows(*private, max_norm=max_norm, admits=made.admits),
        public=PublicRows(*public),
        loss=made,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        regularization=regularization,
        target_bound=1.0 if kind == "regression" else None,
    )


def computed(method: Any, task: Task, monkeypatch: Any, seed: int = 0) -> tuple[np.ndarray, float]:
    """What the method hands to release, before any noise, and the sensitivity that it declares."""
    seen = []
    compute = PrivateRows.compute

    def noted(self: PrivateRows, fn: Any, **options: Any) -> Any:
        seen.append(compute(self, fn, **options))
        return seen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(PrivateRows, "compute", noted)
        method.run(task, method.plan(task), account=Account(), noise=Noise(seed))
    return value_of(seen[-1]), seen[-1].sensitivity


def saturated(n: int, flipped: int | None = None) -> Task:
    """Every slope at its bound, one record pulling the other way: quadratics, which attain sensitivities."""
    y = np.full(n, 1e6)
    if flipped is not None:
        y[flipped] = -1e6
    return task_of("square", X=np.ones((n, 1)), y=y, p=1, n_public=0)


def assert_public_records_join(fit: Callable[..., Fitted]) -> None:
    """Public records change a regression, dense or sparse alike; none at all are the same as unused ones."""
    task = task_of("square", n_public=500)
    pooled, apart = fit(task).coef, fit(task, pool_public=False).coef
    sparse = replace(task, public=PublicRows(sp.csr_array(task.public.X), task.public.y))
    np.testing.assert_allclose(fit(sparse).coef, pooled)
    assert np.linalg.norm(pooled - apart) > 0.01
    none = replace(task, public=PublicRows.empty(task.p))
    np.testing.assert_array_equal(fit(none).coef, apart)


def accuracy(coef: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
    if len(coef) > 1:
        return float((np.argmax(X @ coef.T, axis=1) == y).mean())
    return float((np.sign(X @ coef[0]) == y).mean())
