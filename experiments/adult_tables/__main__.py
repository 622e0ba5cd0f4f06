"""python -m experiments.adult_tables [--repeats 5]

The raw Adult table as a new user has it: 0.5 % of the training part are public, the rest is private, the test
part is held out. Each run types `sidelight schema`, `fit` and `predict`, and counts correct predictions. Runs
what is missing from OUT/runs.csv; stop it and start it again as you like.
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

import contextlib  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from experiments.datasets import load_table  # noqa: E402
from experiments.sweep import Job, read, sweep  # noqa: E402
from sidelight.cli import main as sidelight  # noqa: E402
from sidelight.tables import read_table  # noqa: E402

HERE = Path(__file__).parent
FIELDS, RESULTS = ("method", "epsilon", "repeat"), ("accuracy", "validation", "validation_error")
PUBLIC_SHARE = 0.005
RELATION = "replace-one"  # one for all: methods differ in their own
EPSILONS = (0.1, 0.3, 1.0, 3.0)
STRAIGHT = "public_whitening, no knots"  # in the schema, as if a user had removed them
METHODS = ("auto", "public_whitening", STRAIGHT, "dp_sgd", "only_public", "non_private")
FREE = ("only_public", "non_private")  # do not depend on ε


def jobs(repeats: int) -> list[Job]:
    return [
        {"method": method, "epsilon": epsilon, "repeat": repeat}
        for repeat in range(repeats)
        for method in METHODS
        for epsilon in (EPSILONS[:1] if method in FREE else (1.0,) if method == STRAIGHT else EPSILONS)
    ]


def write_tables(folder: Path, repeat: int) -> None:
    """public.csv, private.csv, test.csv."""
    adult = load_table("adult-raw")
    train, test = (adult[adult.split == part].drop(columns="split") for part in ("train", "test"))
    order = np.random.default_rng(repeat).permutation(len(train))
    public = round(PUBLIC_SHARE * len(train))
    train.iloc[order[:public]].to_csv(folder / "public.csv", index=False)
    train.iloc[order[public:]].to_csv(folder / "private.csv", index=False)
    test.to_csv(folder / "test.csv", index=False)


def run(job: Job) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder, int(job["repeat"]))
        schema = folder / "schema.json"
        budget = (
            "--epsilon",
            job["epsilon"],
            "--relation",
            RELATION,
            "--method",
            job["method"].split(",")[0],
        )
        _type("schema", folder / "public.csv", "--target", "income", "--out", schema)
        if job["method"] == STRAIGHT:
            _remove_knots(schema)
        tables = (folder / "private.csv", "--public", folder / "public.csv", "--schema", schema)
        _type("fit", *tables, *budget, "--validation", 0.2, "--out", folder / "model")
        _type("predict", folder / "model", folder / "test.csv", "--out", folder / "predictions.csv")
        truth, guess = (read_table(folder / file)["income"] for file in ("test.csv", "predictions.csv"))
        scores = _scores(folder / "model")
    return {
        "accuracy": float((truth == guess).mean()),
        "validation": scores["public_validation"],
        "validation_error": scores["public_validation_error"],
    }


def _remove_knots(path: Path) -> None:
    body = json.loads(path.read_text())
    for column in body["columns"].values():
        column.pop("knots", None)
    path.write_text(json.dumps(body))


def _type(*words: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        code = sidelight([str(word) for word in words])
    if code != 0:
        raise SystemExit(f"sidelight {' '.join(map(str, words))} failed")


def _scores(folder: Path) -> Any:
    from sidelight.tables import TableModel

    return TableModel.load(folder).scores


def table(rows: list[dict[str, str]]) -> str:
    """Mean test accuracy ± one standard error of the mean over repeats."""
    lines = ["| method | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |", "|---" * 5 + "|"]
    for method in METHODS:
        cells = []
        for epsilon in EPSILONS:
            wanted = EPSILONS[0] if method in FREE else epsilon
            found = [
                100 * float(r["accuracy"])
                for r in rows
                if r["method"] == method and math.isclose(float(r["epsilon"]), wanted)
            ]
            error = np.std(found, ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.nan
            cells.append(f"{np.mean(found):.2f} ± {error:.2f}" if found else "–")
        name, *rest = method.split(",")
        lines.append(f"| {','.join([f'`{name}`', *rest])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    given = options(HERE, __doc__, repeats=5).parse_args(argv)
    runs = given.out / "runs.csv"
    sweep(jobs(given.repeats), run, runs, fields=FIELDS, results=RESULTS, workers=given.workers)
    print(table(read(runs)))


if __name__ == "__main__":
    main()
