"""python -m experiments.audit_table.correlated [--runs 4000] [--docs docs/reproductions/audits.md]

Correlated noise, attacked through the run itself: `Recipe.run` trains on a dataset with one record, whose
clipped gradient is the same in every step, and on one without it. An observer who sees every iterate asks by
the likelihood ratio, the best question there is, which of the two it was. Results go to correlated.csv here.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import csv  # noqa: E402
import itertools  # noqa: E402
import math  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

from sidelight.arrays import Floats, Vector  # noqa: E402
from sidelight.audit.result import claim_of, separate  # noqa: E402
from sidelight.audit.subjects import scene  # noqa: E402
from sidelight.data.rows import PrivateRows  # noqa: E402
from sidelight.files import write_text  # noqa: E402
from sidelight.methods import BandedNoise, dp_sgd  # noqa: E402
from sidelight.methods.part_kinds import Setting  # noqa: E402
from sidelight.methods.parts import Last, LastState  # noqa: E402
from sidelight.methods.recipe import Recipe  # noqa: E402
from sidelight.methods.task import Plan, Task  # noqa: E402
from sidelight.privacy.noise import Noise  # noqa: E402
from sidelight.privacy.open_accounts import OpenAccount  # noqa: E402
from sidelight.privacy.turns import Turns  # noqa: E402

HERE = Path(__file__).parent
BEGIN, END = "<!-- correlated begins -->", "<!-- correlated ends -->"
N, STEPS, CLIP, SIZE = 60, 12, 0.05, 0.01
EPSILON, DELTA = 2.0, 1e-5
FIELDS = ("run", "claimed", "lower_bound", "refuted", "runs")
NOISES = {
    "2 bands, turns sampled": (BandedNoise(bands=2, sampled=True), 12.0),
    "2 bands, everyone in turn, places secret": (BandedNoise(bands=2, cycle=6), 10.0),
    "3 bands, everyone in every step": (BandedNoise(bands=3, cycle=1, sampled=False), 60.0),
    "3 bands of the inverse, everyone in every step": (
        BandedNoise(bands=3, cycle=1, sampled=False, inverse=True), 60.0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class AllIterates(Last):
    """The last iterate; every one is seen."""

    def begin(self, setting: Setting) -> LastState:
        return _Watched()


class _Watched(LastState):
    seen: list[Vector]

    def __init__(self) -> None:
        super().__init__()
        self.seen = []
        _Watched.last = self

    def add(self, params: Vector) -> None:
        self.seen.append(params)
        super().add(params)

    last: _Watched


def task_of(x: float) -> Task:
    """One record (x, 0, 0, 0) among null ones; x = 0 is the dataset without it."""
    rows = np.zeros((N, 4))
    rows[0, 0] = x
    return replace(
        scene("logistic").task("add-or-remove-one"), rows=PrivateRows(rows, np.ones(N), max_norm=1.0),
        epsilon=EPSILON, delta=DELTA,
    )  # fmt: skip


def releases(recipe: Recipe, plan: Plan, task: Task, seed: int) -> Floats:
    """What each step released along the record's gradient, in units of its largest contribution."""
    recipe.run(task, plan, account=OpenAccount(), noise=Noise(seed))
    iterates = np.stack([np.zeros(4), *_Watched.last.seen])
    moved = np.diff(iterates[:, 0]) * float(str(plan.details["expected_batch_size"])) / SIZE
    return np.asarray(moved / CLIP)


def log_ratio(turns: Turns, z: float, seen: Floats) -> Floats:
    """log of the density with the record over that without it, for each row of releases."""
    column, q = turns.strategy.column(STEPS), turns.sampling_probability
    C = np.array([[column[i - j] if i >= j else 0.0 for j in range(STEPS)] for i in range(STEPS)])
    white, total = seen @ C.T, np.zeros(len(seen))
    for place in range(turns.cycle):
        steps = range(place, STEPS, turns.cycle)
        for bits in itertools.product((0, 1) if q < 1 else (1,), repeat=len(steps)):
            mask = np.zeros(STEPS)
            mask[list(steps)] = bits
            shift = C @ mask
            chance = math.prod(q if bit else 1 - q for bit in bits) / turns.cycle
            total += chance * np.exp((white @ shift - shift @ shift / 2) / z**2)
    return np.asarray(np.log(total))


def attacked(name: str, runs: int) -> dict[str, str]:
    noise, batch = NOISES[name]
    recipe = dp_sgd(
        steps=STEPS, expected_batch_size=batch, clip_norm=CLIP, step_size=SIZE, noise=noise,
        finish=AllIterates(),
    )  # fmt: skip
    plan = recipe.plan(task_of(1.0))
    turns, z = plan.state["setting"].sampler, float(str(plan.details["noise_multiplier"]))
    scores = []
    for side, task in enumerate((task_of(0.0), task_of(1.0))):
        seen = np.stack([releases(recipe, plan, task, 2 * k + side) for k in range(runs)])
        scores.append(log_ratio(turns, z, seen))
    claim = claim_of(recipe, task_of(1.0), plan)
    found = separate(scores[0], scores[1], claim)
    return {
        "run": name, "claimed": f"{claim.epsilon:.3f}", "lower_bound": f"{found.lower_bound:.3f}",
        "refuted": str(found.refuted), "runs": str(runs),
    }  # fmt: skip


def section(rows: list[dict[str, str]]) -> str:
    lines = [
        "| run | claimed ε | proven ε ≥ | claimed curve |",
        "| --- | ---: | ---: | --- |",
    ]
    for row in rows:
        curve = "**refuted**" if row["refuted"] == "True" else "not refuted"
        lines.append(
            f"| {row['run']} | {float(row['claimed']):.2f} | {float(row['lower_bound']):.2f} | {curve} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--tables-only", action="store_true", help="make the table, run nothing")
    parser.add_argument("--docs", type=Path, default=Path("docs/reproductions/audits.md"))
    options, data = parser.parse_args(), HERE / "correlated.csv"
    if not options.tables_only:
        rows = [attacked(name, options.runs) for name in NOISES]
        with data.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with data.open(newline="") as file:
        text = section(list(csv.DictReader(file)))
    before, _, rest = options.docs.read_text().partition(BEGIN)
    write_text(options.docs, f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    print(text)


if __name__ == "__main__":
    main()
