"""diffprivlib's side: run_diffprivlib.py IN.npz OUT.npz, by the interpreter of .venv-peers-diffprivlib.

IN: `train` and `test` rows between −1 and 1, `norm` of a row, `y` (0 and 1, or numbers), `target_bounds` and
the settings. OUT: the prediction for each test row (the probability of 1, or of each of several classes, or
the number) and CPU seconds.
"""

import sys
import time
import warnings
from typing import Any

import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression


def main(source: str, target: str) -> None:
    given = np.load(source, allow_pickle=False)
    X, y, X_test = given["train"], given["y"], given["test"]
    epsilon, seed = float(given["epsilon"]), int(given["seed"])
    low, high = (float(bound) for bound in given["target_bounds"])
    model: Any
    if bool(given["regression"]):
        y = np.clip(2 * (y - low) / (high - low) - 1, -1, 1)
        model = LinearRegression(
            epsilon=epsilon, bounds_X=(-1.0, 1.0), bounds_y=(-1.0, 1.0), random_state=seed
        )
    else:
        model = LogisticRegression(epsilon=epsilon, data_norm=float(given["norm"]), random_state=seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that 100 iterations were not enough, say: its default
        model.fit(X, y)
    seconds = time.process_time() - start
    if bool(given["regression"]):
        made = low + (model.predict(X_test) + 1) * (high - low) / 2
    elif len(model.classes_) == 2:
        made = model.predict_proba(X_test)[:, 1]
    else:
        made = np.zeros((len(X_test), int(model.classes_.max()) + 1))
        made[:, model.classes_] = model.predict_proba(X_test)
    np.savez(target, prediction=made, seconds=seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
