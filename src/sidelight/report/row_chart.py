"""A chart with a row for each name: marks and whiskers on one scale, as for categories or methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sidelight.arrays import Json
from sidelight.numbers import percent, pretty
from sidelight.report.charts import Axis, Series, axis_for, legend_mark, marker

_WIDTH, _ROW, _LETTER = 360, 21, 6.1
_LONGEST_LABEL = 22


@dataclass(frozen=True)
class Mark:
    """One value of a row, with the ends of its interval if it has one."""

    value: float
    interval: tuple[float, float] | None = None
    look: int = 0


@dataclass(frozen=True)
class Row:
    name: str
    marks: tuple[Mark, ...]
    note: str = ""  # for the read-out


def row_figure(
    key: str, title: str, summary: str, label: str, rows: Sequence[Row], names: Sequence[str], *,
    ends: tuple[float, float] | None = None, share: bool = False, what: str = "",
) -> Json:  # fmt: skip
    """The figure as the report's template shows it; `names` are those of the marks of a row."""
    svg, read = _drawn(key, title, summary, label, rows, ends, share)
    looks = [mark.look for mark in rows[0].marks]
    marks = [Series(name, [], [], look=look, markers=True) for name, look in zip(names, looks, strict=False)]
    return {
        "title": title, "summary": summary,
        "plots": [{"svg": svg, "read": read}],
        "legend": [(legend_mark(series), series.name) for series in marks],
        "table": {
            "head": [what, *names],
            "rows": [[row.name, *(_said(mark, share) for mark in row.marks)] for row in rows],
        },
    }  # fmt: skip


def formatted(value: float, share: bool) -> str:
    return percent(value, 3) if share else pretty(value, 4)


def _said(mark: Mark, share: bool) -> str:
    if mark.interval is None:
        return formatted(mark.value, share)
    low, high = (formatted(end, share) for end in mark.interval)
    return f"{formatted(mark.value, share)} ({low} to {high})"


def _drawn(
    key: str, title: str, summary: str, label: str, rows: Sequence[Row],
    ends: tuple[float, float] | None, share: bool,
) -> tuple[Markup, str]:  # fmt: skip
    labels = [
        one.name if len(one.name) <= _LONGEST_LABEL else one.name[: _LONGEST_LABEL - 1] + "…" for one in rows
    ]
    left, top = 14 + _LETTER * max(map(len, labels)), 24.0
    bottom = top + _ROW * len(labels)
    values = [v for row in rows for mark in row.marks for v in (mark.value, *(mark.interval or ()))]
    across = axis_for(values, start=left, end=_WIDTH - 22.0, fixed=ends, percent=share, most=4)
    parts = [
        Markup('<title id="{0}-title">{1}</title><desc id="{0}-desc">{2}</desc>').format(key, title, summary),
        _ticks(across, bottom, label),
    ]
    spots: list[tuple[float, str]] = []
    for at, (row, text) in enumerate(zip(rows, labels, strict=True)):
        y = top + _ROW * (at + 0.5)
        parts.append(Markup('<text class="tick end" x="{}" y="{}">{}</text>').format(left - 8, y + 4, text))
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(left, y, across.end))
        parts += [part for mark in row.marks for part in _mark(mark, across, y)]
        said = ", ".join(_said(mark, share) for mark in row.marks)
        spots.append((across.pixel(row.marks[0].value), f"{row.name}: {said}{row.note}"))
    parts.append(Markup('<line class="cursor" x1="0" x2="0" y1="{}" y2="{}"/>').format(top, bottom))
    svg = Markup('<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{}-title {}-desc">{}</svg>').format(
        _WIDTH, bottom + 22, key, key, Markup("").join(parts)
    )
    spots.sort()
    read = {"x": [x for x, _ in spots], "said": [text for _, text in spots]}
    return svg, json.dumps(read, ensure_ascii=False)


def _mark(mark: Mark, across: Axis, y: float) -> list[Markup]:
    drawn = marker(Series("", [], [], look=mark.look), across.pixel(mark.value), y)
    if mark.interval is None:
        return [drawn]
    low, high = (across.pixel(end) for end in mark.interval)
    whisker = Markup('<path class="error s{}" d="M{} {}H{}M{} {}v8M{} {}v8"/>').format(
        mark.look, low, y, high, low, y - 4, high, y - 4
    )
    return [whisker, drawn]


def _ticks(across: Axis, bottom: float, label: str) -> Markup:
    parts = [Markup('<text class="label" x="0" y="12">{}</text>').format(label)]
    for tick in across.ticks:
        at, text = across.pixel(tick), across.label(tick)
        parts.append(Markup('<path class="axis" d="M{} {}v5"/>').format(at, bottom))
        parts.append(
            Markup('<text class="tick middle" x="{}" y="{}">{}</text>').format(at, bottom + 17, text)
        )
    parts.append(Markup('<path class="axis" d="M{} {}H{}"/>').format(across.start, bottom, across.end))
    return Markup("").join(parts)
