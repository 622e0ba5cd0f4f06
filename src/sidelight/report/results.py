"""Scores, comparisons and audits of a card, as rows of tables."""

from __future__ import annotations

import math

from sidelight.arrays import Json
from sidelight.report.card import Card, number
from sidelight.report.figures import lower_is_better
from sidelight.report.numbers import down, percent, pretty, up

__all__ = ["audit_row", "comparison_rows", "in_words", "label", "score_table"]

_LABELS = {
    "public_validation": "this model, on public validation records",
    "only_public": "a model of the public records alone",
    "test": "this model, on test records",
}
_BESIDE = ("name", "rows", "note", "difference")  # said in words, not as rows


def label(key: object) -> str:
    """A key of a dictionary as words."""
    return str(key).replace("_", " ")


def in_words(value: object) -> str:
    """A single value as words."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (parsed := number(value)) is not None:
        return pretty(parsed)
    return pretty(value)


def score_table(card: Card) -> Json | None:
    """Scores on public records: rows, what they say of the private records, and on how many."""
    scores = card.scores
    name, share = str(scores.get("name", "score")), scores.get("name") == "accuracy"
    keys = [key for key in scores if key not in _BESIDE and not _is_error(key, scores)]
    if not keys:
        return None
    rows = [_score(scores, key, share, look) for look, key in enumerate(keys)]
    return {
        "name": label(name),
        "rows": rows,
        "bars": any(row["share"] is not None for row in rows),
        "verdict": _verdict(scores, name, share=share),
        "note": str(scores.get("note") or ""),
    }


def _is_error(key: str, scores: Json) -> bool:
    return key.endswith("_error") and key.removesuffix("_error") in scores


def _score(scores: Json, key: str, share: bool, look: int) -> Json:
    value, error = number(scores[key]), number(scores.get(f"{key}_error"))
    fits = share and value is not None and 0 <= value <= 1
    text = _formatted(value, share) if value is not None else in_words(scores[key])
    if error is not None and math.isfinite(error):
        text += f" ± {_formatted(error, share, 2)}"
    level = round(100 * value, 2) if fits and value is not None else None
    return {"label": _LABELS.get(key, label(key)), "value": text, "share": level, "look": f"s{look % 8}"}


def _formatted(value: float, share: bool, digits: int = 4) -> str:
    return percent(value, digits) if share else pretty(value, digits)


def _verdict(scores: Json, name: str, *, share: bool) -> str:
    """Did the private records help?"""
    mine, only_public = (number(scores.get(key)) for key in ("public_validation", "only_public"))
    if mine is None or only_public is None or not (math.isfinite(mine) and math.isfinite(only_public)):
        return ""
    gain = only_public - mine if lower_is_better(name) else mine - only_public
    error = number(scores.get("difference_error"))
    size = f"{pretty(abs(gain) * 100, 3)} points" if share else pretty(abs(gain), 3)
    if error is not None and abs(gain) <= 2 * error:
        unsure = f"{pretty(2 * error * 100, 3)} points" if share else pretty(2 * error, 3)
        way = "better" if gain > 0 else "worse"
        return (
            f"On these public records the model is {size} {way} than one of public records alone. That is "
            f"within two standard errors ({unsure}): they cannot tell whether the private records helped."
        )
    if gain > 0:
        return f"The private records helped: {size} of {label(name)} over public records alone."
    if gain == 0:
        return f"The private records made no difference to the {label(name)}."
    return (
        f"The private records did not help here: public records alone do better by {size} of {label(name)}."
    )


def comparison_rows(card: Card) -> list[dict[str, str]]:
    """Every row of the comparison as text; a method whose score is the same at every ε is one row."""
    share = card.scores.get("name") == "accuracy"
    merged: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in card.comparison:
        texts = {
            "method": in_words(row.get("method")),
            "epsilon": in_words(row.get("epsilon")),
            "score": _value(row.get("score"), share, 4),
            "error": _value(row.get("error"), share, 2),
            "note": str(row.get("note") or ""),
        }
        same = merged.setdefault((texts["method"], texts["score"], texts["note"]), texts)
        if same is not texts:
            same["epsilon"] = "any"
    return list(merged.values())


def _value(value: object, share: bool, digits: int) -> str:
    parsed = number(value)
    return in_words(value) if parsed is None else _formatted(parsed, share, digits)


def audit_row(row: Json) -> Json:
    """One audit: the claim, what was proven, and what was found broken."""
    lower, claimed = number(row.get("lower_bound")), number(row.get("claimed_epsilon"))
    confidence, details, findings = (row.get(key) for key in ("confidence", "details", "findings"))
    sure = number(confidence)
    proves = lower is not None and row.get("kind") != "neighbour replay"  # a replay proves no ε
    return {
        "kind": in_words(row.get("kind")),
        "method": in_words(row.get("method")),
        "claimed": "–" if claimed is None else up(claimed),
        "lower": down(lower) if proves and lower is not None else "–",
        "confidence": percent(sure, 4) if proves and sure is not None else "–",
        "passed": row.get("passed") is True,
        "findings": [_finding(finding) for finding in findings] if isinstance(findings, list) else [],
        "details": details if isinstance(details, dict) else {},
    }


def _finding(finding: object) -> str:
    if isinstance(finding, dict) and "promise" in finding:
        return f"{finding['promise']}: {finding.get('seen', '')}"
    return str(finding)
