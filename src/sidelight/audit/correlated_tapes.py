"""Runs whose steps share noise, on a tape: is the noise that of their event, and does everyone keep to turns?

What was released less the private sum is the noise of a step. With the matrix C of the event, C·noise has to
be white, with the variance that was charged: a draw that is used again, another matrix or less noise show.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import chi2

from sidelight.arrays import Floats
from sidelight.audit.result import Finding
from sidelight.audit.tape import RecordedCall, Tape, vector
from sidelight.privacy.correlated import CorrelatedGaussian

_SIGMAS = 7.0  # products of Gaussians have longer tails than they; accused once in a million audits
_ROUNDING = 1e-6


def _runs(tape: Tape) -> list[tuple[CorrelatedGaussian, list[RecordedCall]]]:
    """Runs with correlated noise: the event that was charged, and the steps."""
    found: dict[int, list[RecordedCall]] = {}
    for call in tape.calls:
        if call.kind == "release_correlated":
            found.setdefault(id(call.options["correlation"]), []).append(call)
    runs = []
    for calls in found.values():
        event = calls[0].event
        if isinstance(event, CorrelatedGaussian):
            runs.append((event, calls))
    return runs


def _correlate(event: CorrelatedGaussian, rows: Floats) -> Floats:
    """C times one row per step."""
    column = event.strategy.column(len(rows))
    return np.stack([column[t::-1] @ rows[: t + 1] for t in range(len(rows))])


def _moved(away: Floats, call: RecordedCall) -> Floats:
    """How far this is from the private sum of a step, in units of its sensitivity."""
    own = np.zeros_like(away) if call.value is None else call.value
    return (away - own) / call.sensitivity


def noise_is_correlated_as_charged(tape: Tape) -> list[Finding]:
    """C·noise has the variance that was charged, and steps of it are independent."""
    promise = "the noise drawn is the noise accounted"
    for event, calls in _runs(tape):
        if [call.options["step"] for call in calls] != list(range(len(calls))):
            return [Finding(promise, "steps of a run with correlated noise are missing, or were taken twice")]
        if not all(call.sensitivity > 0 for call in calls):
            continue
        noise = np.stack([_moved(vector(call.output), call) for call in calls])
        draws = _correlate(event, noise) / event.noise_multiplier
        if chi2.cdf(float((draws**2).sum()), draws.size) < 1e-6:
            return [Finding(promise, f"{float(draws.std()):.3g} times the standard deviation accounted")]
        for lag in range(1, len(draws)):
            product = draws[lag:] * draws[:-lag]
            if abs(float(product.sum())) > _SIGMAS * math.sqrt(product.size):
                return [Finding(promise, f"draws that are {lag} steps apart depend on each other")]
    return []


def turns_are_kept(tape: Tape) -> list[Finding]:
    """No record is in more batches than it has turns, and in none before its next turn."""
    promise = "batches are drawn as the event says"
    for event, calls in _runs(tape):
        batches = [question.indices for question in tape.questions[: len(calls)]]
        if len(batches) < len(calls) or any(not isinstance(b, np.ndarray | None) for b in batches):
            continue  # a batch of blocks is drawn where the blocks are
        last: dict[int, int] = {}
        for step, batch in enumerate(batches):
            if batch is None:
                if event.separation > 1:
                    return [Finding(promise, "every record is in a batch of records that take turns")]
                continue
            for record in batch.tolist():
                if step - last.get(record, -event.steps) < event.separation:
                    return [Finding(promise, "a record is in two batches that are closer than its turns")]
                last[record] = step
    return []


def runs_within_sensitivity(tape: Tape, other: Tape) -> list[Finding]:
    """With C applied, one record moves all steps of a run together at most by what was accounted."""
    for (event, mine), (_, theirs) in zip(_runs(tape), _runs(other), strict=False):
        pairs = [(one, call.value) for one, call in zip(mine, theirs, strict=False) if call.value is not None]
        if not pairs or not all(one.sensitivity > 0 for one, _ in pairs):
            continue
        apart = np.stack([_moved(value, one) for one, value in pairs])
        lengths = [float(np.linalg.norm(value)) / one.sensitivity for one, value in pairs]
        rounding = 8 * max(one.precision for one, _ in pairs) * max(lengths)
        moved = float(np.linalg.norm(_correlate(event, apart)))
        reach = event.strategy.sensitivity(
            steps=event.steps, separation=event.separation, participations=event.turns
        )
        if moved > reach * (1 + _ROUNDING) + len(pairs) * min(rounding, 1e-3) * reach:
            promise = "one record moves a correlated run at most by its sensitivity"
            return [Finding(promise, f"it moved by {moved / reach:.4g} times that")]
    return []
