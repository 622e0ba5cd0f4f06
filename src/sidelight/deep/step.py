"""One private step for a training loop of one's own."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from sidelight.arrays import Json
from sidelight.deep.accelerated import refuse_accelerated
from sidelight.deep.binding import code_of, structure_of, without_addresses
from sidelight.deep.given_batch import (
    GivenBatch,
    OwnDraws,
    ReturningPersons,
    SampledDraws,
    as_pair,
    check_pair,
)
from sidelight.deep.language import loss_of
from sidelight.deep.per_example import per_example
from sidelight.deep.prepare import check_loss, check_model, refuse_linear
from sidelight.deep.rehearsal import RateSchedule, rehearse
from sidelight.errors import (
    BudgetExceeded,
    InputError,
    RankLost,
    SidelightError,
    first_line,
    kind_of,
    positive,
    whole,
)
from sidelight.familiar_words import knows_familiar_words
from sidelight.methods.declare import as_method
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.part_kinds import NoiseRule, Setting
from sidelight.methods.parts import Cold, FixedNoise, Last
from sidelight.methods.recipe import Loop, Recipe
from sidelight.oracles.network.batches import Batch, Losses, row_count
from sidelight.oracles.network.flat import trainable
from sidelight.oracles.network.layers import refresh_norms
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.state import HONEST_CODE, NO_HIDDEN_STATE
from sidelight.privacy import accountants
from sidelight.privacy.accountants import default_delta, resolve_delta
from sidelight.privacy.contract import Contract, open_payer, relation_of
from sidelight.privacy.events import Indices, Relation, Sampler
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.open_accounts import OpenAccount
from sidelight.privacy.release import Account, Run
from sidelight.privacy.statement import PrivacyStatement
from sidelight.privacy.turns import Places, Turns
from sidelight.problems.flat_parameters import read
from sidelight.problems.network import CallersProblem
from sidelight.problems.network_public import NetworkGuide
from sidelight.problems.network_ranks import (
    RANKS_TRUSTED,
    Applied,
    Drawn,
    Ranks,
    Seeds,
    SumQuestion,
    ranks_of,
)

M = TypeVar("M")

_SAMPLED = "every private batch held the {what} that PrivateStep.sample drew for it, out of n_private"
_OWN_SAMPLING = (
    "the caller drew the {what} of every private batch as the event says, from all n_private of them and "
    "independently of earlier batches"
)
_NAMED = "the caller named the person of every row"
_ALL_RANKS = "every rank has the same private records in the same order, and gives those that sample() names"
_OPEN_STEPS = 100  # rehearsed where nobody says how many there will be
_OWN_STOP = "the number of steps was fixed before the private records were looked at"


class PrivateStep:
    """Puts a private gradient into `p.grad`; optimizer, scheduler and loop are yours.

        step = PrivateStep(model, loss, method=dope_sgd(), epsilon=2, delta=1e-5, steps=1000,
                           n_private=60_000, expected_batch_size=512)
        for _ in range(1000):
            step(batch_of(private, step.sample()), public_batch)
            optimizer.step()

    Formal guarantee: `steps` releases, each of the event that the sampler names, of sensitivity clip_norm
    under `relation`; by PLD at most (epsilon, delta). The gradient is a mean over the *expected* batch size.
    The account is charged before noise is drawn; with a ledger the whole plan is, before the first step.
    Assumes: a batch holds the records that `sample` drew for it. A step without a sample, or with another
    number of records, is refused.

    Args:
        loss: (outputs, targets) → one loss per record. A module with reduction='mean' is converted; None uses
            the loss of a transformers model's head, averaged within each record.
        method: a recipe or its name: dp_sgd(), "dope_sgd", … Its start and finish are left to you.
        delta, relation: None takes the ledger's. Without a ledger the relation is add-or-remove-one, and
            delta has to be given (with noise_multiplier only for a statement).
        noise_multiplier: noise std / sensitivity, instead of epsilon and delta. Without `steps` the run lasts
            until you stop.
        n_public: number of public records, if the method needs it (None: those of the first public batch).
        augmentations: that many consecutive rows of a batch are one record.
        unit: "record", or the label of persons with several rows in statement and ledger. Then n_private
            and expected_batch_size count persons, `sample` draws them, and `step(..., persons=names)` is
            given the person of each row of its batch; the guarantee is for all rows of a person.
        max_rows: maximum rows of a person in a step, drawn at random if there are more.
        micro_batch: records at a time; memory and speed only.
        random_state: for tests and papers, with a warning; None draws unrepeatable noise.
        example: two public rows to check the model's layers with; None invents two.
        identity: of the private dataset, Identity.of(x, y), for the ledger. None passes on only the number of
            records.
        own_sampling: True if a loader of your own draws the batches, exactly as the plan says: each record
            with probability expected_batch_size / n_private, anew for each step. Then `sample` is not used,
            the statement lists this as an assumption, and only very improbable batch sizes are refused.
    """

    @knows_familiar_words
    def __init__(
        self,
        model: nn.Module,
        loss: Losses | None = None,
        *,
        method: Recipe | str | None = None,
        n_private: int,
        expected_batch_size: float | None,
        epsilon: float | None = None,
        delta: float | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        relation: Relation | None = None,
        n_public: int | None = None,
        augmentations: int = 1,
        unit: str = "record",
        max_rows: int = 8,
        micro_batch: int | None = None,
        ledger: Ledger | str | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
        example: Batch | None = None,
        identity: Identity | None = None,
        own_sampling: bool = False,
    ) -> None:
        recipe = _recipe_of(method)
        check_model(model)
        loss = loss_of(model) if loss is None else loss
        whole("n_private", n_private)
        whole("n_public", n_public, least=0, optional=True)
        whole("steps", steps, optional=True)
        whole("augmentations", augmentations)
        whole("max_rows", max_rows)
        check_unit(unit, augmentations)
        whole("micro_batch", micro_batch, optional=True)
        whole("random_state", random_state, least=0, optional=True)
        positive("expected_batch_size", expected_batch_size, optional=True)
        check_call(loss, example, identity)
        kind_of("own_sampling", own_sampling, bool)
        example = None if example is None else as_pair(example)
        check_budget(epsilon, delta, steps, noise_multiplier, ledger)
        self._recipe = configured(recipe, steps, expected_batch_size, noise_multiplier)
        refuse_linear(self._recipe)
        refuse_planning_with_public(self._recipe.noise)
        payer = open_payer(ledger, dataset, _known(identity, n_private, unit))
        self.relation: Relation = relation_of(recipe, relation, payer)
        delta = payer.registered.budget.delta if delta is None and payer is not None else delta
        self.model, self.unit = model, unit
        self.augmentations = augmentations if unit == "record" else max_rows
        self.micro_batch, self.history_ = micro_batch, list[Json]()
        self._noise = Noise(random_state)
        self._seeds = Seeds(self._noise.seed)
        self._oracle = NetworkOracle(
            model, per_example(loss), example=example, draw_seed=self._seeds,
            expected=expected_batch_size or n_private,
        )  # fmt: skip
        self._guide = NetworkGuide(
            self._oracle, size=0 if n_public is None else n_public, micro_batch=micro_batch
        )
        self._given = GivenBatch(None if unit == "record" else max_rows, self._seeds, augmentations)
        self._problem = CallersProblem(
            self._oracle, n=n_private, guide=self._guide if recipe.public_rows == "guide" else None,
            batches=self._given, augmentations=self.augmentations, micro_batch=micro_batch, unit=unit,
        )  # fmt: skip
        if recipe.extended and n_public is None:
            raise InputError(
                "the extended setting samples private and public records as one pool; pass n_public"
            )
        resolve_delta(delta, n_private)  # warns of one that promises nothing
        self._n, self._epsilon, self._delta = n_private, epsilon, delta
        self._open_ended = steps is None
        self._payer = payer
        if self._noise.repeatable:  # the first batch may be drawn before the plan is known
            asked = (self._recipe, self.relation, augmentations, n_private, expected_batch_size, steps)
            whose = () if unit == "record" else (unit, max_rows)
            settings = without_addresses((*asked, epsilon, delta, noise_multiplier, *whose))
            self._noise.bind("step", settings, structure_of(model), code_of(loss), read(model))
        self._setting = self._make_setting()
        sampler, exact = self._setting.sampler, unit == "record"
        everyone = n_private if sampler.expected_batch_size(n_private) == n_private else 0
        self._sampled = None
        if not own_sampling:
            in_turn = isinstance(sampler, Turns)
            self._sampled = SampledDraws(exact=exact, everyone=everyone, in_turn=in_turn)
        self._given.draws = self._sampled or OwnDraws(sampler, n_private, exact=exact)
        if unit != "record":
            self._given.returning = ReturningPersons(sampler.expected_batch_size(n_private) / n_private)
        if n_public is not None and self._recipe.needs_public:
            self._setting.public(self._recipe.name)
        self._places: Places | None = None
        self._draws = 0
        if own_sampling and isinstance(sampler, Turns):
            raise InputError(
                "records take turns with this noise: draw batches with sample(), without own_sampling"
            )
        self._loop: Loop | None = None
        self._contract: Contract | None = None
        self._charge: Run | OpenAccount | None = None
        self._account: Account | None = None
        self._lock = threading.RLock()
        self._ranks: Ranks | None = None
        self._joined = False
        self._terms = {
            "model": structure_of(model), "loss": code_of(loss), "method": without_addresses(self._recipe),
            "settings": without_addresses((
                n_private, expected_batch_size, epsilon, delta, steps, noise_multiplier, relation, n_public,
                augmentations, unit, max_rows, random_state, own_sampling,
            )),
        }  # fmt: skip

    def rehearse(
        self, optimizer: torch.optim.Optimizer, scheduler: RateSchedule | None = None
    ) -> PrivateStep:
        """Try optimizer and scheduler for all steps of the plan, on zeros, before anything is charged.

        Raises InputError for the step that fails: a schedule shorter than the plan, SparseAdam. Neither of
        them, nor the model, is changed by it. Without a number of steps, the first hundred are tried.
        """
        kind_of("optimizer", optimizer, torch.optim.Optimizer)
        rehearse(optimizer, scheduler, steps=_OPEN_STEPS if self._open_ended else self._setting.steps)
        return self

    def sample(self) -> Indices:
        """The records, or persons, of the next batch, drawn as the accounting assumes.

        Each draw is for one step, in the order of the calls.
        """
        if self._sampled is None:
            raise InputError("own_sampling=True says that you draw the batches; leave it out to use sample()")
        ranks = self._join()
        if ranks is None:
            mine = self._draw()
            mine = np.arange(self._n) if mine is None else mine
            self._sampled.add(mine)
            return mine
        if ranks.leads:
            with ranks.leading():
                drawn = Drawn(self._draw())
                ranks.tell(drawn)
        else:
            drawn = expected(Drawn, ranks.hear())
        mine = ranks.share_of(drawn.indices, self._n)
        self._sampled.add(mine)
        return mine

    def _draw(self) -> Indices | None:
        """The records of the next draw, of all ranks."""
        sampler: Sampler = self._setting.sampler
        if isinstance(sampler, Turns):
            if self._places is None:
                self._places = Places(sampler, self._n, key=self._noise.generator.bytes(32))
            sampler, self._draws = self._places.turn(self._draws), self._draws + 1
        return sampler.indices(self._n, self._noise)

    def _join(self) -> Ranks | None:
        """The other ranks, if there are any: all of them have the same settings, and rank 0's model."""
        if not self._joined:
            self._ranks = ranks_of(next(self.model.parameters()).device)
            if self._ranks is not None:
                self._ranks.agree(self._terms)
                if self._sampled is None:
                    raise InputError("own_sampling=True is for one process: under torchrun, call sample()")
                self._sampled.everyone = 0  # each rank has its share, which sample() names
                self._ranks.share_state(self.model)
                self._problem.ranks, self._problem.seeds = self._ranks, self._seeds
            self._joined = True
        return self._ranks

    def step(
        self,
        private_batch: Batch,
        public_batch: Batch | None = None,
        *,
        persons: ArrayLike | Tensor | None = None,
        indices: ArrayLike | None = None,
        accumulate: bool = False,
    ) -> Json:
        """One private gradient into `p.grad`. Returns what may be shown of it: noise, clip norm, spending.

        It replaces `p.grad`, so zero_grad is not needed; with `accumulate` it is added. A batch that is too
        large for memory is one step with `micro_batch`, not several steps. `persons`: the person of each row,
        if the unit is a person: all rows of the persons that were drawn. `indices`: which records, or
        persons, the batch holds, if your loader returns that. They must be those that `sample` drew; without
        it only their number is compared.
        """
        refuse_accelerated()
        with self._lock:  # two threads would count, and plan, past each other
            self._problem.accumulate = accumulate
            batch = as_pair(private_batch)
            self._given.give(batch, persons, indices)
            public = None if public_batch is None else as_pair(public_batch)
            ranks = self._join()
            if ranks is None:
                return self._step(batch, public)
            return self._lead(ranks, batch, public) if ranks.leads else self._help(ranks)

    __call__ = step

    def _lead(self, ranks: Ranks, private_batch: Batch, public_batch: Batch | None) -> Json:
        """On rank 0: the step, and its direction for the others."""
        with ranks.leading():
            entry = self._step(private_batch, public_batch)
            ranks.tell(Applied(entry))
        ranks.share([p.grad for p in trainable(self.model) if p.grad is not None])
        return entry

    def _help(self, ranks: Ranks) -> Json:
        """On another rank: its share of the sum, and what rank 0 has put into `p.grad`."""
        while isinstance(message := ranks.hear(), SumQuestion):
            ranks.answer(self._problem, self.model, message)
        entry = expected(Applied, message).entry
        for parameter in trainable(self.model):
            parameter.grad = torch.empty_like(parameter)
        ranks.share([p.grad for p in trainable(self.model) if p.grad is not None])
        self.history_ = [*self.history_, entry]
        return entry

    def _step(self, private_batch: Batch, public_batch: Batch | None) -> Json:
        self._guide.show(public_batch)
        if public_batch is not None:
            self._guide.size = self._guide.size or row_count(public_batch)
        self._given.check()
        if self._account is None and public_batch is not None:
            try_public(self._oracle, public_batch)
        # A model that mixes records is refused before the charge.
        self._oracle.check(
            private_batch, micro_batch=self._problem.micro_batch, augmentations=self.augmentations
        )
        loop, account = self._begin()
        if self._sampled is not None and isinstance(self._setting.sampler, Turns):
            loop.steps_taken = self._sampled.used  # a step that failed took the turn of its records with it
        refresh_norms(self.model)
        loop.refresh(read(self.model))
        if not loop.advance(account=account, noise=self._noise):
            raise BudgetExceeded(
                f"the plan is used up after {loop.steps_taken} steps. Nothing more was released"
            )
        self.history_ = loop.history
        return loop.history[-1]

    @property
    def privacy_(self) -> PrivacyStatement:
        """The guarantee: of the plan, or of the steps so far if there is no plan. Rank 0 has it."""
        if self._ranks is not None and not self._ranks.leads:
            raise InputError("rank 0 keeps the account: read privacy_ there")
        account = self._charge
        if self._contract is None or account is None:
            raise InputError("no step was taken yet, so nothing was charged and there is nothing to state")
        drawn = _OWN_SAMPLING if self._sampled is None else _SAMPLED
        what, named = ("records", ()) if self.unit == "record" else ("persons", (_NAMED,))
        lines = (*self._noise.assumptions, drawn.format(what=what), *named, HONEST_CODE, NO_HIDDEN_STATE)
        if self._ranks is not None:
            lines = (*lines, _ALL_RANKS, RANKS_TRUSTED)
        if isinstance(account, Run):
            return self._contract.statement(account, assumptions=lines)
        if self._delta is None:
            raise InputError("epsilon is stated at a delta; pass delta=")
        return self._contract.statement_so_far(account, assumptions=(*lines, _OWN_STOP))

    @property
    def spent_(self) -> float:
        """ε, at delta, of the steps taken so far, if no more follow; `privacy_` states the whole plan.

        It is a guarantee if the number of steps was fixed without looking at the private records, which is
        also why `privacy_` states the plan: stopping because of observed results is covered by that. A
        filter's steps are covered by its certificate alone, so there it is that of the plan at any step.
        """
        account, contract = self._charge, self._contract
        if account is None and (self._ranks is None or self._ranks.leads):
            return 0.0
        statement = self.privacy_
        if not isinstance(account, Run) or contract is None or contract.filtered:
            return statement.epsilon
        return accountants.epsilon(account.released, delta=statement.delta, relation=self.relation)

    def finish(self) -> None:
        """End well: a ledger then counts the steps that were taken, where the plan allows that."""
        if self._charge is not None:
            self._charge.finish()
        if self._loop is not None:
            self._loop.noise.forget()

    def __enter__(self) -> PrivateStep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    def _make_setting(self) -> Setting:
        return self._recipe.setting(
            self._problem,
            epsilon=math.inf if self._epsilon is None else self._epsilon,
            delta=default_delta(self._n) if self._delta is None else self._delta,
            relation=self.relation,
        )

    def _begin(self) -> tuple[Loop, Account]:
        """Parts begin, and the plan is charged, at the first step: they may want its public batch."""
        if self._loop is None:
            planned, self._setting = self._setting.sampler, self._make_setting()
            if isinstance(planned, Turns) and self._setting.sampler != planned:
                raise InputError(
                    "the turns of records were drawn before the first public batch; pass n_public"
                )
            self._loop = self._recipe.begin(self._setting)
        if self._account is None:
            self._contract = self._agree(self._loop)
            if self._open_ended:
                self._charge = self._account = self._contract.begin_open()
            else:
                self._charge, self._account = self._contract.begin()
            self._contract.key(self._noise, self._charge)
        return self._loop, self._account

    def _agree(self, loop: Loop) -> Contract:
        plan = self._recipe.plan_of(loop)
        return Contract(
            method=self._recipe.name,
            event=plan.event,
            filtered=plan.filtered,
            relation=self.relation,
            epsilon=math.inf if self._epsilon is None else self._epsilon,
            delta=self._setting.delta,
            n=self._n,
            unit=self.unit,
            details={**plan.details, **self._given.details},
            assumptions=plan.assumptions,
            payer=self._payer,
        )


def expected(kind: type[M], message: object) -> M:
    """The message, if it is of the kind that this call waits for."""
    if not isinstance(message, kind):
        raise RankLost(
            "rank 0 is at another call than this rank: every rank calls sample() and step() in the same order"
        )
    return message


def _known(identity: Identity | None, n: int, unit: str) -> Identity:
    """What a ledger is shown: a step sees batches, and not the dataset that they are drawn from."""
    if identity is None:
        return Identity(int(n), unit=unit)
    if unit != "record":
        if n > identity.records:
            raise InputError(f"n_private is {n} persons, and identity is of {identity.records} rows only")
        return replace(identity, records=int(n), unit=unit)
    if identity.records != n:
        raise InputError(f"identity is of {identity.records} records, and n_private is {n}")
    return identity


# ---------------------------------------------------------------------------------------------------
# what it is given: a plan and a budget, and checks of both


def _recipe_of(method: Recipe | str | None) -> Recipe:
    """The recipe, or that of this name; DP-SGD where none is given."""
    found = dp_sgd() if method is None else as_method(method)
    if not isinstance(found, Recipe):
        name = getattr(found, "name", repr(found))
        raise InputError(f"method must be a recipe of steps, such as dope_sgd(); {name} takes none in a loop")
    return found


def configured(
    recipe: Recipe, steps: int | None, expected_batch_size: float | None, noise_multiplier: float | None
) -> Recipe:
    """The recipe with this plan, and with start and finish left to the caller."""
    noise: NoiseRule = recipe.noise
    if noise_multiplier is not None:
        if not recipe.noise.independent:
            name = type(recipe.noise).__name__
            raise InputError(f"{name} is planned for a budget: pass epsilon, delta and steps")
        noise = FixedNoise(noise_multiplier, math.inf if steps is None else steps)
    return recipe.with_parts(
        start=Cold(), finish=Last(), steps=steps, expected_batch_size=expected_batch_size, noise=noise
    )


def check_budget(
    epsilon: float | None,
    delta: float | None,
    steps: int | None,
    noise_multiplier: float | None,
    ledger: object,
) -> None:
    """Either a budget and a number of steps, or a noise multiplier."""
    if noise_multiplier is None:
        if epsilon is None or (delta is None and ledger is None) or steps is None:
            raise InputError("pass epsilon, delta and steps, or noise_multiplier")
        if not (epsilon > 0 and math.isfinite(epsilon) and (delta is None or 0 < delta < 1)):
            raise InputError("epsilon must be positive, and delta between 0 and 1, both excluded")
        return
    if epsilon is not None:
        raise InputError("epsilon and noise_multiplier exclude each other: one follows from the other")
    positive("noise_multiplier", noise_multiplier)
    if ledger is not None and steps is None:
        raise InputError("a ledger is charged with the whole plan in advance; pass steps as well")


def refuse_planning_with_public(noise: NoiseRule) -> None:
    """Raise InputError for correlated noise that public records shape: turns are drawn before any is seen."""
    if noise.needs_public and not noise.independent:
        raise InputError(
            "noise shaped by public curvature is planned before the first batch, and a loop of your own has "
            "public records only then: use Trainer, or leave curvature out"
        )


def check_unit(unit: object, augmentations: int) -> None:
    """What persons are called; their rows are averaged, however many there are."""
    if not isinstance(unit, str) or not unit:
        raise InputError(f'unit is "record", or the name that persons go by, not {unit!r}')
    if unit != "record" and augmentations != 1:
        raise InputError("a person's rows are averaged: give augmented rows as rows of the same person")


def check_call(loss: object, example: object, identity: object) -> None:
    """Types of what PrivateStep is given, before anything is done with them."""
    check_loss(loss)
    if example is not None:
        check_pair(example, 1)
    kind_of("identity", identity, Identity)


def try_public(oracle: NetworkOracle, batch: Batch) -> None:
    """Raise InputError, before the charge, if the model or the loss fails on the public batch."""
    check_pair(batch, 1)
    try:
        with torch.random.fork_rng(devices=[]):
            oracle.loss_and_gradient(as_pair(batch))
    except SidelightError:
        raise
    except Exception as error:
        raise InputError(f"the model or the loss fails on public records ({first_line(error)})") from error
