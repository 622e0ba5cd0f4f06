"""The models that people bring are right or refused in one line, and docs/models.md says which.

`make test-models` runs this in an environment of its own. SIDELIGHT_WRITE=1 writes the page anew.
"""

import importlib.util
import os

import pytest

for library in ("torch", "transformers", "peft"):
    pytest.importorskip(library, reason=f"{library} is not installed; `make test-models` brings it")
if importlib.util.find_spec("timm") is None:
    pytest.skip("timm is not installed; `make test-models` brings it", allow_module_level=True)

from tests.models import page  # noqa: E402
from tests.models.measure import Row, measure  # noqa: E402
from tests.models.zoo import ZOO, Entry  # noqa: E402

ROWS: dict[str, Row] = {}


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in ZOO])
def test_a_model_is_right_or_refused_in_one_line(entry: Entry) -> None:
    row = ROWS[entry.name] = measure(entry)
    for mode, outcome in (("evaluation", row.evaluation), ("training", row.training)):
        assert outcome.safe, f"in {mode}: {outcome}"
        assert "\n" not in outcome.details


def test_the_page_shows_what_came_of_each() -> None:
    rows = [ROWS[entry.name] for entry in ZOO if entry.name in ROWS]
    if len(rows) < len(ZOO):
        pytest.skip("not all models were measured in this run")
    if os.environ.get("SIDELIGHT_WRITE"):
        page.write(rows)
    assert page.without_errors(page.committed()) == page.without_errors(page.table(rows)), (
        "docs/models.md is not what was measured; write it anew: make test-models SIDELIGHT_WRITE=1"
    )
