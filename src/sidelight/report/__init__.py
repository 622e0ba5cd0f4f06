"""The privacy card of a fit: one JSON file for scripts, one HTML file for people.

    card = card_of(model, title="Income of the 1994 census")
    card.write("privacy.json")
    write_report(card, "report.html")

A card holds what was promised, what was charged, and public or released values; nothing else of the data.
"""

from sidelight.report.card import Card, card_of
from sidelight.report.page import html, write_report

__all__ = ["Card", "card_of", "html", "write_report"]
