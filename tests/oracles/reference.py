"""The same sums, the slow way: one gradient a record, materialised."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from sidelight.erm.losses import Loss
from sidelight.methods.parts import Clip, Metric


def contributions(
    loss: Loss, X: Any, y: np.ndarray, params: np.ndarray, *, origin: Any = None, metric: Metric = None
) -> np.ndarray:
    """M(g_i − o), one record a row, in float64."""
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
