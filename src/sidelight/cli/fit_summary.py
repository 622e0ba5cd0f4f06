"""What `sidelight fit` prints: what was learned, what it cost, how good it is, and what to type next.

With --dry-run: what would be read and charged. No line is longer than a terminal is wide.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from sidelight.cli import terminal
from sidelight.errors import listed
from sidelight.numbers import plain_down, plain_up

if TYPE_CHECKING:
    from sidelight.arrays import Json
    from sidelight.data.schema import Schema
    from sidelight.privacy.contract import Contract
    from sidelight.privacy.statement import PrivacyStatement
    from sidelight.report import Card
    from sidelight.tables import TableModel

_WIDTH, _HEAD = 80, 9  # of a terminal, and of the word before each group of lines


def folded(head: str, lines: list[str]) -> list[str]:
    """A word, and lines beside it, the long ones folded."""
    out: list[str] = []
    for line in lines:
        wide = len(line) > _WIDTH - _HEAD
        out += (
            textwrap.wrap(line, _WIDTH - _HEAD, subsequent_indent="  ", break_on_hyphens=False)
            if wide
            else [line]
        )
    return [f"{head if i == 0 else '':<{_HEAD}}{line}" for i, line in enumerate(out)]


def fit_summary(model: TableModel, out: Path) -> str:
    """Of a fit that was saved in the folder `out`."""
    from sidelight.data.schema import column_lines
    from sidelight.privacy.statement import plain
    from sidelight.report import Card
    from sidelight.report.guarantee import alarms
    from sidelight.report.score_tables import score_lines

    statement, data, card = model.privacy_, plain(model.data), Card.read(out / "privacy.json")
    details = plain(statement.details)
    counted = "" if statement.unit == "record" else f"persons (by {statement.unit}) "
    sizes = f"{data['private_records']:,} private {counted}and {data['public_records']:,} public records"
    reasons = [*details.get("reasons", ()), *details.get("notes", ())]
    groups = {
        "returned": [statement.returned or f"the model of {_method(statement)}"],
        "fitted": [f"{data['target']} from {len(data['columns'])} columns: {sizes}"],
        "spent": [_guarantee(statement), *_in_people(card)],
        "WARNING": alarms(card),
        "helped": _gain_lines(card),
        "method": [_method(statement), *dict.fromkeys(reasons)],
        "health": [statement.health] if statement.health else [],
        "quality": score_lines(plain(model.scores)),
        "columns": [line.split(" ", 1)[1] for line in column_lines(model.schema)],
        "ignored": ignored_columns(model.schema),
        "declare": _undeclared(card),
        "wrote": [f"{out}: model.json, weights.safetensors, privacy.json, report.html"],
        "next": [
            *terminal.typed(f"sidelight predict {out} new.csv --out predictions.csv", "").splitlines(),
            f"open {out / 'report.html'} in a browser",
        ],
    }
    return "\n".join(line for head, lines in groups.items() for line in folded(head, lines))


def _guarantee(statement: PrivacyStatement) -> str:
    if statement.epsilon == 0:
        return "nothing: the private records were not used"
    if statement.epsilon == float("inf"):
        return f"no guarantee at all: {statement.method} does not protect the private records"
    receipt = statement.ledger
    paid = f", run {receipt['run']} of dataset {receipt['dataset']}" if receipt else ", no ledger"
    epsilon, delta = plain_up(statement.epsilon, 4), plain_up(statement.delta, 3)
    whose = "" if statement.unit == "record" else " for all rows of a person"
    return f"ε = {epsilon}, δ = {delta}, {statement.relation}{whose}{paid}"


def _in_people(card: Card) -> list[str]:
    """ε of a person with several records, and n·δ."""
    from sidelight.report.guarantee import delta_allows, protected

    who, lines = protected(card), []
    if not 0 < card.epsilon < float("inf"):
        return []
    if who.records > 1:
        epsilon, delta = plain_up(who.epsilon, 4), plain_up(who.delta, 3)
        lines.append(f"per person (at most {who.records} records): ε = {epsilon}, δ = {delta}")
    allowed = delta_allows(card)
    return lines if allowed is None else [*lines, allowed]


def _gain_lines(card: Card) -> list[str]:
    """Whether private records helped, or that nobody can tell."""
    from sidelight.report.gain import gain_over_public

    gain = gain_over_public(card.scores, card.statement["details"])
    if gain is not None:
        return [str(gain)]
    if card.epsilon == 0:
        return []
    return ["not known: this fit was not compared with public records alone (see --validation)"]


def _undeclared(card: Card) -> list[str]:
    """What an officer will ask for."""
    from sidelight.report.facts import undeclared

    names = undeclared(card.facts)
    if not card.facts:
        return [f"nothing was declared for a reviewer (--facts): {', '.join(names)}"]
    return [f"still open for a reviewer: {', '.join(names)}"] if names else []


def ignored_columns(schema: Schema) -> list[str]:
    """Columns that are not used, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, column in schema.ignored.items():
        reasons.setdefault(column.note or "as declared", []).append(name)
    return [f"{listed(names)}: {reason}" for reason, names in reasons.items()]


def _method(statement: PrivacyStatement) -> str:
    chosen, name = statement.details.get("chosen"), statement.method
    return name if chosen in (None, name) else f"{name}, which chose {chosen}"


# ---------------------------------------------------------------------------------------------------
# before anything is charged


def plan_summary(
    contract: Contract, given: Json, schema: Schema, facts: Json, *, refused: bool = False
) -> str:
    """What a fit with these options would read, release and charge."""
    from sidelight.data.schema import column_lines
    from sidelight.privacy import events

    details = contract.details
    chosen = details.get("chosen")
    method = (
        contract.method
        if chosen in (None, contract.method)
        else f"{contract.method}, which would choose {chosen}"
    )
    counted = "records" if contract.unit == "record" else f"persons (by {contract.unit})"
    groups = {
        "dry run": ["nothing is charged, and no private value is read"],
        "target": [f"{schema.target.name}: {schema.target.task}"],
        "private": [f"{contract.n:,} {counted} in {given['private']}"],
        "public": [
            f"{details.get('public_records', 0):,} records"
            + (f" in {given['public']}" if given["public"] else "")
        ],
        "columns": [", ".join(schema.used), *[line.split(" ", 1)[1] for line in column_lines(schema)]],
        "ignored": ignored_columns(schema),
        "method": [method, *map(str, details.get("reasons", ()))],  # type: ignore[call-overload]
        "plan": [events.describe(contract.event)],
        "charge": _charge_lines(contract, facts, refused=refused),
        "next": [] if refused else ["the same command with --out FOLDER, without --dry-run"],
    }
    return "\n".join(line for head, lines in groups.items() for line in folded(head, lines))


def _charge_lines(contract: Contract, facts: Json, *, refused: bool) -> list[str]:
    """What the plan costs a record and a person, what its δ allows, and who pays."""
    from sidelight.report.guarantee import for_group, what_delta_allows

    epsilon, delta, n = contract.cost, contract.delta, contract.n
    lines = [f"ε = {plain_up(epsilon, 4)} at δ = {plain_up(delta, 3)}, {contract.relation}"]
    most = facts.get("records_per_person", 1) if contract.unit == "record" else 1
    if most > 1 and 0 < epsilon < float("inf"):
        epsilon, delta = for_group(contract.event, epsilon, delta, most)
        cost = f"ε = {plain_up(epsilon, 4)} at δ = {plain_up(delta, 3)}"
        lines.append(f"per person (at most {most} records): {cost}")
    person = contract.unit != "record" or "records_per_person" in facts
    if 0 < epsilon < float("inf"):
        lines.append(what_delta_allows(n, delta, person=person, records=most))
    payer = contract.payer
    if payer is None:
        return [*lines, "no ledger: this charge is not recorded"]
    left = plain_down(payer.ledger.remaining(payer.dataset), 4)
    verdict = "refused" if refused else "admitted"
    return [*lines, f"dataset {payer.dataset} has ε = {left} left for one run: it would be {verdict}"]
