"""A change of one thing is noticed among many, and put back."""

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sidelight.oracles.network.snapshots import TensorSnapshot
from sidelight.oracles.network.state import CodeState


class Held:
    mark: Any = None


def places() -> dict[str, Any]:
    return {
        "dict": {"a": [1], "b": 1000.5},
        "empty": {},
        "ordered": OrderedDict(a=1, b=2),
        "list": [object(), "text"],
        "set": set[int](),
        "numbers": np.zeros(3),
        "random": random.Random(0),
        "numpy": np.random.RandomState(0),
    }


CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a value": ("dict", lambda d: d.update(a=[2])),
    "a key": ("dict", lambda d: (d.pop("b"), d.update(c=1000.5))),
    "another order": ("dict", lambda d: d.update(a=d.pop("a"))),
    "an order that its class has": ("ordered", lambda d: d.move_to_end("a")),
    "an entry that is more": ("empty", lambda d: d.update(seen=3.5)),
    "an entry that is less": ("list", lambda d: d.pop()),
    "an element": ("list", lambda d: d.__setitem__(0, object())),
    "a member": ("set", lambda d: d.add(7)),
    "a number of an array": ("numbers", lambda d: d.__setitem__(1, 2.0)),
    "a draw": ("random", lambda d: d.random()),
    "a draw of NumPy": ("numpy", lambda d: d.rand()),
    "a name of a class": ("class", lambda d: setattr(Held, "mark", 3.5)),
    "a new name of a class": ("class", lambda d: setattr(Held, "seen", 3.5)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_one_is_noticed_among_many_and_put_back(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Held, "mark", None)
    monkeypatch.setattr(Held, "seen", None, raising=False)
    monkeypatch.delattr(Held, "seen")
    held = places()
    state = CodeState(held, Held)
    assert state.changed() is None
    place, change = CHANGES[what]
    before = str(held), dict(vars(Held))
    change(held.get(place))
    assert state.changed() is not None and state.altered()
    state.restore()
    assert state.changed() is None and (str(held), dict(vars(Held))) == before


def test_a_number_in_stock_at_the_start_is_compared_as_well() -> None:
    for one, draw in (
        (random.Random(0), lambda one: one.gauss(0.0, 1.0)),
        (np.random.RandomState(0), lambda one: one.standard_normal()),
    ):
        draw(one)
        state = CodeState([one])
        assert state.changed() is None
        draw(one)  # which draws nothing: it had two
        assert state.changed() is not None


def test_equal_numbers_that_are_other_objects_are_no_change() -> None:
    held = {"a": 1000.5}
    state = CodeState(held)
    held["a"] = float("1000.5")
    assert state.changed() is None


@pytest.mark.parametrize("change", [lambda d: d.pop(), lambda d: d.append("more")])
def test_the_end_of_the_last_one_counts(change: Callable[[list[str]], object]) -> None:
    held = ["a", "b"]
    state = CodeState(held)
    change(held)
    assert state.changed() is not None


def test_a_write_that_no_version_tells_is_put_back_where_there_is_a_copy() -> None:
    x = torch.arange(6.0)
    held = TensorSnapshot(x, "x")
    held.renew(copied=True)
    x.data[2] = 70.0
    assert held.changed()
    held.restore()
    assert torch.equal(x, torch.arange(6.0))


@pytest.mark.parametrize("other", [lambda: torch.zeros(3, 2), lambda: torch.zeros(6, dtype=torch.float64)])
def test_a_tensor_of_another_form_is_put_back(other: Callable[[], Any]) -> None:
    x = torch.arange(6.0)
    held = TensorSnapshot(x, "x")
    held.renew(copied=True)
    x.data = other()
    assert held.changed() and held.altered()
    held.restore()
    assert torch.equal(x, torch.arange(6.0)) and not held.changed()


def test_what_was_written_over_without_a_copy_does_not_stay() -> None:
    x = torch.arange(6.0)
    held = TensorSnapshot(x, "x")
    x.add_(1)
    held.restore()
    assert not x.any()
