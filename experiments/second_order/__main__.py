"""python -m experiments.second_order [--repeats 10] [--quick] [--docs docs/reproductions] [--again METHOD]

Methods that use second derivatives, or perturb the objective, with their defaults beside `auto` and others
that they compete with, by the protocol of `experiments.choosing`: ranges from 30 public rows alone, unit
rows, δ = 1e-8, replace-one. Runs what is missing from OUT/runs.csv; stop it and start it again as you like.
--again forgets the runs of a method first, after it has changed.
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

from dataclasses import replace  # noqa: E402
from functools import lru_cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from experiments import datasets, protocol  # noqa: E402
from experiments.sweep import Job, forget, sweep  # noqa: E402
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
NEWTON = ("dp_newton", f"dp_newton, {CLIPPED}", f"dp_newton, {ALONE}", f"dp_newton, {ALONE}, {CLIPPED}")
METHODS = {
    **dict.fromkeys(
        CLASSES,
        (
            *("auto", f"auto, {ALONE}", *NEWTON, "objective_perturbation"),
            *(f"objective_perturbation, {CLIPPED}", "amp", "pmt", "public_whitening", *BASELINES),
        ),
    ),
    **dict.fromkeys(
        NUMBERS,
        (
            *("auto", f"auto, {ALONE}", *NEWTON, "adassp", "boosted_adassp", f"boosted_adassp, {ALONE}"),
            *("hessian_mixing", f"hessian_mixing, {ALONE}", "pmt", "public_whitening", *BASELINES),
        ),
    ),
}
APART_CLASSES, APART_NUMBERS = ("stable grid", "dear houses"), ("length of showers",)
APART = (*APART_CLASSES, *APART_NUMBERS)  # no constant was found on these
_ALONE = (f"auto, {ALONE}", *NEWTON[2:])
METHODS |= dict.fromkeys(APART_CLASSES, (*_ALONE, "objective_perturbation, " + CLIPPED))
METHODS |= dict.fromkeys(APART_NUMBERS, (*_ALONE, f"boosted_adassp, {ALONE}"))
QUICK_CLASSES, QUICK_NUMBERS = "synthetic classes", "synthetic numbers"
QUICK = {QUICK_CLASSES: METHODS["magic04"], QUICK_NUMBERS: METHODS["cadata"]}


def jobs(repeats: int, *, quick: bool = False) -> list[Job]:
    return [
        {"dataset": name, "epsilon": epsilon, "method": method, "repeat": repeat}
        for repeat in range(repeats)
        for name, methods in (QUICK if quick else METHODS).items()
        for method in methods
        for epsilon in (EPSILONS[:1] if method in FREE else EPSILONS[2:] if quick else EPSILONS)
    ]


def synthetic(name: str, rows: int = 6000) -> datasets.Dataset:
    """Correlated Gaussian features: a table of seconds, for the quick version."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 6)) @ (np.eye(6) + 0.5)
    z = X @ np.linspace(-1, 1, 6) + rng.standard_normal(rows)
    if name == QUICK_NUMBERS:
        return datasets.Dataset(name, X, z, "regression")
    return datasets.Dataset(name, X, np.sign(z), "binary")


def apart(name: str) -> datasets.Dataset:
    """Other questions to tables of other experiments."""
    if name == "length of showers":
        X = protocol.table("magic04").X
        return datasets.Dataset(name, X[:, 1:], np.log(X[:, 0]), "regression")
    rows = protocol.table("stability" if name == "stable grid" else "cadata")
    yes = rows.y < 0 if name == "stable grid" else rows.y > np.median(rows.y)
    return datasets.Dataset(name, rows.X, np.where(yes, 1.0, -1.0), "binary")


@lru_cache(maxsize=2)
def data(name: str, repeat: int) -> protocol.Split:
    made = synthetic if name in QUICK else apart if name in APART else protocol.table
    rows = made(name)
    return protocol.split(rows, repeat=repeat, public_share=PUBLIC / int(0.8 * len(rows.y)), ranges="public")


def run(job: Job) -> dict[str, Any]:
    repeat = int(job["repeat"])
    split = data(job["dataset"], repeat)
    name, *rest = job["method"].split(", ")
    method = with_parameters(get_method(name), {"slope_share": 0.35} if CLIPPED in rest else {})
    if ALONE in rest:  # ranges of features still come from them
        split = replace(split, public=PublicRows.empty(split.public.p))
    loss = "square" if split.regression else "logistic"
    fitted, seconds = protocol.fit(method, split, loss=loss, epsilon=float(job["epsilon"]), seed=repeat)
    return {"score": f"{split.score(fitted.coef):.6f}", "seconds": f"{seconds:.3f}"}


def page(lines: list[dict[str, str]]) -> str:
    """A table a dataset."""
    repeats = 1 + max(int(line["repeat"]) for line in lines)
    out = ["# Second-order methods", "", (HERE / "page.md").read_text().strip().format(repeats=repeats)]
    tables = QUICK if lines[0]["dataset"] in QUICK else METHODS
    for name, methods in tables.items():
        what = "accuracy" if name in (*CLASSES, *APART_CLASSES, QUICK_CLASSES) else "mean square error"
        stands = " (stands apart)" if name in APART else ""
        out += ["", f"## {name}{stands}: {what}", ""]
        out += ["| method | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " | seconds per fit |"]
        out += ["|---" * (len(EPSILONS) + 2) + "|"]
        for method in methods:
            cells = [_cell(lines, name, epsilon, method) for epsilon in EPSILONS]
            shown = "`" + method.replace(", ", "`, ", 1) + ("" if ", " in method else "`")
            out.append(f"| {shown} | {' | '.join(cells)} | {_seconds(lines, name, method)} |")
    return "\n".join(out) + "\n"


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
    parser = options(
        HERE, __doc__, repeats=10, docs="folder to write second_order.md to", again=True,
        quick="two splits of synthetic rows, in a minute",
    )  # fmt: skip
    args = parser.parse_args(argv)
    forget(args.out / "runs.csv", args.again)
    lines = sweep(
        jobs(2 if args.quick else args.repeats, quick=args.quick), run, args.out / "runs.csv",
        fields=FIELDS, results=RESULTS, workers=args.workers, title="fits",
    )  # fmt: skip
    if args.docs:
        (args.docs / "second_order.md").write_text(page(lines))
    else:
        print(page(lines))


if __name__ == "__main__":
    main()
