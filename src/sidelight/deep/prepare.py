"""Before the charge of a fit, from public things alone: records, problem, recipe, optimizer and contract.

Settings that cannot be meant are refused here, and those that are left out are filled in.
"""

from __future__ import annotations

import math
import secrets
import warnings
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import ConcatDataset, Dataset, Subset

from sidelight.arrays import Json
from sidelight.augment.transforms import row_by_row
from sidelight.data.persons import Persons
from sidelight.deep import paid_choice
from sidelight.deep.checkpoint import Lease, RunState, check_writable
from sidelight.deep.gradient_points import batch_for
from sidelight.deep.guard import MOMENTUM, Guard, annealed, annealed_sgd
from sidelight.deep.network_auto import Choice, by_name, choose, real_plan, recipe_of, step_size_by_rule
from sidelight.deep.paid_choice import COMPARED, PaidChoice
from sidelight.deep.person_records import with_public
from sidelight.deep.private_records import PrivateAugment, PrivateRecords
from sidelight.deep.rehearsal import (
    RateSchedule,
    attempted,
    refuse_constant,
    rehearse,
    relative_rates,
    sound_optimizer,
    sound_scheduler,
    try_records,
    try_training,
)
from sidelight.errors import InputError, PrivacyConditionError
from sidelight.methods.correlated_noise import BandedNoise
from sidelight.methods.declare import DECLARATIONS
from sidelight.methods.dope_sgd import Warm
from sidelight.methods.health_check import (
    OFF,
    CheckPlan,
    HealthCheck,
    price,
    skipped,
    some_records,
    too_few,
)
from sidelight.methods.part_kinds import FinishRule, Setting
from sidelight.methods.parts import AllRecords, Cold, ConstantNoise, MeanLastHalf, MeanTail, Reuse
from sidelight.methods.ppsgd import GrowingBudget
from sidelight.methods.recipe import Loop, Recipe
from sidelight.methods.side_release import plan_with_side_release
from sidelight.methods.task import PUBLIC_APART, Plan
from sidelight.oracles.network.batches import Batch, placeholder_rows, take
from sidelight.oracles.network.check import refuse
from sidelight.oracles.network.flat import tensor, trainable
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.state import HONEST_CODE, NO_HIDDEN_STATE
from sidelight.privacy.contract import Contract, Payer, delta_of, relation_of
from sidelight.privacy.events import compose
from sidelight.privacy.noise import Noise
from sidelight.problems.dataset_overlap import places_within
from sidelight.problems.datasets import Records, as_dataset, record_count
from sidelight.problems.flat_parameters import read, write
from sidelight.problems.network import NetworkProblem
from sidelight.problems.network_public import HeldOut, NetworkGuide
from sidelight.problems.network_ranks import RANKS_TRUSTED, Ranks, Seeds, refuse_wrapped

if TYPE_CHECKING:
    from sidelight.deep.trainer import Trainer

_HELD_OUT = 0.1  # of the public records, for a method by its name
_STEP_SIZE = 0.5  # where neither the method nor the user has one
_ALONE = "an item of the private dataset, as it is collated and augmented, depends on one record alone"
_READABLE = "that records of the private dataset can be read, and what parts and types they have, is public"
_SAME_ORDER = "every rank has the same record at the same place of the private dataset"
_ROWS_TO_CHECK = 16  # public rows among which two different ones are sought


class Preparation:
    """One fit of a recipe, as far as it goes before a private record is read."""

    loop: Loop
    contract: Contract
    optimizer: torch.optim.Optimizer
    scheduler: RateSchedule | None
    plateau: ReduceLROnPlateau | None = None  # the same, if it waits for scores
    choice: Choice | None = None  # of `auto`
    rule_step: float | None = None  # of another method that leaves it open, for a clip norm of 1
    check: CheckPlan | None = None  # of the health check, where one is made
    check_details: Json = OFF
    paid: PaidChoice | None = None  # between the result and its start
    paid_details: Json | None = None
    guard: Guard

    def __init__(
        self,
        trainer: Trainer,
        recipe: Recipe | None,
        private: Dataset[object],
        public: Dataset[object] | None,
        payer: Payer | None,
        persons: Persons | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.trainer, self.model, self.payer, self.ranks = trainer, trainer.model, payer, ranks
        self.device = next(self.model.parameters()).device
        self.seed = secrets.randbits(63) if trainer.random_state is None else int(trainer.random_state)
        self.noise = Noise(trainer.random_state, repeatable=trainer.checkpoints is not None)
        self.seeds = Seeds(self.noise.seed)
        self.secret, self.claim = secrets.token_bytes(32), Lease()
        self.auto = recipe is None
        if recipe is None:
            recipe = _unchosen(record_count(private) if persons is None else persons.count)
        if recipe.public_rows == "private" and public is not None:
            persons = None if persons is None else with_public(persons, record_count(public))
            private, public = ConcatDataset([private, public]), None
        self.persons = persons
        self.private_source = private
        self.private = PrivateRecords(private, trainer.loading, self.device)
        if not len(self.private):
            raise InputError("there are no private records")
        self._public_source = public
        self._split_public()
        self.relation = relation_of(recipe, trainer.relation, payer)
        self.recipe = configured(trainer, recipe, n=self.n, n_public=size_of(self.public))

    @property
    def n(self) -> int:
        """Private records, or persons."""
        return len(self.private) if self.persons is None else self.persons.count

    @property
    def unit(self) -> str:
        return "record" if self.persons is None else self.persons.unit

    @property
    def copies(self) -> int:
        """Rows that are one contribution: augmentations of a record, or the rows of a person."""
        return self.trainer.augmentations * (1 if self.persons is None else self.trainer.max_rows)

    def _split_public(self) -> None:
        self.public, self.held_out = public_parts(self.trainer, self._public_source, self.seed, self.device)

    def _prepare(self, saved: RunState | None) -> None:
        """Guide, warm start, parts and contract. A saved run begins again where it began."""
        problem = self.problem = self._make_problem()
        if saved is None:
            self._try_public()
        if self.auto:
            self.choice = choose(self, problem) if saved is None else _chosen_then(saved)
            self.recipe = recipe_of(self.choice, guided=size_of(self.public) > 0)
        else:
            self._fill_in(problem.dimension)
        recipe = self.recipe
        if saved is not None:
            write(self.model, saved["start"].to(self.device))
            torch.set_rng_state(saved["rng_start"].cpu())
            problem.public_training = saved.get("public_training") or {}
            if problem.guide is not None:
                problem.guide.curvatures = saved.get("curvatures")
            recipe = recipe.with_parts(start=Cold())
        if not recipe.noise.independent:
            self._foresee(recipe)
        setting = self._setting(recipe, self._left_beside(recipe))
        if recipe.needs_public:
            setting.public(recipe.name)
        if saved is None:
            if not self.auto:  # whoever chooses leaves the model at the start
                write(self.model, tensor(recipe.start(setting)))
            recipe = recipe.with_parts(start=Cold())
            torch.manual_seed(self.seed)  # so that a resumed run can begin here
        if not self.auto and recipe.step_size is None and self.trainer.optimizer is None:
            self.rule_step = step_size_by_rule(recipe, setting, seed=self.seed)
        self.rng_start, self.start = torch.get_rng_state(), read(self.model)
        problem.begin_step(0)
        self.loop = recipe.with_parts(finish=without_history(recipe.finish)).begin(setting)
        if recipe.noise.shaped and problem.longest_step is None and self.step_size is not None:
            problem.longest_step = self.step_size  # by rule, for the noise planned so far: planned once more
            setting = self._setting(recipe, self._left_beside(recipe))
            self.loop = recipe.with_parts(finish=without_history(recipe.finish)).begin(setting)
        self._make_optimizer(recipe, setting.steps)
        self.contract = self._contract(recipe)
        if saved is None:
            self._rehearse()

    def _try_public(self) -> None:
        """Every public record that the run will use goes through model and loss once, before the charge."""
        guide = self.problem.guide if size_of(self.public) else None
        for records, name in ((self.held_out, "validation="), (self.public, "the public dataset")):
            if records is not None and len(records):
                try_records(self.oracle, records, name)
                attempted("outputs cannot be compared", partial(refuse_constant, self.oracle, records))
        if guide is None or self.public is None:
            return
        if self.trainer.warm_up is not None:
            try_training(self.oracle, self.public, self.trainer.warm_up)
        guide.draw(0)
        attempted(
            "the public gradient fails; see public_augment= and the loss",
            lambda: guide.mean_gradient(read(self.model)),
        )

    def _rehearse(self) -> None:
        """All steps of a user's own optimizer and scheduler, and a checkpoint of their states."""
        used: tuple[torch.optim.Optimizer, RateSchedule | None] = (self.optimizer, self.scheduler)
        if self.trainer.optimizer is not None or self.trainer.scheduler is not None:
            used = rehearse(*used, steps=self.loop.setting.steps)
        if self.trainer.checkpoints is not None:
            attempted("a checkpoint cannot be written", lambda: check_writable(self.loop, *used))

    def _setting(self, recipe: Recipe, epsilon: float) -> Setting:
        delta = delta_of(self.trainer.delta, self.n, self.payer)
        return recipe.setting(self.problem, epsilon=epsilon, delta=delta, relation=self.relation)

    def _left_beside(self, recipe: Recipe) -> float:
        """Plan the releases beside the steps; what they leave of ε for these."""
        budget = float(self.trainer.epsilon)
        how = {"epsilon": budget, "delta": delta_of(self.trainer.delta, self.n, self.payer)}
        check, paid = self._planned_check(**how), self._planned_choice(**how)
        sides = [one.event for one in (check, paid) if one is not None]
        if not sides:
            return budget

        def plan_at(rest: float) -> Plan:
            return recipe.noise_plan(self._setting(recipe, rest))

        found = plan_with_side_release(compose(*sides), plan_at, relation=self.relation, **how)
        if found is None:
            none = skipped(f"the plan of {recipe.name} has no room for it")
            if check is not None:
                self.check_details = none
            if paid is not None:
                self.paid_details = none
            return budget
        self.check, self.paid = check, paid
        return found.epsilon

    def _planned_check(self, *, epsilon: float, delta: float) -> CheckPlan | None:
        if not self.trainer.health_check:
            return None
        sampler = some_records(self.n, self.relation)
        check = HealthCheck().plan(
            self.n, epsilon=epsilon, delta=delta, relation=self.relation, sampler=sampler
        )
        few = skipped(too_few(self.n, epsilon))
        self.check_details = few if check is None else price(check, epsilon, delta)
        return check

    def _planned_choice(self, *, epsilon: float, delta: float) -> PaidChoice | None:
        """The comparison with a warm start, of `auto` alone: other methods end where their paper says."""
        if not self.auto or (self.choice is not None and self.choice.method == "only_public"):
            return None
        found = paid_choice.planned(
            self.problem, self.example, epsilon=epsilon, delta=delta, relation=self.relation
        )
        if isinstance(found, PaidChoice):
            self.paid_details = found.price(epsilon, delta)
            return found
        self.paid_details = {"skipped": found}
        return None

    def _make_problem(self) -> NetworkProblem:
        """The model under an oracle, examined as far as is possible before a private record is read."""
        t = self.trainer
        self.augment = PrivateAugment(t.augment, self.copies, dataset=self.private_source)
        self.augment.check()
        self.private.prepare(self.public if self.held_out is None else self.held_out)
        self.example = self._example()
        self.oracle = NetworkOracle(
            self.model, t.loss, example=self.example, draw_seed=self.seeds, expected=self._expected(),
            cache_bytes=t.loading.cache_bytes if _repeats(t) else 0,
        )  # fmt: skip
        refuse(self.model)
        row_by_row(t.augment, None if self.example is None else self.example[0])
        if self.example is not None:
            self._refuse_mixing(self.augment.of_public(take(self.example, slice(0, 1))))
        return NetworkProblem(
            self.oracle, n=self.n, guide=self._guide(), warm_up=t.warm_up, seed=self.seed,
            augmentations=self.copies, micro_batch=t.loading.micro_batch, unit=self.unit, ranks=self.ranks,
            seeds=self.seeds,
        )  # fmt: skip

    def _refuse_mixing(self, rows: Batch) -> None:
        t = self.trainer
        self.oracle.check(rows, micro_batch=t.loading.micro_batch, augmentations=self.copies)

    def _expected(self) -> float:
        """Records of a batch that a rank takes, on average."""
        ranks = 1 if self.ranks is None else self.ranks.size
        return max(1.0, (self.recipe.expected_batch_size or self.n) / ranks)

    def _fill_in(self, dimension: int) -> None:
        """Start and number of steps that the method and the user leave open, as `auto` plans them.

        Other rules of noise, and a pool of private and public records, have numbers of their own.
        """
        recipe = self.recipe = by_name(self.recipe, guided=size_of(self.public) > 0)
        noise = recipe.noise
        if recipe.steps is None and isinstance(noise, ConstantNoise | BandedNoise) and not recipe.extended:
            self.recipe = recipe.with_parts(steps=real_plan(self, dimension).steps)
        elif (
            isinstance(noise, GrowingBudget) and noise.planned_steps is None and noise.accounting == "filter"
        ):
            planned = recipe.steps or real_plan(self, dimension).steps
            self.recipe = recipe.with_parts(noise=replace(noise, planned_steps=planned))

    def _example(self) -> Batch | None:
        """Two rows to check the model with: public ones, or made-up ones of the private tensors' shape.

        None where only a look at a private record would tell its shape; then the check comes after the
        charge, which is given back if it fails (`_begin`).
        """
        for records in (self.public, self.held_out):
            if records is not None and len(records):
                return records.fetch(range(min(len(records), _ROWS_TO_CHECK)))
        form = self.private.form()
        return None if form is None else placeholder_rows(form, 2)

    def _guide(self) -> NetworkGuide | None:
        if self.public is None or self.recipe.public_rows != "guide":
            return None
        t = self.trainer
        return NetworkGuide(
            self.oracle, self.public, batch_size=t.public_batch_size, held_out=self.held_out, seed=self.seed,
            augment=t.public_augment, micro_batch=t.loading.micro_batch,
        )  # fmt: skip

    def _foresee(self, recipe: Recipe) -> None:
        """Momentum, step sizes and weight decay of the optimizer to come, as far as they are known."""
        problem, trainer = self.problem, self.trainer
        own = not self.auto and recipe.step_size is not None
        problem.momentum = 0.0 if own or recipe.momentum else MOMENTUM
        problem.longest_step = recipe.step_size if own else None
        if trainer.optimizer is None and trainer.scheduler is None:
            if not own:
                problem.schedule = lambda steps: tuple(annealed(step, steps) for step in range(steps))
            return
        make = trainer.optimizer or (lambda chosen: torch.optim.SGD(chosen, lr=1.0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = sound_optimizer(make, trainable(self.model))
            if trainer.optimizer is not None:
                problem.momentum, problem.decay = _momentum(made), _decay(made)
                problem.longest_step = _longest_step(made)
            schedule = sound_scheduler(trainer.scheduler, made, scored=True)
        problem.schedule = cache(partial(relative_rates, made, schedule))

    def _make_optimizer(self, recipe: Recipe, steps: int) -> None:
        """The user's, or SGD. Steps that were left to us decay, and held-out records watch over all."""
        parameters, trainer = trainable(self.model), self.trainer
        apart = self.held_out if size_of(self.held_out) else None
        judges = self.public if apart is None else apart
        ours = trainer.optimizer is None and trainer.scheduler is None
        guard = self.guard = Guard(
            self.oracle, HeldOut(self.oracle, judges) if judges and len(judges) else None, steps=steps,
            seen=apart is None, shortens=ours, stops=trainer.stop_if_dead,
        )  # fmt: skip
        own = not self.auto and recipe.step_size is not None
        size = (recipe.step_size if own else self.step_size) or _STEP_SIZE
        if ours:
            self.optimizer, self.scheduler = annealed_sgd(
                parameters, size, steps, scale=lambda: guard.scale, constant=own,
                momentum=0.0 if own or recipe.momentum else MOMENTUM,
            )  # fmt: skip
            return
        momentum = 0.0 if own or recipe.momentum else MOMENTUM
        make = trainer.optimizer or (lambda chosen: torch.optim.SGD(chosen, lr=size, momentum=momentum))
        self.optimizer = sound_optimizer(make, parameters)
        scored = size_of(self.held_out) > 0
        self.scheduler = sound_scheduler(trainer.scheduler, self.optimizer, scored=scored)
        made: object = self.scheduler
        self.plateau = made if isinstance(made, ReduceLROnPlateau) else None

    @property
    def step_size(self) -> float | None:
        """The longest, of a method that leaves it open, as the optimizer takes it."""
        chosen = self.rule_step if self.choice is None else self.choice.step_size
        momentum = self.recipe.momentum or MOMENTUM
        return None if chosen is None else (1 - momentum) * chosen / self.loop.first_clip.bound

    @property
    def choice_details(self) -> Json:
        """What `auto` chose, and why."""
        return {} if self.choice is None else self.choice.details

    def _contract(self, recipe: Recipe) -> Contract:
        setting, plan = self.loop.setting, recipe.plan_of(self.loop)
        counted = "records" if self.persons is None else "persons"
        known = f"the number of private {counted} ({setting.n:,}) and the shape of a record are public"
        chosen: Json = {
            "optimizer": type(self.optimizer).__name__, "private_records": setting.n,
            **public_counts(self.public, self.held_out),
        }  # fmt: skip
        if self.step_size is not None:
            chosen |= {"step_size": self.step_size, "momentum": self.recipe.momentum or MOMENTUM}
        whose: tuple[str, ...] = () if self.ranks is None else (_SAME_ORDER, RANKS_TRUSTED)
        if size_of(self.held_out):
            whose = (PUBLIC_APART, *whose)  # they decide whether the run is stopped
        if self.persons is not None:
            chosen["max_rows"] = self.trainer.max_rows
            whose = (*whose, self.persons.assumption)
        chosen["health_check"] = self.check_details
        if self.paid_details is not None:
            chosen[COMPARED] = self.paid_details
        sides = [one.event for one in (self.check, self.paid) if one is not None]
        event = compose(plan.event, *sides)
        return Contract(
            method=recipe.name, event=event, filtered=plan.filtered, relation=self.relation,
            epsilon=float(self.trainer.epsilon), delta=setting.delta, n=setting.n, unit=self.unit,
            payer=self.payer, details={**plan.details, **chosen, **self.choice_details},
            observers=self.trainer.observers,
            assumptions=(*plan.assumptions, known, *whose, _ALONE, _READABLE, HONEST_CODE, NO_HIDDEN_STATE),
        )  # fmt: skip


def _repeats(trainer: Trainer) -> bool:
    """Whether a record looks alike in every pass, and no resumed run has to repeat a sum bit for bit.

    What is remembered was computed beside the records that were new then, and may differ by rounding.
    """
    warm = None if trainer.warm_up is None else trainer.warm_up.augment
    changes = (trainer.augment, trainer.public_augment, warm, trainer.checkpoints)
    return all(one is None for one in changes)


def _momentum(optimizer: torch.optim.Optimizer) -> float:
    """Heavy ball of an optimizer; of Adam, its decay of the mean."""
    first = optimizer.param_groups[0]
    found: object = first.get("momentum", (first.get("betas") or (0.0,))[0])
    return float(found) if isinstance(found, float | int) and 0 <= found < 1 else 0.0


def _decay(optimizer: torch.optim.Optimizer) -> float:
    """The share of the parameters that weight decay takes off in a step; 0 where gradients rescale it."""
    first = optimizer.param_groups[0]
    share = float(first.get("lr", 0.0)) * float(first.get("weight_decay", 0.0))
    if isinstance(optimizer, torch.optim.SGD):
        share /= 1 - _momentum(optimizer)
    elif not isinstance(optimizer, torch.optim.AdamW):
        return 0.0
    return min(share, 1.0) if share > 0 else 0.0


def _longest_step(optimizer: torch.optim.Optimizer) -> float | None:
    """The learning rate of SGD; others rescale gradients."""
    rate = float(optimizer.param_groups[0].get("lr", 0.0))
    return rate if isinstance(optimizer, torch.optim.SGD) and 0 < rate < math.inf else None


def _unchosen(n: int) -> Recipe:
    """What `auto` is before it has chosen: its batch size, which depends on n alone."""
    return recipe_of(Choice("dp_sgd", batch_for(n), 1, _STEP_SIZE), guided=False).with_parts(steps=None)


def _chosen_then(saved: RunState) -> Choice:
    """The choice of the run that a checkpoint is of."""
    if (choice := saved.get("choice")) is None:
        raise PrivacyConditionError("the checkpoint is of a run with another method, and not of auto")
    return Choice.from_json(choice)


def size_of(records: Records | None) -> int:
    """How many there are; 0 where there are none to ask."""
    return 0 if records is None else len(records)


def public_counts(learn: Records | None, held_out: Records | None) -> Json:
    """For the statement: public records to learn from, and those that are set apart, if any are."""
    apart: Json = {"public_records_held_out": size_of(held_out)} if size_of(held_out) else {}
    return {"public_records": size_of(learn), **apart}


# ---------------------------------------------------------------------------------------------------
# settings that cannot be meant are refused, those that are left out are filled in


def check_loss(loss: object) -> None:
    """Raise InputError unless the loss can be called."""
    if not callable(loss):
        raise InputError(f"loss must be a function of outputs and targets, not {type(loss).__name__}")


def check_model(model: object) -> None:
    """Raise InputError unless the model is a module with something to train, all of it in this process."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    refuse_wrapped(model)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise InputError("the model has lazy layers without parameters yet; call it on a made-up batch first")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("the model has no trainable parameters")
    if any(p.is_meta for p in model.parameters()):
        raise InputError("the model has parameters on the meta device, which hold no values; load them first")


def refuse_linear(method: object) -> None:
    """Raise InputError for a method that asks for what a linear model alone has."""
    name = getattr(method, "name", type(method).__name__)
    declared = DECLARATIONS.get(name)
    if declared is None or declared.networks:  # a recipe of one's own: the part that it is about is named
        for part in method.parts if isinstance(method, Recipe) else ():
            if part.linear_only:
                raise InputError(
                    f"{type(part).__name__} is for linear models; a network takes another {part.kind}="
                )
    if not (isinstance(method, Recipe) and method.on_networks):
        able = ", ".join(name for name, one in DECLARATIONS.items() if one.networks)
        raise InputError(f"{name} is for linear models. Networks take: {able}")


def configured(trainer: Trainer, recipe: Recipe, *, n: int, n_public: int) -> Recipe:
    """The recipe with the trainer's batch size, steps and start; the batch of `auto` where nobody has one."""
    asked = trainer.expected_batch_size
    batch = recipe.expected_batch_size if asked is None else asked
    if batch is None and isinstance(recipe.batch, AllRecords) and not recipe.extended:
        batch = batch_for(n)
    pool = n + (n_public if recipe.extended else 0)
    steps = planned_steps(trainer, pool, batch)
    return recipe.with_parts(
        expected_batch_size=batch,
        steps=recipe.steps if steps is None else steps,
        start=recipe.start if trainer.warm_up is None else Warm(),
    )


def without_history(finish: FinishRule) -> FinishRule:
    """The same finish without keeping half of all iterates in memory."""
    if isinstance(finish, MeanLastHalf):
        return MeanTail(0.5)
    if isinstance(finish, Reuse):
        return replace(finish, inner=without_history(finish.inner))
    return finish


def planned_steps(trainer: Trainer, pool: int, batch: float | None) -> int | None:
    """What steps= or epochs= ask for."""
    if trainer.steps is not None and trainer.epochs is not None:
        raise InputError("pass steps or epochs, not both")
    if trainer.epochs is None:
        return trainer.steps
    return max(1, math.ceil(trainer.epochs * pool / min(pool, pool if batch is None else batch)))


def _others(public: Dataset[object], apart: Dataset[object]) -> Dataset[object]:
    """The public records without those that are set apart."""
    both = places_within(public, apart)
    if not len(both):
        return public
    rest = np.setdiff1d(np.arange(record_count(public)), both)
    if not len(rest):
        raise InputError("validation holds every public record; leave some to learn from")
    return Subset(public, rest.tolist())


def _validation(trainer: Trainer) -> Dataset[object] | float:
    """What is held out. Methods by name may estimate on unseen records; the default holds none back."""
    if trainer.validation is not None:
        return trainer.validation
    name = getattr(trainer.method, "name", trainer.method)
    return 0.0 if name in ("auto", "only_public", "non_private") else _HELD_OUT


def public_parts(
    trainer: Trainer, public: Dataset[object] | None, seed: int, device: torch.device
) -> tuple[Records | None, Records | None]:
    """Public records to learn from, and others that are set apart."""
    validation, loading = _validation(trainer), trainer.loading
    if not isinstance(validation, int | float):
        validation = as_dataset(validation, public=True)
        learn = None if public is None else Records(_others(public, validation), loading, device)
        return learn, Records(validation, loading, device)
    if not 0 <= validation < 1:
        raise InputError(f"validation is a dataset or a share in [0, 1), not {validation!r}")
    if public is None or not (size := record_count(public)):
        return None, None
    count = int(validation * size)
    if count == 0:
        return Records(public, loading, device), None
    order = np.random.default_rng([seed, 2**41]).permutation(size)
    pick = [np.sort(order[count:]).tolist(), np.sort(order[:count]).tolist()]
    learn, apart = (Records(Subset(public, rows), loading, device) for rows in pick)
    return learn, apart
