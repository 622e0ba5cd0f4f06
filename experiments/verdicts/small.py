"""Tables and figures of DOPE-SGD and Coupling in small: features of CIFAR-10, and MNIST as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.deep_tables.cells import FIELDS, TABLES, WEIGHTS, cifar, mnist
from experiments.sweep import read
from experiments.verdicts.leads import Claim, Lead, Seeds, Verdict, lead

__all__ = ["claims"]

SMALL = "deep_tables"
FOLDER = Path(__file__).parent.parent / SMALL
_TEST = 0.7  # points: two accuracies of about 60 % on 10,000 images
_IMAGES = "the same on images ([Table 9](dope_table9.md))"
_BODY = "the same on a pretrained vision transformer"
Row = dict[str, Any]


def claims() -> Iterator[Claim]:
    scores = _Scores()
    yield from _dope(scores)
    yield _dot_products()
    yield from _coupling(scores)


class _Scores:
    """Accuracy by seed of a cell, ours, and the paper's where it gives one."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, ...], dict[str, float]] = {}
        for row in read(FOLDER / "runs.csv"):
            self.rows.setdefault(self._key(row), {})[row["seed"]] = 100 * float(row["accuracy"])
        self.paper = {
            (row["table"], row["cell"]): float(row["accuracy"]) for row in read(FOLDER / "paper.csv")
        }

    @staticmethod
    def _key(cell: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(cell[name]) for name in FIELDS if name != "seed")

    def of(self, cell: Row) -> Seeds:
        return self.rows.get(self._key(cell), {})

    def theirs(self, table: str, cell: Row) -> float | None:
        names = ("method", "epsilon", "start", "public", "copies", "finish", "corrupt")
        named = " ".join(str(cell[name]) for name in names).strip()
        return self.paper.get((f"DOPE-SGD, {table}", named))

    def lead(self, table: str, high: Row, low: Row) -> Lead | None:
        a, b = self.theirs(table, high), self.theirs(table, low)
        ahead = None if a is None or b is None else a - b
        return lead(self.of(high), self.of(low), paper=ahead, noise=_TEST)


def _dope(scores: _Scores) -> Iterator[Claim]:
    def each(table: str, says: str, pairs: Sequence[tuple[Row, Row]], settles: str = _IMAGES) -> Claim:
        return Claim(SMALL, table, says, [scores.lead(table, *pair) for pair in pairs], settles)

    both = [(e, m) for e in (1.0, 2.0, 4.0) for m in ("dp_sgd", "dope_sgd")]
    warm = {"start": "warm", "copies": 4}
    yield each(
        "Table 1", "each technique adds: warm, augmented, extended, DOPE-SGD",
        [
            (cifar("dp_sgd", start="warm"), cifar("dp_sgd")),
            (cifar("dp_sgd", **warm), cifar("dp_sgd", start="warm")),
            (cifar("dp_sgd", start="warm-ext", copies=4), cifar("dp_sgd", **warm)),
            (cifar("dope_sgd", start="warm-ext", copies=4), cifar("dp_sgd", start="warm-ext", copies=4)),
        ],
    )  # fmt: skip
    yield each(
        "Table 3", "DOPE-SGD is ahead of DPMD and AdaDPS",
        [(cifar("dope_sgd", epsilon=e, **warm), cifar(m, epsilon=e, **warm))
         for e in (2.0, 4.0, 6.0) for m in ("dpmd", "adadps")],
    )  # fmt: skip
    yield each(
        "Table 4", "2,000 public images are better than 50",
        [(cifar("dope_sgd", epsilon=e, public=2000, **warm), cifar("dope_sgd", epsilon=e, public=50, **warm))
         for e in (2.0, 4.0, 6.0)],
    )  # fmt: skip
    yield each(
        "Table 5", "four copies of each public image are better than one",
        [(cifar("dope_sgd", epsilon=e, **warm), cifar("dope_sgd", epsilon=e, start="warm", copies=1))
         for e in (2.0, 4.0, 6.0)],
    )  # fmt: skip
    for table, problem, copies in (("Table 9", cifar, 4), ("Table 10", mnist, 0)):
        yield each(
            table, "DOPE-SGD is ahead of DP-SGD from a cold start",
            [(problem("dope_sgd", epsilon=e, copies=copies), problem("dp_sgd", epsilon=e))
             for e in (1.0, 2.0, 4.0)],
        )  # fmt: skip
        yield each(
            table, "DOPE-SGD is ahead of DP-SGD from a warm start",
            [(problem("dope_sgd", epsilon=e, start="warm", copies=copies),
              problem("dp_sgd", epsilon=e, start="warm", copies=copies)) for e in (1.0, 2.0, 4.0)],
        )  # fmt: skip
        yield each(
            table, "public records in the pool help, from a warm start (extended)",
            [(problem(m, epsilon=e, start="warm-ext", copies=copies),
              problem(m, epsilon=e, start="warm", copies=copies)) for e, m in both],
        )  # fmt: skip
    yield each(
        "Figure 4", "with wrong labels a limited origin is ahead of an unlimited one",
        [(cifar("dope_sgd", corrupt=c), cifar("dope_sgd", corrupt=c, option="limit=inf"))
         for c in ("labels 0.25", "labels 0.5", "labels 1.0")],
    )  # fmt: skip
    yield each(
        "Figure 5", "a mean of the last 100 iterates is ahead of the last one",
        [(cifar("dp_sgd", epsilon=e, finish="mean 100"), cifar("dp_sgd", epsilon=e))
         for e in (1.0, 2.0, 4.0)],
        "a step size that stays as it is",
    )  # fmt: skip
    yield each(
        "Figure 6", "a vote of 100 iterates is ahead of one of 5",
        [(cifar("dp_sgd", epsilon=4.0, finish="vote 100"), cifar("dp_sgd", epsilon=4.0, finish="vote 5"))],
        "a step size that stays as it is",
    )  # fmt: skip
    yield each(
        "Table 11", "with imperfect public data DOPE-SGD is ahead of DP-SGD, warm",
        [(cifar("dope_sgd", start="warm", corrupt=c), cifar("dp_sgd", start="warm", corrupt=c))
         for c in ("domain", "classes", "labels 0.5")], "CIFAR-100 as public images",
    )  # fmt: skip
    yield each(
        "Table 12", "with public images of another domain DOPE-SGD is ahead of DP-SGD, warm",
        [(cifar("dope_sgd", epsilon=e, start="warm", corrupt="domain"),
          cifar("dp_sgd", epsilon=e, start="warm", corrupt="domain")) for e in (1.0, 2.0, 4.0, 6.0)],
        "CIFAR-100 as public images",
    )  # fmt: skip


def _dot_products() -> Claim:
    """Figure 2: the release and the true gradient, on average over a run."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in read(FOLDER / "figure2.csv"):
        runs = found.setdefault((row["start"], row["method"]), {})
        runs.setdefault(row["seed"], []).append(float(row["dot"]))
    means = {key: {seed: mean(dots) for seed, dots in runs.items()} for key, runs in found.items()}
    leads = [lead(means[start, "dope_sgd"], means[start, "dp_sgd"]) for start in ("cold", "warm")]
    says = "DOPE-SGD's releases have the larger dot product with the true gradient (cold, warm)"
    return Claim(SMALL, "Figure 2", says, leads, "", digits=3)


def _coupling(scores: _Scores) -> Iterator[Claim]:
    leads = []
    settings = dict.fromkeys((c["epsilon"], c["public"]) for c in TABLES["Coupling, Figure 1"])
    for epsilon, public in settings:
        if epsilon:
            rivals = [scores.of(mnist("only_public", epsilon=0.0, public=public)),
                      scores.of(mnist("full_private", epsilon=epsilon, public=public))]  # fmt: skip
            better = max(rivals, key=lambda known: mean(known.values()) if known else 0.0)
            leads.append(
                lead(scores.of(mnist("coupling", epsilon=epsilon, public=public)), better, noise=_TEST)
            )
    says = "Coupling is ahead of the better of OnlyPub and FullPriv (Δ ≥ 1)"
    yield Claim(SMALL, "Coupling, Figure 1", says, leads, _BODY)
    yield from _weights(scores)
    plain = scores.of(mnist("coupling", public=1000))
    for says, other in (
        ("adaptive clipping loses", mnist("coupling", public=1000, option="clip=adaptive")),
        ("adaptive projection loses", mnist("coupling", public=1000, option="projection")),
    ):
        yield Claim(SMALL, "Coupling, Figure 4", says, [lead(plain, scores.of(other), noise=_TEST)], _BODY)


def _weights(scores: _Scores) -> Iterator[Claim]:
    """Figures 2 and 3: the weight with the best mean accuracy, along ε, public rows, B and epochs."""

    def best(**setting: Any) -> float | None:
        more = setting.pop("option", "")
        found = {}
        for weight in WEIGHTS:
            option = ",".join(filter(None, (more, f"weight={weight:g}")))
            known = scores.of(mnist("coupling", **setting, option=option))
            if known:
                found[weight] = mean(known.values())
        return max(found, key=lambda weight: found[weight]) if found else None

    for says, line in (
        ("the best weight falls as ε grows (.5, 2, 8)", [{"epsilon": e} for e in (0.5, 2.0, 8.0)]),
        ("the best weight grows with the public rows (3,000, 500, 100)",
         [{"public": p} for p in (3000, 500, 100)]),
        ("the best weight is larger for small B (128, 333, 2,000)",
         [{"option": "batch=128"}, {}, {"option": "batch=2000"}]),
    ):  # fmt: skip
        weights = [best(**setting) for setting in line]
        if all(weight is not None for weight in weights):
            known = [weight for weight in weights if weight is not None]
            falls = all(a >= b for a, b in pairwise(known)) and known[0] > known[-1]
            verdict: Verdict = "repeats" if falls else "does not repeat"
            ours = ", ".join(f"{weight:g}" for weight in known)
            stated = ("a plot", ours, verdict)
            yield Claim(SMALL, "Coupling, Figures 2 and 3", says, [], _BODY, stated=stated)
