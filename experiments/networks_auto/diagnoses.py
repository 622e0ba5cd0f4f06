"""python -m experiments.networks_auto.diagnoses [--task mnist …] [--out FOLDER]

What `sidelight.diagnose` says about MNIST, CIFAR-10, Adult and SST-2 at ε = 2: public records alone, no
private one is read. Writes OUT/diagnoses.json, and prints each.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import json  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

from experiments.coupling_table3.digits import Pair  # noqa: E402
from experiments.dope_table9.cells import ConvNet  # noqa: E402
from experiments.dope_table9.images import split  # noqa: E402
from experiments.networks_auto.tasks import TASKS  # noqa: E402
from sidelight import diagnose  # noqa: E402
from sidelight.deep import Diagnosis  # noqa: E402

HERE = Path(__file__).parent
NAMES = ("mnist", "cifar10", "adult", "sst2")


def problem(name: str) -> tuple[nn.Module, Pair, int]:
    """A model, its public records, and how many private ones there are."""
    torch.manual_seed(0)
    if name == "cifar10":
        parts = split(seed=0, quick=False)
        return ConvNet(), parts.public, len(parts.private[1])
    task = TASKS[name](0)
    return task.model, task.public, len(task.private[1])


def diagnosed(name: str) -> Diagnosis:
    model, public, n = problem(name)
    return diagnose(model, nn.CrossEntropyLoss(), public, n=n, epsilon=2.0, delta=1e-5)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.networks_auto.diagnoses", description=__doc__
    )
    parser.add_argument("--task", action="append", choices=[*NAMES, "invented"])
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)
    path = args.out / "diagnoses.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in args.task or NAMES:
        found = diagnosed(name)
        print(f"{name}\n{found}\n")
        known[name] = found.to_dict()
        path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
