"""What clipping costs on a table, as far as folds of its public rows can tell. Nothing private is read.

Each of five folds is predicted by a model that was trained on the other four with clipped gradients and no
noise, once for every clip norm on offer. Two things are read off the predictions:

- the log loss, with the scale of the scores that fits best: what clipping there does to the model;
- f, the mean squared length of a clipped gradient in units of the clip norm: what the noise is to be
  compared with.

C is that of the least  log(log loss) + ⅙ · ν/(5 + ν) · (C/C_max)² , with ν the variance of the noise over
that of a mean of n gradients. The second term is what noise was found to cost: between ε = 0.1 and 3 on
Adult, IPUMS-BR and magic04, where clipping does no harm and a larger C is noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import logsumexp

from sidelight.arrays import Array, Floats, dense
from sidelight.clipping import Features
from sidelight.data.rows import PublicRows
from sidelight.losses import Loss
from sidelight.methods.public_whitening import metric_of

__all__ = ["FACTORS", "Rehearsed", "best_clip", "rehearsed"]

FACTORS = (0.7, 1.0, 1.4, 2.0)  # of the length of a gradient at w = 0
_FOLDS, _FEWEST, _MOST = 5, 20, 500  # folds, and public rows in them
_WIDEST = 1_000  # features
_STEPS, _FIRST_STEPS, _MOMENTUM, _CAP = 64, 192, 0.8, 8.0
_SCALES = np.exp(np.linspace(-3.0, 4.0, 57))
_NOISE_COST, _NOISE_SCALE = 1 / 6, 5.0


@dataclass(frozen=True)
class Rehearsed:
    """For each clip norm: the log loss in folds, and f."""

    clip_norms: tuple[float, ...]
    log_losses: tuple[float, ...]
    spreads: tuple[float, ...]

    def spread(self, clip_norm: float) -> float:
        """f at the clip norm that is nearest."""
        return self.spreads[int(np.argmin([abs(one - clip_norm) for one in self.clip_norms]))]


@lru_cache(maxsize=2)
def rehearsed(rows: PublicRows, loss: Loss, slope: float, ridge: float) -> Rehearsed | None:
    """None where rows are too few to be cut into folds, features too many, or scores no log-odds.

    Args:
        slope: the length of a gradient at w = 0 of a row of length 1.
        ridge: of the whitening.
    """
    if rows.n < _FEWEST or rows.p > _WIDEST or loss.name not in ("logistic", "softmax"):
        return None
    metric = metric_of(rows, ridge, unit=False, span=False)
    if not isinstance(metric, Features):
        return None
    some = np.unique(np.linspace(0, rows.n - 1, min(rows.n, _MOST)).astype(np.intp))
    X = dense(rows.X[some]) @ np.asarray(metric.matrix).T
    y = rows.y[some].astype(np.intp) if loss.task == "multiclass" else rows.y[some]
    top = float(loss.lipschitz or math.inf)
    clips = tuple(slope * factor for factor in FACTORS if slope * factor <= top * (1 + 1e-9))
    place, z = np.arange(len(y)) % _FOLDS, np.zeros((len(clips), len(y), loss.outputs))
    for fold in range(_FOLDS):
        held = place == fold
        for k, weights in enumerate(_trained(X[~held], y[~held], loss, clips)):
            z[k, held] = X[held] @ weights.T
    lengths = np.linalg.norm(X, axis=1)
    scales, losses = zip(*(_best_scale(part, y) for part in z), strict=True)
    new = lengths / max(float(lengths.mean()), 1e-300)  # other rows are longer: these made the metric
    spreads = [_spread(a * z[k], y, new, loss, clips[k]) for k, a in enumerate(scales)]
    return Rehearsed(clips, losses, tuple(spreads))


def best_clip(found: Rehearsed, noise: float) -> float:
    """C, for a variance of the noise that is `noise` times that of a mean of n gradients."""
    clips = np.array(found.clip_norms)
    cost = _NOISE_COST * noise / (_NOISE_SCALE + noise) * (clips / clips.max()) ** 2
    return float(clips[np.argmin(np.log(np.maximum(found.log_losses, 1e-6)) + cost)])


def _trained(X: Floats, y: Array, loss: Loss, clips: Sequence[float]) -> list[Floats]:
    """Weights (outputs, p) for every clip norm, rising: full-batch steps with heavy ball, as in training.

    The largest clip norm clips least and comes first, from zero; each other one goes on from the one before,
    as training goes on from the solution of the public rows.
    """
    lengths = np.linalg.norm(X, axis=1)
    top = max(float(np.linalg.eigvalsh(X @ X.T if len(X) < X.shape[1] else X.T @ X)[-1]) / len(X), 1e-12)
    step = (1 - _MOMENTUM) * _CAP / (top * (loss.smoothness or 1.0) * len(X) + 1)  # 1 is the ridge's
    w = np.zeros((X.shape[1], loss.outputs))
    out: list[Floats] = []
    for clip in reversed(clips):
        velocity = np.zeros_like(w)
        for _ in range(_STEPS if out else _FIRST_STEPS):
            slopes = _slopes(X @ w, y, loss)
            slopes *= _factors(slopes, lengths, clip)[:, None]
            velocity = _MOMENTUM * velocity + X.T @ slopes + w
            w = w - step * velocity
        out.append(w.T)
    return out[::-1]


def _slopes(z: Floats, y: Array, loss: Loss) -> Floats:
    slopes = loss.slope(z if loss.outputs > 1 else z[:, 0], y)
    return np.asarray(slopes, dtype=np.float64).reshape(len(z), loss.outputs)


def _factors(slopes: Floats, lengths: Floats, clip: float) -> Floats:
    norms = np.linalg.norm(slopes, axis=1) * lengths
    return np.asarray(clip / np.maximum(norms, clip))


def _spread(z: Floats, y: Array, lengths: Floats, loss: Loss, clip: float) -> float:
    norms = np.linalg.norm(_slopes(z, y, loss), axis=1) * lengths
    return float(np.square(np.minimum(norms / clip, 1.0)).mean())


def _best_scale(z: Floats, y: Array) -> tuple[float, float]:
    """The scale of the scores of held-out rows that fits these best, and their log loss with it."""
    if z.shape[1] == 1:
        losses = np.logaddexp(0, -np.multiply.outer(_SCALES, y * z[:, 0])).mean(axis=1)
    else:
        own = z[np.arange(len(z)), y]
        losses = np.array([(logsumexp(a * z, axis=1) - a * own).mean() for a in _SCALES])
    best = int(np.argmin(losses))
    return float(_SCALES[best]), float(losses[best])
