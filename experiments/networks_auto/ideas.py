"""python -m experiments.networks_auto.ideas [--task adult …] [--seeds 3] [--out FOLDER]

What could be done with released iterates and public records for nothing, measured: auto's own choice of
method, step size and weight, and then, instead of its decay and finish,

    line search        each step half, once or twice as long, by the loss of held-out public records
    weighted average   twenty iterates, weighted by their loss on held-out public records
    restarts           the decay begins anew half-way, and again at three quarters
    last layer         no private step on the network: a linear model by `PrivateClassifier` (its auto) on
                       what the last layer of the public-trained network sees, with the whole budget

All of them see released parameters and public records alone, so that the guarantee is the same. A quarter of
the private records is set apart and scores; no test record is read. ε = 2, δ = 1e-5. Writes OUT/ideas.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from experiments.coupling_table3.digits import Pair  # noqa: E402
from experiments.networks_auto.tasks import TASKS  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight import PrivateClassifier  # noqa: E402
from sidelight.deep import Trainer  # noqa: E402
from sidelight.deep.guard import decaying  # noqa: E402
from sidelight.deep.network_auto import Choice, recipe_of  # noqa: E402
from sidelight.errors import NotPrivateWarning, PrivacyWarning  # noqa: E402
from sidelight.oracles.network.flat import evaluating, write  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("task", "idea", "seed")
RESULTS = ("accuracy", "loss", "seconds")
IDEAS = ("auto", "line search", "weighted average", "restarts", "last layer", "public records alone")
TASKS_TRIED = ("adult", "magic", "sst2", "mnist rows")
EPSILON, DELTA, LOOKS = 2.0, 1e-5, 20


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.networks_auto.ideas", description=__doc__)
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    jobs = [
        {"task": task, "idea": idea, "seed": seed}
        for seed in range(args.seeds)
        for task in args.task or TASKS_TRIED
        for idea in IDEAS
    ]
    sweep(jobs, run, args.out / "ideas.csv", fields=FIELDS, results=RESULTS, workers=1, title="ideas")


def run(job: Job) -> dict[str, Any]:
    warnings.simplefilter("ignore", NotPrivateWarning)
    warnings.simplefilter("ignore", PrivacyWarning)
    started, tried = time.process_time(), Trial(job["task"], int(job["seed"]))
    logits = tried.last_layer() if job["idea"] == "last layer" else tried.network(job["idea"])
    classes = tried.judge[1]
    return {
        "accuracy": f"{float((logits.argmax(1) == classes).double().mean()):.4f}",
        "loss": f"{float(nn.functional.cross_entropy(logits, classes)):.4f}",
        "seconds": f"{time.process_time() - started:.0f}",
    }


@cache
def chosen(task: str, seed: int) -> Choice:
    """What auto chooses here; every idea takes it as it is."""
    tried = Trial(task, seed)
    made = tried.trainer(None).fit(tried.private, tried.public)
    found: Any = made.privacy_.details
    if found["chosen"] == "only_public":
        return Choice("only_public", 1.0, 1, 1.0)
    step_size, weight = found["step_size"], found.get("weight", 0.0)
    return Choice(found["chosen"], found["expected_batch_size"], found["steps"], step_size, weight)


class Trial:
    """A task whose private records are split into those that train and those that score."""

    def __init__(self, task: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.task, self.seed, parts = task, seed, TASKS[task](seed)
        (rows, classes), (public_rows, public_classes) = parts.private, parts.public
        few, held = len(classes) // 4, len(public_classes) // 10
        self.private: Pair = rows[few:], classes[few:]
        self.judge: Pair = rows[:few], classes[:few]
        self.public: Pair = public_rows[held:], public_classes[held:]
        self.held_out: Pair = public_rows[:held], public_classes[:held]
        self.model = parts.model

    def trainer(self, choice: Choice | None, **options: Any) -> Trainer:
        options.setdefault("method", "auto" if choice is None else recipe_of(choice, guided=True))
        return Trainer(
            self.model, nn.CrossEntropyLoss(), epsilon=EPSILON, delta=DELTA, progress=False,
            random_state=self.seed, validation=TensorDataset(*self.held_out), **options,
        )  # fmt: skip

    def network(self, idea: str) -> Tensor:
        if idea == "public records alone":
            self.only_public()
            return self.logits()
        choice = chosen(self.task, self.seed)
        if idea == "auto" or choice.method == "only_public":
            self.trainer(None).fit(self.private, self.public)
            return self.logits()
        schedule: Callable[[int, int], float] = restarted if idea == "restarts" else decaying
        looking: list[Looking] = []

        def optimizer(parameters: Any) -> torch.optim.Optimizer:
            looking.append(
                Looking(parameters, choice.step_size, self.held_out_loss, search=idea == "line search",
                        every=max(1, choice.steps // LOOKS))
            )  # fmt: skip
            return looking[0]

        self.trainer(
            choice, optimizer=optimizer,
            scheduler=lambda made: torch.optim.lr_scheduler.LambdaLR(
                made, lambda step: schedule(step, choice.steps)
            ),
        ).fit(self.private, self.public)  # fmt: skip
        if idea == "weighted average":
            write(self.model, looking[0].average())
        return self.logits()

    def only_public(self) -> None:
        self.trainer(None, method="only_public").fit(self.private, self.public)

    def held_out_loss(self) -> float:
        with torch.no_grad(), evaluating(self.model):
            return float(nn.functional.cross_entropy(self.model(self.held_out[0]), self.held_out[1]))

    def logits(self) -> Tensor:
        with torch.no_grad(), evaluating(self.model):
            return self.model(self.judge[0])  # type: ignore[no-any-return]

    def last_layer(self) -> Tensor:
        """The linear auto on what the public-trained body makes of a record."""
        self.only_public()
        body = nn.Sequential(*list(self.model.children())[:-1])
        with torch.no_grad(), evaluating(body):
            seen = [
                (body(rows).double().numpy(), classes.numpy())
                for rows, classes in (self.private, self.public, self.held_out, self.judge)
            ]
        (X, y), (P, q), (H, h), (T, _) = seen
        public = (torch.cat([torch.from_numpy(P), torch.from_numpy(H)]).numpy(), [*q, *h])
        model = PrivateClassifier(epsilon=EPSILON, delta=DELTA, random_state=self.seed)
        model.fit(X, y, X_public=public[0], y_public=public[1])
        return torch.from_numpy(model.predict_proba(T)).clamp(min=1e-9).log()


class Looking(torch.optim.SGD):
    """SGD that looks at held-out public records: for the length of each step, or every now and then."""

    def __init__(
        self, parameters: Any, rate: float, loss: Callable[[], float], *, search: bool, every: int
    ) -> None:
        super().__init__(parameters, lr=rate)
        self.loss, self.search, self.every, self.seen = loss, search, every, 0
        self.kept: list[tuple[float, Tensor]] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(self._searched(closure) if self.search else closure)
        self.seen += 1
        if self.seen % self.every == 0:
            self.kept.append((self.loss(), self._flat()))

    def _flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for group in self.param_groups for p in group["params"]])

    def _searched(self, closure: Any) -> Any:
        """Lengthen or shorten the released direction before the step is taken."""
        params = [p for group in self.param_groups for p in group["params"]]
        rate, found = self.param_groups[0]["lr"], dict[float, float]()
        with torch.no_grad():
            before = [p.detach().clone() for p in params]
            for factor in (1.0, 0.5, 2.0):
                for p, old in zip(params, before, strict=True):
                    p.copy_(old - factor * rate * p.grad)
                found[factor] = self.loss()
            best = min(found, key=lambda factor: found[factor])
            for p, old in zip(params, before, strict=True):
                p.copy_(old)
                p.grad.mul_(best)
        return closure

    def average(self) -> Tensor:
        """Weights fall with the loss, in units of what the best and the median of the looks differ by."""
        losses = torch.tensor([loss for loss, _ in self.kept])
        unit = (losses.median() - losses.min()).clamp(min=1e-4)
        weights = torch.softmax(-(losses - losses.min()) / unit, 0)
        return (weights[:, None] * torch.stack([flat for _, flat in self.kept])).sum(0)


def restarted(step: int, steps: int) -> float:
    """auto's decay over the first half, then over the next quarter, then over the last."""
    begins = [0, steps // 2, steps - steps // 4]
    start = max(begin for begin in begins if begin <= step)
    ends = {begin: end for begin, end in zip(begins, [*begins[1:], steps], strict=True)}
    return decaying(step - start, ends[start] - start)


if __name__ == "__main__":
    main()
