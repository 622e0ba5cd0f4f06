"""LaTeX to MathML, which browsers draw by themselves: no script, nothing fetched.

latex2mathml does it. What it does not know it would show as it is; here that is an error, so that a page
never shows half a formula. Browsers draw the letters 𝔼 and 𝒩, but not the attribute that asks for them.
"""

from __future__ import annotations

import re
import unicodedata
from xml.etree import ElementTree

from latex2mathml.converter import convert

__all__ = ["UnknownMacro", "mathml"]

_VARIANT = re.compile(r'<(mi|mn) mathvariant="(double-struck|script|bold)">(.)</\1>')
_PARTS = {"mfrac": 2, "msub": 2, "msup": 2, "msubsup": 3, "mover": 2, "munder": 2, "munderover": 3}


class UnknownMacro(ValueError):
    """LaTeX that latex2mathml does not know, or that is not whole."""


def mathml(source: str, *, display: bool = False) -> str:
    """A <math> element for a formula."""
    try:
        made: str = convert(_known(source), display="block" if display else "inline")
    except Exception as error:  # its errors have no common type
        raise UnknownMacro(f"{type(error).__name__} in the formula {source}") from error
    if unknown := re.search(r"\\\w+", made):
        raise UnknownMacro(f"{unknown.group(0)} is not known to latex2mathml, in: {source}")
    for node in ElementTree.fromstring(made).iter():
        tag = node.tag.rpartition("}")[2]
        if len(node) != _PARTS.get(tag, len(node)):
            raise UnknownMacro(f"a {tag} lacks a part in the formula {source}")
    return _VARIANT.sub(_letter, made)


def _known(source: str) -> str:
    if source.count("{") != source.count("}"):
        raise UnknownMacro(f"a brace is not closed in the formula {source}")
    return re.sub(r"\\arg(?![a-z])", r"\\operatorname{arg}", source)


def _letter(match: re.Match[str]) -> str:
    """The letter itself: one of Unicode's mathematical alphabets."""
    tag, variant, letter = match.groups()
    name = unicodedata.name(letter).removeprefix("LATIN ").replace(" LETTER", "")  # CAPITAL R, DIGIT ONE
    for family in ("MATHEMATICAL ", ""):  # ℝ and ℒ are older than the alphabets
        try:
            return f"<{tag}>{unicodedata.lookup(f'{family}{variant.upper()} {name}')}</{tag}>"
        except KeyError:
            continue
    raise UnknownMacro(f"Unicode has no {variant} {letter}")
