"""python -m experiments.verdicts: what repeats of the papers, from the committed runs.

Writes the table *paper / ours / verdict* of every page on a paper, at its marker, and the summary of
docs/reproductions/index.md. Nothing is run. Call it when runs were added or a page was made anew.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.figures import markdown
from experiments.verdicts import dope, linear, small
from experiments.verdicts.leads import Claim

DOCS = Path(__file__).parent.parent.parent / "docs" / "reproductions"
_BLOCK = re.compile(r"<!-- verdicts -->(.*?<!-- end of verdicts -->)?", re.DOTALL)
_NOTE = (
    "A lead is a difference of means, paired by seed where seeds are shared, with its standard error. "
    "*Repeats*: ahead by more than two standard errors in every cell in which the paper is ahead, and each "
    "was run twice or more; *repeats in part*: in some of those cells; *does not repeat*: in none. "
    "`python -m experiments.verdicts` makes this table from the committed runs."
)
_NAMED = 2  # claims that do not repeat, by name
VERDICTS = ("repeats", "repeats in part", "does not repeat", "not testable here")
PAPERS = {
    "ppsgd_table2": ("Table 2", "PPSGD (Wang & Zhou, AAAI 2020)"),
    "ppsgd_figures": ("Figures 2 and 3", "PPSGD"),
    "rsgd_figures": ("Figures 1 to 3", "RSGD-AR (Chen, Lee & Kifer, AISTATS 2019)"),
    "coupling_table3": ("Table 3, MNIST", "Coupling (Liu, Bu, Wang, Zha & Karypis 2024)"),
    "coupling_text": ("Table 3, SST-2 and QNLI", "Coupling, with another encoder"),
    "dope_table9": ("Tables 1, 2 and 9, CIFAR-10", "DOPE-SGD (Nasr et al., ICML 2023)"),
    "deep_tables": ("the deep tables, in small", "DOPE-SGD and Coupling, on features of CIFAR-10"),
    "dope_wikitext": ("Tables 2 and 6, WikiText-2", "DOPE-SGD"),
    "dope_federated": ("Table 7, federated", "DOPE-SGD"),
}


def main() -> None:
    claims = [*linear.claims(), *dope.claims(), *small.claims()]
    for page in PAPERS:
        path = DOCS / f"{page}.md"
        path.write_text(filled(path.read_text(), table([claim for claim in claims if claim.page == page])))
    path = DOCS / "index.md"
    path.write_text(filled(path.read_text(), summary(claims)))


def filled(text: str, block: str) -> str:
    """A page with the block at its marker, in the place of an earlier one."""
    if not _BLOCK.search(text):
        raise SystemExit("a page lacks its line <!-- verdicts -->")
    return _BLOCK.sub(lambda _: f"<!-- verdicts -->\n{block}\n<!-- end of verdicts -->", text, count=1)


def table(claims: Sequence[Claim]) -> str:
    """One line per claim, and what would settle those that do not repeat."""
    rows = [[c.table, c.says, c.paper, c.ours, f"**{c.verdict}**"] for c in claims]
    lines = [markdown(["", "the paper says", "paper", "ours", "verdict"], rows), "", _NOTE]
    unsettled: dict[str, dict[str, None]] = {}
    for claim in claims:
        if claim.verdict in ("does not repeat", "not testable here"):
            unsettled.setdefault(claim.settles, {})[claim.table] = None
    if unsettled:
        parts = [f"{settles} ({', '.join(named)})" for settles, named in unsettled.items()]
        lines += ["", f"Still needed: {'; '.join(parts)}."]
    return "\n".join(lines)


def summary(claims: Sequence[Claim]) -> str:
    """One line per page: how many claims of the paper repeat, and the first that do not."""
    rows = []
    for page, (title, paper) in PAPERS.items():
        mine = [claim for claim in claims if claim.page == page]
        counts = Counter[str](claim.verdict for claim in mine)
        failed = [f"{claim.says} ({claim.table})" for claim in mine if claim.verdict == "does not repeat"]
        named = "; ".join(failed[:_NAMED]) + (
            f"; {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        )
        rows.append(
            [f"[{title}]({page}.md)", paper, *(f"{counts[verdict] or ''}" for verdict in VERDICTS), named]
        )
    return markdown(["page", "paper", *VERDICTS, "what does not"], rows)


if __name__ == "__main__":
    main()
