"""What the parts of a recipe may know: public constants and the public data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sidelight.data.samplers import Sampler
from sidelight.errors import InputError
from sidelight.methods.parts import Metric
from sidelight.privacy.events import Relation

__all__ = ["Guide", "Network", "Setting"]


class Network(Protocol):
    """What only a network's trainer can do for a part; flat vectors in and out."""

    def present(self) -> Any:
        """The parameters that the network has now: its random start."""

    def pretrained(self) -> Any:
        """The parameters after plain training on public records."""

    def refit(self, params: Any, lam: float) -> Any:
        """Plain training of the public records' mean loss + lam·‖w − params‖², from params."""


class Guide(Protocol):
    """The public side: the questions that parts may ask."""

    size: int

    def mean_gradient(self, params: Any) -> Any: ...
    def gradient_norms(self, params: Any, *, metric: Metric = None, origin: Any = None) -> Any: ...
    def gradients(self, params: Any) -> Any: ...


@dataclass(frozen=True)
class Setting:
    """What every part may know: public constants and the public data. Nothing private is in here."""

    n: int  # private records
    dimension: int
    batch: float  # B, the expected batch size
    steps: int  # T, planned
    epsilon: float
    delta: float
    relation: Relation
    sampler: Sampler
    loss: Any
    max_norm: float
    target_bound: float | None = None
    guide: Any = None  # PublicOracle, or None without public records
    step_size: float = 0.0
    max_steps: int | None = None  # where a budget that adapts stops at the latest; None: when it is spent
    network: Network | None = None  # how a network starts and is refitted; None for a linear model

    @property
    def rate(self) -> float:
        """The sampling probability."""
        return self.batch / self.n

    def public(self, what: str) -> Any:
        """The guide, or an error that says which part needs public records."""
        if self.guide is None or self.guide.size == 0:
            raise InputError(f"{what} needs public records; pass X_public and y_public")
        return self.guide

    @property
    def sensitivity_factor(self) -> int:
        return 1 if self.relation == "add-or-remove-one" else 2
