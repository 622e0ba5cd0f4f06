"""DP-XGBoost's side: run_xgboost.py IN.npz OUT.npz, by the interpreter of .venv-peers-xgboost.

IN: `train` and `test` rows between −1 and 1, `y` (0 and 1, or numbers), `target_bounds` and the settings.
OUT: the prediction for each test row (a score for 1, or the number) and CPU seconds. It has no default of ε
or of trees, so that the settings are those of its own examples (sarus/python in its repository): 20 trees of
depth 6 on a fifth of the rows each, least squares for classes too. Its noise is seeded by the clock.
"""

import sys
import time

import dp_xgboost as xgb
import numpy as np

TREES, SHARE = 20, 0.2
EXAMPLES = {
    False: {"learning_rate": 0.2, "min_child_weight": 500, "base_score": 0.5},
    True: {"learning_rate": 0.3, "min_child_weight": 1000, "base_score": 0.0},
}


def main(source: str, target: str) -> None:
    given = np.load(source, allow_pickle=False)
    regression = bool(given["regression"])
    low, high = (float(bound) for bound in given["target_bounds"])
    y = np.clip(2 * (given["y"] - low) / (high - low) - 1, -1, 1) if regression else given["y"]
    # All trees cost n log(1 + γ(exp(ε') − 1)): its README.
    each = np.log1p(np.expm1(float(given["epsilon"]) / TREES) / SHARE)
    settings = {
        "objective": "reg:squarederror", "tree_method": "approxDP", "dp_epsilon_per_tree": each,
        "max_depth": 6, "lambda": 0.1, "subsample": SHARE, "nthread": 1, "verbosity": 0,
        "seed": int(given["seed"]), **EXAMPLES[regression],
    }  # fmt: skip
    columns = given["train"].shape[1]
    bounds = {"feature_min": [-1.0] * columns, "feature_max": [1.0] * columns}
    start = time.process_time()
    model = xgb.train(settings, xgb.DMatrix(given["train"], label=y, **bounds), num_boost_round=TREES)
    seconds = time.process_time() - start
    made = model.predict(xgb.DMatrix(given["test"], **bounds))
    made = low + (made + 1) * (high - low) / 2 if regression else np.clip(made, 0, 1)
    np.savez(target, prediction=made, seconds=seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
