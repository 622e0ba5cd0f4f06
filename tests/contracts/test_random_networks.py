"""Any network is refused by a check of public rows, or its clipped sum is right: whatever it is made of."""

import os

import pytest
from hypothesis import given, settings
from tests.contracts.mistaken_blocks import ASLEEP, BACKWARDS, MIXING, RANDOM
from tests.contracts.network_blocks import PLAIN, SELECTING
from tests.contracts.network_outcomes import outcome_of
from tests.contracts.random_networks import (
    CATALOG,
    INPUTS,
    LOSSES,
    PLAIN_LOSSES,
    PLAIN_READINGS,
    READINGS,
    Recipe,
    mistaken_networks,
    plain_networks,
    random_networks,
)

# A hook of the first module has no inputs to show, and PyTorch says so.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
EXAMPLES = int(os.environ.get("SIDELIGHT_EXAMPLES", "1"))  # times as many, for a long search

# Functions of the record, if not those of a batch of one: they know how many rows a pass has, whoever is in
# it, or take a step of their own in each pass (spectral norm's power iteration).
STEADY = {"if many", "if very many", "by number", "share of the batch", "spectral norm"}
SIMPLE = Recipe(
    "series", ("linear",), "mean", "cross entropy", public=True, training=True, single=False, always=False
)


def assert_safe(recipe: Recipe) -> None:
    outcome = outcome_of(recipe.subject())
    steady = STEADY & {*recipe.blocks, recipe.loss} and outcome.verdict == "consistent"
    assert outcome.safe or steady, str(outcome)


@pytest.mark.parametrize("block", [name for name in CATALOG if name not in PLAIN])
def test_a_mistaken_block_is_refused_or_right(block: str) -> None:
    assert_safe(SIMPLE._replace(blocks=(block,)))


@pytest.mark.parametrize("block", [*SELECTING, *MIXING, *ASLEEP, *BACKWARDS])
def test_a_mistaken_block_is_refused_or_right_without_public_rows(block: str) -> None:
    assert_safe(SIMPLE._replace(blocks=(block,), public=False, always=True, single=True))


@pytest.mark.parametrize("block", [*PLAIN, "dropout module", "dropout", "noise of each"])
def test_a_plain_block_is_right(block: str) -> None:
    outcome = outcome_of(SIMPLE._replace(blocks=(block,), single=block not in RANDOM).subject())
    assert outcome.verdict == "right", str(outcome)


@pytest.mark.parametrize("public", [True, False], ids=["public rows", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_refused_or_right(loss: str, public: bool) -> None:
    outcome = outcome_of(SIMPLE._replace(loss=loss, public=public).subject())
    steady = loss in STEADY and outcome.verdict == "consistent"
    assert outcome.verdict == "right" if loss in PLAIN_LOSSES else outcome.safe or steady, str(outcome)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("inputs", INPUTS)
def test_a_way_to_read_out_is_refused_or_right(inputs: str, reading: str) -> None:
    outcome = outcome_of(SIMPLE._replace(inputs=inputs, reading=reading).subject())
    assert outcome.verdict == "right" if reading in PLAIN_READINGS else outcome.safe, str(outcome)


@settings(max_examples=12 * EXAMPLES)
@given(plain_networks())
def test_a_network_of_plain_blocks_is_right(recipe: Recipe) -> None:
    outcome = outcome_of(recipe.subject())
    assert outcome.verdict == "right", str(outcome)


@settings(max_examples=30 * EXAMPLES)
@given(mistaken_networks())
def test_a_network_of_mistaken_blocks_is_refused_or_right(recipe: Recipe) -> None:
    assert_safe(recipe)


@settings(max_examples=8 * EXAMPLES)
@given(random_networks())
def test_a_network_that_draws_is_refused_or_its_records_are_independent(recipe: Recipe) -> None:
    assert_safe(recipe)
