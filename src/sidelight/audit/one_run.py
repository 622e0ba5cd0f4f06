"""The one-run audit: many canaries, each included by a coin flip, one training, and a guess about each.

Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023); METHODS 16. If the
method is (ε, δ)-DP, guesses about independent coins are right hardly more often than e^ε/(1+e^ε). Canaries
that are guessed are the ones with the most extreme scores, half as present and half as absent, and how many
is fixed in advance.

A canary's score is the inner product of what each step released with what the canary would have contributed
there, in units of the noise. Methods that are no recipes of steps are scored by their released model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sidelight.audit.replay import record
from sidelight.audit.result import AuditResult, Finding, failed, one_run_epsilon, repeats
from sidelight.audit.subjects import Subject, as_subject, verdict
from sidelight.audit.tape import RecordedStep, Tape, listening, vector
from sidelight.errors import InputError
from sidelight.methods.task import Method
from sidelight.privacy.events import Relation

__all__ = ["one_run"]

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
    seed: int = 0,
) -> AuditResult:
    """A lower bound on ε from a single training on `canaries` crafted records.

    A bound above the claim is repeated with other randomness, and the smallest of three counts: it is still a
    bound at this confidence, and an honest method is accused once in 8000 audits instead of once in 20.

    Args:
        guesses: how many canaries are guessed; None takes a tenth of them. It is never chosen by looking.
    """
    guesses = max(1, canaries // 10) if guesses is None else guesses
    if not 1 <= guesses <= canaries or not 0 < confidence < 1:
        raise InputError("a one-run audit needs 1 <= guesses <= canaries and a confidence between 0 and 1")
    subject = as_subject(method, relation=relation, epsilon=epsilon, delta=delta)
    findings: list[Finding] = []
    counts: list[int] = []
    bound = 0.0
    try:
        for number in repeats(seed):
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
        details={"canaries": canaries, "guesses": guesses, "correct": counts, "seed": seed},
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
    releases = [call for call in tape.calls if call.door == "release" and call.value is not None][:steps]
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
