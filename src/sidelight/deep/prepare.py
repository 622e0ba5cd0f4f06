"""What a fit needs before the charge: steps, an optimizer, public records to learn from, others set apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from sidelight.data.torch_datasets import as_dataset, shared_records
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.methods.dope_sgd import PublicGradient, Warm
from sidelight.methods.recipe import Recipe
from sidelight.oracles.network.batches import Records

if TYPE_CHECKING:
    from sidelight.deep.trainer import Trainer

__all__ = [
    "configured",
    "planned_steps",
    "public_parts",
    "sound_optimizer",
    "sound_scheduler",
]


_ORIGIN_LIMIT = 0.5  # a public gradient of a network may be many times as long as a clipped private one


def configured(trainer: Trainer, recipe: Recipe, *, n: int, n_public: int) -> Recipe:
    """The recipe with the trainer's batch size, steps and start."""
    asked = trainer.expected_batch_size
    batch = recipe.expected_batch_size if asked is None else asked
    pool = n + (n_public if recipe.extended else 0)
    steps = planned_steps(trainer, pool, batch)
    origin = recipe.origin
    if isinstance(origin, PublicGradient) and origin.limit is None:
        origin = PublicGradient(_ORIGIN_LIMIT)
    return recipe.with_parts(
        origin=origin,
        expected_batch_size=batch,
        steps=recipe.steps if steps is None else steps,
        start=recipe.start if trainer.warm_up is None else Warm(),
    )


def planned_steps(trainer: Trainer, pool: int, batch: float | None) -> int | None:
    """What steps= or epochs= ask for."""
    if trainer.steps is not None and trainer.epochs is not None:
        raise InputError("pass steps or epochs, not both")
    if trainer.epochs is None:
        return trainer.steps
    if not trainer.epochs > 0:
        raise InputError(f"epochs must be positive, not {trainer.epochs!r}")
    return max(1, math.ceil(trainer.epochs * pool / min(pool, pool if batch is None else batch)))


def sound_optimizer(made: Any) -> torch.optim.Optimizer:
    """What optimizer= returned, if it can take a step with a gradient that is given."""
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            f"optimizer= returned {type(made).__name__}; it must return an optimizer of the parameters that "
            "it is given, as lambda p: torch.optim.SGD(p, lr=0.1) does"
        )
    if isinstance(made, torch.optim.LBFGS):
        raise InputError(
            "LBFGS asks for the loss several times a step, and each would be a release; use another"
        )
    return made


def sound_scheduler(make: Any, optimizer: torch.optim.Optimizer) -> Any:
    """A scheduler that is stepped after every step, or None."""
    made = None if make is None else make(optimizer)
    if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau) or not (
        made is None or hasattr(made, "step")
    ):
        raise InputError(f"scheduler= returned {type(made).__name__}; its step() must need no score")
    return made


def public_parts(
    trainer: Trainer, public: Dataset[Any] | None, seed: int, device: torch.device
) -> tuple[Records | None, Records | None]:
    """Public records to learn from, and others that are set apart."""
    validation, loading = trainer.validation, trainer.loading
    if not isinstance(validation, int | float):
        validation = as_dataset(validation)
        if trainer._private is not None and shared_records(validation, trainer._private):
            raise PrivacyConditionError("validation holds private records; pass public or test records")
        apart = Records(validation, loading, device)
        return (None if public is None else Records(public, loading, device)), apart
    if not 0 <= validation < 1:
        raise InputError(f"validation is a dataset or a share in [0, 1), not {validation!r}")
    if public is None or not len(public):  # type: ignore[arg-type]
        return None, None
    size = len(public)  # type: ignore[arg-type]
    count = int(validation * size)
    if count == 0:
        return Records(public, loading, device), None
    order = np.random.default_rng([seed, 2**41]).permutation(size)
    pick = [np.sort(order[count:]).tolist(), np.sort(order[:count]).tolist()]
    learn, apart = (Records(Subset(public, rows), loading, device) for rows in pick)
    return learn, apart
