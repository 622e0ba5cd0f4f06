"""Effects of columns as small figures, all on one scale: lines for numbers, dots for categories and dates."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from sidelight.arrays import Json
from sidelight.numbers import percent, pretty
from sidelight.report.charts import (
    Axis,
    Chart,
    Series,
    axis_for,
    drawing,
    legend_mark,
    marker,
    read_out,
    table,
)
from sidelight.report.effects import Effect, Effects

__all__ = ["effect_figures", "notebook_html"]

_MOST_OUTPUTS = 4  # lines of a figure
_WIDTH, _LINE_HEIGHT, _ROW = 360, 190, 21
_LONGEST_LABEL = 16


def effect_figures(found: Effects) -> list[Json]:
    """One figure for each column, as the report's template shows a chart."""
    kept = _varying(found)
    if not kept:
        return []
    every = [mean for one in found for k in kept for mean in one.means[k]]
    scale = axis_for(every, start=0.0, end=1.0, percent=found.percent, most=5)
    ends = (max(scale.low, 0.0), min(scale.high, 1.0)) if found.percent else (scale.low, scale.high)
    return [_figure(found, one, kept, ends, place) for place, one in enumerate(found)]


def _varying(found: Effects) -> list[int]:
    """The outputs whose means vary most, in their order."""
    if not len(found):
        return []
    spread = [max(np.ptp(one.means[k]) for one in found) for k in range(len(found.outputs))]
    return sorted(int(k) for k in np.argsort(spread)[::-1][:_MOST_OUTPUTS])


def _figure(found: Effects, one: Effect, kept: list[int], ends: tuple[float, float], place: int) -> Json:
    names = [found.outputs[k] for k in kept]
    label = names[0] if len(names) == 1 else names[0].partition(" of ")[0]
    series = tuple(
        Series(
            name if len(names) == 1 else name.partition(" of ")[2],
            [float(value) for value in one.values] if one.kind == "number" else range(len(one.values)),
            list(one.means[k]),
            look=look,
            markers=one.kind != "number",
        )
        for look, (name, k) in enumerate(zip(names, kept, strict=True))
    )
    summary = _summary(found, one, kept[0]) if len(kept) == 1 else ""
    chart = Chart(
        f"effect-{place}", one.column, summary, one.column, label, series,
        y_range=ends, y_percent=found.percent, size=(_WIDTH, _LINE_HEIGHT),
    )  # fmt: skip
    common: Json = {
        "title": one.column, "summary": summary, "full": False,
        "legend": [(legend_mark(line), line.name) for line in series],
    }  # fmt: skip
    if one.kind == "number":
        return common | {"plots": [{"svg": drawing(chart), "read": read_out(chart)}], "table": table(chart)}
    texts = [str(value) for value in one.values]
    svg, read = _dots(chart, texts)
    rows = [
        [text, *(_formatted(line.y[at], found.percent) for line in series)] for at, text in enumerate(texts)
    ]
    return common | {
        "plots": [{"svg": svg, "read": read}],
        "table": {"head": [one.column, *(line.name for line in series)], "rows": rows},
    }


def _summary(found: Effects, one: Effect, k: int) -> str:
    means = one.means[k]
    low, high = int(np.argmin(means)), int(np.argmax(means))
    ends = [f"{_formatted(means[at], found.percent)} at {_value(one.values[at])}" for at in (low, high)]
    return f"From {ends[0]} to {ends[1]}."


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else pretty(value)


def _formatted(mean: float, share: bool) -> str:
    return percent(mean, 3) if share else pretty(mean, 4)


def _dots(chart: Chart, texts: Sequence[str]) -> tuple[Markup, str]:
    """A row for each value, its means as dots on the scale that lines have."""
    labels = [text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…" for text in texts]
    left, top = 14 + 6.1 * max(map(len, labels)), 24.0
    bottom = top + _ROW * len(labels)
    across = axis_for(
        [y for line in chart.series for y in line.y], start=left, end=_WIDTH - 22.0, fixed=chart.y_range,
        percent=chart.y_percent, most=4,
    )  # fmt: skip
    words = Markup('<title id="{0}-title">{1}</title><desc id="{0}-desc">{2}</desc>').format(
        chart.key, chart.title, chart.summary
    )
    parts = [words, _ticks(across, top, bottom, chart.y_label)]
    spots: list[tuple[float, str]] = []
    for at, (label, text) in enumerate(zip(labels, texts, strict=True)):
        y = top + _ROW * (at + 0.5)
        parts.append(Markup('<text class="tick end" x="{}" y="{}">{}</text>').format(left - 8, y + 4, label))
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(left, y, across.end))
        parts += [marker(line, across.pixel(line.y[at]), y) for line in chart.series]
        said = ", ".join(_formatted(line.y[at], chart.y_percent) for line in chart.series)
        spots.append((across.pixel(chart.series[0].y[at]), f"{text}: {said}"))
    parts.append(Markup('<line class="cursor" x1="0" x2="0" y1="{}" y2="{}"/>').format(top, bottom))
    svg = Markup('<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{}-title {}-desc">{}</svg>').format(
        _WIDTH, bottom + 22, chart.key, chart.key, Markup("").join(parts)
    )
    spots.sort()
    read = {"x": [x for x, _ in spots], "said": [text for _, text in spots]}
    return svg, json.dumps(read, ensure_ascii=False)


def _ticks(across: Axis, top: float, bottom: float, label: str) -> Markup:
    parts = [Markup('<text class="label" x="0" y="12">{}</text>').format(label)]
    for tick in across.ticks:
        at = across.pixel(tick)
        parts.append(Markup('<path class="axis" d="M{} {}v5"/>').format(at, bottom))
        text = across.label(tick)
        parts.append(
            Markup('<text class="tick middle" x="{}" y="{}">{}</text>').format(at, bottom + 17, text)
        )
    parts.append(Markup('<path class="axis" d="M{} {}H{}"/>').format(across.start, bottom, across.end))
    return Markup("").join(parts)


# ---------------------------------------------------------------------------------------------------
# in a notebook, whose colors are not known: texts take the color of the page

_STYLE = """<style>
.sidelight-effects { display: grid; gap: 1rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); }
.sidelight-effects h4 { margin: 0; }
.sidelight-effects p { margin: 0 0 .3rem; font-size: .85em; opacity: .75; }
.sidelight-effects svg { width: 100%; height: auto; overflow: visible; }
.sidelight-effects svg.mark { width: 28px; height: 14px; }
.sidelight-effects text { font: 12px sans-serif; fill: currentColor; }
.sidelight-effects text.end { text-anchor: end; } .sidelight-effects text.middle { text-anchor: middle; }
.sidelight-effects .grid { stroke: currentColor; opacity: .15; } .sidelight-effects .cursor { display: none; }
.sidelight-effects .axis { stroke: currentColor; opacity: .6; fill: none; }
.sidelight-effects .line { fill: none; stroke: currentColor; stroke-width: 2; }
.sidelight-effects .marker { fill: currentColor; }
.sidelight-effects .s0 { color: #2f88b5; } .sidelight-effects .s1 { color: #d2632f; }
.sidelight-effects .s2 { color: #3a9a6b; } .sidelight-effects .s3 { color: #9a62b8; }
</style>"""


def notebook_html(found: Effects) -> str:
    """The figures as HTML that needs no script and no style sheet of the page."""
    figures = effect_figures(found)
    if not figures:
        return "<p>No effects: the model has no column whose effect can be shown.</p>"
    shown = Markup("").join(
        Markup("<div><h4>{}</h4><p>{}</p>{}{}</div>").format(
            one["title"], one["summary"], one["plots"][0]["svg"], _legend(one["legend"])
        )
        for one in figures
    )
    about = Markup("<p>Mean prediction over {}, by the value of a column.</p>").format(found.averaged_over)
    return str(Markup(_STYLE) + about + Markup('<div class="sidelight-effects">{}</div>').format(shown))


def _legend(entries: Sequence[tuple[Markup, str]]) -> Markup:
    if len(entries) < 2:
        return Markup("")
    return Markup("<p>{}</p>").format(
        Markup(" ").join(Markup("{} {}").format(mark, name) for mark, name in entries)
    )
