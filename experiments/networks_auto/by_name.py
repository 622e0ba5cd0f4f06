"""python -m experiments.networks_auto.by_name [--quick] [--epsilon 2] [--method NAME …] [--out FOLDER]

Every method for networks by its name, with nothing else given but ε, on four architectures: a CNN, an MLP,
an LSTM over the rows of an image and a transformer over its patches. MNIST: 6,000 private images and 1,500
public ones; --quick takes scikit-learn's 8 × 8 digits. Runs what is missing from OUT/by_name.csv.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from experiments.coupling_table3.digits import Pair, mnist  # noqa: E402
from experiments.networks_auto.report import BY_NAME as METHODS  # noqa: E402
from experiments.sweep import Job, sweep  # noqa: E402
from sidelight.deep import Trainer  # noqa: E402

__all__ = ["ARCHITECTURES", "METHODS", "Digits", "accuracy", "digits"]

HERE = Path(__file__).parent
FIELDS = ("architecture", "method", "epsilon")
RESULTS = ("accuracy", "steps", "seconds", "notes")


class Digits(NamedTuple):
    """Square images of digits, in three parts."""

    private: Pair
    public: Pair
    test: Pair

    @property
    def side(self) -> int:
        return int(self.private[0].shape[-1])


def digits(*, quick: bool) -> Digits:
    """MNIST, or 8 × 8 images that scikit-learn has with it."""
    if quick:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        x = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
        y = torch.from_numpy(labels).long()
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        sizes = [800, 300, len(y) - 1100]
    else:
        (x, y), test = mnist()
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        sizes = [6_000, 1_500, 10_000]
    ends = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    private, public, rest = ((x[order[a:b]], y[order[a:b]]) for a, b in pairwise(ends))
    return Digits(private, public, rest if quick else test)


class Rows(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self, side: int, width: int = 32) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(side, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.last(self.lstm(images.squeeze(1))[0][:, -1])
        return found


class Patches(nn.Module):
    """One transformer block over the patches of an image."""

    def __init__(self, side: int, width: int = 32) -> None:
        super().__init__()
        self.patch = side // 4
        self.embed = nn.Linear(self.patch**2, width)
        self.place = nn.Parameter(0.1 * torch.randn(16, width))
        self.block = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.last = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        cut = nn.functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        found: Tensor = self.last(self.block(self.embed(cut) + self.place).mean(1))
        return found


def _cnn(side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 10),
    )  # fmt: skip


def _mlp(side: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 64), nn.ReLU(), nn.Linear(64, 10))


ARCHITECTURES: dict[str, Callable[[int], nn.Module]] = {
    "cnn": _cnn, "mlp": _mlp, "lstm": Rows, "transformer": Patches,
}  # fmt: skip


def accuracy(architecture: str, method: str, data: Digits, *, epsilon: float) -> tuple[float, Trainer]:
    """Of the method by its name, on test images."""
    torch.manual_seed(0)
    model = ARCHITECTURES[architecture](data.side)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), method=method, epsilon=epsilon, delta=1e-5, random_state=0,
        progress=False,
    )  # fmt: skip
    trainer.fit(data.private, data.public)
    return trainer.evaluate(data.test)["accuracy"], trainer


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.networks_auto.by_name", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--architecture", nargs="+", choices=list(ARCHITECTURES), default=list(ARCHITECTURES))
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    data = digits(quick=args.quick)

    def run(job: Job) -> dict[str, Any]:
        began = time.process_time()
        found, trainer = accuracy(job["architecture"], job["method"], data, epsilon=float(job["epsilon"]))
        notes: Any = trainer.privacy_.details["notes"]
        return {
            "accuracy": f"{found:.4f}", "steps": len(trainer.history_),
            "seconds": f"{time.process_time() - began:.0f}", "notes": "; ".join(map(str, notes)),
        }  # fmt: skip

    jobs: list[Job] = [
        {"architecture": architecture, "method": method, "epsilon": f"{args.epsilon:g}"}
        for architecture in args.architecture
        for method in args.method
    ]
    sweep(jobs, run, args.out / "by_name.csv", fields=FIELDS, results=RESULTS, workers=1, title="by name")


if __name__ == "__main__":
    main()
