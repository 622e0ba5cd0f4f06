"""make tables: what is written of methods, from their declarations.

    python docs/_hooks/method_tables.py            write
    python docs/_hooks/method_tables.py --check    say what is stale, and fail

Between `methods: begin` and `methods: end` stand the table of README.md, that of docs/methods.md and the page
docs/api/methods.md. Nothing there is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from sidelight.methods.declare import DECLARATIONS, GROUPS, Declaration, needs

ROOT = Path(__file__).parents[2]
_TITLES = {
    "chosen for you": "Chosen for you",
    "gradient method": "Gradient methods",
    "convex algorithm": "Convex algorithms",
    "baseline": "Baselines",
}
_BLOCK = re.compile(r"^([^\n]*methods: begin[^\n]*\n)(.*?)^([^\n]*methods: end)", re.M | re.S)


def ours() -> list[Declaration]:
    """The methods of the project; those that somebody imported from elsewhere are not in its documents."""
    return [one for one in DECLARATIONS.values() if one.make.__module__.startswith("sidelight.")]


def relation(declared: Declaration) -> str:
    made = declared.make()
    if not made.private:
        return "no guarantee"
    return "both" if len(made.relations) > 1 else str(made.relations[0])


_FIRST = ("auto", "dp_newton", "dope_sgd", "dp_sgd", "only_public")


def short_table() -> Iterator[str]:
    """README: the few to know."""
    yield "| method | relation | needs public data | when to take it |"
    yield "| --- | --- | --- | --- |"
    for one in sorted((one for one in ours() if one.name in _FIRST), key=lambda one: _FIRST.index(one.name)):
        public = "yes" if one.make().needs_public else "no"
        yield f"| `{one.name}` | {relation(one)} | {public} | {one.wins} |"


def long_table() -> Iterator[str]:
    """docs/methods.md: every declaration, a row each."""
    yield "| method | from | relation | public data | networks | needs | wins | loses |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for one in ours():
        public = "needed" if one.make().needs_public else "–"
        paper = "sidelight" if one.ours else one.paper
        flags = f"{public} | {'yes' if one.networks else '–'} | {needs(one) or '–'}"
        yield f"| `{one.name}` | {paper} | {relation(one)} | {flags} | {one.wins} | {one.loses} |"


def reference() -> Iterator[str]:
    """docs/api/methods.md: the docstrings, group by group."""
    for group in GROUPS:
        yield f"\n## {_TITLES[group]}"
        for one in ours():
            if one.group == group:
                yield f"\n::: {one.make.__module__}.{one.make.__qualname__}"
                options = f"show_root_heading: true, heading: {one.name}, heading_level: 3, members: false"
                yield f"    options: {{{options}}}"
    yield ""


BLOCKS: dict[str, tuple[Callable[[], Iterator[str]], ...]] = {
    "README.md": (short_table,),
    "docs/methods.md": (long_table,),
    "docs/api/methods.md": (reference,),
}


def written(path: str) -> str:
    """The file with its blocks as they should be."""
    makers = iter(BLOCKS[path])
    text, count = _BLOCK.subn(
        lambda block: block[1] + "\n".join(next(makers)()) + "\n" + block[3], (ROOT / path).read_text()
    )
    if count != len(BLOCKS[path]):
        raise SystemExit(f"{path}: expected {len(BLOCKS[path])} blocks of methods, and found {count}")
    return text


def stale() -> list[str]:
    """Files that do not say what the declarations say."""
    return [path for path in BLOCKS if written(path) != (ROOT / path).read_text()]


def main() -> None:
    found = stale()
    if "--check" in sys.argv[1:]:
        sys.exit(f"not what the methods declare: {', '.join(found)}; run make tables" if found else 0)
    for path in found:
        (ROOT / path).write_text(written(path))


if __name__ == "__main__":
    main()
