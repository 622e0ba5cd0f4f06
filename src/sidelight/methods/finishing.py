"""What becomes of the iterates: every one of them is already covered by composition, so this is free."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sidelight import finish
from sidelight.arrays import Floats, Vector
from sidelight.errors import InputError
from sidelight.methods.part import FinishRule, FinishState, Models
from sidelight.methods.part_checks import check_finish
from sidelight.methods.recipe import Last, LastState, Setting

__all__ = ["BestOnPublic", "Ema", "Last", "LastState", "MeanLast", "MeanLastHalf", "MeanTail", "Reuse"]


@dataclass(frozen=True)
class MeanLast(FinishRule):
    """The mean of the last n iterates (DOPE-SGD's ensemble of weights; below 50 it brings little)."""

    n: int = 100

    def begin(self, setting: Setting) -> WindowState:
        if self.n < 1:
            raise InputError(f"the mean needs at least one iterate, not {self.n}")
        return WindowState(self.n)


@dataclass(frozen=True)
class MeanLastHalf(FinishRule):
    """The mean of the second half of the planned iterates."""

    def begin(self, setting: Setting) -> WindowState:
        return WindowState(max(1, setting.steps // 2))


class WindowState(FinishState):
    """Keeps the last n iterates."""

    kept = ("iterates",)

    def __init__(self, n: int) -> None:
        self.iterates: deque[Vector] = deque(maxlen=n)

    def add(self, params: Vector) -> None:
        self.iterates.append(params)

    def result(self, start: Vector) -> Vector:
        return finish.mean_last_n(list(self.iterates), len(self.iterates)) if self.iterates else start


@dataclass(frozen=True)
class Ema(FinishRule):
    """e ← decay·e + (1 − decay)·w from e = w0, without bias correction."""

    decay: float = 0.999

    def begin(self, setting: Setting) -> EmaState:
        if not 0 <= self.decay < 1:
            raise InputError(f"decay must be in [0, 1), not {self.decay!r}")
        return EmaState(self.decay)


class EmaState(FinishState):
    """Keeps every iterate's weight in one running value."""

    kept = ("scale", "total")

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.scale: float = 1.0
        self.total: Vector | float = 0.0  # the mean is scale·w0 + total

    def add(self, params: Vector) -> None:
        self.scale *= self.decay
        self.total = (1 - self.decay) * params + self.decay * self.total

    def result(self, start: Vector) -> Vector:
        return self.scale * start + self.total


@dataclass(frozen=True)
class Reuse(FinishRule):
    """Model reuse: refit on public records, pulled towards the model (last line of PPSGD's Algorithm 1)."""

    lam: float = 0.1
    inner: FinishRule = field(default_factory=Last)
    needs_public: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_finish(self.inner)

    def begin(self, setting: Setting) -> ReuseState:
        if not self.lam > 0:
            raise InputError(f"lam of model reuse must be positive, not {self.lam!r}")
        return ReuseState(self.lam, self.inner.begin(setting), setting)


class ReuseState(FinishState):
    """Finishes like `inner`, then refits."""

    kept = ("inner",)

    def __init__(self, lam: float, inner: FinishState, setting: Setting) -> None:
        self.lam, self.inner, self.setting = lam, inner, setting

    def add(self, params: Vector) -> None:
        self.inner.add(params)

    def result(self, start: Vector) -> Vector:
        self.setting.public("model reuse")
        model = self.inner.result(start)
        if isinstance(model, Models):
            raise InputError(
                "model reuse refits one model, and an ensemble has several; take another inner finish"
            )
        return self.setting.problem.refit(model, self.lam)


@dataclass(frozen=True)
class MeanTail(FinishRule):
    """The mean of the last `share` of the planned iterates, as a running sum: no window of them is kept."""

    share: float = 0.25

    def begin(self, setting: Setting) -> TailState:
        if not 0 < self.share <= 1:
            raise InputError(f"share must be in (0, 1], not {self.share!r}")
        return TailState(setting.steps - max(1, round(self.share * setting.steps)))


class TailState(FinishState):
    """Sums the iterates after the first `skipped`."""

    kept = ("seen", "total")

    def __init__(self, skipped: int) -> None:
        self.skipped, self.seen = skipped, 0
        self.total: Vector | float = 0.0

    def add(self, params: Vector) -> None:
        self.seen += 1
        if self.seen > self.skipped:
            self.total = params + self.total

    def result(self, start: Vector) -> Vector:
        count = self.seen - self.skipped
        return start if count < 1 else start * 0 + self.total / count


@dataclass(frozen=True)
class BestOnPublic(FinishRule):
    """Of several finishes the one that held-out public records score best; or the start itself.

    The start, and the point half-way to it, must be better by more than a standard error: it was chosen on
    the same records, which think too well of it. All of this looks at released parameters and public records
    alone, so it costs nothing. Where a problem has no held-out records it is the first of the finishes.
    """

    rules: tuple[FinishRule, ...] = (Last(), Ema(0.98), MeanTail(0.25))

    def __post_init__(self) -> None:
        if not self.rules:
            raise InputError("BestOnPublic needs a finish to choose")
        for rule in self.rules:
            check_finish(rule)

    def begin(self, setting: Setting) -> BestOnPublicState:
        return BestOnPublicState(self.rules, [rule.begin(setting) for rule in self.rules], setting)


class BestOnPublicState(FinishState):
    """Collects the iterates for every finish, and scores what they make of them."""

    def __init__(self, rules: tuple[FinishRule, ...], states: list[FinishState], setting: Setting) -> None:
        self.rules, self.states, self.setting = rules, states, setting
        self.notes: list[str] = []

    def state_dict(self) -> dict[str, object]:
        return {str(k): state.state_dict() for k, state in enumerate(self.states)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        for k, one in enumerate(self.states):
            saved = state[str(k)]
            if isinstance(saved, Mapping):
                one.load_state_dict(saved)

    def add(self, params: Vector) -> None:
        for state in self.states:
            state.add(params)

    def result(self, start: Vector) -> Vector:
        made: dict[str, Vector] = {}
        for rule, state in zip(self.rules, self.states, strict=True):
            model = state.result(start)
            if not isinstance(model, Models):
                made[repr(rule)] = model
        first = next(iter(made.values()))
        safe = {"half-way from the start": 0.5 * (start + first), "the start": start}
        losses = {
            name: found
            for name, params in {**made, **safe}.items()
            if (found := self._losses(params)) is not None
        }
        if not losses:
            return first
        best = min(made, key=lambda name: float(losses[name].mean()))
        for name in safe:
            gains = losses[best] - losses[name]
            if gains.mean() > gains.std() / math.sqrt(len(gains)):
                best = name
        listed = ", ".join(f"{name} {one.mean():.4f}" for name, one in losses.items())
        self.notes = [f"finish: {best}, by the loss on held-out public records ({listed})"]
        return {**made, **safe}[best]

    def _losses(self, params: Vector) -> Floats | None:
        """Of held-out public records; what is not finite is worse than everything else."""
        losses = self.setting.problem.held_out_losses(params)
        return None if losses is None else np.nan_to_num(losses, nan=1e6, posinf=1e6)
