"""python -m experiments.second_order [--repeats 10] [--docs docs/reproductions]

Methods that use second derivatives, or perturb the objective, with their defaults beside `auto` and others
that they compete with, by the protocol of `experiments.choosing`: ranges from 30 public rows alone, unit rows,
δ = 1e-8, replace-one. Runs what is missing from OUT/runs.csv; stop it and start it again as you like.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
from dataclasses import replace  # noqa: E402
from functools import lru_cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments import protocol  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.data.rows import PublicRows  # noqa: E402
from sidelight.methods.declare import get_method  # noqa: E402
from sidelight.methods.task import with_parameters  # noqa: E402

HERE = Path(__file__).parent
FIELDS, RESULTS = ("dataset", "epsilon", "method", "repeat"), ("score", "seconds")
PUBLIC = 30
EPSILONS = (0.1, 0.3, 1.0, 3.0)
FREE = ("only_public", "non_private")  # do not depend on ε
CLASSES, NUMBERS = ("adult-a", "magic04"), ("cadata", "stability")
ALONE, CLIPPED = "no public rows", "slopes up to 0.35"  # what a name may say behind a comma
BASELINES = ("dp_sgd", "only_public", "non_private")
METHODS = {
    **dict.fromkeys(
        CLASSES,
        (
            *("auto", "dp_newton", f"dp_newton, {ALONE}", "objective_perturbation"),
            *(f"objective_perturbation, {CLIPPED}", "amp", "pmt", "public_whitening", *BASELINES),
        ),
    ),
    **dict.fromkeys(
        NUMBERS,
        (
            *("auto", "adassp", "boosted_adassp", f"boosted_adassp, {ALONE}", "hessian_mixing"),
            *(f"hessian_mixing, {ALONE}", "pmt", "dp_newton", "public_whitening", *BASELINES),
        ),
    ),
}


def jobs(repeats: int) -> list[Job]:
    return [
        {"dataset": name, "epsilon": epsilon, "method": method, "repeat": repeat}
        for repeat in range(repeats)
        for name, methods in METHODS.items()
        for method in methods
        for epsilon in (EPSILONS[:1] if method in FREE else EPSILONS)
    ]


@lru_cache(maxsize=2)
def data(name: str, repeat: int) -> protocol.Split:
    rows = protocol.table(name)
    return protocol.split(rows, repeat=repeat, public_share=PUBLIC / int(0.8 * len(rows.y)), ranges="public")


def run(job: Job) -> dict[str, Any]:
    repeat = int(job["repeat"])
    split = data(job["dataset"], repeat)
    name, _, rest = job["method"].partition(", ")
    method = with_parameters(get_method(name), {"slope_share": 0.35} if rest == CLIPPED else {})
    if rest == ALONE:  # ranges of features still come from them
        split = replace(split, public=PublicRows.empty(split.public.p))
    loss = "square" if split.regression else "logistic"
    fitted, seconds = protocol.fit(method, split, loss=loss, epsilon=float(job["epsilon"]), seed=repeat)
    return {"score": f"{split.score(fitted.coef):.6f}", "seconds": f"{seconds:.3f}"}


def page(lines: list[dict[str, str]]) -> str:
    """A table a dataset."""
    repeats = 1 + max(int(line["repeat"]) for line in lines)
    out = ["# Second-order methods", "", INTRODUCTION.format(repeats=repeats)]
    for name, methods in METHODS.items():
        out += ["", f"## {name}: {'accuracy' if name in CLASSES else 'mean square error'}", ""]
        out += ["| method | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " | seconds a fit |"]
        out += ["|---" * (len(EPSILONS) + 2) + "|"]
        for method in methods:
            cells = [_cell(lines, name, epsilon, method) for epsilon in EPSILONS]
            shown = "`" + method.replace(", ", "`, ", 1) + ("" if ", " in method else "`")
            out.append(f"| {shown} | {' | '.join(cells)} | {_seconds(lines, name, method)} |")
    return "\n".join(out) + "\n"


INTRODUCTION = """
`python -m experiments.second_order --docs docs/reproductions` makes this page: `dp_newton` and `adassp`
with their defaults, nothing tuned on these tables, beside the methods that they compete with. 80/20 splits,
30 public rows, ranges of features and targets from the public rows alone, unit rows, δ = 1e-8, replace-one;
the logistic loss, or the square loss on targets that span [−1, 1]. Mean ± standard error over {repeats}
splits. The defaults of `dp_newton` (16 steps, a tenth of the budget for the matrix) were chosen on
synthetic Gaussian rows.
""".strip()


def _found(lines: list[dict[str, str]], *key: str) -> list[dict[str, str]]:
    return [line for line in lines if tuple(line[name] for name in FIELDS[: len(key)]) == key]


def _cell(lines: list[dict[str, str]], name: str, epsilon: float, method: str) -> str:
    epsilon = EPSILONS[0] if method in FREE else epsilon
    found = _found(lines, name, str(epsilon), method)
    mean, error, count = protocol.mean_and_error(float(line["score"]) for line in found)
    return f"{mean:.4f} ± {error:.4f}".replace("0.", ".") if count > 1 else "–"


def _seconds(lines: list[dict[str, str]], name: str, method: str) -> str:
    times = [float(one["seconds"]) for one in lines if (one["dataset"], one["method"]) == (name, method)]
    return f"{sorted(times)[len(times) // 2]:.2f}" if times else "–"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.second_order", description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of runs.csv")
    parser.add_argument("--docs", type=Path, help="folder to write second_order.md to")
    args = parser.parse_args(argv)
    lines = sweep(
        jobs(args.repeats), run, args.out / "runs.csv",
        fields=FIELDS, results=RESULTS, workers=args.workers, title="fits",
    )  # fmt: skip
    if args.docs:
        (args.docs / "second_order.md").write_text(page(lines))
    else:
        print(page(lines))


if __name__ == "__main__":
    main()
