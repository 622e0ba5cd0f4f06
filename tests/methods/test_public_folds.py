"""Folds of public rows: what clipping costs, and what the noise is compared with."""

import numpy as np
import pytest
from tests.methods.convex_tools import task_of

from sidelight.data.rows import PublicRows
from sidelight.losses import get_loss
from sidelight.methods.precision import FACTORS, Rehearsed, best_clip, precision_weighting, rehearsed

SLOPE = 0.5  # of the logistic loss at 0


def rows(noise: float, n: int = 300, classes: int = 2) -> PublicRows:
    """Six features, of which one is heavy-tailed; labels of a linear score, with so much noise on it."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(n, 6)) / 4
    X[:, 0] *= np.exp(rng.normal(size=n))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1)
    scores = X @ rng.normal(size=(6, classes)) + noise * rng.normal(size=(n, classes))
    label = scores.argmax(axis=1).astype(float)
    return PublicRows(X, label if classes > 2 else 2 * label - 1)


def test_nearly_separable_classes_are_clipped_less_than_noisy_ones() -> None:
    sure, noisy = (rehearsed(rows(noise), get_loss("logistic"), SLOPE, 1.0) for noise in (0.0, 1.0))
    assert sure is not None and noisy is not None
    assert best_clip(sure, 0.5) > best_clip(noisy, 0.5) == SLOPE * FACTORS[0]
    assert sure.spread(0.5) < noisy.spread(0.5) <= 1  # few gradients are long where most rows are right


def test_strong_noise_makes_the_clip_norm_small() -> None:
    found = Rehearsed((0.35, 0.5, 0.7, 1.0), (0.40, 0.395, 0.39, 0.385), (0.3,) * 4)
    assert best_clip(found, 0.0) == 1.0
    assert best_clip(found, 100.0) == 0.35


def test_many_classes_have_folds_too_and_no_clip_norm_beyond_the_bound_of_the_loss() -> None:
    loss = get_loss("softmax", classes=3)
    found = rehearsed(rows(0.3, classes=3), loss, 0.816, 1.0)
    assert found is not None and len(found.clip_norms) == len(found.log_losses) == len(found.spreads) == 3
    assert max(found.clip_norms) <= loss.lipschitz * (1 + 1e-9)
    assert all(0 < value < np.log(3) for value in found.log_losses)


def test_few_rows_wide_rows_and_scores_that_are_no_log_odds_have_none() -> None:
    assert rehearsed(rows(0.1, n=19), get_loss("logistic"), SLOPE, 1.0) is None
    wide = PublicRows(np.ones((30, 1001)) / 40, np.resize([1.0, -1.0], 30))
    assert rehearsed(wide, get_loss("logistic"), SLOPE, 1.0) is None
    for loss in ("square", "hinge", "huber"):
        assert rehearsed(rows(0.1), get_loss(loss), SLOPE, 1.0) is None


def test_the_chosen_clip_norm_is_the_one_that_is_planned() -> None:
    task = task_of(n=4000, n_public=60, epsilon=1.0)
    planned = precision_weighting().plan(task).details["clip_norm"]
    assert planned in [pytest.approx(SLOPE * factor) for factor in FACTORS]


def test_few_rows_of_many_flat_features_are_no_reason_to_diverge() -> None:
    """Rows that are nearly orthogonal have a curvature below that of the ridge, which bounds the step."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 100))
    flat = PublicRows(X / np.linalg.norm(X, axis=1, keepdims=True), np.resize([1.0, -1.0], 30))
    found = rehearsed(flat, get_loss("logistic"), SLOPE, 1.0)
    assert found is not None and np.isfinite(found.log_losses).all() and np.isfinite(found.spreads).all()
