"""Effects of columns as small figures, all on one scale: lines for numbers, dots for categories and dates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from sidelight.arrays import Json
from sidelight.numbers import pretty
from sidelight.report.charts import Chart, Series, axis_for, drawing, legend_mark, read_out, table
from sidelight.report.effects import Effect, Effects
from sidelight.report.row_chart import Mark, Row, formatted, row_figure

_MOST_OUTPUTS = 4  # lines of a figure
_WIDTH, _LINE_HEIGHT = 360, 190


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
        "title": one.column, "summary": summary,
        "legend": [(legend_mark(line), line.name) for line in series],
    }  # fmt: skip
    if one.kind == "number":
        return common | {"plots": [{"svg": drawing(chart), "read": read_out(chart)}], "table": table(chart)}
    rows = [
        Row(str(value), tuple(Mark(line.y[at], look=look) for look, line in enumerate(series)))
        for at, value in enumerate(one.values)
    ]
    return row_figure(
        chart.key, one.column, summary, label, rows, [line.name for line in series],
        ends=ends, share=found.percent, what=one.column,
    )  # fmt: skip


def _summary(found: Effects, one: Effect, k: int) -> str:
    means = one.means[k]
    low, high = int(np.argmin(means)), int(np.argmax(means))
    ends = [f"{formatted(means[at], found.percent)} at {_value(one.values[at])}" for at in (low, high)]
    return f"From {ends[0]} to {ends[1]}."


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else pretty(value)


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
