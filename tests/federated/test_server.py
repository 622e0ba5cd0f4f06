"""A federated round is the one private step, with clients for records."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federated.fleet import (
    CONSENTING,
    METHODS,
    NAMES,
    PRIVATE,
    START,
    answers,
    pull,
    run,
    server_of,
    taped,
)  # fmt: skip
from tests.private_values import value_of

from sidelight.audit.tape import vector
from sidelight.errors import BudgetExceeded, DatasetMismatch, InputError
from sidelight.federated import FederatedServer, UpdateBlock
from sidelight.methods.coupling import coupling
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.parts import Flat, Reuse
from sidelight.methods.recipe import Recipe
from sidelight.oracles.updates import UpdateOracle
from sidelight.privacy import events
from sidelight.privacy.ledger import Ledger
from sidelight.problems.users import UsersProblem
from sidelight.report import card_of, html

ODD: dict[str, Callable[[Any], object]] = {
    "absent": lambda w: None,
    "NaN": lambda w: np.full(7, np.nan),
    "one infinity": lambda w: np.array([np.inf, 0, 0, 0, 0, 0, 0]),
    "overflowing": lambda w: np.full(7, 1e300),
    "too long": lambda w: np.zeros(8),
    "a matrix": lambda w: np.zeros((7, 1)),
    "whole numbers": lambda w: np.zeros(7, dtype=np.int64),
    "complex": lambda w: np.zeros(7, dtype=complex),
    "objects": lambda w: np.array([object()] * 7),
    "a text": lambda w: "0,0,0,0,0,0,0",
    "a list": lambda w: [0.0] * 7,
    "a failure": lambda w: lambda: 1 / 0,
    "no memory": lambda w: lambda: (_ for _ in ()).throw(MemoryError()),
    "an exit": lambda w: lambda: (_ for _ in ()).throw(SystemExit(1)),
}
CONTENT: dict[str, Callable[[Any], object]] = {
    "far": lambda w: np.full(7, 1e6),
    "opposite": lambda w: -pull("phone 3")(w),
    "zero": lambda w: np.zeros(7),
}


def moved(one: Any, other: Any) -> list[float]:
    """How far the sums of two runs are apart, in sensitivities."""
    assert len(one.calls) == len(other.calls)
    return [
        float(np.linalg.norm(a.value - b.value)) / a.sensitivity
        for a, b in zip(one.calls, other.calls, strict=True)
    ]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("reply", ["absent", "NaN", *CONTENT])
def test_a_user_moves_no_sum_by_more_than_its_sensitivity(name: str, reply: str) -> None:
    """Presence (it never answers) and content: everything that a client sends in all rounds is one unit."""
    like, server = taped(METHODS[name](), expected_cohort=PRIVATE)
    odd = {"phone 3": {**ODD, **CONTENT}[reply]}
    other, changed = taped(METHODS[name](), odd, like, expected_cohort=PRIVATE)
    far = moved(like, other)
    limit = 1 if reply in ("absent", "NaN") else 2  # another content is one user less and one more
    assert max(far) <= limit * (1 + 1e-9)
    assert max(far) > 0.02, "the neighbor moved nothing: this test would not notice a fault"
    assert server.history_ == changed.history_
    assert server.privacy_.to_dict() == changed.privacy_.to_dict()
    assert all(np.array_equal(a, b) for a, b in zip(server.arrays, changed.arrays, strict=True))


@pytest.mark.parametrize("reply", [name for name in ODD if name != "absent"])
def test_what_is_no_update_is_as_if_nothing_had_come(reply: str, capfd: pytest.CaptureFixture[str]) -> None:
    like, _ = taped(dope_sgd(clip_norm=0.5), {"phone 3": ODD["absent"]})
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        other, _ = taped(dope_sgd(clip_norm=0.5), {"phone 3": ODD[reply]}, like)
    assert max(moved(like, other)) == 0.0
    said = capfd.readouterr()
    assert not said.out and not said.err
    assert all("seed" in str(warning.message) for warning in warned)


def test_every_client_may_be_silent_at_once() -> None:
    """Nothing is divided by how many answered."""
    silent = {name: ODD["absent"] for name in NAMES}
    tape, server = taped(dope_sgd(clip_norm=0.5), silent)
    assert all(not call.value.any() for call in tape.calls)
    assert np.isfinite(server.form.flat(server.arrays)).all()


def test_the_vector_of_a_round_by_hand() -> None:
    """P2 of the reference vectors: two private users, two public ones, C = 1, B = 4, no noise."""
    problem = UsersProblem(np.zeros(2), ["a", "b"], None)
    public = np.array([[0.5, 0.5], [0.0, 0.5]])
    total = UpdateOracle(2).clipped_sum(
        [("a", np.array([1.0, 0.0])), ("b", np.array([0.0, 2.0]))], ["a", "b"],
        clip=Flat(1.0), origin=public.mean(axis=0), relation="add-or-remove-one",
    )  # fmt: skip
    direction = vector(total) / 4 + public.mean(axis=0)
    np.testing.assert_allclose(direction, [0.3964002532, 0.621598481], rtol=1e-9)
    np.testing.assert_allclose(problem.apply(np.zeros(2), direction, step_size=1.0), -direction)


def test_the_first_answer_of_a_sampled_client_counts_and_no_other() -> None:
    oracle, clip = UpdateOracle(2), Flat(1.0)
    options: Any = {"clip": clip, "relation": "add-or-remove-one"}
    a, b, c = np.array([0.1, 0.0]), np.array([0.0, 0.2]), np.array([0.3, 0.3])
    honest = vector(oracle.clipped_sum([("a", a), ("b", b)], ["a", "b"], **options))
    twice = [("b", b), ("stranger", c), (["unhashable"], c), ("a", a), ("a", c), ("b", c), ("b", "x")]
    assert np.array_equal(vector(oracle.clipped_sum(twice, ["a", "b"], **options)), honest)
    block = UpdateBlock(["a", "c", "b", "a", "b"], np.stack([a, c, b, c, c]))
    blocks = vector(oracle.clipped_sum([block, ("a", c)], ["a", "b"], **options))
    np.testing.assert_allclose(blocks, honest, rtol=1e-15)
    late = [("a", "no update"), ("a", a), ("b", b)]  # a client does not get a second try
    assert np.array_equal(vector(oracle.clipped_sum(late, ["a", "b"], **options)), [0, honest[1]])


def test_the_order_of_arrival_changes_no_bit() -> None:
    rng, clip = np.random.default_rng(0), Flat(1.0)
    oracle, names = UpdateOracle(50), list(range(40))
    given = [(k, rng.normal(size=50)) for k in names]
    sums = [
        vector(oracle.clipped_sum(order, names, clip=clip, relation="add-or-remove-one"))
        for order in (given, given[::-1], given[20:] + given[:20])
    ]
    assert np.array_equal(sums[0], sums[1]) and np.array_equal(sums[0], sums[2])


# ---------------------------------------------------------------------------------------------------
# planted faults


def caught(
    one: Callable[[Any], object], other: Callable[[Any], object], method: Recipe | None = None
) -> float:
    """By how many sensitivities a user that sends `other` in place of `one` moves a sum."""
    recipe = method or dope_sgd(clip_norm=0.5)
    like, _ = taped(recipe, {"phone 3": one}, expected_cohort=PRIVATE)
    neighbor, _ = taped(recipe, {"phone 3": other}, like, expected_cohort=PRIVATE)
    return max(moved(like, neighbor))


def test_contract_catches_an_origin_that_is_added_once_per_user(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = UpdateOracle.clipped_sum

    def per_user(self: Any, given: Any, clients: Any, *, origin: Any = None, **options: Any) -> Any:
        total = honest(self, given, clients, origin=origin, **options)
        present = [client for client, _ in given if client in set(clients)]
        total._value = value_of(total) + len(present) * (0 if origin is None else origin)
        return total

    assert caught(pull("phone 3"), ODD["absent"]) <= 1 + 1e-9
    monkeypatch.setattr(UpdateOracle, "clipped_sum", per_user)
    assert caught(pull("phone 3"), ODD["absent"]) > 1.01


def test_contract_catches_a_divisor_that_counts_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = UpdateOracle.clipped_sum

    def mean(self: Any, given: Any, clients: Any, **options: Any) -> Any:
        total = honest(self, given, clients, **options)
        present = [client for client, _ in given if client in set(clients)]
        total._value = value_of(total) * len(clients) / max(1, len(present))
        return total

    dp, against = dp_sgd(clip_norm=0.5), CONTENT["opposite"]
    assert caught(against, ODD["absent"], dp) <= 1 + 1e-9
    monkeypatch.setattr(UpdateOracle, "clipped_sum", mean)
    assert caught(against, ODD["absent"], dp) > 1.01


def test_contract_catches_a_nan_that_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Flower's own wrapper does: min(1, C/NaN) is no clip."""
    monkeypatch.setattr("sidelight.oracles.updates.np.isfinite", lambda x: np.ones(np.shape(x), dtype=bool))
    assert not caught(ODD["absent"], ODD["NaN"]) <= 1


def test_contract_catches_an_update_that_the_client_clipped_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidelight.oracles.updates.row_norms", lambda rows: np.full(len(rows), 0.5))
    assert caught(ODD["absent"], CONTENT["far"]) > 1.01


# ---------------------------------------------------------------------------------------------------
# whom the server asks


def test_private_clients_are_drawn_by_poisson_from_the_source_that_is_accounted() -> None:
    server = server_of(dp_sgd(clip_norm=0.5), rounds=400, expected_cohort=6, random_state=3)
    sizes, seen = [], dict.fromkeys(NAMES, 0)
    while (ask := server.open_round()) is not None:
        sizes.append(len(ask.clients))
        for client in ask.clients:
            seen[client] += 1
        server.close_round([])
    assert abs(np.mean(sizes) - 6) < 0.5 and abs(np.var(sizes) - 5.4) < 1.2
    assert min(seen.values()) > 15 and max(seen.values()) < 75
    step = events.poisson(0.1, server.history_[0]["noise_multiplier"])
    assert server.privacy_.plan == events.repeat(step, 400)


def test_two_servers_without_a_seed_ask_others() -> None:
    drawn = [server_of(dp_sgd(clip_norm=0.5), random_state=None).open_round() for _ in range(2)]
    assert drawn[0] is not None and drawn[1] is not None and drawn[0].clients != drawn[1].clients


def test_everyone_may_be_asked_so_that_nobody_sees_who_was_drawn() -> None:
    """The sums are those of the cohort that was drawn; the others' answers are ignored."""
    with_all, server = taped(dope_sgd(clip_norm=0.5), ask="everyone")
    asked = run(server_of(dope_sgd(clip_norm=0.5), ask="everyone"))
    assert all(set(NAMES) <= set(ask.clients) for ask in asked if ask.private)
    some, _ = taped(dope_sgd(clip_norm=0.5), like=with_all)
    assert max(moved(with_all, some)) == 0
    details = server.privacy_.details
    assert details["clients_asked"] == "everyone" and "epsilon_if_cohorts_are_seen" not in details


def test_who_sees_the_cohorts_has_a_weaker_guarantee_and_the_statement_says_so() -> None:
    _, server = taped(dp_sgd(clip_norm=0.5))
    statement = server.privacy_
    assert float(statement.details["epsilon_if_cohorts_are_seen"]) > 2 * statement.epsilon
    text = str(statement)
    for word in ("trusted", "person", "client id", "epsilon_if_cohorts_are_seen"):
        assert word in text


def test_a_filter_needs_secret_cohorts_too_and_says_so() -> None:
    """What whoever sees the cohorts has is not stated for a filter, but the assumption is the same."""
    _, server = taped(METHODS["ppsgd"]())
    assert any("learns who was asked" in line for line in server.privacy_.assumptions)
    _, open_to_all = taped(METHODS["ppsgd"](), ask="everyone")
    assert not any("learns who was asked" in line for line in open_to_all.privacy_.assumptions)


def test_a_block_of_another_width_is_no_update_of_anybody() -> None:
    """Rows of twice the width were two contributions of one client; other shapes were errors."""
    oracle, names = UpdateOracle(2), ["a", "b"]
    options: Any = {"clip": Flat(1.0), "relation": "add-or-remove-one"}
    good = ("b", np.array([0.0, 0.2]))
    alone = vector(oracle.clipped_sum([good], names, **options))
    for odd in (np.full((1, 4), 9.0), np.zeros((1, 3)), np.array([["x", "y"]]), np.full(2, 9.0), None):
        block: Any = UpdateBlock(["a"], odd)
        assert np.array_equal(vector(oracle.clipped_sum([block, good], names, **options)), alone)
    for nothing in (None, 7, (), ("a",), "a"):
        assert np.array_equal(vector(oracle.clipped_sum([nothing, good], names, **options)), alone)  # type: ignore[list-item]


def test_the_report_speaks_of_persons_and_of_a_trusted_server() -> None:
    _, server = taped(dope_sgd(clip_norm=0.5))
    card = card_of(server, title="phones")
    page = html(card)
    assert card.unit == "client id" and "all rows of one person added or removed" in page
    assert "private persons" in page and "trusted" in page


def test_public_clients_take_turns() -> None:
    asked = run(server_of(dope_sgd(clip_norm=0.5), public_cohort=2))
    publics = [[c for c in ask.clients if str(c).startswith("public")] for ask in asked]
    assert publics[0] == CONSENTING[:2] and publics[2] == CONSENTING[4:] and publics[1] == []


def test_warm_rounds_ask_public_clients_alone_and_cost_nothing() -> None:
    cold, warm = server_of(dope_sgd(clip_norm=0.5)), server_of(dope_sgd(clip_norm=0.5), warm_rounds=3)
    for _ in range(3):
        ask = warm.open_round()
        assert ask is not None and not ask.private and set(ask.clients) == set(CONSENTING)
        warm.close_round(answers(warm, ask, {}))
    with pytest.raises(InputError, match="charged"):
        warm.privacy_  # noqa: B018
    assert np.linalg.norm(warm.form.flat(warm.arrays)) > 0.5
    run(warm)
    run(cold)
    assert warm.privacy_.plan == cold.privacy_.plan
    assert warm.privacy_.details["warm_rounds"] == 3


def test_a_public_client_that_is_offline_or_broken_is_left_out_and_counted() -> None:
    odd = {CONSENTING[0]: ODD["absent"], CONSENTING[1]: ODD["NaN"], CONSENTING[2]: ODD["too long"]}
    _, server = taped(dope_sgd(clip_norm=0.5), odd)
    assert [entry["public_users"] for entry in server.history_] == [3] * 5


# ---------------------------------------------------------------------------------------------------
# the contract


def test_the_whole_plan_is_in_the_ledger_before_a_private_client_is_asked(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "ledger.db")
    book.register("phones", epsilon=5.0, delta=1e-4, relation="add-or-remove-one")
    server = server_of(dope_sgd(clip_norm=0.5), ledger=book, dataset="phones", delta=None)
    look = server.open_round()
    assert look is not None and not look.private and not book.charges("phones")
    server.close_round(answers(server, look, {}))
    ask = server.open_round()
    assert ask is not None and ask.private
    (charge,) = book.charges("phones")
    assert sum(events.elementary(charge.plan).values()) == 5
    del server  # killed here, the charge stays
    assert book.charges("phones")
    fewer = server_of(dope_sgd(clip_norm=0.5), ledger=book, dataset="phones", delta=None, private=NAMES[:50])
    with pytest.raises(DatasetMismatch):
        run(fewer)
    with pytest.raises(BudgetExceeded):
        run(server_of(dope_sgd(clip_norm=0.5), ledger=book, dataset="phones", delta=None))


def test_a_ledger_knows_clients_by_their_number_and_not_by_the_model(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "ledger.db")
    book.register("phones", epsilon=5.0, delta=1e-4, relation="add-or-remove-one")
    settings: Any = {"ledger": book, "dataset": "phones", "epsilon": 1.0, "private": NAMES, "rounds": 2}
    for start in (START, START[:1]):
        server = FederatedServer(start, method=dp_sgd(clip_norm=0.5), **settings)
        while server.open_round() is not None:
            server.close_round([])
    assert len(book.charges("phones")) == 2 and "60 persons (by client id)" in book.charges("phones")[0].note


def test_a_run_that_is_closed_early_says_so_and_goes_no_further() -> None:
    server = server_of(dp_sgd(clip_norm=0.5))
    ask = server.open_round()
    assert ask is not None
    server.close_round([])
    server.close()
    assert server.open_round() is None and len(server.history_) == 1


def test_several_local_steps_are_an_update_like_any_other() -> None:
    def fed_avg(name: str) -> Callable[[Any], object]:
        def local(w: Any) -> object:
            v = w.copy()
            for _ in range(4):
                v -= 0.2 * pull(name)(v)
            return w - v

        return local

    server = server_of(dope_sgd(clip_norm=2.0), epsilon=50.0, rounds=40, random_state=2)
    run(server, {name: fed_avg(name) for name in (*NAMES, *CONSENTING)})
    assert np.linalg.norm(server.form.flat(server.arrays) - np.linspace(-1, 1, 7)) < 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"private": []}, "no private clients"),
        ({"public": ["phone 1"]}, "listed twice"),
        ({"private": [["a"]]}, "name of a client"),
        ({"public": []}, "needs public clients"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"rounds": 0}, "rounds"),
        ({"ask": "some"}, "ask must"),
        ({"warm_rounds": -1}, "warm_rounds"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        server_of(dope_sgd(clip_norm=0.5), **settings)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: METHODS["ppsgd"]().with_parts(finish=Reuse()), "needs public records"),
        (lambda: dope_sgd(clip_norm=0.5, start="warm"), "warm_rounds"),
    ],
    ids=["refit", "warm"],
)  # fmt: skip
def test_a_method_that_asks_for_more_is_refused_before_anything_is_asked(
    method: Callable[[], Recipe], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        server_of(method())


def test_a_weight_that_needs_losses_is_refused_before_the_charge() -> None:
    server = server_of(coupling())
    ask = server.open_round()
    assert ask is not None and not ask.private
    server.close_round(answers(server, ask, {}))
    with pytest.raises(InputError, match="asks"):
        server.open_round()


@pytest.mark.parametrize("start", [[], [np.zeros(3, dtype=int)], [np.array([np.nan])], ["x"]])
def test_a_bad_start_is_refused(start: Any) -> None:
    with pytest.raises(InputError, match="start"):
        FederatedServer(start, method=dp_sgd(clip_norm=1.0), private=NAMES, epsilon=1.0)


def test_no_usable_public_update_stops_before_the_charge() -> None:
    server = server_of(dope_sgd(clip_norm=0.5))
    assert server.open_round() is not None
    with pytest.raises(InputError, match="usable"):
        server.close_round([])


def test_rounds_are_opened_and_closed_in_turn() -> None:
    server = server_of(dp_sgd(clip_norm=0.5))
    with pytest.raises(InputError, match="no round"):
        server.close_round([])
    server.open_round()
    with pytest.raises(InputError, match="is open"):
        server.open_round()


def test_parameters_keep_their_shapes_and_types() -> None:
    server = server_of(dp_sgd(clip_norm=0.5))
    run(server)
    assert [(a.shape, a.dtype) for a in server.arrays] == [(a.shape, a.dtype) for a in START]
