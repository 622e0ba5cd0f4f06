"""python -m experiments.coupling_text [--dataset sst2] [--kind features lora] [--only Ours] [--docs FILE]

SST-2 (67,349 phrases to train, 2,693 sentences to test), and QNLI's development part. A share r_pub of the
training texts is public, δ = 1/n^1.1, adding or removing one text. The encoder is MiniLM, public: its rows in
bfloat16 and a linear model (features), the same after public texts tuned its last block (tuned) or all six
(tuned_all; tune_encoder: by sidelight's function for it), and private steps from there: on that block by LoRA
(lora), on all six by LoRA (lora_all), or on all their weights (full). What is encoded or tuned once is kept
in a cache, so that a run can be stopped and started at will. Seconds are of one processor.
"""

from __future__ import annotations

from experiments.sweep import keep_memory, one_thread

one_thread()
keep_memory()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import functools  # noqa: E402
import math  # noqa: E402
import shutil  # noqa: E402
import time  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from experiments.coupling_text import linear, tuning  # noqa: E402
from experiments.coupling_text.encoding import (  # noqa: E402
    DATASETS,
    MOST_TOKENS,
    Dataset,
    Encoded,
    encoded,
    encoder,
    other_features,
    paired,
    words,
)
from experiments.coupling_text.report import KINDS, page, table  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.features import encode_texts, tune_encoder  # noqa: E402

HERE = Path(__file__).parent
FIELDS = ("dataset", "kind", "column", "r_pub", "epsilon", "seed")
RESULTS = ("accuracy", "spent", "chosen", "seconds", "encoding_seconds")
FEATURES = (*linear.METHODS, "Opacus")
OTHERS = ("wordllama", "hashed")  # encoders, by features alone
TUNED = (*tuning.METHODS, "Opacus")
_KIND = {1: "tuned", 6: "tuned_all"}

Places = NDArray[np.intp]
Where = tuple[str, Path, float, int]  # dataset, cache, r_pub, seed


def jobs(options: argparse.Namespace) -> list[Job]:
    """Features with every split; those that tune the encoder, which takes longer, with the first."""
    found: list[Job] = []
    for kind in options.kind:
        columns = TUNED if kind in tuning.PLANS else FEATURES
        for r_pub in options.r_pub:
            for epsilon in options.epsilon:
                for column in [one for one in columns if not options.only or one in options.only]:
                    seeds = range(options.seeds or (3 if kind == "features" else 1))
                    found += [
                        {"dataset": options.dataset, "kind": kind, "column": column, "r_pub": r_pub,
                         "epsilon": epsilon, "seed": seed}
                        for seed in seeds
                    ]  # fmt: skip
    return found


def parts(data: Dataset, r_pub: float, seed: int) -> tuple[Places, Places]:
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
def states_of(kind: str, name: str, cache: Path) -> Encoded:
    """What the lowest of the trained blocks is given."""
    data, made = prepared(name, cache)
    return words(data.texts) if tuning.DEPTHS[kind] == 6 else made


def texts(kind: str, where: Where, places: Places, *, tokens: int = tuning.TOKENS) -> tuning.Texts:
    return tuning.Texts(states_of(kind, *where[:2]), prepared(*where[:2])[0].y, places, tokens=tokens)


def shared(public: Places) -> tuple[Places, Places]:
    """Public places: two thirds that tune the encoder, and a third that it does not see."""
    order = np.random.default_rng(1).permutation(public)
    seen, rest = np.split(order, [round(2 / 3 * len(order))])
    return np.sort(seen), np.sort(rest)


@functools.cache
def rate_of(depth: int, where: Where) -> float:
    """The step size of plain training that is best on a fifth of the public texts, which it does not see."""
    file = where[1] / f"{where[0]}_{where[2]}_{where[3]}_{depth}.txt"
    if not file.exists():
        public = texts(_KIND[depth], where, parts(prepared(*where[:2])[0], *where[2:])[1])
        how = tuning.PLAIN[depth]
        rate = tuning.chosen_rate(pretrained(depth), public, how.rates, steps=how.tried)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{rate:g}")
    return float(file.read_text())


def tuned(kind: str, where: Where, *, everything: bool = False) -> tuning.Top:
    """The blocks after two thirds of the public texts, or after all; from a file, if that was done before."""
    depth = tuning.DEPTHS[kind]
    model = pretrained(depth)
    file = where[1] / f"{where[0]}_{where[2]}_{where[3]}_{depth}_{'all' if everything else 'part'}.pt"
    if not file.exists():
        public = parts(prepared(*where[:2])[0], *where[2:])[1]
        some = texts(kind, where, public if everything else shared(public)[0])
        rate = rate_of(depth, where)
        steps = tuning.PLAIN[depth].steps_for(len(some))
        tuning.plain(model, some, rate=rate, steps=steps, seed=where[3])
        torch.save(model.state_dict(), file)
    model.load_state_dict(torch.load(file))
    return model


@functools.cache
def tuned_features(kind: str, where: Where) -> NDArray[np.float32]:
    """Rows after blocks that two thirds of the public texts tuned; the other third is the guide."""
    return tuning.features(tuned(kind, where), states_of(kind, *where[:2]))


@functools.cache
def by_library(where: Where) -> tuple[NDArray[np.float32], float]:
    """Rows by `sidelight.features.tune_encoder`, of the same public texts, and the seconds of both."""
    data = prepared(*where[:2])[0]
    seen = shared(parts(data, *where[2:])[1])[0]
    folder, start = where[1] / f"tuned_{where[0]}_{where[2]}_{where[3]}", time.process_time()
    shutil.rmtree(folder, ignore_errors=True)
    tuned = tune_encoder(
        "minilm", [data.texts[k] for k in seen], data.y[seen], folder, max_tokens=MOST_TOKENS,
        dtype="bfloat16", random_state=where[3],
    )  # fmt: skip
    return encode_texts(tuned, data.texts), time.process_time() - start


def pretrained(depth: int) -> tuning.Top:
    return tuning.top(encoder()._model, depth)


def run(job: Job, cache: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    data, made = prepared(job["dataset"], cache)
    private, public = parts(data, job["r_pub"], job["seed"])
    budget: dict[str, Any] = {"epsilon": job["epsilon"], "delta": len(private) ** -1.1, "seed": job["seed"]}
    kind, column = job["kind"], job["column"]
    where = (job["dataset"], cache, job["r_pub"], job["seed"])
    features, guide = made.features, public
    if kind in OTHERS:
        features, seconds = other_features(kind, data.texts)
        made = replace(made, seconds=seconds)
    elif kind == "tune_encoder":
        guide = shared(public)[1]
        features, seconds = by_library(where)
        made = replace(made, seconds=seconds)
    elif kind in _KIND.values() and column != "OnlyPub":
        start = time.process_time()
        features, guide = tuned_features(kind, where), shared(public)[1]
        made = replace(made, seconds=time.process_time() - start) if kind == "tuned_all" else made
    start = time.process_time()
    if kind in tuning.DEPTHS and column == "OnlyPub":
        model = tuned(kind, where, everything=True)
        score, spent, chosen = (
            _score(kind, model, where),
            0.0,
            f"step size {rate_of(tuning.DEPTHS[kind], where):g}",
        )
    elif kind in tuning.PLANS:
        score, spent, chosen = fine_tuned(kind, column, where, budget)
    else:
        rows = [linear.Rows(features, data.y, some) for some in (private, guide, data.test)]
        score, spent, chosen = linear.linear(column, *rows, **budget)
    return {
        "accuracy": f"{score:.4f}",
        "spent": f"{spent:.4f}",
        "chosen": chosen,
        "seconds": f"{time.process_time() - start:.0f}",
        "encoding_seconds": f"{made.seconds:.0f}",
    }


def fine_tuned(kind: str, column: str, where: Where, budget: dict[str, Any]) -> tuple[float, float, str]:
    """Private steps: accuracy, what was spent, and what was chosen."""
    private, public = parts(prepared(*where[:2])[0], *where[2:])
    cold = column in tuning.COLD
    if column == "NonPriv":
        both, depth = texts(kind, where, np.concatenate([private, public])), tuning.DEPTHS[kind]
        rate, steps = rate_of(depth, where), tuning.PLAIN[depth].free
        free = tuning.plain(begun(kind, where), both, rate=rate, steps=steps, seed=where[3])
        return _score(kind, free, where), math.inf, f"step size {rate:g}"
    records = texts(kind, where, private)
    real = tuning.plan(kind, len(records), cold=cold, **budget)
    if column == "Opacus":
        size = step_size("DP-SGD, warm", kind, where, budget["epsilon"])
        model, spent = tuning.opacus(
            begun(kind, where, everything=True),
            records,
            rate=size,
            batch=int(real.batch),
            steps=real.steps,
            descent=True,
            **budget,
        )
        return _score(kind, model, where), spent, f"step size {size:g}"
    by_itself = column == "Ours"  # it rehearses, and has public texts that have tuned nothing
    guide = texts(kind, where, shared(public)[1] if by_itself else public)
    size = 0.0 if cold or by_itself else step_size(column, kind, where, budget["epsilon"])
    begins = begun(kind, where, cold=cold, everything=not by_itself)
    model, spent, chosen = tuning.tune(column, begins, records, guide, real=real, step_size=size)
    return _score(kind, model, where), spent, chosen


def begun(kind: str, where: Where, *, cold: bool = False, everything: bool = False) -> torch.nn.Module:
    """The model that a column is handed: as it came, or tuned by two thirds of the public texts, or all."""
    model = pretrained(tuning.DEPTHS[kind]) if cold else tuned(kind, where, everything=everything)
    return tuning.with_lora(model) if kind in tuning.ADAPTED else model


def _score(kind: str, model: torch.nn.Module, where: Where) -> float:
    test = texts(kind, where, prepared(*where[:2])[0].test, tokens=MOST_TOKENS)
    return tuning.accuracy(model, test)


@functools.cache
def step_size(column: str, kind: str, where: Where, epsilon: float) -> float:
    """Of a column that begins with tuned blocks, rehearsed on public texts."""
    private, public = parts(prepared(*where[:2])[0], *where[2:])
    real = tuning.plan(kind, len(private), epsilon=epsilon, delta=len(private) ** -1.1, seed=where[3])
    seen, unseen = (texts(kind, where, some) for some in shared(public))
    return tuning.rehearsed(column, begun(kind, where), seen, unseen, real)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.coupling_text", description=__doc__)
    parser.add_argument("--dataset", choices=tuple(DATASETS), default="sst2")
    parser.add_argument("--kind", nargs="+", choices=tuple(KINDS), default=["features"])
    parser.add_argument("--r-pub", nargs="+", type=float, default=[0.05, 0.2])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 2.0])
    parser.add_argument("--only", nargs="+", metavar="COLUMN", help="only these columns")
    parser.add_argument("--seeds", type=int, help="splits; by default 3 of `features`, and 1 of the others")
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
