"""Clipped sums of a linear model's gradients: the only code that reads private rows."""

from sidelight.oracles.linear.linear_oracle import LinearOracle

__all__ = ["LinearOracle"]
