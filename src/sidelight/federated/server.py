"""The server of federated learning: whom to ask, and what becomes of the answers.

    server = FederatedServer(start, method=dope_sgd(clip_norm=1.0), private=names, public=consenting,
                             epsilon=2.0, rounds=100, expected_cohort=200)
    while (ask := server.open_round()) is not None:
        server.close_round(answers_of(ask))      # by Flower, a simulation, or another transport
    server.arrays, server.privacy_

A round is the one private step of every other problem, with clients for records:

    U  ← each private client with probability q, drawn here, from the cryptographic source
    o  ← origin(mean update of the public clients)
    G  ← release( Σ_{k∈U} clip_C(u_k − o),  std = z·C )      charged in advance; a missing client is a zero
    w  ← w − η ( G/B + o )                                   B = q·n, a constant; the origin once
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sidelight.arrays import Array, Json, Vector, floats
from sidelight.errors import InputError, one_of, positive, whole
from sidelight.familiar_words import knows_familiar_words
from sidelight.methods.dope_sgd import Warm
from sidelight.methods.part_kinds import Models, Setting
from sidelight.methods.parts import Cold
from sidelight.methods.recipe import Loop, Recipe
from sidelight.methods.task import Plan
from sidelight.oracles.updates import Answer, Client, Form
from sidelight.privacy import accountants, events
from sidelight.privacy.contract import Contract, delta_of, open_payer, relation_of
from sidelight.privacy.correlated import reduced, without_sampling
from sidelight.privacy.events import Relation, Sampler
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.noise_checks import least_multiplier
from sidelight.privacy.observer import Observer, check_observers
from sidelight.privacy.release import Account, Run
from sidelight.privacy.statement import PrivacyStatement
from sidelight.problems.users import PublicUsers, UsersProblem

_TRUSTED = (
    "the server is trusted (central differential privacy): it sees every update before it is clipped, and "
    "shows others only the model after each round"
)
_PERSON = "a client is one person: a person with two clients is protected as two"
_CONSENT = "public clients agreed to be public, and what they send does not depend on private ones"
_SECRET = (
    "only the server learns who was asked in a round; against anybody else who does (by watching the "
    "network, say) the guarantee is the weaker epsilon_if_cohorts_are_seen"
)
_SECRET_PLAN = (
    "only the server learns who was asked in a round; against anybody else who does, the guarantee is weaker"
)
_TIME = "when a round begins and ends, and how long an answer takes, is not part of the output"


@dataclass(frozen=True, eq=False)
class Ask:
    """A round that is open.

    Args:
        number: from 1; rounds of public clients alone are counted too.
        private: whether private clients are asked; else the round is free.
        clients: recipients of the parameters, in an order that carries no information.
        arrays: the parameters.
    """

    number: int
    private: bool
    clients: tuple[Client, ...]
    arrays: list[Array]


class FederatedServer:
    """Trains a model on clients' updates, with a guarantee for everything that a client ever sends.

    Guarantee: `rounds` releases, each of the event that the sampler names, of sensitivity clip_norm; at most
    (epsilon, delta) for one private client more or less (or replaced), with any updates in any rounds. The
    whole plan is charged before the first private client is asked.
    Assumes: a trusted server; one client per person; who is asked stays secret, where clients are sampled.
    Departs: DOPE-SGD's origin is added once, after the noise, and not once per client of the round.

    Args:
        start: the parameters that training begins with, as arrays of floats.
        method: a recipe: dp_sgd, dope_sgd, coupling, sample_mechanism (public clients are averaged in,
            without clip and noise), full_private (public clients are treated as private), …
        private: the names of all private clients, fixed for the run. Their number is public; a client
            that never answers contributes zero.
        public: names of clients that consented to be public.
        rounds, expected_cohort: T and B, instead of the method's own.
        warm_rounds: rounds of public clients alone before that, which cost nothing.
        warm_step_size: η of those.
        public_cohort: public clients that are asked in a round, in turn; None asks all.
        ask: "sampled" asks the private clients that were drawn; "everyone" asks all of them and ignores the
            others, so that outsiders cannot tell who was drawn.
        random_state: for tests and papers, with a warning.
    """

    @knows_familiar_words
    def __init__(
        self,
        start: Sequence[Array],
        *,
        method: Recipe,
        private: Iterable[Client],
        public: Iterable[Client] = (),
        epsilon: float,
        delta: float | None = None,
        rounds: int | None = None,
        expected_cohort: float | None = None,
        relation: Relation | None = None,
        warm_rounds: int = 0,
        warm_step_size: float = 1.0,
        public_cohort: int | None = None,
        ask: Literal["sampled", "everyone"] = "sampled",
        ledger: Ledger | str | None = None,
        dataset: str | None = None,
        observers: Sequence[Observer] = (),
        random_state: int | None = None,
    ) -> None:
        self._check(method, epsilon, rounds, expected_cohort, warm_rounds, warm_step_size, public_cohort, ask)
        names, consenting = _names(private, public)
        if method.public_rows == "private":
            names, consenting = names + consenting, ()
        self.form = Form.of(list(start))
        w = self.form.flat(list(start))
        if not (method.needs_public or warm_rounds):
            consenting = ()  # nobody asks them
        guide = PublicUsers(consenting, len(w)) if consenting else None
        self.problem, self._guide = UsersProblem(w, names, guide), guide
        if method.needs_public or warm_rounds:
            _needed(guide, method.name if method.needs_public else "warm_rounds")
        self.recipe = _configured(method, rounds, expected_cohort, warm=bool(warm_rounds))
        self._epsilon, self._ask_everyone, self._public_cohort = epsilon, ask == "everyone", public_cohort
        identity = Identity(len(names), unit=self.problem.unit)
        self._payer = open_payer(ledger, dataset, identity)
        self._relation = relation_of(self.recipe, relation, self._payer)
        self._delta = delta_of(delta, len(names), self._payer)
        self.setting = self._make_setting()
        self._observers, self._noise = check_observers(observers), Noise(random_state)
        self._warm_left, self._warm_step, self._warm_rounds = warm_rounds, float(warm_step_size), warm_rounds
        self._w, self._number, self._open, self._finished = w, 0, False, False
        self._asked: tuple[Client, ...] = ()
        self._loop: Loop | None = None
        self._contract: Contract | None = None
        self._run: Run | None = None
        self._account: Account | None = None
        self.history_: list[Json] = []

    @staticmethod
    def _check(
        method: Recipe, epsilon: float, rounds: int | None, cohort: float | None, warm_rounds: int,
        warm_step: float, public_cohort: int | None, ask: str,
    ) -> None:  # fmt: skip
        if not (isinstance(method, Recipe) and method.on_networks):
            name = getattr(method, "name", type(method).__name__)
            raise InputError(f"{name} is for linear models; clients take dp_sgd, dope_sgd, coupling, …")
        if method.finish.needs_public or not method.finish.single:
            what = f"the finish of {method.name}, {type(method.finish).__name__},"
            raise InputError(f"{what} needs public records, or several models; pass finish=Last()")
        if isinstance(method.start, Warm) and not warm_rounds:
            raise InputError(
                f"{method.name} starts from a model of public records. Pass warm_rounds=, rounds of public "
                "clients alone; or pre-train on data of theirs that you hold, and pass what that gives"
            )
        positive("epsilon", epsilon)
        whole("rounds", rounds, optional=True)
        positive("expected_cohort", cohort, optional=True)
        whole("warm_rounds", warm_rounds, least=0)
        positive("warm_step_size", warm_step)
        whole("public_cohort", public_cohort, optional=True)
        one_of("ask", ask, ("sampled", "everyone"))

    def _make_setting(self) -> Setting:
        return self.recipe.setting(
            self.problem, epsilon=self._epsilon, delta=self._delta, relation=self._relation
        )

    # -----------------------------------------------------------------------------------------------
    # rounds

    @property
    def arrays(self) -> list[Array]:
        """The current parameters; after the last round, those of the method's finish."""
        return self.form.arrays(self._w)

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def total_rounds(self) -> int:
        """The maximum number of rounds, including those of public clients alone."""
        return self._warm_rounds + int(self.recipe.needs_public) + self.setting.steps

    def open_round(self) -> Ask | None:
        """Whom to ask, and with which parameters; None when training is finished. The first private round
        charges the plan."""
        if self._open:
            raise InputError("a round is open; close it with close_round first")
        if self._finished:
            return None
        alone = self._public_alone()
        if alone is None:
            self._begin()
            if self._loop is not None and self._loop.noise.at(self._loop.steps_taken) is None:
                self._finish()
                return None
        clients = alone if alone is not None else self._cohort()
        self._open, self._number, self._asked = True, self._number + 1, clients
        return Ask(self._number, alone is None, clients, self.arrays)

    def _public_alone(self) -> tuple[Client, ...] | None:
        """The clients of a round without private ones, before the first private one; else None."""
        if self._guide is None or self._loop is not None:
            return None
        look = self.recipe.needs_public and not self._guide.knows(self._w)
        return self._public_of_round() if self._warm_left or look else None

    def _public_of_round(self) -> tuple[Client, ...]:
        if self._guide is None or not (self.recipe.needs_public or self._warm_left):
            return ()  # they have helped with the start alone
        every, count = self._guide.clients, self._public_cohort
        if count is None or count >= len(every):
            return every
        first = self._number * count % len(every)
        return (every + every)[first : first + count]

    def _cohort(self) -> tuple[Client, ...]:
        """The private clients that were drawn, or all of them, and the public ones, in a fixed order."""
        sampler: Sampler = self.setting.sampler
        if self._loop is not None:
            sampler = self._loop.noise.turn(self._loop.steps_taken, self.setting, self._noise)
        drawn = self.problem.draw(sampler, self._noise)
        private = self.problem.clients if self._ask_everyone else drawn
        known = self._guide is not None and self._guide.knows(self._w)
        return (*private, *(() if known else self._public_of_round()))

    def close_round(self, answers: Iterable[Answer]) -> None:
        """Take the answers: (client, flat update) pairs, or blocks of them; anything else is ignored."""
        if not self._open:
            raise InputError("no round is open; open_round says whom to ask")
        given, self._open = list(answers), False
        if self._guide is not None and not self._guide.knows(self._w):
            self._guide.show(self._w, given)
        if self._loop is None:
            return self._close_public()
        self.problem.answers = given
        try:
            self._loop.refresh(self._w)  # parts that adapt see the public updates at the new parameters
            going = self._advance(self._loop)
        finally:
            self.problem.answers = []
        if going:
            self._w = floats(self._loop.w)
            self.history_ = self._loop.history
            self._notify()
        if not going or self._loop.noise.at(self._loop.steps_taken) is None:
            self._finish()
        return None

    def _advance(self, loop: Loop) -> bool:
        if self._account is None:
            raise InputError("the plan of this run was not charged")
        if not loop.advance(account=self._account, noise=self._noise):
            return False
        if self._guide is not None and self.recipe.needs_public:
            loop.history[-1]["public_users"] = self._guide.answered
        return True

    def _notify(self) -> None:
        for observer in self._observers:
            observer.on_step(len(self.history_), dict(self.history_[-1]))

    def _close_public(self) -> None:
        guide = _needed(self._guide, "a round of public clients")
        if not guide.answered:
            raise InputError(
                "no public client sent a usable update: finite, with the shapes and types of the start. "
                "Nothing was charged, and no private client was asked"
            )
        if self._warm_left:
            self._warm_left -= 1
            self._w = self._w - self._warm_step * guide.mean_gradient(self._w)
            self.problem.begin_at(self._w)

    # -----------------------------------------------------------------------------------------------
    # the contract

    def _begin(self) -> None:
        """Parts begin at the first parameters, and the whole plan is charged."""
        if self._loop is not None:
            return
        loop = self.recipe.begin(self._make_setting())
        self.setting = loop.setting
        plan = self.recipe.plan_of(loop)
        seen = self._seen(plan)
        known = f"the number of private clients ({self.problem.n:,}) and the shapes of the model are public"
        lines = [*plan.assumptions, _TRUSTED, known, _PERSON, _TIME]
        lines += [_CONSENT] if self._guide is not None else []
        if not self._ask_everyone and self._samples(plan):
            lines += [_SECRET if seen is not None else _SECRET_PLAN]
        self._contract = Contract(
            method=self.recipe.name, event=plan.event, filtered=plan.filtered, relation=self._relation,
            epsilon=self._epsilon, delta=self.setting.delta, n=self.problem.n, unit=self.problem.unit,
            details={**plan.details, **self._details(seen)}, assumptions=tuple(lines), payer=self._payer,
            observers=self._observers,
        )  # fmt: skip
        self._run, self._account = self._contract.begin()
        self._contract.key(self._noise, self._run, repr(self.recipe), repr(self.problem.clients), self._w)
        self._loop = loop

    def _details(self, seen: float | None) -> Json:
        found: Json = {
            "private_records": self.problem.n,
            "public_records": 0 if self._guide is None else self._guide.size,
            "clients_asked": "everyone" if self._ask_everyone else "those sampled",
            "warm_rounds": self._warm_rounds,
        }
        return found if seen is None else {**found, "epsilon_if_cohorts_are_seen": seen}

    def _seen(self, plan: Plan) -> float | None:
        """ε against an observer of cohorts, for a client in every round; None if that says nothing."""
        parts = events.elementary(without_sampling(plan.event))
        noise = {part: least_multiplier(part) for part in parts}
        if self._ask_everyone or plan.filtered or not self._samples(plan) or None in noise.values():
            return None
        bare = {events.gaussian(noise[part] or 1.0): count for part, count in parts.items()}
        return accountants.epsilon(events.composed(bare), delta=self._delta, relation=self._relation)

    def _samples(self, plan: Plan) -> bool:
        """Whether the guarantee counts on a cohort that is drawn; of a filter's certificate, by its rate."""
        if plan.filtered:
            return self.setting.batch < self.problem.n
        return any(not isinstance(part, events.Gaussian) for part in events.elementary(reduced(plan.event)))

    def _finish(self) -> None:
        if self._loop is not None:
            result: Vector | Models = self._loop.finish.result(self._loop.start)
            if isinstance(result, Models):
                raise InputError("an ensemble of models cannot be sent to clients; use another finish")
            self._w = floats(result)
            self._loop.noise.forget()
        if self._run is not None:
            self._run.finish()
        self._finished = True

    def close(self) -> None:
        """End early, between two rounds: the model stays as it is, and a ledger counts what was released."""
        if self._open:
            self._open = False
        self._finish()

    @property
    def privacy_(self) -> PrivacyStatement:
        """The guarantee of the plan that was charged."""
        if self._contract is None or self._run is None or self._loop is None:
            raise InputError("no private client was asked yet, so nothing was charged")
        return self._contract.statement(
            self._run, notes=self._loop.all_notes(), assumptions=self._noise.assumptions
        )


def _names(
    private: Iterable[Client], public: Iterable[Client]
) -> tuple[tuple[Client, ...], tuple[Client, ...]]:
    """Both lists, if no name is there twice."""
    names, consenting = tuple(private), tuple(public)
    if not names:
        raise InputError("there are no private clients")
    try:
        distinct = len(set(names) | set(consenting)) == len(names) + len(consenting)
    except TypeError:
        raise InputError(
            "the name of a client is a text, a number or another value that can be a key"
        ) from None
    if not distinct:
        raise InputError("a client is listed twice; each name is one client, private or public")
    return names, consenting


def _needed(guide: PublicUsers | None, what: str) -> PublicUsers:
    if guide is None:
        raise InputError(f"{what} needs public clients; pass public=, the names of those that consented")
    return guide


def _configured(method: Recipe, rounds: int | None, cohort: float | None, *, warm: bool) -> Recipe:
    """The recipe with these rounds; rounds of public clients take the place of its warm start."""
    recipe = method
    if isinstance(recipe.start, Warm) and warm:
        recipe = recipe.with_parts(start=Cold())
    if rounds is not None:
        recipe = recipe.with_parts(steps=rounds)
    if cohort is not None:
        recipe = recipe.with_parts(expected_batch_size=cohort)
    # η = 1: the parameters become the mean of those that clients came back with, as in FedAvg.
    return recipe if recipe.step_size is not None else recipe.with_parts(step_size=1.0)
