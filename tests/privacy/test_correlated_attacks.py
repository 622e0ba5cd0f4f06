"""Runs with correlated noise, attacked without their own formulas: how much an observer can tell is computed.

The law of everything that a run releases is written down for two neighbors: a record with a place, which the
observer may know or not, with secret draws, and with contributions that follow earlier releases. The
divergence of both laws is never above the curve of the event. For what the accounting refuses (turns that are
sampled and overlap), the same formula would promise too much.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from sidelight.errors import PrivacyConditionError
from sidelight.privacy import accountants
from sidelight.privacy.correlated import CorrelatedGaussian, overflow
from sidelight.privacy.noise import Noise
from sidelight.privacy.strategies import Strategy, inverse_square_root
from sidelight.privacy.turns import Places, Turns

AR = "add-or-remove-one"
RUNS = 100_000
EPSILONS = (0.0, 0.3, 1.0, 2.0)


def matrix(strategy: Strategy, steps: int) -> np.ndarray:
    column = strategy.column(steps)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def patterns_of(turns: Turns, place: int | None) -> tuple[np.ndarray, np.ndarray]:
    """In which steps a record may take part (rows of 0 and 1), and with which probability."""
    chances, chosen, q = [], [], turns.sampling_probability
    for where in range(turns.cycle) if place is None else [place]:
        steps = list(range(where, turns.steps, turns.cycle))
        for bits in itertools.product((0, 1), repeat=len(steps)):
            mask = np.zeros(turns.steps)
            mask[steps] = bits
            chances.append(math.prod(q if bit else 1 - q for bit in bits))
            chosen.append(mask)
    weights = np.array(chances) / sum(chances)
    return weights[weights > 0], np.stack(chosen)[weights > 0]


def losses(turns: Turns, z: float, place: int | None, *, with_record: bool) -> np.ndarray:
    """log P/Q at runs with the record (P) or without it (Q).

    It adds +1 or −1 to a step, whichever has the sign of what was released last: an adversary that adapts.
    """
    rng, C, steps = np.random.default_rng(0), matrix(turns.strategy, turns.steps), turns.steps
    weights, masks = patterns_of(turns, place)
    mine = masks[rng.choice(len(masks), size=RUNS, p=weights)] if with_record else np.zeros((RUNS, steps))
    seen, signs = np.zeros((RUNS, steps)), np.ones((RUNS, steps))  # C times the releases
    for t in range(steps):
        if t:
            signs[:, t] = np.where(seen[:, t - 1] >= 0, 1.0, -1.0)
        moved = (signs * mine)[:, : t + 1] @ C[t, : t + 1]
        seen[:, t] = moved + z * rng.normal(size=RUNS)
    ratios = np.zeros(RUNS)
    for weight, mask in zip(weights, masks, strict=True):
        shift = (signs * mask) @ C.T
        ratios += weight * np.exp(((seen - shift / 2) * shift).sum(axis=1) / z**2)
    return np.asarray(np.log(ratios))


def excess(turns: Turns, z: float, place: int | None, curve: CorrelatedGaussian) -> float:
    """By how many standard errors the divergence is above δ(ε) of the event, at the worst ε."""
    worst = -math.inf
    added, removed = (losses(turns, z, place, with_record=side) for side in (True, False))
    for epsilon in EPSILONS:
        bound = accountants.delta(curve, epsilon=epsilon, relation=AR)
        for found in (-np.expm1(epsilon - added), -np.expm1(epsilon + removed)):
            beyond = np.maximum(found, 0.0)
            error = float(beyond.std()) / math.sqrt(RUNS) + 1e-9
            worst = max(worst, (float(beyond.mean()) - bound) / error)
    return worst


RUNS_TO_ATTACK = {
    "two bands, sampled": Turns(0.4, 2, 6, Strategy((1.0, 0.7))),
    "three bands, sampled": Turns(0.2, 3, 7, Strategy((1.0, 0.6, 0.4))),
    "signs differ, sampled": Turns(0.5, 2, 5, Strategy((1.0, -0.8))),
    "fewer bands than steps between turns": Turns(0.3, 4, 8, Strategy((1.0, 0.9))),
    "everyone, bands do not overlap": Turns(1.0, 3, 7, Strategy((1.0, 0.6, 0.4))),
    "everyone, bands overlap": Turns(1.0, 2, 6, Strategy((1.0, 0.6, 0.4, 0.2))),
    "everyone, a banded inverse": Turns(1.0, 2, 6, inverse_square_root(3, np.array([1.0, -1.0]))),
}


@pytest.mark.parametrize("place", [0, None], ids=["place known", "place secret"])
@pytest.mark.parametrize("name", RUNS_TO_ATTACK)
def test_no_observer_tells_more_than_the_event(name, place):
    turns = RUNS_TO_ATTACK[name]
    assert excess(turns, 1.3, place, turns.run(10, 1.3)) < 5


@pytest.mark.parametrize("fault", ["wrong separation", "one turn less", "one band less", "less noise"])
def test_events_of_another_run_are_seen_to_promise_too_much(fault):
    turns, z = Turns(0.4, 2, 6, Strategy((1.0, 0.7))), 1.3
    event = turns.run(10, z)
    if fault == "less noise":
        z = 1.0
    elif fault == "one turn less":
        event = CorrelatedGaussian(z, (1.0, 0.7), 0, 6, 2, 2, 0.4)
    elif fault == "one band less":
        event = CorrelatedGaussian(z, (1.0,), 0, 6, 2, 3, 0.4)
    else:  # everyone has a turn at every step, and six turns are charged as if they did not overlap
        turns = Turns(0.4, 1, 6, Strategy((1.0, 0.7)))
        event = CorrelatedGaussian(z / math.hypot(1, 0.7), (1.0,), 0, 6, 1, 6, 0.4)
        with pytest.raises(PrivacyConditionError):
            accountants.epsilon(turns.run(10, z), delta=1e-5, relation=AR)
    assert excess(turns, z, 0, event) > 8


# ---------------------------------------------------------------------------------------------------
# batches of limited size


def law_of_a_limited_batch(n: int, q: float, most: int, *, with_record: bool) -> dict[float, float]:
    """The sum of a batch, of n others that each add 1 and a record that takes 1 off, and its probability."""
    law: dict[float, float] = {}
    for others in range(n + 1):
        chance = float(binom.pmf(others, n, q))
        kept = min(others, most)
        outcomes = [(1 - q if with_record else 1.0, float(kept))]
        if with_record and others < most:
            outcomes.append((q, others - 1.0))
        elif with_record:  # of others + 1 records most stay, and the record is one of these or not
            stays = most / (others + 1)
            outcomes += [(q * stays, most - 2.0), (q * (1 - stays), float(most))]
        for share, value in outcomes:
            law[value] = law.get(value, 0.0) + chance * share
    return law


def divergence(p: dict[float, float], q: dict[float, float], z: float, epsilon: float) -> float:
    at = np.linspace(-12 * z - 3, 12 * z + 30, 60_001)
    densities = [
        np.asarray(sum(chance * norm.pdf(at, value, z) for value, chance in law.items())) for law in (p, q)
    ]
    return float(np.maximum(densities[0] - math.exp(epsilon) * densities[1], 0).sum() * (at[1] - at[0]))


@pytest.mark.parametrize("most", [2, 3, 5, 8])
@pytest.mark.parametrize("z", [0.5, 2.0])
def test_a_batch_of_limited_size_tells_no_more_than_its_event(most, z):
    n, q = 10, 0.15
    turns = Turns(q, 1, 1, Strategy((1.0,)), largest=most)
    event = turns.run(n, z)
    assert event.overflow == overflow(n, sampling_probability=q, largest=most)
    laws = [law_of_a_limited_batch(n, q, most, with_record=side) for side in (True, False)]
    for epsilon in EPSILONS:
        truth = max(divergence(laws[0], laws[1], z, epsilon), divergence(laws[1], laws[0], z, epsilon))
        assert truth <= accountants.delta(event, epsilon=epsilon, relation=AR) + 1e-9


def test_a_limit_without_its_price_would_promise_too_much():
    """In a full batch a record pushes out another one: it moves the sum twice as far."""
    n, q, most, z, epsilon = 3, 0.9, 2, 1.0, 3.0
    free = Turns(q, 1, 1, Strategy((1.0,))).run(n, z)
    laws = [law_of_a_limited_batch(n, q, most, with_record=side) for side in (True, False)]
    truth = max(divergence(laws[0], laws[1], z, epsilon), divergence(laws[1], laws[0], z, epsilon))
    assert truth > 2 * accountants.delta(free, epsilon=epsilon, relation=AR)


def test_the_batches_that_are_drawn_have_the_law_that_was_attacked():
    n, q, most = 10, 0.3, 3
    turns, noise, runs = Turns(q, 2, 1, Strategy((1.0,)), largest=most), Noise(5), 6000
    counts, last = np.zeros(n + 2), 0
    for k in range(runs):
        batch = Places(turns, n + 1, key=k.to_bytes(32, "little")).turn(0).indices(n + 1, noise)
        counts[len(batch)] += 1
        last += int(n in batch)
    sizes = binom.pmf(np.arange(most), n + 1, q / 2)
    assert counts[:most] / runs == pytest.approx(sizes, abs=0.03)
    others = binom.pmf(np.arange(n + 1), n, q / 2)
    stays = np.minimum(1.0, most / (np.arange(n + 1) + 1))
    assert last / runs == pytest.approx(float(q / 2 * (others @ stays)), abs=0.015)
