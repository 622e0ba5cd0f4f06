"""`auto` on several classes: as good as public whitening, with probabilities of the right scale."""

from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from sidelight import PrivateClassifier


def blobs(classes: int, n: int = 6_000) -> tuple[np.ndarray, np.ndarray]:
    """Classes along a line of correlated features, and beside it."""
    rng = np.random.default_rng(5)
    centers = rng.normal(size=(classes, 8))
    y = rng.integers(0, classes, n)
    X = centers[y] + rng.normal(size=(n, 8)) @ np.linalg.cholesky(np.full((8, 8), 0.7) + 0.3 * np.eye(8))
    return X, y


def log_loss(scale: float, z: np.ndarray, y: np.ndarray) -> float:
    return -float(np.log(softmax(scale * z, axis=1)[np.arange(len(y)), y] + 1e-12).mean())


@pytest.mark.parametrize("classes", [5, 40, 100])
def test_the_default_is_as_good_as_whitening_and_calibrated(classes: int) -> None:
    X, y = blobs(classes)
    public, new = slice(0, 200), slice(5_000, None)

    def fitted(method: str) -> Any:
        model = PrivateClassifier(method, epsilon=1.0, classes=range(classes), random_state=0)
        return model.fit(X[200:5_000], y[200:5_000], X[public], y[public])

    model, other = fitted("auto"), fitted("public_whitening")
    assert np.mean(model.predict(X[new]) == y[new]) > np.mean(other.predict(X[new]) == y[new]) - 0.01
    z = model.decision_function(X[new])
    best = min(log_loss(a, z, y[new]) for a in np.exp(np.linspace(-3, 4, 71)))
    assert log_loss(model.probability_scale_, z, y[new]) < 1.25 * best
