"""What the parts of a recipe may know: the problem, and the public constants of a run on it."""

from __future__ import annotations

from dataclasses import dataclass

from sidelight.errors import InputError
from sidelight.privacy.events import Relation
from sidelight.problems.base import Constants, Guide, Problem
from sidelight.samplers import Sampler

__all__ = ["Constants", "Guide", "Setting"]


@dataclass(frozen=True)
class Setting:
    """A problem, a budget and the constants of a run. A part asks it for public things alone."""

    problem: Problem
    batch: float  # B, the expected batch size
    steps: int  # T, planned
    epsilon: float
    delta: float
    relation: Relation
    sampler: Sampler
    step_size: float = 0.0
    max_steps: int | None = None  # where a budget that adapts stops at the latest; None: when it is spent

    @property
    def n(self) -> int:
        """Private records."""
        return self.problem.n

    @property
    def dimension(self) -> int:
        """Parameters."""
        return self.problem.dimension

    @property
    def constants(self) -> Constants:
        """What is known of the loss and of the records."""
        return self.problem.constants

    @property
    def rate(self) -> float:
        """The sampling probability."""
        return self.batch / self.n

    @property
    def guide(self) -> Guide | None:
        """The public records, if there are any."""
        return self.problem.public

    def public(self, what: str) -> Guide:
        """The guide, or an error that says which part needs public records."""
        guide = self.problem.public
        if guide is None or guide.size == 0:
            raise InputError(f"{what} needs public records; pass {self.problem.public_from}")
        return guide

    @property
    def sensitivity_factor(self) -> int:
        return 1 if self.relation == "add-or-remove-one" else 2
