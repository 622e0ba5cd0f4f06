"""The toy problem of the paper, PPSGD's five parameters, and the comparison over ε.

The paper says: Gaussian samples in 100 dimensions (50 in a caption), 9,950 private and 50 public, unit rows.
It does not say how labels arise; here y = sign(⟨u, x⟩ + N(0, ½²)) with ‖u‖ = 1, and 5,000 more rows to test.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from experiments import protocol
from experiments.ppsgd_table2.columns import COLUMNS, Run
from sidelight.data.rows import PrivateRows, PublicRows
from sidelight.errors import SidelightError
from sidelight.methods.ppsgd import ppsgd

FIELDS = ("figure", "method", "parameter", "value", "loss", "epsilon", "repeat")
RESULTS = ("accuracy", "seconds")

# What Figure 2 varies, in the paper's symbols, and the argument of ppsgd() that each is.
PARAMETERS = {
    "phi": ("ratio", (0.1, 1.0, 10.0, 100.0, 1000.0)),
    "varphi": ("clip_threshold", (1.0, 5.0, 20.0, 100.0, 1000.0)),
    "lambda": ("reuse", (0.001, 0.01, 0.1, 1.0, 10.0)),
    "alpha": ("growth", (0.01, 0.1, 0.3, 1.0)),
    "beta": ("shrink", (0.01, 0.1, 0.3, 0.6)),
}
EPSILONS_2 = (0.1, 0.5, 1.0)
EPSILONS_3 = (0.05, 0.1, 0.2, 0.5, 1.0)
COMPARED = {
    "PPSGD (tCDP)": "ppsgd_paper",
    "ppsgd (filter)": "ppsgd",
    "auto": "auto",
    "SgdAdv": "sgd_adv_1",
    "Agd": "dp_agd",
    "OutPert": "output_perturbation_0.01",
    "ObjPert": "objective_perturbation",
    "PNSGD": "pnsgd",
    "AgdAvg": "agd_avg",
    "OnlyPub": "only_public",
    "NonPriv": "non_private",
}
SLOW = ("Agd", "AgdAvg")


@lru_cache(maxsize=4)
def toy(repeat: int, private: int = 9950, public: int = 50, features: int = 100) -> protocol.Split:
    rng = np.random.default_rng(1000 + repeat)
    test = 5000
    X = rng.standard_normal((private + public + test, features))
    u = rng.standard_normal(features)
    y = np.where(X @ (u / np.linalg.norm(u)) + 0.5 * rng.standard_normal(len(X)) >= 0, 1.0, -1.0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    a, b = private, private + public
    return protocol.Split(
        PrivateRows(X[:a], y[:a], max_norm=1.0), PublicRows(X[a:b], y[a:b]), X[b:], y[b:], regression=False
    )


def jobs(*, repeats: int, quick: bool = False) -> list[dict[str, Any]]:
    losses = ("hinge",) if quick else ("hinge", "square")
    second = [
        _job("2", "ppsgd", name, value, loss, epsilon, repeat)
        for name, (_, values) in PARAMETERS.items()
        for value in (values[2:3] if quick else values)
        for loss in losses
        for epsilon in ((0.5,) if quick else EPSILONS_2)
        for repeat in range(repeats)
    ]
    third = [
        _job("3", name, "", 0.0, loss, epsilon, repeat)
        for name in COMPARED
        for loss in losses
        for epsilon in ((0.5,) if quick else EPSILONS_3)
        for repeat in range(min(repeats, 2) if name in SLOW else repeats)
        if not (quick and name in (*SLOW, "NonPriv"))
    ]
    third.sort(key=lambda job: (job["method"] in SLOW, job["repeat"]))
    return second + third


def _job(
    figure: str, method: str, parameter: str, value: float, loss: str, epsilon: float, repeat: int
) -> Any:
    return dict(zip(FIELDS, (figure, method, parameter, value, loss, epsilon, repeat), strict=True))


def run(job: dict[str, Any]) -> dict[str, Any]:
    split, loss = toy(job["repeat"]), job["loss"]
    if job["figure"] == "2":
        method = _paper(loss, split.private.n, {PARAMETERS[job["parameter"]][0]: job["value"]})
    elif job["method"] == "PPSGD (tCDP)":
        method = _paper(loss, split.private.n, {})
    else:
        column = COLUMNS[COMPARED[job["method"]]]
        method, loss = column.make(Run(False, split.private.n)), column.loss(loss)
    try:
        fitted, seconds = protocol.fit(method, split, loss=loss, epsilon=job["epsilon"], seed=job["repeat"])
    except SidelightError as error:
        return {"accuracy": type(error).__name__, "seconds": ""}
    return {"accuracy": f"{split.score(fitted.coef):.6f}", "seconds": f"{seconds:.3f}"}


def _paper(loss: str, private: int, settings: dict[str, Any]) -> Any:
    """The paper's PPSGD. It gives neither η nor s: here η = 1 (hinge) or our rule (square), s = 3 %."""
    method = ppsgd(accounting="tcdp", expected_batch_size=round(0.03 * private), **settings)
    return method.with_parts(step_size=1.0 if loss == "hinge" else None)
