"""`@method(...)`: what a method says of itself, once, above the function or the class that makes it.

Registry, `sidelight methods`, report, audit, contracts and the tables of the documentation all read this
declaration. Relations and whether public records are needed are attributes of the method itself; parameters,
guarantee and assumptions are in its signature and docstring.

A method is registered when its module is imported. Those of the project are imported by `sidelight.methods`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar, cast, get_args

from sidelight.errors import InputError, nearest

if TYPE_CHECKING:
    from sidelight.arrays import Json
    from sidelight.methods.task import Method

Group = Literal["chosen for you", "gradient method", "convex algorithm", "baseline"]
GROUPS: tuple[Group, ...] = get_args(Group)

EVERY_LOSS = ("hinge", "huber", "logistic", "softmax", "square")
SMOOTH = ("huber", "logistic", "softmax", "square")
ONE_OUTPUT = ("huber", "logistic", "square")

Settings = Mapping[str, object]
P = ParamSpec("P")
T = TypeVar("T", bound="Method")


@dataclass(frozen=True)
class Declaration:
    """One method, for everything that lists methods.

    Args:
        make: the function that makes it, whose name is the method's; or its class, with a `name`.
        paper: where it comes from, as a reviewer would look it up.
        wins, loses: when to take it and when not, one line each, from measurements (docs/choosing.md).
        ours: a method of this project; `paper` is then a sentence.
        losses: the losses that it can minimize.
        needs: what else it needs besides private records and a budget; public records are not mentioned here.
        networks: whether `Trainer` takes it.
        small: arguments with which a run takes a moment, for audits and contracts.
        variants: arguments of settings that differ in kind, each by a name; audited and tested as well.
        on_network: like `small`, for the audit of a network.
    """

    make: Callable[..., Method]
    group: Group
    paper: str
    wins: str
    loses: str
    ours: bool = False
    losses: tuple[str, ...] = EVERY_LOSS
    needs: str = ""
    networks: bool = False
    small: Settings = field(default_factory=dict)
    variants: Mapping[str, Settings] = field(default_factory=dict)
    on_network: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(getattr(self.make, "name", self.make.__name__))

    @property
    def departs(self) -> tuple[str, ...]:
        """How it differs from the paper: what *Departs* in its docstring says, one by one."""
        text = _sections(self.make).get("departs", "not at all")
        sentences = [] if text.startswith("not at all") else re.split(r"; |(?<!Eq)\. (?=[^a-z])", text)
        return tuple(sentence.removesuffix(".") for sentence in sentences)

    @property
    def loss(self) -> str:
        """The loss to try it with: huber, or the first that it can do."""
        return "huber" if "huber" in self.losses else self.losses[0]

    def examples(self) -> dict[str, Callable[[], Method]]:
        """Its small setting and the variants, ready to be made: {"dp_sgd": …, "dp_sgd, sampled": …}."""
        examples: dict[str, Callable[[], Method]] = {self.name: functools.partial(self.make, **self.small)}
        for word, settings in self.variants.items():
            examples[f"{self.name}, {word}"] = functools.partial(self.make, **settings)
        return examples


DECLARATIONS: dict[str, Declaration] = {}  # by group, and in a group by name
METHODS: dict[str, Callable[..., Method]] = {}  # in the same order


def method(
    *,
    group: Group,
    paper: str,
    wins: str,
    loses: str,
    ours: bool = False,
    losses: tuple[str, ...] = EVERY_LOSS,
    needs: str = "",
    networks: bool = False,
    small: Settings | None = None,
    variants: Mapping[str, Settings] | None = None,
    on_network: Settings | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Declare the method that the decorated function or class makes; see `Declaration`."""

    def register(make: Callable[P, T]) -> Callable[P, T]:
        declared = Declaration(
            make, group, paper, wins, loses, ours, losses, needs, networks,
            small or {}, variants or {}, on_network or {},
        )  # fmt: skip
        _check(declared)
        known = sorted({**DECLARATIONS, declared.name: declared}.values(), key=_place)
        DECLARATIONS.clear()
        DECLARATIONS.update({one.name: one for one in known})
        METHODS.clear()
        METHODS.update({one.name: one.make for one in known})
        return make

    return register


def _place(declared: Declaration) -> tuple[int, str]:
    return GROUPS.index(declared.group), declared.name


def _check(declared: Declaration) -> None:
    name, module = declared.name, declared.make.__module__
    other = DECLARATIONS.get(name, declared).make.__module__
    if other != module:
        raise InputError(f"there is a method {name!r} already, in {other}; give yours another name")
    if declared.group not in GROUPS:
        raise InputError(f"{name}: group must be one of {', '.join(GROUPS)}, not {declared.group!r}")
    if not declared.losses or not set(declared.losses) <= set(EVERY_LOSS):
        raise InputError(f"{name}: losses must be some of {', '.join(EVERY_LOSS)}, not {declared.losses!r}")


def get_method(name: str) -> Method:
    """The method of this name with its defaults."""
    if name not in METHODS:
        hint = nearest(str(name), METHODS) or f" Known: {', '.join(sorted(METHODS))}"
        raise InputError(f"there is no method {name!r}.{hint}")
    return METHODS[name]()


def as_method(given: Method | str | object) -> Method:
    """The method of this name, or the method itself; anything else is refused in one line."""
    if isinstance(given, str):
        return get_method(given)
    name = getattr(given, "__name__", type(given).__name__)
    if isinstance(given, type):
        made = next((one for one, make in METHODS.items() if make is given), "")
        what = f"{name} is a class" + (f": call it, method={made}()" if made else "")
    elif inspect.isroutine(given):
        what = f"{name} is a function: call it, method={name}()"
    elif isinstance(kind := getattr(given, "kind", None), str):
        what = f"{name} is a part: a recipe with {kind}={name}(...) is a method"
    elif all(callable(getattr(given, one, None)) for one in ("plan", "run")):
        return cast("Method", given)
    else:
        what = f"not {given!r}"
    raise InputError(f"method must be a name or a method such as dp_sgd(); {what}")


# ---------------------------------------------------------------------------------------------------
# everything about one method, in words: for `sidelight methods` and for the tables of the documentation
#
# Paper, losses, wins and loses come from the declaration; relations, and whether public records are needed,
# off the method itself; parameters, guarantee, assumptions and departures off the function's docstring.


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
    return _sections(METHODS[name])


def _sections(make: Callable[..., object]) -> dict[str, str]:
    text = (inspect.getdoc(make) or "").split("\n\nArgs:")[0]
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
        for argument in inspect.signature(METHODS[name]).parameters.values()
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
    "origin_limit": ("λ, the longest origin", "no limit on a linear model, 0.5 on a network"),
    "public_limit": ("the longest public gradient", "no limit"),
    "start": ("where training begins, cold or warm (at the public fit)", "the method's own"),
    "extended": ("whether public records join the pool that is sampled from", ""),
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
    "max_steps": ("the last step", "no limit but the budget"),
    "planned_steps": ("steps that the first budget is cut into", "a rule"),
    "accounting": ("which theorem pays", ""),
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
    _, _, block = (inspect.getdoc(METHODS[name]) or "").partition("\n\nArgs:\n")
    meanings: dict[str, str] = {}
    for piece in re.split(r"\n(?=    \w)", "\n" + block):
        names, _, meaning = piece.strip().partition(": ")
        meanings.update({argument.strip(): _joined(meaning) for argument in names.split(",") if meaning})
    return meanings


def _joined(text: str) -> str:
    return " ".join(text.split())


def _plain(value: object) -> object:
    """A default as JSON has it; a part by its repr."""
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
