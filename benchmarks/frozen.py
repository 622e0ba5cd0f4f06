"""Whole fits of networks whose body is frozen, with its activations remembered and without.

    python -m benchmarks.frozen [--rounds 3]

DP-SGD trains what comes after the body, on made-up records; both ways take turns, with one seed, on one
thread. Times are processor time of `Trainer.fit`, planning and examination included. What is printed is a
section of docs/benchmarks/step.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.sections import write_section
from sidelight import Trainer
from sidelight.deep import Loading
from sidelight.methods import dp_sgd

PAGE = Path("docs/benchmarks/step.md")  # its section "frozen"
RECORDS, BATCH, EPOCHS = 1000, 125, 10
BYTES = {"computed in every step": 0, "computed once": Loading().cache_bytes}


class Transformer(nn.Module):
    """Five blocks, four of them frozen, over 32 places."""

    def __init__(self) -> None:
        super().__init__()
        kind: Callable[[], nn.Module] = lambda: nn.TransformerEncoderLayer(  # noqa: E731
            64, 4, 128, dropout=0.0, batch_first=True
        )
        self.first = nn.Linear(16, 64)
        self.blocks = nn.ModuleList(kind() for _ in range(5))
        self.head = nn.Linear(64, 10)
        for part in (self.first, *self.blocks[:4]):
            part.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(h.mean(1))
        return out


def cnn() -> nn.Module:
    """Three convolutions, frozen, and a network of two layers."""
    body = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    ).requires_grad_(False)  # fmt: skip
    return nn.Sequential(body, nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "CNN, 3 of 3 convolutions frozen": (cnn, (3, 32, 32)),
    "transformer, 4 of 5 blocks frozen": (Transformer, (32, 16)),
}


def fit(make: Callable[[], nn.Module], shape: tuple[int, ...], cache_bytes: int) -> tuple[float, Tensor]:
    """Seconds, and the trained parameters."""
    torch.manual_seed(0)
    model, data = make(), (torch.randn(RECORDS, *shape), torch.randint(10, (RECORDS,)))
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), method=dp_sgd(clip_norm=1.0), epsilon=2.0, delta=1e-5, epochs=EPOCHS,
        expected_batch_size=BATCH, random_state=0, progress=False, loading=Loading(cache_bytes=cache_bytes),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        trainer.fit(data)
    taken = time.process_time() - start
    return taken, torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def measured(rounds: int) -> list[str]:
    """A line per network."""
    lines = []
    for name, (make, shape) in CASES.items():
        seconds: dict[str, list[float]] = {way: [] for way in BYTES}
        for _ in range(rounds):
            ends = []
            for way, size in BYTES.items():
                taken, end = fit(make, shape, size)
                seconds[way].append(taken)
                ends.append(end)
        before, after = (statistics.median(seconds[way]) for way in BYTES)
        apart = float((ends[0] - ends[1]).abs().max())
        lines.append(f"| {name} | {before:.1f} | {after:.1f} | {before / after:.1f} | {apart:.0e} |")
    return lines


def page(lines: list[str], rounds: int) -> str:
    head = ["network", *(f"{way}, s" for way in BYTES), "ratio", "largest difference of a weight"]
    return "\n".join([
        "## Frozen bodies", "",
        f"`python -m benchmarks.frozen --rounds {rounds}`: processor time of a whole `Trainer.fit` (median), "
        f"one thread; {RECORDS:,} records, batches of {BATCH} on average, {EPOCHS} epochs. Both ways have "
        "one seed, and end at weights that differ by rounding.", "",
        f"| {' | '.join(head)} |", "| --- | ---: | ---: | ---: | ---: |", *lines, "",
    ])  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=3)
    rounds = asked.parse_args().rounds
    torch.set_num_threads(1)
    found = page(measured(rounds), rounds)
    write_section(PAGE, "frozen", found)
    print(found)


if __name__ == "__main__":
    main()
