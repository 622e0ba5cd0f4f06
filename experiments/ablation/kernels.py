"""Kernel features whose second moments come from a Gaussian copula of the public rows: tried, not built.

    u = Φ⁻¹(rank among public values)                 each number as a normal score
    R = (1 − d/m) corr(u) + (d/m) I                   d numbers, m public rows
    z_j = √(2/D) cos(w_j·u/ℓ + b_j) − mean of draws   D = 300 random Fourier features (Rahimi & Recht 2007)

ℓ is the median distance of public rows. 2,000 draws u ~ N(0, R) are public rows without labels, so that
whitening knows more directions than public rows have. For the default, the first 20 principal components of
the features of such draws are columns beside the table's own.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from scipy.stats import norm

from experiments.peers.splits import TARGET, Split
from experiments.public_pays import contenders
from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.tables import fit_tables

Floats = NDArray[np.float64]

TABLES = ("magic04", "cadata")  # numbers alone
PLAIN, COPULA = "kernel features, public rows", "kernel features, copula"
BESIDE = "all, and kernel components as columns"
KINDS = (PLAIN, COPULA, BESIDE)
FEATURES, DRAWS, COMPONENTS = 300, 2_000, 20


class Kernel:
    """Random Fourier features of normal scores, and a copula; of the public rows and a seed alone."""

    def __init__(self, public: Floats, seed: int) -> None:
        rng = np.random.default_rng(seed)
        m, d = public.shape
        self.known = np.sort(public, axis=0)
        scores = self.scores(public)
        share = min(1.0, d / m)
        moments = (1 - share) * np.nan_to_num(np.corrcoef(scores, rowvar=False)) + share * np.eye(d)
        self.W = rng.normal(size=(d, FEATURES)) / float(np.median(pdist(scores)))
        self.b = rng.uniform(0, 2 * np.pi, FEATURES)
        drawn = self._waves(rng.multivariate_normal(np.zeros(d), moments, DRAWS))
        self.mean = drawn.mean(axis=0)
        self.drawn = drawn - self.mean
        self.components = np.linalg.svd(self.drawn, full_matrices=False)[2][:COMPONENTS].T

    def scores(self, X: Floats) -> Floats:
        """Ranks among public values as normal scores; equal values share the middle of their ranks."""
        m = len(self.known)
        ranks = [
            (np.searchsorted(column, x) + np.searchsorted(column, x, side="right")) / 2
            for column, x in zip(self.known.T, X.T, strict=True)
        ]
        found: Floats = norm.ppf((np.stack(ranks, axis=1) + 0.5) / (m + 1))
        return found

    def _waves(self, scores: Floats) -> Floats:
        return np.asarray(np.sqrt(2 / FEATURES) * np.cos(scores @ self.W + self.b))

    def features(self, X: Floats) -> Floats:
        centered: Floats = self._waves(self.scores(X)) - self.mean
        return centered

    def beside(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame with the components as more columns."""
        made = self.features(_numbers(frame)) @ self.components
        return frame.assign(**{f"kernel {k}": made[:, k] for k in range(made.shape[1])})


def _numbers(frame: pd.DataFrame) -> Floats:
    found: Floats = frame.drop(columns=TARGET).to_numpy(dtype=np.float64)
    return found


def score(kind: str, data: Split, *, epsilon: float, seed: int) -> float:
    """AUC or R² on the held-out rows."""
    kernel = Kernel(_numbers(data.public), seed)
    if kind == BESIDE:
        public, private, test = map(kernel.beside, (data.public, data.private, data.test))
        data = Split(public, private, test, data.regression)
        model = fit_tables(
            data.private, data.public, target=TARGET, task="regression" if data.regression else None,
            epsilon=epsilon, delta=contenders.DELTA, relation="replace-one", random_state=seed,
        )  # fmt: skip
        return contenders.scored(model, data)["r2" if data.regression else "auc"]
    X_public, X, X_test = (kernel.features(_numbers(part)) for part in (data.public, data.private, data.test))
    y_public = data.public[TARGET].to_numpy(dtype=float if data.regression else object)
    if kind == COPULA:
        X_public = np.vstack([X_public, kernel.drawn])
        y_public = np.concatenate([y_public, np.full(DRAWS, np.nan, dtype=y_public.dtype)])
    estimator = (PrivateRegressor if data.regression else PrivateClassifier)(
        epsilon=epsilon, delta=contenders.DELTA, relation="replace-one", random_state=seed,
        **contenders.LINE_ALONE,
    )  # fmt: skip
    estimator.fit(X, data.private[TARGET].to_numpy(), X_public=X_public, y_public=y_public)
    if data.regression:
        return contenders._numbers(data, estimator.predict(X_test))["r2"]
    labels = [str(label) for label in estimator.classes_]
    return contenders._classes(data, estimator.predict_proba(X_test), labels)["auc"]
