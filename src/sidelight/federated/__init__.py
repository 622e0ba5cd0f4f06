"""Federated learning with privacy for users: their data stays with them, and some of them are public.

`FederatedServer` is the whole server, without a network: it says whom to ask, takes what came back, and
releases one step a round. `SimulatedUsers` answers it within one process; `SidelightStrategy` is Flower's
strategy, in `sidelight.federated.flower_strategy`. The unit of privacy is a client: everything that it ever
sends. The server is trusted (central differential privacy).
"""

from __future__ import annotations

from sidelight.federated.server import Ask, FederatedServer
from sidelight.oracles.updates import UpdateBlock

__all__ = ["Ask", "FederatedServer", "UpdateBlock"]
