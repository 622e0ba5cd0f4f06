"""Mistakes in a training loop of one's own: each is refused by name, and docs/networks.md has the table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deep.networks import loss, mlp
from torch.utils.data import DataLoader, TensorDataset

from sidelight.deep import PrivateStep
from sidelight.deep.given_batch import OwnDraws, ReturningPersons, SampledDraws
from sidelight.errors import BudgetExceeded, InputError, SidelightError
from sidelight.methods import BandedNoise, dp_sgd
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Poisson
from sidelight.privacy.identity import Identity
from sidelight.privacy.ledger import Ledger

N, B, STEPS = 1000, 100, 20
torch.manual_seed(0)
X, Y = torch.randn(N, 4), torch.randint(0, 3, (N,))
pytestmark = pytest.mark.filterwarnings("ignore:delta = 1e-05 is at least 1/n")
PAGE = Path(__file__).parents[2] / "docs" / "networks.md"


def make(**options: Any) -> PrivateStep:
    plan = {"n_private": N, "expected_batch_size": B, "epsilon": 1.0, "delta": 1e-5, "steps": STEPS}
    return PrivateStep(mlp(), loss, **{**plan, **options})


def of(places: Any) -> Any:
    return X[places], Y[places]


def _all_rows() -> None:
    make()((X, Y))


def _all_rows_after_a_sample() -> None:
    step = make()
    step.sample()
    step((X, Y))


def _twice() -> None:
    step = make()
    places = step.sample()
    step(of(np.concatenate([places, places])))


def _shuffled_loader() -> None:
    step = make()
    for batch in DataLoader(TensorDataset(X, Y), batch_size=B, shuffle=True):
        step(batch)


def _one_sample_for_all() -> None:
    step = make()
    places = step.sample()
    for _ in range(STEPS):
        step(of(places))


def _drawn_again() -> None:
    step = make()
    first = places = step.sample()
    while len(places) == len(first):
        places = step.sample()
    step(of(places))


def _cut() -> None:
    step = make()
    step(of(step.sample()[:64]))  # type: ignore[index]


def _others() -> None:
    step = make()
    places = (step.sample() + 1) % N  # type: ignore[operator]
    step(of(places), indices=places)


def _same_rows_of_a_larger_n() -> None:
    step = make(n_private=100_000)
    for _ in range(STEPS):
        step(of(np.arange(B)))


def _n_of_another_dataset() -> None:
    make(n_private=100_000, identity=Identity.of(X, Y))


def _more_persons() -> None:
    step = make(unit="patient", n_private=200, expected_batch_size=20)
    step.sample()
    step((X, Y), persons=torch.arange(N) // 5)


def _rows_for_persons() -> None:
    patients = torch.arange(N) // 5
    step = make(unit="patient", n_private=N // 5, expected_batch_size=B // 5)
    for _ in range(STEPS):
        places = step.sample()
        step(of(places), persons=patients[places])


def _persons_counted_by_rows() -> None:
    patients = torch.arange(N) // 5
    step = make(unit="patient")
    for _ in range(STEPS):
        mine = torch.isin(patients, patients[step.sample()])
        step(of(mine), persons=patients[mine])


def _own_all_rows() -> None:
    make(own_sampling=True)((X, Y))


def _own_twice() -> None:
    step, draw = make(own_sampling=True), make()
    for _ in range(STEPS):
        places = draw.sample()
        step(of(np.concatenate([places, places])))


def _own_shuffled() -> None:
    step = make(own_sampling=True)
    for _ in range(2):
        for batch in DataLoader(TensorDataset(X, Y), batch_size=B, shuffle=True):
            step(batch)


def _own_shuffled_with_a_rest() -> None:
    step = make(own_sampling=True, expected_batch_size=150)
    for _ in range(3):
        for batch in DataLoader(TensorDataset(X, Y), batch_size=150, shuffle=True):
            step(batch)


def _beyond_the_plan() -> None:
    step = make(steps=1)
    for _ in range(2):
        step(of(step.sample()))


def _short_schedule() -> None:
    step = make()
    optimizer = torch.optim.SGD(step.model.parameters(), lr=0.1)
    step.rehearse(optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10))


def _sparse() -> None:
    step = make()
    step.rehearse(torch.optim.SparseAdam(step.model.parameters()))


MISTAKES: dict[str, Callable[[], None]] = {
    "all rows in every step": _all_rows,
    "all rows, after `sample()`": _all_rows_after_a_sample,
    "every drawn row twice": _twice,
    "a shuffled `DataLoader`": _shuffled_loader,
    "one sample for all steps": _one_sample_for_all,
    "a sample drawn again until its size suits": _drawn_again,
    "a large batch cut to what fits into memory": _cut,
    "rows that were not drawn, with `indices=`": _others,
    "the same 100 rows each step, and `n_private=100_000`": _same_rows_of_a_larger_n,
    "an `n_private` that is not that of `identity=`": _n_of_another_dataset,
    "more persons than were drawn": _more_persons,
    "numbers of persons taken for those of rows": _rows_for_persons,
    "an `n_private` that counts a person once for each row": _persons_counted_by_rows,
    "`own_sampling=True`, and all rows": _own_all_rows,
    "`own_sampling=True`, and every row twice": _own_twice,
    "`own_sampling=True`, and a shuffled `DataLoader`": _own_shuffled,
    "the same, and a last batch that is smaller": _own_shuffled_with_a_rest,
    "a step beyond the plan": _beyond_the_plan,
    "a schedule shorter than the plan, with `step.rehearse`": _short_schedule,
    "`SparseAdam`, with `step.rehearse`": _sparse,
}


def rows_of_the_page() -> dict[str, list[str]]:
    """The table of mistakes, by their names."""
    lines = PAGE.read_text().split("### Mistakes in a loop", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]
    cells = [line.strip("| ").split(" | ") for line in lines.splitlines() if line.startswith("| ")]
    return {name: rest for name, *rest in cells[2:]}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_loop_is_refused_by_name(mistake: str) -> None:
    words = rows_of_the_page()[mistake][-1]
    with pytest.raises(SidelightError) as error:
        MISTAKES[mistake]()
    assert words.strip("*") in str(error.value) and "\n" not in str(error.value)


def test_the_table_of_mistakes_is_that_of_these_tests() -> None:
    assert list(rows_of_the_page()) == list(MISTAKES)


def test_the_table_says_what_a_mistake_would_have_cost() -> None:
    """ε of what was released, where ε = 1 was charged."""

    def cost(event: Any) -> str:
        return f"{accountants.epsilon(event, delta=1e-5, relation='add-or-remove-one'):.3g}"

    def noise(n: int) -> float:
        step = make(n_private=n)
        step(of(step.sample() % N))  # type: ignore[operator]
        return float(step.history_[0]["noise_multiplier"])

    z, often = noise(N), 1 - (1 - B / N) ** 5
    released = {
        "all rows in every step": events.repeat(events.gaussian(z), STEPS),
        "one sample for all steps": events.poisson(B / N, z / STEPS**0.5),
        "a step beyond the plan": events.repeat(events.poisson(B / N, z), STEPS + 1),
        "numbers of persons taken for those of rows": events.repeat(events.poisson(often, z), STEPS),
        "an `n_private` that counts a person once for each row": events.repeat(
            events.poisson(often, z), STEPS
        ),
        "every drawn row twice": events.repeat(events.poisson(B / N, z / 2), STEPS),
        "a shuffled `DataLoader`": events.repeat(events.gaussian(z), STEPS * B // N),
        "the same 100 rows each step, and `n_private=100_000`": events.repeat(
            events.gaussian(noise(100_000)), STEPS
        ),
    }
    found = {name: cells[0] for name, cells in rows_of_the_page().items()}
    assert {name: cost(event) for name, event in released.items()} == {name: found[name] for name in released}


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if "own_sampling" not in name][:9])
def test_nothing_is_charged_for_a_batch_that_is_refused(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=2, delta=1e-5)
    plain = make
    monkeypatch.setattr(f"{__name__}.make", lambda **options: plain(ledger=ledger, **options))
    with pytest.raises(InputError):
        MISTAKES[mistake]()
    assert len(ledger.charges("people")) == (mistake == "one sample for all steps")


def test_what_is_refused_does_not_depend_on_what_is_in_the_rows() -> None:
    for content in (0.0, float("nan"), float("inf"), 1e30):
        step = make(steps=2)
        places = step.sample()
        x = torch.full((len(places), 4), content)  # type: ignore[arg-type]
        step((x, Y[places]))
        step.sample()
        with pytest.raises(InputError, match="more records"):
            step((torch.full((N, 4), content), Y))


def test_contract_catches_a_draw_that_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SampledDraws, "use", lambda self, given: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_mistake_in_a_loop_is_refused_by_name("one sample for all steps")


def test_contract_catches_a_check_of_the_most_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    check = SampledDraws.check

    def at_most(self: SampledDraws, given: int, indices: Any) -> None:
        check(self, max(given, len(self._next())), indices)

    monkeypatch.setattr(SampledDraws, "check", at_most)
    with pytest.raises(pytest.fail.Exception):
        test_a_mistake_in_a_loop_is_refused_by_name("a large batch cut to what fits into memory")


def test_draws_are_used_in_order_so_a_loader_may_draw_ahead() -> None:
    step = make(steps=4)
    ahead = [step.sample() for _ in range(4)]
    for places in ahead:
        step(of(places), indices=places)
    with pytest.raises(InputError, match="no sample"):
        step(of(ahead[0]))


def test_a_step_that_fails_before_the_charge_keeps_its_sample() -> None:
    step = make()
    places = step.sample()
    with pytest.raises(InputError, match="pair"):
        step(X[places])
    step(of(places))
    assert len(step.history_) == 1


def test_a_plan_over_all_records_needs_no_sample() -> None:
    step = make(expected_batch_size=None)
    step((X, Y))
    with pytest.raises(InputError, match="fewer"):
        step(of(np.arange(N - 1)))


def test_augmented_rows_count_as_their_record() -> None:
    step = make(augmentations=2)
    places = step.sample()
    step(of(np.repeat(places, 2)))
    places = step.sample()
    with pytest.raises(InputError, match="fewer"):
        step(of(places[: len(places) // 2 * 2]))  # type: ignore[index]


def test_persons_may_be_fewer_than_drawn_and_not_others() -> None:
    patients = torch.arange(N) // 5
    step = make(unit="patient", n_private=N // 5, expected_batch_size=20, max_rows=5)
    drawn = step.sample()
    mine = torch.isin(patients, torch.from_numpy(drawn[1:]))  # one of them has no rows
    step(of(mine), persons=patients[mine], indices=drawn[1:])
    drawn = step.sample()
    mine = torch.isin(patients, torch.from_numpy(drawn))
    with pytest.raises(InputError, match="indices"):
        step(of(mine), persons=patients[mine], indices=(drawn + 1) % (N // 5))


@pytest.mark.parametrize(("n", "q"), [(200, 0.1), (10_000, 0.01), (40, 0.5), (10, 0.05), (30, 1.0)])
def test_persons_who_are_drawn_as_planned_may_come_back(n: int, q: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        returning = ReturningPersons(q)
        for _ in range(100):
            persons = returning.codes(np.flatnonzero(rng.random(n) < q))
            returning.check(persons)
            returning.use(persons)


def test_persons_may_be_numbered_anew_in_each_batch() -> None:
    patients = torch.arange(N) // 5
    step = make(unit="patient", n_private=N // 5, expected_batch_size=B // 5, max_rows=5)
    for _ in range(STEPS):
        mine = torch.isin(patients, torch.from_numpy(step.sample()))
        step(of(mine), persons=torch.unique(patients[mine], return_inverse=True)[1])
    assert len(step.history_) == STEPS


def test_persons_are_recognized_by_any_kind_of_name() -> None:
    returning = ReturningPersons(0.5)
    assert returning.codes(np.array([3, 3, 7])) == returning.codes(["7", 3.0]) == {0, 1}
    assert returning.codes([None, float("nan"), "3"]) == {0}


def test_contract_catches_persons_who_come_back_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReturningPersons, "use", lambda self, persons: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_mistake_in_a_loop_is_refused_by_name("numbers of persons taken for those of rows")


def test_more_persons_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match="persons"):
        make(unit="patient", n_private=N + 1, expected_batch_size=20, identity=Identity.of(X, Y))


def test_sampling_of_ones_own_is_taken_and_stated() -> None:
    step, draw = make(own_sampling=True), make()
    for _ in range(STEPS):
        step(of(draw.sample()))
    assert any("caller drew the records" in line for line in step.privacy_.assumptions)
    with pytest.raises(InputError, match="own_sampling"):
        step.sample()
    other = make()
    other(of(other.sample()))
    assert any("sample drew" in line for line in other.privacy_.assumptions)
    assert not any("caller drew" in line for line in other.privacy_.assumptions)


@pytest.mark.parametrize(("n", "q"), [(1000, 0.1), (60_000, 0.01), (40, 0.5), (10, 0.05), (30, 1.0)])
def test_batches_drawn_as_planned_are_never_taken_for_others(n: int, q: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        draws = OwnDraws(Poisson(q), n, exact=True)
        for size in rng.binomial(n, q, size=300).tolist():
            draws.check(size, None)
            draws.use(size)


def test_what_was_spent_so_far_is_below_the_plan_and_reaches_it() -> None:
    step, spent = make(steps=3), []
    assert step.spent_ == 0
    for _ in range(3):
        step(of(step.sample()))
        spent.append(step.spent_)
        assert step.privacy_.epsilon == pytest.approx(1, rel=1e-3)
    assert 0 < spent[0] < spent[1] < spent[2] == pytest.approx(1, rel=1e-3)
    one = events.repeat(step.privacy_.plan, 1)
    assert spent[2] == pytest.approx(accountants.epsilon(one, delta=1e-5, relation=step.relation))
    with pytest.raises(BudgetExceeded):
        step(of(step.sample()))
    assert step.spent_ == spent[2]


# ---------------------------------------------------------------------------------------------------
# records that take turns


def in_turns(**noise: Any) -> PrivateStep:
    banded = BandedNoise(**{"bands": 3, "cycle": 3, "sampled": False, **noise})
    return make(method=dp_sgd(noise=banded, clip_norm=1.0), expected_batch_size=N / 3)


def gaps(taken: list[tuple[int, np.ndarray]]) -> set[int]:
    """How many steps of a run lie between two turns of a record."""
    last, found = np.full(N, -1), set()
    for step, places in taken:
        found |= {int(gap) for gap in step - last[places][last[places] >= 0]}
        last[places] = step
    return found


def test_a_step_that_was_interrupted_does_not_move_turns_together():
    step, taken = in_turns(), []
    for attempt in range(9):
        places = step.sample()
        if attempt == 4:
            loop = step._loop
            whole = loop.clipped_sum

            def interrupted(*args: Any, whole: Any = whole, loop: Any = loop, **options: Any) -> None:
                loop.clipped_sum = whole
                whole(*args, **options)
                raise KeyboardInterrupt

            loop.clipped_sum = interrupted
            with pytest.raises(KeyboardInterrupt):
                step(of(places))
            continue
        step(of(places))
        taken.append((step._loop.noise.correlation.step - 1, places))
    assert min(gaps(taken)) == 3  # the turns of event.separation


def test_a_draw_that_no_step_used_is_passed_over_by_its_indices():
    step, taken = in_turns(), []
    for attempt in range(8):
        places = step.sample()
        if attempt == 4:
            continue  # a cell that was interrupted before its step
        if attempt == 5:
            with pytest.raises(InputError, match="indices="):
                step(of(places))
        step(of(places), indices=places)
        taken.append((step._loop.noise.correlation.step - 1, places))
    assert min(gaps(taken)) == 3


def test_a_loader_may_draw_ahead_of_turns():
    step = in_turns(sampled=True)
    ahead = [step.sample() for _ in range(4)]
    for places in ahead:
        step(of(places), indices=places)
    assert step._loop.steps_taken == 4


def test_no_step_follows_the_last_turn():
    step = in_turns()
    for _ in range(STEPS):
        step(of(step.sample()))
    with pytest.raises(BudgetExceeded):
        step(of(step.sample()))
