"""What each method is for, in one honest line each way, and what it needs.

Relations, and whether public records are needed, are read off the method itself; its parameters, guarantee,
assumptions and departures off the function that makes it. Only what no code knows is written here: the paper,
and where it was measured to win and to lose (docs/reproductions, docs/methods.md). A new method needs an
entry; a test says so.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CATALOGUE", "Entry", "describe", "sections"]

SMOOTH = "a smooth loss (logistic, huber, softmax; square with its slope clipped)"
ONE_OUTPUT = "a smooth loss of one output (logistic, huber; square with its slope clipped)"


@dataclass(frozen=True)
class Entry:
    """One method.

    Args:
        wins, loses: when to take it, and when not.
        needs: what it needs besides private records and a budget; public records are not mentioned here.
        networks: whether `Trainer` and `PrivateStep` take it.
    """

    paper: str
    wins: str
    loses: str
    needs: str = ""
    networks: bool = False


CATALOGUE: dict[str, Entry] = {
    "auto": Entry(
        "sidelight's own",
        "take it first: it says what it chose, and why",
        "isotropic features, where whitening has nothing to gain; a public target range that is too narrow",
    ),
    "public_whitening": Entry(
        "sidelight's own",
        "linear models with correlated or badly scaled features, small ε, a few dozen public rows",
        "isotropic features: 50 public rows in 100 dimensions say nothing about a covariance that is flat",
    ),
    "dp_sgd": Entry(
        "Abadi et al., CCS 2016",
        "no public records, or isotropic features; a sane baseline",
        "correlated features, where it needs more steps than the noise allows",
        networks=True,
    ),
    "ppsgd": Entry(
        "Wang & Zhou, AAAI 2020",
        "the paper's adaptive budget and clipping, under a filter that makes them valid",
        "on linear models it trails public_whitening; with whitening=True and reuse=None it is level",
        networks=True,
    ),
    "dope_sgd": Entry(
        "Nasr et al., ICML 2023",
        "public gradients that point the right way: networks, and public rows like the private ones",
        "adds little to whitening on linear models",
        networks=True,
    ),
    "coupling": Entry(
        "Liu, Bu, Wang, Zha & Karypis, 2024",
        "many public records, networks, very small ε",
        "with a few dozen public rows its public gradient keeps pulling, also where ε would allow more",
        networks=True,
    ),
    "dpmd": Entry(
        "Amid et al., ICML 2022",
        "many public records",
        "with a few dozen it loses to whitening",
        networks=True,
    ),
    "adamix": Entry(
        "Golatkar et al., CVPR 2022",
        "gradients of low rank, as in the last layer of a pre-trained network",
        "what lies outside the span of a few public gradients is never learned",
        networks=True,
    ),
    "adadps": Entry(
        "Li et al., ICML 2022",
        "badly scaled gradients",
        "rotated features: it scales coordinates, and whitening scales directions",
        networks=True,
    ),
    "sample_mechanism": Entry(
        "pooled mean of public and private gradients",
        "many public records",
        "with a few dozen their share of the pool is too small to matter",
        networks=True,
    ),
    "objective_perturbation": Entry(
        "Kifer, Smith & Thakurta, COLT 2012",
        "smooth linear models from ε = 0.5 on, without public records; also isotropic features",
        "small ε with public records at hand",
        ONE_OUTPUT,
    ),
    "amp": Entry(
        "Iyengar et al., S&P 2019",
        "as objective_perturbation, for solvers that stop early",
        "never better than objective_perturbation with an exact solver",
        ONE_OUTPUT,
    ),
    "dp_agd": Entry(
        "Lee & Kifer, KDD 2018",
        "moderate ε, no step size to choose",
        "slow (seconds to a minute a fit), and behind whitening in our tables",
    ),
    "agd_avg": Entry(
        "a baseline of Wang & Zhou, AAAI 2020",
        "small ε, where dp_agd alone is noisy",
        "as slow as dp_agd, and a poor public model drags it down",
    ),
    "rsgd_ar": Entry(
        "Chen, Lee & Kifer, AISTATS 2019",
        "one noisy output: isotropic features, or where accuracy saturates",
        "correlated features",
        SMOOTH,
    ),
    "nsgd": Entry(
        "baseline of Chen, Lee & Kifer, AISTATS 2019",
        "what rsgd_ar must beat",
        "nearly everywhere",
        SMOOTH,
    ),
    "output_perturbation": Entry(
        "Zhang et al., IJCAI 2017",
        "isotropic features, or where accuracy saturates",
        "correlated features",
        SMOOTH,
    ),
    "pnsgd": Entry(
        "Feldman et al., FOCS 2018",
        "very small ε with public records, which come last and amplify",
        "ε of 0.5 and more; no iterate but the last may be seen",
        SMOOTH,
    ),
    "sgd_adv": Entry(
        "Bassily, Smith & Thakurta, FOCS 2014",
        "a baseline of 2014",
        "everywhere: advanced composition needs several times the noise",
    ),
    "only_private": Entry(
        "DP-SGD, without the public records",
        "what public records must beat",
        "as dp_sgd",
        networks=True,
    ),
    "full_private": Entry(
        "DP-SGD, with the public records as private ones",
        "what using public records as public must beat",
        "as dp_sgd: a few more private rows change little",
        "public records, to be worth anything",
        networks=True,
    ),
    "only_public": Entry(
        "baseline",
        "n·ε too small, or enough public rows: then no budget is worth spending",
        "wherever private records can still teach something",
        networks=True,
    ),
    "non_private": Entry(
        "baseline, with no guarantee",
        "the bound to compare with, on data that is no secret",
        "never for a release: it warns, and no ledger pays for it",
        networks=True,
    ),
    "majority": Entry(
        "baseline",
        "the accuracy that every model must beat",
        "everywhere else",
        "an intercept",
    ),
}


def describe(name: str) -> dict[str, Any]:
    """Everything about one method, ready for JSON."""
    from sidelight.methods.registry import get_method

    method = get_method(name)  # an unknown name is answered with the nearest known one
    entry = CATALOGUE[name]
    return {
        "name": name,
        "relations": list(method.relations),
        "needs_public": method.needs_public,
        "private": method.private,
        "needs": entry.needs,
        "networks": entry.networks,
        "wins": entry.wins,
        "loses": entry.loses,
        "paper": entry.paper,
        "parameters": _arguments(name),
        **sections(name),
    }


def sections(name: str) -> dict[str, str]:
    """The docstring of a method: `summary`, and those of `guarantee`, `assumes`, `departs` that it has."""
    text = _docstring(name).split("\n\nArgs:")[0]
    pieces = re.split(r"(?:^|(?<=\. )|(?<=\n))(Guarantee|Assumes|Departs): ", text)
    found = {"summary": _joined(pieces[0])}
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        found[title.lower()] = _joined(body)
    return found


def _arguments(name: str) -> list[dict[str, Any]]:
    """The arguments of the method's function: name, type, default and (where it is told) meaning."""
    meanings = _meanings(name)
    return [
        {
            "name": one.name,
            "type": _type(str(one.annotation)),
            "default": _plain(one.default),
            "meaning": meanings.get(one.name, _common(one.name, one.default)),
        }
        for one in inspect.signature(_maker(name)).parameters.values()
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


def _common(name: str, default: Any) -> str:
    meaning, none = COMMON.get(name, ("", ""))
    return f"{meaning}; None: {none}" if default is None and none else meaning


def _type(annotation: str) -> str:
    """A type as a reader wants it: the values of a Literal, and no quotes."""
    return re.sub(r"Literal\[([^]]*)\]", r"\1", annotation).replace("'", "").replace(", ", " | ")


def _meanings(name: str) -> dict[str, str]:
    """The `Args:` of a docstring, an entry an argument."""
    _, _, block = _docstring(name).partition("\n\nArgs:\n")
    found: dict[str, str] = {}
    for piece in re.split(r"\n(?=    \w)", "\n" + block):
        names, _, meaning = piece.strip().partition(": ")
        found.update({one.strip(): _joined(meaning) for one in names.split(",") if meaning})
    return found


def _maker(name: str) -> Callable[..., Any]:
    from sidelight.methods.registry import (
        METHODS,
    )  # heavy; the catalogue alone is read by shells that complete

    return METHODS[name]


def _docstring(name: str) -> str:
    return inspect.getdoc(_maker(name)) or ""


def _joined(text: str) -> str:
    return " ".join(text.split())


def _plain(value: Any) -> Any:
    """A default as JSON has it; a part by its repr."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
