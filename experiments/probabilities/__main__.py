"""Are probabilities true?  python -m experiments.probabilities [--splits 3] [--tables adult …]

For each split of a table: some public rows, 20 % to test, the rest private; δ = 1e-6, replace-one. Log loss
and calibration error of the default on the test rows stand beside those of the model without privacy.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import warnings  # noqa: E402
from typing import Any, Literal, NamedTuple  # noqa: E402

import numpy as np  # noqa: E402

from experiments import datasets  # noqa: E402
from sidelight.arrays import Array, Floats  # noqa: E402
from sidelight.data.features import FeaturePlan, encode_target  # noqa: E402
from sidelight.data.schema import Schema  # noqa: E402
from sidelight.errors import NotPrivateWarning  # noqa: E402
from sidelight.estimators import PrivateClassifier  # noqa: E402

# table: (target, public rows)
TABLES = {"adult": ("income", 225), "ipums-br": ("y", 150), "magic04": ("y", 76), "kdd": ("label", 200)}
EPSILONS = (0.1, 0.3, 1.0, 3.0)
HOW: tuple[Literal["auto", "public"] | None, ...] = (None, "public", "auto")
BINS = 15


class Cell(NamedTuple):
    table: str
    split: int
    what: str
    epsilon: float
    loss: float
    error: float
    scale: float


def frame(name: str) -> Any:
    import pandas as pd

    if name == "adult":
        return datasets.load_table("adult-raw").drop(columns="split")
    if name == "kdd":
        table = datasets.load_table("kddcup99").drop_duplicates()
        return table.assign(label=np.where(table["label"] == "normal", "no", "yes"))
    data = datasets.load(name)
    columns = [f"x{i + 1}" for i in range(data.X.shape[1])]
    made = pd.DataFrame(np.asarray(data.X, dtype=float), columns=columns)
    return made.assign(y=np.where(data.y > 0, "yes", "no"))


def log_loss(chance: Floats, truth: Array) -> float:
    return float(-np.log(np.clip(np.where(truth, chance, 1 - chance), 1e-15, None)).mean())


def calibration_error(chance: Floats, truth: Array) -> float:
    """Of bins with equally many rows: the mean distance of the rate from the mean probability."""
    parts = np.array_split(np.argsort(chance, kind="stable"), BINS)
    return float(sum(len(p) * abs(chance[p].mean() - truth[p].mean()) for p in parts) / len(chance))


def measure(name: str, split: int, *, loss: str | None, public_rows: int | None) -> list[Cell]:
    target, count = TABLES[name]
    count = public_rows or count
    whole = frame(name).sample(frac=1, random_state=split)
    cut = int(0.8 * len(whole))
    parts = whole[:count], whole[count:cut], whole[cut:]
    schema = Schema.learn(parts[0], target)
    plan = FeaturePlan(schema)
    (Xp, yp), (X, y), (Xt, yt) = ((plan.encode(p), encode_target(schema, p[target])) for p in parts)
    cells = []
    runs: list[tuple[str, float, Literal["auto", "public"] | None]] = [("non_private", 1.0, "auto")]
    runs += [("auto", epsilon, how) for epsilon in EPSILONS for how in HOW]
    for method, epsilon, how in runs:
        model = PrivateClassifier(
            method, epsilon=epsilon, delta=1e-6, relation="replace-one", bounds=plan.bounds(), loss=loss,
            classes=np.asarray(schema.target.classes), calibration=how, random_state=split,
        )  # fmt: skip
        if method == "non_private":
            model.loss = None
        model.fit(X, y, Xp, yp)
        chance = model.predict_proba(Xt)[:, 1]
        truth = yt == model.classes_[1]
        what = method if method == "non_private" else {None: "as they are", "auto": "default"}.get(how, how)
        found = (
            log_loss(chance, truth),
            calibration_error(chance, truth),
            float(model.probability_scale_ or 1.0),
        )
        cells.append(Cell(name, split, str(what), epsilon, *found))
    return cells


def table(cells: list[Cell]) -> list[str]:
    """Means over splits; the loss as a multiple of that without privacy."""
    lines = [
        "| table | ε | probabilities | scale | log loss ÷ without privacy | calibration error − without |",
        "|---|---|---|---|---|---|",
    ]
    best = {(c.table, c.split): c for c in cells if c.what == "non_private"}
    for key in dict.fromkeys((c.table, c.epsilon, c.what) for c in cells if c.what != "non_private"):
        mine = [c for c in cells if (c.table, c.epsilon, c.what) == key]
        ratio = np.mean([c.loss / best[c.table, c.split].loss for c in mine])
        error = np.mean([c.error - best[c.table, c.split].error for c in mine])
        scale = np.mean([c.scale for c in mine])
        lines.append(f"| {key[0]} | {key[1]:g} | {key[2]} | {scale:.2f} | {ratio:.3f} | {error:+.4f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.probabilities", description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--loss", choices=("logistic", "hinge", "huber"))
    parser.add_argument("--public", type=int, help="public rows, instead of those of the table")
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotPrivateWarning)
    cells = [
        cell
        for name in options.tables
        for split in range(options.splits)
        for cell in measure(name, split, loss=options.loss, public_rows=options.public)
    ]
    print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
