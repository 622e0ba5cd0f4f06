"""Lower bounds on ε from trainings: the many-run audit and the one-run audit.

Many runs: train often on two neighboring datasets, guess which it was, count mistakes. The attacker knows
both datasets, sees every released value, and scores it by its likelihood in the two worlds (the most powerful
test there is, by the Neyman–Pearson lemma, when a method releases Gaussian sums). The sums that the
likelihood needs come from replays with randomness of their own: neither the batches that were drawn nor
anything else that stays private enters a score.

One run: many canaries, each included by a coin flip, one training, and a guess about each. Steinke, Nasr &
Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023); METHODS 16. If the method is
(ε, δ)-DP, guesses about independent coins are right hardly more often than e^ε/(1+e^ε). Canaries that are
guessed are the ones with the most extreme scores, half as present and half as absent, and how many is fixed
in advance. A canary's score is the inner product of what each step released with what the canary would have
contributed there, in units of the noise. Methods that are not recipes of steps are scored by their released
model.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sidelight.audit.replay import projection, record
from sidelight.audit.result import (
    AuditResult,
    Finding,
    Separation,
    choosing,
    failed,
    one_run_epsilon,
    repeats,
    separate,
)
from sidelight.audit.subjects import Subject, World, as_subject, verdict
from sidelight.audit.tape import RecordedCall, RecordedStep, Tape, listening, vector
from sidelight.errors import InputError
from sidelight.methods.task import Method
from sidelight.privacy import events
from sidelight.privacy.events import Event, Relation

# ---------------------------------------------------------------------------------------------------
# many runs on two neighboring datasets


_SCORING = 2**31  # the seed of replays that score; no run has it


def many_runs(
    method: str | Method | Subject,
    *,
    relation: Relation | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    runs: int = 400,
    confidence: float = 0.95,
    random_state: int = 0,
) -> AuditResult:
    """A lower bound on ε from `runs` trainings on each of two neighboring datasets.

    A quarter of the runs choose a threshold, the others count (Clopper–Pearson). Beside the bound at δ, the
    rates are compared with the whole curve δ(ε) of the event that was charged, at a confidence of 99.99 %. A
    bound above the claim is repeated with other randomness, and the smallest of three counts.
    """
    if runs < 20 or not 0 < confidence < 1:
        raise InputError("a many-run audit needs at least 20 runs and a confidence between 0 and 1")
    subject = as_subject(method, relation=relation, epsilon=epsilon, delta=delta)
    findings: list[Finding] = []
    best, bound = Separation(0.0, False, 0.0, 0.0, 0.0), 0.0
    try:
        best = _best(subject, runs, confidence, random_state)
        bound = best.lower_bound
        for number in repeats(random_state)[1:]:
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
        details={"runs": runs, "seed": random_state, "curve": best.to_dict()},
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
    """The log-likelihood ratio of everything released as a noisy sum, and of other outputs."""
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
    if call.kind != "release" or call.value is None or without.value is None or with_.value is None:
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


# ---------------------------------------------------------------------------------------------------
# one run with many canaries


Scores = NDArray[np.float64]
_LOOKS = 8  # steps at which canaries are asked for their contribution; in between it is taken as it was


def one_run(
    method: str | Method | Subject,
    *,
    relation: Relation | None = None,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    canaries: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    random_state: int = 0,
) -> AuditResult:
    """A lower bound on ε from a single training on `canaries` crafted records.

    A bound above the claim is repeated with other randomness, and the smallest of three counts: it is still a
    bound at this confidence, and an honest method is accused once in 8000 audits instead of once in 20.

    Args:
        guesses: how many canaries are guessed; None takes a tenth of them. It is never chosen from the data.
    """
    guesses = max(1, canaries // 10) if guesses is None else guesses
    if not 1 <= guesses <= canaries or not 0 < confidence < 1:
        raise InputError("a one-run audit needs 1 <= guesses <= canaries and a confidence between 0 and 1")
    subject = as_subject(method, relation=relation, epsilon=epsilon, delta=delta)
    findings: list[Finding] = []
    counts: list[int] = []
    bound = 0.0
    try:
        for number in repeats(random_state):
            coins = np.random.default_rng([number, 1]).random(canaries) < 0.5
            counts.append(count_correct(_scores(subject, coins, number), coins, guesses))
            bound = one_run_epsilon(
                canaries=canaries, guesses=guesses, correct=min(counts), delta=subject.claim.delta,
                significance=1 - confidence,
            )  # fmt: skip
            if bound <= subject.claim.epsilon:
                break
    except Exception as error:  # of a method that an audit knows nothing of; the records are synthetic
        findings.append(failed(error))
    return verdict(
        subject,
        "one-run",
        lower_bound=bound,
        confidence=confidence,
        findings=findings,
        details={"canaries": canaries, "guesses": guesses, "correct": counts, "seed": random_state},
    )


def count_correct(scores: Scores, coins: NDArray[np.bool_], guesses: int) -> int:
    """Guess that the highest scores were present and the lowest absent; how many guesses are right."""
    order = np.argsort(scores, kind="stable")
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int((~coins[low]).sum() + coins[high].sum())


def _scores(subject: Subject, coins: NDArray[np.bool_], seed: int) -> Scores:
    tape, outcome = record(subject, subject.canaries(coins), seed=seed)
    if not tape.questions:
        return subject.canary_scores(outcome.model, len(coins))
    scores = _contributions(subject, np.ones_like(coins), tape)
    if subject.claim.relation == "replace-one":
        scores -= _contributions(subject, np.zeros_like(coins), tape)
    return scores


def _contributions(subject: Subject, present: NDArray[np.bool_], tape: Tape) -> Scores:
    """Σ_t ⟨released_t, contribution of the canary at step t⟩/std_t², for every canary of this world.

    The world is replayed on the released values, so that each step asks what it asked. Which canaries were
    there, and which were in a batch, plays no part in it.
    """
    count, steps = len(present), len(tape.questions)
    releases = [call for call in tape.calls if call.kind == "release" and call.value is not None][:steps]
    scores, step = np.zeros(count), 0
    stride = max(1, -(-steps // _LOOKS))
    known: list[NDArray[np.float64]] = []

    def probe(question: RecordedStep) -> None:
        nonlocal step, known, scores
        if step % stride == 0:
            known = [_contribution(question, i) for i in range(count)]
        if step < len(releases):
            call = releases[step]
            pull = vector(call.output) / call.options["std"] ** 2
            scores = scores + np.array([contribution @ pull for contribution in known])
        step += 1

    with listening(like=tape, probe=probe):
        subject.run(subject.canaries(present), seed=2**31)
    return scores


def _contribution(question: RecordedStep, record: int) -> NDArray[np.float64]:
    """What one record contributes to the sum of a step."""
    return vector(question.ask(question.params, np.array([record]), **question.options))
