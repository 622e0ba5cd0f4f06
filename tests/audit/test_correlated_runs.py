"""Replay of runs with correlated noise: honest ones pass, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sidelight.audit.replay import replay_neighbors
from sidelight.audit.sampling import performs_its_event
from sidelight.methods import BandedNoise, adadps, dope_sgd, dp_sgd
from sidelight.methods.correlated_noise import CorrelatedState
from sidelight.privacy.correlation import Correlation
from sidelight.privacy.release import release_correlated
from sidelight.privacy.strategies import Strategy
from sidelight.privacy.turns import Places, Turn, Turns

AR, RO = "add-or-remove-one", "replace-one"
SAMPLED = BandedNoise(bands=3, sampled=True)
EVERYONE = BandedNoise(bands=3, sampled=False)


def small(noise: BandedNoise, **changes: object):
    return dp_sgd(**{"steps": 9, "expected_batch_size": 8, "clip_norm": 0.3, "noise": noise, **changes})


@pytest.mark.parametrize(
    ("method", "relation"),
    [
        (small(SAMPLED), AR),
        (small(EVERYONE), AR),
        (small(EVERYONE), RO),
        (small(BandedNoise(bands=2, cycle=4, sampled=True)), AR),
        (small(BandedNoise(bands=4, sampled=False, inverse=True), momentum=0.5), RO),
        (small(BandedNoise(bands=6, cycle=3, sampled=False)), AR),
        (small(BandedNoise(bands=2, sampled=True, largest_batch=24)), AR),
        (small(BandedNoise(curvature="public")), AR),
        (dope_sgd(steps=6, clip_norm=0.3, expected_batch_size=8).with_parts(noise=EVERYONE), AR),
        (adadps(steps=6, clip_norm=0.5).with_parts(noise=SAMPLED, expected_batch_size=8.0), AR),
    ],
)
def test_an_honest_run_passes(method, relation):
    found = replay_neighbors(method, relation=relation, seeds=2)
    assert found.findings == ()
    assert 0.5 < found.details["largest_share"] <= 1 + 1e-9


def reused(self, value, noise):
    if self.step == 0:
        self.first = noise.normal_like(value)
    self.step += 1
    return self.first.copy()


def uncorrelated(self, value, noise):
    self.step += 1
    return noise.normal_like(value)


def half(original):
    return lambda self, value, noise: original(self, value, noise) / 2


def everybody(self, step):
    return Turn(np.arange(self._n), self._turns)


def too_soon(original):
    return lambda self, step: original(self, step // 2)


FAULTS = {
    "reused draw": (Correlation, "draw", reused, "noise"),
    "no bands": (Correlation, "draw", uncorrelated, "noise"),
    "half the noise": (Correlation, "draw", half(Correlation.draw), "noise"),
    "wrong separation": (Places, "turn", too_soon(Places.turn), "batches"),
    "no turns": (Places, "turn", everybody, "batches"),
    "sensitivity of one band": (Strategy, "sensitivity", lambda self, **_: 1.0, "moves a correlated run"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(name, monkeypatch):
    owner, attribute, fault, promise = FAULTS[name]
    # Wide, and many steps: the noise of few numbers can be anything.
    method = small(BandedNoise(bands=3, cycle=3, sampled=False), steps=24)
    assert replay_neighbors(method, relation=AR, seeds=1).findings == ()
    monkeypatch.setattr(owner, attribute, fault)
    found = replay_neighbors(method, relation=AR, seeds=1)
    assert any(promise in finding.promise for finding in found.findings), found.findings


def later(self, total, *, std, event, account, noise):
    """From its fourth step on, the release takes the noise of the step after."""
    turn = self._turn + (self._turn >= 3)
    return release_correlated(total, correlation=self.correlation, turn=turn, account=account, noise=noise)


def backwards(original):
    def start(self, event):
        original(self, event)
        self._coefficients = np.array([1.0, *(-c for c in event.coefficients[1:])])

    return start


def forgetful(original):
    """What later steps take back is not kept."""

    def add(self, drawn):
        original(self, drawn)
        self._kept[:] = 0

    return add


RUN_FAULTS = {
    "reused draw": (Correlation, "draw", reused),
    "half the noise": (Correlation, "draw", half(Correlation.draw)),
    "wrong separation": (Places, "turn", too_soon(Places.turn)),
    "no turns": (Places, "turn", everybody),
    "the turn of another step": (CorrelatedState, "release", later),
    "a sign of the bands": (Correlation, "__init__", backwards(Correlation.__init__)),
    "the past is not kept": (Correlation, "_add_past", forgetful(Correlation._add_past)),
}
KINDS = {
    "sampled": BandedNoise(bands=3, cycle=3, sampled=True),
    "inverse": BandedNoise(bands=3, cycle=3, sampled=False, inverse=True),
    "secret places": BandedNoise(bands=1, cycle=3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RUN_FAULTS)
def test_a_fault_is_seen_in_every_kind_of_run(name, kind, monkeypatch):
    if kind == "secret places" and name in ("a sign of the bands", "the past is not kept"):
        pytest.skip("one band keeps nothing")
    owner, attribute, fault = RUN_FAULTS[name]
    monkeypatch.setattr(owner, attribute, fault)
    method = small(KINDS[kind], steps=36, expected_batch_size=44 / 3 if kind == "secret places" else 8)
    assert replay_neighbors(method, relation=AR, seeds=1).findings


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_fault_they_pass(kind):
    method = small(KINDS[kind], steps=36, expected_batch_size=44 / 3 if kind == "secret places" else 8)
    assert replay_neighbors(method, relation=AR, seeds=1).findings == ()


LIMITED = Turns(0.3, 3, 12, Strategy((1.0, 0.5)), largest=9)


@pytest.mark.parametrize("fault", ["none", "twice the probability", "no limit"])
def test_batches_of_another_law_are_seen(fault, monkeypatch):
    def drawn(self, n, noise):
        rate = 2 * self.turns.sampling_probability if fault == "twice the probability" else 0.3
        return self.members[noise.generator.random(len(self.members)) < rate]

    if fault != "none":
        monkeypatch.setattr(Turn, "indices", drawn)
    for turns in (LIMITED, replace(LIMITED, largest=None)):
        if fault == "no limit" and turns.largest is None:
            continue
        assert bool(performs_its_event(turns, 60)) == (fault != "none")


@pytest.mark.parametrize("turns", [Turns(1.0, 3, 12, Strategy((1.0,)), secret=True), LIMITED])
def test_places_that_are_dealt_out_are_seen(turns, monkeypatch):
    """In a shuffle one record more moves others, and no batch's size is left to chance."""
    assert not performs_its_event(turns, 60)

    def dealt(self):
        places = np.arange(self._n) % self._turns.cycle
        return np.random.default_rng(list(self._key)).permutation(places)

    monkeypatch.setattr(Places, "_place", property(dealt))
    assert performs_its_event(turns, 60)


def test_a_band_that_is_not_charged_is_seen(monkeypatch):
    original = Correlation.__init__

    def other(self, event):
        original(self, event)
        self._coefficients = np.array([1.0, 0.0, -0.9])

    monkeypatch.setattr(Correlation, "__init__", other)
    found = replay_neighbors(small(EVERYONE, steps=24), relation=AR, seeds=2)
    assert any("noise" in finding.promise for finding in found.findings)
