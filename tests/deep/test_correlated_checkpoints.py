"""Correlated noise over checkpoints: a resumed run continues its correlation, and uses no draw twice."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deep.networks import blobs, mlp, vector
from tests.deep.test_checkpoints import Cut, cut_after, make

from sidelight.audit.correlated_tapes import noise_is_correlated_as_charged
from sidelight.audit.tape import listening
from sidelight.deep import Checkpoints
from sidelight.errors import PrivacyConditionError
from sidelight.methods import BandedNoise, dp_sgd

PRIVATE = blobs(200, 1)
STEPS = 6


EVERYONE = BandedNoise(bands=3, cycle=3, sampled=False)
SAMPLED = BandedNoise(bands=3, cycle=3, sampled=True)


def trainer(folder: Path | None, noise: BandedNoise = EVERYONE, **options: Any) -> Any:
    made = make(mlp(), folder, random_state=None, **options)
    made.method = dp_sgd(noise=noise)
    return made


def cut(folder: Path, noise: BandedNoise = EVERYONE) -> None:
    with pytest.raises(Cut):
        trainer(folder, noise, optimizer=cut_after(4)).fit(PRIVATE)


def test_a_checkpoint_holds_the_noise_that_later_steps_take_back(tmp_path: Path) -> None:
    cut(tmp_path)
    saved = Checkpoints(tmp_path).read()
    assert saved is not None
    state = saved["parts"][2]
    assert state["correlation"]["step"] == saved["step"] > 0  # type: ignore[index]
    assert state["correlation"]["kept"].abs().sum() > 0  # type: ignore[index]
    assert len(bytes.fromhex(str(state["places"]))) == 32


@pytest.mark.parametrize("noise", [EVERYONE, SAMPLED], ids=["everyone", "sampled"])
def test_a_resumed_run_continues_the_same_correlation(tmp_path: Path, noise: BandedNoise) -> None:
    with listening(follow_noise=False) as early:
        cut(tmp_path, noise)
    saved = Checkpoints(tmp_path).read()
    assert saved is not None
    before = int(saved["step"])
    with listening(follow_noise=False) as tape:
        trainer(tmp_path, noise).fit(PRIVATE, resume=True)
    late = [call for call in tape.calls if call.kind == "release_correlated"]
    tape.calls = [*early.calls[:before], *late]
    assert [call.options["step"] for call in tape.calls] == list(range(STEPS))
    for call in tape.calls:  # one run, in two pieces
        call.options["correlation"] = tape.calls[0].options["correlation"]
    assert noise_is_correlated_as_charged(tape) == []
    tape.calls[before].output = tape.calls[before - 1].output  # a draw that is used again
    assert noise_is_correlated_as_charged(tape) != []


def test_repeated_steps_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    cut(tmp_path)
    copy = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    first = vector(trainer(tmp_path).fit(PRIVATE, resume=True).model)
    for file in tmp_path.iterdir():
        file.unlink()
    for name, data in copy.items():
        (tmp_path / name).write_bytes(data)
    assert torch.equal(first, vector(trainer(tmp_path).fit(PRIVATE, resume=True).model))


def test_a_finished_checkpoint_holds_no_noise_and_no_places(tmp_path: Path) -> None:
    trainer(tmp_path).fit(PRIVATE)
    saved = Checkpoints(tmp_path).read()
    assert saved is not None and saved["finished"]
    state = saved["parts"][2]
    assert state["correlation"]["kept"] is None and state["places"] == ""  # type: ignore[index]


def test_other_bands_are_another_run(tmp_path: Path) -> None:
    cut(tmp_path)
    other = trainer(tmp_path)
    other.method = dp_sgd(noise=BandedNoise(bands=2, cycle=3, sampled=False))
    with pytest.raises(PrivacyConditionError, match="another method"):
        other.fit(PRIVATE, resume=True)
