"""Kills of `sidelight fit` at random moments, and hostile files: what is left, charged and said."""
