"""Neighbor replay: record a run on D, replay it on D′ with the same randomness, and compare.

The same released values are fed back, so that both runs ask the same questions. Then every private sum may
differ by its declared sensitivity, and nothing else may differ at all. Beside that: what was charged is
compared with what was done, samplers with their events, and releases without a private sum of their own
(selections, processes) are repeated many times on both worlds, and their outputs compared with their events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from sidelight.arrays import Floats, Json
from sidelight.audit.correlated_tapes import (
    noise_is_correlated_as_charged,
    runs_within_sensitivity,
    turns_are_kept,
)
from sidelight.audit.result import AuditResult, Claim, Finding, Separation, choosing, failed, separate
from sidelight.audit.sampling import performs_its_event
from sidelight.audit.subjects import Outcome, Subject, World, as_subject, verdict
from sidelight.audit.tape import FixedBatch, RecordedCall, Tape, listening, vector
from sidelight.errors import PrivacyConditionError, SidelightError
from sidelight.methods.task import Method
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Event, NoOp, Relation
from sidelight.privacy.noise import Noise
from sidelight.privacy.noise_checks import least_multiplier, least_scale
from sidelight.privacy.open_accounts import certificate_of

_REPEATED_RELEASES = 3  # releases of a kind that are repeated many times
_RELEASES = 100  # how often, if it is a sum with noise
_SUMS = ("release", "release_on_grid", "release_correlated")


def replay_neighbors(
    method: str | Method | Subject,
    *,
    relation: Relation | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    seeds: int = 3,
    release_runs: int = 400,
    random_state: int = 0,
) -> AuditResult:
    """Replay a method on neighboring datasets; see the module.

    Args:
        method: a name, a configured method or recipe (your own too), or a subject.
        relation: None uses the default (`relation_of`).
        seeds: how many recordings, each with its own randomness.
        random_state: the first of their seeds.
        release_runs: how often a release without a private sum is repeated on each of the two datasets; ten
            times as often if it only returns a choice.
    """
    subject = as_subject(method, relation=relation, epsilon=epsilon, delta=delta)
    findings: list[Finding] = []
    details: Json = {"seeds": seeds, "largest_share": 0.0, "private_sums": 0, "releases": 0}
    if not subject.claim.private:
        details["note"] = "no guarantee is claimed, so there is nothing to refute"
        seeds = 0
    try:
        findings += subject.planning()
        each = range(random_state, random_state + seeds)
        for number in each:
            findings += _replayed(subject, number, details)
        for number in each:
            findings += _extremes(subject, number, -(-release_runs // seeds), details)
    except Exception as error:  # of a method that an audit knows nothing of; the records are synthetic
        findings.append(failed(error))
    return verdict(
        subject,
        "neighbor replay",
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
    base, others = subject.neighbors()
    tape, outcome = record(subject, base, seed=seed)
    findings = charges(tape, outcome.charged, subject.claim)
    findings += noise_is_correlated_as_charged(tape) + turns_are_kept(tape)
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
    """The run against its replays on every neighbor."""
    findings: list[Finding] = []
    for world in others:
        other, theirs = record(subject, world, seed=seed, like=tape, everyone=everyone, batch=batch)
        details["largest_share"] = max(details["largest_share"], largest_share(tape, other))
        moved = within_sensitivity(tape, other)
        if not (everyone or batch):
            moved += runs_within_sensitivity(tape, other)
        # Where runs have come apart already, the rest differs of itself.
        findings += moved or nothing_outside(outcome.outside, theirs.outside)
    return findings


# ---------------------------------------------------------------------------------------------------
# what single releases do


def _extremes(subject: Subject, seed: int, runs: int, details: Json) -> list[Finding]:
    """One record among records that say nothing: it is replayed, and every kind of release is repeated often.

    The noise of sums is measured; the outputs of all other releases are compared between two worlds, whose
    record an adversary may choose after seeing what was released before.
    """
    base, other = subject.extremes()
    tape, outcome = record(subject, base, seed=seed)
    findings = _compared(subject, seed, details, tape, outcome, [other])
    checked = details.setdefault("releases_repeated", {})
    for call in tape.calls[:_REPEATED_RELEASES]:
        if call.kind == "release":
            findings += noise_is_drawn(call, _outputs(call, _RELEASES, seed=seed))
    if any(call.kind not in _SUMS for call in tape.calls):
        for worlds in [(base, other), *_aimed(subject, tape)]:
            findings += _other_releases(subject, worlds, tape, seed, runs, checked)
    return findings


def _aimed(subject: Subject, tape: Tape) -> list[tuple[World, World]]:
    """Worlds whose record lies along, and against, what was released before the first such release."""
    first = next(i for i, call in enumerate(tape.calls) if call.kind not in _SUMS)
    if first == 0:
        return []
    direction = vector(tape.calls[first - 1].output)
    return [subject.extremes(sign * direction) for sign in (1.0, -1.0)]


def _other_releases(
    subject: Subject, worlds: tuple[World, World], tape: Tape, seed: int, runs: int, checked: dict[str, int]
) -> list[Finding]:
    """Pass selections and processes often, on both worlds, and compare."""
    replays = [record(subject, world, seed=seed, like=tape)[0] for world in worlds]
    pairs = [
        pair for pair in zip(replays[0].calls, replays[1].calls, strict=False) if pair[0].kind not in _SUMS
    ]
    findings: list[Finding] = []
    for mine, theirs in pairs[:_REPEATED_RELEASES]:
        checked[mine.kind] = checked.get(mine.kind, 0) + 1
        outcome = _passed_often(mine, theirs, subject.claim, runs, seed)
        if outcome.refuted:
            promise = f"the outputs of a {mine.kind} on two neighbors are as close as its event says"
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
    """What is released of the same private value, again and again."""
    noise, again = Noise(1_000_000 + seed), call.again
    if again is None:
        raise PrivacyConditionError("this release was recorded without a way to repeat it")
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


# ---------------------------------------------------------------------------------------------------
# the promises of a run, each checked on tapes: an empty list says that they hold


_ROUNDING = 1e-9  # relative
_BUDGET = 1e-6  # relative; plans are calibrated by bisection


# ---------------------------------------------------------------------------------------------------
# two runs on neighboring data, with the same released values


def largest_share(tape: Tape, other: Tape) -> float:
    """How far two runs' private sums are apart, in units of the declared sensitivity, at most.

    Scores of a selection count one by one (their sensitivity is that of one score), sums by their length.
    """
    shares = [0.0]
    for mine, theirs in zip(tape.calls, other.calls, strict=False):
        if mine.value is not None and theirs.value is not None and mine.value.shape == theirs.value.shape:
            shares.append(_share(mine, theirs))
    return float(np.max(shares))  # np.max keeps a NaN


def _share(mine: RecordedCall, theirs: RecordedCall) -> float:
    if mine.value is None or theirs.value is None:
        return 0.0  # no private sum was released here
    order = np.inf if mine.kind == "select" else 2
    with np.errstate(all="ignore"):
        move = float(np.linalg.norm(mine.value - theirs.value, ord=order))
    if move == 0:
        return 0.0
    return math.inf if mine.sensitivity == 0 else move / mine.sensitivity


def within_sensitivity(tape: Tape, other: Tape) -> list[Finding]:
    """No private sum moved by more than it declared, and the questions did not depend on the record."""
    if len(tape.calls) != len(other.calls):
        seen = f"{len(tape.calls)} on one dataset, {len(other.calls)} on its neighbor"
        return [Finding("the number of releases does not depend on a record", seen)]
    findings: list[Finding] = []
    for mine, theirs in zip(tape.calls, other.calls, strict=True):
        if (mine.kind, mine.event, mine.sensitivity) != (
            theirs.kind,
            theirs.event,
            theirs.sensitivity,
        ):
            promise = "what a release declares (event, sensitivity) does not depend on a record"
            findings.append(Finding(promise, f"it differs at a {mine.kind}"))
        if mine.kind == "select" and not _monotone(mine, theirs):
            promise = "scores move in one direction when a record is added"
            findings.append(Finding(promise, "some rose and some fell"))
    beyond = [p for p in zip(tape.calls, other.calls, strict=True) if not _share_is_sound(*p)]
    if beyond:
        promise = "one record moves a private sum at most by its declared sensitivity"
        findings.append(
            Finding(promise, f"it moved by {max(_share(*pair) for pair in beyond):.4g} times that")
        )
    return findings


def _share_is_sound(mine: RecordedCall, theirs: RecordedCall) -> bool:
    """At most 1, but for the rounding of the two sums themselves: each is exact to its own precision only.

    A contribution may not exceed its bound at all, and replays of a record that is alone show that; the sum
    of many in float32 is 1e-6 off, for any parts. What rounding may explain ends at a thousandth.
    """
    if mine.value is None or theirs.value is None:
        return True
    if mine.value.shape != theirs.value.shape:
        return False
    lengths = float(np.linalg.norm(mine.value) + np.linalg.norm(theirs.value))
    rounding = 0.0 if mine.sensitivity == 0 else 4 * mine.precision * lengths / mine.sensitivity
    return _share(mine, theirs) <= 1 + _ROUNDING + min(rounding, 1e-3)


def _monotone(mine: RecordedCall, theirs: RecordedCall) -> bool:
    """Half the noise of a selection is enough under add-or-remove-one only for monotone scores."""
    if not _counts_as_monotone(mine) or mine.value is None or theirs.value is None:
        return True
    move = theirs.value - mine.value
    return bool((move <= 0).all() or (move >= 0).all())


def nothing_outside(mine: Mapping[str, object], theirs: Mapping[str, object]) -> list[Finding]:
    """Given the same released values, nothing that leaves the run depends on the record."""
    different = [name for name in mine if not same(mine[name], theirs.get(name))]
    if not different:
        return []
    promise = "with the same released values, nothing else that leaves the run depends on a record"
    return [Finding(promise, f"{', '.join(different)} changed")]


def same(a: object, b: object) -> bool:
    """Equal to the last bit, NaN included, through lists, dictionaries, dataclasses and arrays."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if is_dataclass(a) and type(a) is type(b):
        return same(vars(a), vars(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind in "fc")
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return bool(a == b)


# ---------------------------------------------------------------------------------------------------
# one run: events and charges


def charges(tape: Tape, charged: list[Event], claim: Claim) -> list[Finding]:
    """Everything released was charged, before its noise was drawn, and the plan and the budget cover it."""
    findings: list[Finding] = []
    if any(call.event is None for call in tape.calls) or charged != tape.events:
        findings.append(
            Finding("what is charged is what is released", _counted(tape.events, charged, tape.calls))
        )
    if any(call.early_noise for call in tape.calls):
        findings.append(Finding("the charge comes before the noise", "noise was drawn before the charge"))
    findings += [_understated(call) for call in tape.calls if not _noise_is_enough(call)][:1]
    if claim.private:
        findings += _covered(tape, claim)
    return findings


def _counted(seen: list[Event], charged: list[Event], calls: list[RecordedCall]) -> str:
    return f"{len(calls)} releases, {len(seen)} of them charged, {len(charged)} charges in all"


def _noise_is_enough(call: RecordedCall) -> bool:
    if call.event is None or call.value is None:
        return True
    if call.kind == "release":
        multiplier = least_multiplier(call.event)
        if multiplier is None:
            return False
        return bool(call.options["std"] >= multiplier * call.sensitivity * (1 - _ROUNDING))
    if call.kind == "select":
        reach = call.sensitivity * (1 if _counts_as_monotone(call) else 2)
        mechanism = call.options.get("mechanism", "exponential")
        needed = least_scale(call.event, reach=reach, mechanism=mechanism)
        return needed is not None and bool(call.options["scale"] >= needed * (1 - _ROUNDING))
    return True


def _counts_as_monotone(call: RecordedCall) -> bool:
    return call.relation == "add-or-remove-one" and bool(call.options.get("monotone", False))


def noise_is_drawn(call: RecordedCall, outputs: NDArray[np.float64]) -> list[Finding]:
    """The same sum, released again and again, scatters as widely as its event says."""
    multiplier = None if call.event is None else least_multiplier(call.event)
    if multiplier is None or call.value is None or call.sensitivity == 0:
        return []
    apart = (outputs - call.value) / (multiplier * call.sensitivity)
    if chi2.cdf(float((apart**2).sum()), apart.size) >= 1e-6:
        return []
    seen = f"{float(apart.std()):.3g} times the standard deviation that is accounted"
    return [Finding("the noise drawn is the noise accounted", seen)]


def _understated(call: RecordedCall) -> Finding:
    event = events.describe(call.event) if call.event is not None else "nothing"
    return Finding("the noise drawn is the noise accounted", f"a {call.kind} charged as {event} has less")


def _covered(tape: Tape, claim: Claim) -> list[Finding]:
    """The plan bounds what was charged, and the budget bounds the plan."""
    spent = events.compose(*tape.events)
    findings: list[Finding] = []
    if not claim.epsilon <= claim.budget * (1 + _BUDGET):
        seen = f"the plan costs ε = {claim.epsilon:.4g} of {claim.budget:.4g}"
        findings.append(Finding("the plan is within the budget", seen))
    if claim.filtered:
        return findings + _certified(spent, claim)
    planned, used = events.elementary(claim.event), events.elementary(spent)
    if not used <= planned:
        extra = events.describe(events.composed(used - planned))
        findings.append(Finding("the plan covers what was released", f"not planned: {extra}"))
    return findings


def _certified(spent: Event, claim: Claim) -> list[Finding]:
    """What an adaptive run released, added up once more in the unit of its certificate."""
    promise, slack = "the filter's certificate covers what was released", 1 + _ROUNDING
    certificate, beside = certificate_of(claim.event)
    spent = events.composed(events.elementary(spent) - beside)
    try:
        match certificate:
            case events.Gaussian(noise_multiplier=z):
                mu = accountants.gdp(spent)
                ok = isinstance(spent, events.NoOp) or (mu is not None and mu <= slack / z)
            case events.RenyiBound(order=order, rdp=bound):
                ok = accountants.rdp(spent, orders=[order], relation=claim.relation)[0] <= bound * slack
            case events.TruncatedConcentrated(rho=rho, omega=omega):
                total, orders = accountants.tcdp(spent, relation=claim.relation, omega_total=omega)
                ok = total <= rho * slack and orders >= omega
            case _:
                ok = True  # (ε, δ) alone cannot be added up
    except PrivacyConditionError as error:
        return [Finding(promise, f"{error}{_true_cost(spent, claim)}")]
    return [] if ok else [Finding(promise, f"it does not{_true_cost(spent, claim)}")]


def _true_cost(spent: Event, claim: Claim) -> str:
    """What the same releases would cost if they had been planned, for comparison."""
    try:
        cost = accountants.epsilon(spent, delta=claim.delta, relation=claim.relation)
    except SidelightError:
        return ""
    if not cost > claim.epsilon:
        return ""
    return f" (these releases cost ε = {cost:.4g} by PLD; {claim.epsilon:.4g} was claimed)"
