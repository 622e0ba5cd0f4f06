"""The report: a card as one HTML file that opens offline and asks nothing of any network."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from sidelight.files import write_text
from sidelight.report.card import Card
from sidelight.report.numbers import raised
from sidelight.report.results import in_words, label
from sidelight.report.view import view

__all__ = ["html", "write_report"]


def html(card: Card) -> str:
    """The whole report. Every text from the card is escaped; no script but ours may run."""
    css, js = _css(), _read("report.js")
    policy = (
        f"default-src 'none'; script-src {_hash(js)}; style-src {_hash(css)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return _template().render(policy=policy, css=Markup(css), js=Markup(js), **view(card))


def write_report(card: Card, path: str | os.PathLike[str]) -> None:
    """Write the report, whole or not at all."""
    write_text(path, html(card))


@functools.cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(label=label, in_words=in_words)
    environment.filters["raised"] = raised
    return environment.from_string(_read("report.html.j2"))


@functools.cache
def _read(name: str) -> str:
    return resources.files("sidelight.report").joinpath("template", name).read_text(encoding="utf-8")


def _css() -> str:
    """The style sheet; its dark colours are written once and used by the system's wish and by the switch."""
    return _read("report.css").replace("/*dark*/", _read("dark.css"))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
