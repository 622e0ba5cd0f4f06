"""python -m experiments.coupling_table3 [--r-pub 0.05] [--seeds 1] [--only TEXT] [--docs PATH] [--quick]

MNIST, ε = 2, δ = 1e-5, the CNN of appendix A: runs what is missing from OUT/runs.csv, one line a run, and
prints the table beside the paper's numbers. Stop it and start it again as you like. MNIST is looked for as
mnist.npz in $SIDELIGHT_DATA. A column takes minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from experiments.coupling_table3.columns import ALIKE, COLUMNS, Cnn, cosine
from experiments.coupling_table3.digits import invented, mnist, split
from experiments.coupling_table3.report import page, table
from experiments.sweep import Job, sweep
from sidelight.deep import Loading, PublicTraining, Trainer
from sidelight.errors import NotPrivateWarning

HERE = Path(__file__).parent
FIELDS, RESULTS = ("column", "r_pub", "seed", "epochs"), ("accuracy", "validation", "epsilon", "seconds")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.coupling_table3", description=__doc__)
    parser.add_argument("--r-pub", type=float, nargs="+", default=[0.05, 0.2], help="public share")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=20, help="of columns that do not have their own")
    parser.add_argument("--only", action="append", choices=list(COLUMNS), help="these columns")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--docs", type=Path, help="also write the page to this Markdown file")
    parser.add_argument("--quick", action="store_true", help="invented images and few steps, to try it out")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args, console = arguments(argv), Console()
    path = args.out / "runs.csv"
    runs = sweep(jobs(args), run, path, fields=FIELDS, results=RESULTS, workers=args.workers, title="Table 3")
    console.print(table(runs), markup=False, soft_wrap=True)
    if args.docs:
        args.docs.write_text(page(runs))


def jobs(args: argparse.Namespace) -> list[Job]:
    """Columns that are alike for every public share run at the first."""
    return [
        {
            "column": column,
            "r_pub": share,
            "seed": seed,
            "epochs": COLUMNS[column].get("epochs", args.epochs),
            "quick": args.quick,
        }
        for share in args.r_pub
        for seed in range(args.seeds)
        for column in args.only or COLUMNS
        if share == args.r_pub[0] or column not in ALIKE
    ]


def run(job: Job) -> dict[str, Any]:
    """One column on one split; `validation` is of public records that were set apart."""
    train, test = invented() if job["quick"] else mnist()
    private, public = split(train, job["r_pub"], seed=job["seed"])
    trainer = make(job, len(private[1]))
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


def make(job: Job, n: int) -> Trainer:
    """The trainer of a column, for n private records."""
    torch.manual_seed(job["seed"])
    model = Cnn().to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster, else the same
    options = {"expected_batch_size": 1000, "public_batch_size": 256, **COLUMNS[job["column"]]}
    options["epochs"] = job["epochs"] or None
    if options.pop("last_layer", False):
        model.requires_grad_(False)
        model.fc2.requires_grad_(True)
    step_size = options.pop("cosine", None)
    if step_size is not None:
        options |= cosine(step_size, math.ceil(job["epochs"] * n / options["expected_batch_size"]))
    if job["quick"]:
        options |= {"expected_batch_size": 40, "steps": 2, "epochs": None}
        options |= {"warm_up": PublicTraining(steps=2)} if "warm_up" in options else {}
    return Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        epsilon=2.0,
        delta=1e-5,
        loading=Loading(micro_batch=250),
        random_state=job["seed"],
        **options,
    )


if __name__ == "__main__":
    main()
