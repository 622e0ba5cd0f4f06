"""python -m experiments.dope_federated [--seeds 3] [--quick] [--docs docs/reproductions]

DOPE-SGD's Table 7 in small: users of whom 2 % are public, user-level privacy, cold start, FedSGD. Settings
are rehearsed on public users alone, under the noise of the plan (OUT/rehearsal.csv), then every method is run
(OUT/runs.csv). Runs what is missing there; stop it and start it again as you like.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import itertools  # noqa: E402
import math  # noqa: E402
import time  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

from experiments.dope_federated.fleet import (  # noqa: E402
    COHORT,
    DELTA,
    METHODS,
    PUBLIC_ONLY,
    ROUNDS,
    USERS,
    Fleet,
    Setting,
    fleet,
    recipe,
    rehearsed,
    train,
    train_public,
)  # fmt: skip
from experiments.dope_federated.paper import PAPER  # noqa: E402
from experiments.figures import markdown  # noqa: E402
from experiments.protocol import mean_and_error  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.privacy.accountants import noise_multiplier  # noqa: E402

HERE = Path(__file__).parent
EPSILONS = (0.5, 1.0, 2.0, 4.0)
SPLITS, LOCALS = ("even", "skewed"), ("FedSGD", "FedAvg")
FOLDS = 2
REHEARSAL_FIELDS = ("split", "local", "epsilon", "method", "clip_norm", "step_size", "weight", "fold")
FIELDS, RESULTS = ("split", "local", "epsilon", "method", "seed"), ("accuracy", "spent", "setting", "seconds")
BORROWED = {
    "dope_sgd, extended": "dope_sgd"
}  # public users are then 2 % of the pool: the settings of DOPE-SGD


@dataclass(frozen=True)
class Size:
    """How large a version is."""

    users: int = USERS
    rounds: int = ROUNDS
    cohort: float = COHORT
    clips: tuple[float, ...] = (0.3, 1.0)
    step_sizes: tuple[float, ...] = (0.5, 2.0, 8.0)
    weights: tuple[float, ...] = (0.4,)
    public_rounds: tuple[int, ...] = (40, 120)
    epsilons: tuple[float, ...] = EPSILONS
    worlds: tuple[tuple[str, str], ...] = (("even", "FedSGD"), ("skewed", "FedSGD"))
    folds: int = FOLDS


QUICK = Size(
    users=400, rounds=6, cohort=100, clips=(1.0,), step_sizes=(1.0,), weights=(0.3,), public_rounds=(10,),
    epsilons=(4.0,), worlds=(("skewed", "FedAvg"),), folds=1,
)  # fmt: skip


def rehearsals(size: Size) -> list[Job]:
    """Every setting of every method, on public users."""
    jobs = []
    for (split, local), fold in itertools.product(size.worlds, range(size.folds)):
        base = {"split": split, "local": local, "fold": fold}
        for step, rounds in itertools.product(size.step_sizes, size.public_rounds):
            asked = {
                "clip_norm": float(rounds),
                "step_size": step,
                "weight": 0.0,
            }  # rounds stand in its column
            jobs.append({**base, "epsilon": 0.0, "method": PUBLIC_ONLY, **asked})
        for epsilon, method in itertools.product(size.epsilons, METHODS):
            weights = size.weights if method == "coupling" else (0.0,)
            for clip, step, weight in itertools.product(size.clips, size.step_sizes, weights):
                if method not in BORROWED:
                    asked = {"clip_norm": clip, "step_size": step, "weight": weight}
                    jobs.append({**base, "epsilon": epsilon, "method": method, **asked})
    return jobs


@cache
def noise_of(size: Size, epsilon: float) -> float:
    """The noise of a plan on a mean, in clip norms."""
    n = size.users - size.users // 50
    z = noise_multiplier(
        epsilon=epsilon, delta=DELTA, sampling_probability=size.cohort / n, steps=size.rounds,
        relation="add-or-remove-one",
    )  # fmt: skip
    return z / size.cohort


def rehearse(size: Size, job: Job) -> dict[str, str]:
    world, fold = fleet(job["split"], 0, size.users), int(job["fold"])
    if job["method"] == PUBLIC_ONLY:
        small = world.standing_in(fold)  # trained on those that stand in, which are more than the public ones
        part = Fleet(small.X, small.y, len(small.X) - 1, small.test)
        score = train_public(
            part, step_size=job["step_size"], rounds=int(job["clip_norm"]), local=job["local"]
        )
    else:
        noise = noise_of(size, float(job["epsilon"]))
        asked = {name: float(job[name]) for name in ("clip_norm", "step_size", "weight")}
        score = rehearsed(
            world, job["method"], asked, noise=noise, local=job["local"], rounds=size.rounds, fold=fold
        )
    return {"loss": f"{score.loss:.4f}", "accuracy": f"{score.accuracy:.4f}"}


def chosen(lines: Sequence[dict[str, str]], job: Job) -> Setting:
    """The setting with the lowest mean loss over the folds (of 120 images each: accuracy is too coarse)."""
    method = BORROWED.get(job["method"], job["method"])
    epsilon = 0.0 if method == PUBLIC_ONLY else float(job["epsilon"])
    scores: dict[tuple[float, ...], list[float]] = {}
    for line in lines:
        same = (line["split"], line["local"], line["method"]) == (job["split"], job["local"], method)
        if same and float(line["epsilon"]) == epsilon:
            key = tuple(float(line[name]) for name in ("clip_norm", "step_size", "weight"))
            scores.setdefault(key, []).append(float(line["loss"]))
    best = min(scores, key=lambda key: sum(scores[key]) / len(scores[key]))
    return dict(zip(("clip_norm", "step_size", "weight"), best, strict=True))


def jobs_of(size: Size, seeds: int) -> list[Job]:
    return [
        {"split": split, "local": local, "epsilon": epsilon, "method": method, "seed": seed}
        for seed in range(seeds)
        for split, local in size.worlds
        for method in (PUBLIC_ONLY, *METHODS)
        for epsilon in ((0.0,) if method == PUBLIC_ONLY else size.epsilons)
        if method != PUBLIC_ONLY
        or seed == 0  # public users are the same for every seed, and nothing is drawn
    ]


def run(size: Size, rehearsal: Sequence[dict[str, str]], job: Job) -> dict[str, str]:
    begun, setting = time.process_time(), chosen(rehearsal, job)
    world = fleet(job["split"], int(job["seed"]), size.users)
    if job["method"] == PUBLIC_ONLY:
        rounds = int(setting["clip_norm"])
        score = train_public(world, step_size=setting["step_size"], rounds=rounds, local=job["local"])
        said = f"rounds {rounds} step {setting['step_size']:g}"
    else:
        score = train(
            world, recipe(job["method"], setting), epsilon=float(job["epsilon"]), local=job["local"],
            rounds=size.rounds, cohort=size.cohort, seed=int(job["seed"]),
        )  # fmt: skip
        said = " ".join(f"{name} {value:g}" for name, value in setting.items() if value)
    seconds = f"{time.process_time() - begun:.1f}"
    return {
        "accuracy": f"{score.accuracy:.4f}",
        "spent": f"{score.spent:.6g}",
        "setting": said,
        "seconds": seconds,
    }


# ---------------------------------------------------------------------------------------------------
# the page


def cells(lines: Sequence[dict[str, str]], split: str, local: str, method: str) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for line in lines:
        if (line["split"], line["local"], line["method"]) == (split, local, method):
            found.setdefault(float(line["epsilon"]), []).append(100 * float(line["accuracy"]))
    return found


def table(lines: Sequence[dict[str, str]], split: str, local: str) -> str:
    """Accuracy by ε; then how far each is ahead of DP-SGD on all users."""
    base = cells(lines, split, local, METHODS[0])
    rows = []
    for method in (PUBLIC_ONLY, *METHODS):
        mine, row = cells(lines, split, local, method), [method]
        for epsilon in EPSILONS:
            mean, error, count = mean_and_error(mine.get(0.0 if method == PUBLIC_ONLY else epsilon, ()))
            spread = f" ± {error:.1f}" if count > 1 else ""
            ahead = mean - mean_and_error(base.get(epsilon, ()))[0]
            behind = "" if method == METHODS[0] or math.isnan(ahead) else f" ({ahead:+.1f})"
            row.append(f"{mean:.1f}{spread}{behind}" if count else "–")
        rows.append(row)
    return markdown(["method", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], rows)


def paper_table() -> str:
    rows = []
    for method, scores in PAPER.items():
        ahead = [a - b for a, b in zip(scores, PAPER[METHODS[0]], strict=True)]
        shown = [
            f"{a:.1f}" + ("" if method == METHODS[0] else f" ({b:+.1f})")
            for a, b in zip(scores, ahead, strict=True)
        ]
        rows.append([method, *shown])
    return markdown(["Table 7 of the paper", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], rows)


def page(lines: Sequence[dict[str, str]]) -> str:
    seeds = 1 + max(int(line["seed"]) for line in lines)
    out = ["# DOPE-SGD, Table 7: federated, by user", ""]
    out += [(HERE / "page.md").read_text().strip().format(seeds=seeds), "", paper_table()]
    for split, local in dict.fromkeys((line["split"], line["local"]) for line in lines):
        out += ["", f"## {local}, users {'alike' if split == 'even' else 'of two digits each'}", ""]
        out += [table(lines, split, local)]
    return "\n".join(out) + "\n"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.dope_federated", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="400 users, one budget, in seconds")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of rehearsal.csv and runs.csv")
    parser.add_argument("--docs", type=Path, help="folder to write dope_federated.md to")
    parser.add_argument("--local", choices=LOCALS, default="FedSGD", help="what a user sends")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    size = QUICK if args.quick else Size()
    if args.local == "FedAvg" and not args.quick:
        size = Size(worlds=(("even", "FedAvg"), ("skewed", "FedAvg")))
    rehearsal = sweep(
        rehearsals(size), lambda job: rehearse(size, job), args.out / "rehearsal.csv",
        fields=REHEARSAL_FIELDS, results=("loss", "accuracy"), workers=1, title="rehearsals",
    )  # fmt: skip
    lines = sweep(
        jobs_of(size, 1 if args.quick else args.seeds), lambda job: run(size, rehearsal, job),
        args.out / "runs.csv", fields=FIELDS, results=RESULTS, workers=1, title="runs",
    )  # fmt: skip
    if args.docs:
        (args.docs / "dope_federated.md").write_text(page(lines))
    else:
        print(page(lines))


if __name__ == "__main__":
    main()
