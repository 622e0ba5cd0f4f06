"""Correlated noise against independent noise: where it pays."""
