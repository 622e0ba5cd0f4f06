"""python -m experiments.networks_auto.step_rule [--problem magic …] [--out FOLDER]

How long steps may be: DP-SGD with a momentum of 0.9 and a cosine, from a warm start and from a cold one, with
η/(1 − momentum) of 1, 2, 4 and 8, for the plan that `Trainer` makes. A part of each dataset's *training*
records scores, at the best temperature; no test record of a table is read. Writes OUT/step_rule.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import time  # noqa: E402
import warnings  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from experiments import datasets  # noqa: E402
from experiments.networks_auto.tasks import TASKS, Task, mlp  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Loading, PublicTraining, Trainer  # noqa: E402
from sidelight.deep.gradient_points import plan_for, step_size_for  # noqa: E402
from sidelight.deep.guard import annealed_sgd  # noqa: E402
from sidelight.deep.per_example import per_example  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.problems.datasets import Records, as_dataset  # noqa: E402
from sidelight.problems.network_public import HeldOut  # noqa: E402
from sidelight.problems.public_training import train_well  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("problem", "epsilon", "start", "size")
RESULTS = ("rule", "accuracy", "loss", "seconds")
PROBLEMS = ("magic", "adult", "cifar features", "ipums", "mnist rows")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.networks_auto.step_rule", description=__doc__
    )
    parser.add_argument("--problem", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    jobs: list[Job] = [
        {"problem": name, "epsilon": epsilon, "start": start, "size": size}
        for name in args.problem
        for epsilon in (0.5, 2.0)
        for start in ("warm", "cold")
        for size in (1.0, 2.0, 4.0, 8.0)
    ]
    sweep(jobs, run, args.out / "step_rule.csv", fields=FIELDS, results=RESULTS, workers=1, title="steps")


def run(job: Job) -> dict[str, Any]:
    """One network on the first split."""
    torch.manual_seed(0)
    task, began = problem(job["problem"]), time.process_time()
    loss = nn.CrossEntropyLoss()
    task.model.train()
    oracle = NetworkOracle(task.model, per_example(loss))
    if job["start"] == "warm":
        train_well(oracle, _records(task.public), PublicTraining(), seed=0)
    plan = plan_for(
        len(task.private[1]), oracle.dimension, epsilon=float(job["epsilon"]), delta=1e-5,
        relation="add-or-remove-one",
    )  # fmt: skip
    made = annealed_sgd(task.model.parameters(), 0.1 * float(job["size"]), plan.steps)
    Trainer(
        task.model, loss, method=dp_sgd(clip_norm=1.0), epsilon=float(job["epsilon"]), delta=1e-5,
        steps=plan.steps, expected_batch_size=plan.batch, health_check=False, random_state=0,
        progress=False, optimizer=lambda _: made[0], scheduler=lambda _: made[1],
    ).fit(task.private)  # fmt: skip
    score = HeldOut(oracle, _records(task.test)).score()
    return {
        "rule": f"{step_size_for(plan, public='path'):.2g}", "accuracy": f"{score.accuracy:.4f}",
        "loss": f"{score.loss:.4f}", "seconds": f"{time.process_time() - began:.1f}",
    }  # fmt: skip


def _records(pair: tuple[torch.Tensor, torch.Tensor]) -> Records:
    return Records(as_dataset(pair, public=True), Loading(), torch.device("cpu"))


def problem(name: str) -> Task:
    """The problem with private records in the place of test records, where it has enough of them."""
    if name == "cifar features":  # which has 2,000 test images of its own, and they score
        return TASKS[name](0)
    if name == "ipums":
        return _ipums()
    task = TASKS[name](0)
    (x, y), (px, py) = task.private, task.public
    if name == "mnist rows":  # 300 public digits; test digits score
        more, known = (torch.cat([x, px[300:]]), torch.cat([y, py[300:]])), (px[:300], py[:300])
        return replace(task, private=more, public=known)
    few = len(y) // 4
    return replace(task, private=(x[few:], y[few:]), test=(x[:few][:8000], y[:few][:8000]))


def _ipums() -> Task:
    data = datasets.ipums_br()
    rows = torch.from_numpy(np.asarray(data.X, dtype=np.float32))
    rows = ((rows - rows.mean(0)) / rows.std(0).clamp(min=1e-6)).clamp(-5, 5)
    labels = torch.from_numpy((np.asarray(data.y) > 0).astype(np.int64))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    few = len(order) // 4
    parts = order[few + 1000 :], order[few : few + 1000], order[:few]
    private, public, test = ((rows[some], labels[some]) for some in parts)
    return Task(private, public, test, mlp(rows.shape[1]))


if __name__ == "__main__":
    main()
