"""What a model holds, to be compared before and after. Import once torch is there."""

from typing import Any

import torch
from torch import Tensor, nn


def state(model: nn.Module) -> dict[str, Any]:
    """All that hangs on a model by a name: parameters, buffers, attributes, and what lists of them hold."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in ("_modules", "training"):
                _collect(f"{name}.{key}", value, found)
    return found


def _collect(name: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, Tensor):
        found[name] = value.detach().clone()
    elif isinstance(value, dict):
        found[f"{name} (size)"] = len(value)
        for key, item in value.items():
            _collect(f"{name}[{key}]", item, found)
    elif isinstance(value, list | tuple):
        found[f"{name} (size)"] = len(value)
        for number, item in enumerate(value):
            _collect(f"{name}[{number}]", item, found)
    elif isinstance(value, int | float | str | None):
        found[name] = value


def same_state(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)
