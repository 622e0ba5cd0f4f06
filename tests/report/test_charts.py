"""Axes with round ticks, drawings with finite places, and numbers rounded to the safe side."""

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from sidelight.numbers import count, down, percent, percent_up, pretty, scientific, up
from sidelight.report.charts import Chart, Series, axis_for, drawing, legend_mark, read_out, table
from sidelight.report.page import raised


def chart(*series: Series, **changes: object) -> Chart:
    settings = {"key": "k", "title": "T", "summary": "S", "x_label": "step", "y_label": "y"} | changes
    return Chart(**settings, series=series)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.0, 0.0947], ["0", "0.025", "0.050", "0.075", "0.100"]),
        ([0.0, 1.0], ["0", "0.25", "0.50", "0.75", "1.00"]),
        ([-3.0, 4.0], ["−4", "−2", "0", "2", "4"]),
        ([0.0, 123456.0], ["0", "50,000", "100,000", "150,000"]),
        ([2e-7, 9e-7], ["2 × 10⁻⁷", "4 × 10⁻⁷", "6 × 10⁻⁷", "8 × 10⁻⁷", "10⁻⁶"]),
        ([5.0], ["0", "2.5", "5.0", "7.5", "10.0"]),
        ([0.0], ["−1.0", "−0.5", "0", "0.5", "1.0"]),
    ],
)
def test_ticks_are_round_and_told_apart(values: list[float], labels: list[str]) -> None:
    axis = axis_for(values, start=0, end=100, most=5)
    found = [axis.label(tick) for tick in axis.ticks]
    assert len(set(found)) == len(found)
    assert found == labels
    assert all(0 <= axis.pixel(v) <= 100 for v in values)


def test_ticks_stand_where_their_label_says() -> None:
    for low, high in [(0, 1), (3.7, 91.2), (-2e-5, 3e-5), (1e7, 3e7), (0.99, 1.01)]:
        axis = axis_for([low, high], start=0, end=100)
        for tick in axis.ticks:
            share = (tick - axis.low) / (axis.high - axis.low)
            assert axis.pixel(tick) == pytest.approx(100 * share, abs=0.01)


def test_drawing_is_well_formed_and_finite() -> None:
    series = Series("a", [1, 2, 3], [1e-9, 5e3, 2.0], [0.0, 10.0, 0.5], markers=True, fill=True)
    root = ET.fromstring(str(drawing(chart(series, Series("b", [1.0], [3.0])))))
    paths = [e.attrib["d"] for e in root.iter("path")]
    numbers = [float(n) for d in paths for n in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", d)]
    assert len(paths) > 10 and all(math.isfinite(n) and abs(n) < 1000 for n in numbers)
    assert root.find("title").text == "T" and root.find("desc").text == "S"  # type: ignore[union-attr]


def test_a_long_line_keeps_its_spike() -> None:
    ys = [1.0] * 20_000
    ys[7777] = 50.0
    text = str(drawing(chart(Series("a", list(range(20_000)), ys))))
    (line,) = re.findall(r'class="line s0" d="([^"]+)"', text)
    heights = {float(point.split()[1]) for point in line[1:].split("L")}
    assert len(line.split("L")) < 410 and len(heights) == 2 and min(heights) < 60


def test_text_is_escaped_everywhere() -> None:
    bad = "<script>\"&'"
    one = chart(Series(bad, [1, 2], [1, 2]), title=bad, summary=bad, x_label=bad, y_label=bad)
    text = str(drawing(one)) + str(legend_mark(one.series[0]))
    assert "<script>" not in text and "&lt;script&gt;" in text
    ET.fromstring(str(drawing(one)))


def test_read_out_names_what_is_there() -> None:
    one = chart(Series("a", [1, 2], [0.5, 0.25]), Series("b", [2], [7.0]))
    data = json.loads(read_out(one))
    assert data["said"] == ["step 1: a 0.5", "step 2: a 0.25, b 7"]
    assert len(data["x"]) == 2 and data["x"][0] < data["x"][1]


def test_table_is_the_alternative() -> None:
    one = chart(Series("a", list(range(500)), [v / 2 for v in range(500)]), Series("b", [499], [7.0]))
    found = table(one)
    assert found["head"] == ["step", "a", "b"] and len(found["rows"]) == 60
    assert found["rows"][0] == ["0", "0", "–"] and found["rows"][-1] == ["499", "249.5", "7"]


@pytest.mark.parametrize("value", [0.12345678, 1 / 3, 2.99999999, 1e-5, 7.77e-9, 123456.789, 1.0000001])
def test_rounding_never_flatters(value: float) -> None:
    def read(text: str) -> float:
        base = text.replace(",", "").replace("−", "-")
        if "10" in base and any(c in base for c in "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"):
            digits = base.split("10", 1)[1].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
            front = base.split("×")[0].strip() if "×" in base else "1"
            return float(front) * 10.0 ** int(digits)
        return float(base)

    for digits in (2, 3, 4):
        assert read(up(value, digits)) >= value * (1 - 1e-12)
        assert read(down(value, digits)) <= value * (1 + 1e-12)
        assert read(up(value, digits)) <= value * (1 + 10.0 ** (1 - digits))


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0"), (1, "1e2"), (0.5, "50"), (0.123456, "12.4"), (0.0183249, "1.84"), (0.00021618, "0.0217"),
     (1e-9, "0.0000001"), (0.99999999, "1e2")],
)  # fmt: skip
def test_percent_up(share: float, text: str) -> None:
    assert percent_up(share) == f"{'100' if text == '1e2' else text}\u202f%"


def test_numbers_for_people() -> None:
    assert pretty(1e-5) == "10⁻⁵" and pretty(3.98e-5) == "3.98 × 10⁻⁵" and pretty(-2.5e-7) == "−2.5 × 10⁻⁷"
    assert pretty(0.1) == "0.1" and pretty(8600) == "8,600" and pretty(12345) == "12,345"
    assert pretty(math.inf) == "∞" and pretty("text") == "text" and pretty(123456.7) == "123,457"
    assert scientific(1e-6) == "10⁻⁶" and count(10**400) == "more than 10³⁰⁰"
    assert percent(0.8912345, 4) == "89.12\u202f%" and percent(1e-6) == "0.0001\u202f%"
    assert raised("<b> 10⁻⁵") == "&lt;b&gt; 10<sup>−5</sup>"
