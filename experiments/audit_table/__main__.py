"""python -m experiments.audit_table [--docs docs/reproductions/audits.md]

Every method of the registry by every audit, at ε = 4 and δ = 1e-5; recipes on a small network too. Runs what
is missing from results.json here (stop it and start it again as you like; delete the file for a fresh start),
then writes the table into the page.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from sidelight.audit import suite as catalog  # noqa: E402
from sidelight.audit.suite import SuitePlan, run  # noqa: E402
from sidelight.files import write_text  # noqa: E402

HERE = Path(__file__).parent
SETTINGS: dict[str, dict[str, Any]] = {
    "linear": {"epsilon": 4.0, "runs": 200, "canaries": 500},
    "network": {
        "epsilon": 4.0,
        "canaries": 100,
        "kinds": ("replay", "one-run"),
        "relation": "add-or-remove-one",
    },
}
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--docs", type=Path, default=Path("docs/reproductions/audits.md"), help="the page with the table"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.results.read_text()) if options.results.exists() else []
    for row in missing(rows):
        rows.append(row)
        write_text(options.results, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        print(row["model"], row["method"], row["relation"], row["kind"], row["passed"], flush=True)
    page = options.docs.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(options.docs, f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")
    refuted = sorted({row["method"] for row in rows if not row["passed"]})
    print(f"refuted: {refuted}" if refuted else "nothing was refuted")
    return 1 if refuted else 0


def missing(rows: list[Row]) -> Iterator[Row]:
    """The audits that are not in the file yet, a method at a time."""
    done = {(row["model"], row["method"]) for row in rows}
    for model, names in (("linear", catalog.linear()), ("network", catalog.networks())):
        for name in names:
            if (model, name) not in done:
                for one in run(SuitePlan([name], model=model, **SETTINGS[model])):  # type: ignore[arg-type]
                    yield {"model": model, **one.to_dict()}


def table(rows: list[Row]) -> str:
    """Markdown, one line per method and relation."""
    groups: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["method"], row["relation"]), {})[row["kind"]] = row
    lines = [
        "| method | relation | claimed ε | many-run ε ≥ | one-run ε ≥ | largest move | verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for (model, method, relation), kinds in sorted(groups.items(), key=lambda item: _order(item[0])):
        first = next(iter(kinds.values()))
        name = f"`{method}`" + (" on a network" if model == "network" else "")
        passed = all(row["passed"] for row in kinds.values())
        cells = [_claim(first), _bound(kinds.get("many-run")), _bound(kinds.get("one-run"))]
        cells += [_move(kinds["neighbor replay"]), "passed" if passed else "**refuted**"]
        lines.append(f"| {name} | {relation} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _order(key: tuple[str, str, str]) -> tuple[str, int, str]:
    model, method, relation = key
    names = list(catalog.linear() if model == "linear" else catalog.networks())
    return model, names.index(method), relation


def _claim(row: Row) -> str:
    return "none" if row["claimed_epsilon"] == "infinity" else f"{row['claimed_epsilon']:.3g}"


def _bound(row: Row | None) -> str:
    return "" if row is None else f"{row['lower_bound']:.2f}"


def _move(row: Row) -> str:
    return f"{row['details']['largest_share']:.3f}" if row["details"]["private_sums"] else "no sum"


if __name__ == "__main__":
    sys.exit(main())
