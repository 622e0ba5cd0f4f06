"""A fork holds the memory of its parent: it draws other noise, and continues nobody's account."""

import copy
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sidelight.errors import LedgerError, PrivacyConditionError
from sidelight.privacy import events
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.open_accounts import OpenAccount

AR = "add-or-remove-one"
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns, or raises, in a forked process."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            try:
                there.send(work())
            except Exception as error:
                there.send(error)
        finally:
            os._exit(0)
    assert here.poll(60), "the child said nothing"
    answer = here.recv()
    os.waitpid(child, 0)
    return answer


@pytest.mark.parametrize("seed", [None, 3], ids=["keyed by the system", "seeded"])
@pytest.mark.parametrize("used", [True, False], ids=["used before", "new"])
def test_parent_and_child_share_no_noise(seed: int | None, used: bool) -> None:
    noise = Noise(seed)
    if used:
        noise.normal(5)
    held = noise.generator
    children = [in_child(lambda: noise.normal(50).tolist()) for _ in range(2)]
    children.append(in_child(lambda: held.standard_normal(50).tolist()))
    children.append(in_child(lambda: noise.bound("x", np.zeros(3)).normal(50).tolist()))
    found = [*children, noise.normal(50).tolist()]
    assert len({value for one in found for value in one}) == 250


def test_a_fork_that_python_does_not_hear_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, twin = Noise(3), Noise(3)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert not set(noise.normal(20)) & set(twin.normal(20))


def test_a_repeatable_source_is_renewed_in_a_child_too() -> None:
    noise = Noise(repeatable=True)
    assert in_child(noise.get_state) != noise.get_state()


def test_noise_is_not_copied() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="same noise"):
            copied(Noise())
        with pytest.raises(TypeError, match="own releases"):
            copied(OpenAccount())


def test_accounts_stay_with_their_process() -> None:
    step = events.gaussian(2.0)
    ledger = Ledger.in_memory()
    ledger.register("people", relation=AR, epsilon=9, delta=1e-5)
    run = ledger.begin("people", events.repeat(step, 3), relation=AR, method="m")
    assert isinstance(in_child(lambda: run.charge(step)), LedgerError)
    assert isinstance(in_child(run.finish), LedgerError)
    account = OpenAccount()
    account.charge(step)
    assert isinstance(in_child(lambda: account.charge(step)), PrivacyConditionError)
    register = lambda: ledger.register("more", relation=AR, epsilon=1, delta=1e-5)  # noqa: E731
    assert isinstance(in_child(register), LedgerError)
    run.charge(step)
    account.charge(step)


def test_a_run_of_a_dead_parent_is_not_taken_over_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grandchild may get the process number of somebody who has ended."""
    number, account = os.getpid(), OpenAccount()

    def charge() -> None:
        monkeypatch.setattr(os, "getpid", lambda: number)
        account.charge(events.gaussian(1.0))

    assert isinstance(in_child(charge), PrivacyConditionError)


def test_a_private_step_is_not_continued_in_a_fork() -> None:
    torch = pytest.importorskip("torch")
    from tests.deep.networks import blobs, loss, mlp

    from sidelight.deep import PrivateStep

    torch.set_num_threads(1)
    model = mlp()
    step = PrivateStep(model, loss, noise_multiplier=1.0, delta=1e-5, n_private=40, expected_batch_size=10)
    step(blobs(len(step.sample()), 1))
    sampled = in_child(lambda: step.sample().tolist())
    answer = in_child(lambda: step(blobs(len(step.sample()), 1)))
    assert isinstance(answer, PrivacyConditionError) and "belong to the process" in str(answer)
    assert isinstance(sampled, list)
    step(blobs(len(step.sample()), 1))
    assert sum(events.elementary(step.privacy_.plan).values()) == 2


def test_threads_share_neither_noise_nor_a_count() -> None:
    noise, account, found = Noise(3), OpenAccount(), []

    def work() -> None:
        for _ in range(50):
            account.charge(events.gaussian(1.0))
            found.append(noise.bound("step", np.zeros(2)).normal(4).tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({value for one in found for value in one}) == 4 * 50 * 4
    assert sum(events.elementary(account.released).values()) == 200
