"""Features and a private linear model: every method at its own defaults; `auto` is ours. Opacus beside it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from experiments.coupling_text.tuning import chosen_rate, opacus
from sidelight.estimators import PrivateClassifier

METHODS = {
    "FullPriv": "full_private",
    "OnlyPub": "only_public",
    "OnlyPriv": "only_private",
    "AdaMix": "adamix",
    "DPMD": "dpmd",
    "Coupling": "coupling",
    "DOPE": "dope_sgd",
    "Ours": "auto",
    "NonPriv": "non_private",
}
RATES = (3e-3, 1e-2, 3e-2)
BATCH, STEPS = 2_048, 200


@dataclass(frozen=True, eq=False)
class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Features of some texts, and their labels."""

    X: NDArray[np.float32]
    y: NDArray[np.int64]
    places: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        place = int(self.places[index])
        return torch.from_numpy(self.X[place]), torch.tensor(int(self.y[place]))

    def only(self, places: NDArray[np.intp]) -> Rows:
        return Rows(self.X, self.y, places)


def linear(
    column: str, private: Rows, public: Rows, test: Rows, *, epsilon: float, delta: float, seed: int
) -> tuple[float, float, str]:
    """Accuracy on the test records, what was spent, and what was chosen."""
    if column == "Opacus":
        return _opacus(private, public, test, epsilon=epsilon, delta=delta, seed=seed)
    model = PrivateClassifier(
        METHODS[column], epsilon=epsilon, delta=delta, bounds=(-1, 1), center="zero", random_state=seed
    )
    with warnings.catch_warnings(action="ignore"):  # of the seed
        X, y = (part[private.places] for part in (private.X, private.y))
        model.fit(X, y, X_public=public.X[public.places], y_public=public.y[public.places])
    right = model.predict(test.X[test.places]) == test.y[test.places]
    return float(right.mean()), model.privacy_.epsilon, str(model.privacy_.details.get("chosen") or "")


def _opacus(
    private: Rows, public: Rows, test: Rows, *, epsilon: float, delta: float, seed: int
) -> tuple[float, float, str]:
    """DP-SGD of Opacus (Adam) on the private records; its step size from public ones, like the others'."""
    torch.manual_seed(seed)
    model = nn.Linear(private.X.shape[1], 2)
    batch = min(BATCH, len(private) // 4)
    rate = chosen_rate(model, public, RATES, steps=STEPS)
    tuned, spent = opacus(
        model,
        private,
        epsilon=epsilon,
        delta=delta,
        rate=rate,
        batch=batch,
        steps=STEPS,
        seed=seed,
        chunk=batch,
    )
    with torch.inference_mode():
        guess = tuned(torch.from_numpy(test.X[test.places])).argmax(dim=1).numpy()
    return float((guess == test.y[test.places]).mean()), spent, f"step size {rate:g}"
