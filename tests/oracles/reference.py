"""Random problems, and their sums the slow way: one gradient per record, materialized."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from sidelight.clipping import Clip, Diagonal, Features, Metric, Projection
from sidelight.losses import Hinge, Huber, Logistic, Loss, Softmax, Square
from sidelight.methods.parts import Automatic, Flat

LOSSES: list[Loss] = [Hinge(), Huber(), Logistic(), Square(), Softmax(3)]
METRICS = ["none", "diagonal", "features", "projection"]
CLIPS = [Flat(0.7), Automatic(1.5, 0.1), Automatic(1.0, 0.0)]
P = 6


def make_metric(name: str, dimension: int, rng: np.random.Generator) -> Metric:
    match name:
        case "diagonal":
            return Diagonal(rng.uniform(0.1, 5, dimension))
        case "features":
            return Features(rng.standard_normal((4, P)))
        case "projection":
            return Projection(rng.standard_normal((dimension, 3)))
    return None


def make_data(loss: Loss, n: int, rng: np.random.Generator, p: int = P) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, p))
    X /= np.linalg.norm(X, axis=1, keepdims=True) * 1.01
    if loss.task == "multiclass":
        return X, rng.integers(0, loss.outputs, n).astype(float)
    return X, rng.standard_normal(n) if loss.task == "regression" else rng.choice([-1.0, 1.0], n)


def contributions(
    loss: Loss, X: Any, y: np.ndarray, params: np.ndarray, *, origin: Any = None, metric: Metric = None
) -> np.ndarray:
    """M(g_i − o), one record per row, in float64."""
    rows = np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
    weights = np.asarray(params, dtype=np.float64).reshape(loss.outputs, -1)
    z = rows @ weights.T if loss.outputs > 1 else rows @ weights[0]
    labels = y.astype(int) if loss.task == "multiclass" else y
    slopes = loss.slope(z, labels).reshape(len(rows), -1)
    gradients = (slopes[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    moved = gradients - (0 if origin is None else origin)
    return moved if metric is None else np.array([metric.apply(row) for row in moved])


def clipped_sum(vectors: np.ndarray, clip: Clip) -> np.ndarray:
    """Σ factor·vector."""
    return (clip.factors(np.linalg.norm(vectors, axis=1))[:, None] * vectors).sum(axis=0)
