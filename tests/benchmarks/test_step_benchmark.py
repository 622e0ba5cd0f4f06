"""Whole steps run by every method, and the page says what the data say."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("opacus")

from benchmarks import step
from benchmarks.models import MODELS, Case, classification, images
from benchmarks.sections import section
from benchmarks.steps import STEPS

SMALL = Case("one layer", lambda: torch.nn.Linear(5, 10), classification, images(5), 12)


@pytest.mark.filterwarnings("ignore")  # of Opacus' hooks
@pytest.mark.parametrize("method", STEPS)
def test_a_step_of_each_method_moves_the_model(method: str) -> None:
    built = []

    def build() -> torch.nn.Module:
        built.append(SMALL.build())
        return built[-1]

    whole = STEPS[method](Case("one layer", build, classification, images(5), 12))
    before = built[-1].weight.detach().clone()
    whole()
    assert not torch.equal(built[-1].weight, before)


def test_pages_say_what_was_measured() -> None:
    rows = step._read(step.DATA)
    assert {row["model"] for row in rows} <= {"noise", *MODELS}
    assert section(step.PAGE, "step") == step.page(rows)
    pages = Path("docs/networks.md").read_text()
    assert step.quoted(rows) in " ".join(pages.split())


def test_goals_that_are_missed_are_called_so() -> None:
    rows = [
        {"model": "CNN", "method": method, "median_ms": ms, "peak_mb": "1", "refused": "", "min_ms": ms}
        for method, ms in {"plain": "10", step.OURS: "17", "Opacus, hooks": "16"}.items()
    ]
    assert "| CNN | 1.70 | 1.6 **missed** | 1.06 **missed** | 1.00 | 1.00 |" in step._summary(rows)
