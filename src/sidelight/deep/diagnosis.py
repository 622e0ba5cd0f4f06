"""`diagnose`: which method suits a model and a budget, by public records, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from sidelight.arrays import Json
from sidelight.augment.transforms import Augment, augmented
from sidelight.deep.gradient_points import GradientPoint, RealPlan, Taken, at_point, plan_for
from sidelight.deep.per_example import per_example
from sidelight.deep.prepare import check_model
from sidelight.errors import InputError, callable_or_none, kind_of, positive, whole
from sidelight.oracles.network.batches import Losses
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.contract import delta_of
from sidelight.privacy.events import Relation, check_relation
from sidelight.problems.datasets import Loading, Records, as_dataset, record_count
from sidelight.problems.flat_parameters import read, train_mode, write
from sidelight.problems.network_public import HeldOut
from sidelight.problems.public_training import PublicTraining, one_cycle, plain_steps, train_well

_MAX_RECORDS, _MIN_RECORDS = 1024, 32  # records of either kind that are looked at, at most and at least
_RATE = 2e-3  # of the steps on the way


@dataclass(frozen=True)
class Diagnosis:
    """What public records say about a plan: at the model's parameters, on the way, and after a warm start."""

    plan: RealPlan
    parameters: int
    public_records: int
    points: tuple[GradientPoint, ...]

    @property
    def method(self) -> Taken:
        """The method to take from where training should begin."""
        return self.best.method

    @property
    def best(self) -> GradientPoint:
        """Where training should begin: as the model is, or at a warm start, by the loss of the stand-ins."""
        return min(self.points[0], self.points[-1], key=lambda point: point.loss)

    @property
    def words(self) -> str:
        begin = (
            "Begin as the model is: training on public records does not lower the loss of others."
            if self.best is self.points[0]
            else "Begin at a warm start on the public records."
        )
        return f"{begin} {self.best.words}"

    def to_dict(self) -> Json:
        """For JSON and for reports."""
        return {
            "plan": asdict(self.plan), "parameters": self.parameters, "public_records": self.public_records,
            "points": [{**asdict(point), "method": point.method} for point in self.points],
            "method": self.method, "words": self.words,
        }  # fmt: skip

    def __str__(self) -> str:
        plan = self.plan
        lines = [
            f"{self.parameters} parameters, {plan.n} private records, {self.public_records} public ones; "
            f"ε = {plan.epsilon:g}, δ = {plan.delta:g}: {plan.steps} steps of {plan.batch:g} records, "
            f"noise multiplier {plan.noise_multiplier:.2f}",
            "",
            _row(("", *(point.where for point in self.points))),
            *(
                _row((label, *(_number(getattr(point, name)) for point in self.points)))
                for name, label in _LABELS.items()
            ),
            "",
            self.words,
        ]
        return "\n".join(lines)


_LABELS = {
    "loss": "loss of the stand-ins",
    "length": "length of a gradient, median",
    "clipped_share": "share that is clipped",
    "around_public": "‖g − public‖/‖g‖, median",
    "around_best": "‖g − best origin‖/‖g‖, median",
    "noise_to_signal": "noise of a step / clipped mean",
    "target": "cosines are with the",
    "public": "cosine: public gradient",
    "clipped": "cosine: clipped, without noise",
    "one_step": "cosine: released, one step",
    "released": "cosine: released, a tenth of the run",
    "around": "   the same around the public one",
    "mixed": "   the same mixed with the public one",
    "weight": "   by this weight",
    "method": "method from here",
}


def _row(cells: tuple[str, ...]) -> str:
    return cells[0].ljust(38) + "".join(cell.rjust(14) for cell in cells[1:])


def _number(value: object) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def diagnose(
    model: nn.Module,
    loss: Losses,
    public: Dataset[object] | tuple[Tensor, Tensor],
    *,
    n: int,
    epsilon: float,
    delta: float | None = None,
    relation: Relation = "add-or-remove-one",
    expected_batch_size: float | None = None,
    steps: int | None = None,
    clip_norm: float = 1.0,
    warm_up: PublicTraining | None = None,
    public_augment: Augment | None = None,
    loading: Loading | None = None,
    random_state: int = 0,
) -> Diagnosis:
    """Which method suits this model and budget? Measured on public records; nothing is spent.

        print(diagnose(model, loss, public, n=57_000, epsilon=2))

    Half of the public records play the public ones: the warm start is trained on them, and they give the
    public gradient. The other half stands in for the private records. The model is left as it was.

    Guarantee: no private record is an argument, so nothing is said about any.
    Assumes: the private records are like the public ones. The number of private records is public.

    Args:
        n: private records there will be.
        epsilon, delta, relation, expected_batch_size, steps, clip_norm: the plan; what is None is planned as
            `Trainer` plans it.
        warm_up: how a warm start is trained; None as `auto` does.
        public_augment: inputs → inputs, for public batches.
    """
    check_model(model)
    positive("epsilon", epsilon)
    positive("clip_norm", clip_norm)
    positive("delta", delta, optional=True)
    positive("expected_batch_size", expected_batch_size, optional=True)
    whole("n", n)
    whole("steps", steps, optional=True)
    whole("random_state", random_state, least=0)
    kind_of("warm_up", warm_up, PublicTraining)
    kind_of("loading", loading, Loading)
    callable_or_none("public_augment", public_augment)
    dataset = as_dataset(public)
    if (size := record_count(dataset)) < 2 * _MIN_RECORDS:
        raise InputError(
            f"a diagnosis splits the public records in two, and needs {2 * _MIN_RECORDS}; got {size}"
        )
    oracle = NetworkOracle(model, per_example(loss))
    plan = plan_for(
        n, oracle.dimension, epsilon=epsilon, delta=delta_of(delta, n, None), batch=expected_batch_size,
        relation=check_relation(relation), steps=steps, seed=random_state,
    )  # fmt: skip
    how = warm_up or PublicTraining()
    how = replace(how, augment=how.augment or public_augment)
    with torch.random.fork_rng(), _restored_afterwards(model):
        torch.manual_seed(random_state)
        train_mode(model)
        parts = _halves(dataset, loading or Loading(), oracle, random_state)
        return Diagnosis(plan, oracle.dimension, size, _points(oracle, parts, plan, how, clip_norm))


@contextmanager
def _restored_afterwards(model: nn.Module) -> Iterator[None]:
    """Parameters and modes are put back."""
    before, modes = read(model), {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        write(model, before)
        for module, mode in modes.items():
            module.training = mode


def _halves(
    dataset: Dataset[object], loading: Loading, oracle: NetworkOracle, seed: int
) -> tuple[Records, Records]:
    """Records that play the public ones, and stand-ins."""
    order = np.random.default_rng([seed, 2**43]).permutation(record_count(dataset)).tolist()
    half = len(order) // 2
    learn, stand_ins = (
        Records(Subset(dataset, some), loading, oracle.parameters[0].device)
        for some in (order[:half], order[half:][:_MAX_RECORDS])
    )
    return learn, stand_ins


def _points(
    oracle: NetworkOracle,
    parts: tuple[Records, Records],
    plan: RealPlan,
    how: PublicTraining,
    clip_norm: float,
) -> tuple[GradientPoint, ...]:
    learn, others = parts
    stand_ins = others.fetch(np.arange(len(others)))
    inputs, targets = learn.fetch(np.arange(min(len(learn), _MAX_RECORDS)))
    found = list[GradientPoint]()

    def look(where: str) -> None:
        public, loss = augmented(how.augment, inputs, targets), HeldOut(oracle, others).score().loss
        found.append(at_point(oracle, public, stand_ins, plan, where=where, loss=loss, clip_norm=clip_norm))

    look("start")
    start, early = read(oracle.model), max(1, how.steps_for(len(learn)) // 20)
    brief = replace(how, steps=early)
    plain_steps(oracle, learn, one_cycle(brief, _RATE) if how.optimizer is None else brief, seed=plan.seed)
    look(f"{early} steps")
    write(oracle.model, start)
    train_well(oracle, learn, how, seed=plan.seed)
    look("warm start")
    return tuple(found)
