"""What replaces a BatchNorm does all that the BatchNorm did, but for looking at other records."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sidelight.deep.batch_norm import replace_batch_norm
from sidelight.errors import InputError


class NormAct(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: an activation inside of the norm."""

    def __init__(self, channels: int, act: nn.Module | None = None, drop: nn.Module | None = None) -> None:
        super().__init__(channels)
        self.act, self.drop = act or nn.ReLU(), drop or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        x = functional.batch_norm(x, mean, variance, self.weight, self.bias, self.training, 0.1, self.eps)
        found: Tensor = self.act(self.drop(x))
        return found


class Doubled(nn.BatchNorm1d):
    """Does something that no attribute tells of."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Signed(NormAct):
    """Has the attributes, and does something else with them."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class Renamed(nn.BatchNorm2d):
    """A forward of its own that does what BatchNorm does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize(
    "act", [nn.ReLU(), nn.SiLU(), nn.Hardswish(), nn.PReLU(6)], ids=lambda a: type(a).__name__
)
def test_an_activation_inside_of_the_norm_is_kept(act: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), NormAct(6, act, nn.Dropout(0.5)))
    changed = replace_batch_norm(model, groups=2).eval()
    assert not any(isinstance(one, nn.BatchNorm2d) for one in changed.modules())
    x = torch.randn(4, 3, 5, 5)
    plain = nn.GroupNorm(2, 6)(changed[0](x))
    torch.testing.assert_close(changed(x), act(plain))
    assert (changed.train()(torch.ones(64, 3, 5, 5)) == 0).any()  # it drops out in training


@pytest.mark.parametrize("norm", [Doubled(4), Signed(4), nn.Sequential(nn.Sequential(Doubled(4)))])
def test_a_norm_that_does_more_is_refused_by_name(norm: nn.Module) -> None:
    with pytest.raises(InputError, match=r"Doubled|Signed"):
        replace_batch_norm(norm)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4), nn.BatchNorm2d(4, affine=False), nn.BatchNorm3d(4, track_running_stats=False),
        nn.SyncBatchNorm(4), Renamed(4), Renamed(4).double(),
        Renamed(4, affine=False, track_running_stats=False),
    ],
    ids=lambda norm: f"{type(norm).__name__}-{norm.affine}",
)  # fmt: skip
def test_a_norm_that_only_normalizes_is_replaced(norm: Any) -> None:
    assert type(replace_batch_norm(norm)) is nn.GroupNorm
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)


def test_a_norm_used_twice_stays_one() -> None:
    norm = nn.BatchNorm1d(4)
    changed = replace_batch_norm(nn.Sequential(norm, nn.ReLU(), norm, nn.Sequential(norm)))
    assert changed[0] is changed[2] is changed[3][0] and isinstance(changed[0], nn.GroupNorm)


def test_a_norm_without_channels_is_refused() -> None:
    with pytest.raises(InputError, match="LazyBatchNorm1d"):
        replace_batch_norm(nn.Sequential(nn.LazyBatchNorm1d()))
