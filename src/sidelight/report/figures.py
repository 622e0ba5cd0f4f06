"""Which charts and tables a card gets: the attacker, training over steps, methods over ε, scores, audits.

A card may have been edited by hand: what does not have the shape that `tables` writes is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from sidelight.arrays import Floats, Json
from sidelight.methods.health_check import HEALTH_CHECK
from sidelight.numbers import down, percent, percent_up, pretty, up
from sidelight.privacy import accountants, events
from sidelight.privacy.open_accounts import certificate_of
from sidelight.privacy.release import least_multiplier
from sidelight.report.card import Card, number
from sidelight.report.charts import Chart, Series
from sidelight.report.guarantee import TradeOff, cost_of, explain, privacy_curve
from sidelight.scoring import NAMES

if TYPE_CHECKING:
    from sidelight.arrays import Json

__all__ = [
    "attack_charts",
    "audit_row",
    "comparison_chart",
    "comparison_rows",
    "confusion_table",
    "filter_unit",
    "group_table",
    "in_words",
    "label",
    "lower_is_better",
    "measure_table",
    "profile_chart",
    "reliability_chart",
    "score_lines",
    "score_table",
    "training_charts",
    "training_constants",
]


_LOOKS = 12  # at the budget spent, of a plan that takes a convolution each
# key of the history: title, label of the y axis, does 0 belong to it?
_CURVES: dict[str, tuple[str, str, bool]] = {
    "noise_multiplier": ("Noise multiplier", "noise ÷ sensitivity", True),
    "noise_std": ("Noise added", "standard deviation", True),
    "clip_norm": ("Clip norm", "largest length of a gradient", True),
    "public_gradient_norm": ("Public gradient", "its norm", True),
    "public_loss": ("Public loss", "mean loss", False),
    "validation_loss": ("Public validation loss", "mean loss", False),
    "validation_accuracy": ("Public validation accuracy", "accuracy", False),
    "step_size": ("Step size", "step size", True),
}
_UNITS = {"mu^2": "μ²", "rho": "ρ", "rdp": "Rényi divergence"}


# ---------------------------------------------------------------------------------------------------
# the attacker


def attack_charts(attack: TradeOff) -> list[Chart]:
    """True against false positives, on plain axes and for small rates."""
    alpha = np.linspace(0, 1, 201)
    small = np.geomspace(1e-6, 1.0, 121)
    few, some = (percent_up(float(attack.power(rate))) for rate in (0.01, 0.1))
    summary = (
        f"At 1\u202f% of false positives, true positives are at most {few}; at 10\u202f%, at most {some}."
    )
    whole = Chart(
        "attack", "True positives against false positives", summary,
        "false positive rate", "true positive rate, at most",
        (_best(alpha, attack), _guess(alpha)), x_range=(0, 1), y_range=(0, 1),
        x_percent=True, y_percent=True, size=(360, 320),
    )  # fmt: skip
    near = Chart(
        "attack-small", "The same at small rates", "Logarithmic: a careful attacker raises few false alarms.",
        "false positive rate", "true positive rate, at most",
        (_best(small, attack), _guess(small)), x_kind="log", y_kind="log", x_range=(1e-6, 1),
        y_range=(1e-6, 1), x_percent=True, y_percent=True, size=(360, 320),
    )  # fmt: skip
    return [whole, near]


def _guess(alpha: Floats) -> Series:
    return Series("blind guessing", alpha.tolist(), alpha.tolist(), look="guide")


def _best(alpha: Floats, attack: TradeOff) -> Series:
    return Series("best attacker", alpha.tolist(), attack.power(alpha).tolist(), look=0)


_LEAST_DELTA = 1e-10  # of a chart


def profile_chart(card: Card) -> Chart | None:
    """δ against ε: everything that differential privacy says of what was charged."""
    curve = privacy_curve(card)
    if curve is None:
        return None
    shown = (curve[1] >= _LEAST_DELTA) & (curve[1] <= 1) & np.isfinite(curve[1])
    xs, ys = curve[0][shown].tolist(), curve[1][shown].tolist()
    if len(xs) < 2:
        return None
    summary = f"δ at every ε, from {up(ys[0], 3)} at ε = 0 on; the pair that was stated is one point of it."
    return Chart(
        "profile", "Privacy profile", summary, "ε", "δ, at most", (Series("δ", xs, ys),), y_kind="log",
        x_range=(0, xs[-1]), y_range=(_LEAST_DELTA, 1.0), size=(360, 240),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------
# training


def training_charts(card: Card) -> list[Chart]:
    """One small chart for each thing that the history recorded and that varies."""
    charts = [_budget(card)]
    for key, (title, label, zero) in _CURVES.items():
        xs, ys, x_label = _points(card.history, key)
        if len(ys) > 1 and not _is_constant(ys):
            share = key == "validation_accuracy"
            line = Series(title.lower(), xs, ys, markers=len(xs) <= 25)
            summary = _course(ys, x_label, share=share)
            charts.append(
                Chart(
                    key.replace("_", "-"), title, summary, x_label, label, (line,), zero=zero, y_percent=share
                )
            )
    return [chart for chart in charts if chart is not None]


def training_constants(card: Card) -> list[tuple[str, str]]:
    """What the history recorded that did not vary: a chart would be a level line."""
    found = []
    for key, (title, _, _) in _CURVES.items():
        ys = _points(card.history, key)[1]
        if len(ys) > 1 and _is_constant(ys):
            share = key == "validation_accuracy"
            found.append((title.lower(), percent(ys[0]) if share else pretty(ys[0])))
    return found


def _is_constant(ys: list[float]) -> bool:
    return max(ys) - min(ys) <= 1e-9 * max(map(abs, ys))


def _points(history: list[Json], key: str) -> tuple[list[float], list[float], str]:
    """What the history says of a key, step by step, where it says a finite number.

    What was released after the steps (counts for the probabilities) is in other units; the charge has it.
    """
    x_label = next((name for name in ("step", "epoch") if history and name in history[0]), "release")
    xs, ys = [], []
    for index, entry in enumerate(history):
        if "released" in entry:
            continue
        value = number(entry.get(key))
        x = number(entry.get(x_label, index))
        if value is not None and x is not None and math.isfinite(value) and math.isfinite(x):
            # The history counts from 0, people from 1.
            xs.append(x + (1 if x_label != "epoch" else 0))
            ys.append(value)
    return xs, ys, x_label


def _course(ys: list[float], x_label: str, *, share: bool = False) -> str:
    def formatted(value: float) -> str:
        return percent(value) if share else pretty(value)

    span = f"From {formatted(ys[0])} at the first {x_label} to {formatted(ys[-1])} at the last"
    return f"{span}; between {formatted(min(ys))} and {formatted(max(ys))}."


def _budget(card: Card) -> Chart | None:
    return _filtered(card) or _planned(card)


def _filtered(card: Card) -> Chart | None:
    """The share of a filter's budget that is spent, from the histories of adaptive methods."""
    unit = filter_unit(card)
    if unit is None:
        return None
    xs, left, x_label = _points(card.history, f"{unit}_left")
    first = number(card.history[0].get(unit))
    if len(left) < 2 or first is None or not first + left[0] > 0:
        return None
    total = first + left[0]
    spent = [min(1.0, max(0.0, 1 - value / total)) for value in left]
    summary = f"{percent(spent[-1])} of the filter's budget, {_UNITS[unit]} = {pretty(total)}, was spent."
    return Chart(
        "budget", "Budget spent", summary, x_label, "share of the budget",
        (Series("budget spent", xs, spent, fill=True),), y_range=(0, 1), y_percent=True,
    )  # fmt: skip


def filter_unit(card: Card) -> str | None:
    """What the filter of an adaptive run counts, as its history says; None for a plan fixed in advance."""
    first = card.history[0] if card.history else {}
    return next((unit for unit in _UNITS if f"{unit}_left" in first), None)


def _planned(card: Card) -> Chart | None:
    """ε after each step of a plan, as often as the history has steps or more.

    The plan repeats one event, or consists of Gaussian releases of all records, whose noise the history has.
    A health check is in every value.
    """
    check = _check_event(card)
    parts = events.elementary(card.plan) - Counter(check)
    made = [entry for entry in card.history if HEALTH_CHECK not in entry or "released" not in entry]
    noise = [number(entry["noise_multiplier"]) for entry in made if "noise_multiplier" in entry]
    steps, planned = len(noise), sum(parts.values())
    if math.isinf(card.epsilon) or not 1 < steps <= planned:
        return None
    if len(parts) == 1:
        event = next(iter(parts))
        so_far = {k: events.compose(*check, events.repeat(event, k)) for k in _looks(steps)}
    elif accountants.gdp(card.plan) is not None and all(z is not None and 0 < z < math.inf for z in noise):
        each = [events.gaussian(z) for z in noise if z is not None]
        so_far = {k: events.compose(*check, *each[:k]) for k in _looks(steps)}
    else:
        return None
    spent = [card.epsilon if k == planned else _spent(card, event) for k, event in so_far.items()]
    if any(value is None or not math.isfinite(value) for value in spent):
        return None
    stopped = "" if steps == planned else f" The plan of {planned} steps stays charged as a whole."
    summary = f"ε = {up(spent[-1] or 0)} after {steps} steps, at δ = {up(card.delta, 3)}.{stopped}"
    return Chart(
        "budget", "Budget spent", summary, "step", "ε of what was released so far",
        (Series("ε", [float(k) for k in so_far], [float(e or 0) for e in spent], fill=True),), zero=True,
    )  # fmt: skip


def _check_event(card: Card) -> list[events.Event]:
    """The event of the health check, if one was made."""
    found = card.statement["details"].get(HEALTH_CHECK)
    noise = number(found.get("noise_multiplier")) if isinstance(found, dict) else None
    single = [event for event, times in events.elementary(card.plan).items() if times == 1]
    return [event for event in single if noise is not None and least_multiplier(event) == noise][:1]


def _looks(steps: int) -> list[int]:
    return sorted({max(1, round(steps * k / _LOOKS)) for k in range(_LOOKS + 1)})


def _spent(card: Card, event: events.Event) -> float | None:
    cost = cost_of(card, event, "pld-coarse")
    return None if cost is None else min(card.epsilon, cost)  # a coarse bound may be above the exact whole


# ---------------------------------------------------------------------------------------------------
# methods over ε


def comparison_chart(card: Card) -> Chart | None:
    """Score against ε, one line per method; a method without an ε is a level line."""
    rows = [row for row in map(_compared, card.comparison) if row is not None]
    epsilons = sorted({row[1] for row in rows if math.isfinite(row[1]) and row[1] > 0})
    if not epsilons or len(rows) < 2:
        return None
    methods = list(dict.fromkeys(row[0] for row in rows))
    series = tuple(
        _line(method, sorted(row[1:] for row in rows if row[0] == method), epsilons, look)
        for look, method in enumerate(methods)
    )
    name = str(card.scores.get("name", "score"))
    share = all(0 <= row[2] <= 1 for row in rows) and name == "accuracy"
    return Chart(
        "comparison", f"{name.replace('_', ' ').capitalize()} against ε",
        _ranged(card) or _winner(rows, name, share=share),
        "ε", name.replace("_", " "), series, x_ticks=tuple(epsilons) if len(epsilons) <= 8 else (),
        x_kind="log" if epsilons[-1] / epsilons[0] >= 4 else "linear", y_percent=share,
        size=(720, 360), narrow=(360, 320),
    )  # fmt: skip


def _winner(rows: list[tuple[str, float, float, float]], name: str, *, share: bool) -> str:
    """The best private score."""
    private = [row for row in rows if math.isfinite(row[1]) and row[0] != "non_private"]
    if not private:
        return "No private method was tried."
    lower = lower_is_better(name)
    best = (min if lower else max)(private, key=lambda row: row[2])
    score = percent(best[2]) if share else pretty(best[2])
    which = "lowest" if lower else "highest"
    return f"The {which} private score is {score}, by {best[0]} at ε = {pretty(best[1])}."


def _ranged(card: Card) -> str:
    """Of a rehearsal, whose scores are ranges: which method to take, and no number; "" for anything else."""
    known = [
        (rank, str(row.get("method", "")))
        for row in card.comparison
        if (rank := number(row.get("on_synthetic_rows"))) is not None and row.get("method") != "non_private"
    ]
    if not known:
        return ""
    return (
        f"Bars are the ranges in which a real fit is expected, and lines their middles. {max(known)[1]} is "
        "ahead on synthetic rows, by which methods are ranked."
    )


def lower_is_better(name: str) -> bool:
    """Is this the name of a loss or an error?"""
    return any(word in name.lower() for word in ("loss", "error", "mse", "mae", "deviance"))


def _compared(row: Json) -> tuple[str, float, float, float] | None:
    score, epsilon = number(row.get("score")), number(row.get("epsilon"))
    if score is None or not math.isfinite(score):
        return None
    error = number(row.get("error"))
    return (
        str(row.get("method", "")),
        math.inf if epsilon is None else epsilon,
        score,
        error if error is not None and math.isfinite(error) and error >= 0 else 0.0,
    )


def _line(name: str, rows: list[tuple[float, float, float]], epsilons: list[float], look: int) -> Series:
    own = [row for row in rows if math.isfinite(row[0]) and row[0] > 0]
    if not own:  # no ε, or an infinite one: the same at every ε
        rows = [(e, rows[0][1], rows[0][2]) for e in epsilons]
        return Series(name, [r[0] for r in rows], [r[1] for r in rows], look=look)
    xs, ys, errors = ([row[k] for row in own] for k in range(3))
    return Series(name, xs, ys, errors if any(errors) else None, look=look, markers=True)


# ---------------------------------------------------------------------------------------------------
# charges, scores, comparisons and audits, as rows of tables


def charged(card: Card) -> list[tuple[str, str]]:
    """Every kind of event of this fit, in symbols and in words."""
    certificate = certificate_of(card.plan)[0] if filter_unit(card) else None
    return [
        (
            events.describe(events.repeat(part, times)),
            _of_units(card, explain(part, times, filtered=part == certificate)),
        )
        for part, times in events.elementary(card.plan).items()
    ]


def _of_units(card: Card, words: str) -> str:
    return words if card.unit == "record" else words.replace("record", "person")


_LABELS = {
    "public_validation": "this model, on public validation records",
    "only_public": "a model of the public records alone",
    "majority": "always the most common class",
    "always_the_mean": "always the mean",
    "test": "this model, on test records",
}
# Said in words or shown elsewhere, not as rows.
_BESIDE = (
    "name",
    "rows",
    "note",
    "difference",
    "majority_label",
    "measures",
    "confusion",
    "reliability",
    "groups",
    "private",
    "in_folds",
)


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
    keys.sort(key=lambda key: key not in ("majority", "always_the_mean"))  # what every model must beat first
    rows = [_score(scores, key, share, look) for look, key in enumerate(keys)]
    return {
        "name": label(name),
        "rows": rows,
        "bars": any(row["share"] is not None for row in rows),
        "verdict": _verdict(scores, name, share=share) or _returned(card),
        "note": str(scores.get("note") or ""),
    }


def _returned(card: Card) -> str:
    """Which model was returned, and why, as the fit said it."""
    told = card.statement["details"].get("returned")
    return f"Returned: {told}." if isinstance(told, str) else ""


def _is_error(key: str, scores: Json) -> bool:
    stem, _, end = key.rpartition("_")
    return end in ("error", "low", "high") and stem in scores


def _score(scores: Json, key: str, share: bool, look: int) -> Json:
    value, error = number(scores[key]), number(scores.get(f"{key}_error"))
    fits = share and value is not None and 0 <= value <= 1
    text = _formatted(value, share) if value is not None else in_words(scores[key])
    low, high = (number(scores.get(f"{key}_{end}")) for end in ("low", "high"))
    if low is not None and high is not None:
        text += f" ({_formatted(low, share, 3)} to {_formatted(high, share, 3)})"
    elif error is not None and math.isfinite(error):
        text += f" ± {_formatted(error, share, 2)}"
    level = round(100 * value, 2) if fits and value is not None else None
    return {"label": _LABELS.get(key, label(key)), "value": text, "share": level, "look": f"s{look % 8}"}


def _formatted(value: float, share: bool, digits: int | None = None) -> str:
    return percent(value, digits or 3) if share else pretty(value, digits or 4)


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
            "score": _score_or_range(row, share),
            "error": _value(row.get("error"), share, 2),
            "note": str(row.get("note") or ""),
        }
        same = merged.setdefault((texts["method"], texts["score"], texts["note"]), texts)
        if same is not texts:
            same["epsilon"] = "any"
    return list(merged.values())


def _score_or_range(row: Json, share: bool) -> str:
    low, high = number(row.get("low")), number(row.get("high"))
    if low is None or high is None:
        return _value(row.get("score"), share, 4)
    return f"{_formatted(low, share, 2)} to {_formatted(high, share, 2)}"


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
    "releases_repeated": "releases repeated",
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


# ---------------------------------------------------------------------------------------------------
# scores beyond the first: every measure with its interval, confusion, and reliability


_SHARES = ("accuracy", "balanced_accuracy")
_WHO = {"model": "this model", "only_public": "public records alone"}
_SHORT = {"model": "this model"}  # on a screen
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
    """The first score for each value of a public column: group, value with interval, public rows."""
    groups = scores.get("groups")
    rows = groups.get("rows") if isinstance(groups, dict) else None
    if not isinstance(groups, dict) or not isinstance(rows, list):
        return None
    name = str(scores.get("name", "score"))
    found = [
        (str(row.get("group")), _cell(name, row), in_words(row.get("rows")))
        for row in rows
        if isinstance(row, dict)
    ]
    return (
        {"column": str(groups.get("column", "")), "name": NAMES.get(name, label(name)), "rows": found}
        if found
        else None
    )


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
    return percent(value, 3) if name in _SHARES else pretty(value, 3)


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


def reliability_chart(card: Card) -> Chart | None:
    """How often it is true, against how likely the model says it is; the diagonal is where they agree."""
    rows = card.scores.get("reliability")
    points = [_point(row) for row in rows] if isinstance(rows, list) else []
    known = sorted(point for point in points if point is not None)
    if not known:
        return None
    xs, ys, errors = ([point[k] for point in known] for k in range(3))
    worst = max(known, key=lambda point: abs(point[0] - point[1]))
    summary = (
        f"The largest gap: where the model says {percent(worst[0], 3)}, it is true in {percent(worst[1], 3)}."
    )
    return Chart(
        "reliability", "Can the probabilities be trusted?", summary, "probability that the model gives",
        "how often it is true",
        (
            Series("this model", xs, ys, errors, look=0, markers=True),
            Series("true probabilities", [0.0, 1.0], [0.0, 1.0], look="guide"),
        ),
        x_range=(0, 1), y_range=(0, 1), x_percent=True, y_percent=True, size=(360, 320),
    )  # fmt: skip


def _point(row: object) -> tuple[float, float, float] | None:
    if not isinstance(row, dict):
        return None
    x, y, low, high = (number(row.get(key)) for key in ("predicted", "observed", "low", "high"))
    if x is None or y is None or not (0 <= x <= 1 and 0 <= y <= 1):
        return None
    error = 0.0 if low is None or high is None else (high - low) / 2
    return x, y, error if math.isfinite(error) and error >= 0 else 0.0


# ---------------------------------------------------------------------------------------------------
# scores on a screen: what a model must beat, every score with its interval, the confusion table


_MOST_ON_SCREEN = 8  # classes of a confusion table that fits a screen


def score_lines(scores: Json) -> list[str]:
    """The scores of `tables.public_scores`, in lines; never more digits than the rows allow."""
    if "measures" not in scores:
        return ["not known: there are too few public rows to score anything on"]
    lines = [_without_features(scores), *_measures(scores)]
    if "difference" in scores:
        lines.append(_difference(scores))
    if scores.get("in_folds"):
        lines.append("all public rows took part in the fit; validation= (--validation) would hold some out")
    lines += _confusion(scores.get("confusion"))
    lines += _by_group(scores)
    return lines


def _without_features(scores: Json) -> str:
    rows = f"{scores['rows']} public rows" + ("" if scores.get("in_folds") else " held out")
    if "majority" in scores:
        return f"{percent(scores['majority'], 3)} of the {rows} are {scores['majority_label']!r}: beat that"
    mean = pretty(scores["always_the_mean"], 3)
    return f"predicting the mean has a root mean squared error of {mean} on the {rows}: beat that"


def _measures(scores: Json) -> list[str]:
    table = measure_table(scores) or {"who": [], "head": [], "rows": []}
    heads = table["head"] if scores.get("in_folds") else [_SHORT.get(one, one) for one in table["who"]]
    cells = [["", *heads]]
    for title, values in table["rows"]:
        cells.append([title, *(f"{value} ({error})" if error else value for value, error in values)])
    return _aligned(cells)


def _difference(scores: Json) -> str:
    name = scores["name"]
    value, error = scores["difference"], scores["difference_error"]
    sign, unit = ("+" if value >= 0 else "−"), ""
    if name in _SHARES:
        value, error, unit = 100 * value, 100 * error, " points"
    return (
        f"{NAMES[name]} compared with only_public: {sign}{pretty(abs(value), 3)} ± {pretty(error, 2)}{unit}"
    )


def _confusion(found: Json | None) -> list[str]:
    if found is None or len(found["labels"]) > _MOST_ON_SCREEN:
        return []
    labels = [str(label) for label in found["labels"]]
    cells = [["true \\ predicted", *labels]]
    cells += [[label, *map(str, row)] for label, row in zip(labels, found["counts"], strict=True)]
    return _aligned(cells)


def _by_group(scores: Json) -> list[str]:
    table = group_table(scores)
    if table is None:
        return []
    cells = [[f"by {table['column']}", table["name"], "rows"]]
    cells += [[group, f"{value} ({interval})", rows] for group, (value, interval), rows in table["rows"]]
    return _aligned(cells)


def _aligned(cells: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
