"""`@method(...)`: what a method says of itself, once, above the function that makes it.

Registry, `sidelight methods`, report, audit, contracts, the tables of the documentation and the names that
`sidelight` exports all read this declaration. Relations and whether public records are needed are attributes
of the method itself; parameters, guarantee and assumptions are in the function's signature and docstring.

A method of the project is one file in `methods`. Its declaration is found in the source text,
without importing the file: `import sidelight`, `--help` and shells that complete a name stay free of NumPy. A
method of your own is registered when its module is imported.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, ParamSpec, TypeVar, get_args

from sidelight.errors import InputError

if TYPE_CHECKING:
    from sidelight.methods.task import Method

__all__ = [
    "DECLARED", "EVERY_LOSS", "GROUPS", "ONE_OUTPUT", "PACKAGES", "SMOOTH", "Declaration", "Home", "homes",
    "method",
]  # fmt: skip

Group = Literal["chosen for you", "gradient method", "convex algorithm", "baseline"]
GROUPS: tuple[Group, ...] = get_args(Group)
PACKAGES = ("sidelight.methods",)  # where the methods of the project are

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
        make: the function that makes it; its name is the method's.
        paper: where it comes from, as a reviewer would look it up.
        wins, loses: when to take it and when not, one line each, from measurements (docs/choosing.md).
        departs: how it differs from the paper, in a reviewer's words; the same as *Departs* in the docstring.
        ours: a method of this project; `paper` is then a sentence.
        losses: the losses that it can minimise.
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
    departs: tuple[str, ...] = ()
    ours: bool = False
    losses: tuple[str, ...] = EVERY_LOSS
    needs: str = ""
    networks: bool = False
    small: Settings = field(default_factory=dict)
    variants: Mapping[str, Settings] = field(default_factory=dict)
    on_network: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.make.__name__

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


DECLARED: dict[str, Declaration] = {}  # what was imported so far; ask `registry` for all


def method(
    *,
    group: Group,
    paper: str,
    wins: str,
    loses: str,
    departs: tuple[str, ...] = (),
    ours: bool = False,
    losses: tuple[str, ...] = EVERY_LOSS,
    needs: str = "",
    networks: bool = False,
    small: Settings | None = None,
    variants: Mapping[str, Settings] | None = None,
    on_network: Settings | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Declare the method that the decorated function makes; see `Declaration`. The function is unchanged."""

    def register(make: Callable[P, T]) -> Callable[P, T]:
        declared = Declaration(
            make, group, paper, wins, loses, departs, ours, losses, needs, networks,
            small or {}, variants or {}, on_network or {},
        )  # fmt: skip
        _check(declared)
        DECLARED[declared.name] = declared
        return make

    return register


def _check(declared: Declaration) -> None:
    name, module = declared.name, declared.make.__module__
    known = homes().get(name)
    other = known.module if known is not None else DECLARED.get(name, declared).make.__module__
    if other != module:
        raise InputError(f"there is a method {name!r} already, in {other}; give yours another name")
    if declared.group not in GROUPS:
        raise InputError(f"{name}: group must be one of {', '.join(GROUPS)}, not {declared.group!r}")
    if not declared.losses or not set(declared.losses) <= set(EVERY_LOSS):
        raise InputError(f"{name}: losses must be some of {', '.join(EVERY_LOSS)}, not {declared.losses!r}")


class Home(NamedTuple):
    """A declaration as it stands in the source text."""

    module: str
    group: str
    wins: str


def homes() -> dict[str, Home]:
    """Every method of the project by its name, in the order of lists, without importing any."""
    packages = [importlib.import_module(name) for name in PACKAGES]
    return _homes(tuple((package.__name__, tuple(package.__path__)) for package in packages))


_DECLARATION = re.compile(r"^@method\(.*?^def (\w+)\(", re.M | re.S)


@functools.cache
def _homes(packages: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, Home]:
    methods: dict[str, Home] = {}
    for package, path in packages:
        for module in pkgutil.iter_modules(list(path), prefix=f"{package}."):
            for match in _DECLARATION.finditer(_source(module)):
                head = ast.parse(match[0] + "): ...").body[0]
                methods[match[1]] = Home(module.name, _text(head, "group"), _text(head, "wins"))
    order: dict[str, int] = {group: k for k, group in enumerate(GROUPS)}
    return dict(sorted(methods.items(), key=lambda item: (order.get(item[1].group, len(order)), item[0])))


def _source(module: pkgutil.ModuleInfo) -> str:
    spec = module.module_finder.find_spec(module.name, None)
    loader = None if spec is None else spec.loader
    return getattr(loader, "get_source", lambda _: None)(module.name) or ""


def _text(head: ast.stmt, keyword: str) -> str:
    """A literal argument of the declaration; empty if it is none."""
    for decorator in getattr(head, "decorator_list", ()):
        for one in getattr(decorator, "keywords", ()):
            if one.arg == keyword and isinstance(one.value, ast.Constant):
                return str(one.value.value)
    return ""
