"""Networks on two ranks: the result of one, one charge, one source of noise, and one clear end for all."""

import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available() or not hasattr(os, "fork"):
    pytest.skip("no gloo, or no fork", allow_module_level=True)

from tests.deep.networks import blobs, loss, mlp, vector  # noqa: E402
from tests.deep.rank_scenes import Ended, on_ranks, values  # noqa: E402
from torch import nn  # noqa: E402

from sidelight.audit.tape import same_noise  # noqa: E402
from sidelight.deep import Checkpoints, Loading, PrivateStep, Trainer  # noqa: E402
from sidelight.methods.correlated_noise import BandedNoise  # noqa: E402
from sidelight.methods.dope_sgd import dope_sgd  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402
from sidelight.privacy.ledger import Ledger  # noqa: E402
from sidelight.privacy.noise import Noise  # noqa: E402
from sidelight.problems.network_ranks import Ranks  # noqa: E402

PRIVATE, PUBLIC = blobs(61, 1, torch.float64), blobs(20, 2, torch.float64)
CODES = np.arange(61) // 3
FULL: dict[str, Any] = {"expected_batch_size": None, "steps": 4}
TURNS = {
    "turns": BandedNoise(bands=3, cycle=3, sampled=False),
    "sampled turns": BandedNoise(bands=2, cycle=2, sampled=True, curvature="public"),
}


def trained(rank: int, *, persons: Any = None, private: Any = PRIVATE, **options: Any) -> Any:
    """Weights, statement, history, and how often this process drew noise."""
    drawn = 0
    honest = Noise.normal_like

    def counted(self: Noise, *given: Any, **named: Any) -> Any:
        nonlocal drawn
        drawn += 1
        return honest(self, *given, **named)

    # How many seeds are drawn for models and augmentations differs, and must not move the noise here.
    seed, Noise.seed = Noise.seed, lambda self: 7  # type: ignore[method-assign]
    Noise.normal_like = counted  # type: ignore[method-assign]
    model = mlp(seed=rank, dtype=torch.float64)  # rank 0's is the one that counts
    given: dict[str, Any] = {
        "method": dope_sgd(clip_norm=0.1), "epsilon": 3, "delta": 1e-4, "random_state": 5, **FULL, **options,
    }  # fmt: skip
    trainer = Trainer(model, loss, **given)
    try:
        with same_noise():
            trainer.fit(private, PUBLIC, persons=persons)
    finally:
        Noise.normal_like, Noise.seed = honest, seed  # type: ignore[method-assign]
    return vector(model), str(trainer.privacy_), trainer.history_, drawn


@pytest.mark.filterwarnings("ignore::sidelight.errors.NotPrivateWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loading": Loading(micro_batch=4)},
        {"persons": CODES, "unit": "patient", "max_rows": 3},
        *(
            {"method": dope_sgd(clip_norm=0.1).with_parts(noise=noise), "expected_batch_size": 61 / 3}
            for noise in TURNS.values()
        ),
    ],
    ids=["records", "micro-batches", "persons", *TURNS],
)
def test_two_ranks_train_the_model_of_one(options: dict[str, Any]) -> None:
    alone, statement, history, drawn = trained(0, **options)
    first, second = values(on_ranks(partial(trained, **options)))
    assert torch.equal(first[0], second[0])
    torch.testing.assert_close(first[0], alone, rtol=1e-9, atol=1e-12)
    assert first[1] == second[1] and first[2] == second[2]
    assert first[1].splitlines()[0] == statement.splitlines()[0]
    assert [entry["clip_norm"] for entry in first[2]] == [entry["clip_norm"] for entry in history]
    assert first[3] == drawn == 4 and second[3] == 0, "noise is drawn once, by rank 0"


def all_of_it(rank: int) -> Any:
    """A fault: every rank sums the whole batch."""
    Ranks.share_of = lambda self, indices, n: np.arange(n)  # type: ignore[method-assign]
    return trained(rank)


@pytest.mark.filterwarnings("ignore::sidelight.errors.NotPrivateWarning")
def test_contract_catches_a_batch_that_is_not_split() -> None:
    first, second = values(on_ranks(all_of_it))
    assert torch.equal(first[0], second[0])
    assert float((first[0] - trained(0)[0]).norm()) > 1e-3


def sampled(rank: int, folder: str) -> Any:
    """A run with a ledger, without a seed, on sampled batches; what is in the folder is rank 0's."""
    model = mlp(seed=rank)
    trainer = Trainer(
        model, loss, epsilon=3, method=dp_sgd(), expected_batch_size=20, steps=5, ledger=f"{folder}/ledger",
        checkpoints=Checkpoints(f"{folder}/run", every=2), observers=[],
    )  # fmt: skip
    trainer.fit(blobs(61, 1), blobs(20, 2))
    return vector(model), trainer.privacy_.epsilon


def ledger_at(folder: Path, epsilon: float = 50) -> None:
    with Ledger.create(folder / "ledger") as ledger:
        ledger.register("people", relation="add-or-remove-one", epsilon=epsilon, delta=1e-5)


def charges(folder: Path) -> int:
    with Ledger.open(folder / "ledger") as ledger:
        return len(ledger.charges("people"))


def test_one_charge_and_equal_weights_with_noise_that_nobody_can_repeat(tmp_path: Path) -> None:
    ledger_at(tmp_path)
    first, second = values(on_ranks(partial(sampled, folder=str(tmp_path))))
    assert torch.equal(first[0], second[0]) and first[1] == second[1]
    assert charges(tmp_path) == 1


def stepped(rank: int) -> Any:
    model = mlp(seed=rank, dtype=torch.float64)
    step = PrivateStep(
        model, loss, method=dope_sgd(clip_norm=0.1), n_private=61, expected_batch_size=None, epsilon=3,
        delta=1e-4, steps=3, random_state=1,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with same_noise():
        for _ in range(3):
            mine = step.sample()
            step(PRIVATE if mine is None else (PRIVATE[0][mine], PRIVATE[1][mine]), PUBLIC)
            optimizer.step()
    return vector(model), len(step.history_)


@pytest.mark.filterwarnings("ignore::sidelight.errors.NotPrivateWarning")
def test_a_loop_of_ones_own_on_two_ranks_is_that_of_one() -> None:
    first, second = values(on_ranks(stepped))
    assert torch.equal(first[0], second[0]) and first[1] == second[1] == 3
    torch.testing.assert_close(first[0], stepped(0)[0], rtol=1e-9, atol=1e-12)


def in_turn(rank: int, noise: str) -> Any:
    """Weights, the records of each step, how often this process drew noise, and the event of rank 0."""
    drawn = []
    honest = Noise.normal_like
    Noise.normal_like = lambda *given, **named: drawn.append(1) or honest(*given, **named)  # type: ignore
    model = mlp(seed=rank, dtype=torch.float64)
    step = PrivateStep(
        model, loss, method=dp_sgd(clip_norm=0.1, noise=replace(TURNS[noise], curvature=None)), n_private=61,
        expected_batch_size=61 / 3, epsilon=3, delta=1e-4, steps=6, random_state=1,
    )  # fmt: skip
    optimizer, batches = torch.optim.SGD(model.parameters(), lr=0.1), []
    try:
        with same_noise():
            for _ in range(6):
                batches.append(step.sample())
                step((PRIVATE[0][batches[-1]], PRIVATE[1][batches[-1]]))
                optimizer.step()
    finally:
        Noise.normal_like = honest  # type: ignore[method-assign]
    return vector(model), batches, len(drawn), step.privacy_.plan if rank == 0 else None


@pytest.mark.filterwarnings("ignore::sidelight.errors.NotPrivateWarning")
@pytest.mark.parametrize("noise", TURNS)
def test_a_loop_of_ones_own_shares_turns_and_correlated_noise_with_another_rank(noise: str) -> None:
    weights, batches, drawn, plan = in_turn(0, noise)
    first, second = values(on_ranks(partial(in_turn, noise=noise)))
    assert torch.equal(first[0], second[0])
    torch.testing.assert_close(first[0], weights, rtol=1e-9, atol=1e-12)
    for one, other, both in zip(first[1], second[1], batches, strict=True):
        assert np.array_equal(np.sort(np.concatenate([one, other])), both)
    assert (first[2], second[2]) == (drawn, 0) == (6, 0), "noise is drawn once, by rank 0"
    assert first[3] == plan


def resumed(rank: int, folder: str, *, dies: bool, noise: str) -> Any:
    """A run without a ledger, whose seed makes the same noise for the same sums; rank 1 ends in its 5th."""
    honest, sums = Ranks.share_of, 0

    def share_of(self: Ranks, indices: Any, n: int) -> Any:
        nonlocal sums
        sums += 1
        if dies and rank == 1 and sums == 5:
            os._exit(9)
        return honest(self, indices, n)

    Ranks.share_of = share_of  # type: ignore[method-assign]
    model = mlp(seed=rank, dtype=torch.float64)
    trainer = Trainer(
        model, loss, epsilon=3, delta=1e-4, method=dp_sgd(clip_norm=0.1, noise=TURNS[noise]), steps=8,
        expected_batch_size=61 / 3, random_state=5, checkpoints=Checkpoints(folder, every=2),
    )  # fmt: skip
    trainer.fit(PRIVATE, PUBLIC, resume=True)
    return vector(model), trainer.history_, trainer.privacy_.plan


@pytest.mark.parametrize("noise", TURNS)
def test_a_resume_on_ranks_continues_turns_and_correlated_noise(noise: str, tmp_path: Path) -> None:
    run = partial(resumed, noise=noise)
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    undisturbed = values(on_ranks(partial(run, folder=whole, dies=False)))
    first, second = on_ranks(partial(run, folder=cut, dies=True))
    assert first.error == "RankLost" and second == Ended()
    saved = Checkpoints(cut).read()
    assert saved is not None and saved["step"] == 4
    state: Any = saved["parts"][2]
    assert state["correlation"]["step"] == 4 and state["correlation"]["kept"].abs().sum() > 0
    found = values(on_ranks(partial(run, folder=cut, dies=False)))
    for one, other in zip(found, undisturbed, strict=True):
        assert torch.equal(one[0], other[0]) and one[1:] == other[1:]


def whole_batch(rank: int, how: str) -> Any:
    """A loop that was written for one process: every rank gives all of the batch."""
    unit = {"unit": "patient", "max_rows": 3} if how == "persons" else {}
    model = mlp(dtype=torch.float64)
    step = PrivateStep(
        model, loss, method=dp_sgd(clip_norm=0.1), n_private=21 if unit else 61, expected_batch_size=None,
        epsilon=3, delta=1e-4, steps=3, **unit,
    )  # fmt: skip
    if how != "without sample()":
        step.sample()
    whose = {"persons": CODES} if unit else {}
    rows = PRIVATE if how != "one rank" or rank == 1 else (PRIVATE[0][:30], PRIVATE[1][:30])
    step(rows, **whose)


@pytest.mark.parametrize("how", ["without sample()", "after sample()", "one rank", "persons"])
def test_a_batch_that_every_rank_gives_whole_is_refused(how: str) -> None:
    for one in on_ranks(partial(whole_batch, how=how), seconds=60):
        assert one.error == "InputError" and "sample()" in one.text, one


class Files(torch.utils.data.Dataset[Any]):
    """A dataset that is no tensor: records in the order in which a folder happened to list them."""

    def __init__(self, order: Any) -> None:
        self._rows, self._order = blobs(61, 1), order

    def __len__(self) -> int:
        return 61

    def __getitem__(self, place: int) -> Any:
        return tuple(part[self._order[place]] for part in self._rows)


def disordered(rank: int, folder: str) -> Any:
    order = np.random.default_rng(rank).permutation(61)
    Trainer(mlp(), loss, epsilon=3, method=dp_sgd(), steps=2, ledger=f"{folder}/ledger").fit(Files(order))


def test_ranks_with_the_same_records_in_another_order_are_refused_before_the_charge(tmp_path: Path) -> None:
    """A record would be in the share of two ranks."""
    ledger_at(tmp_path)
    for one in on_ranks(partial(disordered, folder=str(tmp_path)), seconds=60):
        assert one.error == "InputError" and "order of the private records" in one.text, one
    assert charges(tmp_path) == 0


# ---------------------------------------------------------------------------------------------------
# ranks that differ, fail or die


def different(rank: int, folder: str, what: str) -> Any:
    private, epsilon, model = blobs(61, 1), 3.0, mlp()
    if rank == 1 and what == "number of private records":
        private = blobs(60, 1)
    if rank == 1 and what == "private data":
        private = blobs(61, 7)
    if rank == 1 and what == "epsilon":
        epsilon = 4.0
    if rank == 1 and what == "model":
        model = nn.Linear(4, 3)
    if what == "DistributedDataParallel":
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    Trainer(model, loss, epsilon=epsilon, method=dp_sgd(), steps=2, ledger=f"{folder}/ledger").fit(private)


@pytest.mark.parametrize(
    "what", ["number of private records", "private data", "epsilon", "model", "DistributedDataParallel"]
)
def test_a_rank_that_differs_is_refused_on_all_before_the_charge(what: str, tmp_path: Path) -> None:
    ledger_at(tmp_path)
    for one in on_ranks(partial(different, folder=str(tmp_path), what=what)):
        assert one.error == "InputError" and what in one.text, one
    assert charges(tmp_path) == 0


def dying(rank: int, folder: str, how: str) -> Any:
    """Rank 1 ends in the third sum, by exit or by an error of its own."""
    honest, sums = Ranks.share_of, 0

    def share_of(self: Ranks, indices: Any, n: int) -> Any:
        nonlocal sums
        sums += 1
        if rank == 1 and sums == 3:
            if how == "exit":
                os._exit(9)
            raise MemoryError("the visit of a patient")
        return honest(self, indices, n)

    if how:
        Ranks.share_of = share_of  # type: ignore[method-assign]
    model = mlp(dtype=torch.float64)
    trainer = Trainer(
        model, loss, epsilon=3, delta=1e-4, method=dp_sgd(clip_norm=0.1), steps=5, expected_batch_size=20,
        ledger=f"{folder}/ledger", checkpoints=Checkpoints(f"{folder}/run", every=1),
    )  # fmt: skip
    trainer.fit(PRIVATE, resume=True)
    return vector(model), len(trainer.history_)


@pytest.mark.parametrize("how", ["exit", "error"])
def test_when_a_rank_ends_all_end_the_charge_is_kept_and_a_resume_works(how: str, tmp_path: Path) -> None:
    ledger_at(tmp_path)
    first, second = on_ranks(partial(dying, folder=str(tmp_path), how=how), seconds=60)
    assert first.error == "RankLost" and "stays charged" in first.text, first
    assert "patient" not in first.text
    assert second == Ended() if how == "exit" else second.error == "MemoryError"
    assert charges(tmp_path) == 1
    found = values(on_ranks(partial(dying, folder=str(tmp_path), how="")))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == 5
    assert charges(tmp_path) == 1, "a resumed run is not charged again"


def counted(rank: int) -> Any:
    """A health check over records of which some contribute nothing; ε is large, as they are few."""
    x, y = PRIVATE
    spoiled = torch.where(torch.arange(61)[:, None] < 30, torch.nan, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trained(rank, private=(spoiled, y), epsilon=60.0)


@pytest.mark.filterwarnings("ignore::sidelight.errors.NotPrivateWarning")
def test_two_ranks_count_ignored_records_as_one_does() -> None:
    alone = counted(0)
    first, second = values(on_ranks(counted))
    found = alone[2][-1]["health_check"]
    assert found["ignored"][0] < 30 < found["ignored"][1]
    assert first[2][-1]["health_check"] == second[2][-1]["health_check"] == found
    assert first[3] == alone[3] == 5 and second[3] == 0, "noise is drawn once, by rank 0"
