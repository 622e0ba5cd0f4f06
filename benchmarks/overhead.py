"""What `Trainer` costs on tiny models, beside a loop without privacy.

    python -m benchmarks.overhead [--rounds 10] [--steps 200] [--out docs/benchmarks/overhead.md]

Seconds of processor time, the best of several rounds in which the loops take turns, one thread. Of the
Trainer's time the part before the first step (examining the model, calibration) is taken off by a second run
of one step; ten looks at held-out public records, which a run of any length takes, are in it. Two loops
without privacy: over a DataLoader, as most are written, and over tensors that are indexed. A step of dope_sgd
also reads and differentiates a public batch of the same size: it is compared with loops whose steps have a
private and a public batch.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sidelight import Trainer
from sidelight.methods import dope_sgd, dp_sgd
from sidelight.methods.recipe import Recipe

N, CLASSES = 10_000, 2
GOAL = 2.5
LOOPS = ("tensors", "DataLoader", "dp_sgd", "tensors + public", "DataLoader + public", "dope_sgd")
RATIOS = (("dp_sgd", "DataLoader"), ("dp_sgd", "tensors"), ("dope_sgd", "DataLoader + public"),
          ("dope_sgd", "tensors + public"))  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def deeper() -> nn.Module:
    layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, CLASSES))


CASES = [("MLP 20-32-2", mlp, 64), ("MLP 20-32-2", mlp, 256), ("MLP 20-32-2", mlp, 1024),
         ("MLP 20-64-64-64-2", deeper, 256)]  # fmt: skip


def records(n: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(n, 20)
    return x, (x[:, 0] > 0).long()


Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]


def plain(
    build: Callable[[], nn.Module], batches: Batches, steps: int, public: Batches | None = None
) -> None:
    model, loss = build(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private, others = endless(batches), None if public is None else endless(public)
    for x, y in itertools.islice(private, steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        if others is not None:
            x, y = next(others)
            loss(model(x), y).backward()
        optimizer.step()


def endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from batches()


def indexed(data: tuple[Tensor, Tensor], batch: int) -> Batches:
    def epoch() -> Iterator[tuple[Tensor, Tensor]]:
        for places in torch.randperm(len(data[0])).split(batch):
            yield data[0][places], data[1][places]

    return epoch


def loaded(data: tuple[Tensor, Tensor], batch: int) -> Batches:
    loader = DataLoader(TensorDataset(*data), batch_size=batch, shuffle=True)
    return lambda: iter(loader)


def private(build: Callable[[], nn.Module], method: Recipe, batch: int, steps: int) -> None:
    trainer = Trainer(
        build(), nn.CrossEntropyLoss(), method=method, epsilon=2, delta=1e-5, steps=steps,
        expected_batch_size=batch, optimizer=lambda p: torch.optim.SGD(p, lr=0.5), public_batch_size=batch,
    )  # fmt: skip
    trainer.fit(records(N), records(1000))


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(build: Callable[[], nn.Module], batch: int, steps: int, rounds: int) -> dict[str, float]:
    """Milliseconds a step."""
    data, public = records(N), records(1000)
    loops: dict[str, Callable[[int], None]] = {
        "tensors": lambda k: plain(build, indexed(data, batch), k),
        "DataLoader": lambda k: plain(build, loaded(data, batch), k),
        "tensors + public": lambda k: plain(build, indexed(data, batch), k, indexed(public, batch)),
        "DataLoader + public": lambda k: plain(build, loaded(data, batch), k, loaded(public, batch)),
        "dp_sgd": lambda k: private(build, dp_sgd(), batch, k),
        "dope_sgd": lambda k: private(build, dope_sgd(start="cold"), batch, k),
    }
    whole, one = (dict.fromkeys(loops, float("inf")) for _ in range(2))
    for _ in range(rounds):
        for name, loop in loops.items():
            whole[name] = min(whole[name], seconds(lambda loop=loop: loop(steps)))  # type: ignore[misc]
            one[name] = min(one[name], seconds(lambda loop=loop: loop(1)))  # type: ignore[misc]
    return {name: 1e3 * (whole[name] - one[name]) / (steps - 1) for name in loops}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    head = ["model", "batch", *LOOPS, *(f"{ours} / {theirs}" for ours, theirs in RATIOS)]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    missed = dict.fromkeys(RATIOS, 0)
    for name, build, batch in CASES:
        ms = measure(build, batch, options.steps, options.rounds)
        ratios = {pair: ms[pair[0]] / ms[pair[1]] for pair in RATIOS}
        for pair, ratio in ratios.items():
            missed[pair] += ratio > GOAL
        cells = [
            name,
            str(batch),
            *(f"{ms[loop]:.2f}" for loop in LOOPS),
            *(f"{r:.1f}" for r in ratios.values()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    lines.append("")
    for (ours, theirs), count in missed.items():
        verdict = "met in every row" if not count else f"missed in {count} of {len(CASES)} rows"
        lines.append(f"- {ours} at most {GOAL} times {theirs}: {verdict}")
        print(lines[-1])
    if options.out:
        about = (__doc__ or "").split("\n\n", 2)[2].strip()
        text = (
            f"# Trainer on tiny models\n\n`python -m benchmarks.overhead`: milliseconds a step. {about}\n\n"
        )
        options.out.write_text(text + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
