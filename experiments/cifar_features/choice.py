"""python -m experiments.cifar_features.choice [--patches 1024]

How the settings of the features were chosen: on the 2,000 public images of seed 0 alone. Each line is the
accuracy of kernel ridge regression on held-out public images, in two times five folds, with the best of three
ridges. No private and no test image is read.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import csv  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from experiments.cifar_features.__main__ import split  # noqa: E402
from sidelight.arrays import Array  # noqa: E402
from sidelight.features import PatchFeatures  # noqa: E402
from sidelight.features.patches import _scaled  # noqa: E402

HERE = Path(__file__).parent
RIDGES = (0.03, 0.1, 0.3)
_FOLDS, _REPEATS = 5, 2


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.cifar_features.choice", description=__doc__)
    parser.add_argument("--patches", type=int, default=1024, help="a kind")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--quick", action="store_true", help="few invented images: does it run at all?")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    images, y = split(seed=0, private=0, quick=args.quick).public
    with (args.out / "choice.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("filters", "power", "kernel", "accuracy"))
        for line in lines(cells(images, args.patches), y):
            print(*line, sep=", ")
            writer.writerow(line)


@torch.no_grad()
def cells(images: Array, patches: int) -> Tensor:
    """The averages of all filters over the grid, as PatchFeatures makes them, before any power of them."""
    made = PatchFeatures(patches=patches, power=1.0, dtype="bfloat16", components=2).fit(images)
    encode = made._cells(made._learned.layers)
    low, high = float(images.min()), float(images.max())
    return torch.cat([encode(_scaled(images[k : k + 32], low, high)) for k in range(0, len(images), 32)])


def lines(averages: Tensor, y: Array) -> list[tuple[str, float, str, str]]:
    found = {
        power: [_gram(part**power) for part in torch.tensor_split(averages, 2, dim=1)] for power in (1.0, 0.5)
    }
    out = []
    for name, parts in (("two layers", (0,)), ("direct", (1,)), ("both", (0, 1))):
        for power, kernel in ((1.0, None), (0.5, None), (0.5, 2.0)):
            shown = "none" if kernel is None else f"{kernel:g}"
            gram = sum((found[power][k] for k in parts), torch.zeros(()))
            out.append((name, power, shown, f"{100 * accuracy(gram, y, kernel):.2f}"))
    return out


def _gram(rows: Tensor) -> Tensor:
    """Inner products of the rows, each feature standardized."""
    standard = (rows - rows.mean(dim=0)) / rows.std(dim=0).clamp_min(1e-6)
    return (standard @ standard.T).double()


def accuracy(gram: Tensor, y: Array, kernel: float | None) -> float:
    """Of held-out public images: rows are centered by the other folds, and compared by their cosines."""
    right = np.zeros(len(RIDGES))
    for repeat in range(_REPEATS):
        place = np.random.default_rng(100 + repeat).permutation(len(y)) % _FOLDS
        for fold in range(_FOLDS):
            held = place == fold
            cosines = _cosines(gram, torch.from_numpy(~held))
            both = cosines if kernel is None else ((cosines - 1) / kernel).exp()
            right += _right(both[~held][:, ~held], both[held][:, ~held], y[~held], y[held])
    return float(right.max()) / (_REPEATS * len(y))


def _cosines(gram: Tensor, train: Tensor) -> Tensor:
    mean = gram[:, train].mean(dim=1)
    centered = gram - mean - mean[:, None] + mean[train].mean()
    length = centered.diagonal().sqrt()
    return centered / length / length[:, None]


def _right(train: Tensor, test: Tensor, y: Array, y_test: Array) -> Array:
    """How many held-out images each ridge predicts."""
    targets = torch.nn.functional.one_hot(torch.from_numpy(y).long(), 10).double()
    middle, one = targets.mean(dim=0), torch.eye(len(y), dtype=torch.float64)
    found = []
    for ridge in RIDGES:
        root = torch.linalg.cholesky(train + ridge * one)
        scores = test @ torch.cholesky_solve(targets - middle, root) + middle
        found.append(int((scores.argmax(dim=1).numpy() == y_test).sum()))
    return np.array(found)


if __name__ == "__main__":
    main()
