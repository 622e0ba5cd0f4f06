"""Any network is refused by a check of public rows, or its clipped sum is right: whatever it is made of."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from tests.contracts.hostile_blocks import RANDOM  # noqa: E402
from tests.contracts.network_attacks import attack  # noqa: E402
from tests.contracts.network_blocks import PLAIN  # noqa: E402
from tests.contracts.random_networks import (  # noqa: E402
    CATALOGUE,
    INPUTS,
    LOSSES,
    PLAIN_LOSSES,
    PLAIN_READINGS,
    READINGS,
    Recipe,
    hostile_networks,
    plain_networks,
    random_networks,
)

EXAMPLES = int(os.environ.get("SIDELIGHT_EXAMPLES", "1"))  # times as many, for a long search

# torch.func takes the slow way for some layers, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

SIZED = {"if many", "if very many", "by number", "share of the batch"}
SIMPLE = Recipe(
    "series", ("linear",), "mean", "cross entropy", public=True, training=True, single=False, always=False
)


def assert_safe(recipe: Recipe) -> None:
    """A model may know how many rows a pass has, for that is the same whoever is in it."""
    outcome = attack(recipe.subject())
    steady = SIZED & {*recipe.blocks, recipe.loss} and outcome.verdict == "consistent"
    assert outcome.safe or steady, str(outcome)


@pytest.mark.parametrize("how", ["with public rows", "with none"])
@pytest.mark.parametrize("block", [name for name in CATALOGUE if name not in PLAIN])
def test_a_hostile_block_is_refused_or_right(block: str, how: str) -> None:
    given = how == "with public rows"
    assert_safe(SIMPLE._replace(blocks=(block,), public=given, always=not given))


@pytest.mark.parametrize("block", [*PLAIN, "dropout module", "dropout", "noise of each"])
def test_a_plain_block_is_right(block: str) -> None:
    outcome = attack(SIMPLE._replace(blocks=(block,), single=block not in RANDOM).subject())
    assert outcome.verdict == "right", str(outcome)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_refused_or_right(loss: str) -> None:
    for public in (True, False):
        assert_safe(SIMPLE._replace(loss=loss, public=public))


@pytest.mark.parametrize("loss", PLAIN_LOSSES)
def test_a_plain_loss_is_right(loss: str) -> None:
    outcome = attack(SIMPLE._replace(loss=loss).subject())
    assert outcome.verdict == "right", str(outcome)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("inputs", INPUTS)
def test_a_way_to_read_out_is_refused_or_right(inputs: str, reading: str) -> None:
    outcome = attack(SIMPLE._replace(inputs=inputs, reading=reading).subject())
    assert outcome.verdict == "right" if reading in PLAIN_READINGS else outcome.safe, str(outcome)


@settings(max_examples=20 * EXAMPLES)
@given(plain_networks())
def test_a_network_of_plain_blocks_is_right(recipe: Recipe) -> None:
    outcome = attack(recipe.subject())
    assert outcome.verdict == "right", str(outcome)


@settings(max_examples=50 * EXAMPLES)
@given(hostile_networks())
def test_a_network_of_hostile_blocks_is_refused_or_right(recipe: Recipe) -> None:
    assert_safe(recipe)


@settings(max_examples=15 * EXAMPLES)
@given(random_networks())
def test_a_network_that_draws_is_refused_or_its_records_are_independent(recipe: Recipe) -> None:
    assert_safe(recipe)
