"""Accounting of events that come from a file: what they cost, or None where no accountant can tell.

A card may have been edited by hand, so an event in it need not be one that anybody could run. Its numbers
overflow, or break what an accountant takes for granted; that is no reason for a traceback.
"""

from __future__ import annotations

import numpy as np

from sidelight.errors import SidelightError
from sidelight.privacy import accountants, events
from sidelight.privacy.accountants import Accountant
from sidelight.privacy.events import Event
from sidelight.report.card import Card
from sidelight.report.tradeoff import TradeOff, trade_off

__all__ = ["attack_on", "cost_of"]

_BROKEN = (SidelightError, ArithmeticError, ValueError, IndexError, AssertionError, MemoryError)


def cost_of(card: Card, event: Event, accountant: Accountant = "pld") -> float | None:
    """ε of an event at the card's δ and under its relation."""
    if not events.elementary(event):
        return 0.0
    try:
        with np.errstate(all="ignore"):
            return accountants.epsilon(event, delta=card.delta, relation=card.relation, accountant=accountant)
    except _BROKEN:
        return None


def attack_on(card: Card) -> TradeOff | None:
    """What an attacker gains at most from everything that was charged."""
    try:
        with np.errstate(all="ignore"):
            bound = trade_off(card.plan, relation=card.relation)
            return bound if np.isfinite(bound.power([0.0, 0.5, 1.0])).all() else None
    except _BROKEN:
        return None
