"""python -m experiments.dope_table9 [--seeds 1] [--only TEXT] [--generated] [--docs PATH] [--quick]

CIFAR-10, ε = 2, δ = 1e-5, a ConvNet of three layers: runs what is missing from OUT/runs.csv, one line a cell,
and prints the table beside the paper's numbers. Stop it and start it again as you like. CIFAR-10 is looked
for in $SIDELIGHT_DATA (see experiments.datasets.cifar10). A cell takes minutes on one core.
`--generated` adds cells with images of a diffusion model that is trained first (see `generated`).
`--rehearse` runs cells with transformed public images in the place of the private ones, and scores them on
public images.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import TensorDataset

from experiments.dope_table9.cells import (
    BATCH,
    CELLS,
    GENERATED,
    PUBLIC_BATCH,
    ConvNet,
    method_of,
    optimizer_of,
    warm_up,
)  # fmt: skip
from experiments.dope_table9.images import Images, Pair, enlarged, split, transformed
from experiments.dope_table9.report import page, table
from experiments.sweep import Job, sweep
from sidelight.deep import Ensemble, Loading, Trainer
from sidelight.deep.network_parts import EnsembleWeights
from sidelight.errors import NotPrivateWarning
from sidelight.files import whole_file
from sidelight.methods.baselines import only_public
from sidelight.oracles.network.flat import write

HERE = Path(__file__).parent
FIELDS = ("method", "setting", "augmentation", "seed", "steps", "step_size")
RESULTS = ("last", "mean", "vote", "validation", "epsilon", "noise_multiplier", "cpu_seconds")
VOTERS = 5  # of the kept iterates, evenly spaced


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.dope_table9", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--only", help="cells whose 'method/setting/augmentation' contains this text")
    parser.add_argument("--generated", action="store_true", help="also the cells with generated images")
    parser.add_argument("--rehearse", type=float, nargs="+", metavar="STEP_SIZE", help="try these step sizes")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--docs", type=Path, help="write the page to this file, from the runs so far")
    parser.add_argument("--quick", action="store_true", help="invented images and few steps, to try it out")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args, console = arguments(argv), Console()
    path = args.out / ("rehearsal.csv" if args.rehearse else "runs.csv")
    runs = sweep(_jobs(args), run, path, fields=FIELDS, results=RESULTS, workers=1, title="Table 9")
    console.print(table(runs), markup=False, soft_wrap=True)
    if args.docs:
        args.docs.parent.mkdir(parents=True, exist_ok=True)
        args.docs.write_text(page(runs, HERE / "page.md"))


def _jobs(args: argparse.Namespace) -> list[Job]:
    jobs: list[Job] = []
    for seed in range(args.seeds):
        for cell in CELLS + GENERATED if args.generated else CELLS:
            if args.only and args.only not in "/".join(cell):
                continue
            names = dict(zip(("method", "setting", "augmentation"), cell, strict=True))
            rest = {"seed": seed, "steps": args.steps, "quick": args.quick, "out": str(args.out)}
            for step_size in args.rehearse or [""]:
                jobs.append({**names, **rest, "step_size": step_size, "rehearsal": bool(args.rehearse)})
    return jobs


def run(job: Job) -> dict[str, Any]:
    """One cell. `validation` is of public images that were set apart; the others are of the test images."""
    torch.set_num_threads(1)
    start = time.process_time()
    images = split(seed=job["seed"], quick=job["quick"])
    torch.manual_seed(job["seed"])
    model = ConvNet()
    if job["setting"] != "cold":
        model.load_state_dict(warm_start(job, images))
    if job["method"] == "only_public":
        found = {"last": accuracy(model, images.test), "validation": accuracy(model, images.validation)}
    else:
        found = _private(job, model, images)
    return {**found, "cpu_seconds": f"{time.process_time() - start:.0f}"}


def _private(job: Job, model: ConvNet, images: Images) -> dict[str, str]:
    quick, rehearsal = job["quick"], job["rehearsal"]
    public = enlarged(images.public, job["augmentation"], seed=job["seed"], quick=quick, out=Path(job["out"]))
    private = transformed(images.public, len(images.private[1]), seed=99) if rehearsal else images.private
    trainer = Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        method=method_of(job["method"], job["setting"]),
        epsilon=2.0,
        delta=1e-5,
        expected_batch_size=40 if quick else BATCH,
        steps=2 if quick else job["steps"],
        optimizer=optimizer_of(job["method"], job["setting"], job["step_size"] or None),
        public_batch_size=20 if quick else PUBLIC_BATCH,
        validation=TensorDataset(*images.validation),
        loading=Loading(micro_batch=256),
        random_state=job["seed"],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        trainer.fit(private, public)
    members: Tensor = trainer.model_.members  # type: ignore[assignment]
    scores = ensembles(model, members, images.validation if rehearsal else images.test)
    write(model, members[-1])
    return {
        **scores,
        "validation": accuracy(model, images.validation),
        "epsilon": f"{trainer.privacy_.epsilon:.4f}",
        "noise_multiplier": f"{trainer.privacy_.details['noise_multiplier']:.4f}",
    }


def ensembles(model: ConvNet, members: Tensor, images: Pair) -> dict[str, str]:
    """Test accuracy of the last iterate, of the mean of the kept ones, and of a vote of some of them."""
    voters = members[torch.linspace(0, len(members) - 1, min(VOTERS, len(members))).round().long()]
    found = {}
    for name, params in (("last", members[-1]), ("mean", members.mean(0))):
        write(model, params)
        found[name] = accuracy(model, images)
    found["vote"] = accuracy(Ensemble(model, EnsembleWeights(list(voters), "majority")), images)
    return found


def warm_start(job: Job, images: Images) -> dict[str, Tensor]:
    """Parameters after plain training on the enlarged public images; made once, then read from OUT/starts."""
    quick, seed, out = job["quick"], job["seed"], Path(job["out"])
    path = out / "starts" / f"{job['augmentation']}-{seed}.safetensors"
    if path.exists():
        return load_file(path)
    public = enlarged(images.public, job["augmentation"], seed=seed, quick=quick, out=out)
    how = warm_up(job["augmentation"], quick=quick)
    trainer = Trainer(
        ConvNet(), torch.nn.CrossEntropyLoss(), method=only_public(), epsilon=2.0, steps=how.steps,
        expected_batch_size=how.batch_size, optimizer=how.optimizer, random_state=seed,
        validation=TensorDataset(*images.validation),
    )  # fmt: skip
    trainer.fit(images.private, public)
    with whole_file(path, parents=True) as new:
        save_file(trainer.model.state_dict(), new)
    return load_file(path)


def accuracy(model: torch.nn.Module, images: Pair) -> str:
    with torch.no_grad():
        right = [
            (model(some).argmax(1) == labels).sum()
            for some, labels in zip(torch.split(images[0], 1000), torch.split(images[1], 1000), strict=True)
        ]
    return f"{float(sum(right)) / len(images[1]):.4f}"


if __name__ == "__main__":
    main()
