"""docs/zoo.md, made of the lists of correct models and of mistakes; tests check that each line is true."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.mistakes.more_mistakes import ELSEWHERE, MISTAKES
from tests.mistakes.zoo import CASES, Case

PAGE = Path(__file__).parents[2] / "docs/zoo.md"
GROUPS = list(dict.fromkeys(made.case.group for made in MISTAKES.values()))
ROUTES = {"layers": "fast", "vmap": "vmap", "loop": "loop"}
_TOP = """# Models and mistakes, one by one

How sidelight treats {models} correct models and {mistakes} common mistakes. The lists are in
`tests/mistakes`, tests check every line of this page, and `python -m tests.mistakes.page` writes it.

**Correct models.** All of them are trained, and correctly: the clipped sum is compared with float64
gradients computed for each record alone. Models that draw random numbers even in evaluation mode are
instead compared with themselves under the same seed, after one record is added and after one is moved far
away. The *route* says how per-record gradients are computed:

- **fast**: one forward and one backward pass for the whole batch.
- **vmap**: `torch.func`, many records at a time. It stores every gradient, which takes more time and
  memory.
- **loop**: one record at a time, if no other route is exact. The reason is logged once.

The times are in [routes and their price](benchmarks/step.md#routes-and-their-price). The routes below are
those for passes of 8 records.

**Mistakes.** Each is either refused before anything is charged, with an error that contains the words in
the last column, or computed correctly.
"""


def page() -> str:
    count = len(MISTAKES) + len(ELSEWHERE)
    return "\n".join([_TOP.format(models=len(CASES), mistakes=count), *_models(), *_mistakes()]) + "\n"


def _models() -> Iterator[str]:
    for group, cases in groupby(CASES.values(), key=lambda case: case.group):
        yield f"## Correct: {group}\n\n| model | verdict | route | why |\n| --- | --- | --- | --- |"
        for case in cases:
            verdict = "right (random)" if case.random else "exact"
            yield f"| {case.name} | {verdict} | {_route(case)} |"
        yield ""


def _route(case: Case) -> str:
    return f"{ROUTES[case.route]} | {case.why}"


def _mistakes() -> Iterator[str]:
    of = sorted(MISTAKES.values(), key=lambda made: GROUPS.index(made.case.group))
    for group, some in groupby(of, key=lambda made: made.case.group):
        yield f"## Mistakes: {group}\n\n| mistake | verdict | error, or route |\n| --- | --- | --- |"
        for made in some:
            route = f"{ROUTES[made.case.route]}: {made.case.why}".removesuffix(": ")
            verdict, words = ("refused", made.keyword) if made.keyword else ("computed correctly", route)
            yield f"| {made.case.name} | {verdict} | {words} |"
        yield ""
    yield "## Mistakes: tested elsewhere\n\n| mistake | verdict | test |\n| --- | --- | --- |"
    yield from (f"| {name} | {verdict} | `{where}` |" for name, (verdict, where) in ELSEWHERE.items())


if __name__ == "__main__":
    PAGE.write_text(page())
