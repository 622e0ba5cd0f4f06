"""python -m experiments.choosing [--repeats 5] [--docs docs/reproductions]

Every gradient method with its defaults, and the baselines that public data must beat, by one protocol: the
logistic loss (for three of them also the hinge), ranges from the public rows alone, δ = 1e-8, replace-one.
Runs what is missing from OUT/runs.csv; stop it and start it again as you like.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
from functools import lru_cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments import protocol  # noqa: E402
from experiments.ppsgd_figures.jobs import toy  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.methods.declare import get_method  # noqa: E402

HERE = Path(__file__).parent
FIELDS, RESULTS = ("dataset", "public", "epsilon", "method", "repeat"), ("accuracy", "seconds")
DATASETS = ("adult-a", "ipums-br", "magic04", "isotropic")
PUBLIC = (30, 1000)
EPSILONS = (0.05, 0.1, 1.0, 10.0)
METHODS = (
    "auto", "auto, hinge", "public_whitening", "ppsgd", "ppsgd, hinge", "dope_sgd", "coupling", "dpmd",
    "adamix", "adadps", "sample_mechanism", "dp_newton", "dp_sgd", "dp_sgd, hinge", "full_private",
    "objective_perturbation", "output_perturbation", "only_public", "non_private",
)  # fmt: skip
FREE = ("only_public", "non_private")  # do not depend on ε


def jobs(repeats: int, datasets: tuple[str, ...] = DATASETS) -> list[Job]:
    return [
        {"dataset": name, "public": public, "epsilon": epsilon, "method": method, "repeat": repeat}
        for repeat in range(repeats)
        for name in datasets
        for public in PUBLIC
        for method in METHODS
        for epsilon in (EPSILONS[1:2] if method in FREE else EPSILONS)
    ]


@lru_cache(maxsize=2)
def data(name: str, public: int, repeat: int) -> protocol.Split:
    """100 isotropic Gaussian features, or a table; with this many public rows."""
    if name == "isotropic":
        return toy(repeat, private=10_000 - public, public=public)
    rows = protocol.table(name)
    share = public / int(0.8 * len(rows.y))
    return protocol.split(rows, repeat=repeat, public_share=share, ranges="public")


def run(job: Job) -> dict[str, Any]:
    split = data(job["dataset"], int(job["public"]), int(job["repeat"]))
    name, _, loss = job["method"].partition(", ")
    epsilon, repeat = float(job["epsilon"]), int(job["repeat"])
    fitted, seconds = protocol.fit(
        get_method(name), split, loss=loss or "logistic", epsilon=epsilon, seed=repeat
    )
    return {"accuracy": f"{split.score(fitted.coef):.6f}", "seconds": f"{seconds:.3f}"}


def page(lines: list[dict[str, str]]) -> str:
    """A table of methods for each number of public rows; the best private method of a column is in bold."""
    out = ["# Every method, one protocol", "", INTRODUCTION.format(repeats=_repeats(lines))]
    for public in PUBLIC:
        columns = [(name, epsilon) for name in DATASETS for epsilon in EPSILONS]
        scores = {key: {m: _cell(lines, key[0], public, key[1], m) for m in METHODS} for key in columns}
        out += ["", f"## {public:,} public rows", ""]
        out.append("| method | " + " | ".join(f"{name}, ε = {epsilon:g}" for name, epsilon in columns) + " |")
        out.append("|---" * (1 + len(columns)) + "|")
        for method in METHODS:
            cells = [_shown(scores[key], method) for key in columns]
            name, _, loss = method.partition(", ")
            shown = f"`{name}`, {loss}" if loss else f"`{name}`"
            out.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


INTRODUCTION = """
`python -m experiments.choosing --docs docs/reproductions` makes this page: every gradient method with its
defaults, nothing tuned, beside the baselines that public data must beat. Logistic loss except where it says
hinge, 80/20 splits, ranges of features from the public rows alone, unit rows, δ = 1e-8, replace-one.
`isotropic` is the PPSGD paper's synthetic problem: 100 independent Gaussian features, 10,000 rows, public
ones included. Accuracy, mean ± standard error over {repeats} splits. In bold: the best of a column, and
what is within one standard error of it; `non_private` stands outside the contest. `full_private` treats the
public rows as private ones, `only_public` needs no budget.
""".strip()


def _repeats(lines: list[dict[str, str]]) -> int:
    return 1 + max(int(line["repeat"]) for line in lines)


def _cell(
    lines: list[dict[str, str]], name: str, public: int, epsilon: float, method: str
) -> tuple[float, float]:
    epsilon = EPSILONS[1] if method in FREE else epsilon
    wanted = (name, str(public), str(epsilon), method)
    found = [line for line in lines if tuple(line[key] for key in FIELDS[:4]) == wanted]
    return protocol.mean_and_error(float(line["accuracy"]) for line in found)[:2]


def _shown(scores: dict[str, tuple[float, float]], method: str) -> str:
    mean, error = scores[method]
    if mean != mean:
        return "–"
    contest = [score for name, score in scores.items() if name != "non_private" and score[0] == score[0]]
    best, slack = max(contest, default=(1.0, 0.0))
    text = f"{mean:.4f} ± {error:.4f}".replace("0.", ".")
    return f"**{text}**" if method != "non_private" and mean >= best - slack else text


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.choosing", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of runs.csv")
    parser.add_argument("--docs", type=Path, help="folder to write choosing.md to")
    args = parser.parse_args(argv)
    lines = sweep(
        jobs(args.repeats), run, args.out / "runs.csv",
        fields=FIELDS, results=RESULTS, workers=args.workers, title="fits",
    )  # fmt: skip
    if args.docs:
        (args.docs / "choosing.md").write_text(page(lines))
    else:
        print(page(lines))


if __name__ == "__main__":
    main()
