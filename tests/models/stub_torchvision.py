"""timm without torchvision: its models need nothing of it, but its data pipeline imports it.

Each build of torchvision demands one build of torch, so these tests do without. While timm is imported, an
empty stand-in takes its place; afterwards it is gone, and other libraries see that there is none.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import nn

_NAMES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.models.feature_extraction",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
)


class _Anything(type):
    """A class with every attribute, each of them itself a class like this one."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Absent(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nn.BatchNorm2d if name == "FrozenBatchNorm2d" else _Anything(name, (), {})


def import_timm() -> Any:
    """The library; raises ModuleNotFoundError if it is not installed."""
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        for name in _NAMES:
            module = _Absent(name)
            module.__spec__, module.__path__ = ModuleSpec(name, None), []
            sys.modules[name] = module
        for name in _NAMES[1:]:
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, sys.modules[name])
    try:
        import timm
    finally:
        for name in _NAMES:
            if isinstance(sys.modules.get(name), _Absent):
                del sys.modules[name]
    return timm
