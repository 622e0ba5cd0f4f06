"""python -m experiments.dope_table9 [--seeds 3] [--epsilons 2 1 4 6] [--most N] [--generated] [--docs PATH]

Tables 1, 2 and 9 of DOPE-SGD on CIFAR-10 images, δ = 1e-5, a ConvNet of three layers: runs what is missing
from OUT/choice.csv (step sizes and limits of the origin, chosen on public images) and then from OUT/runs.csv,
one line per cell, the most telling cells first, and prints the table beside the paper's numbers. Stop it and
start it again as you like; `--most 1` stops after one line. CIFAR-10 is looked for in $SIDELIGHT_DATA (see
experiments.datasets.cifar10). A cell takes four to six minutes of one core, a line of choice.csv half of one.
`--generated` adds cells with images of a diffusion model that is trained first (see `generated`).
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

from experiments.dope_table9 import choice
from experiments.dope_table9.cells import (
    BATCH,
    DELTA,
    EPSILONS,
    GENERATED,
    HEADLINE,
    PUBLIC_BATCH,
    REST,
    STEPS,
    ConvNet,
    linear_decay,
    method_of,
    sgd,
    train_publicly,
)  # fmt: skip
from experiments.dope_table9.images import Images, Pair, enlarged, split
from experiments.dope_table9.report import page, table
from experiments.sweep import Job, keep_memory, sweep
from sidelight.deep import Ensemble, Loading, Trainer
from sidelight.deep.network_parts import EnsembleWeights
from sidelight.errors import NotPrivateWarning
from sidelight.files import whole_file
from sidelight.problems.flat_parameters import write

HERE = Path(__file__).parent
FIELDS = ("method", "setting", "augmentation", "epsilon", "seed")
RESULTS = (
    "step_size", "limit", "last", "mean", "vote", "validation", "spent", "noise_multiplier", "cpu_seconds",
)  # fmt: skip
VOTERS = 5  # of the kept iterates, evenly spaced


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.dope_table9", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--only", help="cells whose 'method/setting/augmentation' contains this text")
    parser.add_argument("--most", type=int, help="new lines of a file, before it stops")
    parser.add_argument("--generated", action="store_true", help="also the cells with generated images")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--docs", type=Path, help="write the page to this file, from the runs so far")
    parser.add_argument("--quick", action="store_true", help="invented images and few steps, to try it out")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args, console = arguments(argv), Console()
    choices = args.out / "choice.csv"
    rehearsals = choice.jobs(quick=args.quick)
    found = sweep(
        rehearsals, choice.rehearse, choices, fields=choice.FIELDS, results=choice.RESULTS, workers=1,
        title="choices", most=args.most,
    )  # fmt: skip
    ready = len(found) >= len(rehearsals)
    runs = sweep(
        _jobs(args) if ready else [], run, args.out / "runs.csv", fields=FIELDS, results=RESULTS, workers=1,
        title="Table 9", most=args.most,
    )  # fmt: skip
    console.print(table(runs), markup=False, soft_wrap=True)
    if args.docs:
        args.docs.parent.mkdir(parents=True, exist_ok=True)
        args.docs.write_text(page(runs, HERE / "page.md"))


def _jobs(args: argparse.Namespace) -> list[Job]:
    """Of every ε the headline at every seed, then the rest."""
    jobs: list[Job] = []
    rest = REST + GENERATED if args.generated else REST
    for epsilon in args.epsilons:
        for cells in (HEADLINE, rest):
            for seed in range(args.seeds):
                for method, setting, augmentation in cells:
                    cell = {"method": method, "setting": setting, "augmentation": augmentation}
                    skipped = args.only and args.only not in "/".join(cell.values())
                    if not skipped and (method != "only_public" or epsilon == args.epsilons[0]):
                        charged = 0.0 if method == "only_public" else epsilon
                        more = {"epsilon": charged, "seed": seed, "quick": args.quick, "out": str(args.out)}
                        jobs.append({**cell, **more})
    return jobs


def run(job: Job) -> dict[str, Any]:
    """One cell. `validation` is of public images that were set apart; the others are of the test images."""
    torch.set_num_threads(1)
    keep_memory()
    start = time.process_time()
    images = split(seed=job["seed"], quick=job["quick"])
    torch.manual_seed(job["seed"])
    model = ConvNet()
    public = enlarged(
        images.public, job["augmentation"], seed=job["seed"], quick=job["quick"], out=Path(job["out"])
    )
    if job["setting"].startswith("warm"):
        model.load_state_dict(warm_start(job, public))
    if job["method"] == "only_public":
        found = dict.fromkeys(RESULTS, "")
        found |= {"last": accuracy(model, images.test), "validation": accuracy(model, images.validation)}
    else:
        found = _private(job, model, images, public)
    return {**found, "cpu_seconds": f"{time.process_time() - start:.0f}"}


def _private(job: Job, model: ConvNet, images: Images, public: Pair) -> dict[str, Any]:
    quick, steps = job["quick"], 2 if job["quick"] else STEPS
    size, limit = choice.chosen(Path(job["out"]) / "choice.csv", job["method"], job["setting"])
    trainer = Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        method=method_of(job["method"], job["setting"], limit),
        epsilon=job["epsilon"],
        delta=DELTA,
        expected_batch_size=40 if quick else BATCH,
        steps=steps,
        optimizer=sgd(size),
        scheduler=linear_decay(steps),
        public_batch_size=20 if quick else PUBLIC_BATCH,
        validation=TensorDataset(*images.validation),
        health_check=False,
        stop_if_dead=False,
        loading=Loading(micro_batch=512),
        random_state=job["seed"],
        progress=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        trainer.fit(images.private, public)
    members: Tensor = trainer.model_.members  # type: ignore[assignment]
    scores = ensembles(model, members, images.test)
    write(model, members[-1])
    return {
        "step_size": size,
        "limit": limit,
        **scores,
        "validation": accuracy(model, images.validation),
        "spent": f"{trainer.privacy_.epsilon:.4f}",
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


def warm_start(job: Job, public: Pair) -> dict[str, Tensor]:
    """Parameters after plain training on the enlarged public images; made once, then read from OUT/starts."""
    path = Path(job["out"]) / "starts" / f"{job['augmentation']}-{job['seed']}.safetensors"
    if not path.exists():
        torch.manual_seed(job["seed"])
        model = ConvNet()
        train_publicly(model, public, seed=job["seed"], quick=job["quick"])
        with whole_file(path, parents=True) as new:
            save_file(model.state_dict(), new)
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
