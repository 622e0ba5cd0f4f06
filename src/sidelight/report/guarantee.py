"""The guarantee of a card: in plain words, as what an attacker gains at most, and in one line.

In words: what is promised, what is not, and what each event did.

An attacker sees everything that was released, knows every other record, and must tell a dataset D from its
neighbour D′. If he accuses D′ falsely with probability α, he finds D with probability at most

    power(α) = min over ε ≥ 0 of  e^ε·α + δ_PQ(ε)   and   1 − e^{−ε}(1 − α − δ_QP(ε)),

which is H_{e^ε} of the pair read as a bound on tests (Proposition 2.5 of Dong, Roth & Su, JRSS-B 2022), the
second form being ε < 0. Both orders of the neighbours are bounded, and the worse one counts. Every ε gives a
bound, so a grid costs tightness only: the answer is never optimistic.

A Rényi certificate (of a filter) says more than its δ(ε): D_a of the *test's outcome*, which is a coin, obeys
it too. That bound is intersected with the other.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from sidelight.arrays import Floats
from sidelight.errors import SidelightError
from sidelight.methods.declare import DECLARATIONS
from sidelight.numbers import count, percent_up, pretty, rounded, up
from sidelight.privacy import accountants, conversions, events
from sidelight.privacy.accountants import Accountant
from sidelight.privacy.conversions import gaussian_delta
from sidelight.privacy.events import Event, Relation
from sidelight.privacy.statement import PrivacyStatement
from sidelight.report.card import Card

__all__ = [
    "Guarantee",
    "Source",
    "TradeOff",
    "attack_on",
    "budget_box",
    "budget_line",
    "budget_words",
    "changed",
    "cost_of",
    "explain",
    "guarantee",
    "privacy_curve",
    "several",
    "source_of",
    "trade_off",
]


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
        f"An attacker who knows everything else, sees the model and guesses which of the two it was is right "
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


# ---------------------------------------------------------------------------------------------------
# what an attacker gains at most: the trade-off curve of the charged event


_CERTIFICATES = (events.ZeroConcentrated, events.TruncatedConcentrated, events.RenyiBound)
_NODES = 1500  # of ε
_HALVINGS = 50


@dataclass(frozen=True)
class TradeOff:
    """The largest true positive rate at each false positive rate, and what that says in one number.

    power: false positive rates in [0, 1] → bounds on the true positive rate.
    advantage: the largest of power(α) − α.
    """

    power: Callable[[ArrayLike], Floats]
    advantage: float

    @property
    def right_guesses(self) -> float:
        """How often the best attacker is right who is asked about D or D′, each half of the time."""
        return (1 + self.advantage) / 2


def trade_off(event: Event, *, relation: Relation) -> TradeOff:
    """The trade-off of everything that the event releases."""
    events.check_relation(relation)
    parts = events.elementary(event)
    if not parts:
        return TradeOff(lambda alpha: np.asarray(alpha, dtype=float), 0.0)
    if (mu := accountants.gdp(event)) is not None:
        return TradeOff(lambda alpha: _gaussian(alpha, mu), float(gaussian_delta(0.0, mu)))
    if accountants._curves(event, relation) is None:
        return TradeOff(lambda alpha: np.ones_like(np.asarray(alpha, dtype=float)), 1.0)
    bounds = []
    if sum(parts.values()) <= accountants._MOST_STEPS:
        bounds.append(_from_curve(event, relation))
    if not bounds or any(isinstance(part, _CERTIFICATES) for part in parts):
        bounds.append(_from_renyi(event, relation))
    return _least(bounds)


def _gaussian(alpha: ArrayLike, mu: float) -> Floats:
    """Φ(Φ⁻¹(α) + μ): the most powerful test of two Gaussians at distance μ."""
    return np.asarray(ndtr(ndtri(np.asarray(alpha, dtype=float)) + mu))


def _least(bounds: list[TradeOff]) -> TradeOff:
    def power(alpha: ArrayLike) -> Floats:
        return np.asarray(np.min([bound.power(alpha) for bound in bounds], axis=0))

    return TradeOff(power, min(bound.advantage for bound in bounds))


# ---------------------------------------------------------------------------------------------------
# from δ(ε)


def _from_curve(event: Event, relation: Relation) -> TradeOff:
    nodes, forward, backward = _divergences(event, relation)

    def power(alpha: ArrayLike) -> Floats:
        a = np.atleast_1d(np.asarray(alpha, dtype=float))
        worse = np.maximum(_tests(a, nodes, forward, backward), _tests(a, nodes, backward, forward))
        return worse.reshape(np.shape(alpha))

    return TradeOff(power, float(min(1.0, max(forward[0], backward[0]))))


def _tests(alpha: Floats, nodes: Floats, ahead: Floats, back: Floats) -> Floats:
    """The bound for one order of the neighbours."""
    few = np.exp(nodes)[:, None] * alpha + ahead[:, None]
    many = 1 - np.exp(-nodes)[:, None] * (1 - alpha - back[:, None])
    return np.asarray(np.clip(np.minimum(few.min(axis=0), many.min(axis=0)), alpha, 1.0))


def _divergences(event: Event, relation: Relation) -> tuple[Floats, Floats, Floats]:
    """A grid of ε ≥ 0 from 0 on, and δ there for both orders of the neighbours."""
    kinks = [part.epsilon for part in events.elementary(event) if isinstance(part, events.ApproximateDp)]
    nodes = _grid(lambda e: np.maximum(*accountants.divergences(event, e, relation)), kinks)
    return nodes, *accountants.divergences(event, nodes, relation)


def _grid(curve: Callable[[Floats], Floats], kinks: Sequence[float] = ()) -> Floats:
    """From 0 to where the curve is as good as flat."""
    at: Floats = np.geomspace(1e-3, 600.0, 200)
    deltas = curve(at)
    flat = np.flatnonzero(deltas <= deltas[-1] + 1e-10)
    nodes = np.linspace(0.0, 1.0, _NODES) ** 1.5 * float(at[flat[0]])
    return np.asarray(np.union1d(nodes, [kink for kink in kinks if kink <= at[-1]]))


# ---------------------------------------------------------------------------------------------------
# from Rényi divergences


def _from_renyi(event: Event, relation: Relation) -> TradeOff:
    orders = np.asarray(accountants.ORDERS, dtype=float)
    special = [part.order for part in events.elementary(event) if isinstance(part, events.RenyiBound)]
    orders = np.unique(np.append(orders, special))
    limits = accountants.rdp(event, orders=orders.tolist(), relation=relation)
    known = np.isfinite(limits)
    orders, limits = orders[known], limits[known]

    def power(alpha: ArrayLike) -> Floats:
        a = np.atleast_1d(np.asarray(alpha, dtype=float))
        return _coin(a, orders, limits).reshape(np.shape(alpha))

    # Between two points of a grid, power − α is below the power at the right end minus the left end.
    grid = np.linspace(0.0, 1.0, 401)
    return TradeOff(power, float(min(1.0, (power(grid[1:]) - grid[:-1]).max())))


def _coin(alpha: Floats, orders: Floats, limits: Floats) -> Floats:
    """The largest p with D_a(p‖α) ≤ limit and D_a(α‖p) ≤ limit for the coins of all orders."""
    if not len(orders):
        return np.ones_like(alpha)
    inside = (alpha > 0) & (alpha < 1)
    q = np.where(inside, alpha, 0.5)
    low, high = q.copy(), np.ones_like(q)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = _allowed(middle, q, orders, limits)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(inside, high, alpha)  # α = 0 stays 0: a finite D_a leaves nothing to see there


def _allowed(p: Floats, q: Floats, orders: Floats, limits: Floats) -> NDArray[np.bool_]:
    a = orders[:, None]
    both = [_coins(p, q, a), _coins(q, p, a)]
    return np.asarray((np.maximum(*both) <= limits[:, None]).all(axis=0))


def _coins(p: Floats, q: Floats, a: Floats) -> Floats:
    """D_a of two coins."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = a * np.log(p) + (1 - a) * np.log(q)
        tails = a * np.log1p(-p) + (1 - a) * np.log1p(-q)
        total = np.logaddexp(heads, tails) / (a - 1)
    return np.where(np.isnan(total), math.inf, total)


# ---------------------------------------------------------------------------------------------------
# accounting of events that come from a file: what they cost, or None where no accountant can tell
#
# A card may have been edited by hand, so an event in it need not be one that anybody could run. Its numbers
# overflow, or break what an accountant takes for granted; that is no reason for a traceback.

_BROKEN = (SidelightError, ArithmeticError, ValueError, IndexError, AssertionError, MemoryError)


def cost_of(card: Card, event: Event, accountant: Accountant = "pld") -> float | None:
    """ε of an event at the card's δ and under its relation."""
    if not events.elementary(event):
        return 0.0
    try:
        with np.errstate(all="ignore"):
            return accountants.epsilon(event, delta=card.delta, relation=card.relation, accountant=accountant)
    except _BROKEN:
        return None


def attack_on(card: Card) -> TradeOff | None:
    """What an attacker gains at most from everything that was charged."""
    try:
        with np.errstate(all="ignore"):
            bound = trade_off(card.plan, relation=card.relation)
            return bound if np.isfinite(bound.power([0.0, 0.5, 1.0])).all() else None
    except _BROKEN:
        return None


def privacy_curve(card: Card) -> tuple[Floats, Floats] | None:
    """The privacy profile: a grid of ε ≥ 0, and the δ that is proved at each; None without a curve."""
    parts = events.elementary(card.plan)
    if not parts or sum(parts.values()) > accountants._MOST_STEPS:
        return None
    try:
        with np.errstate(all="ignore"):
            if (mu := accountants.gdp(card.plan)) is not None:
                nodes = _grid(lambda epsilons: gaussian_delta(epsilons, mu))
                return nodes, gaussian_delta(nodes, mu)
            nodes, forward, backward = _divergences(card.plan, card.relation)
            return nodes, np.maximum(forward, backward)
    except _BROKEN:
        return None


# ---------------------------------------------------------------------------------------------------
# a budget and what was spent of it: one line for a terminal, a small table for a notebook


_DEFAULT = "the default"
_CELL = 'style="text-align: left; padding: 0 1em 0 0;"'


def budget_words(
    statement: PrivacyStatement | None,
    *,
    epsilon: object,
    delta: object,
    relation: object,
    method: object,
) -> dict[str, str]:
    """ε and δ of the budget, relation, method and what was spent; of a fit, as its statement has them."""
    if statement is None:
        return {
            "ε": _number(epsilon),
            "δ": "min(1e-5, n^-1.1)" if delta is None else _number(delta),
            "relation": _DEFAULT if relation is None else str(relation),
            "method": str(method),
            "spent": "nothing yet",
        }
    chosen = statement.details.get("chosen")
    return {
        "ε": _number(statement.details.get("epsilon_requested", epsilon)),
        "δ": _number(statement.delta),
        "relation": statement.relation,
        "method": statement.method
        + (f", which chose {chosen}" if chosen not in (None, statement.method) else ""),
        "spent": _spent(statement),
    }


def budget_line(words: Mapping[str, str]) -> str:
    """[ε = 1, δ = 1e-05, replace-one, auto: spent ε = 1]"""
    last = words["spent"]
    spent = "nothing spent yet" if last == "nothing yet" else f"spent {last}"
    relation = f"{words['relation']} relation" if words["relation"] == _DEFAULT else words["relation"]
    return f"[ε = {words['ε']}, δ = {words['δ']}, {relation}, {words['method']}: {spent}]"


def budget_box(title: str, words: Mapping[str, str]) -> str:
    """The same as HTML, safe wherever a page shows it."""
    rows = "".join(
        f"<tr><th {_CELL}>{html.escape(name)}</th><td {_CELL}>{html.escape(text)}</td></tr>"
        for name, text in words.items()
    )
    return f"<table><caption {_CELL}>{html.escape(title)}</caption><tbody>{rows}</tbody></table>"


def _spent(statement: PrivacyStatement) -> str:
    if not math.isfinite(statement.epsilon):
        return "no guarantee: the private records were used without protection"
    if statement.epsilon == 0:
        return "nothing: no private record was used"
    receipt = statement.ledger
    paid = "" if receipt is None else f", run {receipt['run']} of dataset {receipt['dataset']}"
    return f"ε = {_number(statement.epsilon)}{paid}"


def _number(value: object) -> str:
    """A number as text, rounded upwards."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{rounded(value, 4, ROUND_CEILING):.4g}"
