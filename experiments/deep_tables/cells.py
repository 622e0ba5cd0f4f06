"""The cells of every table and figure, as jobs.

A job names its problem, its method and what differs; B, the number of steps, C, the step size and its decay
are `plan_for` and `step_size_for`, the rules of `Trainer` where nothing is rehearsed. A cell that occurs in
several tables runs once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["FIELDS", "TABLES", "job"]

FIELDS = (
    "problem", "method", "epsilon", "public", "start", "copies", "corrupt", "finish", "option", "seed",
)  # fmt: skip
Cell = dict[str, Any]


def job(problem: str, method: str, **others: Any) -> Cell:
    usual = {"epsilon": 2.0, "public": 2_000 if problem == "cifar" else 500, "start": "cold", "copies": 0}
    made = {"problem": problem, "method": method, **usual, "corrupt": "", "finish": "last", "option": ""}
    return {**made, "seed": 0, **others}


def cifar(method: str, **others: Any) -> Cell:
    return job("cifar", method, **others)


def mnist(method: str, **others: Any) -> Cell:
    return job("mnist", method, **others)


def _table1() -> Iterable[Cell]:
    yield cifar("dp_sgd")
    yield cifar("only_public", start="warm")
    yield cifar("only_public", start="warm", copies=4)
    yield cifar("dp_sgd", start="warm")
    for method in ("dp_sgd", "dope_sgd"):
        yield cifar(method, start="warm", copies=4)
        yield cifar(method, start="warm-ext", copies=4)
    yield cifar("dope_sgd", start="warm-ext", copies=4, finish="vote 100")
    yield cifar("dope_sgd", start="warm-ext", copies=4, finish="mean 100")


def _table3() -> Iterable[Cell]:
    for epsilon in (2.0, 4.0, 6.0):
        for method in ("dpmd", "adadps", "coupling", "dope_sgd"):
            for copies in (0, 4):
                yield cifar(method, epsilon=epsilon, start="warm", copies=copies)


def _table4() -> Iterable[Cell]:
    for epsilon in (2.0, 4.0, 6.0):
        for size in (50, 100, 500, 1000, 2000):
            for method in ("dope_sgd", "dp_sgd"):
                yield cifar(method, epsilon=epsilon, public=size, start="warm", copies=4)


def _table5() -> Iterable[Cell]:
    for epsilon in (2.0, 4.0, 6.0):
        for copies in (0, 1, 2, 4):
            yield cifar("dope_sgd", epsilon=epsilon, start="warm", copies=copies)


def _settings(problem: str, copies: int, epsilons: tuple[float, ...]) -> Iterable[Cell]:
    for epsilon in epsilons:
        for method in ("dp_sgd", "dope_sgd"):
            for start in ("cold", "warm", "cold-ext", "warm-ext"):
                plain = (method, start) == ("dp_sgd", "cold")  # no public record is used
                yield job(problem, method, epsilon=epsilon, start=start, copies=0 if plain else copies)


def _table11() -> Iterable[Cell]:
    for corrupt in ("domain", "classes", "labels 0.5"):
        yield cifar("only_public", start="warm", corrupt=corrupt)
        for method, start in (("dp_sgd", "warm"), ("dope_sgd", "cold"), ("dope_sgd", "warm")):
            for option in ("", "limit=inf") if method == "dope_sgd" else ("",):
                yield cifar(method, start=start, corrupt=corrupt, option=option)


def _table12() -> Iterable[Cell]:
    for epsilon in (1.0, 2.0, 4.0, 6.0):
        yield cifar("dp_sgd", epsilon=epsilon)
        for method in ("dp_sgd", "dope_sgd"):
            yield cifar(method, epsilon=epsilon, start="warm", corrupt="domain")


def _figure4() -> Iterable[Cell]:
    for corrupt in ("", "labels 0.25", "labels 0.5", "labels 1.0"):
        for option in ("", "limit=inf"):
            yield cifar("dope_sgd", corrupt=corrupt, option=option)


def _figure5() -> Iterable[Cell]:
    for epsilon in (1.0, 2.0, 4.0):
        for finish in ("last", "mean 100", "vote 100", "ema 0.999"):
            yield cifar("dp_sgd", epsilon=epsilon, finish=finish)


def _figure6() -> Iterable[Cell]:
    for count in (5, 20, 50, 100):
        yield cifar("dp_sgd", epsilon=4.0, finish=f"vote {count}")


def _delta() -> Iterable[Cell]:
    """Figure 1: Δ against ε and the share of public rows, of 10,000 private ones."""
    for epsilon, public in [(e, 500) for e in (2.0, 0.5, 8.0)] + [(2.0, p) for p in (100, 1000, 3000)]:
        yield mnist("non_private", epsilon=0.0, public=public)
        yield mnist("only_public", epsilon=0.0, public=public)
        for method in ("full_private", "coupling", "dpmd", "adamix"):
            yield mnist(method, epsilon=epsilon, public=public)


WEIGHTS = (0.02, 0.1, 0.3, 0.8)


def _weights() -> Iterable[Cell]:
    """Figures 2 and 3: the best weight against ε, the share of public rows, B and T."""
    cases: list[Cell] = [{"epsilon": e} for e in (2.0, 0.5, 8.0)]
    cases += [{"public": p} for p in (100, 3000)]
    cases += [{"option": o} for o in ("batch=128", "batch=2000", "epochs=5", "epochs=60")]
    for case in cases:
        for weight in WEIGHTS:
            more = f"weight={weight:g}"
            both = {**case, "option": ",".join(filter(None, (case.get("option"), more)))}
            yield mnist("coupling", **both)


def _figure4_coupling() -> Iterable[Cell]:
    for start, option in (("cold", ""), ("warm", ""), ("cold", "clip=adaptive"), ("cold", "projection")):
        yield mnist("coupling", start=start, option=option, public=1000)


TABLES: dict[str, list[Cell]] = {
    "DOPE-SGD, Table 1": list(_table1()),
    "DOPE-SGD, Table 9": list(_settings("cifar", 4, (2.0, 1.0, 4.0))),
    "Coupling, Figure 1": list(_delta()),
    "Coupling, Figures 2 and 3": list(_weights()),
    "Coupling, Figure 4": list(_figure4_coupling()),
    "DOPE-SGD, Table 11": list(_table11()),
    "DOPE-SGD, Table 4": list(_table4()),
    "DOPE-SGD, Figures 5 and 6": [*_figure5(), *_figure6()],
    "DOPE-SGD, Figure 4": list(_figure4()),
    "DOPE-SGD, Table 10": list(_settings("mnist", 0, (2.0, 1.0, 4.0))),
    "DOPE-SGD, Table 5": list(_table5()),
    "DOPE-SGD, Table 3": list(_table3()),
    "DOPE-SGD, Table 12": list(_table12()),
}
