"""Events: what they say, and their readable JSON."""

import json
import math

import pytest

from sidelight.errors import InputError, RelationError
from sidelight.privacy import events

EVERY = [
    events.gaussian(1.5),
    events.poisson(0.01, 1.0),
    events.fixed_size(100, 7, 2.0),
    events.ZeroConcentrated(0.1),
    events.TruncatedConcentrated(0.1, 30.0),
    events.TruncatedConcentrated(0.1, math.inf),
    events.RenyiBound(8.0, 0.3),
    events.ApproximateDp(1.0, 1e-6),
    events.ObjectivePerturbation(0.2, 0.3, 1),
    events.MixtureOfSensitivities((1.0, 2.0), (0.25, 0.75)),
    events.GaussianSketch(50, 0.01),
    events.NoOp(),
    events.NonPrivate(),
]


@pytest.mark.parametrize(
    "event", [*EVERY, events.compose(*EVERY), events.repeat(events.compose(*EVERY[:3]), 5)]
)
def test_json_round_trip(event):
    text = json.dumps(events.to_json(event), allow_nan=False)
    back = events.from_json(json.loads(text))
    assert events.elementary(back) == events.elementary(event)
    assert events.to_json(back) == events.to_json(event)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "unknown"},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "extra": 1},
        {"kind": "approximate-dp", "epsilon": -1.0, "delta": 0.0},
        {"kind": "approximate-dp", "epsilon": 1.0, "delta": 2.0},
        {"kind": "mixture-of-sensitivities", "noise_multipliers": [1.0], "probabilities": [0.5]},
        {"kind": "repeated", "event": 3, "count": 2},
        {"kind": "tcdp", "rho": "a", "omega": 3},
    ],
)
def test_what_is_not_an_event_is_refused(data):
    with pytest.raises(InputError):
        events.elementary(events.from_json(data))


def test_elementary_counts_nested_compositions():
    step = events.poisson(0.1, 1.0)
    whole = events.repeat(events.compose(events.repeat(step, 3), events.gaussian(2.0), step), 10)
    assert events.elementary(whole) == {step: 40, events.gaussian(2.0): 10}


def test_sampling_everything_is_no_sampling():
    assert events.poisson(1.0, 2.0) == events.gaussian(2.0) == events.fixed_size(5, 5, 2.0)
    assert events.repeat(events.gaussian(1.0), 0) == events.NoOp() == events.compose()


@pytest.mark.parametrize(
    "make",
    [
        lambda: events.gaussian(0.0),
        lambda: events.gaussian(-1.0),
        lambda: events.gaussian(math.nan),
        lambda: events.poisson(0.0, 1.0),
        lambda: events.poisson(1.2, 1.0),
        lambda: events.fixed_size(5, 6, 1.0),
        lambda: events.fixed_size(5, 0, 1.0),
        lambda: events.repeat(events.gaussian(1.0), -1),
        lambda: events.MixtureOfSensitivities((1.0,), (0.5,)),
        lambda: events.MixtureOfSensitivities((), ()),
        lambda: events.MixtureOfSensitivities((0.0,), (1.0,)),
    ],
)
def test_impossible_events_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_an_unknown_relation_is_refused():
    with pytest.raises(RelationError, match="add-or-remove-one"):
        events.check_relation("both")


@pytest.mark.parametrize("event", EVERY)
def test_every_event_is_described(event):
    assert events.describe(event) and "DpEvent" not in events.describe(event)
