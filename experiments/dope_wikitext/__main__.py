"""python -m experiments.dope_wikitext [--seeds 2] [--only METHOD …] [--docs PATH]

WikiText-2, 8,000 words, sequences of 35, two blocks of GPT: DP-SGD cold and warm, DOPE-SGD, Coupling, `auto`
and public text alone at ε = 1, 2, 4, 6 (Table 2), and with film reviews as public text at ε = 2 (Table 12).
Runs what is missing from OUT/runs.csv, one line per run. Stop it and start it again as you like.

One step size for each method, public text and seed, by a rehearsal on public records under the noise of
ε = 2. No private or test record takes part in a choice. Seconds are processor time.
"""

from __future__ import annotations

from experiments.sweep import keep_memory, one_thread

one_thread()
keep_memory()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import math  # noqa: E402
import time  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

from experiments.dope_wikitext.corpus import Split, split  # noqa: E402
from experiments.dope_wikitext.gpt import Gpt, word_losses  # noqa: E402
from experiments.dope_wikitext.report import page, table  # noqa: E402
from experiments.dope_wikitext.starts import BATCH, Rehearsal, Warmed, best_step_size, plan_of, warmed  # noqa: E402
from experiments.rehearsals import decaying  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Loading, Trainer  # noqa: E402
from sidelight.methods.coupling import coupling, pooled_weight  # noqa: E402
from sidelight.methods.dope_sgd import dope_sgd  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402
from sidelight.methods.parts import Last  # noqa: E402
from sidelight.methods.recipe import Recipe  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("public", "method", "epsilon", "seed")
DIAGNOSED = ("concentration", "no_limit", "cosine", "origin", "norm")  # at the warm start
RESULTS = (
    "perplexity", "spent", "step_size", "rehearsed", *DIAGNOSED, "cosines", "unknown", "seconds",
)  # fmt: skip
EPSILONS = (1.0, 4.0, 2.0, 6.0)  # in the order in which they are run
STEPPED = ("dp_sgd, warm", "dope_sgd", "coupling", "dp_sgd, cold")
ELSEWHERE = ("dp_sgd, warm", "dope_sgd", "dope_sgd, no limit")  # film reviews as public text
DELTA, STEPS = 1e-5, 12
REHEARSED_AT = 2.0  # ε
PLANS = ((12, 512), (6, 1024), (3, 2048), (2, 3072), (64, 256), (32, 512), (16, 1024), (8, 2048))


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.dope_wikitext", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--only", action="append", help="these methods")
    parser.add_argument("--scale", type=int, default=1, help="one record in so many, to try it out")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--plans", action="store_true", help="run nothing but the rehearsal of some plans")
    parser.add_argument("--report", action="store_true", help="run nothing: the tables of what is there")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--cache", type=Path, default=WARM_STARTS, help="where warm starts are kept")
    parser.add_argument("--docs", type=Path, help="also write the page to this Markdown file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    global SCALE, WARM_STARTS, STEPS, BATCH
    SCALE, WARM_STARTS, STEPS, BATCH = args.scale, args.cache, args.steps, args.batch
    torch.set_num_threads(1)
    if args.plans:
        print(plans())
        return
    runs = sweep(
        [] if args.report else jobs(args),
        run,
        args.out / "runs.csv",
        fields=FIELDS,
        results=RESULTS,
        workers=1,
        title="wikitext",
    )
    print(table(runs))
    if args.docs:
        args.docs.write_text(page(runs))


SCALE, WARM_STARTS = 1, Path("build/dope_wikitext")


def jobs(args: argparse.Namespace) -> list[Job]:
    """What says most comes first: the run may be stopped at any time."""
    wanted = [("wikitext", "only_public", 0.0, seed) for seed in args.seeds]
    for methods, epsilons in ((STEPPED, EPSILONS[:2]), (STEPPED[:2], EPSILONS[2:])):
        wanted += [
            ("wikitext", m, epsilon, seed) for seed in args.seeds for epsilon in epsilons for m in methods
        ]
    wanted += [("sst2", "only_public", 0.0, seed) for seed in args.seeds]
    wanted += [("sst2", method, 2.0, seed) for seed in args.seeds for method in ELSEWHERE]
    for others in (STEPPED[2:], ("auto",)):
        wanted += [
            ("wikitext", m, epsilon, seed) for seed in args.seeds for epsilon in EPSILONS for m in others
        ]
    wanted = list(dict.fromkeys(wanted))
    return [dict(zip(FIELDS, one, strict=True)) for one in wanted if args.only is None or one[1] in args.only]


@cache
def _data(public: str, seed: int) -> Split:
    return split(seed, public=public, scale=SCALE)


@cache
def _warm(public: str, seed: int) -> Warmed:
    return warmed(_data(public, seed), seed, WARM_STARTS / f"{public}_{seed}_{SCALE}.pt")


def run(job: Job) -> dict[str, Any]:
    """One method on one split."""
    public, method, epsilon, seed = job["public"], job["method"], float(job["epsilon"]), int(job["seed"])
    data, start = _data(public, seed), time.process_time()
    result: dict[str, Any] = {"unknown": f"{data.unknown:.4f}"}
    if method == "only_public":
        warm = _warm(public, seed)
        result |= warm.diagnosis
        model: nn.Module = warm.model()
        spent = 0.0
    else:
        trainer, chosen = make(public, method, epsilon, seed)
        trainer.fit(data.private, data.public)
        model, spent = trainer.model, trainer.privacy_.epsilon
        result |= chosen or {"step_size": str(trainer.privacy_.to_dict()["details"].get("step_size", ""))}
    return {
        **dict.fromkeys((*DIAGNOSED, "cosines", "step_size", "rehearsed"), ""),
        **result,
        "perplexity": f"{perplexity(model, data):.2f}",
        "spent": f"{spent:.4f}",
        "seconds": f"{time.process_time() - start:.0f}",
    }  # fmt: skip


def make(public: str, method: str, epsilon: float, seed: int) -> tuple[Trainer, dict[str, str]]:
    """The trainer of a cell, and how its step size was chosen."""
    options: dict[str, Any] = {
        "epsilon": epsilon, "delta": DELTA, "random_state": seed, "progress": False, "steps": STEPS,
        "expected_batch_size": BATCH / SCALE, "public_batch_size": 96, "loading": Loading(micro_batch=64),
    }  # fmt: skip
    if method == "auto":
        torch.manual_seed(seed)
        return Trainer(Gpt(), word_losses, warm_up=_warm(public, seed).how, **options), {}
    recipe = recipe_of(method, _data(public, seed))
    warm = _warm(public, seed)
    chosen = _chosen(public, method, seed)
    size = float(chosen["step_size"])
    model = warm.model(cold=method == "dp_sgd, cold")
    trainer = Trainer(
        model, word_losses, method=recipe,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=size),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: decaying(step, STEPS)
        ),
        **options,
    )  # fmt: skip
    return trainer, chosen


def recipe_of(method: str, data: Split) -> Recipe:
    """The parts; models are handed over at their start, cold or warm."""
    if method.startswith("dp_sgd"):
        return dp_sgd(clip_norm=1.0, finish=Last())
    if method == "coupling":
        weight = pooled_weight(n_public=len(data.public[1]), n_private=len(data.private[1]))
        return coupling(weight=weight, reduction="mean", public_limit=1.0)
    limit = math.inf if "no limit" in method else 0.5
    return dope_sgd(clip_norm=1.0, origin_limit=limit, finish=Last())


@cache
def _rehearsal(public: str, cold: bool, seed: int, steps: int, batch: float) -> Rehearsal:
    options: dict[str, Any] = {"epsilon": REHEARSED_AT, "delta": DELTA, "seed": seed}
    plan = plan_of(_data(public, seed), steps=steps, batch=batch, **options)
    return Rehearsal(_warm(public, seed), plan, cold=cold)


@cache
def _chosen(public: str, method: str, seed: int) -> dict[str, str]:
    """The step size, and the losses of the rehearsal that found it."""
    rehearsal = _rehearsal(public, method == "dp_sgd, cold", seed, STEPS, BATCH / SCALE)
    size, scores = best_step_size(rehearsal, recipe_of(method, _data(public, seed)))
    cosines = rehearsal.cosines() if method == "dp_sgd, warm" else ""
    return {"step_size": f"{size:g}", "rehearsed": scores, "cosines": cosines}


def plans() -> str:
    """How many steps of which size, for about as many gradients: rehearsed with seed 0 at ε = 2."""
    lines = ["| steps | batch | held-out loss by step size |", "|---|---|---|"]
    for steps, batch in PLANS:
        rehearsal = _rehearsal("wikitext", False, 0, steps, batch / SCALE)
        recipe = recipe_of("dp_sgd, warm", _data("wikitext", 0))
        _, scores = best_step_size(rehearsal, recipe, (0.3, 1.0, 3.0))
        lines.append(f"| {steps} | {batch} | {scores} |")
    return "\n".join(lines)


def perplexity(model: nn.Module, data: Split) -> float:
    """exp of the mean loss of a test word."""
    inputs, targets = data.test
    model.eval()
    with torch.no_grad():
        starts = range(0, len(inputs), 64)
        losses = [word_losses(model(inputs[i : i + 64]), targets[i : i + 64]) for i in starts]
    return math.exp(float(torch.cat(losses).double().mean()))


if __name__ == "__main__":
    main()
