"""The site builds strictly, shows every public name, and asks nobody for anything."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, name_of

import sidelight

HOOKS = ROOT / "docs/_hooks"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists(), name_of(page)
    assert not (site / "_hooks").exists()


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """Names load lazily from `sidelight`, so the reference documents the modules that define them."""
    pages = "\n".join(page.read_text() for page in (site / "api").glob("*.html"))
    headings = set(re.findall(r'id="sidelight\.(?:\w+\.)*?(\w+)"', pages))
    hidden = {"__version__", "Relation"}  # a string, and a type alias
    assert sorted(set(sidelight.__all__) - hidden - headings) == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of another host in any page. (Links are fine.)"""
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|img|iframe|source)[^>]*>|<link[^>]*>", page.read_text()):
            if 'rel="canonical"' not in tag:
                assert not re.search(r'(?:src|href)="?(?:https?:)?//', tag), (page.name, tag)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(?:https?:)?//|@import", style.read_text()), style.name


def test_formulas_are_drawn_and_lists_are_lists(site: Path) -> None:
    text = (site / "specification.html").read_text()
    assert text.count("<math") > 500 and not re.search(r"§m\d|\$\\|\\frac", text)
    assert "<li><em>PPSGD</em>" in (site / "reproductions/ppsgd_table2.html").read_text()


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site, served."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium is installed")
def test_pages_open_without_errors_and_fit_a_phone(address: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        program = shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        asked: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda one: asked.append(one.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        for name in ("index", "choosing", "specification", "reproductions/ppsgd_table2", "api/estimators"):
            page.goto(f"{address}{name}.html")
            wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.evaluate(wider) <= 0, f"{name} is wider than a phone"
        browser.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


# ---------------------------------------------------------------------------------------------------
# the hooks


def hook(name: str) -> object:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", HOOKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        (r"\varepsilon", "<mi>&#x003B5;</mi>"),
        (r"x_i^2", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        (r"\frac{1}{a-1}", "<mfrac><mrow><mn>1</mn></mrow><mrow><mi>a</mi>"),
        (r"\sqrt{2}", "<msqrt><mrow><mn>2</mn></mrow></msqrt>"),
        (r"a<b", "&#x0003C;"),
        (r"\mathcal N(0,1)", "<mi>𝒩</mi>"),  # letters: browsers do not draw the attribute
        (r"\mathbb R^d", "<mi>ℝ</mi>"),
        (r"\mathbb 1", "<mn>𝟙</mn>"),
        (r"\arg\min_x", "<mo>arg</mo>"),
        (r"\begin{cases}1&x\\0&y\end{cases}", '<mtd columnalign="left"><mi>y</mi></mtd>'),
    ],
)
def test_latex_becomes_mathml(latex: str, expected: str) -> None:
    maths = hook("maths")
    assert expected in maths.mathml(latex)  # type: ignore[attr-defined]


@pytest.mark.parametrize("latex", [r"\unheardof", r"\frac{1}", r"{a", r"x_"])
def test_unknown_latex_is_an_error(latex: str) -> None:
    maths = hook("maths")
    with pytest.raises(maths.UnknownMacro):  # type: ignore[attr-defined]
        maths.mathml(latex)  # type: ignore[attr-defined]


def test_code_is_left_alone() -> None:
    pages = hook("pages")
    text = "costs $x$\n\n```\na $b$ c\n- d\n```\n`$e$` and $f$"
    found: list[str] = []
    hidden = pages.hide_formulas(text, found)  # type: ignore[attr-defined]
    assert len(found) == 2 and "a $b$ c" in hidden and "`$e$`" in hidden
    assert pages.spaced_lists("```\na\n- b\n```") == "```\na\n- b\n```"  # type: ignore[attr-defined]
    assert pages.spaced_lists("a\n- b\n- c\n  d\n- e") == "a\n\n- b\n- c\n  d\n- e"  # type: ignore[attr-defined]
