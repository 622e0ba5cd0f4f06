"""python -m experiments.correlated_noise [--parts map linear …] [--repeats 3] [--docs PATH]

Correlated noise (`BandedNoise`) against our own DP-SGD with amplification by sampling, where memory bounds
the batch: predicted noise over n, ε, passes and batch (map); linear models and three networks; federated
learning in which it is no secret who takes part, so that nothing is amplified. δ = 1e-5. Runs what is missing
from OUT/runs.csv, a line a run, and prints the tables. Stop it and start it again as you like.

Both kinds of noise take the same steps with the same batches. Step sizes: linear models by the rule of
`dp_sgd`; networks and clients the best of a few on public records that nothing is trained on, for each kind
of noise by itself.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402

from experiments.correlated_noise.report import page  # noqa: E402
from experiments.correlated_noise.runs import FIELDS, RESULTS, jobs, run  # noqa: E402
from experiments.sweep import options, sweep  # noqa: E402

PARTS = ("map", "federated", "linear", "networks")


def main(argv: list[str] | None = None) -> None:
    parser: argparse.ArgumentParser = options(
        Path(__file__).parent, __doc__, repeats=3, docs="file to write the page to"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--most", type=int, help="so many runs at most")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    lines = sweep(
        [job for part in args.parts for job in jobs(part, args.repeats)], run, args.out / "runs.csv",
        fields=FIELDS, results=RESULTS, workers=args.workers, title="runs", most=args.most,
    )  # fmt: skip
    text = page(lines)
    if args.docs:
        args.docs.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
