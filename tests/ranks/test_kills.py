"""Fifty kills of ranks at random moments: no hang, a clear end, the charge kept, and sums that are right.

`make test` takes one of them, `make test-ranks` all. Every trial trains a small network on two or three
forked ranks with a checkpoint after each step, kills one of them after a random time, waits for the others
and resumes on as many. Without a ledger, runs have a seed, and a resumed one must end in the very weights of
one that nobody disturbed: a share that was lost or counted twice, or noise that was drawn anew, would show.
With a ledger, the charge must be there as soon as a private record was read.
"""

import os
import random
import tempfile
import time
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.distributed.is_available() or not hasattr(os, "fork"):
    pytest.skip("no torch.distributed, or no fork", allow_module_level=True)

import torch.distributed as dist
from tests.contracts.network_scenes import _calibrated, _cost
from tests.deep.networks import blobs, loss, mlp, vector
from tests.deep.rank_scenes import Ended, Running, on_ranks, values

from sidelight.deep import Checkpoints, Trainer
from sidelight.errors import RankLost
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.privacy import accountants
from sidelight.privacy.ledger import Ledger

TRIALS = int(os.environ.get("SIDELIGHT_KILLS", "1"))
STEPS, SECONDS = 60, 120.0  # a rank that is still there after so long hangs
PATIENCE = timedelta(seconds=20)  # of a rank for another that never came; torchrun would end it at once


def train(rank: int, folder: str, ledger: bool) -> Any:
    # The plan is calibrated once, in the parent: it would be most of the time, and is nothing to kill.
    accountants.noise_multiplier, accountants.epsilon = _calibrated, _cost
    try:
        if rank >= 0:
            dist.init_process_group("gloo", timeout=PATIENCE)
    except Exception as error:
        raise RankLost("the ranks did not meet") from error
    model = mlp()
    trainer = Trainer(
        model, loss, epsilon=3, delta=1e-4, method=dp_sgd(clip_norm=0.1), steps=STEPS, expected_batch_size=30,
        checkpoints=Checkpoints(f"{folder}/run", every=1), random_state=None if ledger else 3,
        ledger=f"{folder}/ledger" if ledger else None,
    )  # fmt: skip
    trainer.fit(blobs(200, 1), resume=True)
    return vector(model), len(trainer.history_), trainer.privacy_.epsilon


def book(folder: Path) -> None:
    with Ledger.create(folder / "ledger") as ledger:
        ledger.register("people", relation="add-or-remove-one", epsilon=50, delta=1e-4)


def charges(folder: Path) -> int:
    with Ledger.open(folder / "ledger") as ledger:
        return len(ledger.charges("people"))


@cache
def alone() -> None:
    """Without other ranks, so that the forks know what the plan costs."""
    before = accountants.noise_multiplier, accountants.epsilon
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(-1, folder, ledger=False)
    finally:
        accountants.noise_multiplier, accountants.epsilon = before


@cache
def undisturbed(size: int) -> tuple[Any, float]:
    """The weights of a run that nobody kills, and how long it takes."""
    with tempfile.TemporaryDirectory() as folder:
        alone()
        begin = time.monotonic()
        found = values(on_ranks(partial(train, folder=folder, ledger=False), size=size, seconds=SECONDS))
        return found[0][0], time.monotonic() - begin


@pytest.mark.filterwarnings("ignore:resume=True, but:sidelight.errors.PrivacyWarning")
@pytest.mark.parametrize("trial", range(1, TRIALS + 1))
def test_a_rank_that_is_killed_ends_the_others_and_a_resume_is_right(trial: int, tmp_path: Path) -> None:
    chance = random.Random(trial)
    size, ledger = chance.choice([2, 2, 3]), trial % 2 == 1
    weights, usual = undisturbed(size)
    scene = partial(train, folder=str(tmp_path), ledger=ledger)
    if ledger:
        book(tmp_path)
    running, victim = Running(scene, size), chance.randrange(size)
    # One in five while the processes meet: each of their first steps waits for all others.
    time.sleep(chance.uniform(0.0, 1.1 if trial % 5 else 0.1) * usual)
    running.kill(victim)
    ended = running.ended(SECONDS)
    finished = [one for one in ended if one.value is not None]
    for one in ended:  # killed, finished before, or told of it; never anything else
        assert one == Ended() or one.value is not None or one.error == "RankLost", one
    begun = (tmp_path / "run" / "state.json").exists()
    before = charges(tmp_path) if ledger else 0
    if ledger and (begun or finished):
        assert before == 1, "a private record was read without a charge"
    found = values(on_ranks(scene, size=size, seconds=SECONDS))
    assert all(torch.equal(one[0], found[0][0]) and one[1] == STEPS for one in found)
    if ledger:  # resumed, it costs nothing more; begun anew, it is charged anew
        assert charges(tmp_path) == (before if begun else before + 1)
    else:
        assert torch.equal(found[0][0], weights)
    where = "before the first step" if not begun else "after the end" if finished else "while training"
    print(f"trial {trial}: rank {victim} of {size} killed {where}")
