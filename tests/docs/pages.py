"""The pages of the documentation, and the blocks of code in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block. `reason` is set by a line <!-- not run: why --> above it."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page,
            1 + text[: match.start("code")].count("\n"),
            match["language"].strip(),
            match["code"],
            match["reason"],
        )
        for match in _FENCE.finditer(text)
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))
