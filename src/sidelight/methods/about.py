"""Everything about one method, in words: for `sidelight methods` and for the tables of the documentation.

Paper, losses, wins and loses come from the declaration (`declare`); relations, and whether public records are
needed, off the method itself; parameters, guarantee, assumptions and departures off the function's docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from sidelight.arrays import Json
from sidelight.methods.declare import Declaration
from sidelight.methods.registry import DECLARATIONS, METHODS, get_method

__all__ = ["describe", "needs", "sections"]


def describe(name: str) -> Json:
    """Everything about one method, ready for JSON."""
    method = get_method(name)  # an unknown name is answered with the nearest known one
    declared = DECLARATIONS[name]
    return {
        "name": name,
        "relations": list(method.relations),
        "needs_public": method.needs_public,
        "private": method.private,
        "needs": needs(declared),
        "losses": list(declared.losses),
        "networks": declared.networks,
        "wins": declared.wins,
        "loses": declared.loses,
        "paper": declared.paper,
        "parameters": _arguments(name),
        **sections(name),
    }


def needs(declared: Declaration) -> str:
    """What it needs besides private records, a budget and public records, in a phrase; empty if nothing."""
    losses = ", ".join(declared.losses)
    if len(declared.losses) == 1:
        words = f"the {losses} loss"
    elif "hinge" not in declared.losses:
        words = f"a smooth loss ({losses})"
    else:
        words = "" if "square" in declared.losses else "classes to predict"
    return "; ".join(phrase for phrase in (words, declared.needs) if phrase)


def sections(name: str) -> dict[str, str]:
    """The docstring of a method: `summary`, and those of `guarantee`, `assumes`, `departs` that it has."""
    text = _docstring(name).split("\n\nArgs:")[0]
    pieces = re.split(r"(?:^|(?<=\. )|(?<=\n))(Guarantee|Assumes|Departs): ", text)
    by_title = {"summary": _joined(pieces[0])}
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        by_title[title.lower()] = _joined(body)
    return by_title


def _arguments(name: str) -> list[Json]:
    """The arguments of the method's function: name, type, default and (where it is documented) meaning."""
    meanings = _meanings(name)
    return [
        {
            "name": argument.name,
            "type": _type(str(argument.annotation)),
            "default": _plain(argument.default),
            "meaning": meanings.get(argument.name, _common(argument.name, argument.default)),
        }
        for argument in inspect.signature(_maker(name)).parameters.values()
    ]


# What an argument means wherever it occurs and its function does not say more; and what None stands for.
COMMON = {
    "clip_norm": (
        "C, the longest gradient that enters a sum",
        "the bound that the loss gives, or a public one",
    ),
    "steps": ("T", "a rule"),
    "expected_batch_size": ("B, the records in an average batch", "all of them in every step"),
    "step_size": ("η", "a rule that looks at the noise"),
    "momentum": ("heavy ball; 0 is none", "a rule"),
    "finish": ("what is made of the iterates", "the method's own"),
    "warm_lam": ("λ of the public fit that a warm start begins at", ""),
    "warm": ("whether to start at the public fit", ""),
    "origin_limit": ("λ, the longest origin", "no limit"),
    "start": ("where training begins, and whether public records join the pool", ""),
    "bound": ("R, the longest clipped gradient", ""),
    "gamma": ("γ of automatic clipping, R/(‖g‖ + γ)", ""),
    "public_batch": ("public records in a batch, for a weight of sums", "not given"),
    "regularization": ("λ if the task has none of its own", ""),
    "ridge": ("added to the public second moment before its root is taken", ""),
    "rank": ("k, the dimensions of the public subspace", "a rule"),
    "quantile": ("of public gradient norms, which becomes the clip norm", ""),
    "decay": ("β of the public second moments", ""),
    "epochs": ("passes over the records", ""),
    "batch_size": ("records in a batch", "a rule"),
    "growth": ("α, by which the budget of a step grows", ""),
    "shrink": ("β, by which the clip norm shrinks", ""),
    "ratio": ("φ: the budget grows when φ‖ĝ‖ is below the noise", ""),
    "clip_threshold": ("φ_c: the clip norm shrinks when φ_c‖ĝ‖ is below it", "a rule"),
    "max_steps": ("the end at the latest", "no limit but the budget"),
    "planned_steps": ("steps that the first budget is cut into", "a rule"),
    "accounting": ("which theorem pays", ""),
    "rehearsal": ("whether training is simulated first on data synthesised from public records", ""),
    "labels": ("whose labels are counted", ""),
}


def _common(name: str, default: object) -> str:
    meaning, none = COMMON.get(name, ("", ""))
    return f"{meaning}; None: {none}" if default is None and none else meaning


def _type(annotation: str) -> str:
    """A type as a reader wants it: the values of a Literal, and no quotes."""
    return re.sub(r"Literal\[([^]]*)\]", r"\1", annotation).replace("'", "").replace(", ", " | ")


def _meanings(name: str) -> dict[str, str]:
    """The `Args:` of a docstring, by the name of the argument."""
    _, _, block = _docstring(name).partition("\n\nArgs:\n")
    meanings: dict[str, str] = {}
    for piece in re.split(r"\n(?=    \w)", "\n" + block):
        names, _, meaning = piece.strip().partition(": ")
        meanings.update({argument.strip(): _joined(meaning) for argument in names.split(",") if meaning})
    return meanings


def _maker(name: str) -> Callable[..., object]:
    return METHODS[name]


def _docstring(name: str) -> str:
    return inspect.getdoc(_maker(name)) or ""


def _joined(text: str) -> str:
    return " ".join(text.split())


def _plain(value: object) -> object:
    """A default as JSON has it; a part by its repr."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
