"""Neighbour replay: record a run on D, replay it on D′ with the same randomness, and compare.

The same released values are fed back, so that both runs ask the same questions. Then every private sum may
differ by its declared sensitivity, and nothing else may differ at all. Beside that: what was charged is
compared with what was done, samplers with their events, and doors without a private sum of their own
(selections, processes) are passed many times on both worlds, and their outputs compared with their events.
"""

from __future__ import annotations

import numpy as np

from sidelight.arrays import Floats, Json
from sidelight.audit import promises
from sidelight.audit.bounds import Separation, choosing, separate
from sidelight.audit.promises import performs_its_event
from sidelight.audit.result import AuditResult, Claim, Finding, failed
from sidelight.audit.subjects import Outcome, Subject, World, as_subject, verdict
from sidelight.audit.tape import FixedBatch, RecordedCall, Tape, listening, vector
from sidelight.errors import PrivacyConditionError
from sidelight.methods.task import Method
from sidelight.privacy.events import NoOp, Relation
from sidelight.privacy.noise import Noise

__all__ = ["record", "replay_neighbours"]

_FEW = 3  # doors of a kind that are passed many times
_RELEASES = 100  # how often, if it is a sum with noise
_SUMS = ("release", "release_on_grid")


def replay_neighbours(
    method: str | Method | Subject,
    *,
    relation: Relation | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    seeds: int = 3,
    door_runs: int = 400,
    seed: int = 0,
) -> AuditResult:
    """Replay a method on neighbouring datasets; see the module.

    Args:
        method: a name, a configured method or recipe (your own too), or a subject.
        relation: None takes the default (`relation_of`).
        seeds: how many recordings, each with other randomness.
        door_runs: how often a door without a private sum is passed on each of two worlds; ten times as often
            if all it gives is a choice.
    """
    subject = as_subject(method, relation=relation, epsilon=epsilon, delta=delta)
    findings: list[Finding] = []
    details: Json = {"seeds": seeds, "largest_share": 0.0, "private_sums": 0, "releases": 0}
    if not subject.claim.private:
        details["note"] = "no guarantee is claimed, so there is nothing to refute"
        seeds = 0
    try:
        findings += subject.planning()
        for number in range(seed, seed + seeds):
            findings += _replayed(subject, number, details)
        for number in range(seed, seed + seeds):
            findings += _extremes(subject, number, -(-door_runs // seeds), details)
    except Exception as error:  # of a method that an audit knows nothing of; the records are synthetic
        findings.append(failed(error))
    return verdict(
        subject,
        "neighbour replay",
        lower_bound=0.0,
        confidence=1.0,
        findings=_distinct(findings),
        details=details,
    )


def record(
    subject: Subject,
    world: World,
    *,
    seed: int,
    like: Tape | None = None,
    everyone: bool = False,
    batch: FixedBatch | None = None,
    follow_noise: bool = True,
) -> tuple[Tape, Outcome]:
    """Run on a world; with `like`, on the released values of that run. `everyone`: all records in a batch."""
    with listening(like=like, everyone=everyone, batch=batch, follow_noise=follow_noise) as tape:
        outcome = subject.run(world, seed=seed)
    return tape, outcome


def _distinct(findings: list[Finding]) -> tuple[Finding, ...]:
    """One finding for each promise: the first."""
    return tuple({finding.promise: finding for finding in reversed(findings)}.values())[::-1]


def _replayed(subject: Subject, seed: int, details: Json) -> list[Finding]:
    base, others = subject.neighbours()
    tape, outcome = record(subject, base, seed=seed)
    findings = promises.charges(tape, outcome.charged, subject.claim)
    for sampler, n in tape.samplers:
        findings += performs_its_event(sampler, n, seed=seed)
    findings += _compared(subject, seed, details, tape, outcome, others)
    if any(question.indices is not None for question in tape.questions):
        # The record may have missed every batch: once more with all records in each.
        tape, outcome = record(subject, base, seed=seed, everyone=True)
        findings += _compared(subject, seed, details, tape, outcome, others, everyone=True)
    details["releases"] = len(tape.calls)
    details["private_sums"] = sum(call.value is not None for call in tape.calls)
    return findings + _joined(subject, seed, details)


def _joined(subject: Subject, seed: int, details: Json) -> list[Finding]:
    """Batches of n records against batches of n + 1: the same ones, and one more."""
    findings: list[Finding] = []
    for others, worlds in subject.joined():
        absent, present = (FixedBatch(subject.changed, here, others) for here in (False, True))
        tape, outcome = record(subject, worlds[0], seed=seed, batch=absent)
        findings += _compared(subject, seed, details, tape, outcome, worlds, batch=present)
    return findings


def _compared(
    subject: Subject, seed: int, details: Json, tape: Tape, outcome: Outcome, others: list[World],
    *, everyone: bool = False, batch: FixedBatch | None = None,
) -> list[Finding]:  # fmt: skip
    """The run against its replays on every neighbour."""
    findings: list[Finding] = []
    for world in others:
        other, theirs = record(subject, world, seed=seed, like=tape, everyone=everyone, batch=batch)
        details["largest_share"] = max(details["largest_share"], promises.largest_share(tape, other))
        moved = promises.within_sensitivity(tape, other)
        # Where runs have come apart already, the rest differs of itself.
        findings += moved or promises.nothing_outside(outcome.outside, theirs.outside)
    return findings


# ---------------------------------------------------------------------------------------------------
# what single doors do


def _extremes(subject: Subject, seed: int, runs: int, details: Json) -> list[Finding]:
    """One record among records that say nothing: it is replayed, and every kind of door is passed often.

    The noise of sums is measured; the outputs of all other doors are compared between two worlds, whose
    record an adversary may choose after seeing what was released before.
    """
    base, other = subject.extremes()
    tape, outcome = record(subject, base, seed=seed)
    findings = _compared(subject, seed, details, tape, outcome, [other])
    checked = details.setdefault("doors_repeated", {})
    for call in tape.calls[:_FEW]:
        if call.door == "release":
            findings += promises.noise_is_drawn(call, _outputs(call, _RELEASES, seed=seed))
    if any(call.door not in _SUMS for call in tape.calls):
        for worlds in [(base, other), *_aimed(subject, tape)]:
            findings += _doors(subject, worlds, tape, seed, runs, checked)
    return findings


def _aimed(subject: Subject, tape: Tape) -> list[tuple[World, World]]:
    """Worlds whose record lies along, and against, what was released before the first other door."""
    first = next(i for i, call in enumerate(tape.calls) if call.door not in _SUMS)
    if first == 0:
        return []
    direction = vector(tape.calls[first - 1].output)
    return [subject.extremes(sign * direction) for sign in (1.0, -1.0)]


def _doors(
    subject: Subject, worlds: tuple[World, World], tape: Tape, seed: int, runs: int, checked: dict[str, int]
) -> list[Finding]:
    """Pass selections and processes often, on both worlds, and compare."""
    replays = [record(subject, world, seed=seed, like=tape)[0] for world in worlds]
    pairs = [
        pair for pair in zip(replays[0].calls, replays[1].calls, strict=False) if pair[0].door not in _SUMS
    ]
    findings: list[Finding] = []
    for mine, theirs in pairs[:_FEW]:
        checked[mine.door] = checked.get(mine.door, 0) + 1
        outcome = _passed_often(mine, theirs, subject.claim, runs, seed)
        if outcome.refuted:
            promise = f"the outputs of a {mine.door} on two neighbours are as close as its event says"
            seen = (
                f"δ ≥ {outcome.proven_delta:.3g} at ε = {outcome.epsilon:g}, "
                f"where {outcome.claimed_delta:.3g} is claimed"
            )
            findings.append(Finding(promise, seen))
    return findings


def _passed_often(mine: RecordedCall, theirs: RecordedCall, claim: Claim, runs: int, seed: int) -> Separation:
    event = NoOp() if mine.event is None else mine.event  # what was not charged may tell nothing
    runs = 10 * runs if np.size(mine.output) == 1 else runs
    without, with_ = (_outputs(call, runs, seed=2 * seed + side) for side, call in enumerate((mine, theirs)))
    return separate(*_as_scores(without, with_), Claim(event, claim.relation, claim.delta))


def _outputs(call: RecordedCall, runs: int, *, seed: int) -> Floats:
    """What the door gives for the same private value, again and again."""
    noise, again = Noise(1_000_000 + seed), call.again
    if again is None:
        raise PrivacyConditionError("this passage through a door was recorded without a way to repeat it")
    return np.array([vector(again(noise)) for _ in range(runs)])


def _as_scores(without: Floats, with_: Floats) -> tuple[Floats, Floats]:
    """One number per run: along the difference of means, or, for a choice among a few, its likelihood."""
    few = choosing(len(without))
    if without.shape[1] == 1 and np.array_equal(without, np.rint(without)):
        values = np.unique(np.concatenate([without, with_]))
        index = [np.searchsorted(values, side[:, 0]) for side in (without, with_)]
        odds = [np.bincount(i[:few], minlength=len(values)) + 0.5 for i in index]
        weight = np.log(odds[1] / odds[0])
        return weight[index[0]], weight[index[1]]
    direction = projection(without[:few], with_[:few])
    return without @ direction, with_ @ direction


def projection(without: Floats, with_: Floats) -> Floats:
    """The direction that separates two clouds best (Fisher's); coordinate by coordinate if there are many."""
    difference = with_.mean(axis=0) - without.mean(axis=0)
    count, width = without.shape
    if 5 * width <= count:
        pooled = np.atleast_2d(np.cov(without.T) + np.cov(with_.T))
        ridge = 1e-9 * float(np.trace(pooled)) / width + 1e-30
        return np.asarray(np.linalg.solve(pooled + ridge * np.eye(width), difference))
    spread = without.var(axis=0) + with_.var(axis=0)
    return np.asarray(difference / (spread + 1e-12 * (1 + spread.max(initial=0))))
