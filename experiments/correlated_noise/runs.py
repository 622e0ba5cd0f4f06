"""One run: a plan on the map, a linear model, a network, or a fleet of clients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments import datasets
from experiments.networks_auto.tasks import TASKS, mlp
from experiments.sweep import Job
from sidelight import PrivateClassifier
from sidelight.deep import PrivateStep
from sidelight.federated.server import FederatedServer
from sidelight.federated.simulation import SimulatedUsers, fed_sgd, parameters_of
from sidelight.methods import BandedNoise, ConstantNoise, dp_sgd
from sidelight.methods.correlated_noise import _multiplier
from sidelight.methods.part_kinds import NoiseRule
from sidelight.methods.workload import Workload, best_bands
from sidelight.privacy import accountants
from sidelight.privacy.turns import Turns

FIELDS = ("part", "problem", "n", "batch", "passes", "epsilon", "noise", "step_size", "seed")
RESULTS = ("noise_in_model", "bands", "in_turn", "public_accuracy", "accuracy")
DELTA, RELATION = 1e-5, "add-or-remove-one"

LINEAR = ("a9a", "magic")
NETWORKS = ("magic", "adult", "mnist rows")
STEP_SIZES = {"network": (0.5, 2.0), "federated": (0.1, 0.5)}
EACH = 20  # images of a client


def noise_of(name: str) -> NoiseRule | None:
    return {
        "independent": None,
        "banded": BandedNoise(),
        "banded, curvature": BandedNoise(curvature="public"),
        "turns, independent": BandedNoise(bands=1, sampled=False),
        "turns, banded": BandedNoise(bands=16, sampled=False),
        "turns, inverse": BandedNoise(bands=16, sampled=False, inverse=True),
    }[name]


def jobs(part: str, repeats: int) -> list[Job]:
    if part == "map":
        return [
            _job("map", "", n, batch, passes, epsilon, "banded", 0, 0)
            for n in (10_000, 60_000, 1_000_000)
            for batch in (64, 512, 4096)
            for passes in (1, 5, 20)
            for epsilon in (0.5, 2.0, 8.0)
            if batch * 2 <= n and n * passes / batch <= 40_000
        ]
    found = []
    for seed in range(repeats):
        if part == "linear":
            found += [
                _job(part, problem, 0, batch, passes, epsilon, noise, 0, seed)
                for problem in LINEAR
                for batch, passes in ((64, 1),)
                for epsilon in (0.5, 2.0, 8.0)
                for noise in ("independent", "banded", "banded, curvature")
            ]
        elif part == "networks":
            found += [
                _job(part, problem, 0, batch, passes, epsilon, noise, size, seed)
                for problem in NETWORKS
                for batch, passes in ((64, 1),)
                for epsilon in (2.0,)
                for noise in ("independent", "banded")
                for size in STEP_SIZES["network"]
            ]
        else:
            found += [
                _job(part, "mnist clients", 0, cohort, passes, epsilon, noise, size, seed)
                for cohort, passes in ((57, 2),)
                for epsilon in (0.5, 2.0)
                for noise in ("independent", "turns, independent", "turns, banded", "turns, inverse")
                for size in STEP_SIZES["federated"]
            ]
    if part == "networks":  # the slowest problem last
        found.sort(key=lambda job: NETWORKS.index(str(job["problem"])))
    return found


def _job(
    part: str, problem: str, n: int, batch: int, passes: int, epsilon: float, noise: str, size: float,
    seed: int,
) -> Job:  # fmt: skip
    values = (part, problem, n, batch, passes, f"{epsilon:g}", noise, f"{size:g}", seed)
    return dict(zip(FIELDS, values, strict=True))


def run(job: Job) -> dict[str, Any]:
    found = {"map": _map, "linear": _linear, "networks": _network, "federated": _federated}[job["part"]](job)
    return {**dict.fromkeys(RESULTS, ""), **found}


# ---------------------------------------------------------------------------------------------------


def _map(job: Job) -> dict[str, Any]:
    """The noise in the models, in proportion to that of DP-SGD with amplification: what a plan alone says."""
    n, batch, epsilon = job["n"], job["batch"], float(job["epsilon"])
    steps, most = round(n * job["passes"] / batch), n // batch
    work = Workload(steps)
    alone = accountants.noise_multiplier(
        epsilon=epsilon, delta=DELTA, sampling_probability=batch / n, steps=steps, relation=RELATION
    ) * math.sqrt(work.error(best_bands(work, 1)))
    best = (1.0, 1, batch / n)
    for bands in (2, 4, 8, 16, 32):
        if bands <= min(most, steps):
            best = min(best, _relative(bands, bands, batch / n, job, work, alone, epsilon))
            best = min(best, _relative(bands, most, 1 / most, job, work, alone, epsilon))
    return {"noise_in_model": f"{best[0]:.4f}", "bands": best[1], "in_turn": f"{best[2]:.4g}"}


def _relative(
    bands: int, cycle: int, rate: float, job: Job, work: Workload, alone: float, epsilon: float
) -> tuple[float, int, float]:
    turns = Turns(min(1.0, rate * cycle), cycle, work.steps, best_bands(work, bands))
    z = _multiplier(turns, job["n"], epsilon, DELTA) * math.sqrt(work.error(turns.strategy))
    larger = turns.expected_batch_size(job["n"]) / job["batch"]
    return z / alone / larger, bands, turns.sampling_probability


def _linear(job: Job) -> dict[str, Any]:
    """Logistic regression with 1,000 public rows, which give bounds alone."""
    data = datasets.a9a() if job["problem"] == "a9a" else datasets.magic()
    rows, labels = np.asarray(data.X, dtype=np.float64), (np.asarray(data.y) > 0).astype(int)
    order = np.random.default_rng(job["seed"]).permutation(len(labels))
    public, test, private = np.split(order, [1000, 1000 + len(order) // 5])
    steps = round(len(private) * job["passes"] / job["batch"])
    method = dp_sgd(
        steps=steps, expected_batch_size=job["batch"], noise=noise_of(job["noise"]) or ConstantNoise()
    )
    model = PrivateClassifier(
        epsilon=float(job["epsilon"]), delta=DELTA, method=method, loss="logistic", random_state=job["seed"]
    )
    model.fit(rows[private], labels[private], X_public=rows[public], y_public=labels[public])
    details = model.privacy_.details
    return {
        "accuracy": f"{model.score(rows[test], labels[test]):.5f}",
        "public_accuracy": f"{model.score(rows[public], labels[public]):.5f}",
        "bands": details.get("noise_bands", 1),
        "in_turn": details.get("sampled_in_turn", ""),
    }


def _network(job: Job) -> dict[str, Any]:
    task = TASKS[job["problem"]](job["seed"])
    torch.manual_seed(job["seed"])
    x, y = task.private
    model = mlp(x.shape[1], int(task.test[1].max()) + 1)
    steps = round(len(y) * job["passes"] / job["batch"])
    step = PrivateStep(
        model, nn.CrossEntropyLoss(reduction="none"), method=dp_sgd(noise=noise_of(job["noise"])),
        epsilon=float(job["epsilon"]), delta=DELTA, steps=steps, n_private=len(y),
        expected_batch_size=job["batch"], random_state=job["seed"],
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=float(job["step_size"]))
    for _ in range(steps):
        drawn = torch.from_numpy(step.sample())
        step((x[drawn], y[drawn]))
        optimizer.step()
    details = step.privacy_.details
    return {
        "accuracy": f"{_accuracy(model, *task.test):.5f}",
        "public_accuracy": f"{_accuracy(model, *task.public):.5f}",
        "bands": details.get("noise_bands", 1),
        "in_turn": details.get("sampled_in_turn", ""),
    }


def _federated(job: Job) -> dict[str, Any]:
    """Softmax regression on the images of clients who have 20 each."""
    task = TASKS["mnist rows"](job["seed"])
    x, y = task.private
    count = len(y) // EACH
    x, y = x[: count * EACH].reshape(count, EACH, -1), y[: count * EACH].reshape(count, EACH)
    model = nn.Linear(x.shape[2], 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    users = SimulatedUsers(model, nn.CrossEntropyLoss(reduction="none"), x, y, local=fed_sgd())
    method = dp_sgd(clip_norm=1.0, step_size=float(job["step_size"]), noise=noise_of(job["noise"]))
    server = FederatedServer(
        parameters_of(model), method=method, private=range(count), epsilon=float(job["epsilon"]), delta=DELTA,
        rounds=round(count / job["batch"] * job["passes"]), expected_cohort=job["batch"],
        random_state=job["seed"],
    )  # fmt: skip
    while (ask := server.open_round()) is not None:
        server.close_round(users.answers(ask))
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), server.arrays, strict=True):
            parameter.copy_(torch.from_numpy(array))
    details = server.privacy_.details
    return {
        "accuracy": f"{_accuracy(model, *task.test):.5f}",
        "public_accuracy": f"{_accuracy(model, *task.public):.5f}",
        "bands": details.get("noise_bands", 1),
        "in_turn": details.get("sampled_in_turn", ""),
    }


def _accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def chosen(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Of the step sizes of a run, the one that public records score best, over seeds."""
    groups: dict[tuple[str, ...], dict[str, list[dict[str, str]]]] = {}
    for row in rows:
        key = tuple(row[name] for name in FIELDS if name not in ("step_size", "seed"))
        groups.setdefault(key, {}).setdefault(row["step_size"], []).append(row)
    found = []
    for sizes in groups.values():
        best = max(sizes.values(), key=lambda some: np.mean([float(r["public_accuracy"]) for r in some]))
        found += best
    return found
