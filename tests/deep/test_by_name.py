"""Methods by name: step size and start have rules of public numbers, and none is dead or refused."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.networks_auto.by_name import ARCHITECTURES, METHODS, Digits, accuracy, digits
from tests.deep.networks import Listed, blobs, loss, mlp, vector
from torch import nn

from sidelight.deep import Checkpoints, Trainer
from sidelight.deep.fit import Fit
from sidelight.errors import InputError
from sidelight.methods import (
    adadps,
    adamix,
    coupling,
    dope_sgd,
    dp_sgd,
    dpmd,
    ppsgd,
    sample_mechanism,
)
from sidelight.methods.dope_sgd import OpenStart, Warm
from sidelight.methods.parts import Cold
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.problems import public_training
from sidelight.problems.network_public import NetworkGuide

PRIVATE, PUBLIC, TEST = blobs(600, 1), blobs(300, 2), blobs(400, 3)
STARTS = (adadps, adamix, coupling, dope_sgd, dp_sgd, dpmd, ppsgd, sample_mechanism)


def make(**options: Any) -> Trainer:
    chosen: dict[str, Any] = {"epsilon": 4, "delta": 1e-4, "steps": 12, "expected_batch_size": 100}
    chosen |= {"method": "coupling", "random_state": 1, "progress": False, **options}
    return Trainer(mlp(), loss, **chosen)


@pytest.fixture(scope="module")
def images() -> Digits:
    return digits(quick=True)


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
@pytest.mark.parametrize("method", METHODS)
def test_no_method_by_its_name_is_refused_or_at_chance(
    method: str, architecture: str, images: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of `experiments.networks_auto.by_name`, in small; 0.1 is chance."""
    monkeypatch.setattr(public_training, "_MIN_PUBLIC_RECORDS", 10_000)  # so that the first guess is taken
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, trainer = accuracy(architecture, method, images, epsilon=16)
    assert trainer.privacy_.epsilon <= 16 * (1 + 1e-6)
    assert found > 0.25


@pytest.mark.parametrize("make_method", STARTS, ids=lambda f: f.__name__)
def test_start_means_the_same_for_every_method(make_method: Any) -> None:
    assert isinstance(make_method(start="cold").start, Cold)
    assert isinstance(make_method(start="warm").start, Warm)
    with pytest.raises(InputError, match="'cold'"):
        make_method(start="extended")


def test_an_open_start_is_warm_where_there_are_public_records() -> None:
    assert isinstance(coupling().start, OpenStart)
    assert "public_training" in make().fit(PRIVATE, PUBLIC).privacy_.details
    given = make(method=coupling(start="cold")).fit(PRIVATE, PUBLIC).privacy_.details
    assert "public_training" not in given


def test_steps_have_a_rule_whether_their_number_is_given_or_not() -> None:
    """With a number of steps and nothing else the step size was 0.5, and constant."""
    for steps in (12, None):
        trainer = make(method="dp_sgd", steps=steps).fit(PRIVATE, PUBLIC)
        details = trainer.privacy_.details
        assert details["step_size"] != 0.5 and details["momentum"] == 0.9
    own = make(method=dp_sgd(step_size=0.5)).fit(PRIVATE, PUBLIC).privacy_.details
    assert "step_size" not in own and "momentum" not in own


def test_more_noise_makes_steps_shorter_and_the_clip_norm_is_their_unit() -> None:
    def size(epsilon: float, clip_norm: float = 1.0) -> float:
        found = make(method=dp_sgd(clip_norm=clip_norm), epsilon=epsilon).fit(PRIVATE, PUBLIC)
        return float(found.privacy_.details["step_size"])  # type: ignore[arg-type]

    assert size(0.3) < size(1.0) <= size(8.0) == pytest.approx(0.6, rel=0.01)
    assert size(1.0, 0.1) == pytest.approx(10 * size(1.0))


class Stop(Exception):
    """The machine goes down."""


def test_it_is_chosen_before_the_charge_without_a_private_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise Stop

    other = torch.zeros(600, 4), torch.zeros(600, dtype=torch.long)
    said = ("step_size", "momentum", "public_training")
    found = [make().fit(private, PUBLIC).privacy_.details for private in (PRIVATE, other)]
    assert {name: found[0][name] for name in said} == {name: found[1][name] for name in said}
    private = Listed(PRIVATE)
    monkeypatch.setattr(Fit, "_begin", stop)
    with pytest.raises(Stop):
        make().fit(private, PUBLIC)
    assert private.fetched == 0


def test_a_resumed_run_keeps_what_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"method": "dope_sgd", "checkpoints": Checkpoints(tmp_path / "cut", every=3)}
    whole = make(method="dope_sgd", checkpoints=tmp_path / "whole").fit(PRIVATE, PUBLIC)
    honest, calls = Fit._move, [0]

    def move(fit: Fit) -> None:
        calls[0] += 1
        if calls[0] > 7:
            raise Stop
        honest(fit)

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "_move", move)
        with pytest.raises(Stop):
            make(**options).fit(PRIVATE, PUBLIC)
    resumed = make(**options).fit(PRIVATE, PUBLIC, resume=True)
    assert torch.equal(vector(resumed.model), vector(whole.model)) and resumed.history_ == whole.history_
    assert resumed.privacy_.details == whole.privacy_.details


def test_coupling_finds_the_curvature_of_attention() -> None:
    """Fused attention has no second derivative: `coupling` on any transformer ended in a traceback."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))
    guide = NetworkGuide(NetworkOracle(model, loss))
    guide.show((torch.randn(20, 3, 8), torch.randint(0, 3, (20,))))
    before = vector(model)
    assert guide.smoothness() > 0 and torch.equal(vector(model), before)
