"""Page one of the report: what an officer signs.

Everything on it is computed from the card, declared by somebody, or marked as open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sidelight.arrays import Json
from sidelight.numbers import count, down, right_in, up
from sidelight.privacy.conversions import right_at_most
from sidelight.privacy.statement import is_weak
from sidelight.report.card import Card, number
from sidelight.report.facts import FACTS, declared_text, undeclared
from sidelight.report.gain import Gain, gain_over_public
from sidelight.report.guarantee import Kind, alarms, composed, count_records, protected, uses_public

_WHO = ("purpose", "controller", "operator", "legal_basis", "data_subjects", "recipients")
ADDS_UP = "Spent and left do not add up to the budget: losses compose to less than their sum."


@dataclass(frozen=True)
class VouchedFact:
    """Something that no program can check, and whoever signs accepts."""

    text: str
    state: Literal["declared", "open", "not true"]


def page_one(card: Card, kind: Kind) -> Json:
    """Everything that the sheet shows beside the guarantee."""
    gain = gain_over_public(card.scores, card.statement["details"])
    missing = undeclared(card.facts)
    vouched = vouched_facts(card) if kind == "private" else []
    return {
        "who": [(FACTS[name][0].capitalize(), declared_text(card.facts, name)) for name in _WHO],
        "records": _records(card),
        "alarms": alarms(card),
        "budget": lifetime(card) if kind == "private" else [],
        "gain": _gain(card, gain),
        "verdict": "" if gain is None else gain.verdict,
        "necessity": declared_text(card.facts, "necessity"),
        "vouched_facts": vouched,
        "open": sum(one.state == "open" for one in vouched),
        "special": special_read(card),
        "stated": len(card.statement["assumptions"]),
        "undeclared": missing,
        "opinion": declared_text(card.facts, "officer_opinion"),
        "review_date": declared_text(card.facts, "review_date"),
        "digest": card.digest,
    }


def _gain(card: Card, gain: Gain | None) -> tuple[str, str, str] | None:
    if gain is None:
        return None
    return gain.levels(public_records(card)), f"{gain.score.capitalize()} {gain.size}", f"{gain.where}."


def public_records(card: Card) -> int | None:
    """How many there are, as far as the card knows."""
    found = number(card.data.get("public_records", card.statement["details"].get("public_records")))
    return None if found is None or not 0 <= found < 1e15 else int(found)


def special_read(card: Card) -> str:
    """Which columns with special categories of data are read, and on what condition."""
    named, columns = card.facts.get("special_categories"), card.data.get("columns")
    if not isinstance(named, list):
        return ""
    if isinstance(columns, list):
        read, found = "read", [str(name) for name in named if name in columns]
    else:
        read, found = "declared", [str(name) for name in named]
    condition = declared_text(card.facts, "special_categories_condition") or "not declared"
    return f"Special categories {read}: {', '.join(found) or 'none'}; Art. 9(2) condition: {condition}."


def _records(card: Card) -> str:
    details = card.statement["details"]
    found = []
    for key, words in (("private_records", "private"), ("public_records", "public")):
        value = number(card.data.get(key, details.get(key)))
        if value is not None:
            unit = "persons" if key == "private_records" and card.unit != "record" else "records"
            found.append(f"{count(int(value))} {words} {unit}")
    return " and ".join(found)


def lifetime(card: Card) -> list[tuple[str, bool]]:
    """The lifetime budget, what is spent of it, what all of it would allow; True where that is too much."""
    receipt = card.statement.get("ledger")
    if not receipt:
        return [("This run is not recorded in a ledger, so the total over runs is unknown.", False)]
    run = f"Run {receipt.get('run')} of dataset “{receipt.get('dataset')}”."
    total = receipt.get("total")
    names = ("budget", "delta", "epsilon", "epsilon_adaptive", "remaining")
    known = {name: number(total.get(name)) for name in names} if isinstance(total, dict) else {}
    values = [value for value in known.values() if value is not None]
    if len(values) < len(names):
        unread = "The ledger could not be read when this card was made: what is left is not known."
        return [(f"{run} {unread}", False)]
    budget, delta, spent, used, left = values
    who = protected(card)
    whose = who.whose if who.records == 1 else "record"
    line = (
        f"{run} Per {whose}: budget for all runs ε = {up(budget)} at δ = {up(delta, 3)}; spent {up(spent)}, "
        f"used {up(used)} (the stricter total: it also covers runs chosen after seeing earlier results), "
        f"left {down(left)}, the most that one further run may cost."
    )
    whole = (f"{when_spent(budget, delta)}", is_weak(budget))
    return [(line, False), whole, *_person_budget(card, budget, delta)]


def when_spent(epsilon: float, delta: float, attacker: str = "the best attacker") -> str:
    """What all of a budget would allow, by whatever mechanisms it is spent."""
    return f"Once all of it is spent, {attacker} {right_in(right_at_most(epsilon, delta))}."


def _person_budget(card: Card, budget: float, delta: float) -> list[tuple[str, bool]]:
    """The same for a person with several records, if it was declared how many."""
    who = protected(card)
    if who.records == 1:
        return []
    run = (
        f"Per person ({count_records(who.records)}): this run ε = {up(who.epsilon)} at δ = {up(who.delta, 3)}"
    )
    epsilon, failing = composed(budget, delta, who.records)
    if failing >= 1:
        return [(f"{run}; for the whole budget group privacy leaves no bound.", True)]
    whole = f"the whole budget ε = {up(epsilon)} at δ = {up(failing, 3)}"
    right = right_in(right_at_most(epsilon, failing))
    return [(f"{run}; {whole}, with which the best attacker {right}.", is_weak(epsilon))]


def vouched_facts(card: Card) -> list[VouchedFact]:
    """Each assumption that a person has to answer for, and whether somebody declared it."""
    facts = card.facts
    lines = []
    if uses_public(card):
        source = declared_text(facts, "public_source")
        about = f" ({source})" if source else ""
        lines += [
            _yes_or_no(
                card, "public_is_public", f"The public records are public, or their owners consented{about}"
            ),
            _yes_or_no(
                card, "public_is_independent",
                "No public record was taken, made or chosen by looking at the private ones",
            ),
        ]  # fmt: skip
    lines.append(_rows_per_person(card))
    n = _records(card).partition(" and ")[0]
    counted = f" ({n})" if n else ""
    lines += [
        _yes_or_no(
            card, "size_is_public",
            f"The number of records{counted}, the columns and their types are public",
        ),
        _yes_or_no(
            card, "nothing_else_released",
            "No setting was chosen by looking at these records, and nothing else learned from them is "
            "released without being charged",
        ),
    ]  # fmt: skip
    side = declared_text(facts, "side_channels")
    text = "Side channels (running time, memory, access to the machine) are controlled"
    return [*lines, VouchedFact(f"{text}: {side}" if side else text, "declared" if side else "open")]


def _rows_per_person(card: Card) -> VouchedFact:
    if card.unit != "record":
        return VouchedFact(f"All rows of a person share one value of {card.unit!r}", "declared")
    who = protected(card)
    if who.whose == "record":
        return VouchedFact("How many records one person has at most", "open")
    return VouchedFact(f"No person has more than {count_records(who.records)}", "declared")


def _yes_or_no(card: Card, fact: str, text: str) -> VouchedFact:
    value = card.facts.get(fact)
    return VouchedFact(text, "declared" if value is True else "not true" if value is False else "open")
