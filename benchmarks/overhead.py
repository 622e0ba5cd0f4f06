"""What `Trainer` costs on tiny models, beside a loop without privacy.

    python -m benchmarks.overhead [--rounds 5] [--steps 200] [--out docs/benchmarks/overhead.md]

Seconds of processor time, the best of several rounds in which the loops take turns, one thread. Of the
Trainer's time the part before the first step (examining the model, calibration) is taken off by a second run
of one step. Two loops without privacy: over a DataLoader, as most are written, and over tensors
that are indexed, which skips the reading that a Trainer has to do as well.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sidelight import Trainer, dope_sgd, dp_sgd
from sidelight.methods.recipe import Recipe

N, CLASSES = 10_000, 2
GOAL = 2.5


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


def plain(build: Callable[[], nn.Module], batches: Callable[[], object], steps: int) -> None:
    model, loss, done = build(), nn.CrossEntropyLoss(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    while done < steps:
        for x, y in batches():  # type: ignore[attr-defined]
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break


def indexed(data: tuple[Tensor, Tensor], batch: int) -> Callable[[], object]:
    def epoch() -> object:
        for places in torch.randperm(N).split(batch):
            yield data[0][places], data[1][places]

    return epoch


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
    data = records(N)
    loader = DataLoader(TensorDataset(*data), batch_size=batch, shuffle=True)
    loops: dict[str, Callable[[int], None]] = {
        "tensors": lambda k: plain(build, indexed(data, batch), k),
        "DataLoader": lambda k: plain(build, lambda: loader, k),
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    head = [
        "model",
        "batch",
        "tensors",
        "DataLoader",
        "dp_sgd",
        "dope_sgd",
        "dp_sgd / DataLoader",
        "dp_sgd / tensors",
    ]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for name, build, batch in CASES:
        ms = measure(build, batch, options.steps, options.rounds)
        ratios = ms["dp_sgd"] / ms["DataLoader"], ms["dp_sgd"] / ms["tensors"]
        cells = [name, str(batch), *(f"{ms[loop]:.2f}" for loop in ms), *(f"{ratio:.1f}" for ratio in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if options.out:
        about = (__doc__ or "").split("\n\n", 2)[2].strip()
        text = (
            f"# Trainer on tiny models\n\n`python -m benchmarks.overhead`: milliseconds a step. {about}\n\n"
        )
        options.out.write_text(
            text + "\n".join(lines) + f"\n\nThe goal is {GOAL} times a loop without privacy.\n"
        )


if __name__ == "__main__":
    main()
