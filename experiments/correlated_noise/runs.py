"""One run: a plan on the map, a linear model, a network, or a fleet of clients."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments import datasets
from experiments.networks_auto.tasks import TASKS, Task, mlp
from experiments.sweep import Job
from sidelight import PrivateClassifier
from sidelight.arrays import Array
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
STEP_SIZES = {
    "networks": (0.1, 0.5, 2.0, 8.0),
    "adult": (0.5, 2.0),
    "mnist rows": (0.1, 0.5, 2.0),
    "federated": (0.02, 0.05, 0.1, 0.5, 1.0, 2.0),
}
LEVELS = (0.5, 2.0, 8.0)
# (batch, passes) and ε. Without noise, ε is infinite.
SIZES: dict[str, dict[tuple[int, int], tuple[float, ...]]] = {
    "a9a": {(64, 1): LEVELS},
    "linear": {(64, 1): LEVELS, (64, 5): LEVELS, (256, 1): LEVELS},
    "networks": {(64, 1): LEVELS},
    "adult": {(64, 1): (2.0,)},
    "mnist rows": {(64, 1): (2.0,)},
    "federated": {(57, 2): (0.5, 2.0)},
}
KINDS = {
    "linear": ("independent", "banded", "banded, curvature"),
    "networks": ("independent", "banded"),
    "federated": ("independent", "turns, independent", "turns, banded", "turns, inverse"),
}
PROBLEMS = {"linear": LINEAR, "networks": NETWORKS, "federated": ("mnist clients",)}
EACH = 20  # images of a client


def noise_of(name: str) -> NoiseRule | None:
    return {
        "independent": None,
        "none": None,
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
    return [
        _job(part, problem, 0, batch, passes, epsilon, noise, size, seed)
        for problem in PROBLEMS[part]
        for (batch, passes), levels in SIZES.get(problem, SIZES[part]).items()
        for noise in (*KINDS[part], "none")
        for epsilon in (levels if noise != "none" else (math.inf,))
        for size in STEP_SIZES.get(problem, STEP_SIZES.get(part, (0.0,)))
        for seed in range(repeats)
    ]


def _job(
    part: str, problem: str, n: int, batch: int, passes: int, epsilon: float, noise: str, size: float,
    seed: int,
) -> Job:  # fmt: skip
    values = (part, problem, n, batch, passes, f"{epsilon:g}", noise, f"{size:g}", seed)
    return dict(zip(FIELDS, values, strict=True))


def run(job: Job) -> dict[str, Any]:
    found = {"map": _map, "linear": _linear, "networks": _network, "federated": _federated}[job["part"]](job)
    gc.collect()  # models and optimizers hold each other, and large tensors
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
    for bands in (2, 4, 8, 16):  # what BandedNoise() tries
        if bands <= min(most, steps):
            best = min(best, _relative(bands, bands, batch / n, job, work, alone, epsilon))
    everyone = min(most, steps, 16)
    best = min(best, _relative(everyone, most, 1 / most, job, work, alone, epsilon))
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
    private_method = dp_sgd(
        steps=steps, expected_batch_size=job["batch"], noise=noise_of(job["noise"]) or ConstantNoise()
    )
    free = job["noise"] == "none"
    model = PrivateClassifier(
        epsilon=1.0 if free else float(job["epsilon"]), delta=DELTA,
        method="non_private" if free else private_method, loss="logistic", random_state=job["seed"],
    )  # fmt: skip
    model.fit(rows[private], labels[private], X_public=rows[public], y_public=labels[public])
    details = model.privacy_.details
    return {
        "accuracy": f"{model.score(rows[test], labels[test]):.5f}",
        "public_accuracy": f"{model.score(rows[public], labels[public]):.5f}",
        "bands": details.get("noise_bands", 1),
        "in_turn": details.get("sampled_in_turn", ""),
    }


def _network(job: Job) -> dict[str, Any]:
    task = _task(job["problem"], job["seed"])
    torch.manual_seed(job["seed"])
    x, y = task.private
    model = mlp(x.shape[1], int(task.test[1].max()) + 1)
    details = (_plain_sgd if job["noise"] == "none" else _private_sgd)(job, model, x, y)
    return {
        "accuracy": f"{_accuracy(model, *task.test):.5f}",
        "public_accuracy": f"{_accuracy(model, *task.public):.5f}",
        "bands": details.get("noise_bands", 1),
        "in_turn": details.get("sampled_in_turn", ""),
    }


def _private_sgd(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
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
    return dict(step.privacy_.details)


def _plain_sgd(job: Job, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    """As many steps with batches of the same size, without clipping and without noise."""
    optimizer, rng = torch.optim.SGD(model.parameters(), lr=float(job["step_size"])), _drawn(job)
    for _ in range(round(len(y) * job["passes"] / job["batch"])):
        drawn = torch.from_numpy(np.flatnonzero(rng.random(len(y)) < job["batch"] / len(y)))
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x[drawn]), y[drawn], reduction="sum") / job["batch"]).backward()
        optimizer.step()
    return {}


def _drawn(job: Job) -> np.random.Generator:
    return np.random.default_rng(job["seed"])


def _federated(job: Job) -> dict[str, Any]:
    """Softmax regression on the images of clients who have 20 each."""
    task = _task("mnist rows", job["seed"])
    x, y = task.private
    count = len(y) // EACH
    x, y = x[: count * EACH].reshape(count, EACH, -1), y[: count * EACH].reshape(count, EACH)
    model = nn.Linear(x.shape[2], 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    users = SimulatedUsers(model, nn.CrossEntropyLoss(reduction="none"), x, y, local=fed_sgd())
    arrays, details = (_plain_rounds if job["noise"] == "none" else _private_rounds)(job, model, users, count)
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), arrays, strict=True):
            parameter.copy_(torch.as_tensor(array).reshape(parameter.shape))
    return {
        "accuracy": f"{_accuracy(model, *task.test):.5f}",
        "public_accuracy": f"{_accuracy(model, *task.public):.5f}",
        "bands": details.get("noise_bands", 1),
        "in_turn": details.get("sampled_in_turn", ""),
    }


def _private_rounds(
    job: Job, model: nn.Module, users: SimulatedUsers, count: int
) -> tuple[list[Array], dict[str, Any]]:
    method = dp_sgd(clip_norm=1.0, step_size=float(job["step_size"]), noise=noise_of(job["noise"]))
    server = FederatedServer(
        parameters_of(model), method=method, private=range(count), epsilon=float(job["epsilon"]), delta=DELTA,
        rounds=round(count / job["batch"] * job["passes"]), expected_cohort=job["batch"],
        random_state=job["seed"],
    )  # fmt: skip
    while (ask := server.open_round()) is not None:
        server.close_round(users.answers(ask))
    return list(server.arrays), dict(server.privacy_.details)


def _plain_rounds(
    job: Job, model: nn.Module, users: SimulatedUsers, count: int
) -> tuple[list[Array], dict[str, Any]]:
    """As many rounds with cohorts of the same size, without clipping and without noise."""
    arrays, rng = parameters_of(model), _drawn(job)
    for _ in range(round(count / job["batch"] * job["passes"])):
        cohort = np.flatnonzero(rng.random(count) < job["batch"] / count).tolist()
        if cohort:
            step = float(job["step_size"]) / job["batch"] * users.updates(cohort, arrays).sum(axis=0)
            pieces = np.split(step, np.cumsum([array.size for array in arrays])[:-1])
            arrays = [a - piece.reshape(a.shape) for a, piece in zip(arrays, pieces, strict=True)]
    return arrays, {}


@functools.lru_cache(maxsize=3)
def _task(name: str, seed: int) -> Task:
    return TASKS[name](seed)


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
