"""BatchNorm out, GroupNorm in."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from sidelight.errors import InputError

_AFTERWARDS = ("drop", "act")  # what timm's BatchNormAct2d does after it has normalized, in this order


def replace_batch_norm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """A copy of the model in which every BatchNorm is a GroupNorm of the same channels, or a LayerNorm.

    BatchNorm normalizes a record by the others of its batch, so no record's influence can be bounded.
    GroupNorm looks at one record only. The number of groups is the largest divisor of the channels that is at
    most `groups`. After a Linear a record has one number for each channel, and a group of one would be zero:
    there it is a LayerNorm. Scale and shift are copied; running averages, which come from data, are dropped.
    A subclass that drops out or activates as well (timm's BatchNormAct2d) keeps its modules `drop` and `act`;
    one that does anything else is refused by name.
    """
    if groups < 1:
        raise InputError(f"groups must be at least 1, not {groups}")
    _check_channels(model)
    if isinstance(model, _BatchNorm):
        return _replaced(model, "", groups)
    model = copy.deepcopy(model)
    made: dict[int, nn.Module] = {}  # a layer that is used twice stays one layer
    flat = _after_linear(model)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        for name, child in list(module._modules.items()):
            if isinstance(child, _BatchNorm):
                where = f"{path}.{name}" if path else name
                made[id(child)] = made.get(id(child)) or _replaced(child, where, groups, id(child) in flat)
                module._modules[name] = made[id(child)]
    return model


def _after_linear(model: nn.Module) -> set[int]:
    """One-dimensional norms that stand behind a linear layer, with activations or dropout between at most."""
    found, last = set[int](), nn.Module()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d) and isinstance(last, nn.Linear):
            found.add(id(module))
        elif not isinstance(module, _BatchNorm) and [*module.parameters(recurse=False)]:
            last = module
    return found


def _check_channels(model: nn.Module) -> None:
    for where, one in model.named_modules():
        if isinstance(one, _BatchNorm) and not one.num_features:
            raise InputError(f"{_named(one, where)} has no channels yet; run the model once, then replace it")


def _replaced(norm: _BatchNorm, where: str, groups: int, flat: bool = False) -> nn.Module:
    after = [getattr(norm, name) for name in _AFTERWARDS if isinstance(getattr(norm, name, None), nn.Module)]
    if not _only_normalizes(norm, after):
        raise InputError(
            f"{_named(norm, where)} does more than normalize, and a GroupNorm would drop that. Build the "
            "model with another norm layer, or replace this one by hand"
        )
    new = _as_layer_norm(norm) if flat else _as_group_norm(norm, groups)
    return nn.Sequential(new, *copy.deepcopy(after)).train(norm.training) if after else new


def _only_normalizes(norm: _BatchNorm, after: Sequence[nn.Module]) -> bool:
    """Whether the layer is PyTorch's own, or gives what BatchNorm and then `after` give in eval mode."""
    if type(norm).forward.__module__ == _BatchNorm.__module__ and not after:
        return True
    trial = copy.deepcopy(norm).eval()
    fixed = trial.running_mean is not None
    held = [one for one in (*trial.parameters(), *trial.buffers()) if one.is_floating_point()]
    like = held[0] if held else torch.zeros(())
    rows = torch.linspace(-2.0, 2.0, 3 * norm.num_features * 8).reshape(3, -1, 2, 2, 2).to(like)
    for x in (rows[..., 0], rows[..., 0, 0, 0], rows[..., 0, 0], rows):  # of two, no, one, three dimensions
        with torch.no_grad():
            try:
                found = trial(x)
            except Exception:  # a layer for records of other dimensions
                continue
            expected = functional.batch_norm(
                x, trial.running_mean, trial.running_var, trial.weight, trial.bias, not fixed, 0.0, trial.eps
            )
            for one in after:
                expected = copy.deepcopy(one).eval()(expected)
            return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    return False


def _named(norm: _BatchNorm, where: str) -> str:
    return f"{type(norm).__name__} {where!r}" if where else type(norm).__name__


def _as_group_norm(norm: _BatchNorm, groups: int) -> nn.Module:
    channels = norm.num_features
    count = max(g for g in range(1, min(groups, channels) + 1) if math.gcd(g, channels) == g)
    return _with_affine(nn.GroupNorm(count, channels, eps=norm.eps, affine=norm.affine), norm)


def _as_layer_norm(norm: _BatchNorm) -> nn.Module:
    return _with_affine(nn.LayerNorm(norm.num_features, eps=norm.eps, elementwise_affine=norm.affine), norm)


def _with_affine(new: nn.GroupNorm | nn.LayerNorm, norm: _BatchNorm) -> nn.Module:
    if norm.affine:
        new.weight, new.bias = copy.deepcopy(norm.weight), copy.deepcopy(norm.bias)
        new.to(norm.weight.device)
    return new.train(norm.training)
