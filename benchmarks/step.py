"""Whole training steps: plain PyTorch, sidelight, and Opacus in each of its modes, in one run.

    python -m benchmarks.step [--models NAME ...] [--rounds 8] [--tables-only] [--device cuda]

A step samples its batch, takes clipped gradients, adds noise and moves an SGD optimizer with momentum.
Methods take turns, one thread each; times are processor time, which other work on the machine disturbs least.
A method that takes more than six plain steps is timed once, after its first step. Memory is measured in a
process of its own for each method: the peak above the model and its data at rest. What was measured goes to
docs/benchmarks/step.csv. A section of docs/benchmarks/step.md, and what docs/networks.md quotes, are made of
it.
With `--device cuda` times are of the clock, after all work there is done, memory is PyTorch's on the device,
and both files go to build/.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import math
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from benchmarks.memory import peak_above_rest
from benchmarks.models import MODELS, Batch, Case
from benchmarks.sections import write_section
from benchmarks.steps import STEPS, Step
from sidelight.privacy.noise import Noise

DATA = Path("docs/benchmarks/step.csv")
PAGE = Path("docs/benchmarks/step.md")
OURS = "sidelight, dp_sgd"
FIELDS = ("model", "method", "first_ms", "min_ms", "median_ms", "rounds", "peak_mb", "refused", "about")
SLOW = 6.0  # plain steps: methods that take more are timed once
_MMAP_THRESHOLD = -3  # of mallopt, in malloc.h
NOISE_GOAL = 5.0  # ms for a million numbers
Row = dict[str, str]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--tables-only", action="store_true", help="make the page from the data, measure nothing"
    )
    parser.add_argument("--device", default="cpu", type=torch.device, help="where models and data are")
    options = parser.parse_args(arguments)
    place = Place(options.device)
    if place.missing:
        parser.exit(1, f"no accelerator: {place.missing}. Nothing was measured.\n")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data, shown = (DATA, PAGE) if place.on_cpu else (place.file("csv"), place.file("md"))
    if not options.tables_only:
        rows = noise_rows(place)
        for name in options.models:
            rows += measured(name, options.rounds, place)
            _write(rows, data)
    if place.on_cpu:
        write_section(PAGE, "step", page(_read(data)))
        print(quoted(_read(data)))
    else:
        shown.write_text(page(_read(data)))
        print(shown.read_text())


@dataclass(frozen=True)
class Place:
    """Where steps are taken, and how time and memory are read there."""

    device: torch.device

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def missing(self) -> str:
        """Why nothing can be measured here; empty if it can."""
        if self.on_cpu:
            return ""
        if self.device.type != "cuda":
            return f"{self.device} is not measured, only cpu and cuda are"
        return "" if torch.cuda.is_available() else f"PyTorch {torch.__version__} finds no CUDA device here"

    def file(self, ending: str) -> Path:
        folder = Path("build")
        folder.mkdir(exist_ok=True)
        return folder / f"step-{self.device.type}.{ending}"

    def case(self, case: Case) -> Case:
        """The same model and data, here."""
        if self.on_cpu:
            return case
        untied = case.untied

        def draw(n: int) -> Batch:
            inputs, targets = case.draw(n)
            return inputs.to(self.device), targets.to(self.device)

        return replace(
            case,
            build=lambda: case.build().to(self.device),
            draw=draw,
            untied=None if untied is None else lambda: untied().to(self.device),
        )

    def ms(self, step: Callable[[], object]) -> float:
        if self.on_cpu:
            start = time.process_time()
            step()
            return 1e3 * (time.process_time() - start)
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        step()
        torch.cuda.synchronize(self.device)
        return 1e3 * (time.perf_counter() - start)

    def peak_mb(self, name: str, method: str, before: int) -> float:
        """The peak of a step above the idle model: on the processor in a process of its own."""
        if self.on_cpu:
            return peak_mb(name, method, before)
        step = made(self.case(MODELS[name]), method)
        for _ in range(before):
            step()
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        rest = torch.cuda.memory_allocated(self.device)
        step()
        return (torch.cuda.max_memory_allocated(self.device) - rest) / 2**20

    @property
    def about(self) -> str:
        if self.on_cpu:
            return _about()
        name = torch.cuda.get_device_name(self.device)
        return f"{name}, PyTorch {torch.__version__}, Opacus {version('opacus')}"


def made(case: Case, method: str) -> Step:
    torch.manual_seed(0)
    return STEPS[method](case)


def peak_mb(name: str, method: str, before: int) -> float:
    """The peak of a step above the idle model, in a process of its own."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            # Every tensor is mapped by itself and unmapped when freed: what is left is what is alive.
            ctypes.CDLL("libc.so.6").mallopt(_MMAP_THRESHOLD, 65536)
            os.write(write, str(peak_above_rest(made(MODELS[name], method), before=before)).encode())
        finally:
            os._exit(0)
    os.close(write)  # so that a process that was ended leaves nothing to wait for
    os.wait()
    found = os.read(read, 100)
    os.close(read)
    return int(found) / 2**20 if found else math.nan


def measured(name: str, rounds: int, place: Place) -> list[Row]:
    """Times of all methods in turns, and the memory of each."""
    rows, steps = dict[str, Row](), dict[str, Step]()
    for method in STEPS:
        rows[method] = {"model": name, "method": method}
        try:
            step = made(place.case(MODELS[name]), method)
            rows[method]["first_ms"] = f"{place.ms(step):.2f}"
            steps[method] = step
        except Exception as error:
            rows[method]["refused"] = f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
    found = turns(steps, rounds, place)
    steps.clear()  # some hold gigabytes
    for method, taken in found.items():
        times = {"min_ms": min(taken), "median_ms": statistics.median(taken)}
        rows[method] |= {key: f"{value:.3f}" for key, value in times.items()} | {"rounds": str(len(taken))}
        rows[method]["peak_mb"] = f"{place.peak_mb(name, method, before=int(len(taken) > 1)):.1f}"
        print(*rows[method].values(), sep="  ", flush=True)
    return list(rows.values())


def turns(steps: dict[str, Step], rounds: int, place: Place) -> dict[str, list[float]]:
    """Milliseconds of every timed step. Steps of a few milliseconds are taken ten times in a turn."""
    plain = min(place.ms(steps["plain"]) for _ in range(3))
    last = {method: place.ms(step) for method, step in steps.items()}
    slow = {method for method, taken in last.items() if taken > SLOW * plain}
    taken = {method: [last[method]] if method in slow else [] for method in steps}
    for turn in range(rounds + 1):
        for method, step in steps.items():
            if method not in slow:
                found = [place.ms(step) for _ in range(1 if plain > 20 else 10)]
                taken[method] += found if turn else []  # the first turn warms up
    return taken


def noise_rows(place: Place) -> list[Row]:
    """A million numbers of noise, beside PyTorch's and NumPy's generators, which are not cryptographic."""
    noise, like, numpy = Noise(), torch.zeros(10**6, device=place.device), np.random.default_rng()
    sources: dict[str, Callable[[], object]] = {
        "sidelight, float32": lambda: noise.normal_like(like, std=2.0),
        "sidelight, float64": lambda: noise.normal(10**6, std=2.0),
        "torch.randn, float32": lambda: torch.randn(10**6, device=place.device),
        "NumPy, float32": lambda: numpy.standard_normal(10**6, dtype=np.float32),
    }
    taken: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(20):
        for name, draw in sources.items():
            taken[name].append(place.ms(draw))
    return [
        {"model": "noise", "method": name, "min_ms": f"{min(some):.3f}", "rounds": str(len(some)),
         "median_ms": f"{statistics.median(some):.3f}", "about": place.about}
        for name, some in taken.items()
    ]  # fmt: skip


def _about() -> str:
    information = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(
        (line.split(":")[1].strip() for line in information if "model name" in line), platform.machine()
    )
    busy = f"load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    return f"{cpu}, {busy}, PyTorch {torch.__version__}, Opacus {version('opacus')}"


# ---------------------------------------------------------------------------------------------------
# the data, and the page that is made of it


def _write(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def page(rows: list[Row]) -> str:
    noise = [row for row in rows if row["model"] == "noise"]
    parts = [_HEADING.format(about=noise[0]["about"]), _summary(rows)]
    for name in dict.fromkeys(row["model"] for row in rows if row["model"] != "noise"):
        parts.append(_section(name, {row["method"]: row for row in rows if row["model"] == name}))
    return "\n\n".join([*parts, _noise_section(noise)]) + "\n"


def _number(row: Row, field: str) -> float:
    return float(row[field]) if row.get(field) else math.nan


def _ratio(rows: dict[str, Row], method: str, field: str) -> float:
    return _number(rows[method], field) / _number(rows["plain"], field)


def _best_of_opacus(rows: dict[str, Row], field: str) -> float:
    found = [_number(row, field) for name, row in rows.items() if name.startswith("Opacus") and row[field]]
    return min(found, default=math.nan)


def _summary(rows: list[Row]) -> str:
    lines = ["| model | sidelight / plain | goal | sidelight / best mode of Opacus | its memory / plain | "
             "/ best mode of Opacus |", "| --- | ---: | --- | ---: | ---: | ---: |"]  # fmt: skip
    for name in dict.fromkeys(row["model"] for row in rows if row["model"] != "noise"):
        some = {row["method"]: row for row in rows if row["model"] == name}
        goal, time_ratio = MODELS[name].goal, _ratio(some, OURS, "median_ms")
        peers = [
            _number(some[OURS], field) / _best_of_opacus(some, field) for field in ("median_ms", "peak_mb")
        ]
        verdict = "none" if goal is None else f"{goal} {'met' if time_ratio <= goal else '**missed**'}"
        cells = [name, f"{time_ratio:.2f}", verdict, _against(peers[0]),
                 f"{_ratio(some, OURS, 'peak_mb'):.2f}", _against(peers[1])]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def quoted(rows: list[Row]) -> str:
    """What other pages say of it."""
    parts = []
    for name in dict.fromkeys(row["model"] for row in rows if row["model"] != "noise"):
        some = {row["method"]: row for row in rows if row["model"] == name}
        peer = _best_of_opacus(some, "median_ms") / _number(some["plain"], "median_ms")
        opacus = "not taken" if math.isnan(peer) else f"{peer:.2f}"
        parts.append(f"{name} {_ratio(some, OURS, 'median_ms'):.2f} ({opacus})")
    return (
        "A whole `dp_sgd` step (sampling, clipped sum, noise, optimizer) in plain steps, and the best of "
        f"Opacus' modes in brackets: {'; '.join(parts)}."
    )


def _against(ratio: float) -> str:
    """Beside Opacus' best mode, which a step is never to exceed."""
    if math.isnan(ratio):
        return "Opacus does not take it"
    return f"{ratio:.2f}" if ratio <= 1 else f"{ratio:.2f} **missed**"


def _section(name: str, rows: dict[str, Row]) -> str:
    about = f"{MODELS[name].name}; {MODELS[name].batch} records in a batch on average."
    lines = [f"### {name}", "", about, "",
             "| step | ms, least | ms, median | × plain | peak MB | × plain | first step, × plain |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for method, row in rows.items():
        if row["refused"]:
            lines.append(f"| {method} | refused: {row['refused']} | | | | | |")
            continue
        first = _number(row, "first_ms") / _number(rows["plain"], "median_ms")
        cells = [method, f"{_number(row, 'min_ms'):.1f}", f"{_number(row, 'median_ms'):.1f}",
                 f"{_ratio(rows, method, 'median_ms'):.2f}", f"{_number(row, 'peak_mb'):.0f}",
                 f"{_ratio(rows, method, 'peak_mb'):.2f}", f"{first:.1f}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _noise_section(rows: list[Row]) -> str:
    met = "met" if _number(rows[0], "min_ms") <= NOISE_GOAL else "**missed**"
    lines = ["### A million numbers of noise", "",
             f"The goal is {NOISE_GOAL:.0f} ms for float32, the type of most networks, from a cryptographic "
             f"generator: {met}. The other libraries' generators are not cryptographic.", "",
             "| source | ms, least | ms, median |", "| --- | ---: | ---: |"]  # fmt: skip
    for row in rows:
        lines.append(f"| {row['method']} | {_number(row, 'min_ms'):.1f} | {_number(row, 'median_ms'):.1f} |")
    return "\n".join(lines)


_HEADING = """## A whole private step

`python -m benchmarks.step`: {about}.

A step samples its batch, takes the clipped gradients, adds noise and moves SGD with momentum. The methods of a
model took turns in one process, on one thread; times are processor time. Plain steps have batches of a fixed size, private ones as many
records as are drawn. Memory is the peak of a step above the idle model and its data. Opacus refuses tied weights and
`nn.LSTM`: it runs two tables in place of one, and its own DPLSTM. Its noise comes from PyTorch's generator. sidelight
examines a model at the first step, which is why that takes longer; it looks at it again at the second, fourth, eighth,
… step, some of which are among the timed ones. Goals are for medians."""  # noqa: E501


if __name__ == "__main__":
    main()
