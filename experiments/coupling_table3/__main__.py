"""python -m experiments.coupling_table3 [--r-pub 0.05] [--seeds 1] [--only TEXT] [--quick]

MNIST, ε = 2, δ = 1e-5, the CNN of appendix A: runs what is missing from OUT/runs.csv, one line a run, and
prints the table beside the paper's numbers. Stop it and start it again as you like. MNIST is looked for as
mnist.npz in $SIDELIGHT_DATA. A column takes minutes on two cores.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from experiments.coupling_table3.columns import COLUMNS, PAPER, Cnn
from experiments.protocol import mean_and_error
from experiments.sweep import Job, read, sweep
from sidelight.data.datasets import folder
from sidelight.deep import Loading, PublicTraining, Trainer
from sidelight.errors import InputError, NotPrivateWarning

HERE = Path(__file__).parent
FIELDS, RESULTS = ("column", "r_pub", "seed", "epochs"), ("accuracy", "validation", "epsilon", "seconds")
Pair = tuple[torch.Tensor, torch.Tensor]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.coupling_table3", description=__doc__)
    parser.add_argument("--r-pub", type=float, nargs="+", default=[0.05, 0.2], help="public share")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--only", action="append", choices=list(COLUMNS), help="these columns")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--quick", action="store_true", help="invented images and few steps, to try it out")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args, console = arguments(argv), Console()
    jobs: list[Job] = [
        {"column": column, "r_pub": share, "seed": seed, "epochs": args.epochs, "quick": args.quick}
        for share in args.r_pub
        for seed in range(args.seeds)
        for column in args.only or COLUMNS
    ]
    path = args.out / "runs.csv"
    runs = sweep(jobs, run, path, fields=FIELDS, results=RESULTS, workers=args.workers, title="Table 3")
    console.print(table(runs), markup=False, soft_wrap=True)


def run(job: Job) -> dict[str, Any]:
    """One column on one split; `validation` is of public records that were set apart."""
    train, test = invented() if job["quick"] else mnist()
    private, public = split(train, job["r_pub"], seed=job["seed"])
    torch.manual_seed(job["seed"])
    options = dict(COLUMNS[job["column"]])
    model, quick = Cnn(), job["quick"]
    if options.pop("last_layer", False):
        model.requires_grad_(False)
        model.fc2.requires_grad_(True)
    if quick and "warm_up" in options:
        options["warm_up"] = PublicTraining(steps=2)
    trainer = Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        epsilon=2.0,
        delta=1e-5,
        **{"expected_batch_size": 40 if quick else 1000, **options},
        **({"steps": 2} if quick else {"epochs": job["epochs"]}),
        public_batch_size=256,
        loading=Loading(micro_batch=500),
        random_state=job["seed"],
    )
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        trainer.fit(private, public)
    seconds = time.perf_counter() - start
    scores = [entry["validation_accuracy"] for entry in trainer.history_ if "validation_accuracy" in entry]
    return {
        "accuracy": f"{trainer.evaluate(test)['accuracy']:.4f}",
        "validation": f"{scores[-1]:.4f}" if scores else "",
        "epsilon": f"{trainer.privacy_.epsilon:.4f}",
        "seconds": f"{seconds:.0f}",
    }


def mnist() -> tuple[Pair, Pair]:
    """Images in [0, 1], and digits."""
    path = folder() / "mnist.npz"
    if not path.exists():
        raise InputError(f"MNIST is not in {path}; put mnist.npz there (X_train, y_train, X_test, y_test)")
    data = np.load(path)

    def pair(part: str) -> Pair:
        images = torch.from_numpy(data[f"X_{part}"].astype(np.float32) / np.float32(255))[:, None]
        return images, torch.from_numpy(data[f"y_{part}"].astype(np.int64))

    return pair("train"), pair("test")


def invented() -> tuple[Pair, Pair]:
    """Noise with a bright square whose place is the label."""
    generator = torch.Generator().manual_seed(0)

    def pair(n: int) -> Pair:
        digits = torch.randint(0, 10, (n,), generator=generator)
        images = 0.2 * torch.rand(n, 1, 28, 28, generator=generator)
        for i, digit in enumerate(digits.tolist()):
            images[i, 0, 2 + 5 * (digit % 5) : 6 + 5 * (digit % 5), 4 + 14 * (digit // 5) :][:, :5] += 0.8
        return images, digits

    return pair(400), pair(100)


def split(train: Pair, share: float, *, seed: int) -> tuple[Pair, Pair]:
    """The private part and the public one, after a shuffle."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(train[1])))
    count = round(share * len(order))
    public, private = order[:count], order[count:]
    return (train[0][private], train[1][private]), (train[0][public], train[1][public])


def table(runs: list[dict[str, str]]) -> str:
    """Accuracy in percent, ours beside the paper's."""
    known = {(row["column"], float(row["r_pub"])): row["accuracy"] for row in read(HERE / "paper.csv")}
    lines = ["| column | r_pub | ours | runs | paper |", "|---|---|---|---|---|"]
    for share in sorted({float(row["r_pub"]) for row in runs}):
        for column in COLUMNS:
            mine = [row for row in runs if row["column"] == column and float(row["r_pub"]) == share]
            if mine:
                mean, error, count = mean_and_error(100 * float(row["accuracy"]) for row in mine)
                ours = f"{mean:.2f}" + (f" ± {error:.2f}" if count > 1 else "")
                paper = known.get((column, share), "") if column in PAPER else ""
                lines.append(f"| {column} | {share:g} | {ours} | {count} | {paper} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
