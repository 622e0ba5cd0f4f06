"""Attacks that try to prove us wrong.

    replay_neighbors(method)   what does one record move, and does anything leave without being released?
    many_runs(method)           train often on two neighboring datasets, and guess which it was
    one_run(method)             many canaries in a single training, and a guess about each

Each takes a name, a configured method or recipe (your own too), or `on_network(...)`, runs it on synthetic
records, and returns an `AuditResult`: the claimed ε beside the proven lower bound, and every broken promise.
An audit can prove a claim wrong; it cannot prove one right.

What an audit prints about its records is not private: never point it at records that need protection.
"""

from __future__ import annotations

from sidelight.audit.replay import replay_neighbors
from sidelight.audit.result import AuditResult, Finding
from sidelight.audit.runs import many_runs, one_run
from sidelight.audit.subjects import Linear, Subject

__all__ = [
    "AuditResult",
    "Finding",
    "Linear",
    "Subject",
    "many_runs",
    "on_network",
    "one_run",
    "replay_neighbors",
]


def __getattr__(name: str) -> object:
    if name != "on_network":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from sidelight.audit.networks import on_network
    except ModuleNotFoundError as error:
        from sidelight.errors import MissingDependency

        raise MissingDependency("networks need PyTorch; pip install torch") from error
    return on_network
