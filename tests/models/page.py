"""The table of docs/models.md, made of what was measured."""

import math
import re
from importlib.metadata import version
from pathlib import Path

from tests.models.measure import Row

PAGE = Path(__file__).parents[2] / "docs/models.md"
BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
_HEAD = (
    "| model | library | trained parameters | evaluation | training | relative error |\n"
    "| --- | --- | ---: | --- | --- | ---: |"
)


def table(rows: list[Row]) -> str:
    """One line a model; a refusal is quoted below, where it is explained once."""
    notes: dict[str, int] = {}
    lines = [_line(row, notes) for row in rows]
    quoted = [f"{number}. {text}" for text, number in notes.items()]
    return "\n".join([_HEAD, *lines, "", "The refusals:", "", *quoted])


def _line(row: Row, notes: dict[str, int]) -> str:
    library = row.library if row.library == "torch" else f"{row.library} {version(row.library)}"
    trained = f"{row.trained}" if row.trained == row.parameters else f"{row.trained} of {row.parameters}"
    error = "" if row.error is None else f"{_upwards(row.error):.0e}"
    cells = [row.name, library, trained, *(_outcome(o, notes) for o in (row.evaluation, row.training)), error]
    return f"| {' | '.join(cells)} |"


def _outcome(outcome: object, notes: dict[str, int]) -> str:
    verdict, details = getattr(outcome, "verdict", ""), getattr(outcome, "details", "")
    if verdict != "refused":
        return str(verdict)
    number = notes.setdefault(details.replace("|", "\\|"), len(notes) + 1)
    return f"refused ({number})"


def _upwards(error: float) -> float:
    """The next power of ten, so that another machine's last digits change nothing."""
    return 10.0 ** math.ceil(math.log10(max(error, 1e-12)))


def committed() -> str:
    """The table as it stands on the page."""
    found = re.search(f"{BEGIN}\n(.*?)\n{END}", PAGE.read_text(), re.S)
    return found.group(1) if found else ""


def write(rows: list[Row]) -> None:
    """Put the table into the page."""
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


def without_errors(text: str) -> str:
    """The table but for its last column."""
    return "\n".join(re.sub(r"[^|]*\|$", "", line) for line in text.splitlines())
