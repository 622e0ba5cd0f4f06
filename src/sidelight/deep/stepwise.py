"""What PrivateStep is given: a batch, a plan, and checks of both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from sidelight.arguments import kind_of
from sidelight.errors import InputError, SidelightError
from sidelight.methods.dp_sgd import FixedNoise
from sidelight.methods.part import NoiseRule
from sidelight.methods.parts import Cold, Last
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.batches import Batch, only_tensors, row_count, take
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.identity import Identity
from sidelight.problems.network import Batches
from sidelight.samplers import Indices

__all__ = [
    "GivenBatch",
    "as_pair",
    "check_budget",
    "check_call",
    "check_pair",
    "configured",
    "try_public",
]


class GivenBatch(Batches):
    """The one batch that the caller has just given."""

    def __init__(self) -> None:
        self.batch: Batch | None = None

    def of(self, indices: Indices | None) -> Iterable[Batch]:
        return [] if self.batch is None else [self.batch]


def configured(
    recipe: Any, steps: int | None, expected_batch_size: float | None, noise_multiplier: float | None
) -> Recipe:
    """The recipe with this plan, and with start and finish left to the caller."""
    if not isinstance(recipe, Recipe):
        name = getattr(recipe, "name", repr(recipe))
        raise InputError(f"method must be a recipe of steps, for instance dope_sgd(), and {name} is none")
    noise: NoiseRule = recipe.noise
    if noise_multiplier is not None:
        noise = FixedNoise(noise_multiplier, math.inf if steps is None else steps)
    return recipe.with_parts(
        start=Cold(), finish=Last(), steps=steps, expected_batch_size=expected_batch_size, noise=noise
    )


def check_budget(
    epsilon: float | None, delta: float | None, steps: int | None, noise_multiplier: float | None, ledger: Any
) -> None:
    """Either a budget and a number of steps, or a noise multiplier."""
    if noise_multiplier is None:
        if epsilon is None or delta is None or steps is None:
            raise InputError("pass epsilon, delta and steps, or noise_multiplier")
        if not (epsilon > 0 and math.isfinite(epsilon) and 0 < delta < 1):
            raise InputError("epsilon must be positive, and delta between 0 and 1, both excluded")
        return
    if epsilon is not None:
        raise InputError("epsilon and noise_multiplier exclude each other: one follows from the other")
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise InputError(f"noise_multiplier must be a positive number, not {noise_multiplier!r}")
    if ledger is not None and (steps is None or delta is None):
        raise InputError("a ledger is charged with the whole plan in advance; pass steps and delta as well")


def check_call(loss: Any, example: Any, identity: Any) -> None:
    """Types of what PrivateStep is given, before anything is done with them."""
    if not callable(loss):
        raise InputError(f"loss must be a function of outputs and targets, not {type(loss).__name__}")
    if example is not None:
        check_pair(example, 1)
    kind_of("identity", identity, Identity)


def as_pair(batch: Any) -> Batch:
    """(inputs, targets), also from the list that a DataLoader gives."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InputError("a batch is a pair (inputs, targets): tensors with one row a record")
    return batch[0], batch[1]


def check_pair(batch: Any, augmentations: int) -> int:
    """How many rows a batch has, if it is a pair of equally many rows, `augmentations` for each record."""
    batch = as_pair(batch)
    only_tensors(batch)
    rows = row_count(batch)
    if rows % augmentations:
        raise InputError(f"the batch is not a whole number of records of augmentations={augmentations} rows")
    return rows


def try_public(oracle: NetworkOracle, batch: Batch) -> None:
    """Raise InputError, before the charge, if the model or the loss fails on the public batch."""
    check_pair(batch, 1)
    try:
        with torch.random.fork_rng(devices=[]):
            oracle.loss_and_gradient(take(as_pair(batch), slice(0, 2)))
    except SidelightError:
        raise
    except Exception as error:
        told = str(error).strip().split("\n")[0]
        raise InputError(
            f"the model or the loss fails on public records ({type(error).__name__}: {told})"
        ) from error
