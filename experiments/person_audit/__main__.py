"""python -m experiments.person_audit [--docs docs/persons.md]

Networks on 40 persons with 20 rows each, clipped by person or row by row, all of them claiming (1, 1e-5) for
a person. Neighbors differ in all rows of one person: their content, their number, and whether they are
there. The results go to results.csv here, and as a table into the page.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import csv  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Literal  # noqa: E402

from sidelight.audit import replay_neighbors  # noqa: E402
from sidelight.audit.networks import on_network  # noqa: E402
from sidelight.files import write_text  # noqa: E402
from sidelight.methods import coupling, dope_sgd, dp_sgd  # noqa: E402
from sidelight.methods.recipe import Recipe  # noqa: E402

HERE = Path(__file__).parent
ROWS, STEPS = 20, 2
METHODS: dict[str, Callable[[], Recipe]] = {
    "dp_sgd": lambda: dp_sgd(clip_norm=0.1),
    "dope_sgd": lambda: dope_sgd(clip_norm=0.1),
    "coupling": lambda: coupling(bound=0.1),
}
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
FIELDS = ("method", "clipped by", "claimed for", "largest move / sensitivity", "replay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs/persons.md"), help="the page with the table")
    parser.add_argument("--results", type=Path, default=HERE / "results.csv")
    options = parser.parse_args()
    rows = [audited(make(), protects) for make in METHODS.values() for protects in ("record", "person")]
    with options.results.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    before, _, rest = options.docs.read_text().partition(BEGIN)
    write_text(options.docs, f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}")


def audited(
    recipe: Recipe, protects: Literal["person", "record"], *, rows: int = ROWS, steps: int = STEPS
) -> dict[str, str]:
    """One line of the table."""
    subject = on_network(
        recipe, relation="add-or-remove-one", steps=steps, rows_per_person=rows, protects=protects
    )
    result = replay_neighbors(subject, seeds=1)
    found = "passed" if result.passed else f"refuted: {result.findings[0].promise}"
    share = f"{result.details['largest_share']:.3g}"
    line = (recipe.name, protects, f"person of {rows} rows", share, found)
    print(*line, sep="  ", flush=True)
    return dict(zip(FIELDS, line, strict=True))


def table(rows: list[dict[str, str]]) -> str:
    """Markdown."""
    lines = [FIELDS, ["---"] * len(FIELDS), *([row[name] for name in FIELDS] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
