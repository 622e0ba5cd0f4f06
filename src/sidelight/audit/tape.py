"""Records what a run hands to the functions of `privacy.release`, and replays it on other data.

    with listening() as tape:                run on D: every private sum, event and released value is kept
    with listening(like=tape) as other:      run on D′, with the *released values of the first run*

Both runs then get the same requests, and any difference outside of the private sums was not
released. While listening, the release functions are replaced in every module that imported them:
do not train for real at the same time.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Json
from sidelight.methods.recipe import Loop
from sidelight.privacy import release as releases
from sidelight.privacy.events import Event, Sampler
from sidelight.privacy.noise import Noise, Value
from sidelight.privacy.release import Account, BoundedSum, Released

FUNCTIONS = (
    *("release", "select", "perturbed_solution", "private_process"),
    *("release_on_grid", "release_sketch", "release_correlated"),
)
Probe = Callable[["RecordedStep"], None]
ReleaseFunction: TypeAlias = Callable[..., Any]  # gives a Released, or (`select`) an index
Step: TypeAlias = Callable[..., bool]
Indices: TypeAlias = "NDArray[np.int64] | None"  # of a batch; None: all records


@dataclass
class RecordedCall:
    """One call of a release function. Without a private sum (a process of its own proof) `value` is None."""

    kind: str  # the name of the function of `privacy.release`
    event: Event | None
    value: NDArray[np.float64] | None
    sensitivity: float
    relation: str | None
    output: Value
    options: Json = field(default_factory=dict)
    precision: float = 2.0**-52  # of the type that the sum was added up in
    early_noise: bool = False  # drawn before the charge
    again: Callable[[Noise], Value] | None = None  # the same call with other noise
    after: Json = field(default_factory=dict)  # where the noise stood then


@dataclass
class RecordedStep:
    """What one step of a recipe asked of the private records, and who was in its batch."""

    params: Value
    indices: Indices
    options: Json
    ask: Callable[..., BoundedSum]


@dataclass(frozen=True)
class FixedBatch:
    """The records of every batch: some in order, and behind them the one in question, or not.

    It comes last, so that the others keep their positions, and with them their random numbers.
    """

    record: int
    present: bool
    others: int | None = None  # None: all of them

    def indices(self, n: int) -> NDArray[np.int64]:
        rest = np.delete(np.arange(n), self.record)[: self.others]
        return np.append(rest, self.record) if self.present else rest


@dataclass
class Tape:
    """Everything that one run released."""

    calls: list[RecordedCall] = field(default_factory=list)
    questions: list[RecordedStep] = field(default_factory=list)
    samplers: list[tuple[Sampler, int]] = field(default_factory=list)  # each sampler used, with its n

    @property
    def events(self) -> list[Event]:
        """What was charged, in order."""
        return [call.event for call in self.calls if call.event is not None]


def vector(value: object) -> NDArray[np.float64]:
    """A private or released value (array, tensor, number) as a flat float64 array."""
    if isinstance(value, BoundedSum):
        value = value._value
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy()
    return np.array(value, dtype=np.float64).reshape(-1)


def _precision(value: Value) -> float:
    """The spacing of numbers at 1, in the type of an array or a tensor."""
    if hasattr(value, "detach"):
        import torch

        return float(torch.finfo(value.dtype).eps) if value.dtype.is_floating_point else 0.0
    kind = np.asarray(value).dtype
    return float(np.finfo(kind).eps) if kind.kind == "f" else 0.0


@contextmanager
def listening(
    *,
    like: Tape | None = None,
    everyone: bool = False,
    batch: FixedBatch | None = None,
    probe: Probe | None = None,
    follow_noise: bool = True,
) -> Iterator[Tape]:
    """Record every release while a run continues.

    Args:
        like: answer with the released values of this run.
        everyone: sums are taken over all records instead of the batch that was drawn.
        batch: sums are taken over these records instead.
        probe: called with the question of every step of a recipe, while it can still be asked.
        follow_noise: notice noise that is drawn before its charge, and keep the noise of a replay in step
            with that of its original. Costs time, and a run of which only the outputs count needs neither.
    """
    tape = Tape()
    with _Patches() as patches:
        for name in FUNCTIONS:
            original = getattr(releases, name)
            tapped = _tap(name, original, tape, like, follow_noise)
            for module in _importers(name, original):
                patches.set(module, name, tapped)
        patches.set(Loop, "step", _tap_step(Loop.step, tape, everyone, batch, probe))
        if follow_noise:
            _unbind(patches)
        yield tape


@contextmanager
def same_noise() -> Iterator[None]:
    """A seed gives the same draws for every purpose, so that two runs can be compared number by number.

    For audits and tests: noise that hides two values at once hides nothing of their difference.
    """
    with _Patches() as patches:
        _unbind(patches)
        yield


def _unbind(patches: _Patches) -> None:
    patches.set(Noise, "bind", lambda noise, *about: noise)
    patches.set(Noise, "bound", lambda noise, *about: noise)


def _importers(name: str, original: ReleaseFunction) -> list[ModuleType]:
    """Every module in which `name` is this function."""
    return [m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get(name) is original]


class _Patches:
    """Attributes that get their old values back."""

    def __init__(self) -> None:
        self._old: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        self._old.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def __enter__(self) -> _Patches:
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, value in reversed(self._old):
            setattr(owner, name, value)


class _Watched:
    """An account that notes its charge, and whether noise existed before it."""

    def __init__(self, account: Account, state: Callable[[], Json]) -> None:
        self._account, self._state, self._before = account, state, state()
        self.event: Event | None = None
        self.early = False

    def charge(self, event: Event) -> None:
        self.early |= self._state() != self._before
        self._account.charge(event)
        self.event = event


class NoAccount:
    """An account that ignores every charge: to repeat a release again and again."""

    def charge(self, event: Event) -> None: ...


def _tap(
    name: str, original: ReleaseFunction, tape: Tape, like: Tape | None, follow: bool
) -> ReleaseFunction:
    @functools.wraps(original)
    def tapped(first: object, **options: Any) -> object:
        noise: Noise = options["noise"]
        state: Callable[[], Json] = noise.get_state if follow else dict
        account = _Watched(options["account"], state)
        about = {k: v for k, v in options.items() if k not in ("account", "noise")}
        if "correlation" in options:
            about["step"] = options["correlation"].step
        output = original(first, **{**options, "account": account})
        total = first if isinstance(first, BoundedSum) else None
        call = RecordedCall(
            kind=name,
            event=account.event,
            value=None if total is None else vector(total),
            sensitivity=np.inf if total is None else total.sensitivity,
            relation=None if total is None else total.relation,
            output=output.numpy() if isinstance(output, Released) else output,
            options=about,
            precision=2.0**-52 if total is None else _precision(total._value),
            early_noise=account.early,
            again=_again(original, first, options),
        )
        tape.calls.append(call)
        if like is not None and len(tape.calls) <= len(like.calls):
            theirs = like.calls[len(tape.calls) - 1]
            output = (
                Released(theirs.output, token=releases._RELEASE_TOKEN)
                if isinstance(output, Released)
                else theirs.output
            )
            if theirs.after:
                noise.set_state(theirs.after)
        call.after = state()
        return output

    return tapped


def _again(original: ReleaseFunction, first: object, options: Json) -> Callable[[Noise], Value]:
    def once_more(noise: Noise) -> Value:
        output = original(first, **{**options, "account": NoAccount(), "noise": noise})
        return output.numpy() if isinstance(output, Released) else output

    return once_more


def _tap_step(
    original: Step, tape: Tape, everyone: bool, batch: FixedBatch | None, probe: Probe | None
) -> Step:
    @functools.wraps(original)
    def step(self: Loop, t: int, z: float, *, account: Account, noise: Noise) -> bool:
        clipped_sum, where = self.clipped_sum, (self.setting.sampler, self.setting.n)
        if where not in tape.samplers:
            tape.samplers.append(where)

        def recorded_sum(params: Value, indices: Indices = None, **options: Any) -> BoundedSum:
            question = RecordedStep(params, indices, options, clipped_sum)
            tape.questions.append(question)
            if probe is not None:
                probe(question)
            who = None if everyone else indices
            who = who if batch is None else batch.indices(self.setting.n)
            total: BoundedSum = clipped_sum(params, who, **options)
            return total

        self.clipped_sum = recorded_sum
        try:
            return bool(original(self, t, z, account=account, noise=noise))
        finally:
            self.clipped_sum = clipped_sum

    return step
