"""python -m experiments.networks_auto.caps [--out FOLDER]

Why public gradients are shortened: the rehearsal of `auto` on MNIST's 3,000 public images, from a network
that was trained on nothing, with and without a limit. No private image is read. Writes OUT/caps.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import csv  # noqa: E402
import math  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from experiments.networks_auto.tasks import TASKS, Task  # noqa: E402
from sidelight.deep import Loading, PublicTraining  # noqa: E402
from sidelight.deep.gradient_points import RealPlan  # noqa: E402
from sidelight.deep.network_auto import Choice, NetworkRehearsal, recipe_of  # noqa: E402
from sidelight.methods.coupling import Weight  # noqa: E402
from sidelight.methods.dope_sgd import PublicGradient  # noqa: E402
from sidelight.methods.recipe import Recipe  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.problems.datasets import Records  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("method", "limit", "step_size", "loss", "accuracy")


def rehearsal(task: Task) -> NetworkRehearsal:
    """The roles and the noise of a run at ε = 2 with B = 1900 and 600 steps."""
    parts = (slice(0, -len(task.public[1]) // 10), slice(-len(task.public[1]) // 10, None))
    learn, held_out = (
        Records(TensorDataset(*(t[rows] for t in task.public)), Loading(), torch.device("cpu"))
        for rows in parts
    )
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    oracle = NetworkOracle(task.model, loss, example=learn.fetch(range(16)), pass_size=500)
    plan = RealPlan(
        batch=1900.0, steps=600, noise_multiplier=1.9, n=57_000, epsilon=2.0, delta=1e-5,
        relation="add-or-remove-one", seed=0,
    )  # fmt: skip
    return NetworkRehearsal(
        oracle, learn, held_out, plan, warm_up=PublicTraining(steps=1), share=0.0, augment=None
    )


def candidates() -> list[tuple[str, float, float, Recipe]]:
    """Method, limit and step size."""
    found = []
    for step_size in (2.0, 4.0):
        mixed = recipe_of(Choice("coupling", 1900.0, 600, step_size, 0.2), guided=True)
        around = recipe_of(Choice("dope_sgd", 1900.0, 600, step_size), guided=True)
        for limit in (1.0, math.inf):
            found.append(("coupling, weight 0.2", limit, step_size, mixed.with_parts(mix=Weight(0.2, limit))))
        for limit in (0.5, 1.0, math.inf):
            found.append(("dope_sgd", limit, step_size, around.with_parts(origin=PublicGradient(limit))))
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.networks_auto.caps", description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--task", choices=list(TASKS), default="mnist")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    trial = rehearsal(TASKS[args.task](0))
    with (args.out / "caps.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for method, limit, step_size, recipe in candidates():
            score = trial.run(recipe, step_size)
            writer.writerow([method, limit, step_size, f"{score.loss:.4f}", f"{score.accuracy or 0:.4f}"])
            file.flush()


if __name__ == "__main__":
    main()
