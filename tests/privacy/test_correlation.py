"""The mechanism: noise C⁻¹z step by step, charged once, never drawn twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sidelight.errors import BudgetExceeded, PrivacyConditionError
from sidelight.privacy import events
from sidelight.privacy.correlated import CorrelatedGaussian
from sidelight.privacy.correlation import Correlation
from sidelight.privacy.noise import Noise
from sidelight.privacy.open_accounts import OpenAccount
from sidelight.privacy.release import BoundedSum, Run, release, release_correlated
from sidelight.privacy.strategies import Strategy, inverse_square_root
from sidelight.privacy.turns import Places, Turns

AR = "add-or-remove-one"
BANDED = (1.0, 0.6, 0.3)
INVERSE = inverse_square_root(4, np.array([1.0, -1.0])).coefficients


def run_of(coefficients=BANDED, inverse=0, steps=12) -> CorrelatedGaussian:
    return CorrelatedGaussian(2.0, coefficients, inverse, steps, 4, 3)


def whitened(outputs: np.ndarray, event: CorrelatedGaussian) -> np.ndarray:
    """C times the noise of all steps: the draws, in units of their standard deviation."""
    column = Strategy(event.coefficients, bool(event.inverse)).column(len(outputs))
    lower = np.array(
        [[column[i - j] if i >= j else 0.0 for j in range(len(outputs))] for i in range(len(outputs))]
    )
    return lower @ outputs / event.noise_multiplier


def zero_sums(event: CorrelatedGaussian, noise: Noise, *, width=4000, kind="numpy", steps=None) -> np.ndarray:
    correlation, account = Correlation(event), OpenAccount()
    empty = np.zeros(width) if kind == "numpy" else torch.zeros(width, dtype=torch.float32)
    out = [
        release_correlated(
            BoundedSum(empty, sensitivity=1.0, relation=AR), correlation=correlation, account=account,
            noise=noise,
        ).numpy()
        for _ in range(steps or event.steps)
    ]  # fmt: skip
    return np.stack([np.asarray(one, dtype=np.float64) for one in out])


def departure(draws: np.ndarray) -> float:
    """How far the draws are from white: the largest entry of their covariance less the identity, in σ."""
    found = draws @ draws.T / draws.shape[1] - np.eye(len(draws))
    return float(np.abs(found).max() * np.sqrt(draws.shape[1] / 2))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("coefficients", "inverse"), [(BANDED, 0), (INVERSE, 1), ((1.0,), 0)])
def test_noise_is_white_once_c_is_applied(coefficients, inverse, kind):
    event = run_of(coefficients, inverse)
    assert departure(whitened(zero_sums(event, Noise(3), kind=kind), event)) < 6


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("coefficients", "inverse"), [(BANDED, 0), (INVERSE, 1)])
@pytest.mark.parametrize("block", [1, 7, 20, 1000])
def test_blocks_of_any_size_give_the_noise_of_the_matrix(block, coefficients, inverse, kind, monkeypatch):
    event, given = run_of(coefficients, inverse), np.random.default_rng(0).normal(size=(12, 4, 5))
    draws = iter(given)

    def next_draw(self, value, std=1.0):
        one = next(draws).copy()
        return torch.tensor(one, dtype=torch.float64) if isinstance(value, torch.Tensor) else one

    monkeypatch.setattr(Noise, "normal_like", next_draw)
    monkeypatch.setattr("sidelight.privacy.correlation._BLOCK", block)
    correlation = Correlation(event)
    sums = np.zeros((4, 5)) if kind == "numpy" else torch.zeros(4, 5, dtype=torch.float64)
    found = np.stack([np.asarray(correlation.draw(sums, Noise())) for _ in range(12)])
    assert event.noise_multiplier * whitened(found.reshape(12, -1), event) == pytest.approx(
        given.reshape(12, -1)
    )


@pytest.mark.parametrize(("coefficients", "inverse"), [(BANDED, 0), (INVERSE, 1)])
def test_a_draw_that_is_interrupted_ends_the_run(coefficients, inverse, monkeypatch):
    event = run_of(coefficients, inverse)
    correlation, account = Correlation(event), OpenAccount()
    total = BoundedSum(np.zeros(9), sensitivity=1.0, relation=AR)
    release_correlated(total, correlation=correlation, account=account, noise=Noise())
    honest = Correlation._add_past

    def interrupted(self, drawn):
        honest(self, drawn)
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(Correlation, "_add_past", interrupted)
        with pytest.raises(KeyboardInterrupt):
            release_correlated(total, correlation=correlation, account=account, noise=Noise())
    with pytest.raises(BudgetExceeded):
        release_correlated(total, correlation=correlation, account=account, noise=Noise())
    assert correlation.state_dict()["kept"] is None


@pytest.mark.parametrize("fault", ["reused draw", "wrong band", "one band less"])
def test_planted_faults_are_seen(fault, monkeypatch):
    event = run_of()
    if fault == "reused draw":
        once = Noise(1).normal(4000)
        monkeypatch.setattr(Noise, "normal_like", lambda self, value, std=1.0: once.copy())
        found = zero_sums(event, Noise(3))
    else:
        wrong = (1.0, 0.6, 0.9) if fault == "wrong band" else (1.0, 0.6)
        found = zero_sums(run_of(wrong), Noise(3))
    assert departure(whitened(found, event)) > 12


def test_the_whole_run_is_charged_once_before_noise_and_no_step_follows_it():
    event, account = run_of(steps=3), OpenAccount()
    correlation = Correlation(event)
    total = BoundedSum(np.zeros(5), sensitivity=1.0, relation=AR)
    for _ in range(3):
        release_correlated(total, correlation=correlation, account=account, noise=Noise())
        assert account.released == event
    with pytest.raises(BudgetExceeded, match="all 3 steps"):
        release_correlated(total, correlation=correlation, account=account, noise=Noise())


def test_a_charge_that_is_refused_draws_nothing():
    run = Run(1, run_of(steps=9), rule="exact", covered_by_filter=False, settle=lambda *_: None)
    correlation = Correlation(run_of(steps=3))
    with pytest.raises(BudgetExceeded):
        release_correlated(
            BoundedSum(np.zeros(5), sensitivity=1.0, relation=AR), correlation=correlation, account=run,
            noise=Noise(),
        )  # fmt: skip
    assert correlation.step == 0


def test_a_finished_run_releases_no_later_step():
    event = run_of(steps=3)
    run = Run(1, event, rule="exact", covered_by_filter=False, settle=lambda *_: None)
    correlation = Correlation(event)
    total = BoundedSum(np.zeros(5), sensitivity=1.0, relation=AR)
    release_correlated(total, correlation=correlation, account=run, noise=Noise())
    run.finish()
    with pytest.raises(Exception, match="finished"):
        release_correlated(total, correlation=correlation, account=run, noise=Noise())


def test_a_plain_release_takes_no_correlated_event():
    total = BoundedSum(np.zeros(5), sensitivity=1.0, relation=AR)
    with pytest.raises(PrivacyConditionError, match="not describe one Gaussian"):
        release(total, std=100.0, event=run_of(), account=OpenAccount(), noise=Noise())


def test_sampled_turns_are_not_released_under_replace_one():
    event = CorrelatedGaussian(2.0, BANDED, 0, 12, 4, 3, 0.5)
    total = BoundedSum(np.zeros(5), sensitivity=2.0, relation="replace-one")
    with pytest.raises(PrivacyConditionError, match="sampled"):
        release_correlated(total, correlation=Correlation(event), account=OpenAccount(), noise=Noise())


def test_noise_follows_the_sensitivity_of_each_step():
    event, account = run_of(steps=4), OpenAccount()
    correlation = Correlation(event)
    outputs = [
        release_correlated(
            BoundedSum(np.zeros(4000), sensitivity=s, relation=AR), correlation=correlation, account=account,
            noise=Noise(5 + i),
        ).numpy() / s
        for i, s in enumerate((1.0, 0.5, 0.25, 3.0))
    ]  # fmt: skip
    assert departure(whitened(np.stack(outputs), event)) < 6


@pytest.mark.parametrize("inverse", [0, 1])
def test_a_run_that_goes_on_from_its_state_continues_the_same_correlation(inverse):
    event = run_of(BANDED if not inverse else INVERSE, inverse)
    total = BoundedSum(torch.zeros(4000), sensitivity=1.0, relation=AR)
    outputs, correlation, account = [], Correlation(event), OpenAccount()
    for step in range(event.steps):
        if step == 5:
            state = correlation.state_dict()
            correlation = Correlation(event)
            correlation.load_state_dict(state)
        outputs.append(
            release_correlated(total, correlation=correlation, account=account, noise=Noise()).numpy()
        )
    assert departure(whitened(torch.stack(outputs).double().numpy(), event)) < 6
    assert events.elementary(account.released) == {event: 1}


@pytest.mark.parametrize("kept", [None, np.zeros((1, 5))])
def test_a_state_without_its_noise_is_refused(kept):
    correlation = Correlation(run_of())
    with pytest.raises(PrivacyConditionError, match="lacks them"):
        correlation.load_state_dict({"step": 3, "kept": kept})
    assert correlation.step == 0
    for step in (0, run_of().steps):  # before the first and after the last step nothing is kept
        correlation.load_state_dict({"step": step, "kept": None})


def test_two_forks_of_a_state_share_no_new_draw():
    event = run_of()
    total = BoundedSum(torch.zeros(4000), sensitivity=1.0, relation=AR)
    first = Correlation(event)
    for _ in range(4):
        release_correlated(total, correlation=first, account=OpenAccount(), noise=Noise())
    forks = []
    for _ in range(2):
        fork = Correlation(event)
        fork.load_state_dict({"step": 4, "kept": first.state_dict()["kept"].clone()})
        forks.append(
            release_correlated(total, correlation=fork, account=OpenAccount(), noise=Noise()).numpy()
        )
    apart = ((forks[0] - forks[1]) / event.noise_multiplier).double()
    assert 1.8 < float(apart.var()) < 2.2


def test_a_sum_of_another_shape_is_refused_before_a_draw():
    correlation = Correlation(run_of())
    release_correlated(
        BoundedSum(np.zeros(5), sensitivity=1.0, relation=AR), correlation=correlation,
        account=OpenAccount(), noise=Noise(),
    )  # fmt: skip
    with pytest.raises(PrivacyConditionError, match="one shape"):
        release_correlated(
            BoundedSum(np.zeros(6), sensitivity=1.0, relation=AR), correlation=correlation,
            account=OpenAccount(), noise=Noise(),
        )  # fmt: skip


def test_forgetting_erases_what_is_kept():
    correlation = Correlation(run_of())
    release_correlated(
        BoundedSum(np.zeros(5), sensitivity=1.0, relation=AR), correlation=correlation,
        account=OpenAccount(), noise=Noise(),
    )  # fmt: skip
    correlation.forget()
    assert correlation.state_dict() == {"step": 12, "kept": None}


# ---------------------------------------------------------------------------------------------------
# whose turn it is


def test_members_of_a_turn_are_in_order_and_the_callers_to_change():
    places = Places(Turns(1.0, 7, 30, Strategy(BANDED)), 300, key=b"k" * 32)
    own = places._place.copy()
    for step in range(14):
        members = places.turn(step).indices(300, Noise(0))
        assert np.array_equal(members, np.flatnonzero(own == step % 7))
        members[:] = 0


def test_a_record_takes_part_at_its_place_alone():
    turns = Turns(1.0, 5, 30, Strategy(BANDED))
    places = Places(turns, 200, key=b"k" * 32)
    seen = np.full(200, -1)
    for step in range(30):
        batch = places.turn(step).indices(200, Noise())
        assert np.all((seen[batch] == -1) | (step - seen[batch] == 5))
        seen[batch] = step
    assert (seen >= 25).all()  # everyone had a turn in the last cycle


def test_places_are_even_and_a_record_more_changes_nobody_elses():
    turns = Turns(1.0, 4, 30, Strategy(BANDED))
    few, more = (Places(turns, n, key=b"k" * 32) for n in (20_000, 20_001))
    sizes = [len(few.turn(step).members) for step in range(4)]
    assert sum(sizes) == 20_000 and max(abs(size - 5000) for size in sizes) < 400
    for step in range(4):
        assert np.array_equal(few.turn(step).members, [i for i in more.turn(step).members if i < 20_000])


def test_sampled_turns_draw_each_member_with_its_probability():
    turns = Turns(0.3, 4, 400, Strategy(BANDED))
    places, noise, counts = Places(turns, 1000, key=b"k" * 32), Noise(2), np.zeros(1000)
    for step in range(400):
        counts[places.turn(step).indices(1000, noise)] += 1
    assert abs(counts.mean() - 30) < 0.6
    assert abs(counts.var() - 21) < 5


def test_no_batch_is_larger_than_the_limit():
    turns = Turns(0.5, 2, 8, Strategy(BANDED[:2]), largest=60)
    places, noise = Places(turns, 200, key=b"k" * 32), Noise(2)
    sizes = [len(set(places.turn(step).indices(200, noise))) for step in range(50)]
    assert max(sizes) <= 60
    assert turns.run(200, 1.0).overflow > 0


def test_what_a_sum_is_divided_by_does_not_depend_on_places():
    turns = Turns(0.5, 4, 30, Strategy(BANDED))
    places = Places(turns, 201, key=b"k" * 32)
    assert len({len(places.turn(step).members) for step in range(4)}) > 1
    assert {places.turn(step).expected_batch_size(201) for step in range(4)} == {201 / 8}


def test_one_sampler_alone_cannot_draw_a_step():
    with pytest.raises(PrivacyConditionError, match="step by step"):
        Turns(1.0, 5, 30, Strategy(BANDED)).indices(10, Noise())


def test_a_step_that_failed_is_passed_over_and_none_is_taken_twice():
    event, account = run_of(), OpenAccount()
    total, correlation = BoundedSum(np.zeros(4000), sensitivity=1.0, relation=AR), Correlation(event)
    outputs = np.zeros((7, 4000))
    for turn in (0, 1, 4, 6):
        outputs[turn] = release_correlated(
            total, correlation=correlation, turn=turn, account=account, noise=Noise(turn)
        ).numpy()
    inverse = Strategy(event.coefficients).weights(7)
    expected = [inverse[: turn + 1] @ inverse[: turn + 1] for turn in (4, 6)]
    found = [float((outputs[turn] ** 2).mean()) / event.noise_multiplier**2 for turn in (4, 6)]
    assert found == pytest.approx(expected, rel=0.1)
    assert events.elementary(account.released) == {event: 1}
    with pytest.raises(PrivacyConditionError, match="next turn"):
        release_correlated(total, correlation=correlation, turn=6, account=account, noise=Noise())
