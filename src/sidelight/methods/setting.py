"""What the parts of a recipe may know, and what each kind of part must offer.

A part has a rule (a frozen dataclass, what the user configures) and, if it changes while training, a state
that `begin` returns. All that a part is ever shown is a `Setting`, released parameters and public gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sidelight.data.samplers import Sampler
from sidelight.errors import InputError
from sidelight.methods.parts import Clip, Metric
from sidelight.privacy.events import Event, Relation

__all__ = [
    "ClipRule",
    "ClipState",
    "Finish",
    "FinishState",
    "Guide",
    "MetricRule",
    "MetricState",
    "Mix",
    "Network",
    "NoiseRule",
    "NoiseState",
    "Origin",
    "Setting",
    "Start",
    "Update",
]

Update = Callable[[Any, Any, Any, int, float], Any]  # (w, direction, ĝ, step, η) → w


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


class Start(Protocol):
    def __call__(self, setting: Setting) -> Any:
        """The first parameters, from public data."""


class Origin(Protocol):
    def at(self, public_gradient: Any) -> Any:
        """The origin of the clipping ball, from the public gradient."""


class MetricState(Protocol):
    unit_rows: bool  # whether rows are brought to length 1 under the metric, before the loss sees them

    def at(self, step: int, params: Any, public_gradient: Any) -> Metric:
        """The metric of this step."""

    def back(self, metric: Metric, vector: Any) -> Any:
        """From the metric's space to a direction for the parameters."""


class MetricRule(Protocol):
    needs_gradient: bool

    def begin(self, setting: Setting, params: Any) -> MetricState: ...


class ClipState(Protocol):
    def at(self, step: int, params: Any, metric: Metric, origin: Any) -> Clip: ...

    def after(self, params: Any, public_gradient: Any) -> None:
        """Told of the new parameters and of the public gradient there, under the metric."""


class ClipRule(Protocol):
    needs_after: bool

    def begin(self, setting: Setting, params: Any) -> ClipState: ...


class NoiseState(Protocol):
    def at(self, step: int) -> float | None:
        """The noise multiplier of this step; None ends the run."""

    def admit(self, event: Event) -> None:
        """Ask a filter, where there is one, before the release."""

    def after(self, public_gradient: Any, std: float) -> None:
        """Told of the public gradient at the new parameters, under the metric, and of the noise added."""


class NoiseRule(Protocol):
    needs_after: bool
    relations: tuple[Relation, ...] | None  # None: whatever the sampler gives

    def plan(self, setting: Setting) -> tuple[Event, bool, dict[str, Any]]:
        """The event that bounds the run, whether it is a filter's, and what to report."""

    def begin(self, setting: Setting) -> NoiseState: ...


class Mix(Protocol):
    needs_gradient: bool

    def begin(self, setting: Setting, params: Any, *, noise_multiplier: float, bound: float) -> Update:
        """update(w, direction, ĝ, step, η) → w, without the regulariser."""


class FinishState(Protocol):
    def add(self, params: Any) -> None:
        """Told of every iterate after the start."""

    def result(self, start: Any) -> Any:
        """The model; `start` if there was no step."""


class Finish(Protocol):
    def begin(self, setting: Setting) -> FinishState: ...
