"""Which charts a card gets: the attacker, training over steps, methods over ε, reliability.

A card may have been edited by hand: what does not have the shape that `tables` writes is left out.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from sidelight.arrays import Floats, Json
from sidelight.methods.health_check import HEALTH_CHECK
from sidelight.numbers import percent, percent_up, pretty, up
from sidelight.privacy import accountants, events
from sidelight.privacy.noise_checks import least_multiplier
from sidelight.privacy.open_accounts import certificate_of
from sidelight.report.card import Card, number
from sidelight.report.charts import Chart, Series
from sidelight.report.guarantee import explain
from sidelight.report.tradeoff import TradeOff, cost_of

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
_ROUTES = {
    "layers": "by layer, many records at a time",
    "vmap": "by torch.func, written out for each record",
    "loop": "by one call per record",
}
_UNITS = {"mu^2": "μ²", "rho": "ρ", "rdp": "Rényi divergence"}


# ---------------------------------------------------------------------------------------------------
# the attacker


def attack_chart(attack: TradeOff) -> Chart:
    """True against false positives; small rates are in the table beside it."""
    alpha = np.linspace(0, 1, 201)
    few, some = (percent_up(float(attack.power(rate))) for rate in (0.01, 0.1))
    summary = (
        f"At 1\u202f% of false positives, true positives are at most {few}; at 10\u202f%, at most {some}."
    )
    return Chart(
        "attack", "True positives against false positives", summary,
        "false positive rate", "true positive rate, at most",
        (_best(alpha, attack), _guess(alpha)), x_range=(0, 1), y_range=(0, 1),
        x_percent=True, y_percent=True, size=(360, 320),
    )  # fmt: skip


def _guess(alpha: Floats) -> Series:
    return Series("blind guessing", alpha.tolist(), alpha.tolist(), look="guide")


def _best(alpha: Floats, attack: TradeOff) -> Series:
    return Series("best attacker", alpha.tolist(), attack.power(alpha).tolist(), look=0)


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


def gradient_route(card: Card) -> str:
    """How a network's per-record gradients were taken, and why by no faster route; "" for anything else."""
    entry = next((entry for entry in card.history if "route" in entry), {})
    route, reason = _ROUTES.get(str(entry.get("route")), ""), entry.get("route_reason")
    return f"{route}: {reason}" if route and reason else route


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
        so_far = {k: events.compose(*check, events.repeat(event, k)) for k in _shown_steps(steps)}
    elif accountants.gdp(card.plan) is not None and all(z is not None and 0 < z < math.inf for z in noise):
        each = [events.gaussian(z) for z in noise if z is not None]
        so_far = {k: events.compose(*check, *each[:k]) for k in _shown_steps(steps)}
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


def _shown_steps(steps: int) -> list[int]:
    return sorted({max(1, round(steps * k / _LOOKS)) for k in range(_LOOKS + 1)})


def _spent(card: Card, event: events.Event) -> float | None:
    cost = cost_of(card, event, "pld-coarse")
    return None if cost is None else min(card.epsilon, cost)  # a coarse bound may be above the exact whole


# ---------------------------------------------------------------------------------------------------
# charges, as rows of a table


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


# ---------------------------------------------------------------------------------------------------
# how reliable probabilities are


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
