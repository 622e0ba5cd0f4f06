"""Spectral norms, which improve their estimate of a weight's largest singular value at every forward pass.

How many passes a step has depends on how many records it drew, and so would the estimate. It follows from the
weights alone, so it is held while they run, and improved once a step by whoever moves the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm as SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList

__all__ = ["SpectralNorm", "refresh_norms", "settled_norms"]


def refresh_norms(model: nn.Module) -> None:
    """One improvement of every estimate, as a forward pass in training mode would make it."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, ParametrizationList) and any(norm.training for norm in _norms(module)):
                module()


@contextmanager
def settled_norms(model: nn.Module) -> Iterator[None]:
    """Estimates stay as they are."""
    training = [norm for norm in _norms(model) if norm.training]
    for norm in training:
        norm.training = False
    try:
        yield
    finally:
        for norm in training:
            norm.training = True


def _norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, SpectralNorm)]
