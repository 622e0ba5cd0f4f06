"""Code that remembers records: refused by the name of what it writes to, or put back."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.mistakes.tools import assert_exact, entropy, labeled  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from sidelight.errors import AssumptionError  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402

COUNTER = {"calls": 0.0}
CAPTURED: list[Tensor] = []


class Model(nn.Module):
    """An MLP that does something with what it sees."""

    shared: float = 0.0

    def __init__(self, do: Callable[[Any, Tensor], object] = lambda model, x: None) -> None:
        super().__init__()
        self.first, self.last, self.do = nn.Linear(6, 8), nn.Linear(8, 3), do
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("average", torch.zeros(6))
        self.seen: list[float] = []
        self.count = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.do(self, x)
        return self.last(self.first(x).tanh())


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


@functools.cache
def _cached(value: float) -> float:
    return value


def _closure() -> Callable[[Any, Tensor], object]:
    total = 0.0

    def do(model: Any, x: Tensor) -> None:
        nonlocal total
        total += float(x.mean())

    return do


MEMORIES: dict[str, tuple[Callable[[Any, Tensor], object], str]] = {
    "a running average": (lambda m, x: m.average.mul_(0.9).add_(0.1 * x.detach().mean(0)), "average"),
    "a codebook": (lambda m, x: m.average.data.copy_(x.detach().mean(0)), "average"),
    "a frozen weight": (lambda m, x: m.frozen.data.add_(x.detach().sum(0)), "frozen"),
    "a counter": (lambda m, x: _set(m, "count", m.count + float(x.sum())), "count"),
    "a list": (lambda m, x: m.seen.append(float(x.mean())), "seen"),
    "an attribute of the class": (lambda m, x: _set(Model, "shared", float(x.mean())), "shared"),
    "a global": (lambda m, x: COUNTER.update(calls=float(x.mean())), "calls"),
    "activations in a list": (lambda m, x: CAPTURED.append(x), "CAPTURED|keeps"),
    "a closure": (_closure(), "total"),
    "the last batch": (lambda m, x: _set(m, "batch", x.detach()), "batch|keeps"),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_what_remembers_records_is_refused_by_name(name: str) -> None:
    do, keyword = MEMORIES[name]
    before = dict(COUNTER), len(CAPTURED), Model.shared
    with pytest.raises(AssumptionError, match=keyword):
        NetworkOracle(Model(do), entropy, example=labeled(8)).check(labeled(12))
    assert (dict(COUNTER), len(CAPTURED), Model.shared) == before


def test_a_cache_of_values_is_emptied() -> None:
    model = Model(lambda m, x: _cached(float(x.mean())))
    assert_exact(NetworkOracle(model, entropy, example=labeled(8, seed=2)), entropy, labeled(12))
    assert not _cached.cache_info().currsize or not any(_cached.cache_info()[:2])


def test_a_hook_that_collects_activations_is_refused() -> None:
    model, held = Model(), list[Tensor]()
    model.first.register_forward_hook(lambda layer, args, output: held.append(output))
    with pytest.raises(AssumptionError):
        NetworkOracle(model, entropy, example=labeled(8)).check(labeled(12))
    assert not held


class Keeps(torch.autograd.Function):
    """Keeps the gradients that it sees."""

    kept: Tensor | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        Keeps.kept = grads[0].clone()
        return grads[0]


def test_a_function_that_keeps_gradients_is_refused() -> None:
    class Kept(Model):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(Keeps.apply(self.first(x)).tanh())  # type: ignore[no-untyped-call]

    with pytest.raises(AssumptionError):
        NetworkOracle(Kept(), entropy, example=labeled(8)).check(labeled(12))


def test_pythons_random_numbers_are_refused_or_taken_alone() -> None:
    model = Model(lambda m, x: x.mul_(random.random()))
    with pytest.raises(AssumptionError):
        NetworkOracle(model, entropy, example=labeled(8)).check(labeled(12))


def test_prints_and_log_lines_are_kept_from_the_outside_and_said_once(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("a.model")

    def monitor(model: Any, x: Tensor) -> None:
        print("largest", x.max().item())
        log.warning("mean %f", x.mean().item())

    model, batch = Model(monitor), labeled(12)
    oracle = NetworkOracle(model, entropy, example=labeled(8, seed=2))
    oracle.check(batch)
    oracle.clipped_sum(batch, clip=_clip(), relation="add-or-remove-one")
    oracle.clipped_sum(batch, clip=_clip(), relation="add-or-remove-one")
    assert not capsys.readouterr().out
    assert not [one for one in caplog.records if one.name == "a.model"]
    ours = [one.getMessage() for one in caplog.records if one.name == "sidelight"]
    assert len([one for one in ours if "print" in one]) == 1
    assert len([one for one in ours if "slower route" in one]) == 1


def _clip() -> Any:
    from sidelight.methods.parts import Flat

    return Flat(1.0)
