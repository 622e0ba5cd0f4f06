"""python -m experiments.networks_auto [--task mnist …] [--seeds 3] [--epsilon 0.5 2 8] [--docs PATH]

`Trainer(model, loss, epsilon=…).fit(private, public)` with nothing else, on networks, beside what a
practitioner would run by hand: public records alone, DP-SGD cold and from that start, and no privacy;
δ = 1e-5. Runs what is missing from OUT/runs.csv, one line per run, seed by seed, and prints the table. Stop
it and start it again as you like. Seconds are processor time.

By hand (`BY_HAND`), the same for every problem: AdamW with one cycle on all public records; DP-SGD with
B = 2048 or an eighth of the records, C = 1, momentum 0.9, a learning rate of 0.4 that falls along a cosine,
12 epochs, run by Opacus.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import json  # noqa: E402
import math  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, ClassVar  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from experiments.networks_auto.report import BY_NAME, page, table  # noqa: E402
from experiments.networks_auto.tasks import DEVELOPED, SCORED_ONCE, TASKS, Task  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Trainer  # noqa: E402
from sidelight.deep import trainer as trainer_module  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.problems import network  # noqa: E402
from sidelight.problems.flat_parameters import read as read_params  # noqa: E402
from sidelight.problems.flat_parameters import write as write_params  # noqa: E402
from sidelight.problems.public_training import train_well  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("task", "method", "epsilon", "seed")
RESULTS = ("accuracy", "loss", "spent", "evidence", "seconds")
EPSILONS = (0.5, 2.0, 8.0)
DELTA = 1e-5
FREE = ("only_public", "public by hand", "no privacy")  # which no ε concerns
PRIVATE = ("auto", "opacus by hand, cold", "opacus by hand, warm")
BY_HAND = {
    "public": {"lr": 2e-3, "weight_decay": 0.05, "label_smoothing": 0.05, "epochs": 40, "batch": 64},
    "private": {"batch": 2048, "largest_share": 1 / 8, "clip_norm": 1.0, "momentum": 0.9, "lr": 0.4,
                "epochs": 12},
}  # fmt: skip


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.networks_auto", description=__doc__)
    parser.add_argument("--task", nargs="+", choices=list(TASKS))
    parser.add_argument("--only", nargs="+", choices=[*PRIVATE, *FREE, *BY_NAME], help="these methods")
    parser.add_argument("--by-name", action="store_true", help="every method by its name too")
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--docs", type=Path, help="also write the page to this Markdown file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    warnings.simplefilter("ignore")
    runs = sweep(
        jobs(args), run, args.out / "runs.csv", fields=FIELDS, results=RESULTS, workers=args.workers,
        title="networks",
    )  # fmt: skip
    print(table(runs))
    if args.docs:
        args.docs.write_text(page(runs, planned=len(jobs(arguments([])))))


def jobs(args: argparse.Namespace) -> list[Job]:
    grid = tuple(name for name in (*DEVELOPED, *SCORED_ONCE) if name != "mnist")
    return [
        {"task": task, "method": method, "epsilon": f"{epsilon:g}", "seed": seed}
        for seed in range(args.seeds)
        for task in args.task or grid
        for method in args.only or (*FREE, *PRIVATE, *(BY_NAME if args.by_name else ()))
        for epsilon in ((0.0,) if method in FREE else args.epsilon)
    ]


def run(job: Job) -> dict[str, Any]:
    """One method on one split; nothing is chosen by the test records."""
    seed, epsilon, method = int(job["seed"]), float(job["epsilon"]), job["method"]
    torch.manual_seed(seed)
    task = TASKS[job["task"]](seed)
    began = time.process_time()
    details: dict[str, Any] = {}
    if method in ("public by hand", "no privacy"):
        plain(task, everything=method == "no privacy")
        spent = 0.0
    elif "opacus" in method:
        if "warm" in method:
            plain(task)
        task, spent = by_opacus(task, epsilon)
    else:
        trainer = make(task, method, epsilon, seed)
        with WarmStarts(f"{job['task']}, {seed}") as starts:
            trainer.fit(task.private, task.public)
        began -= starts.saved
        details, spent = trainer.privacy_.to_dict()["details"], trainer.privacy_.epsilon
    seconds = time.process_time() - began
    accuracy, loss = score(task)
    shown = ("public_training", "chosen", "step_size", "compared_with_start", "steps", "notes")
    return {
        "accuracy": f"{accuracy:.4f}", "loss": f"{loss:.4f}",
        "spent": "0" if method in FREE else f"{spent:.4f}",
        "evidence": json.dumps({name: details[name] for name in shown if name in details}),
        "seconds": f"{seconds:.1f}",
    }  # fmt: skip


class WarmStarts:
    """Within a process, a warm start is trained once for all ε of a split, and its seconds count for each."""

    known: ClassVar[dict[str, tuple[torch.Tensor, Any, float]]] = {}

    def __init__(self, split: str) -> None:
        self.split, self.saved = split, 0.0

    def __enter__(self) -> WarmStarts:
        for where in (network, trainer_module):
            where.train_well = self.train_well  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        for where in (network, trainer_module):
            where.train_well = train_well  # type: ignore[attr-defined]

    def train_well(self, oracle: NetworkOracle, *args: Any, **options: Any) -> Any:
        if self.split not in self.known:
            began = time.process_time()
            chosen = train_well(oracle, *args, **options)
            self.known[self.split] = read_params(oracle.model), chosen, time.process_time() - began
            return chosen
        params, chosen, self.saved = self.known[self.split]
        write_params(oracle.model, params)
        return chosen


def plain(task: Task, *, everything: bool = False) -> None:
    """AdamW with one cycle, on the public records or on all of them."""
    how, pairs = BY_HAND["public"], [task.public] + ([task.private] if everything else [])
    x, y = (torch.cat([pair[k] for pair in pairs]) for k in (0, 1))
    epochs, batch = (10, 256) if everything else (int(how["epochs"]), int(how["batch"]))
    steps = math.ceil(len(y) / batch)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=how["lr"], weight_decay=how["weight_decay"])
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, how["lr"], total_steps=epochs * steps)
    loss = nn.CrossEntropyLoss(label_smoothing=how["label_smoothing"])
    task.model.train()
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(y)), batch):
            inputs = x[rows] if task.augment is None else task.augment(x[rows])
            optimizer.zero_grad()
            loss(task.model(inputs), y[rows]).backward()
            optimizer.step()
            cycle.step()


def score(task: Task) -> tuple[float, float]:
    """Accuracy and cross-entropy of the test records."""
    task.model.eval()
    with torch.no_grad():
        scores = torch.cat([task.model(part) for part in torch.split(task.test[0], 1000)])
    right = float((scores.argmax(1) == task.test[1]).double().mean())
    return right, float(nn.functional.cross_entropy(scores, task.test[1]))


def make(task: Task, method: str, epsilon: float, seed: int) -> Trainer:
    """The trainer, with everything left to the method."""
    return Trainer(
        task.model, nn.CrossEntropyLoss(), epsilon=epsilon or 1.0, delta=DELTA, random_state=seed,
        progress=False, public_augment=task.augment, method=method,
    )  # fmt: skip


class Rows(TensorDataset):
    """Tensors that give all rows of a batch at once."""

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, ...]:
        return tuple(part[rows] for part in self.tensors)


def by_opacus(task: Task, epsilon: float) -> tuple[Task, float]:
    """DP-SGD as `BY_HAND` says, by Opacus; and the ε that it says was spent."""
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from opacus.validators import ModuleValidator

    how, n = BY_HAND["private"], len(task.private[1])
    batch, epochs = int(min(how["batch"], how["largest_share"] * n)), int(how["epochs"])
    task.model.train()
    if not ModuleValidator.is_valid(task.model):  # an LSTM: Opacus has one of its own, and keeps the weights
        task = replace(task, model=ModuleValidator.fix(task.model))
    engine = PrivacyEngine(accountant="prv")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=task.model,
        optimizer=torch.optim.SGD(task.model.parameters(), lr=how["lr"], momentum=how["momentum"]),
        data_loader=DataLoader(Rows(*task.private), batch_size=batch, collate_fn=lambda rows: rows),
        target_epsilon=epsilon, target_delta=DELTA, epochs=epochs, max_grad_norm=how["clip_norm"],
    )  # fmt: skip
    steps, loss = epochs * len(loader), nn.CrossEntropyLoss()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=128, optimizer=optimizer) as parts:
        for _ in range(epochs):
            for inputs, labels in parts:
                optimizer.zero_grad()
                loss(model(inputs), labels).backward()
                optimizer.step()
                if not optimizer._is_last_step_skipped:
                    schedule.step()
    return replace(task, model=model._module), float(engine.get_epsilon(DELTA))


if __name__ == "__main__":
    main()
