"""A page of documentation that several benchmarks share: each writes its section, between two comments."""

from __future__ import annotations

import re
from pathlib import Path


def section(page: Path, name: str) -> str:
    """What stands between `<!-- name: begin -->` and `<!-- name: end -->`."""
    return _between(page.read_text(), name).group(2)


def write_section(page: Path, name: str, text: str) -> None:
    """Replace that by this text."""
    old = page.read_text()
    place = _between(old, name)
    page.write_text(f"{old[: place.start(2)]}{text}{old[place.end(2) :]}")


def _between(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"(<!-- {name}: begin -->\n)(.*?)(<!-- {name}: end -->)", text, re.S)
    if found is None:
        raise ValueError(f"the page has no section {name!r}")
    return found
