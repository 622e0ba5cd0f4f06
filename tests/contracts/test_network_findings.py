"""Networks that once broke a guarantee: each finding is a test of its own."""

import warnings
from typing import Any

import pytest
import torch
from tests.contracts.finding_networks import SCENES, Scene, entropy, mlp, vectors
from tests.contracts.network_outcomes import outcome_of, sum_of
from torch import Tensor, nn

from sidelight.audit.replay import largest_share
from sidelight.audit.tape import Tape, listening
from sidelight.deep import Loading, Trainer
from sidelight.errors import NotPrivateWarning, PrivacyWarning, SidelightError
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.oracles.network.network_oracle import NetworkOracle


@pytest.mark.parametrize("scene", [pytest.param(s, id=f"{s.number}, {name}") for name, s in SCENES.items()])
def test_a_known_hole_stays_closed(scene: Scene) -> None:
    outcome = outcome_of(scene.make())
    assert outcome.verdict in scene.allowed, str(outcome)


@pytest.mark.parametrize("content", [float("nan"), float("inf"), 1e38, "failing"])
def test_a_broken_record_does_not_make_others_draw_again(content: Any) -> None:
    """Finding 14. From one seed, with and without a gradient of the last record: the others' masks stay."""
    model = nn.Sequential(nn.Dropout(0.5), mlp()).train()
    oracle, (x, y) = NetworkOracle(model, entropy), vectors(24)
    whole, broken = sum_of(oracle, (x, y), 0.1), (x.clone(), y.clone())
    if content == "failing":
        broken[1][-1] = 17
    else:
        broken[0][-1] = content
    moved = float((sum_of(oracle, broken, 0.1) - whole).norm()) / 0.1
    assert moved <= 2.001, f"the sum moved by {moved:.3g} C"


class Breaks(nn.Module):
    """Fails in every pass, from some time on: a lost file, a lost device."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.broken = mlp(), False

    def forward(self, x: Tensor) -> Tensor:
        if self.broken:
            raise OSError("the tokenizer's file is gone")
        return self.body(x)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_what_fails_for_everybody_is_said_and_not_taken_for_bad_records(size: int) -> None:
    model = Breaks()
    oracle, batch = NetworkOracle(model, entropy), vectors(size)
    oracle.check(batch)
    model.broken = True
    with pytest.raises(SidelightError) as failed:
        sum_of(oracle, batch, 1.0)
    assert "\n" not in str(failed.value)


def test_a_batch_of_failing_records_is_silent() -> None:
    """The counterpart: only records fail, so nothing may be said of it."""
    oracle, (x, y) = NetworkOracle(mlp(), entropy), vectors(3)
    assert not sum_of(oracle, (x, torch.full_like(y, 17)), 1.0).any()


class Ragged(torch.utils.data.Dataset[Any]):
    """Sentences of different lengths; that of one record is given."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x = 2 + torch.randn(
            self.length if i == 3 else 1 + i % 4, 5, generator=torch.Generator().manual_seed(i)
        )
        return x, torch.tensor(0)  # all pull in one direction


def longest(items: list[Any]) -> tuple[Tensor, Tensor]:
    x = nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True)
    return x, torch.stack([y for _, y in items])


class OverAll(nn.Module):
    """A mean over all positions, padding included."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1)


@pytest.mark.parametrize("workers", [0, 1])
def test_padding_to_the_longest_of_a_batch_does_not_change_the_others(workers: int) -> None:
    """Finding 16. One long record would change the mean of every other one; refusing is allowed as well."""
    tapes: list[Tape] = []
    for length in (2, 40):
        trainer = Trainer(
            OverAll(), entropy, method=dp_sgd(clip_norm=1.0), epsilon=1, delta=1e-5, steps=1, random_state=1,
            expected_batch_size=None, progress=False, loading=Loading(collate=longest, workers=workers),
        )  # fmt: skip
        with listening(like=tapes[0] if tapes else None) as tape, warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            warnings.simplefilter("ignore", NotPrivateWarning)
            try:
                trainer.fit(Ragged(length))
            except SidelightError as error:
                assert "\n" not in str(error)
                return
        tapes.append(tape)
    assert largest_share(*tapes) <= 2 * (1 + 1e-6), "a longer record moves the others"
