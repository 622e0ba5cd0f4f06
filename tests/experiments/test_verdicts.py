"""The summary of the papers' pages is what the committed runs say, and a verdict follows from its leads."""

import math

import pytest

pytest.importorskip("torch")

from experiments.verdicts import dope, linear, small
from experiments.verdicts.__main__ import DOCS, PAPERS, filled, summary, table
from experiments.verdicts.leads import Claim, Lead, lead, verdict


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return [*linear.claims(), *dope.claims(), *small.claims()]


def test_the_committed_index_is_what_the_committed_runs_say(claims: list[Claim]) -> None:
    text = (DOCS / "index.md").read_text()
    assert filled(text, summary(claims)) == text, "run python -m experiments.verdicts"


@pytest.mark.parametrize("page", PAPERS)
def test_every_committed_page_begins_with_its_verdicts(page: str, claims: list[Claim]) -> None:
    text = (DOCS / f"{page}.md").read_text()
    mine = [claim for claim in claims if claim.page == page]
    assert mine and filled(text, table(mine)) == text, "run python -m experiments.verdicts"


def test_a_lead_is_paired_by_seed_and_has_the_error_of_its_differences() -> None:
    found = lead({"0": 3.0, "1": 5.0, "2": 9.0}, {"0": 2.0, "1": 4.5, "3": 0.0}, paper=1.0)
    assert found is not None
    assert (found.mean, found.runs) == (0.75, 2)
    assert math.isclose(found.error, 0.25)
    assert lead({}, {"0": 1.0}) is None


def test_one_seed_has_the_error_that_the_test_records_leave() -> None:
    found = lead({"0": 3.0}, {"0": 2.0}, noise=0.7)
    assert found is not None and (found.mean, found.error, found.sure, found.level) == (1.0, 0.7, False, True)


def test_a_verdict_needs_a_lead_beyond_the_error() -> None:
    ahead, level, behind = (Lead(1.0, mean, 0.4, 3) for mean in (1.0, 0.5, -1.0))
    assert verdict([ahead, ahead]) == "repeats"
    assert verdict([ahead, level]) == verdict([ahead, behind]) == "repeats in part"
    assert verdict([level, behind]) == verdict([level]) == "does not repeat"
    assert verdict([]) == verdict([Lead(1.0, 0.5, 0.4, 1)]) == "not testable here"


def test_cells_in_which_the_paper_is_behind_do_not_count() -> None:
    claim = Claim(
        "page", "Table 1", "a is ahead", [Lead(-1.0, -2.0, 0.1, 3), Lead(1.0, 2.0, 0.1, 3), None], ""
    )
    assert claim.verdict == "repeats in part"  # a cell was not run
    assert (claim.paper, claim.ours) == ("+1.0", "+2.0 ± 0.1 (3 runs; 1 of 3 cells not run)")


def test_one_run_or_a_missing_cell_repeats_in_part_at_most() -> None:
    once, often = Lead(1.0, 2.0, 0.4, 1), Lead(1.0, 2.0, 0.4, 2)
    assert verdict([often, once]) == verdict([often], missing=1) == "repeats in part"
    assert verdict([often, often]) == "repeats"
