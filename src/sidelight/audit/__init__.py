"""Attacks that try to prove us wrong."""
