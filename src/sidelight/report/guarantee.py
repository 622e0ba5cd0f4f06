"""The guarantee of a card in plain words: for whom it holds, what it means, what it leaves out.

What a person is promised follows from what one record is promised, by group privacy (`several`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Literal

from scipy.special import ndtr

from sidelight.methods.declare import DECLARATIONS
from sidelight.numbers import count, pretty, right_in, rounded, scientific, up
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.noise import SEED_ASSUMPTION
from sidelight.privacy.statement import is_weak
from sidelight.report.card import Card, number
from sidelight.report.tradeoff import attack_on, cost_of

Kind = Literal["private", "unused", "none", "false"]
_TOLERANCE = 1e-4  # relative; versions of SciPy differ in the last digits
_SEVERAL = (2, 5, 20)  # records of one person
_EXAMPLE = 5  # of these, on page one
NOT_COVERED = (
    "What the data says about people in general. A true finding about smokers holds for a smoker, whether or "
    "not that person's record was used.",
    "The public records. They are used as they are, without protection.",
    "Settings that were chosen by looking at the private records, and scores measured on them outside of "
    "this plan.",
    "Side channels: running time, memory, and the last bits of floating-point noise.",
)
NOT_PUBLIC = "declared not to be public, and used without protection: their owners are promised nothing"


@dataclass(frozen=True)
class Guarantee:
    """What the head of the report says.

    kind: "private"; "unused" if no private record was read; "none" if there is no protection; "false" if
        the events cost more than the card says.
    """

    kind: Kind
    headline: str
    sentences: tuple[str, ...]
    neighbors: str
    recomputed: float | None
    not_covered: tuple[str, ...]


@dataclass(frozen=True)
class Protected:
    """For whom (ε, δ) holds: a person, if it is known how many records one has at most; else one record."""

    whose: Literal["person", "record"]
    records: int  # units of the accounting that the promise is composed over
    epsilon: float
    delta: float


def protected(card: Card) -> Protected:
    """The promise to a person, as far as the card knows what a person is."""
    most = card.facts.get("records_per_person")
    if card.unit != "record":
        return Protected("person", 1, card.epsilon, card.delta)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        return Protected("record", 1, card.epsilon, card.delta)
    return Protected("person", most, *several(card, most))


def guarantee(card: Card) -> Guarantee:
    """The promise of a card, checked against the events that it lists."""
    cost = cost_of(card, card.plan)
    kind = _kind(card, cost)
    who = protected(card)
    covered = (NOT_COVERED[0], *_several_records(card, who), *NOT_COVERED[1:]) if kind == "private" else ()
    return Guarantee(kind, *_said(card, kind, cost, who), f"D′ is D with {changed(card)}", cost, covered)


def changed(card: Card) -> str:
    """In what neighboring datasets differ."""
    what = "one record" if card.unit == "record" else "all rows of one person"
    add = card.relation == "add-or-remove-one"
    return f"{what} added or removed" if add else f"{what} replaced by any other"


def several(card: Card, k: int) -> tuple[float, float]:
    """(ε, δ) for k records of one person."""
    return for_group(card.plan, card.epsilon, card.delta, k)


def for_group(plan: Event, epsilon: float, delta: float, k: int) -> tuple[float, float]:
    """(ε, δ) for k records together, of a plan that is (ε, δ) for one.

    Of Gaussian releases with μ together, the Gaussian with k·μ at the same δ (Dong, Roth & Su 2022, Theorem
    2.14); of others (kε, δ·(e^(kε) − 1)/(e^ε − 1)), which holds for any (ε, δ).
    """
    mu = accountants.gdp(plan)
    if k == 1:
        return epsilon, delta
    if mu is not None and k * mu < _LARGEST_MU and delta > 0:
        return conversions.gaussian_epsilon(delta, k * mu), delta
    return composed(epsilon, delta, k)


_LARGEST_MU = 1e3


def composed(epsilon: float, delta: float, k: int) -> tuple[float, float]:
    """Group privacy of any (ε, δ) for k records."""
    if k * epsilon > 700:
        return k * epsilon, 1.0
    growth = math.expm1(k * epsilon) / math.expm1(epsilon) if epsilon > 0 else float(k)
    return k * epsilon, min(1.0, delta * growth)


def right_guesses(card: Card, who: Protected) -> float | None:
    """How often the best attacker is right at even odds; None if no accountant gives a curve."""
    if who.records == 1:
        bound = attack_on(card)
        return None if bound is None else bound.right_guesses
    mu = accountants.gdp(card.plan)
    return (
        conversions.right_at_most(who.epsilon, who.delta) if mu is None else float(ndtr(who.records * mu / 2))
    )


def private_units(card: Card) -> int | None:
    """n: private records, or persons if the accounting counts these; None if nobody says."""
    n = number(card.data.get("private_records", card.statement["details"].get("private_records")))
    return None if n is None or not 1 <= n < 1e15 else int(n)


def what_delta_allows(n: int, delta: float, *, person: bool, records: int = 1) -> str:
    """What δ would permit at worst, in the same words wherever it is stated.

    records: how many of the n one person has at most; from 2 on, there are at most n people.
    """
    what, units = ("each person's records", "people") if person else ("each record", "records")
    most = "at most " if records > 1 else ""
    return (
        f"Worst case that δ by itself would permit: {what} exposed with probability {_one_in(delta)}, "
        f"{most or 'about '}{_decimals(n * delta)} of {most}{count(n)} {units} expected"
    )


def _one_in(probability: float) -> str:
    """A small probability for people, rounded up: "one in a million", "one in 3.33 million"."""
    one_in = float(1 / Decimal(repr(probability)))
    if one_in < 2:
        return up(probability, 2)
    if one_in >= 1e15:
        return f"one in {scientific(one_in)}"
    for size, name in _SIZES:
        if one_in >= size:
            many = f"{float(rounded(one_in / size, 3, ROUND_FLOOR)):g}"
            return f"one in {'a' if many == '1' else many}{name}"
    return f"one in {count(math.floor(float(rounded(one_in, 3, ROUND_FLOOR))))}"


def delta_allows(card: Card) -> str | None:
    """The same of a card; None if δ is 0, or n is not known."""
    who, n = protected(card), private_units(card)
    if n is None or not who.delta:
        return None
    return what_delta_allows(n, who.delta, person=who.whose == "person", records=who.records)


_READABLE = math.log(1e15)
_SIZES = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"))


def times_as_likely(epsilon: float) -> str:
    """e^ε for people: "2.72 times", "485 million times"."""
    factor = math.exp(epsilon)
    for size, name in _SIZES:
        if factor >= size:
            return f"{up(factor / size, 3)}{name} times"
    return f"{count(math.ceil(factor))} times" if factor >= 1000 else f"{up(factor, 3)} times"


def alarms(card: Card) -> list[str]:
    """What no reader may miss, in the page and in a terminal."""
    lines = []
    who, kind = protected(card), _kind(card, cost_of(card, card.plan))
    if kind in ("private", "unused") and (false := not_true(card)):
        said = "; ".join(f"that {line}" for line in false)
        lines.append(f"The guarantee below does not hold as stated: it was declared {said}.")
    if kind == "private" and is_weak(who.epsilon):
        right = right_guesses(card, who)
        share = "" if right is None else f": an attacker {right_in(right)}"
        lines.append(f"ε = {up(who.epsilon)} per {who.whose} protects little{share}.")
    n = private_units(card)
    if kind == "private" and n is not None and n * who.delta >= 1:
        lines.append(f"δ = {up(who.delta, 3)} is too large. {delta_allows(card)}.")
    if card.facts.get("public_is_public") is False and uses_public(card):
        lines.append(f"The public records are {NOT_PUBLIC}.")
    if any(row.get("passed") is not True for row in card.audits):
        lines.append("An audit failed. The claim must not be relied on.")
    if SEED_ASSUMPTION in card.statement["assumptions"]:
        lines.append(f"Made with a fixed seed: {SEED_ASSUMPTION}.")
    return lines


_NOT_TRUE = {
    "public_is_independent": "public records were taken, made or chosen by looking at the private ones",
    "size_is_public": "the number of records, the columns or their types are not public",
    "nothing_else_released": "a setting was chosen by looking at these records, or something else learned "
    "from them is released, without being charged",
}


def not_true(card: Card) -> list[str]:
    """Assumptions of the guarantee that somebody declared not to be true, as what is true instead."""
    return [
        words
        for fact, words in _NOT_TRUE.items()
        if card.facts.get(fact) is False and (fact != "public_is_independent" or uses_public(card))
    ]


def uses_public(card: Card) -> bool:
    """Whether there are public records, as far as the card knows."""
    return bool(card.data.get("public_records", card.statement["details"].get("public_records")) != 0)


def _several_records(card: Card, who: Protected) -> tuple[str, ...]:
    """What becomes of a promise for one record if a person has several."""
    if who.whose == "person":
        return ()
    found = [(k, several(card, k)) for k in _SEVERAL]
    listed = ", ".join(f"ε = {up(epsilon)} at δ = {up(delta, 3)} for {k}" for k, (epsilon, delta) in found)
    return (
        "A person with several records. The promise is for one record. A person with more is promised less: "
        f"{listed}. To protect all rows of a person, name the column that identifies people when training.",
    )


def _kind(card: Card, cost: float | None) -> Kind:
    if math.isinf(card.epsilon):
        return "none"
    if cost is None or not cost <= card.epsilon * (1 + _TOLERANCE):
        return "false"
    return "private" if events.elementary(card.plan) else "unused"


def _said(card: Card, kind: Kind, cost: float | None, who: Protected) -> tuple[str, tuple[str, ...]]:
    if kind == "none":
        return "No guarantee", (
            "This model was trained on the private records without protection. Anybody who holds it, or may "
            "ask it questions, may find out whose records were used and what they say.",
            "Keep it where the private records themselves are kept.",
        )
    if kind == "false":
        verdict = "cannot be accounted for" if cost is None else f"cost ε = {up(cost)}"
        return "The claim does not hold", (
            f"This card claims ε = {up(card.epsilon)}, but the events that it lists {verdict} at the same δ "
            "under " + card.relation + ". It was changed after it was written, or by a faulty program. "
            "Do not rely on it.",
        )
    if kind == "unused":
        return "No private record was used", (
            "Everything here comes from public records and from what was declared. It says nothing about the "
            "private records: ε = 0.",
        )
    headline = f"ε\u00a0=\u00a0{up(who.epsilon)} at δ\u00a0=\u00a0{up(who.delta, 3)} per {who.whose}"
    return headline, (*_for_whom(card, who), _likelihood(card, who), _attacker(card, who), *_exception(card))


def _for_whom(card: Card, who: Protected) -> tuple[str, ...]:
    """What the promise to a person rests on."""
    if card.unit != "record":
        return ()
    if who.whose == "person":
        most = count_records(who.records)
        return (f"Per person, if no one has more than {most} (declared, not checked).",)
    unknown = "Per record only. How many records one person has was not declared"
    epsilon, delta = several(card, _EXAMPLE)
    if delta >= 1:
        return (f"{unknown}: for {_EXAMPLE} group privacy leaves no bound.",)
    at = "" if delta == who.delta else f" at δ\u00a0=\u00a0{up(delta, 3)}"
    return (f"{unknown}: for {_EXAMPLE} it would be ε\u00a0=\u00a0{up(epsilon)}{at}.",)


def count_records(records: int) -> str:
    """ "1 record", "4 records"."""
    return f"{count(records)} record{'' if records == 1 else 's'}"


def _likelihood(card: Card, who: Protected) -> str:
    """The definition in words, with its numbers."""
    one = f"any one {'private record' if who.whose == 'record' else 'person'}"
    if card.unit not in ("record", "person"):
        one += f", which is all rows that share a value of {card.unit!r}"
    if who.epsilon > _READABLE:
        digits = math.floor(who.epsilon / math.log(10)) + 1
        return (
            f"Take {one}. How much likelier an outcome may become is bounded only by a number of "
            f"{count(digits)} digits, which is no protection in practice."
        )
    if who.whose == "record":
        it, without, other = "this record", "without it", "if another record takes its place"
    else:
        it, without, other = "this person's records", "without them", "if other records take their place"
    if card.relation != "add-or-remove-one":
        without = other
    plus = " (plus δ)" if who.delta else ""
    return (
        f"Take {one}. Any outcome is at most {times_as_likely(who.epsilon)} as likely{plus} with {it} as "
        f"{without}, and the reverse."
    )


def _attacker(card: Card, who: Protected) -> str:
    right = right_guesses(card, who)
    if right is None:
        return "What that leaves to an attacker is not known: no accountant gives a curve for these events."
    return (
        f"An attacker who has the model, knows everyone else's records and {beforehand(card.relation, who)}, "
        f"{right_in(right)} (50\u202f% without the model)."
    )


def beforehand(relation: Relation, who: Protected | None = None) -> str:
    """What an attacker starts with, of a record if nobody is named."""
    person = who is not None and who.whose == "person"
    if relation == "add-or-remove-one":
        what = "this person's records were" if person else "this record was"
        return f"thinks it equally likely beforehand that {what} or {what.split()[-1]} not used"
    which = "which of two people's records were" if person else "which of two records was"
    return f"must guess {which} used, both equally likely beforehand"


def _exception(card: Card) -> tuple[str, ...]:
    allowed = delta_allows(card)
    return () if allowed is None else (f"{allowed}.",)


def _decimals(value: float) -> str:
    """Two digits, rounded up, and no power of ten for a number that people can picture."""
    if not 1e-6 <= value < 1e-3:
        return up(value, 2)
    return f"{rounded(value, 2, ROUND_CEILING):.8f}".rstrip("0")


# ---------------------------------------------------------------------------------------------------
# events


def explain(event: Event, times: int, *, filtered: bool = False) -> str:
    """What one kind of event did, and how often; `filtered` says that it is the certificate of a filter."""
    often = "Once" if times == 1 else f"{count(times)} times"
    match event:
        case events.Gaussian(noise_multiplier=z) if filtered:
            return (
                "Steps were chosen while training, under a filter that was asked before each: together they "
                f"reveal no more than one release with Gaussian noise of {_times(z)}."
            )
        case events.Gaussian(noise_multiplier=z):
            what = "a value computed from all records" if times == 1 else "a sum over all records"
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
        case events.CorrelatedGaussian():
            share = float(event.sampling_probability)
            who = "" if share == 1 else f", each drawn with probability {pretty(share)}"
            return (
                f"sums of {count(event.steps)} steps were released, over the records whose turn it was{who}. "
                "Their correlated Gaussian noise is made of draws of "
                f"{_times(float(event.noise_multiplier))}. "
                f"A record had {count(event.turns)} turns, {count(event.separation)} steps apart."
                f"{_hidden(event)}{_limited(event)}"
            )
        case events.AllocatedGaussian(noise_multiplier=z, bins=bins):
            return (
                f"a record was in one of {count(bins)} values, drawn by chance and secret, and all of them "
                f"were released with Gaussian noise of {_times(z)}."
            )
        case events.BestOf():
            return (
                f"a random number of runs was made, {pretty(event.expected)} on average, and the best by a "
                "private score was released, with nothing of the others. A run: "
                f"{' or '.join(dict.fromkeys(events.describe(one) for one in event.events))}."
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
                "the exact minimizer of an objective with a random linear term was released: μ = "
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


def _hidden(event: events.CorrelatedGaussian) -> str:
    """That the price counts on places which nobody sees."""
    if not event.secret:
        return ""
    return (
        f" Which of {count(event.separation)} places in the cycle a record has was drawn by chance and is "
        "secret; the guarantee counts on it."
    )


def _limited(event: events.CorrelatedGaussian) -> str:
    """That batches have a largest size, and what that adds to δ."""
    full = float(event.overflow)
    if not full:
        return ""
    return (
        " No batch is larger than a fixed limit. The probability that others fill the batch of a turn is at "
        f"most {up(full, 3)}; it is counted in δ, once for each turn."
    )


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
    "by the exponential mechanism; those that lose are charged as well",
    ours=True,
)


def source_of(method: str) -> Source | None:
    """What is known of a method; None for a recipe of the user's own."""
    if method == "private_selection":
        return _SELECTION
    declared = DECLARATIONS.get(method)
    return None if declared is None else Source(declared.paper, declared.departs, declared.ours)
