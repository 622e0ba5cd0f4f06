"""DP-EBM's side: run_ebm.py IN.npz OUT.npz, by the interpreter of .venv-peers-ebm.

IN: `train_k` and `test_k` for column k, `low` and `high` (not a number where it is a category), `y`, and the
settings. OUT: the prediction for each test row (the probability of 1, or the number) and CPU seconds.
"""

import sys
import time
from typing import Any

import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor


def frame(given: Any, part: str, nominal: Any) -> Any:
    columns = [given[f"{part}_{k}"] for k in range(len(nominal))]
    rows = np.empty((len(columns[0]), len(columns)), dtype=object)
    for k, column in enumerate(columns):
        rows[:, k] = column
    return rows


def main(source: str, target: str) -> None:
    given = np.load(source, allow_pickle=False)
    nominal = np.isnan(given["low"])
    common: dict[str, Any] = {
        "feature_types": ["nominal" if one else "continuous" for one in nominal],
        "privacy_bounds": {
            int(k): (float(given["low"][k]), float(given["high"][k])) for k in np.flatnonzero(~nominal)
        },
        "epsilon": float(given["epsilon"]), "delta": float(given["delta"]),
        "random_state": int(given["seed"]), "n_jobs": 1,
    }  # fmt: skip
    X, y, X_test = frame(given, "train", nominal), given["y"], frame(given, "test", nominal)
    if bool(given["regression"]):
        low, high = (float(bound) for bound in given["target_bounds"])
        model = DPExplainableBoostingRegressor(**common, privacy_target_min=low, privacy_target_max=high)
    else:
        model = DPExplainableBoostingClassifier(**common)
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    made = model.predict(X_test) if bool(given["regression"]) else model.predict_proba(X_test)[:, 1]
    np.savez(target, prediction=made, seconds=seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
