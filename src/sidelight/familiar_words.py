"""Arguments by the names that other libraries have for them: the answer says which one is meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from sidelight.errors import InputError, nearest

F = TypeVar("F", bound=Callable[..., Any])

_MEANT = {
    "batch_size": ("expected_batch_size", ", the mean size of batches that are drawn by chance"),
    "clip_norm": ("clip_norm", ""),
    "criterion": ("loss", ""),
    "eps": ("epsilon", ""),
    "learning_rate": ("step_size", ""),
    "lr": ("step_size", ""),
    "max_grad_norm": ("clip_norm", ""),
    "noise_multiplier": ("epsilon", ", from which the noise is computed"),
    "observer": ("observers", ", a list"),
    "sample_rate": ("expected_batch_size", ", the number of records times that rate"),
    "seed": ("random_state", ""),
    "target_delta": ("delta", ""),
    "target_epsilon": ("epsilon", ""),
    "verbose": ("progress", ""),
}


def knows_familiar_words(made: F) -> F:
    """A class, or a function, that answers an argument it does not have with the one that is meant.

    Where `epsilon` is required and missing, it says what to pass.
    """
    if isinstance(made, type):
        made.__init__ = knows_familiar_words(made.__init__)  # type: ignore[misc]
        return made
    parameters = inspect.signature(made).parameters
    names = [name for name in parameters if name != "self"]
    required = "epsilon" in parameters and parameters["epsilon"].default is inspect.Parameter.empty

    @functools.wraps(made)
    def answering(*args: object, **given: object) -> object:
        for name in given:
            if name not in names:
                raise InputError(f"there is no argument {name!r}.{_answer(name, names)}")
        if required and "epsilon" not in given:
            raise InputError("epsilon is missing: the privacy budget, for instance epsilon=1.0")
        return made(*args, **given)

    return answering  # type: ignore[return-value]


def _answer(name: str, names: list[str]) -> str:
    if name == "device":
        return " Training runs on the model's device: call model.to(device) first"
    if name not in _MEANT:
        return nearest(name, names) or f" There are: {', '.join(names)}"
    meant, why = _MEANT[name]
    whose = f"{meant}=" if meant in names else f"it in the method, method=dp_sgd({meant}=...)"
    return f" Say {whose}{why}"
