"""Settings of a trainer and of a step, looked at before anything is charged or read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from sidelight.arguments import callable_or_none, positive, whole
from sidelight.errors import InputError
from sidelight.methods.declare import DECLARATIONS
from sidelight.methods.recipe import Recipe

if TYPE_CHECKING:
    from sidelight.deep.trainer import Trainer

__all__ = [
    "check_model",
    "check_trainer",
    "refuse_linear",
]


def check_trainer(trainer: Trainer) -> None:
    """Raise InputError at the first setting that cannot be meant."""
    check_model(trainer.model)
    positive("epsilon", trainer.epsilon)
    positive("delta", trainer.delta, optional=True)
    positive("expected_batch_size", trainer.expected_batch_size, optional=True)
    positive("epochs", trainer.epochs, optional=True)
    whole("steps", trainer.steps, optional=True)
    whole("public_batch_size", trainer.public_batch_size)
    whole("augmentations", trainer.augmentations)
    whole("random_state", trainer.random_state, least=0, optional=True)
    for name in ("optimizer", "scheduler", "augment", "public_augment"):
        callable_or_none(name, getattr(trainer, name))
    if not callable(trainer.loss):
        raise InputError(f"loss must be a function of outputs and targets, not {type(trainer.loss).__name__}")
    if trainer.validation is None:
        raise InputError("validation is a dataset, or the share of public records to set apart (0 for none)")
    if not callable(getattr(trainer.method, "plan", None)) and not isinstance(trainer.method, str):
        raise InputError(f"method must be a name or a recipe such as dope_sgd(), not {trainer.method!r}")


def check_model(model: Any) -> None:
    """A module with something to train."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise InputError("the model has lazy layers without parameters yet; call it on a made-up batch first")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("the model has no trainable parameters")
    if any(p.is_meta for p in model.parameters()):
        raise InputError("the model has parameters on the meta device, which hold no values; load them first")


def refuse_linear(method: Any) -> None:
    """Raise InputError for a method that asks for what a linear model alone has."""
    if not (isinstance(method, Recipe) and method.on_networks):
        name = getattr(method, "name", type(method).__name__)
        able = ", ".join(name for name, one in DECLARATIONS.items() if one.networks)
        raise InputError(f"{name} is for linear models. Networks take: {able}")
