"""Correlated noise: that of a step is taken back, in part, by later steps (matrix factorization, DP-FTRL).

    ẑ_t = z_t − c_1 ẑ_{t−1} − … − c_{b−1} ẑ_{t−b+1}        BandedNoise(bands=b)
    ẑ_t = z_t + d_1 z_{t−1} + … + d_{b−1} z_{t−b+1}        BandedNoise(bands=b, inverse=True)

Banded matrix factorization: Choquette-Choo et al. (NeurIPS 2023, arXiv:2306.08153v2), with Toeplitz bands as
in McKenna (arXiv:2405.15913). Banded inverses: Kalinin et al. (arXiv:2505.12128). Records take turns
(`privacy.turns`), since a record that may be in every step would be hidden by less and less noise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from sidelight.clipping import Details
from sidelight.errors import InputError, PrivacyConditionError, whole
from sidelight.methods.part_kinds import NoiseRule, NoiseState, Setting
from sidelight.methods.public_curvature import contractions
from sidelight.methods.workload import Workload, averaging, best_bands
from sidelight.privacy import accountants, conversions
from sidelight.privacy.correlated import CorrelatedGaussian
from sidelight.privacy.correlation import Correlation
from sidelight.privacy.events import Event, Sampler
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account, BoundedSum, Released, release_correlated
from sidelight.privacy.strategies import inverse_square_root
from sidelight.privacy.turns import Places, Turns

_MOST_BANDS = 16  # where nobody gives a number: so many vectors less one are kept


@dataclass(frozen=True, kw_only=True)
class BandedNoise(NoiseRule):
    """Noise whose later steps take back that of earlier ones.

    Guarantee: that of the one event `CorrelatedGaussian`, charged as a whole before the first step.
    Memory: bands − 1 vectors as long as the parameters, where the noise is added.

    Args:
        bands: None takes the best of 1, 2, 4, 8 and 16 for this budget and plan; 1 is independent noise.
        cycle: steps between two turns of a record; None: `bands` if batches are sampled, else as many as make
            batches of the size asked for.
        sampled: whether a record whose turn it is takes part with a probability, which amplifies privacy
            (add-or-remove-one). If not, everyone whose turn it is does, and what is seen of the cohort
            costs nothing. None takes what gives less error; turns without sampling are then charged
            for places that nobody sees (add-or-remove-one).
        inverse: bands of C⁻¹, those of the inverse square root; turns are then not sampled.
        largest_batch: batches have no more records than that, at a price in δ; for sampled turns.
        curvature: "public" weighs directions by the curvature of public records, labeled or not.
        momentum: of an optimizer of your own; None: that of the recipe or of the network's optimizer.
    """

    bands: int | None = None
    cycle: int | None = None
    sampled: bool | None = None
    inverse: bool = False
    largest_batch: int | None = None
    curvature: Literal["public"] | None = None
    momentum: float | None = None
    independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole("bands", self.bands, optional=True)
        whole("cycle", self.cycle, optional=True)
        whole("largest_batch", self.largest_batch, optional=True)
        if self.curvature not in (None, "public"):
            raise InputError(f"curvature is 'public' or None, not {self.curvature!r}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be in [0, 1), not {self.momentum!r}")
        if self.inverse and self.sampled:
            raise InputError(
                "a banded inverse is proved for turns without sampling alone; pass sampled=False"
            )
        if self.largest_batch is not None and self.sampled is False:
            raise InputError("largest_batch is for sampled turns; leave sampled=False out")
        if self.sampled and None not in (self.bands, self.cycle) and (self.bands or 1) > (self.cycle or 1):
            raise InputError(
                f"sampled turns need a cycle of at least {self.bands} steps, one for each band, "
                f"not {self.cycle}"
            )

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        return self.curvature is not None

    @property
    def shaped(self) -> bool:  # type: ignore[override]
        return self.curvature is not None

    takes_unlabeled = True

    # -----------------------------------------------------------------------------------------------
    # whose turn it is, and which bands

    def arrange(self, setting: Setting) -> Setting:
        """Turns of records in place of batches that are drawn from all of them, with the best bands."""
        work = self._workload(setting)
        plans = [turns for turns in self._candidates(setting, work) if turns is not None]
        if not plans:
            raise InputError(
                f"no turns are possible with batches of {setting.batch:.6g} of {setting.n:,} records"
                f"{'' if self.cycle is None else f' and a cycle of {self.cycle}'}; take smaller batches"
            )
        best = plans[0]
        if len(plans) > 1:
            best = min(plans, key=lambda turns: _error(turns, work, setting))
        return replace(setting, sampler=best, batch=best.expected_batch_size(setting.n))

    def _workload(self, setting: Setting) -> Workload:
        beta = setting.momentum if self.momentum is None else self.momentum
        steps = setting.steps
        known = ((0.0, 1.0),) if self.curvature is None else contractions(setting)
        # Weight decay is as curvature in every direction: with momentum, that works 1/(1 − β) times as much.
        decay = (1 - beta) * setting.problem.shrinkage(setting.step_size)
        curvature = tuple((min(1.0, own + decay), weight) for own, weight in known)
        return Workload(steps, beta, averaging(setting.finish, steps), curvature, setting.step_sizes)

    def _candidates(self, setting: Setting, work: Workload) -> list[Turns | None]:
        most = max(1, int(setting.n / setting.batch * (1 + 1e-12)))  # turns of a pass
        sampled = self.sampled is not False and setting.relation == "add-or-remove-one" and not self.inverse
        if self.sampled and not sampled:
            raise InputError("sampled turns are accounted under add-or-remove-one; leave sampled=True out")
        if self.largest_batch is not None and not sampled:
            raise InputError("largest_batch is for sampled turns, under add-or-remove-one")
        sizes = [self.bands] if self.bands is not None else [1, 2, 4, 8, _MOST_BANDS]
        found: list[Turns | None] = []
        if sampled:
            found += [self._sampled(setting, work, b, most) for b in sizes if b <= max(setting.steps, 1)]
        if not self.sampled and self.largest_batch is None:
            found.append(self._everyone(setting, work, most))
            if sampled:  # and nobody sees who takes part
                found += [self._hidden(setting, work, b, most) for b in sizes if b <= max(setting.steps, 1)]
        return found

    def _hidden(self, setting: Setting, work: Workload, bands: int, most: int) -> Turns | None:
        cycle = most if self.cycle is None else self.cycle
        if bands > cycle or cycle > most:
            return None
        return Turns(1.0, cycle, setting.steps, best_bands(work, bands), None, setting.relation, secret=True)

    def _sampled(self, setting: Setting, work: Workload, bands: int, most: int) -> Turns | None:
        cycle = bands if self.cycle is None else self.cycle
        if bands > cycle or cycle > most:
            return None
        q = min(1.0, setting.rate * cycle)
        largest = self.largest_batch
        if q == 1 and largest is not None:
            return None
        strategy = best_bands(work, bands)
        return Turns(q, cycle, setting.steps, strategy, largest, setting.relation, secret=q == 1)

    def _everyone(self, setting: Setting, work: Workload, most: int) -> Turns:
        cycle = most if self.cycle is None else self.cycle
        bands = min(cycle, _MOST_BANDS) if self.bands is None else self.bands
        bands = min(bands, setting.steps)
        banded, inverse = best_bands, inverse_square_root
        strategy = inverse(bands, work.denominator()) if self.inverse else banded(work, bands)
        return Turns(1.0, cycle, setting.steps, strategy, None, setting.relation)

    # -----------------------------------------------------------------------------------------------

    def plan(self, setting: Setting) -> tuple[Event, bool, Details]:
        turns, event = _turns(setting), self._event(setting)
        details = {
            "noise_multiplier": event.noise_multiplier,
            "noise_bands": turns.strategy.bands,
            "noise_inverse": turns.strategy.inverse,
            "noise_coefficients": list(turns.strategy.coefficients),
            "turns_apart": turns.cycle,
            "turns": event.turns,
            "sampled_in_turn": turns.sampling_probability,
            "places_secret": turns.secret or turns.sampling_probability < 1,
            **({} if turns.largest is None else {"largest_batch": turns.largest}),
            "accounting": accountants.ASSUMES["pld"],
        }
        return event, False, details

    def begin(self, setting: Setting) -> CorrelatedState:
        return CorrelatedState(self._event(setting), self._workload(setting))

    def _event(self, setting: Setting) -> CorrelatedGaussian:
        turns = _turns(setting)
        return turns.run(setting.n, _multiplier(turns, setting.n, setting.epsilon, setting.delta))


def _turns(setting: Setting) -> Turns:
    if not isinstance(setting.sampler, Turns):
        raise InputError("this noise needs the turns that its recipe arranges; plan with Recipe.setting")
    return setting.sampler


@functools.lru_cache(maxsize=256)
def _multiplier(turns: Turns, n: int, epsilon: float, delta: float) -> float:
    """The least standard deviation of a draw, in units of the sensitivity of a step's sum."""
    if turns.sampling_probability == 1 and not turns.secret:
        once = accountants.gdp(turns.run(n, 1.0))  # the sensitivity of CG, for draws of size 1
        if once is None:
            raise InputError("this plan is no Gaussian release")
        return once / conversions.gdp_mu(epsilon, delta) * (1 + 1e-12)
    return accountants.least(lambda z: turns.run(n, z), epsilon=epsilon, delta=delta, relation=turns.relation)


def _error(turns: Turns, work: Workload, setting: Setting) -> float:
    """The noise in the models of a run with these turns, and their batches."""
    try:
        z = _multiplier(turns, setting.n, setting.epsilon, setting.delta)
    except (InputError, PrivacyConditionError):
        return math.inf
    return z * math.sqrt(work.error(turns.strategy)) / turns.expected_batch_size(setting.n)


class CorrelatedState(NoiseState):
    """The noise that is kept, and whose turn it is: both are secrets of the run."""

    def __init__(self, event: CorrelatedGaussian, work: Workload) -> None:
        self.correlation = Correlation(event)
        self._event, self._strategy, self._work = event, event.strategy, work
        self._key, self._turn = b"", 0
        self._places: Places | None = None

    @property
    def walk(self) -> float:
        return self._event.noise_multiplier * math.sqrt(self._work.sum_error(self._strategy))

    def at(self, step: int) -> float | None:
        """That of the noise of this step alone, which later steps take back in part."""
        if step >= self._event.steps:
            return None
        return self._event.noise_multiplier * self._strategy.spread(step)

    def event(self, setting: Setting, multiplier: float) -> Event:
        return self._event

    def turn(self, step: int, setting: Setting, noise: Noise) -> Sampler:
        if self._places is None:
            self._key = self._key or noise.generator.bytes(32)
            self._places = Places(_turns(setting), setting.n, key=self._key)
        self._turn = step
        return self._places.turn(step)

    def release(
        self, total: BoundedSum, *, std: float, event: Event, account: Account, noise: Noise
    ) -> Released:
        return release_correlated(
            total, correlation=self.correlation, turn=self._turn, account=account, noise=noise
        )

    def forget(self) -> None:
        self.correlation.forget()
        self._key, self._places = b"", None

    def state_dict(self) -> dict[str, object]:
        return {"correlation": self.correlation.state_dict(), "places": self._key.hex()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        saved, places = state["correlation"], state["places"]
        if not isinstance(saved, Mapping) or not isinstance(places, str):
            raise InputError("this is not the state of correlated noise")
        self.correlation.load_state_dict(saved)
        self._key, self._places = bytes.fromhex(places), None
