"""Steps with correlated noise against steps with independent noise, on ten million parameters.

    python -m benchmarks.correlated [--rounds 31] [--tables-only]

A network of three layers takes private steps (`PrivateStep`, batches of 256 records on average), with
independent noise and with 16 bands, one thread. They take turns, in an order that moves on with each round;
times are processor time. The peak of memory is that of a process of its own for each kind. What is measured
goes to docs/benchmarks/correlated.csv, and a section of docs/benchmarks/step.md is made of that file.
"""

from __future__ import annotations

import argparse
import csv
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn

from benchmarks.sections import write_section
from sidelight import PrivateStep
from sidelight.methods import BandedNoise, dp_sgd
from sidelight.methods.part_kinds import NoiseRule
from sidelight.privacy import events
from sidelight.privacy.correlated import CorrelatedGaussian
from sidelight.privacy.correlation import Correlation
from sidelight.privacy.noise import Noise
from sidelight.privacy.open_accounts import OpenAccount
from sidelight.privacy.release import BoundedSum, release, release_correlated

DATA = Path("docs/benchmarks/correlated.csv")
PAGE = Path("docs/benchmarks/step.md")  # its section "correlated"
BANDS, BATCH, RECORDS, STEPS, GOAL = 16, 256, 20_000, 500, 1.2
WIDTH = 3_136  # 64 → WIDTH → WIDTH → 10: ten million parameters
NAMES = {"independent": "independent", "bands": f"{BANDS} bands", "inverse": f"{BANDS} bands of the inverse"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )


def stepping(noise: NoiseRule | None) -> tuple[Callable[[], object], PrivateStep]:
    model = network()
    x, y = torch.randn(RECORDS, 64), torch.randint(10, (RECORDS,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = PrivateStep(
        model, nn.CrossEntropyLoss(reduction="none"), method=dp_sgd(noise=noise), epsilon=4.0, delta=1e-5,
        steps=STEPS, n_private=RECORDS, expected_batch_size=BATCH,
    )  # fmt: skip

    def whole() -> None:
        drawn = torch.from_numpy(step.sample())
        step((x[drawn], y[drawn]))
        optimizer.step()

    return whole, step


def releasing(correlated: str | None, size: int) -> Callable[[], object]:
    """A release alone: the noise of one sum of so many numbers."""
    total = BoundedSum(torch.zeros(size), sensitivity=1.0, relation="add-or-remove-one")
    account, noise = OpenAccount(), Noise()
    if correlated is None:
        plain = events.gaussian(1.0)
        return lambda: release(total, std=1.0, event=plain, account=account, noise=noise)
    bands = (1.0, *(0.1,) * (BANDS - 1))
    run = CorrelatedGaussian(1.0, bands, int(correlated == "inverse"), STEPS, BANDS, STEPS // BANDS)
    correlation = Correlation(run)
    return lambda: release_correlated(total, correlation=correlation, account=account, noise=noise)


def in_turns(things: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in things}
    names = list(things)
    for turn in range(rounds + 2):  # the first two warm up
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            thing = things[name]
            start = time.process_time()
            thing()
            if turn > 1:
                taken[name].append(1e3 * (time.process_time() - start))
    return taken


RULES: dict[str, NoiseRule | None] = {
    "independent": None,
    "bands": BandedNoise(bands=BANDS, sampled=True),
    "inverse": BandedNoise(bands=BANDS, sampled=False, inverse=True),
}


def peak(name: str) -> float:
    """The most memory that this process has held, in MiB, after a few steps."""
    torch.set_num_threads(1)
    whole, _ = stepping(RULES[name])
    for _ in range(4):
        whole()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peaks() -> dict[str, float]:
    found = {}
    for name in RULES:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found[name] = pool.submit(peak, name).result()
    return found


def measured(rounds: int) -> list[dict[str, str]]:
    most = peaks()
    made = {name: stepping(rule) for name, rule in RULES.items()}
    size = sum(p.numel() for p in made["bands"][1].model.parameters())
    steps = in_turns({name: whole for name, (whole, _) in made.items()}, rounds)
    kept = {
        name: sum(t.numel() * t.element_size() for t in _kept(step)) / 2**20
        for name, (_, step) in made.items()
    }
    del made
    alone = in_turns(
        {name: releasing(None if name == "independent" else name, size) for name in RULES}, rounds
    )
    return [
        {
            "noise": name,
            "parameters": str(size),
            "step_ms": f"{statistics.median(steps[name]):.1f}",
            "least_step_ms": f"{min(steps[name]):.1f}",
            "release_ms": f"{statistics.median(alone[name]):.1f}",
            "kept_mb": f"{kept[name]:.1f}",
            "peak_mb": f"{most[name]:.0f}",
            "rounds": str(rounds),
        }
        for name in RULES
    ]


def _kept(step: PrivateStep) -> list[torch.Tensor]:
    correlation = getattr(step._loop.noise if step._loop else None, "correlation", None)
    kept = None if correlation is None else correlation.state_dict()["kept"]
    return [kept] if isinstance(kept, torch.Tensor) else []


def page(rows: Sequence[dict[str, str]]) -> str:
    base = rows[0]
    lines = [
        "## Correlated noise: time and memory",
        "",
        f"Private steps of a network of {int(base['parameters']):,} parameters, batches of {BATCH} records",
        f"on average, one thread, processor time; medians of {base['rounds']} rounds.",
        "`python -m benchmarks.correlated` measures it.",
        "",
        "| noise | a step (ms) | against independent | a release alone (ms) | noise that is kept (MiB) | "
        "peak memory of the process (MiB) |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        ratio = float(row["step_ms"]) / float(base["step_ms"])
        lines.append(
            f"| {NAMES[row['noise']]} | {float(row['step_ms']):,.0f} | {ratio:.2f} | "
            f"{float(row['release_ms']):,.0f} | {float(row['kept_mb']):,.0f} | "
            f"{float(row['peak_mb']):,.0f} |"
        )
    ratios = {NAMES[r["noise"]]: float(r["step_ms"]) / float(base["step_ms"]) for r in rows[1:]}
    told = ", ".join(f"{'met' if ratio <= GOAL else 'missed'} by {name}" for name, ratio in ratios.items())
    lines += [
        "",
        f"The aim, a step of at most {GOAL} times one with independent noise, is {told}.",
        "What is kept is bands − 1 vectors as long as the parameters. A release reads all of them, at the",
        "speed of memory.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--tables-only", action="store_true", help="make the page, measure nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not options.tables_only:
        rows = measured(options.rounds)
        with DATA.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with DATA.open(newline="") as file:
        text = page(list(csv.DictReader(file)))
    write_section(PAGE, "correlated", text)
    print(text)


if __name__ == "__main__":
    main()
