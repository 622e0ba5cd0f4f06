"""Audits of a card: read from a file that `sidelight audit` wrote, and shown as rows of a table."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

from sidelight.arrays import Json
from sidelight.errors import InputError
from sidelight.files import missing
from sidelight.numbers import down, percent, pretty, up
from sidelight.report.card import Card, number
from sidelight.report.words import in_words

_MOST_AUDITS = 1 << 24  # bytes of a file


def with_audits(card: Card, path: str | os.PathLike[str] | None) -> Card:
    """The card with the audits of its method in a file that `sidelight audit --out` wrote; None: as it is."""
    if path is None:
        return card
    file = Path(path)
    if not file.exists():
        raise InputError(missing(file))
    if not file.is_file() or file.stat().st_size > _MOST_AUDITS:
        raise InputError(f"{file} is not what `sidelight audit --out` wrote")
    try:
        found = json.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{file} is not what `sidelight audit --out` wrote: it is not valid JSON") from None
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list) or not all(isinstance(one, dict) and "passed" in one for one in results):
        raise InputError(f"{file} is not what `sidelight audit --out` wrote: it has no results")
    chosen = str(card.statement["details"].get("chosen") or card.method)
    mine = {card.method, chosen}
    kept = [one for one in results if str(one.get("method")).partition(",")[0] in mine and _alike(one, card)]
    if not kept:
        raise InputError(
            f"{file} holds no audit of {' or '.join(sorted(mine))}, by which this model was made, with its "
            f"relation and delta. Try: sidelight audit {chosen} --relation {card.relation} "
            f"--delta {card.delta:g} --out {file}"
        )
    return replace(card, audits=kept)


def _alike(audit: Json, card: Card) -> bool:
    """Whether an audit is about the relation and the δ of this model; a replay proves nothing about δ."""
    delta = number(audit.get("delta"))
    same = audit.get("kind") == "neighbor replay" or (delta is not None and math.isclose(delta, card.delta))
    return same and audit.get("relation") == card.relation


def audit_row(row: Json) -> Json:
    """One audit: the claim, what was proven, and what was found broken."""
    lower, claimed = number(row.get("lower_bound")), number(row.get("claimed_epsilon"))
    confidence, details, findings = (row.get(key) for key in ("confidence", "details", "findings"))
    sure = number(confidence)
    proves = lower is not None and row.get("kind") != "neighbor replay"  # a replay proves no ε
    return {
        "kind": in_words(row.get("kind")),
        "method": in_words(row.get("method")),
        "relation": in_words(row.get("relation")),
        "claimed": "–" if claimed is None else up(claimed),
        "lower": down(lower) if proves and lower is not None else "–",
        "confidence": percent(sure, 4) if proves and sure is not None else "–",
        "measured": _measured(details) if isinstance(details, dict) else "",
        "passed": row.get("passed") is True,
        "findings": [_finding(finding) for finding in findings] if isinstance(findings, list) else [],
        "details": _audit_details(details) if isinstance(details, dict) else {},
    }


def _measured(details: Json) -> str:
    """The one number that an audit of each kind is about."""
    share, sums = number(details.get("largest_share")), number(details.get("private_sums"))
    if share is not None:
        return f"largest move {share:.3f}" if sums else "no private sum"
    guesses, runs = number(details.get("guesses")), number(details.get("runs"))
    if guesses is not None and (correct := _largest(details.get("correct"))) is not None:
        return f"{pretty(correct)} of {pretty(guesses)} guesses right"
    return "" if runs is None else f"{pretty(runs)} runs on each of two datasets"


def _largest(value: object) -> float | None:
    """Of a number or of several: those of an audit that was repeated."""
    several = value if isinstance(value, list) else [value]
    known = [found for one in several if (found := number(one)) is not None]
    return max(known, default=None)


_AUDIT_NAMES = {
    "largest_share": "largest move, in units of the sensitivity",
    "doors_repeated": "releases repeated",
}


def _audit_details(details: Json) -> Json:
    """What an audit measured; what it has nothing of is left out."""
    return {
        _AUDIT_NAMES.get(key, key): value for key, value in details.items() if value not in ({}, [], None)
    }


def _finding(finding: object) -> str:
    if isinstance(finding, dict) and "promise" in finding:
        return f"{finding['promise']}: {finding.get('seen', '')}"
    return str(finding)
