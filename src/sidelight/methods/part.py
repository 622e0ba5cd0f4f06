"""The base classes of a recipe's parts: what each kind must offer, and the flags that it may set.

A part is a frozen dataclass, what the user configures. Most kinds have a `begin` that is called once, with
public things alone, and returns what is asked while training: the part itself where nothing changes, else a
state. A part sees a `Setting`, released parameters and public gradients, and nothing else.

    Start     → the first parameters            Mix         public and private direction → one
    Origin    public gradient → origin          FinishRule  → FinishState: iterates → model
    MetricRule → MetricState                    BatchRule   n → expected batch size, sampler
    ClipRule  → ClipState                       StepRule    noise, curvature → step size
    NoiseRule → NoiseState

What a part must define is marked as abstract. A recipe checks that when it is made (`check_recipe`), and not
Python when the part is: the answer is then one line that says what to write.

Fields and methods of parts are checked when the recipe is made, the states that they make when it plans.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeVar, runtime_checkable

from sidelight.arrays import V, Vector
from sidelight.clipping import Clip, Details, Diagonal, Features, Metric, Projection, ThinFeatures
from sidelight.errors import InputError, nearest, positive, whole
from sidelight.privacy.events import Event, FixedSize, FullBatch, Poisson, Relation, Sampler
from sidelight.problems.base import Constants, Guide, Problem

if TYPE_CHECKING:
    from sidelight.methods.recipe import Recipe

__all__ = [
    "KINDS",
    "BatchRule",
    "ClipRule",
    "ClipState",
    "Constants",
    "FinishRule",
    "FinishState",
    "FixedClip",
    "Guide",
    "MetricRule",
    "MetricState",
    "Mix",
    "MixState",
    "Models",
    "NoiseRule",
    "NoiseState",
    "Origin",
    "Part",
    "Setting",
    "Start",
    "State",
    "StepRule",
    "check_clip",
    "check_finish",
    "check_methods",
    "check_metric",
    "check_names",
    "check_recipe",
    "check_start",
    "check_state",
    "given",
]


# ---------------------------------------------------------------------------------------------------
# what parts may know: the problem, and the public constants of a run on it


@dataclass(frozen=True)
class Setting:
    """A problem, a budget and the constants of a run. A part asks it for public things alone."""

    problem: Problem
    batch: float  # B, the expected batch size
    steps: int  # T, planned
    epsilon: float
    delta: float
    relation: Relation
    sampler: Sampler
    step_size: float = 0.0
    max_steps: int | None = None  # where a budget that adapts stops at the latest; None: when it is spent

    @property
    def n(self) -> int:
        """Private records."""
        return self.problem.n

    @property
    def dimension(self) -> int:
        """Parameters."""
        return self.problem.dimension

    @property
    def constants(self) -> Constants:
        """What is known of the loss and of the records."""
        return self.problem.constants

    @property
    def rate(self) -> float:
        """The sampling probability."""
        return self.batch / self.n

    @property
    def guide(self) -> Guide | None:
        """The public records, if there are any."""
        return self.problem.public

    def public(self, what: str) -> Guide:
        """The guide, or an error that says which part needs public records."""
        guide = self.problem.public
        if guide is None or guide.size == 0:
            raise InputError(f"{what} needs public records; pass {self.problem.public_from}")
        return guide

    @property
    def sensitivity_factor(self) -> int:
        return 1 if self.relation == "add-or-remove-one" else 2


# ---------------------------------------------------------------------------------------------------
# parts and their states


@runtime_checkable
class _Stateful(Protocol):
    """A state inside another one, or a filter."""

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: Mapping[str, object], /) -> None: ...


class State:
    """What a part remembers while training. `kept` names the attributes that change."""

    kept: ClassVar[tuple[str, ...]] = ()
    notes: Sequence[str] = ()  # for the statement, after the run

    def state_dict(self) -> dict[str, object]:
        """The values that change; what is configured, or computed from public data, is made anew."""
        values = {name: getattr(self, name) for name in self.kept}
        return {name: v.state_dict() if isinstance(v, _Stateful) else v for name, v in values.items()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Put the values of `state_dict` back."""
        for name in self.kept:
            saved, inner = state[name], getattr(self, name)
            if isinstance(inner, _Stateful) and isinstance(saved, Mapping):
                inner.load_state_dict(saved.get("of", saved))  # "of": as it was written before 0.2
            else:
                setattr(self, name, saved)


class Part:
    """One choice of a recipe. Flags say what it asks for; a subclass sets those that differ."""

    kind: ClassVar[str] = "part"
    needs_public: ClassVar[bool] = False  # public records
    needs_gradient: ClassVar[bool] = False  # the public gradient at the current parameters, in every step
    needs_after: ClassVar[bool] = False  # the public gradient at the new parameters, after every step
    linear_only: ClassVar[bool] = False  # asks for what a network does not have
    network_only: ClassVar[bool] = False  # asks for what a linear model does not have
    half_square: ClassVar[bool] = False  # its constants are meant for the square loss as ½(z − y)²


# ---------------------------------------------------------------------------------------------------
# where a step is taken


class Start(Part):
    """Where training begins."""

    kind = "start"

    @abstractmethod
    def __call__(self, setting: Setting) -> Vector:
        """The first parameters, from public data."""
        raise NotImplementedError


class Origin(Part):
    """What contributions are clipped around: a function of the public gradient."""

    kind = "origin"
    needs_public = True
    needs_gradient = True

    @abstractmethod
    def at(self, public_gradient: Vector) -> Vector:
        """The origin of the clipping ball, from the public gradient."""
        raise NotImplementedError


class MetricState(State):
    """The coordinates of every step."""

    unit_rows: bool = False  # whether rows are brought to length 1 under the metric, before the loss

    @abstractmethod
    def at(self, step: int, params: Vector, public_gradient: Vector | None) -> Metric:
        """The metric of this step."""
        raise NotImplementedError

    def back(self, metric: Metric, vector: Vector) -> Vector:
        """From the metric's space to a direction for the parameters."""
        return vector

    def public(self, metric: Metric, gradient: Vector) -> Vector:
        """The public gradient, conditioned as `back` conditions the private one."""
        return gradient


class MetricRule(Part):
    """The coordinates in which contributions are clipped and noise is added."""

    kind = "metric"

    @abstractmethod
    def begin(self, setting: Setting, params: Vector) -> MetricState:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------
# clip and noise


class ClipState(State):
    """The clip of every step."""

    @abstractmethod
    def at(self, step: int, params: Vector, metric: Metric, origin: Vector | None) -> Clip:
        """The clip of this step."""
        raise NotImplementedError

    def after(self, params: Vector, public_gradient: Vector) -> None:
        """Called after a step: the new parameters, and the public gradient there, under the metric."""


class ClipRule(Part):
    """How far a contribution may reach."""

    kind = "clip"

    @abstractmethod
    def begin(self, setting: Setting, params: Vector) -> ClipState:
        raise NotImplementedError


class FixedClip(ClipRule, ClipState):
    """A clip that never changes: a rule, its own state, and the clip itself."""

    @property
    @abstractmethod
    def bound(self) -> float:
        raise NotImplementedError

    @property
    def flat(self) -> bool:
        """Whether what is no longer than the bound stays as it is."""
        return False

    @abstractmethod
    def factors(self, norms: V) -> V:
        raise NotImplementedError

    def begin(self, setting: Setting, params: Vector) -> ClipState:
        return self

    def at(self, step: int, params: Vector, metric: Metric, origin: Vector | None) -> Self:
        return self


class NoiseState(State):
    """The noise of every step."""

    spending: Details = MappingProxyType({})  # what a filter counted for the step just admitted

    @abstractmethod
    def at(self, step: int) -> float | None:
        """The noise multiplier of this step; None ends the run."""
        raise NotImplementedError

    def admit(self, event: Event) -> None:
        """Ask a filter, where there is one, before the release; a plan covers every step without it."""

    def after(self, public_gradient: Vector, std: float) -> None:
        """Called after a step: the public gradient at the new parameters, under the metric, and the noise."""

    def share_spent(self) -> float | None:
        """The share of a filter's budget that is spent; None without a filter."""
        return None


class NoiseRule(Part):
    """How much noise a step has, and for how many steps."""

    kind = "noise"

    @property
    def relations(self) -> tuple[Relation, ...] | None:
        """The relations that it can give; None: whatever the sampler gives."""
        return None

    def default_steps(self, setting: Setting) -> int:
        """T where the recipe has none: 64 full-batch steps, or the passes that make up for small batches, at
        most 1000."""
        return int(min(1000, max(64, round(10 / setting.rate))))

    @abstractmethod
    def plan(self, setting: Setting) -> tuple[Event, bool, Details]:
        """The event that bounds the run, whether it is a filter's, and what to report."""
        raise NotImplementedError

    @abstractmethod
    def begin(self, setting: Setting) -> NoiseState:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------
# what becomes of the released direction


def given(gradient: Vector | None, part: Part | State) -> Vector:
    """The public gradient, for a part that cannot do without it."""
    if gradient is None:
        name = type(part).__name__
        raise InputError(
            f"{name} reads the public gradient: set needs_gradient = True on the part that makes it"
        )
    return gradient


class MixState(State):
    """Makes one direction of the private and the public one."""

    details: Details = MappingProxyType({})  # what was chosen, for the report

    @abstractmethod
    def mix(
        self,
        params: Vector,
        direction: Vector,
        public_gradient: Vector | None,
        *,
        step: int,
        step_size: float,
    ) -> Vector:
        """The direction in which the parameters move; `public_gradient` is None unless a part needs it."""
        raise NotImplementedError


class Mix(Part):
    """How the public gradient joins the private one."""

    kind = "mix"
    before_momentum: ClassVar[bool] = False  # whether momentum is that of the sum, not of the private part

    @abstractmethod
    def begin(self, setting: Setting, params: Vector, *, noise_multiplier: float, bound: float) -> MixState:
        raise NotImplementedError


class Models:
    """Several models in place of one: the result of a finish that makes an ensemble."""


class FinishState(State):
    """Collects the iterates, all of them released."""

    @abstractmethod
    def add(self, params: Vector) -> None:
        """Called with every iterate after the start."""
        raise NotImplementedError

    @abstractmethod
    def result(self, start: Vector) -> Vector | Models:
        """The model, or several for an ensemble; `start` if there was no step."""
        raise NotImplementedError


class FinishRule(Part):
    """What becomes of the iterates."""

    kind = "finish"
    single: ClassVar[bool] = True  # whether the result is one model, not an ensemble

    @abstractmethod
    def begin(self, setting: Setting) -> FinishState:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------
# how many records, how long a step


class BatchRule(Part):
    """The expected batch size where the recipe has none, and the sampler that draws the batches."""

    kind = "batch"

    def size(self, n: int) -> float | None:
        """B for n private records; None takes all of them in every step."""
        return None

    def sampler(self, given: float | None, *, n: int, pool: int, relation: Relation) -> tuple[float, Sampler]:
        """B (of private records) and the sampler; with public records in the pool, q is that of the pool."""
        size = self.size(n) if given is None else given
        positive("expected_batch_size", size, optional=True)
        if size is None or size >= pool:
            return float(n), FullBatch(relation)
        batch = size * n / pool
        if relation == "add-or-remove-one":
            return batch, Poisson(batch / n)
        count = max(1, round(batch))
        return (float(n), FullBatch(relation)) if count == n else (float(count), FixedSize(count))


class StepRule(Part):
    """The step size where the recipe has none."""

    kind = "step"

    @abstractmethod
    def size(self, setting: Setting, *, noise_multiplier: float, momentum: float, metric: Metric) -> float:
        """η, from public quantities."""
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------
# a recipe with a wrong part is refused in one line: what was expected, and what came


# field: (what it takes, for instance, whether None leaves it out)
KINDS: dict[str, tuple[type[Part], str, bool]] = {
    "start": (Start, "Cold()", False),
    "origin": (Origin, "PublicGradient()", True),
    "metric": (MetricRule, "SecondMoments()", True),
    "clip": (ClipRule, "Flat(1.0)", False),
    "noise": (NoiseRule, "ConstantNoise()", False),
    "mix": (Mix, "Weight(0.5)", False),
    "finish": (FinishRule, "MeanLastHalf()", False),
    "batch": (BatchRule, "SqrtBatch()", False),
    "step": (StepRule, "NoiseAware()", False),
}


def check_recipe(recipe: Recipe) -> None:
    """Raise InputError at the first field that cannot be meant."""
    for field in KINDS:
        _check_part(field, getattr(recipe, field))
    if recipe.public_rows not in ("guide", "private", "unused"):
        raise InputError(f"public_rows is 'guide', 'private' or 'unused', not {recipe.public_rows!r}")
    momentum: object = recipe.momentum
    if isinstance(momentum, bool) or not (isinstance(momentum, Real) and 0 <= float(momentum) < 1):
        raise InputError(f"momentum must be in [0, 1), not {momentum!r}")
    whole("steps", recipe.steps, optional=True)
    for name in ("expected_batch_size", "step_size"):
        positive(name, getattr(recipe, name), optional=True)
    _check_words(recipe.name, recipe.departs)
    for name in ("extended", "clip_pool"):
        if not isinstance(value := getattr(recipe, name), bool):
            raise InputError(f"{name} must be True or False, not {value!r}")


def _check_words(name: object, departs: object) -> None:
    if not isinstance(name, str):
        raise InputError(f"name must be a text, not {name!r}")
    if not (isinstance(departs, tuple) and all(isinstance(line, str) for line in departs)):
        raise InputError(f"departs must be a tuple of texts, not {departs!r}")


def check_names(given: Iterable[str], known: tuple[str, ...]) -> None:
    """Raise InputError for a name that is not a field of a recipe."""
    for name in given:
        if name not in known:
            raise InputError(f"a recipe has no {name!r}.{nearest(name, known)} It has: {', '.join(known)}")


def check_finish(inner: object) -> None:
    """The finish inside another one, which has to be of one model."""
    _check_part("finish", inner)
    if isinstance(inner, FinishRule) and not inner.single:
        name = type(inner).__name__
        raise InputError(f"{name} makes an ensemble of several models, and the finish around it takes one")


def _check_part(field: str, value: object) -> None:
    kind, example, optional = KINDS[field]
    if isinstance(value, kind):
        return check_methods(value, kind)
    if optional and value is None:
        return None
    article = "an" if field == "origin" else "a"
    raise InputError(f"{field}= takes {article} {field} part, for instance {example}; {_what(field, value)}")


def _what(field: str, value: object) -> str:
    """What came instead, and what to do."""
    name = type(value).__name__
    if isinstance(value, type):
        return _class(field, value)
    if value is None or isinstance(value, bool):
        return f"{value} was given"
    if isinstance(value, Part):
        return f"{name} is a part for {value.kind}="
    if isinstance(value, State):
        return f"{name} is the state of a part while it runs; pass the part that makes it"
    if isinstance(value, int | float | str):
        return f"{value!r} is a {'text' if isinstance(value, str) else 'number'}"
    if isinstance(value, list | tuple | set | dict):
        return f"a {name} was given, but only one part is taken"
    if hasattr(value, "plan") and hasattr(value, "run"):
        return f"{getattr(value, 'name', name)} is a whole method; take a part of it"
    if callable(value) and hasattr(value, "__name__"):
        return f"{value.__name__} is a function: call it, or write a part"
    return _almost(field, value)


def _class(field: str, value: type) -> str:
    name = value.__name__
    if issubclass(value, Part) and value.kind != field:
        return f"{name} is a class, and of parts for {value.kind}="
    return f"{name} is a class: write {name}()"


def _almost(field: str, value: object) -> str:
    """Something that a part returns, or that only looks like one."""
    name, kind = type(value).__name__, KINDS[field][0].__name__
    if isinstance(value, Diagonal | Features | ThinFeatures | Projection):
        return f"{name} is the metric of one step: write a MetricRule whose state returns it from at"
    if isinstance(value, Poisson | FixedSize | FullBatch):
        return f"{name} is a sampler; the recipe makes it from expected_batch_size= and the relation"
    hint = f"{kind} and return it from begin" if field == "clip" and isinstance(value, Clip) else kind
    return f"{name} is not one: derive it from {hint} (sidelight.methods)"


# ---------------------------------------------------------------------------------------------------
# the methods that a run calls. Parts are checked when the recipe is made. States exist only after `begin`,
# which a plan calls before anything is charged.

S = TypeVar("S", bound=State)


def check_methods(value: Part | State, base: type) -> None:
    """Raise InputError for a method that is missing, or that cannot be called as the base class's is."""
    kind: type = type(value)
    complaint = _complaint(kind, base.__name__)
    if complaint is not None:
        raise InputError(complaint)


def check_state(maker: Part, state: S, base: type) -> S:
    """The state that a part made, if it is one of its kind with all methods."""
    if not isinstance(state, base):
        hint = "" if state is None else f"; derive it from {base.__name__} (sidelight.methods)"
        raise InputError(f"{_name(maker)}.begin must return a {base.__name__}, not {_kind(state)}{hint}")
    check_methods(state, base)
    kept: object = state.kept
    if not isinstance(kept, tuple | list):
        raise InputError(f"kept of {_name(state)} must be a tuple of names, not {kept!r}")
    for name in kept:
        if not hasattr(state, name):
            raise InputError(f"{_name(state)} names {name!r} in kept, and has no such attribute after begin")
    return state


def check_start(start: Start, params: object, dimension: int) -> None:
    """The first parameters are an array or a tensor of as many numbers."""
    shape = getattr(params, "shape", None)
    if shape is None or tuple(shape) != (dimension,):
        what = _kind(params) if shape is None else f"an array of shape {tuple(shape)}"
        raise InputError(f"{_name(start)} must return the first parameters, {dimension} numbers, not {what}")


def check_like(call: str, value: object, params: Vector) -> None:
    """What a part returns has one number for every parameter."""
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != tuple(params.shape):
        what = _kind(value) if shape is None else f"an array of shape {tuple(shape)}"
        raise InputError(f"{call} must return one number for each parameter, not {what}")


def check_multiplier(state: State, multiplier: object) -> None:
    """What a noise state returns for a step is a number, or None at the end of the run."""
    if multiplier is None or (isinstance(multiplier, Real) and float(multiplier) >= 0):
        return
    raise InputError(f"{_name(state)}.at must return a noise multiplier, or None to end, not {multiplier!r}")


def check_clip(state: State, clip: Clip | object) -> None:
    """What a clip state returns for a step has a bound and factors."""
    if isinstance(clip, type) or not isinstance(clip, Clip):
        raise InputError(f"{_name(state)}.at must return a clip, for instance Flat(1.0), not {_kind(clip)}")


def check_metric(state: State, metric: Metric | object) -> None:
    """What a metric state returns for a step is a linear map, or None."""
    fits = hasattr(metric, "apply") and hasattr(metric, "lift") and not isinstance(metric, type)
    if metric is not None and not fits:
        example = "for instance Diagonal(scale)"
        raise InputError(f"{_name(state)}.at must return a metric, {example}, or None, not {_kind(metric)}")


@functools.cache
def _complaint(kind: type, base: str) -> str | None:
    """What is wrong with this class; None if nothing."""
    for ancestor in kind.__mro__:
        for name, declared in vars(ancestor).items():
            if not getattr(declared, "__isabstractmethod__", False):
                continue
            defined = inspect.getattr_static(kind, name)
            called = f"{name}{_arguments(declared)}" if isinstance(declared, FunctionType) else name
            if getattr(defined, "__isabstractmethod__", False):
                return f"{kind.__name__} does not define {called}, which a {base} needs"
            if not _accepts(defined, declared):
                return f"{kind.__name__}.{name} is called as {called}, and takes {_arguments(defined)}"
    return None


def _accepts(defined: object, declared: object) -> bool:
    """Whether a method can be called with the arguments of another one."""
    if not (isinstance(defined, FunctionType) and isinstance(declared, FunctionType)):
        return True  # a property, or an attribute in its place
    parameters = inspect.signature(declared).parameters.values()
    positional = [None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_name = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(defined).bind(*positional, **by_name)
    except TypeError:
        return False
    return True


def _arguments(method: object) -> str:
    """(setting, params), as an author writes them."""
    if not isinstance(method, FunctionType):
        return "()"
    parameters = list(inspect.signature(method).parameters.values())[1:]
    plain = [p.replace(annotation=p.empty, default=p.empty) for p in parameters]
    return str(inspect.Signature(plain))


def _name(value: object) -> str:
    return type(value).__name__


def _kind(value: object) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
