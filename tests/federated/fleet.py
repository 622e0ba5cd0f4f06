"""Clients that pull a small model toward targets of their own, and a run of them on the audit's tape."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sidelight.audit.tape import Tape, listening
from sidelight.federated import Ask, FederatedServer
from sidelight.methods.coupling import coupling, sample_mechanism
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd, full_private
from sidelight.methods.parts import Cold, Last
from sidelight.methods.ppsgd import ppsgd
from sidelight.methods.recipe import Recipe

PRIVATE, PUBLIC = 60, 6
START = [np.zeros((2, 2), dtype=np.float32), np.zeros(3, dtype=np.float32)]
NAMES = [f"phone {k}" for k in range(PRIVATE)]
CONSENTING = [f"public {k}" for k in range(PUBLIC)]
Reply = Callable[[np.ndarray], object]  # what a client answers to parameters; None: nothing

METHODS: dict[str, Callable[[], Recipe]] = {
    "dp_sgd": lambda: dp_sgd(clip_norm=0.5),
    "dp_sgd, all as private": lambda: full_private(clip_norm=0.5),
    "dp_sgd, public averaged in": lambda: sample_mechanism(clip_norm=0.5),
    "dope_sgd": lambda: dope_sgd(clip_norm=0.5),
    "dope_sgd, extended": lambda: dope_sgd(clip_norm=0.5, start="cold", extended=True),
    "coupling": lambda: coupling(weight=0.3, reduction="mean", bound=0.5, gamma=0.01),
    "ppsgd": lambda: ppsgd(clip_norm=0.5).with_parts(finish=Last(), start=Cold()),
}


def target_of(name: str) -> np.ndarray:
    rng = np.random.default_rng(int(name.split()[1]) + (1000 if name.startswith("public") else 0))
    return np.asarray(np.linspace(-1, 1, 7) + 0.3 * rng.normal(size=7))


def pull(name: str) -> Reply:
    return lambda w: 0.5 * (w - target_of(name))


def server_of(method: Recipe, **settings: Any) -> FederatedServer:
    asked: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-4, "rounds": 5, "expected_cohort": 20}
    asked |= {"private": NAMES, "public": CONSENTING, "random_state": 1} | settings
    return FederatedServer(START, method=method, **asked)


def answers(server: FederatedServer, ask: Ask, odd: Mapping[str, Reply]) -> Iterator[Any]:
    w = server.form.flat(ask.arrays)
    for client in ask.clients:
        reply = odd.get(str(client), pull(str(client)))(w)
        if reply is not None:
            yield client, reply


def run(server: FederatedServer, odd: Mapping[str, Reply] | None = None) -> list[Ask]:
    """All rounds; `odd` has the clients that do not just pull."""
    asked = []
    while (ask := server.open_round()) is not None:
        asked.append(ask)
        server.close_round(list(answers(server, ask, odd or {})))
    return asked


def taped(
    method: Recipe, odd: Mapping[str, Reply] | None = None, like: Tape | None = None, **settings: Any
) -> tuple[Tape, FederatedServer]:
    with listening(like=like) as tape:
        server = server_of(method, **settings)
        run(server, odd)
    return tape, server
