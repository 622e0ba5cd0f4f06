"""Correct models: architectures for images, with shapes of timm."""

from typing import Any

import torch
from tests.mistakes.pieces import CLASSES, IMAGE, head, norm
from tests.mistakes.registry import (
    Group,
    Of,
    entropy,
    floats,
    integers,
    scale,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------------------------------------------

vision = Group("vision, shapes of timm", IMAGE, CLASSES, entropy)
vision(
    "residual block",
    lambda: Of(
        _residual,
        s=nn.Conv2d(3, 4, 3, padding=1),
        a=nn.Conv2d(4, 4, 3, padding=1),
        n=norm(4),
        c=nn.Conv2d(4, 4, 3, padding=1),
        o=norm(4),
        b=head(4),
    ),
)
vision(
    "bottleneck with a projection",
    lambda: Of(
        lambda m, x: m.b((m.p(x) + m.c(m.a(x).relu()).relu()).mean((2, 3))),
        p=nn.Conv2d(3, 8, 1, 2),
        a=nn.Conv2d(3, 4, 1),
        c=nn.Conv2d(4, 8, 3, 2, 1),
        b=head(8),
    ),
)
vision(
    "squeeze and excitation",
    lambda: Of(_excited, a=nn.Conv2d(3, 4, 3), r=nn.Conv2d(4, 2, 1), e=nn.Conv2d(2, 4, 1), b=head(4)),
)
vision(
    "inverted bottleneck",
    lambda: Of(
        lambda m, x: m.b((x + m.c(functional.silu(m.d(functional.silu(m.a(x)))))).mean((2, 3))),
        a=nn.Conv2d(3, 9, 1),
        d=nn.Conv2d(9, 9, 3, padding=1, groups=9),
        c=nn.Conv2d(9, 3, 1),
        b=head(3),
    ),
)
vision(
    "ConvNeXt's block",
    lambda: Of(
        _convnext,
        d=nn.Conv2d(3, 3, 3, padding=1, groups=3),
        n=nn.LayerNorm(3),
        u=nn.Linear(3, 12),
        w=nn.Linear(12, 3),
        s=scale(3, value=1e-3),
        b=head(3),
    ),
)
vision(
    "MLP-Mixer's block",
    lambda: Of(
        _mixer, p=nn.Conv2d(3, 4, 4, 4), n=nn.LayerNorm(4), t=nn.Linear(4, 4), c=nn.Linear(4, 4), b=head(4)
    ),
)
vision(
    "dense connections",
    lambda: Of(
        lambda m, x: m.b(
            torch.cat([x, m.a(x).relu(), m.c(torch.cat([x, m.a(x).relu()], 1))], 1).mean((2, 3))
        ),
        a=nn.Conv2d(3, 2, 3, padding=1),
        c=nn.Conv2d(5, 2, 3, padding=1),
        b=head(7),
    ),
)
vision(
    "U-Net",
    lambda: Of(
        _unet,
        d=nn.Conv2d(3, 4, 3, padding=1),
        e=nn.Conv2d(4, 4, 3, padding=1),
        u=nn.ConvTranspose2d(4, 4, 2, 2),
        o=nn.Conv2d(8, 3, 1),
    ),
    targets=integers(3, 8, 8),
    loss=lambda z, y: entropy(z, y).mean((1, 2)),
)
vision("shifted windows", lambda: Of(_windows, p=nn.Conv2d(3, 4, 2, 2), q=nn.Linear(4, 12), b=head(4)))
vision(
    "stochastic depth per record",
    lambda: Of(_stochastic_depth, a=nn.Conv2d(3, 3, 3, padding=1), b=head(3)),
    random=True,
)
vision("blur pooling with a buffer", lambda: _blur())
vision(
    "generalized mean pooling",
    lambda: Of(
        lambda m, x: m.b(m.a(x).clamp(min=1e-3).pow(m.p).mean((2, 3)).pow(1 / m.p)),
        a=nn.Conv2d(3, 4, 3),
        p=scale(1, value=3.0),
        b=head(4),
    ),
)
vision("spatial transformer", lambda: Of(_spatial, t=nn.Linear(192, 6), a=nn.Conv2d(3, 2, 3), b=head(2)))
vision(
    "detection head, boxes and classes",
    lambda: Of(
        lambda m, x: (m.c(m.a(x).relu().mean((2, 3))), m.r(m.a(x).relu().mean((2, 3)))),
        a=nn.Conv2d(3, 4, 3),
        c=head(4),
        r=nn.Linear(4, 4),
    ),
    targets=(CLASSES, floats(4)),
    loss=lambda z, y: entropy(z[0], y[0]) + functional.smooth_l1_loss(z[1], y[1], reduction="none").sum(1),
)
vision(
    "deformable offsets by grid_sample",
    lambda: Of(_deformable, o=nn.Conv2d(3, 2, 3, padding=1), a=nn.Conv2d(3, 2, 3), b=head(2)),
)


def _spatial(m: Any, x: Tensor) -> Tensor:
    theta = 0.1 * m.t(x.flatten(1)).view(-1, 2, 3) + torch.eye(2, 3)
    grid = functional.affine_grid(theta, [len(x), 3, 8, 8], align_corners=False)
    return m.b(m.a(functional.grid_sample(x, grid, align_corners=False)).relu().mean((2, 3)))


def _deformable(m: Any, x: Tensor) -> Tensor:
    line = torch.linspace(-1, 1, 8)
    base = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
    grid = base + 0.1 * m.o(x).permute(0, 2, 3, 1).tanh()
    return m.b(m.a(functional.grid_sample(x, grid, align_corners=True)).relu().mean((2, 3)))


def _residual(m: Any, x: Tensor) -> Tensor:
    x = m.s(x)
    return m.b((x + m.o(m.c(m.n(m.a(x)).relu()))).relu().mean((2, 3)))


def _excited(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    return m.b((x * m.e(m.r(x.mean((2, 3), keepdim=True)).relu()).sigmoid()).mean((2, 3)))


def _convnext(m: Any, x: Tensor) -> Tensor:
    hidden = m.n(m.d(x).permute(0, 2, 3, 1))
    hidden = m.s * m.w(functional.gelu(m.u(hidden)))
    return m.b((x + hidden.permute(0, 3, 1, 2)).mean((2, 3)))


def _mixer(m: Any, x: Tensor) -> Tensor:
    x = m.p(x).flatten(2).transpose(1, 2)
    x = x + m.t(m.n(x).transpose(1, 2)).transpose(1, 2)
    return m.b((x + m.c(m.n(x))).mean(1))


def _unet(m: Any, x: Tensor) -> Tensor:
    high = m.d(x).relu()
    low = m.e(functional.max_pool2d(high, 2)).relu()
    return m.o(torch.cat([high, m.u(low)], 1))


def _windows(m: Any, x: Tensor) -> Tensor:
    x = m.p(x).permute(0, 2, 3, 1).roll((-1, -1), (1, 2))
    x = x.view(len(x), 2, 2, 2, 2, 4).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4)
    q, k, v = m.q(x).chunk(3, -1)
    x = (q @ k.transpose(1, 2)).softmax(-1) @ v
    return m.b(x.view(-1, 16, 4).mean(1))


def _stochastic_depth(m: Any, x: Tensor) -> Tensor:
    kept = (torch.rand(len(x), 1, 1, 1) < 0.8).to(x.dtype)
    return m.b((x + m.a(x) * kept / 0.8).mean((2, 3)))


def _blur() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.b(functional.conv2d(m.a(x).relu(), m.kernel, stride=2, groups=4).mean((2, 3)))

    model = Of(run, a=nn.Conv2d(3, 4, 3), b=head(4))
    model.register_buffer("kernel", torch.ones(4, 1, 2, 2) / 4)
    return model
