"""Checkpoints: a run that was cut goes on as if nothing had happened, with its charge and its noise."""

import json
import multiprocessing
import os
import shutil
import signal
import stat
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deep.networks import Listed, blobs, loss, mlp, vector

from sidelight.clipping import Projection
from sidelight.deep import Checkpoints, LastLayer, Loading, MeanLogits, PublicTraining, Trainer
from sidelight.deep.checkpoint import pack, unpack
from sidelight.errors import (
    BudgetExceeded,
    InputError,
    LedgerError,
    PrivacyConditionError,
    PrivacyWarning,
)
from sidelight.methods.adadps import adadps
from sidelight.methods.adamix import adamix
from sidelight.methods.coupling import coupling
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.parts import Ema, MeanLast
from sidelight.methods.ppsgd import ppsgd
from sidelight.privacy import events
from sidelight.privacy.contract import Contract
from sidelight.privacy.ledger import Ledger
from sidelight.problems.datasets import Records

PRIVATE, PUBLIC = blobs(200, 1), blobs(60, 2)


class Cut(Exception):
    """The machine goes down."""


def cut_after(calls: int) -> Any:
    """An optimizer that fails at its `calls`-th step."""

    def make(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
        honest, done = optimizer.step, [0]

        def step() -> None:
            done[0] += 1
            if done[0] == calls:
                raise Cut
            honest()

        optimizer.step = step
        return optimizer

    return make


def make(model: Any, folder: Path | None, *, optimizer: Any = None, **options: Any) -> Trainer:
    chosen: dict[str, Any] = {"method": dp_sgd(), "random_state": 1, **options}
    return Trainer(
        model, loss, epsilon=3, delta=1e-4, expected_batch_size=20, steps=6,
        optimizer=optimizer or (lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)),
        checkpoints=None if folder is None else Checkpoints(folder, every=2), **chosen,
    )  # fmt: skip


RECIPES = {
    "dp_sgd with momentum": dp_sgd(momentum=0.5),
    "dope_sgd": dope_sgd(finish=Ema(0.7)),
    "warm coupling": coupling(finish=MeanLast(4)),
    "adadps": adadps(),
    "adamix": adamix(rank=4),
    "adamix, last layer": adamix().with_parts(metric=LastLayer(4, refresh=3)),
    "ppsgd": ppsgd(reuse=None, planned_steps=40, clip_threshold=1.0, growth=0.1),
}


@pytest.mark.parametrize("method", RECIPES.values(), ids=RECIPES.keys())
def test_resume_is_identical(method: Any, tmp_path: Path) -> None:
    warm = PublicTraining(steps=3) if method.name in ("coupling", "adadps", "adamix") else None
    options: dict[str, Any] = {"method": method, "warm_up": warm, "public_batch_size": 20}
    straight = make(mlp(), None, **options).fit(PRIVATE, PUBLIC)
    with pytest.raises(Cut):  # after step 3, whose results are lost: the last checkpoint is of step 2
        make(mlp(), tmp_path, optimizer=cut_after(4), **options).fit(PRIVATE, PUBLIC)
    resumed = make(mlp(seed=9), tmp_path, **options).fit(PRIVATE, PUBLIC, resume=True)
    assert torch.equal(vector(resumed.model), vector(straight.model))
    assert resumed.history_ == straight.history_ and len(resumed.history_) == 6
    assert resumed.privacy_ == straight.privacy_


def test_without_a_seed_the_same_steps_have_the_same_noise_again(tmp_path: Path) -> None:
    with pytest.raises(Cut):
        make(mlp(), tmp_path / "a", optimizer=cut_after(4), random_state=None).fit(PRIVATE)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = [make(mlp(), tmp_path / name, random_state=None).fit(PRIVATE, resume=True) for name in "ab"]
    assert torch.equal(vector(found[0].model), vector(found[1].model))


def test_files_are_for_their_owner_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    make(mlp(), tmp_path / "c").fit(PRIVATE)
    files = sorted((tmp_path / "c").iterdir())
    assert [file.name for file in files][:2] == ["lock", "state.json"]
    assert [file.suffix for file in files] == ["", ".json", ".safetensors"]
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


def test_a_write_that_fails_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Checkpoints(tmp_path)
    folder.write({"step": 1, "w": torch.ones(3)})
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith("state.json"):
            raise OSError("no space left")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="no space"):
        folder.write({"step": 2, "w": torch.zeros(3)})
    monkeypatch.undo()
    saved = folder.read()
    assert saved is not None and saved["step"] == 1 and torch.equal(saved["w"], torch.ones(3))


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path)
    folder.write({"w": torch.ones(3)})
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="damaged"):
        folder.read()
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(InputError, match="wrote"):
        folder.read()


def test_changed_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Cut):
        make(mlp(), tmp_path, optimizer=cut_after(4)).fit(PRIVATE)
    with pytest.raises(PrivacyConditionError, match="another method"):
        make(mlp(), tmp_path, method=dp_sgd(clip_norm=2.0)).fit(PRIVATE, resume=True)
    with pytest.raises(PrivacyConditionError, match="private records"):
        make(mlp(), tmp_path).fit(blobs(199, 1), resume=True)
    with pytest.raises(InputError, match="checkpoints="):
        make(mlp(), None).fit(PRIVATE, resume=True)


def test_resume_without_a_checkpoint_says_so_before_it_begins_and_charges(tmp_path: Path) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=9, delta=1e-4)
    trainer = make(mlp(), tmp_path / "none", ledger=ledger)
    with warnings.catch_warnings(), pytest.raises(PrivacyWarning, match="new run"):
        warnings.simplefilter("error")
        trainer.fit(PRIVATE, resume=True)
    assert not ledger.charges("people")
    with pytest.warns(PrivacyWarning, match="charged"):
        assert len(trainer.fit(PRIVATE, resume=True).history_) == 6
    assert len(ledger.charges("people")) == 1


def test_an_interrupt_finishes_the_step_and_the_charge_stays(tmp_path: Path) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=20, delta=1e-4)
    # After this the lifetime filter admits runs, and would lower one that ended well to what it released.
    ledger.begin("people", events.gaussian(50.0), relation="add-or-remove-one", method="count")

    def interrupt(fetched: int) -> None:
        if fetched == 50:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.warns(PrivacyWarning, match="6 steps.*resume=True"):
        stopped = make(mlp(), tmp_path, ledger=ledger).fit(Listed(PRIVATE, interrupt))
    assert stopped.stopped_ and 0 < len(stopped.history_) < 6
    assert signal.getsignal(signal.SIGINT) is before
    _, charge = ledger.charges("people")
    assert charge.rule == "filter"
    assert not charge.lowered and sum(events.elementary(charge.event).values()) == 7  # steps and health check
    assert any("stopped by the user" in note for note in stopped.privacy_.details["notes"])

    saved = Checkpoints(tmp_path).read()
    assert saved is not None and saved["step"] == len(stopped.history_)
    assert saved["charge"]["run"] == charge.number
    resumed = make(mlp(), tmp_path, ledger=ledger).fit(Listed(PRIVATE), resume=True)
    assert len(resumed.history_) == 6 and resumed.history_[: len(stopped.history_)] == stopped.history_
    assert len(ledger.charges("people")) == 2, "a resumed run is not charged twice"


def test_a_checkpoint_of_an_unknown_run_is_refused(tmp_path: Path) -> None:
    books = []
    for _ in range(2):
        books.append(Ledger.in_memory())
        books[-1].register("people", relation="add-or-remove-one", epsilon=3.5, delta=1e-4)
    with pytest.raises(Cut):
        make(mlp(), tmp_path, ledger=books[0], optimizer=cut_after(4)).fit(PRIVATE)
    with pytest.raises(LedgerError, match="such run"):
        make(mlp(), tmp_path, ledger=books[1]).fit(PRIVATE, resume=True)


def test_a_resumed_run_may_not_release_more_than_the_rest_of_its_plan() -> None:
    step = events.poisson(0.1, 1.0)
    contract = Contract(
        method="dp_sgd", event=events.repeat(step, 6), filtered=False, relation="add-or-remove-one",
        epsilon=9, delta=1e-4, n=10,
    )  # fmt: skip
    run, account, _ = contract.resume(0, events.repeat(step, 4))
    account.charge(events.repeat(step, 2))
    with pytest.raises(BudgetExceeded):
        account.charge(step)
    assert events.elementary(run.released) == events.elementary(contract.event)


def test_a_resumed_filter_knows_what_it_had_spent() -> None:
    certificate = events.gaussian(1.0)
    contract = Contract(
        method="ppsgd", event=certificate, filtered=True, relation="add-or-remove-one", epsilon=9,
        delta=1e-4, n=10,
    )  # fmt: skip
    _, account, _ = contract.resume(0, events.repeat(events.gaussian(2.0), 3))
    account.charge(events.gaussian(2.0))
    with pytest.raises(BudgetExceeded):
        account.charge(events.gaussian(20.0))


def test_ensembles_are_resumed_with_all_their_members(tmp_path: Path) -> None:
    method = dp_sgd(finish=MeanLogits(5))
    straight = make(mlp(), None, method=method).fit(PRIVATE)
    with pytest.raises(Cut):
        make(mlp(), tmp_path, method=method, optimizer=cut_after(6)).fit(PRIVATE)
    resumed = make(mlp(), tmp_path, method=method).fit(PRIVATE, resume=True)
    assert torch.equal(resumed.model_.members, straight.model_.members)


def test_values_come_back_as_they_were() -> None:
    tensors: dict[str, Any] = {}
    value = {
        0: [1, 2.5, None, "a", (True, float("inf"))],
        "basis": (3, Projection(torch.eye(2))),
        "moments": {"step": torch.tensor(4.0)},
    }
    data = json.loads(json.dumps(pack(value, tensors)))
    back = unpack(data, tensors)
    assert back[0] == value[0] and torch.equal(back["basis"][1].basis, torch.eye(2))
    assert back["moments"]["step"] == 4.0
    with pytest.raises(InputError, match="a set"):
        pack({1, 2}, {})


def _to_the_group(fetched: int) -> None:
    """As a terminal does at Ctrl-C: to every process, here in the middle of a worker's batch."""
    if fetched == 64 + 25 and torch.utils.data.get_worker_info() is not None:
        os.killpg(0, signal.SIGINT)


def _interrupted(folder: Path) -> None:
    os.setsid()  # a terminal of its own
    # Forked workers inherit the trainer's handler; those that are spawned die of an interrupt by default.
    torch.multiprocessing.set_start_method("spawn", force=True)
    trainer = make(mlp(), None, loading=Loading(workers=1))
    trainer.checkpoints = Checkpoints(folder, every=None)
    with pytest.warns(PrivacyWarning, match="Ctrl-C"):
        trainer.fit(Listed(PRIVATE, _to_the_group))
    os._exit(0 if trainer.stopped_ else 3)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_interrupt_of_a_terminal_does_not_break_the_workers(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_interrupted, args=(tmp_path / "c",))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    saved = Checkpoints(tmp_path / "c").read()
    assert saved is not None and 1 <= saved["step"] < 6


class Deaf:
    """A dataset that tells whether the process it is read in ignores Ctrl-C."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return torch.tensor(float(ignores)), torch.tensor(os.getpid())


@pytest.fixture
def restored_interrupt() -> Iterator[None]:
    """A process that a shell started in the background ignores interrupts from the beginning."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_ignore_an_interrupt_and_this_process_does_not(restored_interrupt: None) -> None:
    for workers in (0, 1):
        records = Records(Deaf(), Loading(workers=workers), torch.device("cpu"))
        ignores, process = records.fetch(range(8))
        records.close()
        assert ignores.tolist() == [float(workers)] * 8
        assert (os.getpid() in process.tolist()) == (workers == 0)


def test_a_rich_run_is_resumed_identically(tmp_path: Path) -> None:
    """Dropout, random augmentations, Adam, a scheduler and workers: all that draws or remembers."""

    def build(seed: int = 0) -> Any:
        torch.manual_seed(seed)
        layers = torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(6, 3)
        return torch.nn.Sequential(*layers)

    class Failing(torch.optim.Adam):
        """Fails where it is told to."""

        def step(self, closure: Any = None) -> None:
            if next(steps) == 22:
                raise Cut
            super().step(closure)

    steps = iter(range(1, 99))  # six of the straight run, each rehearsed, six more, and then the fourth
    options: dict[str, Any] = {
        "method": dope_sgd(finish=Ema(0.7)), "augmentations": 2, "loading": Loading(workers=1, micro_batch=7),
        "augment": lambda x: x + 0.1 * torch.randn_like(x), "public_augment": lambda x: x * torch.rand(1),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        "validation": 0.3,
    }  # fmt: skip
    adam = partial(Failing, lr=0.05)
    straight = make(build(), None, optimizer=adam, **options).fit(Listed(PRIVATE), PUBLIC)
    with pytest.raises(Cut):
        make(build(), tmp_path, optimizer=adam, **options).fit(Listed(PRIVATE), PUBLIC)
    again = make(build(9), tmp_path, optimizer=adam, **options)
    resumed = again.fit(Listed(PRIVATE), PUBLIC, resume=True)
    assert torch.equal(vector(resumed.model), vector(straight.model))
    assert resumed.history_ == straight.history_ and "validation_loss" in resumed.history_[-1]
