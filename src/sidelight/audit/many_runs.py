"""The many-run audit: train often on two neighbouring datasets, guess which it was, count mistakes.

The attacker knows both datasets, sees every released value, and scores it by its likelihood in the two worlds
(the most powerful test there is, by the Neyman–Pearson lemma, when a method releases Gaussian sums). The
sums that the likelihood needs come from replays with randomness of their own: neither the batches that were
drawn nor anything else that stays private enters a score.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sidelight.audit.replay import projection, record
from sidelight.audit.result import AuditResult, Finding, Separation, choosing, failed, repeats, separate
from sidelight.audit.subjects import Subject, World, as_subject, verdict
from sidelight.audit.tape import RecordedCall, vector
from sidelight.errors import InputError
from sidelight.methods.task import Method
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation

__all__ = ["many_runs"]

_SCORING = 2**31  # the seed of replays that score; no run has it


def many_runs(
    method: str | Method | Subject,
    *,
    relation: Relation | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    runs: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """A lower bound on ε from `runs` trainings on each of two neighbouring datasets.

    A quarter of the runs choose a threshold, the others count (Clopper–Pearson). Beside the bound at δ, the
    rates are compared with the whole curve δ(ε) of the event that was charged, at a confidence of 99.99 %. A
    bound above the claim is repeated with other randomness, and the smallest of three counts.
    """
    if runs < 20 or not 0 < confidence < 1:
        raise InputError("a many-run audit needs 20 runs at least and a confidence between 0 and 1")
    subject = as_subject(method, relation=relation, epsilon=epsilon, delta=delta)
    findings: list[Finding] = []
    best, bound = Separation(0.0, False, 0.0, 0.0, 0.0), 0.0
    try:
        best = _best(subject, runs, confidence, seed)
        bound = best.lower_bound
        for number in repeats(seed)[1:]:
            if bound > subject.claim.epsilon:
                bound = min(bound, _best(subject, runs, confidence, number).lower_bound)
    except Exception as error:  # of a method that an audit knows nothing of; the records are synthetic
        findings.append(failed(error))
    if best.refuted:
        seen = f"δ ≥ {best.proven_delta:.3g} at ε = {best.epsilon:g}; {best.claimed_delta:.3g} was claimed"
        findings.append(Finding("the curve δ(ε) is at most what is claimed", seen))
    return verdict(
        subject,
        "many-run",
        lower_bound=bound,
        confidence=confidence,
        findings=findings,
        details={"runs": runs, "seed": seed, "curve": best.to_dict()},
    )


def _best(subject: Subject, runs: int, confidence: float, seed: int) -> Separation:
    worlds = subject.extremes()
    by_side = [
        [_features(subject, worlds, side, seed + 2 * i + side) for i in range(runs)] for side in (0, 1)
    ]
    likelihoods = [np.array([ratio for ratio, _ in features]) for features in by_side]
    others = _padded([rest for features in by_side for _, rest in features])
    without, with_ = others[:runs], others[runs:]
    few = choosing(runs)
    direction = projection(without[:few], with_[:few])
    scores = [(likelihoods[0], likelihoods[1]), (without @ direction, with_ @ direction)]
    # The runs that choose thresholds also choose the score.
    chosen = max(scores, key=lambda pair: _promise(pair[0][:few], pair[1][:few]))
    return separate(*chosen, subject.claim, confidence=confidence)


def _promise(without: NDArray[np.float64], with_: NDArray[np.float64]) -> float:
    """How often the score is larger in the world that it should be larger in."""
    ranks = np.searchsorted(np.sort(without), with_, side="left")
    ties = np.searchsorted(np.sort(without), with_, side="right") - ranks
    return float((ranks + ties / 2).mean() / len(without))


def _features(
    subject: Subject, worlds: tuple[World, World], side: int, seed: int
) -> tuple[float, NDArray[np.float64]]:
    """The log-likelihood ratio of everything released as a noisy sum, and whatever else came out."""
    tape, outcome = record(subject, worlds[side], seed=seed, follow_noise=False)
    replays = [
        record(subject, world, seed=_SCORING, like=tape, everyone=True, follow_noise=False)[0]
        for world in worlds
    ]
    ratio = math.fsum(
        _log_ratio(*calls) for calls in zip(tape.calls, replays[0].calls, replays[1].calls, strict=False)
    )
    others = [vector(call.output) for call in tape.calls if call.value is None]
    return ratio, np.concatenate([outcome.model, *others])


def _log_ratio(call: RecordedCall, without: RecordedCall, with_: RecordedCall) -> float:
    """log P′(output)/P(output) for a Gaussian release of a sum that the record is in with probability q."""
    if call.door != "release" or call.value is None or without.value is None or with_.value is None:
        return 0.0
    q, variance, output = _rate(call.event), call.options["std"] ** 2, vector(call.output)

    def likelihood(center: NDArray[np.float64]) -> float:
        exponent = float(output @ center - center @ center / 2) / variance
        return exponent if q == 1 else float(np.logaddexp(math.log1p(-q), math.log(q) + exponent))

    return likelihood(with_.value) - likelihood(without.value)


def _rate(event: Event | None) -> float:
    match event:
        case events.PoissonSampled(sampling_probability=q):
            return float(q)
        case events.SampledWithoutReplacement():
            return float(event.sample_size / event.source_dataset_size)
    return 1.0


def _padded(rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    width = max(map(len, rows))
    return np.array([np.pad(row, (0, width - len(row))) for row in rows])
