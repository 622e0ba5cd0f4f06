"""Step sizes and limits of the origin, chosen on public images alone.

A third of the public images play the public ones, another third, transformed into 20,000 images, stand in for
the private ones, and the last third and the validation images score. The steps are those of a cell, with its
noise on the mean of a batch; the batch is smaller, which lengthens what is not privacy noise.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from experiments.dope_table9.cells import BATCH, DELTA, METHODS, STEPS, ConvNet, train_publicly
from experiments.dope_table9.images import Images, Pair, split, transformed
from experiments.protocol import Unlimited
from experiments.sweep import Job, read
from sidelight.methods.dope_sgd import PublicGradient
from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import accountants, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import release
from sidelight.problems.flat_parameters import read as read_parameters
from sidelight.problems.flat_parameters import write

__all__ = ["FIELDS", "RESULTS", "chosen", "jobs", "rehearse"]

FIELDS = ("method", "start", "step_size", "limit")
RESULTS = ("accuracy", "loss", "cpu_seconds")
STEP_SIZES = {
    "cold": {"dp_sgd": (1.0, 2.0, 4.0, 8.0), "dope_sgd": (2.0, 4.0)},
    "warm": {"dp_sgd": (1.0, 2.0, 4.0), "dope_sgd": (1.0, 2.0)},
}
LIMITS = {"dp_sgd": (0.0,), "dope_sgd": (0.1, 0.2)}
EPSILON, PRIVATE = 2.0, 48_000
SMALL_BATCH = 96


def jobs(*, quick: bool) -> list[Job]:
    return [
        {"method": method, "start": start, "step_size": size, "limit": limit, "quick": quick}
        for start, sizes in STEP_SIZES.items()
        for method in METHODS
        for size in sizes[method]
        for limit in LIMITS[method]
    ]


def chosen(path: Path, method: str, setting: str) -> tuple[float, float]:
    """Step size and limit with the best accuracy in the rehearsal (then the least loss); the same at every ε,
    and with the extended pool as without it."""
    start = setting.partition("-")[0]
    rows = [row for row in read(path) if (row["method"], row["start"]) == (method, start)]
    best = max(rows, key=lambda row: (float(row["accuracy"]), -float(row["loss"])))
    return float(best["step_size"]), float(best["limit"])


def rehearse(job: Job) -> dict[str, Any]:
    """Train on stand-ins with the noise of a cell; accuracy and loss on images that nothing saw."""
    torch.set_num_threads(1)
    begun, quick = time.process_time(), job["quick"]
    guide, standins, unseen = _thirds(split(seed=0, quick=quick))
    public = transformed(guide, 100 if quick else 20_000, seed=1)
    private = transformed(standins, 100 if quick else 20_000, seed=2)
    torch.manual_seed(0)
    model, steps, batch = ConvNet(), 2 if quick else STEPS, 20 if quick else SMALL_BATCH
    if job["start"] == "warm":
        train_publicly(model, public, seed=0, quick=quick)
    sigma = accountants.noise_multiplier(
        epsilon=EPSILON, delta=DELTA, sampling_probability=BATCH / PRIVATE, steps=STEPS,
        relation="add-or-remove-one",
    )  # fmt: skip
    _steps(model, private, public, job, steps=steps, batch=batch, std=sigma / BATCH)
    model.eval()
    with torch.no_grad():
        outputs = model(unseen[0])
    right = float((outputs.argmax(1) == unseen[1]).float().mean())
    loss = float(torch.nn.functional.cross_entropy(outputs, unseen[1]))
    seconds = time.process_time() - begun
    return {"accuracy": f"{right:.4f}", "loss": f"{loss:.4f}", "cpu_seconds": f"{seconds:.0f}"}


def _steps(
    model: ConvNet, private: Pair, public: Pair, job: Job, *, steps: int, batch: int, std: float
) -> None:
    """DP-SGD around a shortened public gradient; `std` is that of each coordinate of the mean."""
    oracle = NetworkOracle(
        model,
        torch.nn.CrossEntropyLoss(reduction="none"),
        example=(public[0][:8], public[1][:8]),
        pass_size=batch,
    )
    origin, noise = PublicGradient(float(job["limit"])), Noise(0)
    generator = torch.Generator().manual_seed(3)

    def drawn(pair: Pair) -> Pair:
        rows = torch.randint(len(pair[1]), (batch,), generator=generator)
        return pair[0][rows], pair[1][rows]

    for step in range(steps):
        around = None
        if job["method"] == "dope_sgd":
            around = torch.as_tensor(origin.at(oracle.mean_gradient(drawn(public))))
        total = oracle.clipped_sum(
            drawn(private), clip=Flat(1.0), relation="add-or-remove-one", origin=around
        )
        event = events.gaussian(std * batch)
        found = release(total, std=std * batch, event=event, account=Unlimited(), noise=noise).numpy() / batch
        mean = torch.as_tensor(found) if around is None else torch.as_tensor(found) + around
        write(model, read_parameters(model) - float(job["step_size"]) * (1 - step / steps) * mean)


def _thirds(images: Images) -> tuple[Pair, Pair, Pair]:
    """Every third image, so that the classes stay balanced; the last third with the validation images."""
    x, y = images.public
    last = torch.cat([x[2::3], images.validation[0]]), torch.cat([y[2::3], images.validation[1]])
    return (x[0::3], y[0::3]), (x[1::3], y[1::3]), last
