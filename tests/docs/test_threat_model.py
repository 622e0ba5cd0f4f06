"""The threat model stands in the same words wherever it is stated."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from sidelight.oracles.network.state import HONEST_CODE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/guarantees.md"])
def test_pages_state_the_threat_model_in_the_words_of_the_statement(page: str) -> None:
    assert f"**{HONEST_CODE}.**" in (ROOT / page).read_text(encoding="utf-8")
