"""Page one of the report: what an officer signs.

Everything on it is computed from the card, declared by somebody, or marked as open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sidelight.arrays import Json
from sidelight.numbers import EVEN, count, down, right_in, up
from sidelight.report.card import Card, number
from sidelight.report.facts import FACTS, declared_text, undeclared
from sidelight.report.gain import gain_over_public
from sidelight.report.guarantee import Kind, alarms, composed, protected, uses_public
from sidelight.report.tradeoff import right_at_most

_WHO = ("purpose", "controller", "operator", "legal_basis", "data_subjects", "recipients")
ADDS_UP = (
    "Spent and left do not add up to the budget: losses compose to less than their sum, and left is the "
    "largest ε of one more run."
)


@dataclass(frozen=True)
class VouchedFact:
    """Something that no program can check, and whoever signs answers for."""

    text: str
    state: Literal["declared", "open", "denied"]


def page_one(card: Card, kind: Kind) -> Json:
    """Everything that the sheet shows beside the guarantee."""
    gain = gain_over_public(card.scores, card.statement["details"])
    missing = undeclared(card.facts)
    return {
        "who": [(FACTS[name][0].capitalize(), declared_text(card.facts, name)) for name in _WHO],
        "records": _records(card),
        "alarms": alarms(card),
        "budget": lifetime(card) if kind == "private" else [],
        "gain": None if gain is None else (gain.score.capitalize(), gain.size, f"{gain.where}."),
        "verdict": "" if gain is None else gain.verdict,
        "necessity": declared_text(card.facts, "necessity"),
        "vouched_facts": vouched_facts(card) if kind == "private" else [],
        "stated": len(card.statement["assumptions"]),
        "undeclared": missing,
        "opinion": declared_text(card.facts, "officer_opinion"),
        "reviewer": declared_text(card.facts, "reviewer"),
        "review_date": declared_text(card.facts, "review_date"),
        "digest": card.digest,
    }


def _records(card: Card) -> str:
    details = card.statement["details"]
    found = []
    for key, words in (("private_records", "private"), ("public_records", "public")):
        value = number(card.data.get(key, details.get(key)))
        if value is not None:
            unit = "persons" if key == "private_records" and card.unit != "record" else "records"
            found.append(f"{count(int(value))} {words} {unit}")
    return " and ".join(found)


def lifetime(card: Card) -> list[str]:
    """The lifetime budget, what is spent of it, and what all of it would allow."""
    receipt = card.statement.get("ledger")
    if not receipt:
        return [
            "None: this fit is in no ledger. Other fits on the same records reveal more about them, and "
            "nothing here adds that up."
        ]
    lines = [f"Run {receipt.get('run')} of dataset “{receipt.get('dataset')}”."]
    total = receipt.get("total")
    names = ("budget", "delta", "epsilon", "epsilon_adaptive", "remaining")
    known = {name: number(total.get(name)) for name in names} if isinstance(total, dict) else {}
    values = [value for value in known.values() if value is not None]
    if len(values) < len(names):
        return [*lines, "The ledger could not be read when this card was made: what is left is not known."]
    budget, delta, spent, used, left = values
    lines.append(
        f"Budget for all runs: ε = {up(budget)} at δ = {up(delta, 3)}. Spent {up(spent)}, used {up(used)} "
        f"(the stricter total: it also covers runs chosen after seeing earlier results), left {down(left)}."
    )
    if left:
        lines.append(ADDS_UP)
    return [*lines, _whole_budget(card, budget, delta)]


def _whole_budget(card: Card, budget: float, delta: float) -> str:
    who = protected(card)
    epsilon, failing = composed(budget, delta, who.records)
    if failing >= 1:
        return (
            f"All of it is a promise per record only: for a person with {count(who.records)} records group "
            "privacy leaves no bound. Train per person, or register a smaller budget."
        )
    whole = "" if who.records == 1 else f" (per person ε = {up(epsilon)} at δ = {up(failing, 3)})"
    right = right_in(right_at_most(epsilon, failing))
    return f"Once all of it is spent{whole}, an attacker who starts at {EVEN} {right}."


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
    plural = "record" if who.records == 1 else "records"
    return VouchedFact(f"No person has more than {count(who.records)} {plural}", "declared")


def _yes_or_no(card: Card, fact: str, text: str) -> VouchedFact:
    value = card.facts.get(fact)
    return VouchedFact(text, "declared" if value is True else "denied" if value is False else "open")
