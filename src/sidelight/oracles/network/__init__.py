"""Clipped sums of a network's gradients: the only code that shows private records to a model."""

from sidelight.oracles.network.network_oracle import NetworkOracle

__all__ = ["NetworkOracle"]
