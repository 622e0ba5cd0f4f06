"""python -m experiments.deep_tables [--table TEXT] [--seeds 3] [--workers 1] [--docs PATH]

The deep tables and figures of the DOPE-SGD and Coupling papers in small: features of CIFAR-10's images, and
MNIST as a table, a network with one hidden layer, δ = 1e-5, adding or removing one record. Every cell takes
batch, steps, clip norm, step size and decay by one rule. Runs what is missing from OUT/runs.csv, a line a
cell; stop it and start it again as you like.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import functools  # noqa: E402
import math  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from experiments.deep_tables.cells import FIELDS, TABLES, job  # noqa: E402
from experiments.deep_tables.problems import Pair, model_of, problem  # noqa: E402
from experiments.deep_tables.report import page  # noqa: E402
from experiments.rehearsals import decaying, plan_for, step_size_for  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import MajorityVote, MeanLogits, Trainer  # noqa: E402
from sidelight.deep.gradient_points import use_of  # noqa: E402
from sidelight.errors import NotPrivateWarning  # noqa: E402
from sidelight.methods import MeanLast  # noqa: E402
from sidelight.methods.adadps import adadps  # noqa: E402
from sidelight.methods.adamix import QuantileClip, Subspace, adamix  # noqa: E402
from sidelight.methods.coupling import coupling  # noqa: E402
from sidelight.methods.dope_sgd import Warm, dope_sgd  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd, full_private  # noqa: E402
from sidelight.methods.dpmd import dpmd  # noqa: E402
from sidelight.methods.part_kinds import FinishRule  # noqa: E402
from sidelight.methods.parts import Cold, Ema, Last  # noqa: E402
from sidelight.methods.recipe import Recipe  # noqa: E402

HERE = Path(__file__).parent
RESULTS = ("accuracy", "spent", "steps", "step_size", "seconds")
DELTA = 1e-5


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.deep_tables", description=__doc__)
    parser.add_argument("--table", action="append", help="those whose names hold this text")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--docs", type=Path, help="also write the page to this Markdown file")
    parser.add_argument("--quick", action="store_true", help="a few cells of invented rows, to try it out")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    runs = sweep(
        jobs(args), run, args.out / "runs.csv", fields=FIELDS, results=RESULTS, workers=args.workers,
        title="cells",
    )  # fmt: skip
    text = page(runs)
    print(text)
    if args.docs:
        args.docs.write_text(text)


def jobs(args: argparse.Namespace) -> list[Job]:
    """Every cell once, in the order of the tables; further seeds after the first."""
    if args.quick:
        starts = [("dp_sgd", "cold"), ("dope_sgd", "warm"), ("dope_sgd", "warm-ext"), ("coupling", "cold")]
        return [job("invented", method, start=start, public=80) for method, start in starts]
    wanted = [
        cell
        for name, cells in TABLES.items()
        if not args.table or any(text in name for text in args.table)
        for cell in cells
    ]
    once = {tuple(cell.items()): cell for cell in wanted}
    return [{**cell, "seed": seed} for seed in range(args.seeds) for cell in once.values()]


def run(one: Job) -> dict[str, Any]:
    """One cell; the test records score once."""
    start = time.process_time()
    warnings.simplefilter("ignore", NotPrivateWarning)
    torch.set_num_threads(1)
    seed, records = int(one["seed"]), problem(one["problem"], int(one["seed"]))
    public, held_out = records.public(
        int(one["public"]), copies=int(one["copies"]), corrupt=one["corrupt"], seed=seed
    )  # fmt: skip
    model = model_of(one["problem"], seed)
    if one["start"].startswith("warm") or one["method"] == "only_public":
        known = int(one["public"]), int(one["copies"]), one["corrupt"]
        model.load_state_dict(warmed(one["problem"], *known, seed))
    steps, size, spent = 0, 0.0, 0.0
    if one["method"] != "only_public":
        trainer, steps, size = trained(one, model, records.private, public, held_out)
        spent, model = trainer.privacy_.epsilon, trainer.model_
    with torch.no_grad():
        right = (model(records.test[0]).argmax(1) == records.test[1]).double().mean()
    return {
        "accuracy": f"{float(right):.4f}", "spent": f"{spent:.4f}", "steps": steps,
        "step_size": f"{size:.3g}", "seconds": f"{time.process_time() - start:.1f}",
    }  # fmt: skip


@functools.cache
def warmed(name: str, size: int, copies: int, corrupt: str, seed: int) -> dict[str, Any]:
    """The parameters after training on these public records, as `only_public` does it."""
    records, model = problem(name, seed), model_of(name, seed)
    public, held_out = records.public(size, copies=copies, corrupt=corrupt, seed=seed)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), method="only_public", epsilon=1.0, random_state=seed, progress=False,
        validation=TensorDataset(*held_out),
    )  # fmt: skip
    trainer.fit(records.private, public)
    return {key: value.clone() for key, value in model.state_dict().items()}


def trained(
    one: Job, model: nn.Module, private: Pair, public: Pair, held_out: Pair
) -> tuple[Trainer, int, float]:
    """A run with batch, steps, step size and decay by rule."""
    options = dict(part.split("=") for part in one["option"].split(",") if "=" in part)
    n, dimension = len(private[1]), sum(p.numel() for p in model.parameters())
    if one["method"] == "non_private":
        plain = Trainer(
            model,
            nn.CrossEntropyLoss(),
            method="non_private",
            epsilon=1.0,
            random_state=0,
            validation=TensorDataset(*held_out),
        )
        return plain.fit(private, public), 0, 0.0
    epsilon, extended = float(one["epsilon"]), one["start"].endswith("-ext")
    batch = (
        float(options.get("batch", 0))
        or plan_for(n, dimension, epsilon=epsilon, delta=DELTA, relation="add-or-remove-one").batch
    )
    epochs = float(options.get("epochs", 0))
    plan = plan_for(
        n, dimension, epsilon=epsilon, delta=DELTA, relation="add-or-remove-one", batch=batch,
        steps=math.ceil(epochs * n / batch) if epochs else None,
    )  # fmt: skip
    recipe = method_of(one, options).with_parts(start=Cold(), extended=extended)
    begun = recipe if one["start"] == "cold" else recipe.with_parts(start=Warm())  # it is warm already
    size = step_size_for(plan, dimension, public=use_of(begun))
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), method=recipe, epsilon=epsilon, delta=DELTA, steps=plan.steps,
        expected_batch_size=plan.batch, public_batch_size=256, random_state=int(one["seed"]),
        validation=TensorDataset(*held_out), progress=False, stop_if_dead=False,  # public images may be wrong
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=size),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: decaying(step, plan.steps)
        ),
    )  # fmt: skip
    return trainer.fit(private, public), plan.steps, size


def method_of(one: Job, options: dict[str, str]) -> Recipe:
    """C = 1, public gradients of length 1 at most, an origin of 0.1, unless the cell says otherwise."""
    finish = finish_of(one["finish"])
    name = one["method"]
    if name == "dp_sgd":
        return dp_sgd(clip_norm=1.0, finish=finish)
    if name == "full_private":
        return full_private(clip_norm=1.0).with_parts(finish=finish)
    if name == "dope_sgd":
        limit = float(options["limit"]) if "limit" in options else None
        return dope_sgd(clip_norm=1.0, origin_limit=limit, finish=finish)
    if name == "dpmd":
        return dpmd(clip_norm=1.0, public_limit=1.0, finish=finish)
    if name == "adadps":
        return adadps().with_parts(finish=finish, step_size=None)
    if name == "adamix":
        return adamix(rank=50).with_parts(finish=finish)
    weight = float(options["weight"]) if "weight" in options else pooled(one)
    made = coupling(weight=weight, reduction="mean", public_limit=1.0, gamma=0.01, finish=finish)
    if options.get("clip") == "adaptive":
        made = made.with_parts(clip=QuantileClip(0.9))
    return made.with_parts(metric=Subspace(50)) if "projection" in one["option"] else made


def pooled(one: Job) -> float:
    """Public records count by their share, as in `auto`."""
    return int(one["public"]) / (int(one["public"]) + 10_000)


def finish_of(text: str) -> FinishRule:
    kind, _, number = text.partition(" ")
    made: dict[str, Any] = {
        "last": Last, "mean": MeanLogits, "vote": MajorityVote, "ema": Ema, "average": MeanLast,
    }  # fmt: skip
    rule: FinishRule = made[kind](*([float(number) if kind == "ema" else int(number)] if number else []))
    return rule


if __name__ == "__main__":
    main()
