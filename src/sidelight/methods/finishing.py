"""What becomes of the iterates: every one of them is already covered by composition, so this is free."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from sidelight import finish
from sidelight.arrays import Vector
from sidelight.errors import InputError
from sidelight.methods.part import FinishRule, FinishState, Models
from sidelight.methods.part_checks import check_finish
from sidelight.methods.recipe import Last, LastState, Setting

__all__ = ["Ema", "Last", "LastState", "MeanLast", "MeanLastHalf", "Reuse"]


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
