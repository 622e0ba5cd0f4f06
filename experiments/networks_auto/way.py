"""python -m experiments.networks_auto.way [--problem magic …] [--seeds 2] [--out FOLDER]

How far to go from a warm start to the network that private steps lead to: accuracy at six points of the way,
for the plan and the step size of `Trainer`. A part of each dataset's *training* records scores (for CIFAR-10
its test images). Writes OUT/way.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import warnings  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

from experiments.networks_auto.tasks import TASKS, Task  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Loading, PublicTraining, Trainer  # noqa: E402
from sidelight.deep.gradient_points import plan_for, step_size_for  # noqa: E402
from sidelight.deep.guard import annealed_sgd  # noqa: E402
from sidelight.deep.paid_choice import between  # noqa: E402
from sidelight.deep.per_example import per_example  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.problems.datasets import Records, as_dataset  # noqa: E402
from sidelight.problems.flat_parameters import read, write  # noqa: E402
from sidelight.problems.network_public import HeldOut  # noqa: E402
from sidelight.problems.public_training import train_well  # noqa: E402

HERE = Path(__file__).parent
WAYS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
FIELDS = ("problem", "seed", "epsilon")
RESULTS = ("batch", "steps", "size", *(f"{way:g}" for way in WAYS))
PROBLEMS = ("magic", "cifar features", "mnist small", "sst2 hashed", "adult")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.networks_auto.way", description=__doc__)
    parser.add_argument("--problem", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    jobs: list[Job] = [
        {"problem": name, "seed": seed, "epsilon": f"{epsilon:g}"}
        for name in args.problem
        for seed in range(args.seeds)
        for epsilon in (0.5, 2.0, 8.0)
    ]
    sweep(jobs, run, args.out / "way.csv", fields=FIELDS, results=RESULTS, workers=1, title="ways")


def run(job: Job) -> dict[str, Any]:
    """Private steps from a warm start, and accuracy at the points between."""
    seed, epsilon = int(job["seed"]), float(job["epsilon"])
    torch.manual_seed(seed)
    task, loss = problem(job["problem"], seed), nn.CrossEntropyLoss()
    task.model.train()
    oracle = NetworkOracle(task.model, per_example(loss))
    train_well(oracle, _records(task.public), PublicTraining(), seed=seed)
    start, n = read(task.model), len(task.private[1])
    plan = plan_for(n, oracle.dimension, epsilon=epsilon, delta=1e-5, relation="add-or-remove-one")
    size = step_size_for(plan, public="path")
    made = annealed_sgd(task.model.parameters(), 0.1 * size, plan.steps)
    Trainer(
        task.model, loss, method=dp_sgd(clip_norm=1.0), epsilon=epsilon, delta=1e-5, steps=plan.steps,
        expected_batch_size=plan.batch, health_check=False, random_state=seed, progress=False,
        optimizer=lambda _: made[0], scheduler=lambda _: made[1],
    ).fit(task.private)  # fmt: skip
    end, judge = read(task.model), HeldOut(oracle, _records(task.test))
    found: dict[str, Any] = {"batch": f"{plan.batch:.0f}", "steps": plan.steps, "size": f"{size:.2f}"}
    for way in WAYS:
        write(task.model, between(start, end, way) if way else start)
        found[f"{way:g}"] = f"{judge.score().accuracy:.4f}"
    return found


def problem(name: str, seed: int) -> Task:
    """The problem with private records in the place of test records; CIFAR has test images for it."""
    task = TASKS[name](seed)
    if name == "cifar features":
        return task
    (x, y) = task.private
    few = min(8000, len(y) // 4)
    return replace(task, private=(x[few:], y[few:]), test=(x[:few], y[:few]))


def _records(pair: tuple[torch.Tensor, torch.Tensor]) -> Records:
    return Records(as_dataset(pair, public=True), Loading(), torch.device("cpu"))


if __name__ == "__main__":
    main()
