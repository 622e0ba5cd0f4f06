"""python -m experiments.networks_auto [--task mnist …] [--seeds 1] [--docs PATH]

`Trainer(model, loss, epsilon=2).fit(private, public)` with nothing else, on networks, beside public records
alone and settings by hand; ε = 2, δ = 1e-5. Runs what is missing from OUT/runs.csv, a line a run, and prints
the table. Stop it and start it again as you like. Seconds are processor time.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import json  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402

from experiments.networks_auto.report import page, table  # noqa: E402
from experiments.networks_auto.tasks import TASKS, Task  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Trainer  # noqa: E402
from sidelight.deep.guard import decaying  # noqa: E402
from sidelight.methods.coupling import coupling  # noqa: E402
from sidelight.methods.dope_sgd import dope_sgd  # noqa: E402
from sidelight.observers import Observer  # noqa: E402
from sidelight.oracles.network.flat import evaluating  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("task", "method", "seed")
RESULTS = ("accuracy", "start", "epsilon", "chosen", "step_size", "weight", "evidence", "seconds")
EVERYWHERE = ("auto", "only_public", "auto, no public records")
BY_HAND = tuple(f"{name}, step {size:g}" for name in ("coupling", "dope_sgd") for size in (0.5, 2.0))
LOGISTIC = "logistic regression"  # on the public records: what a network should not fall behind
SMALL = ("adult", "magic", "sst2")  # where a run takes a minute: settings by hand run there


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.networks_auto", description=__doc__)
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument(
        "--only", action="append", choices=[*EVERYWHERE, *BY_HAND, LOGISTIC], help="these methods"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--docs", type=Path, help="also write the page to this Markdown file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    path = args.out / "runs.csv"
    runs = sweep(
        jobs(args), run, path, fields=FIELDS, results=RESULTS, workers=args.workers, title="networks"
    )
    print(table(runs))
    if args.docs:
        args.docs.write_text(page(runs))


def jobs(args: argparse.Namespace) -> list[Job]:
    tasks = args.task or [name for name in TASKS if name != "invented"]
    return [
        {"task": task, "method": method, "seed": seed}
        for seed in range(args.seeds)
        for task in tasks
        for method in args.only or methods(task)
        if task != "mnist, augmented" or "no public" not in method  # there would be nothing to augment
    ]


def methods(task: str) -> tuple[str, ...]:
    if task == "mnist rows":
        return ("only_public", LOGISTIC)
    return *EVERYWHERE, *(BY_HAND if task in SMALL else ())


def run(job: Job) -> dict[str, Any]:
    """One method on one split; nothing is chosen by the test records."""
    torch.manual_seed(int(job["seed"]))
    task, method = TASKS[job["task"]](int(job["seed"])), job["method"]
    if method == LOGISTIC:
        return logistic(task)
    begun = Start(task)
    trainer = make(task, method, int(job["seed"]), begun)
    start = time.process_time()
    trainer.fit(task.private, None if "no public" in method else task.public)
    seconds = time.process_time() - start - begun.seconds
    details = trainer.privacy_.to_dict()["details"]
    shown = ("public_training", "rehearsal", "rehearsed_start", "rehearsed_gain", "reasons", "notes")
    return {
        "accuracy": f"{trainer.evaluate(task.test)['accuracy']:.4f}",
        "start": begun.accuracy,
        "epsilon": f"{trainer.privacy_.epsilon:.4f}",
        "chosen": details.get("chosen", method.split(",")[0]),
        "step_size": details.get("step_size", ""),
        "weight": details.get("weight", ""),
        "evidence": json.dumps({name: details[name] for name in shown if name in details}),
        "seconds": f"{seconds:.0f}",
    }


def logistic(task: Task) -> dict[str, Any]:
    """scikit-learn's, on the public records."""
    start = time.process_time()
    model = LogisticRegression(max_iter=1000).fit(*(part.numpy() for part in task.public))
    right = model.score(*(part.numpy() for part in task.test))
    seconds = f"{time.process_time() - start:.0f}"
    empty = dict.fromkeys(("start", "step_size", "weight"), "")
    return {
        "accuracy": f"{right:.4f}", "epsilon": "0", "chosen": LOGISTIC, "evidence": "{}", "seconds": seconds,
        **empty,
    }  # fmt: skip


class Start(Observer):
    """Scores the network where private steps begin, which is what public records alone lead to."""

    def __init__(self, task: Task) -> None:
        self.task, self.accuracy, self.seconds = task, "", 0.0

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        began = time.process_time()
        images, classes = self.task.test
        with torch.no_grad(), evaluating(self.task.model):
            parts = [self.task.model(images[k : k + 1000]).argmax(1) for k in range(0, len(classes), 1000)]
        self.accuracy = f"{float((torch.cat(parts) == classes).double().mean()):.4f}"
        self.seconds = time.process_time() - began


def make(task: Task, method: str, seed: int, begun: Start) -> Trainer:
    """The trainer: with everything left to `auto`, or with settings by hand."""
    options: dict[str, Any] = {} if method.startswith("auto") else by_hand(task, method)
    return Trainer(
        task.model,
        torch.nn.CrossEntropyLoss(),
        epsilon=2.0,
        delta=1e-5,
        random_state=seed,
        progress=False,
        public_augment=task.augment,
        observers=(begun,),
        **options,
    )


def by_hand(task: Task, method: str) -> dict[str, Any]:
    """A thirtieth of the records in a batch, 20 epochs, a warm start, and the decay of `auto`."""
    if method == "only_public":
        return {"method": "only_public"}
    name, size = method.split(", step ")
    steps, n = 600, len(task.private[1])
    recipe = (
        coupling(weight=0.1, reduction="mean", public_limit=1.0)
        if name == "coupling"
        else dope_sgd(start="warm")
    )
    return {
        "method": recipe.with_parts(start=dope_sgd(start="warm").start),
        "expected_batch_size": n / 30,
        "steps": steps,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=float(size)),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: decaying(step, steps)
        ),
    }


if __name__ == "__main__":
    main()
