"""python -m experiments.coupling_text [--dataset sst2] [--kind features lora] [--only Ours] [--docs FILE]

SST-2 (67,349 phrases to train, 2,693 sentences to test), and QNLI's development
part. A share r_pub of the training texts is public, δ = 1/n^1.1, adding or removing one text. The encoder is
MiniLM, public, in bfloat16; features are its rows, fine-tuning is of its last block. Texts are encoded once
and kept in the cache, so that a run can be stopped and started at will. Seconds are of one processor.
"""

from __future__ import annotations

from experiments.sweep import keep_memory, one_thread

one_thread()
keep_memory()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import copy  # noqa: E402
import functools  # noqa: E402
import time  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

from experiments.coupling_text import linear, tuning  # noqa: E402
from experiments.coupling_text.encoding import (  # noqa: E402
    DATASETS,
    Dataset,
    Encoded,
    encoded,
    encoder,
    other_features,
    paired,
)
from experiments.coupling_text.report import KINDS, page, table  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("dataset", "kind", "column", "r_pub", "epsilon", "seed")
RESULTS = ("accuracy", "spent", "chosen", "seconds", "encoding_seconds")
FEATURES = (*linear.METHODS, "Opacus")
OTHERS = ("wordllama", "hashed")  # encoders, by features alone
TUNED = (*tuning.METHODS, "Opacus")


def jobs(options: argparse.Namespace) -> list[Job]:
    """Features with every split; private steps on the encoder, which cost a minute a run, with the first."""
    found: list[Job] = []
    for kind in options.kind:
        columns = TUNED if kind in ("block", "lora") else FEATURES
        for r_pub in options.r_pub:
            for epsilon in options.epsilon:
                for column in [one for one in columns if not options.only or one in options.only]:
                    seeds = range(options.seeds or (1 if kind in ("block", "lora") else 3))
                    found += [
                        {"dataset": options.dataset, "kind": kind, "column": column, "r_pub": r_pub,
                         "epsilon": epsilon, "seed": seed}
                        for seed in seeds
                    ]  # fmt: skip
    return found


def parts(data: Dataset, r_pub: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Private and public places of the training texts."""
    order = np.random.default_rng(seed).permutation(data.train)
    size = round(r_pub * len(order))
    return np.sort(order[size:]), np.sort(order[:size])


@functools.cache
def prepared(name: str, cache: Path) -> tuple[Dataset, Encoded]:
    data = DATASETS[name]()
    made = encoded(name, data.texts, cache)
    return data, paired(made) if data.pairs else made


@functools.cache
def rate_of(kind: str, name: str, cache: Path, r_pub: float, seed: int) -> float:
    """One step size for all columns of a kind, from the public texts alone."""
    data, made = prepared(name, cache)
    public = tuning.Texts(made, data.y, parts(data, r_pub, seed)[1])
    return tuning.chosen_rate(_model(kind), public, tuning.RATES[kind], steps=tuning.WARM_STEPS)


@functools.cache
def warmed(kind: str, name: str, cache: Path, r_pub: float, seed: int) -> torch.nn.Module:
    """The model of a kind after plain training on all public texts; copy it before you train it."""
    data, made = prepared(name, cache)
    public = tuning.Texts(made, data.y, parts(data, r_pub, seed)[1], tokens=tuning.TOKENS)
    rate = rate_of(kind, name, cache, r_pub, seed)
    return tuning.plain(_model(kind), public, rate=rate, steps=tuning.WARM_STEPS, seed=seed)


def tuned_block(
    name: str, cache: Path, r_pub: float, seed: int, *, share: float
) -> tuple[tuning.LastBlock, np.ndarray]:
    """The last block after training on a share of the public texts; the public texts that it has not seen."""
    data, made = prepared(name, cache)
    order = np.random.default_rng(1).permutation(parts(data, r_pub, seed)[1])
    seen, rest = np.split(order, [round(share * len(order))])
    block = pretrained()
    rate = rate_of("block", name, cache, r_pub, seed)
    tuning.plain(block, tuning.Texts(made, data.y, seen), rate=rate, steps=tuning.WARM_STEPS, seed=seed)
    return block, np.sort(rest)


@functools.cache
def tuned_features(name: str, cache: Path, r_pub: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows after a block that two thirds of the public texts trained; the other third is the guide."""
    block, rest = tuned_block(name, cache, r_pub, seed, share=2 / 3)
    return tuning.features(block, prepared(name, cache)[1]), rest


def pretrained() -> tuning.LastBlock:
    return tuning.last_block(encoder()._model)


def _model(kind: str) -> torch.nn.Module:
    return pretrained() if kind == "block" else tuning.with_lora(pretrained())


def run(job: Job, cache: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    data, made = prepared(job["dataset"], cache)
    private, public = parts(data, job["r_pub"], job["seed"])
    budget: dict[str, Any] = {"epsilon": job["epsilon"], "delta": len(private) ** -1.1, "seed": job["seed"]}
    kind, column = job["kind"], job["column"]
    start = time.process_time()
    if kind == "features":
        rows = [linear.Rows(made.features, data.y, some) for some in (private, public, data.test)]
        score, spent, chosen = linear.linear(column, *rows, **budget)
    elif kind in OTHERS:
        X, seconds = other_features(kind, data.texts)
        made = replace(made, seconds=seconds)
        start = time.process_time()
        rows = [linear.Rows(X, data.y, some) for some in (private, public, data.test)]
        score, spent, chosen = linear.linear(column, *rows, **budget)
    elif kind == "tuned" and column == "OnlyPub":
        block, _ = tuned_block(job["dataset"], cache, job["r_pub"], job["seed"], share=1.0)
        score, spent, chosen = tuning.accuracy(block, tuning.Texts(made, data.y, data.test)), 0.0, ""
    elif kind == "tuned":
        X, guide = tuned_features(job["dataset"], cache, job["r_pub"], job["seed"])
        start = time.process_time()
        rows = [linear.Rows(X, data.y, some) for some in (private, guide, data.test)]
        score, spent, chosen = linear.linear(column, *rows, **budget)
    else:
        rate = rate_of(kind, job["dataset"], cache, job["r_pub"], job["seed"])
        texts = [tuning.Texts(made, data.y, some, tokens=tuning.TOKENS) for some in (private, public)]
        texts.append(tuning.Texts(made, data.y, data.test))
        begun = _model(kind)
        if column in (*tuning.WARM, "OnlyPub"):
            begun = copy.deepcopy(warmed(kind, job["dataset"], cache, job["r_pub"], job["seed"]))
        start = time.process_time()
        score, spent, chosen = _tuned(column, begun, texts, rate, budget)
        chosen = f"{chosen} step size {rate:g}".strip()
    return {
        "accuracy": f"{score:.4f}",
        "spent": f"{spent:.4f}",
        "chosen": chosen,
        "seconds": f"{time.process_time() - start:.0f}",
        "encoding_seconds": f"{made.seconds:.0f}",
    }


def _tuned(
    column: str, model: torch.nn.Module, texts: list[tuning.Texts], rate: float, budget: dict[str, Any]
) -> tuple[float, float, str]:
    private, public, test = texts
    if column == "Opacus":
        batch = min(tuning.BATCH, len(private) // 4)
        tuned, spent = tuning.opacus(model, private, rate=rate, batch=batch, steps=tuning.STEPS, **budget)
        return tuning.accuracy(tuned, test), spent, ""
    batch = min(tuning.BATCH, len(private) // 4)
    tuned, spent, chosen = tuning.tune(column, model, private, public, rate=rate, batch=batch, **budget)
    return tuning.accuracy(tuned, test), spent, chosen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.coupling_text", description=__doc__)
    parser.add_argument("--dataset", choices=tuple(DATASETS), default="sst2")
    parser.add_argument("--kind", nargs="+", choices=tuple(KINDS), default=["features"])
    parser.add_argument("--r-pub", nargs="+", type=float, default=[0.05, 0.2])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 2.0])
    parser.add_argument("--only", nargs="+", metavar="COLUMN", help="only these columns")
    parser.add_argument("--seeds", type=int, help="splits; by default 3, and 1 of `block` and `lora`")
    parser.add_argument("--cache", type=Path, default=Path("build/coupling_text"))
    parser.add_argument("--out", type=Path, default=HERE / "runs.csv")
    parser.add_argument("--docs", type=Path, help="write the page here")
    options = parser.parse_args()
    runs = sweep(
        jobs(options), functools.partial(run, cache=options.cache), options.out,
        fields=FIELDS, results=RESULTS, workers=1, title="SST-2 and QNLI",
    )  # fmt: skip
    print(table(runs))
    if options.docs is not None:
        options.docs.write_text(page(runs))


if __name__ == "__main__":
    main()
