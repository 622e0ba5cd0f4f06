"""The report in headless Chromium: what a reader sees, hears from a screen reader, prints and clicks."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.report.cards import card, full_card, hostile_card

from sidelight.report import Card, write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    for name, one in {
        "full": full_card(),
        "hostile": hostile_card(),
        "none": card("non_private"),
        "unused": card("only_public"),
        "mixture": card("rsgd_ar"),
        "warned": warned_card(),
    }.items():
        write_report(one, folder / f"{name}.html")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


def warned_card() -> Card:
    """With every fact at the head of page one, and every warning that a declared fact can cause."""
    who = ("purpose", "controller", "operator", "legal_basis", "recipients", "data_subjects", "necessity")
    not_true = ("public_is_public", "public_is_independent", "nothing_else_released")
    facts = {name: "a few words" for name in who} | dict.fromkeys(not_true, False)
    columns = {**full_card().data, "columns": ["race"]}
    special = {"special_categories": ["race"], "records_per_person": 4}
    return replace(full_card(), facts=facts | special, data=columns)


class Visit:
    """A page, with everything that it complained about or asked for."""

    def __init__(self, browser: Any, file: Path, *, width: int = 1100, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.context.route("**/*", self._route)
        self.page.goto(file.as_uri())

    def _route(self, route: Any) -> None:
        self.requests.append(route.request.url)
        route.continue_() if route.request.url.startswith("file:") else route.abort()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def colors(self) -> tuple[float, float]:
        """Brightness of background and text, 0 to 1."""
        found = self.page.evaluate(
            "() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]; }"
        )
        return tuple(sum(map(int, re.findall(r"\d+", one)[:3])) / 765 for one in found)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["full", "hostile", "none", "unused", "mixture"])
def test_no_complaint_and_no_request_leaves_the_page(browser: Any, pages: Path, name: str) -> None:
    with Visit(browser, pages / f"{name}.html") as visit:
        visit.page.wait_for_load_state("networkidle")
        assert visit.complaints == []
        assert visit.requests == [(pages / f"{name}.html").as_uri()]  # itself, and nothing else


def test_the_policy_stops_a_script_that_is_not_ours(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "full.html") as visit:
        visit.page.evaluate(
            "() => { const s = document.createElement('script'); s.textContent = 'window.intruder = 1';"
            " document.body.append(s); const i = new Image(); i.src = 'https://example.org/x.png';"
            " document.body.append(i); }"
        )
        visit.page.wait_for_timeout(100)
        assert visit.page.evaluate("() => window.intruder") is None
        assert any("Content Security Policy" in text for text in visit.complaints)
        assert not [url for url in visit.requests if "example.org" in url]


def test_charts_are_drawn(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "full.html") as visit:
        drawn = visit.page.evaluate(
            """() => [...document.querySelectorAll('.plot svg')].map(svg => ({
                title: svg.querySelector('title').textContent, desc: svg.querySelector('desc').textContent,
                box: (b => [b.width, b.height])(svg.getBoundingClientRect()),
                lines: [...svg.querySelectorAll('path.line, path.grid')].map(p =>
                    [p.getAttribute('d'), p.getTotalLength(), getComputedStyle(p).stroke])}))"""
        )
        assert len(drawn) >= 8
        for one in drawn:
            assert one["title"] and one["desc"] and min(one["box"]) > 150
            assert one["lines"]
            for path, length, stroke in one["lines"]:
                assert not re.search("NaN|Infinity|undefined", path) and length > 50
                assert stroke not in ("none", "rgba(0, 0, 0, 0)")


def test_labels_of_the_charts_do_not_overlap_or_leave_the_page(browser: Any, pages: Path) -> None:
    for width in (1100, 390):
        with Visit(browser, pages / "full.html", width=width) as visit:
            boxes = visit.page.evaluate(
                """() => [...document.querySelectorAll('.plot svg')]
                  .filter(svg => svg.getBoundingClientRect().width)
                  .map(svg => [...svg.querySelectorAll('text')].map(text => {
                    const box = text.getBoundingClientRect();
                    return [text.textContent, box.left, box.top, box.right, box.bottom]; }))"""
            )
            assert len(boxes) >= 8
            for texts in boxes:
                for i, (a, left, top, right, bottom) in enumerate(texts):
                    assert left >= -1 and right <= width + 1, a
                    for b, left2, top2, right2, bottom2 in texts[i + 1 :]:
                        apart = right <= left2 or right2 <= left or bottom - 3 <= top2 or bottom2 - 3 <= top
                        assert apart, f"{a!r} over {b!r} at {width}"


def test_dark_and_light_follow_the_system_and_the_switch(browser: Any, pages: Path) -> None:
    for scheme, other in (("light", "dark"), ("dark", "light")):
        with Visit(browser, pages / "full.html", scheme=scheme) as visit:
            background, text = visit.colors()
            assert (background > text) == (scheme == "light") and abs(background - text) > 0.6
            button = visit.page.locator("#theme")
            assert button.inner_text() == f"{other.capitalize()} theme"
            button.click()
            background, text = visit.colors()
            assert (background > text) == (other == "light") and abs(background - text) > 0.6
            visit.page.locator("#theme").click()
            assert (visit.colors()[0] > visit.colors()[1]) == (scheme == "light")


def test_every_text_can_be_read(browser: Any, pages: Path) -> None:
    """WCAG AA: a contrast of 4.5 for all text, in both themes; and no text below 11 pixels."""
    script = (Path(__file__).parent / "contrast.js").read_text()
    for scheme in ("light", "dark"):
        for name in ("full", "none"):
            with Visit(browser, pages / f"{name}.html", scheme=scheme) as visit:
                found = visit.page.evaluate(script)
                assert found["seen"] > 100 and found["bad"] == []


@pytest.mark.parametrize("name", ["full", "none", "unused", "hostile"])
def test_a_phone_needs_no_sideways_scrolling(browser: Any, pages: Path, name: str) -> None:
    with Visit(browser, pages / f"{name}.html", width=390) as visit:
        wide, seen = visit.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        assert wide <= seen == 390


def test_the_keyboard_reaches_everything(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "full.html") as visit:
        seen = []
        for _ in range(70):
            visit.page.keyboard.press("Tab")
            seen.append(
                visit.page.evaluate(
                    "() => { const e = document.activeElement; return e.id || e.className || e.tagName; }"
                )
            )
        assert seen[0] == "skip" and seen[1] == "theme"
        assert {"plot", "scroll", "SUMMARY"} <= set(seen)
        before = visit.colors()
        visit.page.locator("#theme").focus()
        visit.page.keyboard.press("Enter")
        assert visit.colors() != before
        ring = "() => getComputedStyle(document.activeElement).outlineStyle"
        assert visit.page.evaluate(ring) == "solid"


def test_pointer_and_arrow_keys_read_values_out(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "full.html") as visit:
        plot = visit.page.locator(".plot").first
        output = visit.page.locator("figure output").first
        assert output.inner_text() == ""
        plot.hover()
        assert "best attacker" in output.inner_text() and "blind guessing" in output.inner_text()
        visit.page.mouse.move(2, 2)
        plot.focus()
        said = json.loads(plot.get_attribute("data-read") or "")["said"]
        for key, index in (("Home", 0), ("ArrowRight", 1), ("End", -1), ("ArrowLeft", -2), ("ArrowLeft", -3)):
            visit.page.keyboard.press(key)
            assert output.inner_text() == said[index]
        visit.page.keyboard.press("Escape")
        assert output.inner_text() == ""


def test_numbers_open_as_a_table(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "full.html") as visit:
        details = visit.page.locator("details.numbers").first
        assert not details.locator("table").is_visible()
        details.locator("summary").focus()
        visit.page.keyboard.press("Enter")
        assert details.locator("table").is_visible() and details.locator("tbody tr").count() >= 20


def test_print_is_light_on_white_without_controls(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "full.html", scheme="dark") as visit:
        visit.page.locator("#theme").click()
        visit.page.locator("#theme").click()  # dark by the switch as well
        visit.page.emulate_media(media="print", color_scheme="dark")
        background, text = visit.colors()
        assert background > 0.95 and text < 0.3
        for hidden in ("#theme", "nav", "details", "output"):
            assert not visit.page.locator(hidden).first.is_visible()
        assert visit.page.locator(".plot").first.is_visible()
        pdf = visit.page.pdf(format="A4", prefer_css_page_size=True)
        assert pdf.startswith(b"%PDF") and 3 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 8


@pytest.mark.parametrize("name", ["full", "warned"])
def test_what_is_signed_is_one_page(browser: Any, pages: Path, name: str) -> None:
    """As laid out for A4, whose printable height is 273 mm."""
    with Visit(browser, pages / f"{name}.html", width=688) as visit:  # 182 mm
        visit.page.emulate_media(media="print")
        box = visit.page.locator(".sheet").bounding_box()
        assert box is not None and box["y"] + box["height"] < 273 / 25.4 * 96


def test_headings_tables_and_pictures_have_names(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "full.html") as visit:
        page = visit.page
        levels = page.evaluate("() => [...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(b - a <= 1 for a, b in pairwise(levels))
        named = page.evaluate(
            "() => [...document.querySelectorAll('svg[role=img]')].every(s => "
            "s.getAttribute('aria-labelledby').split(' ').every(id => document.getElementById(id)))"
        )
        assert named
        heads = page.evaluate(
            "() => [...document.querySelectorAll('th')].every(th => th.hasAttribute('scope'))"
        )
        assert heads and page.evaluate("() => document.documentElement.lang") == "en"
