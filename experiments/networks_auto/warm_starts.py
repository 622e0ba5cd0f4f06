"""python -m experiments.networks_auto.warm_starts [--fold 0 …] [--rate 0.008 …] [--out FOLDER]

Where training on augmented public images should end, and with which step size: on the 3,000 public images of
MNIST's first split alone. A third of them judges; of the rest a tenth is held out, as in a real run, and the
others are trained on. A line of OUT/warm_starts.csv is what held-out images would keep of one training, if a
later look may be worse than the best by half a standard error or by two, and how good that is by the
thousand images that judge.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import torch  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from experiments.coupling_table3.digits import Pair  # noqa: E402
from experiments.networks_auto.tasks import TASKS  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Loading, PublicTraining  # noqa: E402
from sidelight.oracles.network.flat import read  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.problems.datasets import Records  # noqa: E402
from sidelight.problems.network_public import Average, HeldOut, Score, plain_steps, with_rate  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("task", "rate", "fold")
SLACKS = (0.5, 2.0)
RESULTS = ("steps", *(f"{what} {slack:g}" for slack in SLACKS for what in ("kept", "loss", "accuracy")))
LOOKS = 10


class Look(NamedTuple):
    """Parameters at some time, by held-out images and by those that judge."""

    step: int
    what: str
    held_out: Score
    judge: Score


def main(argv: list[str] | None = None) -> None:
    prog = "python -m experiments.networks_auto.warm_starts"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("--task", choices=list(TASKS), default="mnist, augmented")
    parser.add_argument("--fold", type=int, nargs="+", default=[0])
    parser.add_argument("--rate", type=float, nargs="+", default=[0.004, 0.008, 0.016])
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)
    jobs: list[Job] = [
        {"task": args.task, "rate": rate, "fold": fold} for fold in args.fold for rate in args.rate
    ]
    path = args.out / "warm_starts.csv"
    for row in sweep(jobs, run, path, fields=FIELDS, results=RESULTS, workers=1, title="warm starts"):
        print(row)


def run(job: Job) -> dict[str, Any]:
    """One training, and what would be kept of it."""
    looks = trained(job["task"], float(job["rate"]), int(job["fold"]))
    found: dict[str, Any] = {"steps": looks[-1].step}
    for slack in SLACKS:
        one = kept(looks, slack)
        found |= {
            f"kept {slack:g}": f"{one.what} {one.step}",
            f"loss {slack:g}": f"{one.judge.loss:.4f}",
            f"accuracy {slack:g}": f"{one.judge.accuracy:.4f}",
        }
    return found


def trained(name: str, rate: float, fold: int) -> list[Look]:
    """The looks at a training with AdamW and this step size."""
    torch.manual_seed(0)
    task = TASKS[name](0)
    learn, held_out, judge = (records(part) for part in parts(task.public, fold))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    oracle = NetworkOracle(task.model, loss, example=learn.fetch(range(16)))
    steps = PublicTraining(augment=task.augment).steps_for(len(learn))
    how = with_rate(PublicTraining(steps=steps, augment=task.augment), rate)
    average, looks = Average(read(oracle.model)), list[Look]()
    scorers = HeldOut(oracle, held_out), HeldOut(oracle, judge)

    def each(step: int) -> bool:
        average.add(step, read(oracle.model))
        if (step + 1) % (steps // LOOKS) == 0 or step + 1 == steps:
            for what, w in {"iterate": read(oracle.model), "average": average.value}.items():
                scored = (scorer.score_at(w) for scorer in scorers)
                looks.append(Look(step + 1, what, *scored))
        return True

    plain_steps(oracle, learn, how, seed=0, each=each)
    return looks


def kept(looks: Sequence[Look], slack: float) -> Look:
    """The last look that is not worse than the best so far by more than so many standard errors."""
    chosen = best = looks[0]
    for step in dict.fromkeys(one.step for one in looks):
        now = min((one for one in looks if one.step == step), key=lambda one: one.held_out.loss)
        best = min(best, now, key=lambda one: one.held_out.loss)
        gain, error = now.held_out.gain_over(best.held_out)
        chosen = now if gain >= -slack * error else chosen
    return chosen


def parts(public: Pair, fold: int) -> list[Pair]:
    """To learn from, held out, and to judge with."""
    n = len(public[1])
    order = torch.arange(n).roll(-fold * n // 3)
    judge, rest = order[: n // 3], order[n // 3 :]
    few = len(rest) // 10
    return [(public[0][some], public[1][some]) for some in (rest[few:], rest[:few], judge)]


def records(pair: Pair) -> Records:
    return Records(TensorDataset(*pair), Loading(), torch.device("cpu"))


if __name__ == "__main__":
    main()
