"""Logistic regression and huberized SVM over ε, and processing time over the number of rows.

As in the paper: categories one-hot, numbers to [0, 1], unit rows, a constant column, λ = 0.001, h = 0.5,
δ = 1e-8 (1e-12 for KDD Cup 99), batches of 4,000 for RSGD-AR and √n for SGD-MA. Every method is run under
replace-one. Departures: random 80/20 splits in place of 20 times 5 folds; the 10 % file of KDD Cup 99, of
which 100,000 rows for Figures 1 and 2; ranges are those of all rows, uncharged, as in the paper.
"""

from __future__ import annotations

import time
from functools import cache, lru_cache
from typing import Any

import numpy as np

from experiments import datasets, protocol
from sidelight.data.rows import PrivateRows, PublicRows, contents
from sidelight.errors import InputError, SidelightError
from sidelight.losses import get_loss
from sidelight.methods.baselines import majority
from sidelight.methods.declare import get_method
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.rsgd_ar import nsgd, rsgd_ar

FIELDS = ("figure", "dataset", "loss", "method", "epsilon", "rows", "repeat")
RESULTS = ("accuracy", "objective", "seconds", "cpu_seconds")
LAMBDA = 0.001
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
SIZES = (50_000, 100_000, 150_000, 200_000, 250_000)
METHODS = ("RSGD-AR", "ObjPert", "OutPert-GD", "NSGD", "SGD-MA", "NonPrivate", "Majority", "DP-AGD")
TABLES = {"Adult": "adult-a", "IPUMS-BR": "ipums-br", "KDDCup99": "kddcup99"}
KDD_ROWS = 100_000
EPOCHS = {"logistic": (20, 50, 100), "huber": (50, 100, 100)}  # for ε up to 0.1, up to 0.4, and above


def make(name: str, n: int, loss: str, epsilon: float) -> Any:
    """A method as the paper runs it. The plan of RSGD-AR and NSGD is ours: the paper does not give one."""
    if name in ("RSGD-AR", "NSGD"):
        size, epochs = min(4000, n), EPOCHS[loss][0 if epsilon <= 0.1 else 1 if epsilon <= 0.4 else 2]
        step = 1 / (get_loss(loss).smoothness or 1.0)
        if name == "NSGD":
            return nsgd(batch_size=size, epochs=epochs, step_size=step)
        return rsgd_ar(batch_size=size, epochs=epochs, step_size=step)
    if name == "SGD-MA":
        return dp_sgd(expected_batch_size=round(n**0.5))
    if name == "Majority":
        return majority(labels="private")
    names = {"ObjPert": "objective_perturbation", "OutPert-GD": "output_perturbation"}
    names |= {"DP-AGD": "dp_agd", "NonPrivate": "non_private"}
    return get_method(names[name])


@cache
def table(name: str) -> tuple[Any, Any]:
    """Features in [0, 1] (float32) and labels ±1, before rows are normalized."""
    if name == "synthetic":
        rng = np.random.default_rng(0)
        X = rng.random((3000, 8)).astype(np.float32)
        z = X @ rng.standard_normal(8)
        return X, np.where(z > np.median(z), 1.0, -1.0)
    if name == "KDDCup99":
        return _kdd()
    X, y = _adult() if name == "Adult" else _ipums()
    low, high = X.min(axis=0), X.max(axis=0)
    return ((X - low) / np.where(high > low, high - low, 1)).astype(np.float32), y


def _adult() -> tuple[Any, Any]:
    """a9a's training and test part, one above the other: the 48,842 rows of the paper."""
    data = datasets.load("adult-a")
    if data.X_test is None or data.y_test is None:
        raise InputError("a9a.npz has no test part (X_test, y_test)")
    return np.vstack([data.X, data.X_test]), np.concatenate([data.y, data.y_test])


def _ipums() -> tuple[Any, Any]:
    data = datasets.load("ipums-br")
    return data.X, data.y


def _kdd() -> tuple[Any, Any]:
    """`normal` against every attack; three attributes one-hot."""
    frame = datasets.load_table("kddcup99")
    y = np.where(frame["label"].astype(str) == "normal", 1.0, -1.0)
    parts = []
    for name in frame.columns.drop("label"):
        values = frame[name]
        if name in ("protocol_type", "service", "flag"):
            codes, kinds = values.astype(str).factorize(sort=True)
            parts.append(np.eye(len(kinds), dtype=np.float32)[codes])
        else:
            numbers = values.to_numpy(dtype=np.float32)
            width = float(np.ptp(numbers)) or 1.0
            parts.append(((numbers - numbers.min()) / width)[:, None])
    return np.hstack(parts), y


@lru_cache(maxsize=1)
def split(name: str, repeat: int, rows: int) -> protocol.Split:
    """`rows` training rows (0: 80 % of the table), the rest or at most as many to test."""
    X, y = table(name)
    order = np.random.default_rng(repeat).permutation(len(y))
    if rows == 0:
        order = order[: KDD_ROWS if name == "KDDCup99" else len(y)]
        rows = int(0.8 * len(order))
    train, test = order[:rows], order[rows : 2 * rows]
    return protocol.Split(
        PrivateRows(_unit(X[train]), y[train], max_norm=1.0), PublicRows.empty(X.shape[1] + 1),
        _unit(X[test]), y[test], regression=False,
    )  # fmt: skip


def _unit(X: Any) -> Any:
    """Unit rows, with a constant column that counts in the norm: the bound stays 1."""
    X = np.hstack([X, np.ones((len(X), 1), dtype=X.dtype)])
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def jobs(*, repeats: int, names: list[str], quick: bool = False) -> list[dict[str, Any]]:
    losses = ("logistic", "huber")
    curves = [
        _job("1" if loss == "logistic" else "2", name, loss, method, epsilon, 0, repeat)
        for name in names
        for loss in losses
        for method in METHODS
        for epsilon in ((0.5,) if quick else EPSILONS)
        for repeat in range(1 if method == "DP-AGD" else repeats)
        if not (method in ("NonPrivate",) and epsilon != EPSILONS[-1] and not quick)
        and not (quick and method == "DP-AGD")
    ]
    times = [
        _job("3", "KDDCup99", "logistic", method, 0.5, rows, 0)
        for rows in SIZES
        for method in METHODS
        if "KDDCup99" in names
    ]
    made = curves + times
    made.sort(
        key=lambda job: (job["method"] == "DP-AGD", job["dataset"] == "KDDCup99", job["rows"], job["repeat"])
    )
    return made


def _job(*values: Any) -> dict[str, Any]:
    return dict(zip(FIELDS, values, strict=True))


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Accuracy on the test part, the objective on the training part, and the time."""
    data = split(job["dataset"], job["repeat"], job["rows"])
    method = make(job["method"], data.private.n, job["loss"], job["epsilon"])
    delta = 1e-12 if job["dataset"] == "KDDCup99" else 1e-8
    start = time.process_time()
    try:
        fitted, seconds = protocol.fit(
            method, data, loss=job["loss"], epsilon=job["epsilon"], delta=delta, regularization=LAMBDA,
            seed=job["repeat"],
        )  # fmt: skip
    except SidelightError as error:
        return {"accuracy": type(error).__name__, "objective": "", "seconds": "", "cpu_seconds": ""}
    cpu, w = time.process_time() - start, fitted.coef[0]
    rows = contents(data.private)
    objective = float(get_loss(job["loss"]).value(rows.X @ w, rows.y).mean() + LAMBDA / 2 * w @ w)
    numbers = {"accuracy": data.score(fitted.coef), "objective": objective}
    return {name: f"{value:.6f}" for name, value in numbers.items()} | {
        "seconds": f"{seconds:.3f}", "cpu_seconds": f"{cpu:.3f}"
    }  # fmt: skip
