"""Small learning problems, with their raw arrays at hand: those of `sidelight.audit`."""

from __future__ import annotations

from sidelight.audit.subjects import (
    ADD_REMOVE,
    CHANGED,
    REPLACE,
    Scene,
    broken,
    neighbouring,
    null,
    scene,
    worst,
)

__all__ = [
    "ADD_REMOVE",
    "CHANGED",
    "REPLACE",
    "Scene",
    "broken",
    "neighbouring",
    "null",
    "scene",
    "worst",
]
