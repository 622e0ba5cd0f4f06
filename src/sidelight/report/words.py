"""The guarantee in plain words: what is promised, what is not, and what each event did."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sidelight.methods.declare import DECLARATIONS
from sidelight.numbers import count, percent_up, pretty, up
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Event
from sidelight.report.card import Card
from sidelight.report.tradeoff import attack_on, cost_of

__all__ = ["Guarantee", "Source", "changed", "explain", "guarantee", "several", "source_of"]

_TOLERANCE = 1e-4  # relative; versions of SciPy differ in the last digits
_SAME = {
    "add-or-remove-one": "with the {it} in the data or without it",
    "replace-one": "with the {it} as it is or with any other in its place",
}
_SEVERAL = (2, 5, 20)  # records of one person
NOT_COVERED = (
    "What the data says about people in general. A true finding about smokers holds for a smoker, whether or "
    "not that person's record was used.",
    "The public records. They are used as they are, without protection.",
    "Settings that were chosen by looking at the private records, and scores measured on them.",
    "Side channels: running time, memory, and the last bits of floating-point noise.",
)


@dataclass(frozen=True)
class Guarantee:
    """What the head of the report says.

    kind: "private"; "unused" if no private record was read; "none" if there is no protection; "false" if
        the events cost more than the card says.
    """

    kind: Literal["private", "unused", "none", "false"]
    headline: str
    sentences: tuple[str, ...]
    neighbours: str
    recomputed: float | None
    not_covered: tuple[str, ...]


def guarantee(card: Card) -> Guarantee:
    """The promise of a card, checked against the events that it lists."""
    cost = cost_of(card, card.plan)
    kind = _kind(card, cost)
    covered = (NOT_COVERED[0], *_several_records(card), *NOT_COVERED[1:]) if kind == "private" else ()
    return Guarantee(kind, *_said(card, kind, cost), f"D′ is D with {changed(card)}", cost, covered)


def changed(card: Card) -> str:
    """In what neighbouring datasets differ."""
    what = "one record" if card.unit == "record" else "all rows of one person"
    return (
        f"{what} added or removed"
        if card.relation == "add-or-remove-one"
        else f"{what} replaced by any other"
    )


def _several_records(card: Card) -> tuple[str, ...]:
    """What becomes of a promise for one record where a person has several."""
    if card.unit != "record":
        return ()
    found = [(k, several(card, k)) for k in _SEVERAL]
    listed = ", ".join(f"ε = {up(epsilon)} at δ = {up(delta, 3)} for {k}" for k, (epsilon, delta) in found)
    return (
        "A person with several records. The promise is for one record. Whoever has more is promised less: "
        f"{listed}. To promise it for all rows of a person, train with unit=, the column that names persons.",
    )


def several(card: Card, k: int) -> tuple[float, float]:
    """(ε, δ) for k records of one person.

    Of Gaussian releases with μ together, the Gaussian with k·μ at the same δ (Dong, Roth & Su 2022, Theorem
    2.14); of others (kε, δ·(e^(kε) − 1)/(e^ε − 1)), which holds for any (ε, δ).
    """
    mu = accountants.gdp(card.plan)
    if mu is not None:
        return conversions.gaussian_epsilon(card.delta, k * mu), card.delta
    epsilon = card.epsilon
    if k * epsilon > 700:
        return k * epsilon, 1.0
    growth = math.expm1(k * epsilon) / math.expm1(epsilon) if epsilon > 0 else float(k)
    return k * epsilon, min(1.0, card.delta * growth)


def _kind(card: Card, cost: float | None) -> Literal["private", "unused", "none", "false"]:
    if math.isinf(card.epsilon):
        return "none"
    if cost is None or not cost <= card.epsilon * (1 + _TOLERANCE):
        return "false"
    return "private" if events.elementary(card.plan) else "unused"


def _said(card: Card, kind: str, cost: float | None) -> tuple[str, tuple[str, ...]]:
    if kind == "none":
        return "No guarantee", (
            "This model was trained on the private records without protection. Whoever holds it, or may ask "
            "it questions, may find out whose records were used and what they say.",
            "Keep it where the private records themselves are kept.",
        )
    if kind == "false":
        verdict = "cannot be accounted for" if cost is None else f"cost ε = {up(cost)}"
        return "The claim does not hold", (
            f"This card claims ε = {up(card.epsilon)}, but the events that it lists {verdict} at the same δ "
            f"under {card.relation}. It was changed after it was written, or by a faulty program. Do not "
            f"rely on it.",
        )
    if kind == "unused":
        return "No private record was used", (
            "Everything here comes from public records and from what was declared. It says nothing about the "
            "private records: ε = 0.",
        )
    factor = up(math.exp(card.epsilon), 3) if card.epsilon < 500 else "e^ε"
    same = _SAME[card.relation].format(it="record" if card.unit == "record" else "person")
    return f"ε\u00a0=\u00a0{up(card.epsilon)} at δ\u00a0=\u00a0{up(card.delta, 3)}", (
        f"Take any one {_whole(card)}. {same.capitalize()}, everything that this fit "
        f"released (the model, and whatever is computed from it) comes out almost as likely: nothing is more "
        f"than {factor} times as likely, plus a probability of {up(card.delta, 3)}.",
        _meaning(card),
    )


def _whole(card: Card) -> str:
    if card.unit == "record":
        return "private record"
    named = "" if card.unit == "person" else f" that share a value of {card.unit!r}"
    return f"person, which here is all private rows{named}"


def _meaning(card: Card) -> str:
    """In numbers, without a judgement: what is little is for the reader to say."""
    bound = attack_on(card)
    if bound is None:
        return "What that leaves to an attacker is not known: no accountant gives a curve for these events."
    return (
        f"Somebody who knows everything else, sees the model and has to say which of the two it was is right "
        f"in at most {percent_up(bound.right_guesses)} of all cases, where a coin is right in 50 %."
    )


# ---------------------------------------------------------------------------------------------------
# events


def explain(event: Event, times: int, *, filtered: bool = False) -> str:
    """What one kind of event did, and how often; `filtered` says that it is the certificate of a filter."""
    often = "Once" if times == 1 else f"{count(times)} times"
    match event:
        case events.Gaussian(noise_multiplier=z) if filtered:
            return (
                "Steps were chosen while training, under a filter that was asked before each: together they "
                f"tell no more than one release with Gaussian noise of {_times(z)}."
            )
        case events.Gaussian(noise_multiplier=z):
            what = "the result, computed from all records," if times == 1 else "a sum over all records"
            return f"{often}, {what} was released with Gaussian noise of {_times(z)}."
        case events.PoissonSampled(q, events.Gaussian(z)):
            return (
                f"{often}, every record was drawn with probability {pretty(q)}, and the sum over those drawn "
                f"was released with Gaussian noise of {_times(z)}."
            )
        case events.SampledWithoutReplacement(event=events.Gaussian(noise_multiplier=z)):
            m, s = count(event.source_dataset_size), count(event.sample_size)
            return (
                f"{often}, {s} of {m} records were drawn without replacement, and their sum was released "
                f"with Gaussian noise of {_times(z)}."
            )
        case events.ZeroConcentrated(rho=rho):
            return f"{often}, a selection or release that is {pretty(float(rho))}-zCDP was made."
        case _:
            text = _single(event)
            return f"{text[0].upper()}{text[1:]}" if times == 1 else f"{often}, {text}"


def _single(event: Event) -> str:
    match event:
        case events.TruncatedConcentrated(rho=rho, omega=omega):
            return (
                "steps were chosen while training, under a filter that was asked before each: together they "
                f"are ({pretty(float(rho))}, {pretty(float(omega))})-truncated concentrated."
            )
        case events.RenyiBound(order=a, rdp=r):
            return (
                "steps were chosen while training, under a filter that was asked before each: together their "
                f"Rényi divergence of order {pretty(float(a))} is at most {pretty(float(r))}."
            )
        case events.MixtureOfSensitivities():
            low, high = min(event.noise_multipliers), max(event.noise_multipliers)
            return (
                f"the model was released with Gaussian noise of {pretty(low)} to {pretty(high)} times its "
                "sensitivity, which depends on the batch that a record falls into by chance: "
                f"{count(len(event.probabilities))} batches."
            )
        case events.ObjectivePerturbation(mu=mu, log_determinant=c0):
            return (
                "the exact minimiser of an objective with a random linear term was released: μ = "
                f"{pretty(mu)}, and log-determinant at most {pretty(c0)}."
            )
        case events.GaussianSketch(rows=k, growth=w):
            return (
                f"a sketch of the records was released: {count(k)} random combinations of their rows, each "
                f"with noise so strong that one record adds at most {pretty(w)} times its variance."
            )
        case events.ApproximateDp(epsilon=e, delta=d):
            exception = f", {up(d, 3)}" if d else ""
            return f"a ({up(e)}{exception})-differentially private result was released."
        case events.NonPrivate():
            return "the private records were used without protection."
    return f"{events.describe(event)} was released."


def _times(z: float) -> str:
    return f"{pretty(float(z))} times its sensitivity"


# ---------------------------------------------------------------------------------------------------
# where a method comes from, and where we depart from its paper, as its declaration says


@dataclass(frozen=True)
class Source:
    """A paper, and what is different here."""

    paper: str
    departs: tuple[str, ...] = ()
    ours: bool = False


# No method by name: what `auto` makes of several.
_SELECTION = Source(
    "Several candidates of this project, trained within one budget, and one of them selected privately "
    "by the exponential mechanism; those that lose are paid for as well",
    ours=True,
)


def source_of(method: str) -> Source | None:
    """What is known of a method; None for a recipe of the user's own."""
    if method == "private_selection":
        return _SELECTION
    declared = DECLARATIONS.get(method)
    return None if declared is None else Source(declared.paper, declared.departs, declared.ours)
