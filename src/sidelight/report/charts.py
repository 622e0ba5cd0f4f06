"""Charts as SVG: axes, lines, markers, and words for those who cannot see them.

Colors are classes (`s0` … `s7`), so that one drawing serves light, dark and print. Every text goes through
`Markup.format`, which escapes it. Beside the drawing a chart gives its legend, its numbers as a table, and a
read-out for the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from sidelight.numbers import count, percent, pretty, scientific

_MOST_POINTS = 400  # of a line; more than a screen can show
_MOST_ROWS = 60
_LETTER = 6.1  # width of a letter of a tick label
COLORS = 8


@dataclass(frozen=True)
class Series:
    """One line: its name and its points, with a standard error each if there is one.

    look: a number from 0 on, which chooses color, dashes and marker; "guide" is a quiet dashed line.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    look: int | str = 0
    markers: bool = False
    fill: bool = False


@dataclass(frozen=True)
class Chart:
    """A picture of a few series."""

    key: str
    title: str
    summary: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    zero: bool = False
    x_percent: bool = False
    y_percent: bool = False
    size: tuple[int, int] = (360, 216)


def drawing(chart: Chart) -> Markup:
    """The chart as an <svg> with title and description."""
    width, height = chart.size
    x, y = _axes(chart, width, height)
    key = chart.key
    parts = [
        Markup('<title id="{0}-title">{1}</title><desc id="{0}-desc">{2}</desc>').format(
            key, chart.title, chart.summary
        ),
        _grid(chart, x, y, width),
        *(_curve(series, x, y) for series in chart.series),
        Markup('<line class="cursor" x1="0" x2="0" y1="{}" y2="{}"/>').format(y.end, y.start),
    ]
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{}-title {}-desc">{}</svg>').format(
        width, height, key, key, Markup("").join(parts)
    )


def read_out(chart: Chart) -> str:
    """For the pointer, as JSON: the pixel of each position on the x axis, and the text for it."""
    x, _ = _axes(chart, *chart.size)
    positions = _positions(chart, _MOST_POINTS)
    series = [(s.name if len(chart.series) > 1 else "", _values(s)) for s in chart.series]
    texts = []
    for position in positions:
        values_there = [
            f"{name} {_formatted(values[position], chart.y_percent)}".strip()
            for name, values in series
            if position in values
        ]
        texts.append(f"{chart.x_label} {_formatted(position, chart.x_percent)}: {', '.join(values_there)}")
    return json.dumps({"x": [x.pixel(position) for position in positions], "said": texts}, ensure_ascii=False)


def table(chart: Chart) -> dict[str, list[str] | list[list[str]]]:
    """The numbers behind the chart: a head, and at most sixty rows, evenly chosen."""
    columns = [_values(s) for s in chart.series]
    rows = [
        [
            _formatted(position, chart.x_percent),
            *(
                _formatted(values[position], chart.y_percent) if position in values else "–"
                for values in columns
            ),
        ]
        for position in _positions(chart, _MOST_ROWS)
    ]
    return {"head": [chart.x_label, *(s.name for s in chart.series)], "rows": rows}


def legend_mark(series: Series) -> Markup:
    """The line and marker of a series, for a legend."""
    line = Markup('<path class="line {}" d="M1 7H27"/>').format(_look(series))
    mark = marker(series, 14, 7) if series.markers else Markup("")
    return Markup('<svg class="mark" viewBox="0 0 28 14" aria-hidden="true">{}{}</svg>').format(line, mark)


# ---------------------------------------------------------------------------------------------------


def _axes(chart: Chart, width: int, height: int) -> tuple[Axis, Axis]:
    xs = [v for s in chart.series for v in s.x]
    ys = [v for s in chart.series for v in s.y]
    for s in chart.series:
        if s.error is not None:
            ys += [y + side * e for y, e in zip(s.y, s.error, strict=True) for side in (-1, 1)]
    bottom, top = height - 38.0, 26.0
    y = axis_for(
        ys, start=bottom, end=top, fixed=chart.y_range, zero=chart.zero, percent=chart.y_percent,
        most=5 if height < 260 else 6,
    )  # fmt: skip
    left = 12 + _LETTER * max((len(y.label(t)) for t in y.ticks), default=1)
    x = axis_for(
        xs, start=left, end=width - 14.0, fixed=chart.x_range, percent=chart.x_percent,
        most=max(3, round((width - left) / 62)), tight=True,
    )  # fmt: skip
    return x, y


def _grid(chart: Chart, x: Axis, y: Axis, width: int) -> Markup:
    parts = []
    left, right = x.start, x.end
    for tick in y.ticks:
        at = y.pixel(tick)
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(left, at, right))
        text = y.label(tick)
        parts.append(Markup('<text class="tick end" x="{}" y="{}">{}</text>').format(left - 7, at + 4, text))
    for tick in x.ticks:
        at = x.pixel(tick)
        parts.append(Markup('<path class="axis" d="M{} {}v5"/>').format(at, y.start))
        text = x.label(tick)
        # The last label would stand out of the picture, and the first over the y axis: align them inwards.
        anchor = "end" if at + _LETTER * len(text) / 2 > width else "middle"
        tick_x = min(at, width - 1) if anchor == "middle" else width - 1
        parts.append(
            Markup('<text class="tick {}" x="{}" y="{}">{}</text>').format(anchor, tick_x, y.start + 17, text)
        )
    parts.append(Markup('<path class="axis" d="M{} {}H{}"/>').format(left, y.start, right))
    parts.append(Markup('<text class="label" x="0" y="12">{}</text>').format(chart.y_label))
    parts.append(
        Markup('<text class="label end" x="{}" y="{}">{}</text>').format(right, y.start + 34, chart.x_label)
    )
    return Markup("").join(parts)


def _curve(series: Series, x: Axis, y: Axis) -> Markup:
    points = [(x.pixel(a), y.pixel(b)) for a, b in _thinned(series)]
    if not points:
        return Markup("")
    path = "M" + "L".join(f"{a:g} {b:g}" for a, b in points)
    look = _look(series)
    parts = []
    if series.fill:
        area = f"{path}L{points[-1][0]:g} {y.start:g}L{points[0][0]:g} {y.start:g}Z"
        parts.append(Markup('<path class="area {}" d="{}"/>').format(look, area))
    if series.error is not None:
        bars = zip(series.x, series.y, series.error, strict=True)
        parts += [_error(x.pixel(a), b, e, y, look) for a, b, e in bars]
    if len(points) > 1:
        parts.append(Markup('<path class="line {}" d="{}"/>').format(look, path))
    if series.markers or len(points) == 1:
        parts += [marker(series, a, b) for a, b in points]
    return Markup("").join(parts)


def _error(at: float, value: float, error: float, y: Axis, look: str) -> Markup:
    low, high = y.pixel(value - error), y.pixel(value + error)
    return Markup('<path class="error {}" d="M{:g} {}V{}"/>').format(look, at, low, high)


def marker(series: Series, a: float, b: float) -> Markup:
    """The mark of a series at a pixel."""
    number = series.look if isinstance(series.look, int) else 0
    shapes = (
        f"M{a - 3.4:g} {b:g}a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0Z",
        f"M{a - 3:g} {b - 3:g}h6v6h-6Z",
        f"M{a:g} {b - 4:g}l4 7h-8Z",
        f"M{a:g} {b - 4.2:g}l4.2 4.2l-4.2 4.2l-4.2 -4.2Z",
        f"M{a:g} {b + 4:g}l4 -7h-8Z",
    )
    return Markup('<path class="marker {}" d="{}"/>').format(_look(series), shapes[number % len(shapes)])


def _look(series: Series) -> str:
    return series.look if isinstance(series.look, str) else f"s{series.look % COLORS}"


def _thinned(series: Series) -> list[tuple[float, float]]:
    """Few enough points to draw, with the lowest and the highest of every stretch: no spike is lost."""
    points = list(zip(series.x, series.y, strict=True))
    if len(points) <= _MOST_POINTS:
        return points
    kept = {0, len(points) - 1}
    for part in np.array_split(np.arange(len(points)), _MOST_POINTS // 2):
        values = [points[i][1] for i in part]
        kept |= {int(part[np.argmin(values)]), int(part[np.argmax(values)])}
    return [points[i] for i in sorted(kept)]


def _positions(chart: Chart, most: int) -> list[float]:
    positions = sorted({float(v) for s in chart.series for v in s.x})
    return [positions[i] for i in _chosen(len(positions), most)]


def _chosen(size: int, most: int) -> list[int]:
    """At most so many indices, evenly, the first and the last among them."""
    if size <= most:
        return list(range(size))
    return sorted({round(k * (size - 1) / (most - 1)) for k in range(most)})


def _values(series: Series) -> dict[float, float]:
    return dict(zip(map(float, series.x), series.y, strict=True))


def _formatted(value: float, share: bool) -> str:
    if share and math.isfinite(value):
        return percent(value, 4)
    return pretty(value)


# ---------------------------------------------------------------------------------------------------
# scales and ticks: where a value goes, and which values are written beside an axis


@dataclass(frozen=True)
class Axis:
    """A range of values on a range of pixels."""

    low: float
    high: float
    start: float  # the pixel of `low`
    end: float
    ticks: tuple[float, ...]
    percent: bool = False

    def pixel(self, value: float) -> float:
        """The pixel of a value, kept within the axis."""
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(self.start + share * (self.end - self.start), 2)

    def label(self, tick: float) -> str:
        """A tick as text; all ticks have as many decimals."""
        if self.percent:
            return percent(tick)
        top = max(abs(self.low), abs(self.high))
        if tick == 0 or 1e-4 <= top < 1e6:
            gap = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
            places = next((k for k in range(9) if abs(round(gap, k) - gap) < 1e-6 * gap), 9)
            if not places or not tick:
                return count(round(tick))
            return f"{tick:.{places}f}".replace("-", "−")
        return scientific(tick)


def axis_for(
    values: Sequence[float],
    *,
    start: float,
    end: float,
    fixed: tuple[float, float] | None = None,
    zero: bool = False,
    percent: bool = False,
    most: int = 6,
    tight: bool = False,
) -> Axis:
    """An axis that holds all values; `fixed` says its ends, `zero` that 0 belongs to it.

    `tight` ends it at the values themselves instead of at ticks, as a time axis does.
    """
    low, high = (min(values), max(values)) if fixed is None else fixed
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high, tight = *_around(low), False
    gap = _nice((high - low) / max(most - 1, 1))
    if fixed is None and not tight:
        low, high = gap * math.floor(low / gap + 1e-9), gap * math.ceil(high / gap - 1e-9)
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    ticks = tuple(float(f"{gap * k:.12g}") for k in range(first, last + 1))
    return Axis(low, high, start, end, ticks, percent)


def _around(value: float) -> tuple[float, float]:
    """Room for a constant: from 0 to twice its size, or −1 to 1."""
    if value == 0:
        return -1.0, 1.0
    return (0.0, 2 * value) if value > 0 else (2 * value, 0.0)


def _nice(gap: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(gap))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= gap * (1 - 1e-9))
