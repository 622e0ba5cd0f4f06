"""A paper says that one column is ahead of another: by how much ours is, and the verdict that follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.protocol import mean_and_error

__all__ = ["Claim", "Lead", "Verdict", "lead", "verdict"]

Verdict = Literal["repeats", "repeats in part", "does not repeat", "not testable here"]
Seeds = Mapping[str, float]  # of each seed its score
_SURE = 2.0  # standard errors
_LISTED = 4  # leads; of more the count
_REPEATED = 2  # runs of every cell, before a claim repeats


@dataclass(frozen=True)
class Lead:
    """How far a column is ahead in one cell: the paper's where it gives one, ours with its standard error."""

    paper: float | None
    mean: float
    error: float
    runs: int

    @property
    def sure(self) -> bool:
        """Ahead beyond the error."""
        return self.mean > _SURE * self.error

    @property
    def level(self) -> bool:
        return abs(self.mean) <= _SURE * self.error


def lead(high: Seeds, low: Seeds, *, paper: float | None = None, noise: float = 0.0) -> Lead | None:
    """`high` − `low`, paired by seed where seeds are shared; None where a column was not run.

    Args:
        noise: the standard error that the test records leave in a difference of two scores. It stands in
            where there is one seed, and no error is smaller than it over the root of the number of seeds.
    """
    both = sorted(set(high) & set(low))
    if not high or not low:
        return None
    differences = [high[seed] - low[seed] for seed in both]
    mean, error, count = mean_and_error(differences)
    if not both:  # other seeds: of the means
        (a, first, n), (b, second, m) = mean_and_error(high.values()), mean_and_error(low.values())
        known = [value for value in (first, second) if not math.isnan(value)]
        mean, error, count = a - b, math.hypot(*known) if known else math.nan, min(n, m)
    least = noise / math.sqrt(count)
    return Lead(paper, mean, least if math.isnan(error) else max(error, least), count)


def verdict(leads: Sequence[Lead], *, missing: int = 0) -> Verdict:
    """Of a claim: ahead beyond the error in every cell, in some, in none.

    One run in a cell whose columns are level within the error settles nothing, nor does no run. A claim of
    which cells are missing, or were run once, repeats in part at most.
    """
    ahead = sum(one.sure for one in leads)
    if ahead:
        whole = ahead == len(leads) and not missing and min(one.runs for one in leads) >= _REPEATED
        return "repeats" if whole else "repeats in part"
    if all(one.level and one.runs == 1 for one in leads):
        return "not testable here"
    return "does not repeat"


@dataclass(frozen=True)
class Claim:
    """One line of a page: what the paper says, its leads, and ours.

    Args:
        settles: the experiment that would settle it, where it does not repeat.
        digits: of a lead.
        stated: what the paper says, what we found, and the verdict, if the claim is no lead of two columns.
    """

    page: str
    table: str
    says: str
    leads: Sequence[Lead | None]
    settles: str
    digits: int = 1
    stated: tuple[str, str, Verdict] | None = None

    @property
    def missing(self) -> int:
        """Cells of the paper that were not run."""
        return sum(one is None for one in self.leads)

    @property
    def found(self) -> list[Lead]:
        """Of the cells that were run, those in which the paper is ahead, as far as it says."""
        return [one for one in self.leads if one is not None and (one.paper is None or one.paper > 0)]

    @property
    def verdict(self) -> Verdict:
        return self.stated[2] if self.stated else verdict(self.found, missing=self.missing)

    @property
    def paper(self) -> str:
        if self.stated:
            return self.stated[0]
        if not self.found:
            return ""
        known = [one.paper for one in self.found if one.paper is not None]
        if not known:
            return "ahead, in a plot"
        if len(known) > _LISTED:
            return f"in {len(known)} cells, by {self._span(known)}"
        return ", ".join(f"{value:+.{self.digits}f}" for value in known)

    @property
    def ours(self) -> str:
        if self.stated:
            return self.stated[1]
        if not self.found:
            return "not run"
        runs = {one.runs for one in self.found}
        count = f"{min(runs)}" if len(runs) == 1 else f"{min(runs)} to {max(runs)}"
        cells = f"; {self.missing} of {len(self.leads)} cells not run" if self.missing else ""
        seeds = f" ({count} run{'s' if max(runs) > 1 else ''}{cells})"
        if len(self.found) > _LISTED:
            ahead, level = sum(one.sure for one in self.found), sum(one.level for one in self.found)
            span = self._span([one.mean for one in self.found])
            return f"in {ahead} of {len(self.found)} cells, level in {level}; by {span}{seeds}"
        return ", ".join(f"{o.mean:+.{self.digits}f} ± {o.error:.{self.digits}f}" for o in self.found) + seeds

    def _span(self, values: Sequence[float]) -> str:
        return f"{min(values):+.{self.digits}f} to {max(values):+.{self.digits}f}"
