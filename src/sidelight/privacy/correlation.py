"""The noise of a run whose steps share it: C⁻¹z, made step by step from the last few draws.

    bands of C:    ẑ_t = z_t − c_1 ẑ_{t−1} − … − c_{b−1} ẑ_{t−b+1}      the last b − 1 of ẑ are kept
    bands of C⁻¹:  ẑ_t = z_t + d_1 z_{t−1} + … + d_{b−1} z_{t−b+1}      the last b − 1 of z are kept

Whoever has what is kept, and the released values, has the private sums of these steps: it is as secret as the
sums are, and is erased when the run ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from sidelight.errors import BudgetExceeded, PrivacyConditionError
from sidelight.privacy.correlated import CorrelatedGaussian
from sidelight.privacy.noise import Noise, Value, is_tensor

_BLOCK = 2**17  # numbers of a draw at a time, which stay in the cache


class Correlation:
    """What a run keeps of its noise, and how many of its steps were released."""

    def __init__(self, event: CorrelatedGaussian) -> None:
        self.event, self.step = event, 0
        self._coefficients = np.asarray(event.coefficients)
        self._kept: Value = None  # a ring of vectors: that of step t is in row t mod (bands − 1)

    def check(self, value: Value, turn: int) -> None:
        """Raise if the step with this number cannot be released, or not with this sum."""
        if max(self.step, turn) >= self.event.steps:
            raise BudgetExceeded(
                f"all {self.event.steps:,} steps of this run were released. Nothing more was released"
            )
        if turn < self.step:
            raise PrivacyConditionError(
                f"step {turn} of this run was released: its records have to wait for their next turn"
            )
        if self._kept is not None and tuple(self._kept.shape[1:]) != tuple(value.shape):
            raise PrivacyConditionError(
                "the sums of a run with correlated noise have one shape; its parts gave another one"
            )

    def at(self, turn: int, value: Value, noise: Noise) -> Value:
        """Noise of the step with this number. That of steps which were passed over is drawn, and not used."""
        while self.step < turn:
            self.draw(value, noise)
        return self.draw(value, noise)

    def draw(self, value: Value, noise: Noise) -> Value:
        """Noise of the next step, of the shape and type of the sum, in units of a draw."""
        drawn = noise.normal_like(value)
        keep = len(self._coefficients) - 1
        if keep and self._kept is None:
            self._kept = _zeros(keep, value)
        try:
            if keep:
                self._add_past(drawn)
            self.step += 1
        except BaseException:  # what is kept may be of two steps: another draw would be of another law
            self.forget()
            raise
        return drawn

    def _add_past(self, drawn: Value) -> None:
        """Add Σ_j d_j z_{t−j} to the draw, or take Σ_j c_j ẑ_{t−j} off, and keep what later steps need of it.

        Block by block, so that a draw is read and written once; rows that are still empty are 0.
        """
        keep = len(self._kept)
        weights: Value = self._coefficients[1:][(self.step - 1 - np.arange(keep)) % keep]
        weights = weights if self.event.inverse else -weights
        rows, own, row = self._kept.reshape(keep, -1), drawn.reshape(-1), self.step % keep
        size = _BLOCK
        if is_tensor(drawn):
            import torch

            weights = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device)
            size = _BLOCK if drawn.is_cpu else max(1, len(own))
        else:
            weights = weights.astype(rows.dtype)
        for low in range(0, len(own), size):
            part, past = own[low : low + size], rows[:, low : low + size]
            sums = weights @ past
            if self.event.inverse:
                past[row] = part
            part += sums
            if not self.event.inverse:
                past[row] = part

    def forget(self) -> None:
        """Erase the noise that is kept: no step follows."""
        self.step, self._kept = self.event.steps, None

    def state_dict(self) -> dict[str, object]:
        """For a checkpoint: as secret as the noise to come."""
        return {"step": self.step, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken."""
        step, kept = state["step"], state["kept"]
        if not isinstance(step, int) or not 0 <= step <= self.event.steps:
            raise PrivacyConditionError("this is not the state of a correlated run")
        rows = len(self._coefficients) - 1
        if rows and 0 < step < self.event.steps and (kept is None or len(kept) != rows):  # type: ignore[arg-type]
            raise PrivacyConditionError(
                f"the state of a run with {rows + 1} bands has {rows} vectors of noise; this one lacks them"
            )
        self.step, self._kept = step, kept

    def __repr__(self) -> str:
        return f"Correlation(step {self.step} of {self.event.steps})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the noise of a run is not copied or pickled: two copies would use it twice")


def _zeros(rows: int, value: Value) -> Value:
    shape = (rows, *value.shape)
    return value.new_zeros(shape) if is_tensor(value) else np.zeros(shape, dtype=value.dtype)
