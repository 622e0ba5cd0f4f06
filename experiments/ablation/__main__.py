"""python -m experiments.ablation [--repeats 3] [--docs docs/reproductions] [--again PIECES] [--quick]

What each piece of the default for tables adds: the guide (models of the public rows), the paid comparison
with public rows alone, trees on top of the line, and the guide's models of a logarithmic target. Each alone
and together, on the tables that the default was developed on. Beside them kernel features under a copula,
which are not part of it (`kernels`). Runs what is missing from OUT/runs.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import warnings  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from unittest.mock import patch  # noqa: E402

from experiments.ablation import kernels  # noqa: E402
from experiments.peers.splits import TARGET, Split  # noqa: E402
from experiments.protocol import mean_and_error  # noqa: E402
from experiments.public_pays import contenders, tables  # noqa: E402
from experiments.public_pays.report import NAMES, score_of  # noqa: E402
from experiments.sweep import Job, page_of_runs  # noqa: E402
from sidelight.errors import NotPrivateWarning, PrivacyWarning  # noqa: E402
from sidelight.methods import public_models  # noqa: E402
from sidelight.tables import fit_tables  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("dataset", "pieces", "epsilon", "repeat")
EPSILONS = (0.1, 1.0, 3.0)
TABLES = ("adult", "magic04", "cadata", "bike", "stability", "satellite")
PIECES = ("guide", "comparison", "trees")
SETS: dict[str, tuple[str, ...]] = {
    "a line": (),
    "guide": ("guide",),
    "comparison": ("comparison",),
    "trees": ("trees",),
    "guide, comparison": ("guide", "comparison"),
    "guide, trees": ("guide", "trees"),
    "all": PIECES,
}
NO_LOGARITHM = "all, targets as they are"


def jobs(names: Sequence[str], repeats: int, epsilons: Sequence[float]) -> list[Job]:
    return [
        {"dataset": name, "pieces": pieces, "epsilon": epsilon, "repeat": repeat}
        for repeat in range(repeats)
        for name in names
        for pieces in (
            *SETS,
            *((NO_LOGARITHM,) if name in tables.REGRESSIONS else ()),
            *(kernels.KINDS if name in kernels.TABLES else ()),
        )
        for epsilon in epsilons
    ]


@contextmanager
def targets_as_they_are() -> Iterator[None]:
    """No public model of a logarithm."""
    made = public_models._numbers

    def plain(folds: public_models._Folds) -> dict[str, public_models._Candidate]:
        return {name: one for name, one in made(folds).items() if "logarithm" not in name}

    with patch.object(public_models, "_numbers", plain):
        yield


def run(job: Job) -> dict[str, str]:
    data = tables.split(job["dataset"], int(job["repeat"]))
    if job["pieces"] in kernels.KINDS:
        return _shown(_kernel_score(data, job))
    if job["pieces"] == NO_LOGARITHM:
        with targets_as_they_are():
            return _fit(data, PIECES, job)
    return _fit(data, SETS[job["pieces"]], job)


def _fit(data: Split, pieces: Sequence[str], job: Job) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        warnings.simplefilter("ignore", NotPrivateWarning)
        model = fit_tables(
            data.private, data.public, target=TARGET,
            task="regression" if data.regression else None,
            epsilon=float(job["epsilon"]), delta=contenders.DELTA, relation="replace-one",
            random_state=int(job["repeat"]), public_model="auto" if "guide" in pieces else None,
            compare_with_public="comparison" in pieces, trees="trees" in pieces,
        )  # fmt: skip
    return _shown(contenders.scored(model, data)[score_of(job["dataset"])])


def _kernel_score(data: Split, job: Job) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        warnings.simplefilter("ignore", NotPrivateWarning)
        return kernels.score(job["pieces"], data, epsilon=float(job["epsilon"]), seed=int(job["repeat"]))


def _shown(score: float) -> dict[str, str]:
    return {"score": f"{score:.6g}"}


# ---------------------------------------------------------------------------------------------------
# the page


def page(lines: Sequence[dict[str, str]]) -> str:
    parts = ["# What each piece of the default adds", (HERE / "page.md").read_text().strip()]
    found = [name for name in (*TABLES, tables.TOY) if any(line["dataset"] == name for line in lines)]
    parts += [f"## {name} ({NAMES[score_of(name)]})\n\n{_table(lines, name)}" for name in found]
    return "\n\n".join(parts) + "\n"


def _table(lines: Sequence[dict[str, str]], name: str) -> str:
    mine = [line for line in lines if line["dataset"] == name]
    epsilons = sorted({float(line["epsilon"]) for line in mine})
    rows = [f"| pieces | {' | '.join(f'ε = {epsilon:g}' for epsilon in epsilons)} |"]
    rows.append("|---" * (len(epsilons) + 1) + "|")
    for pieces in (*SETS, NO_LOGARITHM, *kernels.KINDS):
        cells = [_cell(mine, pieces, epsilon) for epsilon in epsilons]
        if any(cells):
            rows.append(f"| {pieces} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(lines: Sequence[dict[str, str]], pieces: str, epsilon: float) -> str:
    values = [
        float(line["score"])
        for line in lines
        if line["pieces"] == pieces and float(line["epsilon"]) == epsilon
    ]
    if not values:
        return ""
    mean, error = mean_and_error(values)[:2]
    return f"{mean:.4f} ± {error:.4f}" if len(values) > 1 else f"{mean:.4f}"


def main(argv: list[str] | None = None) -> None:
    page_of_runs(
        argv, folder=HERE, about=__doc__, names=TABLES, quick=[tables.TOY], epsilons=EPSILONS, jobs=jobs,
        run=run, fields=FIELDS, results=("score",), page=page,
    )  # fmt: skip


if __name__ == "__main__":
    main()
