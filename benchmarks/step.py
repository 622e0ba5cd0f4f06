"""Time and memory of one private step, ours and Opacus', against a plain step.

    python -m benchmarks.step [--quick] [--out docs/benchmarks/step.md] [--models 0 1 ...] [--rounds N]
                              [--threads N] [--clock wall|cpu] [--methods plain dp_sgd ...]

Methods take turns, so that a busy machine is unfair to all alike; times are medians. On a machine that others
use too, `--threads 1 --clock cpu` counts only the time that a step was given. Memory is measured in a process
of its own for each method: the peak above the model and its data at rest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.memory import peak_above_rest
from benchmarks.models import MODELS, Case
from benchmarks.steps import STEPS, Step

Times = dict[str, float]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SLOW = 10  # times a plain step: such methods take part in every third round only


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="an eighth of each batch, three rounds")
    parser.add_argument("--out", type=Path, help="write the tables to this Markdown file")
    parser.add_argument("--models", type=int, nargs="*", default=range(len(MODELS)))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--methods", nargs="*", choices=STEPS, default=list(STEPS), metavar="METHOD")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--memory-of", nargs=2, metavar=("MODEL", "METHOD"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.memory_of:
        model, method = options.memory_of
        print(json.dumps(memory(_case(int(model), options.quick), method)))
        return
    parts = [heading(options)]
    for model in options.models:
        parts.append(section(model, options))
        print(parts[-1], flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(parts))


def _case(model: int, quick: bool) -> Case:
    case = MODELS[model]
    return (
        replace(case, private=max(2, case.private // 8), public=max(1, case.public // 8)) if quick else case
    )


def build(case: Case, method: str) -> Step:
    torch.manual_seed(0)
    private, public = case.draw(case.private), case.draw(case.public)
    return STEPS[method][0](case, private, public)


def memory(case: Case, method: str) -> int:
    return peak_above_rest(build(case, method))


def times(case: Case, rounds: int, clock: str, methods: Sequence[str] = tuple(STEPS)) -> Times:
    """Medians, in seconds; a method that refuses the model is left out."""
    steps, seconds, now = dict[str, Step](), dict[str, list[float]](), CLOCKS[clock]
    for method in methods:
        try:
            steps[method] = build(case, method)
            steps[method]()
        except (NotImplementedError, ValueError) as error:
            print(f"{case.name}: {method}: {error}", file=sys.stderr)
            steps.pop(method, None)
    for turn in range(rounds):
        for method, step in steps.items():
            if turn % 3 and seconds[method][0] > SLOW * seconds["plain"][0]:
                continue
            start = now()
            step()
            seconds.setdefault(method, []).append(now() - start)
    return {method: statistics.median(taken) for method, taken in seconds.items()}


def memories(model: int, methods: Sequence[str], options: argparse.Namespace) -> Times:
    found = {}
    for method in methods:
        command = [sys.executable, "-m", "benchmarks.step", "--memory-of", str(model), method]
        command += ["--threads", str(options.threads), *(["--quick"] if options.quick else [])]
        # Every tensor is mapped by itself and unmapped when freed: what is left is what is alive.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found[method] = json.loads(done.stdout.splitlines()[-1]) / 2**20
    return found


def section(model: int, options: argparse.Namespace) -> str:
    """The table of one model, and how it stands against the goals."""
    case = _case(model, options.quick)
    parameters = sum(p.numel() for p in case.build().parameters())
    taken = times(case, options.rounds or (3 if options.quick else 9), options.clock, options.methods)
    needed = memories(model, list(taken), options)
    lines = [f"## {case.name}", ""]
    lines += [f"{parameters:,} parameters, {case.private} private and {case.public} public records.", ""]
    lines += ["| step | ms | × plain | peak MB | × plain |", "| --- | ---: | ---: | ---: | ---: |"]
    for method in taken:
        base = STEPS[method][1]
        slower, larger = taken[method] / taken[base], needed[method] / needed[base]
        cells = (
            method,
            f"{1e3 * taken[method]:.1f}",
            f"{slower:.2f}",
            f"{needed[method]:.0f}",
            f"{larger:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *goals(taken, needed), ""])


def goals(taken: Times, needed: Times) -> list[str]:
    both, ours, dope = taken["plain, with public"], taken["dp_sgd"], taken["dope_sgd"]
    public = taken["plain, public alone"]
    checks = [("dope_sgd / plain over the same examples", dope / both, 1.8)]
    checks.append(("dope_sgd / (dp_sgd + public batch)", dope / (ours + public), 1.3))
    for peer, method in (("Opacus ghost, DP-SGD", ours), ("Opacus flat, DOPE by hand", dope)):
        if peer in taken:
            checks.append((f"ours / {peer}", method / taken[peer], 1.0))
    checks.append(("memory of dp_sgd / plain", needed["dp_sgd"] / needed["plain"], 1.5))
    checks.append(("memory of dope_sgd / plain", needed["dope_sgd"] / needed["plain, with public"], 1.5))
    return [
        f"- {'met' if value <= goal else 'MISSED'}: {what} = {value:.2f} (goal {goal})"
        for what, value, goal in checks
    ]


def heading(options: argparse.Namespace) -> str:
    import opacus

    information = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(
        (line.split(":")[1].strip() for line in information if "model name" in line), platform.machine()
    )
    return f"""# One private step

`python -m benchmarks.step` on {cpu}, {os.cpu_count()} cores, with {options.threads} of them; {options.clock}
time, medians; PyTorch {torch.__version__}, Opacus {opacus.__version__}.

Only gradients are timed: noise and optimizer cost the same everywhere. Ratios are to a plain step over the
same examples: private ones for DP-SGD, private and public ones for methods that use both. Memory is the peak
above the idle model and its data. Opacus' ghost clipping refuses tied weights, so Opacus runs the language
model with two tables instead of one.
"""


if __name__ == "__main__":
    main()
