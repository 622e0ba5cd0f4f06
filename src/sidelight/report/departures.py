"""Where a method comes from, and where we depart from its paper, as its declaration says."""

from __future__ import annotations

from dataclasses import dataclass

from sidelight.methods.registry import DECLARATIONS

__all__ = ["Source", "source_of"]


@dataclass(frozen=True)
class Source:
    """A paper, and what is different here."""

    paper: str
    departs: tuple[str, ...] = ()
    ours: bool = False


# No method by name: what `auto` makes of several.
_SELECTION = Source(
    "Several candidates of this project, trained within one budget, and one of them selected privately "
    "by the exponential mechanism; those that lose are paid for as well",
    ours=True,
)


def source_of(method: str) -> Source | None:
    """What is known of a method; None for a recipe of the user's own."""
    if method == "private_selection":
        return _SELECTION
    declared = DECLARATIONS.get(method)
    return None if declared is None else Source(declared.paper, declared.departs, declared.ours)
