"""The tables and the page."""

from __future__ import annotations


def table(runs):
    return "\n".join(map(str, runs))


def page(runs):
    return table(runs)
