"""make screenshots: page one of a report, at four budgets, in both themes, on a phone and on paper.

    python -m docs._hooks.screenshots [FOLDER]     writes FOLDER/report-*.png, by default docs/images

Each is a fit of its own of the raw Adult table, without a seed, as `sidelight fit --ledger --facts` makes it.
It needs an installed Chromium, and the folder of datasets that SIDELIGHT_DATA names.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from experiments.adult_tables.__main__ import write_tables
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from sidelight.cli import main as sidelight

IMAGES = Path(__file__).parents[1] / "images"
EPSILONS = (0.5, 1, 3, 20, 100)
FACTS = """
title = "Income above $50,000"
purpose = "Demonstration on a census table of 1994"
controller = "nobody: the table is public"
operator = "make screenshots"
legal_basis = "none is needed"
data_subjects = "people in the United States census of 1994"
recipients = ["readers of this page"]
public_source = "0.5 % of the same table, drawn at random"
public_is_public = true
public_is_independent = true
records_per_person = 1
size_is_public = true
nothing_else_released = true
necessity = "to show a report"
"""
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
           "--disable-sync", "--no-first-run", "--disable-quic")  # fmt: skip
WIDE, PHONE, PAPER, MARGIN = 900, 390, 794, 16  # pixels; paper is A4 at 96 for an inch
SHOTS = (  # name, ε, width, theme, medium
    *((f"report-epsilon-{epsilon:g}", epsilon, WIDE, "light", "screen") for epsilon in (0.5, 3, 20, 100)),
    ("report-light", 1, WIDE, "light", "screen"),
    ("report-dark", 1, WIDE, "dark", "screen"),
    ("report-phone", 1, PHONE, "light", "screen"),
    ("report-a4", 1, PAPER, "light", "print"),
)


def reports(folder: Path) -> None:
    """A model folder for each budget, under ledgers of twice that budget."""
    write_tables(folder, 0)
    (folder / "facts.toml").write_text(FACTS)
    for epsilon in EPSILONS:
        book, delta = str(folder / f"{epsilon:g}.ledger"), "3e-7"
        budget = ("--relation", "add-or-remove-one", "--epsilon", f"{2 * epsilon:g}", "--delta", delta)
        _run("ledger", "init", book, "--name", "adult", *budget)
        _run(
            *(
                "fit",
                str(folder / "private.csv"),
                "--public",
                str(folder / "public.csv"),
                "--target",
                "income",
            ),
            *("--epsilon", f"{epsilon:g}", "--facts", str(folder / "facts.toml"), "--ledger", book),
            *("--out", str(folder / f"{epsilon:g}")),
        )


def _run(*arguments: str) -> None:
    if sidelight(list(arguments)):
        raise SystemExit(f"sidelight {arguments[0]} failed")


def shoot(browser: Browser, report: Path, out: Path, *, width: int, theme: str, medium: str) -> None:
    """Page one alone, in few colors: a file of some tens of kilobytes."""
    page = browser.new_page(viewport={"width": width, "height": 1123}, color_scheme=theme)  # type: ignore[arg-type]
    page.emulate_media(media=medium)  # type: ignore[arg-type]
    page.goto(report.as_uri())
    box = page.locator(".sheet").bounding_box()
    if box is None:
        raise SystemExit(f"{report} has no page one")
    margin = 0 if medium == "print" else MARGIN
    clip = {"x": 0, "y": max(box["y"] - margin, 0), "width": width, "height": box["height"] + 2 * margin}
    page.screenshot(path=str(out), clip=clip, full_page=True)  # type: ignore[arg-type]
    page.close()
    Image.open(out).convert("RGB").quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        out, optimize=True
    )


def main() -> None:
    images = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium is installed")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        reports(Path(name))
        browser = driver.chromium.launch(executable_path=chromium, args=list(OPTIONS))
        for shot, epsilon, width, theme, medium in SHOTS:
            report = Path(name) / f"{epsilon:g}" / "report.html"
            shoot(browser, report, images / f"{shot}.png", width=width, theme=theme, medium=medium)
        browser.close()


if __name__ == "__main__":
    main()
