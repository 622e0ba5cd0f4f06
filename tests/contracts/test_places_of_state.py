"""Places where plain Python code keeps values: none holds a private one after a step, none is overlooked."""

import argparse
import collections
import functools
import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts import helper_with_state
from tests.contracts.sleeping_networks import Net, rows, squares
from tests.private_values import value_of
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.methods.parts import Flat
from sidelight.oracles.network import state
from sidelight.oracles.network.network_oracle import NetworkOracle

X, Y = rows(40)
PRIVATE = (X + 100, Y + 100)


def total(oracle: NetworkOracle, batch: Any) -> Tensor:
    oracle.draw_seed = lambda: 3
    return value_of(oracle.clipped_sum(batch, clip=Flat(1.0), relation="add-or-remove-one")).clone()


class Keeper(nn.Module):
    """Puts a number of its input into something that it holds."""

    def __init__(self, held: Any, put: Callable[[Any, float], Any]) -> None:
        super().__init__()
        self.inner, self.held, self.put = Net(), held, put

    def forward(self, x: Tensor) -> Any:
        self.put(self.held, float(x.mean()))
        return self.inner(x)


class Owner:
    def __init__(self) -> None:
        self.seen: Any = 0.0


@dataclass(slots=True)
class Slotted:
    seen: Any = 0.0


@functools.lru_cache(None)
def cached(value: float) -> float:
    return value


def scaler() -> Any:
    return pytest.importorskip("sklearn.preprocessing").StandardScaler()


LOG: list[float] = []
HELD: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "a module's function": (
        lambda: None,
        lambda h, v: helper_with_state.track(v),
        lambda h: helper_with_state.MEAN,
    ),
    "a module's list": (
        lambda: None,
        lambda h, v: helper_with_state.SEEN.append(v),
        lambda h: len(helper_with_state.SEEN),
    ),
    "a method of a list": (lambda: LOG.append, lambda h, v: h(v), lambda h: len(LOG)),
    "Counter": (collections.Counter, lambda h, v: setattr(h, "seen", v), lambda h: hasattr(h, "seen")),
    "OrderedDict": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda h, v: h.move_to_end("a" if v > 50 else "b"),
        list,
    ),
    "lru_cache": (lambda: None, lambda h, v: cached(v), lambda h: cached.cache_info().currsize),
    "an estimator": (scaler, lambda h, v: h.partial_fit([[v]]), lambda h: getattr(h, "n_samples_seen_", 0)),
    "an array of objects": (lambda: np.array([None]), lambda h, v: h.__setitem__(0, v), lambda h: h[0]),
    "argparse.Namespace": (argparse.Namespace, lambda h, v: setattr(h, "v", v), lambda h: hasattr(h, "v")),
    "a dataclass with slots": (Slotted, lambda h, v: setattr(h, "seen", v), lambda h: h.seen),
    "an attribute of a tensor": (
        lambda: torch.zeros(1),
        lambda h, v: setattr(h, "seen", v),
        lambda h: hasattr(h, "seen"),
    ),
    "a generator of NumPy": (
        lambda: np.random.default_rng(0),
        lambda h, v: h.normal() if v > 50 else 0,
        lambda h: h.bit_generator.state,
    ),
}


@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("what", HELD)
def test_no_place_holds_a_number_of_a_private_record_after_a_step(what: str, rare: bool) -> None:
    """Refused when it is tried, or put back; `rare`: it keeps nothing of trial rows."""
    make, put, look = HELD[what]
    held = make()

    def keep(h: Any, value: float) -> None:
        if not rare or value > 50:
            put(h, value)

    before = str(look(held))
    oracle = NetworkOracle(Keeper(held, keep), squares, example=rows(8, 2))
    try:
        oracle.check(PRIVATE)
        total(oracle, PRIVATE)
    except AssumptionError as refused:
        assert "\n" not in str(refused)
    assert str(look(held)) == before


def by_function(o: Tensor, y: Tensor) -> Tensor:
    by_function.last = y  # type: ignore[attr-defined]
    return squares(o, y)


def by_module(o: Tensor, y: Tensor) -> Tensor:
    helper_with_state.LAST = y
    return squares(o, y)


SPACE = argparse.Namespace(last=None)


def by_namespace(o: Tensor, y: Tensor) -> Tensor:
    SPACE.last = y
    return squares(o, y)


@pytest.mark.parametrize("loss", [by_function, by_module, by_namespace])
def test_the_batch_itself_is_not_left_behind(loss: Any) -> None:
    by_function.last = None  # type: ignore[attr-defined]
    oracle = NetworkOracle(Net(), loss, example=rows(8, 2))
    with pytest.raises(AssumptionError):
        oracle.check(PRIVATE)
    assert helper_with_state.LAST is SPACE.last is by_function.last is None  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------
# flags that are set between two steps

ARGS = argparse.Namespace(epoch=0)


def centered(o: Tensor, y: Tensor, yes: Any) -> Tensor:
    return squares(o - o.detach().abs().amax(0) if yes else o, y)


def with_args(o: Tensor, y: Tensor) -> Tensor:
    return centered(o, y, ARGS.epoch > 0)


def with_module(o: Tensor, y: Tensor) -> Tensor:
    return centered(o, y, helper_with_state.CENTER)


def with_import(o: Tensor, y: Tensor) -> Tensor:
    from tests.contracts.helper_with_state import CENTER

    return centered(o, y, CENTER)


def with_itself(o: Tensor, y: Tensor) -> Tensor:
    return centered(o, y, with_itself.epoch > 0)  # type: ignore[attr-defined]


with_itself.epoch = 0  # type: ignore[attr-defined]


FLAGS: dict[Any, Callable[[pytest.MonkeyPatch], Any]] = {
    with_args: lambda patch: patch.setattr(ARGS, "epoch", 1),
    with_module: lambda patch: patch.setattr(helper_with_state, "CENTER", True),
    with_import: lambda patch: patch.setattr(helper_with_state, "CENTER", True),
    with_itself: lambda patch: patch.setattr(with_itself, "epoch", 1),
}


@pytest.mark.parametrize("loss", FLAGS)
def test_a_flag_that_is_set_between_steps_is_noticed(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = NetworkOracle(Net(), loss, example=rows(8, 2))
    total(oracle, (X, Y))
    FLAGS[loss](monkeypatch)
    with pytest.raises(AssumptionError):
        total(oracle, (X, Y))


# ---------------------------------------------------------------------------------------------------
# what cannot be put back, and what is everybody's


@pytest.mark.parametrize(
    "held",
    [
        itertools.count(),
        itertools.cycle("ab"),
        (i for i in range(9)),
        iter([1, 2]),
        zip("ab", "cd", strict=True),
    ],
)
def test_an_iterator_within_reach_is_refused_by_name(held: Any) -> None:
    oracle = NetworkOracle(Keeper(held, lambda h, v: None), squares)
    with pytest.raises(AssumptionError, match=f"a {type(held).__name__} \\('held'\\)"):
        oracle.check((X, Y))


def test_more_things_than_can_be_compared_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_MAX_OBJECTS", 400)
    model = Keeper([[i] for i in range(1000)], lambda h, v: None)
    with pytest.raises(AssumptionError, match="400 objects"):
        NetworkOracle(model, squares).check((X, Y))


@dataclass
class Config:
    width: int = 4
    names: tuple[str, ...] = ("a", "b")


class Everyday(nn.Module):
    """What models hold: settings, a log, a vocabulary, a path, partial functions."""

    def __init__(self) -> None:
        super().__init__()
        from pathlib import Path

        self.config, self.args = Config(), argparse.Namespace(lr=0.1, betas=[0.9, 0.99])
        self.log, self.folder = logging.getLogger(__name__), Path("somewhere")
        self.words = [(str(i), i) for i in range(60_000)]
        self.inner, self.lock = Net(), threading.Lock()
        self.act = functools.partial(nn.functional.leaky_relu, negative_slope=0.2)
        self.positions = functools.lru_cache(torch.arange)

    def forward(self, x: Tensor) -> Any:
        self.log.debug("forward of %s", self.folder)
        return self.inner(self.act(x) + 0 * self.positions(self.config.width))


def test_settings_logs_vocabularies_and_paths_keep_the_fast_route() -> None:
    oracle, routes = NetworkOracle(Everyday(), squares, example=rows(8, 2)), set[int]()
    for _ in range(3):
        total(oracle, (X, Y))
        assert oracle.route.kind == "layers"
        routes.add(id(oracle.route))
    assert len(routes) == 1  # examined once
