"""Scores as tables, in the page and on a screen: models, measures with intervals, subgroups, confusion."""

from __future__ import annotations

import math

from sidelight.arrays import Json
from sidelight.numbers import percent, pretty
from sidelight.report.card import Card, number
from sidelight.report.gain import SHARES, gain_over_public
from sidelight.report.words import in_words, label
from sidelight.scoring import NAMES

WEAK = 100  # rows of a subgroup; of fewer, an accuracy is known to ±10 points at best
# key of the scores: what it is the score of, and its color, the same in every report
_MODELS = {
    "majority": ("always the most common class", "s7"),
    "always_the_mean": ("always the mean", "s7"),
    "only_public": ("public records alone", "s1"),
    "public_validation": ("this model, on public validation records", "s0"),
    "test": ("this model, on test records", "s0"),
}
# Said in words or shown elsewhere, not as rows.
_BESIDE = (
    *("name", "rows", "note", "difference", "majority_label", "measures", "confusion", "reliability"),
    *("groups", "private", "in_folds"),
)


def score_table(card: Card) -> Json | None:
    """Scores on public records: a row for each model, and what they say of the private records."""
    scores = card.scores
    name, share = str(scores.get("name", "score")), scores.get("name") == "accuracy"
    keys = [key for key in scores if key not in _BESIDE and not _is_error(key, scores)]
    if not keys:
        return None
    order = list(_MODELS)
    keys.sort(key=lambda key: order.index(key) if key in order else len(order))
    rows = [_score(scores, key, share) for key in keys]
    return {
        "name": label(name),
        "rows": rows,
        "bars": any(row["share"] is not None for row in rows),
        "verdict": _verdict(card),
        "note": str(scores.get("note") or ""),
    }


def _verdict(card: Card) -> str:
    """Did the private records help? If that was not measured: which model was returned."""
    details = card.statement["details"]
    gain, told = gain_over_public(card.scores, details), details.get("returned")
    if gain is not None:
        return f"{str(gain)[:1].upper()}{str(gain)[1:]}"
    return f"Returned: {told}." if isinstance(told, str) else ""


def _is_error(key: str, scores: Json) -> bool:
    stem, _, end = key.rpartition("_")
    return end in ("error", "low", "high") and stem in scores


def _score(scores: Json, key: str, share: bool) -> Json:
    value, error = number(scores[key]), number(scores.get(f"{key}_error"))
    text = _formatted(value, share) if value is not None else in_words(scores[key])
    ends = [number(scores.get(f"{key}_{end}")) for end in ("low", "high")]
    low, high = (one if one is not None and math.isfinite(one) else None for one in ends)
    if low is not None and high is not None:
        text += f" ({_formatted(low, share, 3)} to {_formatted(high, share, 3)})"
    elif error is not None and math.isfinite(error):
        text += f" ± {_formatted(error, share, 2)}"
        low, high = (None, None) if value is None else (value - 2 * error, value + 2 * error)
    title, look = _MODELS.get(key, (label(key), "s3"))
    fits = share and value is not None and 0 <= value <= 1
    whisker = None if low is None or high is None else (_place(low), _place(high))
    return {
        "label": title, "value": text, "look": look, "whisker": whisker if fits else None,
        "share": _place(value) if fits and value is not None else None,
    }  # fmt: skip


def _place(share: float) -> float:
    """On a bar of a hundred units."""
    return round(100 * min(max(share, 0.0), 1.0), 2)


def _formatted(value: float, share: bool, digits: int | None = None) -> str:
    return percent(value, digits or 3) if share else pretty(value, digits or 4)


# ---------------------------------------------------------------------------------------------------
# scores beyond the first: every measure with its interval, subgroups, confusion


_WHO = {"model": "this model", "only_public": "public records alone"}
_MOST_CLASSES = 20


def measure_table(scores: Json) -> Json | None:
    """A row for each score, a column for each model: the value, and its 95 % interval."""
    measures = scores.get("measures")
    if not isinstance(measures, dict):
        return None
    known = {name: found for name, found in measures.items() if isinstance(found, dict) and name in NAMES}
    who = [one for one in _WHO if any(one in found for found in known.values())]
    rows = [(NAMES[name], [_cell(name, found.get(one)) for one in who]) for name, found in known.items()]
    end = ", in folds" if scores.get("in_folds") is True else ""
    return {"who": who, "head": [_WHO[one] + end for one in who], "rows": rows} if rows and who else None


def group_table(scores: Json) -> Json | None:
    """For each value of a public column: score with interval, error and selection rates, public rows.

    A selection rate is the share of rows for which the second of two classes is predicted. A subgroup of
    fewer than `WEAK` rows is marked: its rates say little.
    """
    groups = scores.get("groups")
    rows = groups.get("rows") if isinstance(groups, dict) else None
    if not isinstance(groups, dict) or not isinstance(rows, list):
        return None
    name = str(scores.get("name", "score"))
    found = [_group(name, row) for row in rows if isinstance(row, dict)]
    if not found:
        return None
    return {
        "column": str(groups.get("column", "")),
        "name": NAMES.get(name, label(name)),
        "selects": str(groups.get("selects", "")) if any(row["selected"] for row in found) else "",
        "errors": name == "accuracy",
        "rows": found,
        "weak": any(row["weak"] for row in found),
    }


def _group(name: str, row: Json) -> Json:
    value, size, selected = (number(row.get(key)) for key in ("value", "rows", "selected"))
    return {
        "group": str(row.get("group")),
        "score": _cell(name, row),
        "error": "–" if value is None else _text(name, 1 - value),
        "selected": "" if selected is None else percent(selected, 3),
        "rows": in_words(row.get("rows")),
        "weak": size is not None and size < WEAK,
    }


def _cell(name: str, found: object) -> tuple[str, str]:
    """The value, and what is known of its error."""
    if not isinstance(found, dict):
        return "–", ""
    value, low, high, chance = (number(found.get(key)) for key in ("value", "low", "high", "by_chance"))
    if value is None:
        return "–", ""
    if chance is not None:
        return _text(name, value), f"by chance up to {_text(name, chance)}"
    if low is None or high is None:
        return _text(name, value), ""
    return _text(name, value), f"{_text(name, low)} to {_text(name, high)}"


def _text(name: str, value: float) -> str:
    return percent(value, 3) if name in SHARES else pretty(value, 3)


def confusion_table(card: Card) -> Json | None:
    """Counts of public records: a row for each true label, a column for each predicted one."""
    found = card.scores.get("confusion")
    if not isinstance(found, dict):
        return None
    labels, counts = found.get("labels"), found.get("counts")
    if not (isinstance(labels, list) and isinstance(counts, list) and 2 <= len(labels) <= _MOST_CLASSES):
        return None
    square = len(counts) == len(labels) and all(
        isinstance(row, list) and len(row) == len(labels) and all(number(c) is not None for c in row)
        for row in counts
    )
    if not square:
        return None
    rows = [
        (str(label), [(pretty(count), i == k) for k, count in enumerate(row)])
        for i, (label, row) in enumerate(zip(labels, counts, strict=True))
    ]
    return {"labels": [str(label) for label in labels], "rows": rows}


# ---------------------------------------------------------------------------------------------------
# scores on a screen: what a model must beat, every score with its interval, the confusion table


_WIDEST = 71  # columns, beside a head of nine: a terminal has eighty


def score_lines(scores: Json) -> list[str]:
    """The scores of `tables.public_scores`, in lines; never more digits than the rows allow."""
    if "measures" not in scores:
        return ["not known: there are too few public rows to score anything on"]
    where = "all public rows took part in the fit; scores are of models in folds"
    lines = [_without_features(scores), *([where] if scores.get("in_folds") else []), *_measures(scores)]
    return [*lines, *_confusion(scores.get("confusion")), *_by_group(scores)]


def _without_features(scores: Json) -> str:
    rows = f"{scores['rows']:,} public rows" + ("" if scores.get("in_folds") else " held out")
    if "majority" in scores:
        share, most = percent(scores["majority"], 3), scores["majority_label"]
        return f"baseline: {share} (always predicting {most!r}), on {rows}"
    mean = pretty(scores["always_the_mean"], 3)
    return f"baseline: root mean squared error {mean} (always predicting the mean), on {rows}"


def _measures(scores: Json) -> list[str]:
    table = measure_table(scores) or {"who": [], "rows": []}
    cells = [["", *(_WHO[one] for one in table["who"])]]
    for title, values in table["rows"]:
        short = [(value, error.replace("by chance up to", "chance ≤")) for value, error in values]
        cells.append([title, *(f"{value} ({error})" if error else value for value, error in short)])
    return _aligned(cells)


def _confusion(found: Json | None) -> list[str]:
    if found is None:
        return []
    cells = [["true \\ predicted", *map(str, found["labels"])]]
    cells += [[str(one), *map(str, row)] for one, row in zip(found["labels"], found["counts"], strict=True)]
    lines = _aligned(cells)
    return lines if max(map(len, lines)) <= _WIDEST else []  # the report has it


def _by_group(scores: Json) -> list[str]:
    table = group_table(scores)
    if table is None:
        return []
    selects = [f"predicted {table['selects']}"] if table["selects"] else []
    cells = [[f"by {table['column']}", table["name"], *selects, "rows"]]
    for row in table["rows"]:
        value, interval = row["score"]
        rows = f"{row['rows']}{' (weak)' if row['weak'] else ''}"
        cells.append([row["group"], f"{value} ({interval})", *([row["selected"]] if selects else []), rows])
    return _aligned(cells)


def _aligned(cells: list[list[str]]) -> list[str]:
    """Columns side by side, the first cut if they are too wide together."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[0] = max(8, min(widths[0], _WIDEST - sum(widths[1:]) - 2 * len(widths[1:])))
    cut = [
        [c if len(c) <= w else f"{c[: w - 1]}…" for c, w in zip(row, widths, strict=True)] for row in cells
    ]
    return ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in cut]
