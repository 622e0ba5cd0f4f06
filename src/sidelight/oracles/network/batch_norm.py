"""BatchNorm out, GroupNorm in."""

from __future__ import annotations

import copy
import math

from torch import nn

from sidelight.errors import InputError

__all__ = ["replace_batch_norm"]


def replace_batch_norm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """A copy of the model in which every BatchNorm is a GroupNorm of the same channels.

    BatchNorm normalises a record by the others of its batch, so no record's influence can be bounded.
    GroupNorm looks at one record only. The number of groups is the largest divisor of the channels that is at
    most `groups`. Scale and shift are copied; running averages, which come from data, are dropped.
    """
    if isinstance(model, nn.modules.batchnorm._BatchNorm):
        return _group_norm(model, groups)
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(module, name, _group_norm(child, groups))
    return model


def _group_norm(norm: nn.modules.batchnorm._BatchNorm, groups: int) -> nn.GroupNorm:
    if groups < 1:
        raise InputError(f"groups must be at least 1, not {groups}")
    channels = norm.num_features
    count = max(g for g in range(1, min(groups, channels) + 1) if math.gcd(g, channels) == g)
    new = nn.GroupNorm(count, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        new.weight, new.bias = copy.deepcopy(norm.weight), copy.deepcopy(norm.bias)
        new.to(norm.weight.device)
    return new.train(norm.training)
