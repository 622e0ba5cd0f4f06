"""python -m experiments.deep_tables.figure2 [--seeds 3] [--out FOLDER]

Figure 2 of the DOPE-SGD paper in small: at every step of a private run, the dot product and the cosine of
what was released with the gradient of the private records themselves, without clipping and noise. Features
of CIFAR-10's images, four copies of each public one, ε = 2, from a warm and from a cold start. That gradient
is read for this figure alone: it is not private, and no product does it. Writes OUT/figure2.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import csv  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Iterable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from experiments.deep_tables.__main__ import DELTA, method_of, warmed  # noqa: E402
from experiments.deep_tables.cells import job  # noqa: E402
from experiments.deep_tables.problems import Pair, model_of, problem  # noqa: E402
from experiments.rehearsals import decaying, plan_for, step_size_for  # noqa: E402
from sidelight.deep import Trainer  # noqa: E402
from sidelight.deep.gradient_points import use_of  # noqa: E402
from sidelight.errors import NotPrivateWarning  # noqa: E402
from sidelight.methods.dope_sgd import Warm  # noqa: E402
from sidelight.methods.parts import Cold  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("start", "method", "seed", "step", "dot", "cosine")


class Comparing(torch.optim.SGD):
    """SGD that compares what it is given with the gradient of these records."""

    def __init__(self, parameters: Any, rate: float, model: nn.Module, records: Pair) -> None:
        super().__init__(parameters, lr=rate)
        self.model, self.records = model, records
        self.dots: list[tuple[float, float]] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"]]
        released = torch.cat([p.grad.flatten() for p in params])
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(self.model(self.records[0]), self.records[1])
            found: Iterable[Tensor] = torch.autograd.grad(loss, params)
        own = torch.cat([g.flatten() for g in found])
        dot = float(released @ own)
        self.dots.append((dot, dot / float(released.norm() * own.norm() + 1e-30)))
        super().step(closure)


def run(name: str, start: str, method: str, seed: int) -> list[tuple[float, float]]:
    """Dot products and cosines, a step each."""
    one = job(name, method, start=start, copies=4, seed=seed)
    records, model = problem(name, seed), model_of(name, seed)
    size = int(one["public"]) if name == "cifar" else 80
    public, held_out = records.public(size, copies=4, seed=seed)
    if start == "warm":
        model.load_state_dict(warmed(name, size, 4, "", seed))
    n, dimension = len(records.private[1]), sum(p.numel() for p in model.parameters())
    plan = plan_for(n, dimension, epsilon=2.0, delta=DELTA, relation="add-or-remove-one")
    recipe = method_of(one, {}).with_parts(start=Cold())
    begun = recipe.with_parts(start=Warm()) if start == "warm" else recipe
    rate = step_size_for(plan, dimension, public=use_of(begun))
    made: list[Comparing] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made.append(Comparing(parameters, rate, model, records.private))
        return made[0]

    Trainer(
        model, nn.CrossEntropyLoss(), method=recipe, epsilon=2.0, delta=DELTA, steps=plan.steps,
        expected_batch_size=plan.batch, public_batch_size=256, random_state=seed, progress=False,
        validation=TensorDataset(*held_out), optimizer=optimizer,
        scheduler=lambda given: torch.optim.lr_scheduler.LambdaLR(given, lambda k: decaying(k, plan.steps)),
    ).fit(records.private, public)  # fmt: skip
    return made[0].dots


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.deep_tables.figure2", description=__doc__)
    parser.add_argument("--problem", choices=("cifar", "invented"), default="cifar")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore", NotPrivateWarning)
    torch.set_num_threads(1)
    with (args.out / "figure2.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for start in ("warm", "cold"):
            for method in ("dp_sgd", "dope_sgd"):
                for seed in range(args.seeds):
                    for step, (dot, cosine) in enumerate(run(args.problem, start, method, seed)):
                        writer.writerow([start, method, seed, step, f"{dot:.4g}", f"{cosine:.3f}"])


if __name__ == "__main__":
    main()
