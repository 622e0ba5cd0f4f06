"""What public rows are worth without labels: `python -m experiments.public_pays.labels`.

The tables and splits of `tables`; the mean of two splits. Labels, and the range of a number, are declared
from all rows, so that columns differ in the public rows alone. The first column has a schema and no public
rows, the last one arrays in place of frames.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
from sklearn.metrics import r2_score, roc_auc_score

from experiments.public_pays.tables import TARGET, Split, split
from sidelight import PrivateClassifier, PrivateRegressor
from sidelight.arrays import Json
from sidelight.tables import Schema, fit_tables

TABLES, EPSILONS, REPEATS, LABELED = ("magic04", "cadata", "adult"), (0.5, 1.0), (0, 1), 40
COLUMNS = ("schema only", "no labels", f"{LABELED} labels", "all labels", "all labels, arrays")


def scores(name: str, repeat: int, epsilon: float) -> Iterator[float]:
    """AUC, or R², in the order of COLUMNS."""
    data = split(name, repeat)
    everything = pd.concat([data.public[TARGET], data.private[TARGET]])
    said: Json = {"classes": sorted(everything.unique())}
    if data.regression:
        said = {"target_bounds": (float(everything.min()), float(everything.max()))}
    features = data.public.drop(columns=TARGET)
    some = data.public.assign(**{TARGET: data.public[TARGET].astype(object)})
    some.loc[some.index[LABELED:], TARGET] = None
    ways: list[tuple[pd.DataFrame | None, Json]] = [
        (None, {"schema": Schema.learn(features, TARGET, **said)}),
        *((public, said) for public in (features, some, data.public)),
    ]
    for public, options in ways:
        model = fit_tables(
            data.private, public, target=TARGET, epsilon=epsilon, validation=0.0, random_state=0, **options
        )
        yield score(data, model, data.test)
    yield of_arrays(data, epsilon, said)


def of_arrays(data: Split, epsilon: float, said: Json) -> float:
    """The same rows as arrays; NaN if they are not all numbers."""
    frames = [frame.drop(columns=TARGET) for frame in (data.private, data.public, data.test)]
    if any(kind.kind not in "biuf" for kind in frames[0].dtypes):
        return float("nan")
    X, X_public, X_test = (frame.to_numpy(dtype=float) for frame in frames)
    kind = PrivateRegressor if data.regression else PrivateClassifier
    model = kind(epsilon=epsilon, random_state=0, **said)
    return score(data, model.fit(X, data.private[TARGET], X_public, data.public[TARGET]), X_test)


def score(data: Split, model: object, X: object) -> float:
    if data.regression:
        return float(r2_score(data.test[TARGET], model.predict(X)))  # type: ignore[attr-defined]
    return float(roc_auc_score(data.test[TARGET], model.predict_proba(X)[:, 1]))  # type: ignore[attr-defined]


def main() -> None:
    print(f"| | ε | {' | '.join(COLUMNS)} |\n|{' --- |' * (2 + len(COLUMNS))}")
    for name in TABLES:
        for epsilon in EPSILONS:
            found = np.mean([list(scores(name, repeat, epsilon)) for repeat in REPEATS], axis=0)
            cells = ["–" if np.isnan(one) else f"{one:.3f}".lstrip("0") for one in found]
            print(f"| {name} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
