"""Code that remembers records: refused by the name of what it writes to, or put back."""

import functools
import logging
from typing import Any

import pytest
from tests.mistakes.mistake_list import Model
from tests.mistakes.tools import assert_exact, entropy, labeled
from torch import Tensor

from sidelight.oracles.network.network_oracle import NetworkOracle


@functools.cache
def _cached(value: float) -> float:
    return value


def test_a_cache_of_values_is_emptied() -> None:
    model = Model(lambda m, x: _cached(float(x.mean())))
    assert_exact(NetworkOracle(model, entropy, example=labeled(8, seed=2)), entropy, labeled(12))
    assert not _cached.cache_info().currsize or not any(_cached.cache_info()[:2])


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
