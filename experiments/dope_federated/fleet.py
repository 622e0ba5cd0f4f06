"""MNIST over users: who holds which images, and one run of a method on them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments import datasets
from sidelight.arrays import Array
from sidelight.errors import NotPrivateWarning
from sidelight.federated import FederatedServer
from sidelight.federated.simulation import Local, SimulatedUsers, fed_avg, fed_sgd, parameters_of
from sidelight.methods.coupling import Weight, coupling, sample_mechanism
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd, full_private
from sidelight.methods.parts import FixedNoise, MeanLastHalf
from sidelight.methods.recipe import Recipe

Setting = Mapping[str, float]  # clip_norm, step_size, and what else a method takes

DELTA = 1e-5
USERS, EACH = 3000, 10
ROUNDS, COHORT = 40, 300
METHODS = ("dp_sgd (all)", "dp_sgd (only private)", "dope_sgd", "dope_sgd, extended", "coupling")
PUBLIC_ONLY = "public only"


class Score(NamedTuple):
    """On test images, or on those of public users that judge; and the ε that was spent."""

    accuracy: float
    loss: float
    spent: float


@dataclass(frozen=True)
class Fleet:
    """Users with as many images each: 0 … n − 1, the last of them public."""

    X: Tensor  # (users, images, pixels)
    y: Tensor
    public: int
    test: tuple[Tensor, Tensor]

    @property
    def n(self) -> int:
        """Private users."""
        return len(self.X) - self.public

    @property
    def consenting(self) -> range:
        return range(self.n, len(self.X))

    def standing_in(self, fold: int) -> Fleet:
        """Public users alone, in three parts: most stand in for private ones, some are public, some judge."""
        order = np.random.default_rng(fold).permutation(np.asarray(self.consenting))
        fifth = len(order) // 5
        judges, rest = torch.from_numpy(order[:fifth]), torch.from_numpy(order[fifth:])
        judged = self.X[judges].flatten(0, 1), self.y[judges].flatten()
        return Fleet(self.X[rest], self.y[rest], fifth, judged)


@lru_cache(maxsize=1)
def digits() -> tuple[Array, Array, Array, Array]:
    data = datasets.mnist()
    small = [_halved(np.asarray(X)) for X in (data.X, data.X_test)]
    return small[0], data.y.astype(np.int64), small[1], np.asarray(data.y_test, dtype=np.int64)


def _halved(X: Array) -> Array:
    """28 × 28 pixels as 14 × 14, the mean of four each, in [0, 1]: a fixed map, of no record."""
    four = np.asarray(X, dtype=np.float32).reshape(len(X), 14, 2, 14, 2)
    return np.asarray(four.mean(axis=(2, 4)).reshape(len(X), -1) / 255)


def deal(y: Array, rng: np.random.Generator, *, each: int, skewed: bool) -> Array:
    """(users, each): the images of every user, of any class; `skewed`: half of one, half of another."""
    order = rng.permutation(len(y))
    if skewed:
        # Sorted by class and cut into halves of a user's number, which are dealt out again: each holds two.
        order = order[np.argsort(y[order], kind="stable")]
        pieces = [order[i * each : (i + 1) * each] for i in range(len(y) // each)]
        first = rng.permutation([piece[: each // 2] for piece in pieces])
        second = rng.permutation([piece[each // 2 :] for piece in pieces])
        return np.concatenate([first, second], axis=1)
    return order[: len(y) // each * each].reshape(-1, each)


@lru_cache(maxsize=1)
def fleet(split: str, seed: int, users: int, each: int = EACH) -> Fleet:
    """`users` users of whom 2 % are public. These and their images are the same for every seed."""
    X, y, X_test, y_test = digits()
    fixed = np.random.default_rng(7).permutation(len(y))[: users * each]
    public = users // 50
    shared, others = fixed[: public * each], fixed[public * each :]
    skewed, rng = split == "skewed", np.random.default_rng(1000 + seed)
    mine = others[deal(y[others], rng, each=each, skewed=skewed)]
    theirs = shared[deal(y[shared], np.random.default_rng(8), each=each, skewed=skewed)]
    held = np.concatenate([mine, theirs])
    test = torch.from_numpy(X_test), torch.from_numpy(y_test)
    return Fleet(torch.from_numpy(X[held]), torch.from_numpy(y[held]), public, test)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def recipe(method: str, setting: Setting) -> Recipe:
    """A method with its clip norm and step size; the mean of the last half of all models."""
    clip, size = setting["clip_norm"], setting["step_size"]
    finish = MeanLastHalf()
    match method:
        case "dp_sgd (all)":
            made = full_private(clip_norm=clip, step_size=size)
        case "dp_sgd (only private)":
            made = sample_mechanism(clip_norm=clip, step_size=size)
        case "dope_sgd":
            made = dope_sgd(clip_norm=clip, step_size=size)
        case "dope_sgd, extended":
            made = dope_sgd(clip_norm=clip, step_size=size, start="cold", extended=True)
        case "coupling":
            made = coupling(
                weight=setting["weight"], reduction="mean", bound=clip, gamma=0.01, step_size=size
            )
        case _:
            raise ValueError(method)
    return made.with_parts(finish=finish)


def local_of(local: str) -> Local:
    """One step on all of their images, or five steps on four at a time."""
    return fed_sgd() if local == "FedSGD" else fed_avg(steps=5, step_size=0.2, batch_size=4)


def train(
    fleet: Fleet, made: Recipe, *, epsilon: float, local: str, rounds: int, cohort: float, seed: int | None
) -> Score:
    """One run of a method."""
    model = nn.Linear(fleet.X.shape[-1], 10)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    users = SimulatedUsers(model, losses, fleet.X, fleet.y, local=local_of(local))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)  # the seed of an experiment
        server = FederatedServer(
            parameters_of(model), method=made, private=range(fleet.n), public=fleet.consenting,
            epsilon=epsilon, delta=DELTA, rounds=rounds, expected_cohort=cohort, random_state=seed,
        )  # fmt: skip
        while (ask := server.open_round()) is not None:
            server.close_round(users.answers(ask))
    return scored(fleet, server)


def scored(fleet: Fleet, server: FederatedServer) -> Score:
    weight, bias = (torch.from_numpy(array) for array in server.arrays)
    outputs, y = fleet.test[0] @ weight.T + bias, fleet.test[1]
    spent = 0.0 if not server.finished else server.privacy_.epsilon
    return Score(float((outputs.argmax(1) == y).float().mean()), float(cross_entropy(outputs, y)), spent)


def train_public(fleet: Fleet, *, step_size: float, rounds: int, local: str) -> Score:
    """Public users alone, all of them in every round: nothing is charged."""
    model = nn.Linear(fleet.X.shape[-1], 10)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    users = SimulatedUsers(model, losses, fleet.X, fleet.y, local=local_of(local))
    server = FederatedServer(
        parameters_of(model), method=dp_sgd(clip_norm=1.0), private=range(fleet.n), public=fleet.consenting,
        epsilon=1.0, delta=DELTA, rounds=1, warm_rounds=rounds, warm_step_size=step_size,
    )  # fmt: skip
    for _ in range(rounds):
        ask = server.open_round()
        if ask is not None:
            server.close_round(users.answers(ask))
    return scored(fleet, server)


def rehearsed(
    fleet: Fleet, method: str, setting: Setting, *, noise: float, local: str, rounds: int, fold: int
) -> Score:
    """How public users judge, after training on others with as much noise as there will be.

    `noise` is the noise multiplier of the plan over its expected cohort: what a mean gets, in clip norms.
    """
    small = fleet.standing_in(fold)
    made = recipe(method, setting)
    if method == "dp_sgd (only private)":
        made = made.with_parts(mix=Weight(0.02))  # their share of all users, as it will be
    n = len(small.X) if method == "dp_sgd (all)" else small.n
    made = made.with_parts(noise=FixedNoise(noise * n))
    if method == "dope_sgd, extended":
        made = made.with_parts(extended=False)  # public users will be 2 % of the pool, and here are a third
    return train(small, made, epsilon=1e9, local=local, rounds=rounds, cohort=n, seed=fold)
