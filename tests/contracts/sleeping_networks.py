"""Networks that behave on trial rows, and mix, keep or move records later. Import once torch is there.

`SWITCHED`: changed by their owner between two steps. `ASLEEP`: they mix records by operations that trial rows
do not show. `KEEPING`: they hold on to what they saw. `RARE`: they change themselves for a record far away.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LOG: list[float] = []
KEPT: dict[str, Any] = {}
FAR = 1e5


def squares(o: Tensor, y: Tensor) -> Tensor:
    return (o - y) ** 2


def rows(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=source), torch.randn(n, generator=source)


class Net(nn.Module):
    """Two layers; `before` and `between` say what is done with their inputs."""

    def __init__(self, before: Callable[..., Tensor] | None = None, between: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.act = nn.Linear(4, 8), nn.Linear(8, 1), nn.Tanh()
        self.before, self.between = before, between
        self.center = False
        self.register_buffer("t", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.a(x if self.before is None else self.before(x)))
        return self.b(h if self.between is None else self.between(self, h))[:, 0]


class Gated(Net):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        if self.g.abs() > 1e-3:
            h = h - self.g * h.mean(0)
        return self.b(h)[:, 0] + self.g * x[:, 0]


class Centered(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return (h - h.mean(0)).tanh()


class WarmUp:
    """A loss with weights over the batch from its third epoch on."""

    epoch = 0

    def __call__(self, o: Tensor, y: Tensor) -> Tensor:
        loss = squares(o, y)
        if self.epoch >= 2:
            loss = loss * len(loss) / loss.detach().sum().clamp(min=1e-9) * loss.detach()
        return loss


def _hook(model: Any, loss: Any) -> None:
    model.a.register_forward_hook(lambda module, args, out: out - out.mean(0))


def _if(condition: Callable[[Any], Any]) -> Callable[[Any, Tensor], Tensor]:
    return lambda self, h: h - h.mean(0) if condition(self) else h


Switch = Callable[[Any, Any], Any]
SWITCHED: dict[str, tuple[Callable[[], Any], Any, Switch]] = {
    "an attribute": (
        lambda: Net(between=_if(lambda s: s.center)),
        squares,
        lambda m, _: setattr(m, "center", True),
    ),
    "an attribute of the loss": (Net, WarmUp(), lambda _, loss: setattr(loss, "epoch", 3)),
    "a buffer": (lambda: Net(between=_if(lambda s: s.t > 0)), squares, lambda m, _: m.t.add_(1)),
    "a buffer, as a list": (
        lambda: Net(between=_if(lambda s: s.t.tolist() > 0)),
        squares,
        lambda m, _: m.t.add_(1),
    ),
    "a buffer, as an array": (
        lambda: Net(between=_if(lambda s: np.asarray(s.t) > 0)),
        squares,
        lambda m, _: m.t.add_(1),
    ),
    "a weight, as an array": (
        lambda: Net(between=_if(lambda s: s.a.weight.detach().numpy().max() > 2)),
        squares,
        lambda m, _: m.a.weight.data.mul_(20),
    ),
    "a weight": (Gated, squares, lambda m, _: m.g.data.fill_(1.0)),
    "a layer": (Net, squares, lambda m, _: setattr(m, "act", Centered())),
    "a hook": (Net, squares, _hook),
}


# ---------------------------------------------------------------------------------------------------
# mixing that trial rows do not show


def _shifted(x: Tensor) -> Tensor:
    return x + x[(torch.arange(len(x)) + 24) % len(x)]


def _shuffled(x: Tensor) -> Tensor:
    order = torch.rand(len(x)).argsort()
    return x[order][order.argsort()]


def _neighbors(x: Tensor) -> Tensor:
    x = x.nan_to_num(0.0)
    largest = functional.max_pool1d(x.abs().T[None], 3, 1, 1)[0].T
    return x / (largest / 1e4).clamp(min=1)


def _banded(x: Tensor) -> Tensor:
    distance = torch.arange(len(x))[:, None] - torch.arange(len(x))
    return ((distance == 0) + 0.5 * (distance == 24)).to(x.dtype) @ x


def _spectrum(x: Tensor) -> Tensor:
    z = torch.fft.fft(x.nan_to_num(0.0), dim=0)
    return torch.fft.ifft(z / (z.abs() / 1e6).clamp(min=1), dim=0).real


def _normalized(x: Tensor) -> Tensor:
    return torch.where(x.abs() > 1e4, functional.layer_norm(x.T, (len(x),)).T, x)


ASLEEP: dict[str, Callable[[Tensor], Tensor]] = {
    "renorm": lambda x: torch.renorm(x, 2, 1, 1e5),
    "shifted by a public index": _shifted,
    "shuffled and back": _shuffled,
    "the largest neighbor": _neighbors,
    "a matrix over the batch": _banded,
    "a spectrum over the batch": _spectrum,
    "layer norm over the batch": _normalized,
}


class Reads(nn.Module):
    """One word of each record, by an index into the words of all."""

    def __init__(self, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.how = nn.Linear(5, 4), nn.Linear(4, 1), how

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        place = torch.arange(len(x)) * x.shape[1] + at
        return self.b(self.a(self.how(x.reshape(-1, 5), place)).tanh())[:, 0]


def _sampled(table: Tensor, place: Tensor) -> Tensor:
    at = (place.to(table.dtype) * 2 + 1) / len(table) - 1
    image, grid = table.T[None, :, None], torch.stack([at, torch.zeros_like(at)], -1)[None, None]
    return functional.grid_sample(image, grid, mode="nearest", align_corners=False)[0, :, 0].T


READ: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda table, place: functional.embedding(place, table),
    "embedding_bag": lambda table, place: functional.embedding_bag(place[:, None], table, mode="sum"),
    "grid_sample": _sampled,
    "index_select": lambda table, place: table.index_select(0, place),
    "index": lambda table, place: table[place],
}


# ---------------------------------------------------------------------------------------------------
# state


class Average:
    def __init__(self) -> None:
        self.value = 0.0


class Meter:
    def __init__(self) -> None:
        self.counts = np.zeros(2)


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        KEPT["g"] = grads[0].detach().clone()
        return grads[0]


class OfClass(Net):
    seen: list[float] = []  # noqa: RUF012

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.mean().item())
        return super().forward(x)


class Adversarial(Net):
    """FGSM as tutorials have it: the gradients of the attack stay in p.grad."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().clone().requires_grad_(True)
        self.zero_grad()
        super().forward(x).sum().backward()  # type: ignore[no-untyped-call]
        return super().forward((x + 0.1 * (x if x.grad is None else x.grad).sign()).detach())


def note(x: Tensor) -> None:
    LOG.append(x.mean().item())


def _noted(x: Tensor) -> Tensor:
    note(x)
    return x


def _adding(x: Tensor, to: Any, add: Callable[[Any, float], None]) -> Tensor:
    add(to, x.mean().item())
    return x


def _metered(meter: Any, add: Callable[[Any, float], None]) -> Callable[[], Any]:
    def make() -> Any:
        net = Net(before=lambda x: _adding(x, net.meter, add))
        net.meter = meter()
        return net

    return make


def _with(register: Callable[[Any], Any]) -> Callable[[], Any]:
    def make() -> Any:
        net = Net()
        register(net)
        return net

    return make


def _store(g: Any) -> None:
    KEPT["g"] = g


KEEPING: dict[str, Callable[[], Any]] = {
    "a backward hook": _with(lambda n: n.act.register_full_backward_hook(lambda m, i, o: _store(o[0]))),
    "norms in a backward hook": _with(
        lambda n: n.act.register_full_backward_hook(lambda m, i, o: LOG.append(float(o[0].norm())))
    ),
    "a weight's hook": _with(lambda n: n.b.weight.register_hook(_store)),
    "an activation's hook": lambda: Net(between=lambda s, h: (h.register_hook(_store), h)[1]),
    "a function's backward": lambda: Net(
        between=lambda s, h: InBackward.apply(h)  # type: ignore[no-untyped-call]
    ),
    "a list of the class": OfClass,
    "an average": _metered(Average, lambda meter, v: setattr(meter, "value", meter.value + v)),
    "an array of an object": _metered(Meter, lambda meter, v: meter.counts.__iadd__(v)),
    "a global of a helper": lambda: Net(before=_noted),
    "the last batch": _metered(Average, lambda meter, v: setattr(meter, "value", v)),
    "gradients of weights": Adversarial,
}


class Rare(nn.Module):
    """Does something to itself when a record is far away."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.outliers, self.meter, self.change = nn.Linear(4, 1), 0, Average(), change

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > FAR:
            self.change(self)
        return self.a(x)[:, 0] * (1 + self.outliers + self.meter.value)


RARE: dict[str, Callable[[Any], Any]] = {
    "a counter": lambda s: setattr(s, "outliers", s.outliers + 1),
    "an average": lambda s: setattr(s.meter, "value", s.meter.value + 1),
}


class Stretching(nn.Module):
    """Positions whose scale follows from the longest sequence so far, as rotary embeddings have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.longest = nn.Linear(1, 8), nn.Linear(8, 1), 8
        self.register_buffer("scale", torch.arange(1.0, 9.0) / 8)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.longest:
            self.longest, self.scale = x.shape[1], torch.arange(1.0, 9.0) / x.shape[1]
        positions = torch.arange(x.shape[1])[:, None] * self.scale
        return self.b((self.a(x[..., None]) * positions.cos()).tanh().mean(1))[:, 0]
