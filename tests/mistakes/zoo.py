"""All correct models of the list, in the order of the page."""

from importlib import import_module

from tests.mistakes.registry import CASES, Case

__all__ = ["CASES", "Case"]

for part in (
    "layers",
    "recurrent",
    "attention",
    "vision",
    "adapters",
    "shapes",
    "generative",
    "losses",
    "blocks",
):
    import_module(f"tests.mistakes.zoo_{part}")
