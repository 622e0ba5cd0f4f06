"""Pages are written as on a code host; this makes the site show them so.

- $…$ and $$…$$ become MathML (maths.py).
- A list may follow its paragraph without an empty line.
- In tables, long paths may break after a slash or an underscore, and "1 ± 2" nowhere.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from maths import mathml

_FORMULAS: dict[str, list[str]] = {}
_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$|`[^`\n]+`", re.M | re.S)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.S)
_BREAK = re.compile(r"(/|::|_)(?=[^\s<>]+<)")
_LIST = re.compile(r"^(?:[-*]|\d+\.) ")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Formulas to placeholders, and empty lines before lists."""
    found: list[str] = []
    _FORMULAS[page.file.src_uri] = found
    return spaced_lists(hide_formulas(markdown, found))


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Placeholders to formulas."""
    found = _FORMULAS.pop(page.file.src_uri, [])
    html = re.sub(r"§m(\d+)§", lambda match: found[int(match.group(1))], html)
    return re.sub(r"<td.*?</td>", lambda cell: tidy_cell(cell.group(0)), html, flags=re.S)


def hide_formulas(markdown: str, found: list[str]) -> str:
    """Everything outside of code; the formulas are appended to `found`."""

    def hide(match: re.Match[str]) -> str:
        found.append(mathml(match.group(1) or match.group(2), display=match.group(1) is not None))
        return f"§m{len(found) - 1}§"

    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_FORMULA.sub(hide, markdown[end : code.start()]), code.group(0)]
        end = code.end()
    return "".join([*parts, _FORMULA.sub(hide, markdown[end:])])


def spaced_lists(markdown: str) -> str:
    """An empty line between a paragraph and the list below it."""
    out: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        before = out[-1] if out else ""
        if (
            not fenced
            and _LIST.match(line)
            and before.strip()
            and not (_LIST.match(before) or before[0] == " ")
        ):
            out.append("")
        out.append(line)
    return "\n".join(out)


def tidy_cell(cell: str) -> str:
    """A long name in code may break at its joints, a number and its error may not."""
    cell = re.sub(r"<code>([^<]{30,})</code>", lambda code: _BREAK.sub(r"\1<wbr>", code.group(0)), cell)
    return cell.replace(" ± ", "\u00a0±\u00a0")
