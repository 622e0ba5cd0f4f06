"""Nobody pays for a resumed run again, so it must be the run that was paid for, and go on once."""

import contextlib
import errno
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deep.networks import Listed, blobs, loss, mlp, vector
from tests.deep.test_checkpoints import Cut, cut_after, make
from torch import nn
from torch.utils.data import Subset, TensorDataset

from sidelight.deep import Checkpoints, Trainer
from sidelight.deep.binding import code_of, structure_of
from sidelight.errors import InputError, LedgerError, PrivacyConditionError, PrivacyWarning
from sidelight.privacy.contract import Contract
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise

PRIVATE = blobs(200, 1)


def cut(folder: Path, model: Any = None, **options: Any) -> None:
    with pytest.raises(Cut):
        make(mlp() if model is None else model, folder, optimizer=cut_after(4), **options).fit(PRIVATE)


def with_loss(folder: Path, other: Any, *, model: Any = None, **options: Any) -> Trainer:
    trainer = make(mlp() if model is None else model, folder, **options)
    trainer.loss = other
    return trainer


def halved(outputs: Any, targets: Any) -> Any:
    return 0.5 * loss(outputs, targets)


class Plain(nn.Module):
    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.dropout, self.two = nn.Linear(4, 6), nn.Dropout(rate), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.two(self.dropout(torch.tanh(self.one(x))))


class Squared(Plain):
    def forward(self, x: Any) -> Any:
        return self.two(self.dropout(torch.tanh(self.one(x)) ** 2))


def test_a_finished_run_is_given_back_and_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(mlp(), None, random_state=None)
    again = with_loss(tmp_path, halved, model=mlp(5), random_state=None)
    first.checkpoints = again.checkpoints = Checkpoints(tmp_path, every=4)  # not at the end
    done = first.fit(PRIVATE)
    monkeypatch.setattr(Noise, "normal", lambda *_, **__: pytest.fail("noise was drawn"))
    again.fit(PRIVATE, resume=True)
    assert torch.equal(vector(again.model), vector(done.model))
    assert again.history_ == done.history_ and again.privacy_ == done.privacy_


def test_a_finished_run_keeps_nothing_to_draw_its_noise_from(tmp_path: Path) -> None:
    cut(tmp_path / "a")
    text = (tmp_path / "a" / "state.json").read_text()
    key = Checkpoints(tmp_path / "a").read()["noise"]["key"]  # type: ignore[index]
    assert key in text
    make(mlp(), tmp_path / "a").fit(PRIVATE, resume=True)
    saved = Checkpoints(tmp_path / "a").read()
    assert saved is not None and saved["finished"] and saved["step"] == 6
    assert not {"noise", "secret"} & set(saved)


CHANGED: dict[str, Any] = {
    "loss": lambda folder: with_loss(folder, halved, model=Plain()),
    "augment": lambda folder: make(Plain(), folder, augment=torch.sign),
    "model": lambda folder: make(Squared(), folder),
    "model, dropout": lambda folder: make(Plain(rate=0.5), folder),
}


@pytest.mark.parametrize(("what", "changed"), CHANGED.items(), ids=CHANGED.keys())
def test_another_run_is_refused(what: str, changed: Any, tmp_path: Path) -> None:
    cut(tmp_path, Plain())
    with pytest.raises(PrivacyConditionError, match=f"another {what.split(',')[0]}"):
        changed(tmp_path).fit(PRIVATE, resume=True)
    assert len(make(Plain(), tmp_path).fit(PRIVATE, resume=True).history_) == 6


def test_other_records_are_refused(tmp_path: Path) -> None:
    cut(tmp_path)
    moved = PRIVATE[0].clone(), PRIVATE[1].clone()
    moved[0][3, 1] += 1e-3
    whole = TensorDataset(*blobs(200, 1))
    for other in (moved, Subset(whole, [1, 0, *range(2, 200)]), Listed(PRIVATE)):
        with pytest.raises(PrivacyConditionError, match="private data"):
            make(mlp(), tmp_path).fit(other, resume=True)


def test_what_a_variable_decides_is_seen() -> None:
    def scaled(factor: float) -> Any:
        return lambda outputs, targets: factor * loss(outputs, targets)

    assert code_of(scaled(1.0)) == code_of(scaled(1.0))
    assert code_of(scaled(1.0)) != code_of(scaled(2.0))
    assert code_of(loss) != code_of(halved)
    assert len({structure_of(one) for one in (Plain(), Squared(), Plain(0.5))}) == 3
    assert structure_of(mlp(1)) == structure_of(mlp(2)), "parameters are in the checkpoint"
    smooth = [nn.CrossEntropyLoss(reduction="none", label_smoothing=by) for by in (0.0, 0.1)]
    weighed = [nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, by]), reduction="none") for by in (1.0, 2.0)]
    assert len({code_of(one) for one in smooth + weighed}) == 4
    rows = [functools.partial(torch.clamp, max=top) for top in (1.0, 2.0)]
    assert code_of(rows[0]) != code_of(rows[1])


def test_code_is_known_again_in_another_process() -> None:
    program = (
        "from sidelight.deep.binding import code_of\n"
        "def f(x, names={'a', 'b', 'c'}): return x in {'p', 'q', 'r'} and code_of\n"
        "print(code_of(f), code_of({'u', 'v', 'w'}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1


@pytest.mark.parametrize("seed", [1, None], ids=["seeded", "keyed by the system"])
def test_a_change_that_nobody_sees_gets_other_noise(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the difference of two continuations is the exact, noise-free sum.

    While the journal is there the change is refused; here somebody has lost it.
    """
    drawn: list[set[float]] = []
    normal = Noise.normal

    def overheard(self: Noise, size: Any, **options: Any) -> Any:
        values = normal(self, size, **options)
        drawn[-1].update((np.asarray(values, dtype=np.float64) / options["std"]).round(9).ravel().tolist())
        return values

    monkeypatch.setattr("sidelight.deep.checkpoint.fingerprints", lambda *_, **__: {}, raising=False)
    cut(tmp_path / "a", random_state=seed)
    for name in "bc":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    with pytest.raises(PrivacyConditionError, match="step 2"):
        with_loss(tmp_path / "b", halved, random_state=seed).fit(PRIVATE, resume=True)
    for journal in (tmp_path / "b").glob("released-*.log"):
        journal.unlink()
    monkeypatch.setattr(Noise, "normal", overheard)
    for name, chosen in (("a", loss), ("b", halved), ("c", loss)):
        drawn.append(set())
        with_loss(tmp_path / name, chosen, random_state=seed).fit(PRIVATE, resume=True)
    assert not drawn[0] & drawn[1] and drawn[0] == drawn[2]


def test_a_journal_torn_in_its_last_line_is_read(tmp_path: Path) -> None:
    """The line is written before noise is drawn: what was cut in it was never released."""
    cut(tmp_path / "a", random_state=1)
    (journal,) = (tmp_path / "a").glob("released-*.log")
    journal.write_text(journal.read_text()[:-10])
    make(mlp(), tmp_path / "a", random_state=1).fit(PRIVATE, resume=True)


def test_a_checkpoint_of_a_recipe_that_named_its_relation_is_resumed(tmp_path: Path) -> None:
    """As 0.1 wrote them: the relation of a run stands by itself in its settings."""
    cut(tmp_path, random_state=1)
    state = tmp_path / "state.json"
    old = state.read_text().replace("departs=(),", "departs=(), default_relation='add-or-remove-one',")
    assert old != state.read_text()
    state.write_text(old)
    assert len(make(mlp(), tmp_path, random_state=1).fit(PRIVATE, resume=True).history_) == 6


@pytest.fixture
def book() -> Ledger:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=20, delta=1e-4)
    return ledger


def test_a_copy_is_spent_once_the_run_has_ended(tmp_path: Path, book: Ledger) -> None:
    cut(tmp_path / "a", ledger=book)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    make(mlp(), tmp_path / "a", ledger=book).fit(PRIVATE, resume=True)
    with pytest.raises(LedgerError, match=r"spent: .*ended"):
        make(mlp(), tmp_path / "copy", ledger=book).fit(PRIVATE, resume=True)
    again = make(mlp(), tmp_path / "a", ledger=book).fit(PRIVATE, resume=True)
    assert len(again.history_) == 6 and len(book.charges("people")) == 1
    assert again.privacy_.ledger is not None and again.privacy_.ledger["run"] == 1


def test_a_copy_of_a_run_that_was_never_cut_is_spent_too(tmp_path: Path, book: Ledger) -> None:
    folder, copied = tmp_path / "a", tmp_path / "copy"

    def copying(fetched: int) -> None:
        if (folder / "state.json").exists() and not copied.exists():
            shutil.copytree(folder, copied)

    make(mlp(), folder, ledger=book).fit(Listed(PRIVATE, copying))
    with pytest.raises(LedgerError, match=r"spent: .*ended"):
        make(mlp(), copied, ledger=book).fit(Listed(PRIVATE), resume=True)


def test_a_copy_is_spent_once_another_was_resumed(tmp_path: Path, book: Ledger) -> None:
    cut(tmp_path / "a", ledger=book)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with pytest.raises(Cut):
        make(mlp(), tmp_path / "a", ledger=book, optimizer=cut_after(1)).fit(PRIVATE, resume=True)
    with pytest.raises(LedgerError, match=r"spent: .*resumed"):
        make(mlp(), tmp_path / "copy", ledger=book).fit(PRIVATE, resume=True)


def test_a_run_that_is_killed_at_its_very_end_is_closed_when_it_is_asked_for(
    tmp_path: Path, book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(tmp_path / "a", ledger=book)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr(Contract, "close", lambda *_: (_ for _ in ()).throw(Cut))  # all is written but this
        with pytest.raises(Cut):
            make(mlp(), tmp_path / "a", ledger=book).fit(PRIVATE, resume=True)
    make(mlp(), tmp_path / "a", ledger=book).fit(PRIVATE, resume=True)
    assert book.charges("people")[0].token is None
    with pytest.raises(LedgerError, match="spent"):
        make(mlp(), tmp_path / "copy", ledger=book).fit(PRIVATE, resume=True)


def test_a_run_that_is_cut_again_and_again_goes_on(tmp_path: Path, book: Ledger) -> None:
    cut(tmp_path, ledger=book)
    for _ in range(3):
        with pytest.raises(Cut):
            make(mlp(), tmp_path, ledger=book, optimizer=cut_after(1)).fit(PRIVATE, resume=True)
    resumed = make(mlp(), tmp_path, ledger=book).fit(PRIVATE, resume=True)
    assert len(resumed.history_) == 6 and len(book.charges("people")) == 1


def test_a_ledger_that_fails_at_a_resume_can_be_asked_again(
    tmp_path: Path, book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(tmp_path, ledger=book)

    def full(*_: Any, **__: Any) -> None:
        raise LedgerError("the disk is full")

    for _ in range(2):
        monkeypatch.setattr(Ledger, "claim", full)
        with pytest.raises(LedgerError, match="full"):
            make(mlp(), tmp_path, ledger=book).fit(PRIVATE, resume=True)
        monkeypatch.undo()
    assert len(make(mlp(), tmp_path, ledger=book).fit(PRIVATE, resume=True).history_) == 6


def test_who_may_go_on_survives_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "book.ledger"
    with Ledger.create(path) as ledger:
        ledger.register("people", relation="add-or-remove-one", epsilon=20, delta=1e-4)
        cut(tmp_path / "a", ledger=ledger)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    make(mlp(), tmp_path / "a", ledger=path).fit(PRIVATE, resume=True)
    with pytest.raises(LedgerError, match="spent"):
        make(mlp(), tmp_path / "copy", ledger=path).fit(PRIVATE, resume=True)
    Ledger.open(path).verify()


def test_two_who_claim_a_run_at_once_do_not_both_get_it(book: Ledger) -> None:
    from sidelight.privacy import events

    run = book.begin("people", events.gaussian(5.0), relation="add-or-remove-one", method="m")
    book.claim(run.number, expected="", token="first")
    with pytest.raises(LedgerError, match="only one"):
        book.claim(run.number, expected="", token="second")


def test_a_checkpoint_of_an_older_version_says_why_it_is_refused(tmp_path: Path) -> None:
    cut(tmp_path)
    body = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**body, "format": 1}))
    with pytest.raises(InputError, match="not bound"):
        make(mlp(), tmp_path).fit(PRIVATE, resume=True)


class Bent(nn.Module):
    """A model with a function in an attribute, which no fingerprint of code sees."""

    def __init__(self, bend: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.bend = nn.Linear(4, 6), nn.Linear(6, 3), bend

    def forward(self, x: Any) -> Any:
        return self.last(self.bend(self.first(x)))


def test_a_step_that_was_released_is_repeated_as_it_was_or_refused(tmp_path: Path) -> None:
    """Other values would have other noise: a second release of the steps after the checkpoint, uncharged."""
    with pytest.raises(Cut):
        make(Bent(torch.tanh), tmp_path, optimizer=cut_after(4), random_state=None).fit(PRIVATE)
    assert list(tmp_path.glob("released-*.log")), "what was released after the checkpoint is written down"
    with pytest.raises(PrivacyConditionError, match="step 2"):
        make(Bent(torch.sin), tmp_path, random_state=None).fit(PRIVATE, resume=True)
    resumed = make(Bent(torch.tanh), tmp_path, random_state=None).fit(PRIVATE, resume=True)
    assert len(resumed.history_) == 6
    assert not list(tmp_path.glob("released-*.log")), "of a run that has ended nothing can be repeated"


# ---------------------------------------------------------------------------------------------------
# two at once


def test_a_second_run_in_the_same_folder_is_refused_without_a_ledger(tmp_path: Path) -> None:
    """In the same process here; the first one asks for the second while it trains."""
    cut(tmp_path, random_state=None)
    refused = []

    def meanwhile(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
        for resume in (True, False):
            with pytest.raises(PrivacyConditionError, match="another run") as caught:
                make(mlp(), tmp_path, random_state=None).fit(PRIVATE, resume=resume)
            refused.append(str(caught.value))
        return optimizer

    before = (tmp_path / "state.json").read_bytes()
    with pytest.raises(Cut):
        make(mlp(), tmp_path, optimizer=_both(meanwhile, cut_after(1)), random_state=None).fit(
            PRIVATE, resume=True
        )
    assert len(refused) == 2 and all("\n" not in line for line in refused)
    assert (tmp_path / "state.json").read_bytes() != before, "the first one went on"
    make(mlp(), tmp_path, random_state=None).fit(PRIVATE, resume=True)  # what failed has given it back


def _both(first: Any, second: Any) -> Any:
    def make_one(parameters: Any) -> Any:
        listed = list(parameters)
        first(listed)
        return second(listed)

    return make_one


_HOLDER = """
import sys, time
from sidelight.deep.checkpoint import sole_run
with sole_run(sys.argv[1]):
    print("mine", flush=True)
    time.sleep(60)
"""


def test_a_run_of_another_process_is_noticed_and_a_killed_one_forgotten(tmp_path: Path) -> None:
    cut(tmp_path)
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with pytest.raises(PrivacyConditionError, match="another run"):
            make(mlp(), tmp_path).fit(PRIVATE, resume=True)
        other.kill()
    make(mlp(), tmp_path).fit(PRIVATE, resume=True)


def test_a_folder_that_cannot_be_locked_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("sidelight.deep.checkpoint._lock", unsupported)
    with pytest.warns(PrivacyWarning, match="locked"):
        make(mlp(), tmp_path).fit(PRIVATE)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="written"):
        make(mlp(), tmp_path / "file").fit(PRIVATE)


def and_then(happens: Any) -> Any:
    """The usual optimizer; something else happens after its steps."""

    def make_one(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
        honest = optimizer.step

        def step() -> None:
            honest()
            happens()

        optimizer.step = step
        return optimizer

    return make_one


@pytest.mark.parametrize("ended", [True, False], ids=["to its end", "a step"])
@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "not resumed"])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_run_that_somebody_else_went_on_with_releases_nothing_more(
    tmp_path: Path, book: Ledger, monkeypatch: pytest.MonkeyPatch, kind: str, resumed: bool, ended: bool
) -> None:
    """Two live resumes: both released the steps after the checkpoint, with other values and one charge."""
    if kind == "file":
        book = Ledger.create(tmp_path / "book.ledger")
        book.register("people", relation="add-or-remove-one", epsilon=20, delta=1e-4)
    if resumed:
        cut(tmp_path / "a", ledger=book, random_state=None)

    def other() -> None:
        if not (tmp_path / "a" / "state.json").exists():
            return
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        options = {} if ended else {"optimizer": cut_after(1)}
        second = make(mlp(), tmp_path / "copy", ledger=book, random_state=None, **options)
        with contextlib.suppress(Cut):
            second.fit(PRIVATE, resume=True)
        monkeypatch.setattr(Noise, "normal", lambda *_, **__: pytest.fail("noise was drawn"))

    first = make(mlp(), tmp_path / "a", ledger=book, random_state=None, optimizer=and_then(other))
    with pytest.raises(LedgerError, match="only one"):
        first.fit(PRIVATE, resume=resumed)
    assert len(book.charges("people")) == 1
