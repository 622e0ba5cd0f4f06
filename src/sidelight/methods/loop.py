"""The one private step, and the loop around it.

    ĝ  ← public gradient at w                              (guide)
    o  ← origin(ĝ) ;  M ← metric ;  C ← clip ;  z ← noise  (parts; functions of public and released things)
    S  ← sampler
    G  ← release( Σ_{i∈S} clip_C(M(g_i − o)),  std = z·sensitivity )      ← the only private line
    d  ← back( G/B + M o )                                 (origin added back after the noise, once)
    w  ← (w − η·mix(d, ĝ)) / (1 + ηλ)                      (the regulariser, by its implicit step)

B is the expected batch size, a public constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sidelight.errors import AssumptionError, BudgetExceeded
from sidelight.methods.parts import Clip, Metric
from sidelight.methods.setting import Setting
from sidelight.oracles.public import PublicOracle
from sidelight.privacy import events
from sidelight.privacy.events import Event
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, release

if TYPE_CHECKING:
    from sidelight.methods.recipe import Recipe

__all__ = ["Loop"]

ClippedSum = Callable[..., BoundedSum]


class Loop:
    """Runs a recipe: on a linear model or on a network, whoever answers `clipped_sum`.

    To make one begins every part, with public things alone: a part that cannot do the task raises here.
    """

    def __init__(self, recipe: Recipe, setting: Setting, *, regularization: float = 0.0) -> None:
        self.recipe, self.regularization = recipe, regularization
        self.w = recipe.start(setting)
        self.metric: Any = recipe.metric.begin(setting, self.w) if recipe.metric else None
        self.first_metric: Metric = self.metric.at(0, self.w, None) if self.metric else None
        self.unit_metric = self.first_metric if getattr(self.metric, "unit_rows", False) else None
        if self.unit_metric is not None and setting.guide is not None:
            setting = replace(setting, guide=setting.guide.under(self.unit_metric))
            self.w = recipe.start(setting)  # a warm start on the rows that the loss sees
        self.setting = setting
        self.clip = recipe.clip.begin(setting, self.w)
        self.noise = recipe.noise.begin(setting)
        self.first_clip: Clip = self.clip.at(0, self.w, self.first_metric, None)
        self.first_multiplier: float = self.noise.at(0) or 0.0
        self.update = recipe.mix.begin(
            setting, self.w, noise_multiplier=self.first_multiplier, bound=self.first_clip.bound
        )
        self.finish = recipe.finish.begin(setting)
        self.velocity: Any = None
        self.history: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def train(self, clipped_sum: ClippedSum, *, account: Account, noise: Noise) -> Any:
        """All steps; what the finish makes of the iterates."""
        start, step = self.w, 0
        while (z := self.noise.at(step)) is not None:
            if not self.step(step, z, clipped_sum, account=account, noise=noise):
                break
            step += 1
        for part in (self.clip, self.noise):
            self.notes.extend(getattr(part, "notes", ()))
        return self.finish.result(start)

    def step(self, t: int, z: float, clipped_sum: ClippedSum, *, account: Account, noise: Noise) -> bool:
        """One private step; False if the filter ends the run."""
        s = self.setting
        gradient = s.guide.mean_gradient(self.w) if self._needs_gradient() else None
        origin = self.recipe.origin.at(gradient) if self.recipe.origin else None
        metric = self.metric.at(t, self.w, gradient) if self.metric else None
        clip = self.clip.at(t, self.w, metric, origin)
        event = s.sampler.event(s.n, z)
        try:
            self.noise.admit(event)
        except BudgetExceeded:
            return False
        batch = s.sampler.indices(s.n, noise)
        total = clipped_sum(self.w, batch, clip=clip, origin=origin, metric=metric, relation=s.relation)
        std = z * total.sensitivity
        noisy = release(total, std=std, event=event, account=account, noise=noise).numpy() / s.batch
        self.w = self._move(self._direction(noisy, origin, metric, gradient), metric, gradient, t)
        self._check_finite()
        self.finish.add(self.w)
        self._record(t, z, event, clip.bound, std / (s.batch * (1 + self._public_share)), gradient)
        self._adapt(metric)
        return True

    @property
    def _public_share(self) -> float:
        """Public records in the pool for each private one."""
        return self.setting.guide.size / self.setting.n if self.recipe.extended else 0.0

    def _direction(self, noisy: Any, origin: Any, metric: Any, gradient: Any) -> Any:
        """Add the origin back, once, and (in the extended setting) what public records contribute."""
        if self.recipe.extended:
            # The expected sum of the public records in the pool, times q: they need no clipping or noise.
            missing = gradient if origin is None else gradient - origin
            noisy = noisy + self._public_share * (missing if metric is None else metric.apply(missing))
            noisy = noisy / (1 + self._public_share)
        if origin is not None:
            noisy = noisy + (origin if metric is None else metric.apply(origin))
        return noisy if metric is None else self.metric.back(metric, noisy)

    def _move(self, direction: Any, metric: Any, gradient: Any, t: int) -> Any:
        s, momentum = self.setting, self.recipe.momentum
        if momentum:
            self.velocity = direction if self.velocity is None else momentum * self.velocity + direction
            direction = self.velocity
        public = gradient
        if gradient is not None and metric is not None and hasattr(self.metric, "public"):
            public = self.metric.public(metric, gradient)
        w = self.update(self.w, direction, public, t, s.step_size)
        # The regulariser is public and comes after the noise; the implicit step is stable for any λ.
        return w / (1 + s.step_size * self.regularization) if self.regularization else w

    def _needs_gradient(self) -> bool:
        r = self.recipe
        parts = (r.origin, r.metric, r.mix)
        return r.extended or any(getattr(part, "needs_gradient", False) for part in parts)

    def _check_finite(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            finite = math.isfinite(float((self.w**2).sum()))
        if not finite:  # of a released value: whoever sees the error learns nothing more
            raise AssumptionError("training diverged; lower step_size or momentum")

    def _record(self, t: int, z: float, event: Event, bound: float, std: float, gradient: Any) -> None:
        """What a report may show: all of it is public or released."""
        entry: dict[str, Any] = {"step": t, "spent": events.describe(event)}
        entry |= {"noise_multiplier": z, "clip_norm": bound, "noise_std": std}
        entry |= getattr(self.noise, "spending", {})
        if gradient is not None:
            entry["public_gradient_norm"] = float((gradient**2).sum() ** 0.5)
        if isinstance(self.setting.guide, PublicOracle):  # a network's guide has the loss of its batch
            entry["public_loss"] = self.setting.guide.mean_loss(self.w)
        self.history.append(entry)

    def _adapt(self, metric: Any) -> None:
        """Show the adaptive parts the public gradient at the new parameters, in the space of the noise."""
        if not (self.recipe.clip.needs_after or self.recipe.noise.needs_after):
            return
        gradient = self.setting.public("a part that adapts").mean_gradient(self.w)
        entry = self.history[-1]
        entry["public_gradient_norm"] = float((gradient**2).sum() ** 0.5)
        seen = gradient if metric is None else metric.apply(gradient)
        self.clip.after(self.w, seen)
        self.noise.after(seen, entry["noise_std"])
