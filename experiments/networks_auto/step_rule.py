"""python -m experiments.networks_auto.step_rule [--seeds 2] [--workers 1] [--out FOLDER]

How long steps may be where nothing is rehearsed: what the noise allows, walking a distance of 5 and between
1/4 and 2, times 1, 2, 3, 4 and 6. Without public records on five tables, bags of words and small images, with
networks of one and of three hidden layers and one of convolutions; with 1,000 public records, mixed in, as a
warm start or as an origin, on the tables. A quarter of each dataset's *training* records scores; no test
record and no MNIST image is read. Writes OUT/step_rule.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import math  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from experiments import datasets  # noqa: E402
from experiments.coupling_table3.digits import Pair  # noqa: E402
from experiments.networks_auto.tasks import TASKS  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Trainer, pace  # noqa: E402
from sidelight.deep.gradient_points import RealPlan, Use, walked  # noqa: E402
from sidelight.errors import NotPrivateWarning  # noqa: E402
from sidelight.methods.coupling import coupling  # noqa: E402
from sidelight.methods.dope_sgd import Warm, dope_sgd  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402
from sidelight.methods.dpmd import dpmd  # noqa: E402
from sidelight.methods.recipe import Recipe  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("problem", "network", "method", "epsilon", "seed", "factor")
RESULTS = ("step_size", "loss", "accuracy", "seconds")
FACTORS = (1.0, 2.0, 3.0, 4.0, 6.0)
EPSILONS = (0.5, 2.0, 8.0)
TABLES = ("adult", "magic", "ipums", "grid", "skin")
_MOST = 60_000
_PUBLIC = 1_000
METHODS: dict[str, Callable[[], Recipe]] = {
    "dp_sgd": lambda: dp_sgd(clip_norm=1.0),
    "coupling": lambda: coupling(weight=0.05, reduction="mean", public_limit=1.0),
    "dpmd": lambda: dpmd(clip_norm=1.0, public_limit=1.0),
    "dp_sgd, warm": lambda: dp_sgd(clip_norm=1.0).with_parts(start=Warm()),
    "coupling, warm": lambda: METHODS["coupling"]().with_parts(start=Warm()),
    "dope_sgd": lambda: dope_sgd(clip_norm=1.0),
}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.networks_auto.step_rule", description=__doc__
    )
    parser.add_argument("--problem", action="append", choices=[*TABLES, "sst2", "cifar", "invented"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    path = args.out / "step_rule.csv"
    sweep(jobs(args), run, path, fields=FIELDS, results=RESULTS, workers=args.workers, title="step sizes")


def jobs(args: argparse.Namespace) -> list[Job]:
    """Images and bags of words take longer: one seed, one network. Public records: one seed."""
    kinds = {name: ("64", "64-64-64") for name in TABLES} | {"sst2": ("64",), "cifar": ("convolutions",)}
    problems = args.problem or list(kinds)
    alone = [
        {"problem": name, "network": network, "epsilon": epsilon, "seed": seed, "factor": factor}
        for name in problems
        for network in kinds.get(name, ("64",))
        for epsilon in EPSILONS
        for seed in range(args.seeds if name in TABLES else 1)
        for factor in FACTORS
    ]
    guided = [
        {"problem": name, "network": "64", "method": method, "epsilon": epsilon, "seed": 0, "factor": factor}
        for name in problems
        if name in (*TABLES, "invented")
        for method in list(METHODS)[1:]
        for epsilon in EPSILONS[:2]
        for factor in FACTORS[:3]
    ]
    return [{"method": "dp_sgd", **job} for job in alone] + guided


def run(job: Job) -> dict[str, Any]:
    """One network; the step size is the rule's before its cap, times the factor."""
    warnings.simplefilter("ignore", NotPrivateWarning)
    torch.set_num_threads(1)
    seed, factor = int(job["seed"]), float(job["factor"])
    private, judge = records(job["problem"], seed)
    public = None
    if job["method"] != "dp_sgd":
        few = min(_PUBLIC, len(private[1]) // 3)
        public, private = (private[0][:few], private[1][:few]), (private[0][few:], private[1][few:])

    def size(plan: RealPlan, dimension: int, *, public: Use) -> float:
        return factor * min(2.0, max(0.25, walked(plan, dimension, 5.0)))

    torch.manual_seed(seed)
    network, start = network_of(job["network"], private), time.process_time()
    trainer = Trainer(
        network, nn.CrossEntropyLoss(), method=METHODS[job["method"]](), epsilon=float(job["epsilon"]),
        delta=1e-5, random_state=seed, progress=False,
    )  # fmt: skip
    with patch.object(pace, "step_size_for", size), patch.object(pace, "_FEWEST", math.inf):  # none rehearsed
        trainer.fit(private, public)
    found, said = trainer.evaluate(judge), trainer.privacy_.details["step_size"]
    return {
        "step_size": f"{said:.3g}",
        "loss": f"{found['loss']:.4f}",
        "accuracy": f"{found['accuracy']:.4f}",
        "seconds": f"{time.process_time() - start:.1f}",
    }


def network_of(kind: str, private: Pair) -> nn.Module:
    classes = int(private[1].max()) + 1
    if kind == "convolutions":
        return nn.Sequential(
            nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, classes),
        )  # fmt: skip
    widths = [private[0].shape[1], *map(int, kind.split("-"))]
    hidden = [layer for before, after in pairwise(widths) for layer in (nn.Linear(before, after), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], classes))


def records(name: str, seed: int) -> tuple[Pair, Pair]:
    """Records to train on, and those that score: of the training part alone."""
    if name in ("sst2", "invented"):
        rows, classes = TASKS[name](seed).private
        return _parts(rows.flatten(1), classes, seed)
    if name == "cifar":
        data = datasets.cifar10()
        images = torch.from_numpy(np.asarray(data.X[:20_000])).permute(0, 3, 1, 2).float() / 128 - 1
        return _parts(images, torch.from_numpy(np.asarray(data.y[:20_000]).astype(np.int64)), seed)
    made = {
        "adult": datasets.a9a, "magic": datasets.magic, "ipums": datasets.ipums_br, "skin": datasets.skin,
        "grid": datasets.grid_stability,
    }  # fmt: skip
    data = made[name]()
    rows, y = torch.from_numpy(np.asarray(data.X, dtype=np.float32)), np.asarray(data.y)
    if name != "adult":  # a9a is binary already
        rows = ((rows - rows.mean(0)) / rows.std(0).clamp(min=1e-6)).clamp(-5, 5)
    return _parts(rows, torch.from_numpy((y > 0).astype(np.int64)), seed)


def _parts(rows: torch.Tensor, classes: torch.Tensor, seed: int) -> tuple[Pair, Pair]:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(classes))[:_MOST])
    few = len(order) // 4
    return (rows[order[few:]], classes[order[few:]]), (rows[order[:few]], classes[order[:few]])


if __name__ == "__main__":
    main()
