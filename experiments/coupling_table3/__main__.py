"""python -m experiments.coupling_table3 [--r-pub 0.05] [--seeds 1] [--only TEXT] [--docs PATH] [--quick]

MNIST, ε = 2, δ = 1e-5, the CNN of appendix A, every setting by a rule: runs what is missing from
OUT/runs.csv, one line per run, and prints the table beside the paper's numbers. Stop it and start it again as
you like. Bare calls of the default of that time (Ours and OnlyPub at r_pub = 0.05) are read from
there. MNIST is looked for as mnist.npz in $SIDELIGHT_DATA. A private column takes four minutes on one core.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import time  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from rich.console import Console  # noqa: E402

from experiments.coupling_table3.columns import ALIKE, COLUMNS, bare, chosen, network  # noqa: E402
from experiments.coupling_table3.digits import Pair, invented, mnist, split  # noqa: E402
from experiments.coupling_table3.report import page, shared, table, with_coupling  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Trainer  # noqa: E402
from sidelight.errors import NotPrivateWarning  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("column", "r_pub", "seed")
RESULTS = ("accuracy", "validation", "epsilon", "chosen", "evidence", "seconds")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.coupling_table3", description=__doc__)
    parser.add_argument("--r-pub", type=float, nargs="+", default=[0.05, 0.2], help="public share")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(COLUMNS), help="these columns")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--docs", type=Path, help="also write the page to this Markdown file")
    parser.add_argument("--quick", action="store_true", help="invented images, to try it out")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args, console = arguments(argv), Console()
    path = args.out / "runs.csv"
    runs = sweep(jobs(args), run, path, fields=FIELDS, results=RESULTS, workers=args.workers, title="Table 3")
    runs = with_coupling(runs if args.quick else [*runs, *shared()])
    console.print(table(runs), markup=False, soft_wrap=True)
    if args.docs:
        args.docs.write_text(page(runs))


def jobs(args: argparse.Namespace) -> list[Job]:
    """Columns that are alike for every public share run at the first; what is there already does not run."""
    known = set() if args.quick else {(row["column"], row["r_pub"], row["seed"]) for row in shared()}
    return [
        {"column": column, "r_pub": share, "seed": seed, "quick": args.quick}
        for seed in range(args.seeds)
        for share in args.r_pub
        for column in args.only or COLUMNS
        if (share == args.r_pub[0] or column not in ALIKE) and (column, str(share), str(seed)) not in known
    ]


def images(share: float, seed: int) -> tuple[Pair, Pair, Pair]:
    train, test = mnist()
    return *split(train, share, seed=seed), test


def quick_images(share: float, seed: int) -> tuple[Pair, Pair, Pair]:
    train, test = invented()
    return *split(train, 0.4, seed=seed), test


def run(job: Job) -> dict[str, Any]:
    """One column on one split; `validation` is of public records that were set apart."""
    source = quick_images if job["quick"] else images
    private, public, test = source(job["r_pub"], job["seed"])
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        trainer, found = fitted(job, source, private, public)
    scores = [entry["validation_accuracy"] for entry in trainer.history_ if "validation_accuracy" in entry]
    return {
        "accuracy": f"{trainer.evaluate(test)['accuracy']:.4f}",
        "validation": f"{scores[-1]:.4f}" if scores else "",
        "epsilon": f"{trainer.privacy_.epsilon:.4f}",
        **found,
        "seconds": f"{time.process_time() - start:.0f}",
    }


def fitted(job: Job, source: Any, private: Pair, public: Pair) -> tuple[Trainer, dict[str, str]]:
    """The trainer after its fit, and what was chosen for it."""
    column, seed = job["column"], job["seed"]
    if column == "FullPriv":  # no record is public, so nothing is rehearsed
        both = torch.cat([private[0], public[0]]), torch.cat([private[1], public[1]])
        trainer = bare(network(seed), seed, method=dp_sgd(clip_norm=1.0)).fit(both)
        size: Any = trainer.privacy_.details["step_size"]
        return trainer, {"chosen": f"DP-SGD, step size {size:.3g}"}
    plain = {"NonPriv": "non_private", "OnlyPub": "only_public", "Ours": "auto"}
    if column in plain:
        trainer = bare(network(seed), seed, method=plain[column]).fit(private, public)
        details: Any = trainer.privacy_.details
        said = f"{details['chosen']}, step size {details.get('step_size', 0):g}" if column == "Ours" else ""
        return trainer, {"chosen": said}
    made = chosen(column, job["r_pub"], seed, source)
    return made.trainer(seed).fit(private, public), {"chosen": str(made.best), "evidence": made.evidence}


if __name__ == "__main__":
    main()
