"""Audits of networks see neighbors that differ in the number of records, in content and in failure.

The faults planted here are those of a careless oracle: passes of the whole batch, whose number follows from
the records, and a model that throws one coin a pass.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sidelight.audit import AuditResult, on_network, replay_neighbors
from sidelight.audit.networks import Network
from sidelight.audit.tape import FixedBatch
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.oracles.network.batches import Batch, call, row_count, take
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.release import BoundedSum

torch.set_num_threads(1)
MOVED = "one record moves a private sum at most by its declared sensitivity"
Passes = Callable[[list[str]], Iterator[list[int]]]


class LayerDrop(nn.Module):
    """Four layers, each skipped by a coin that is thrown once a pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(width, width) for _ in range(4)), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not (self.training and torch.rand([]) < 0.5):
                x = torch.tanh(layer(x))
        return self.head(x)


def layer_drop(width: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LayerDrop(width)


def audited(**more: Any) -> AuditResult:
    subject = on_network(dp_sgd(clip_norm=0.1), steps=1, model=layer_drop, **more)
    return replay_neighbors(subject, seeds=1)


# ---------------------------------------------------------------------------------------------------
# careless oracles: which places of a batch share a pass, and its coins. An empty pass was in vain.


def by_number(kinds: list[str]) -> Iterator[list[int]]:
    """One pass for up to 39 records, halves for more: the number of passes is a function of the batch."""
    places = list(range(len(kinds)))
    yield from [places] if len(kinds) < 40 else [places[:20], places[20:]]


def by_failure(kinds: list[str], places: list[int] | None = None) -> Iterator[list[int]]:
    """Halves after a failure, until the record that fails is alone."""
    places = list(range(len(kinds))) if places is None else places
    if not any(kinds[i] == "fails" for i in places):
        yield places
        return
    yield []
    middle = len(places) // 2
    if middle:
        yield from by_failure(kinds, places[:middle])
        yield from by_failure(kinds, places[middle:])


def without_nan(kinds: list[str]) -> Iterator[list[int]]:
    """A second pass, without the records whose gradient was not finite in the first."""
    if "not finite" in kinds:
        yield []
    yield list(range(len(kinds)))


def careless(passes: Passes) -> Any:
    """Σ clip(g_i), a gradient at a time; the records of a pass share their random numbers."""

    def clipped_sum(self: Any, batch: Batch, *, clip: Any, relation: Any, **_: Any) -> BoundedSum:
        total, coins = torch.zeros(self.dimension), torch.Generator().manual_seed(self.draw_seed())
        records = [take(batch, slice(i, i + 1)) for i in range(row_count(batch))]
        for places in passes([_kind(*record) for record in records]):
            coin = int(torch.randint(2**40, (), generator=coins))
            for i in places:
                total += _clipped(self, records[i], clip.bound, coin)
        return BoundedSum(total, sensitivity=clip.bound, relation=relation)

    return clipped_sum


def _kind(x: Tensor, y: Tensor) -> str:
    return "fails" if int(y) > 1 else "ordinary" if bool(x.isfinite().all()) else "not finite"


def _clipped(oracle: Any, record: Batch, bound: float, coin: int) -> Tensor:
    if _kind(*record) != "ordinary":
        return torch.zeros(oracle.dimension)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(coin)
        loss = oracle.loss(call(oracle.model, record[0]), record[1])
    grads = torch.autograd.grad(loss.sum(), oracle.parameters, allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(oracle.parameters, grads, strict=True)]
    row = torch.cat([part.reshape(-1) for part in parts])
    if not bool(row.isfinite().all()):
        return torch.zeros_like(row)
    return row * min(1.0, (1 - 1e-6) * bound / max(float(row.double().norm()), 1e-30))


# ---------------------------------------------------------------------------------------------------
# what is seen


def test_a_model_that_throws_one_coin_a_pass_is_safe_with_the_oracle() -> None:
    result = audited()
    assert result.passed and result.details["largest_share"] > 0.5, str(result)


@pytest.mark.parametrize("passes", [by_number, by_failure, without_nan])
def test_a_coin_of_a_pass_is_caught_where_records_decide_on_passes(
    passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NetworkOracle, "clipped_sum", careless(passes))
    result = audited()
    assert any(finding.promise == MOVED for finding in result.findings), str(result)


def test_a_record_that_is_only_filled_with_nan_hides_the_number_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why `joined` is there: at a fixed number of records the same fault is not to be seen."""
    monkeypatch.setattr(NetworkOracle, "clipped_sum", careless(by_number))
    monkeypatch.setattr(Network, "joined", lambda self: [])
    assert audited().passed


def test_the_careless_oracle_passes_with_a_model_without_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the coin that is caught above."""
    monkeypatch.setattr(NetworkOracle, "clipped_sum", careless(by_number))
    result = replay_neighbors(on_network(dp_sgd(clip_norm=0.1), steps=1), seeds=1)
    assert result.passed, str(result)


def test_an_error_about_a_record_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that does not exist: an oracle that lets the loss speak ends the run."""

    def loud(kinds: list[str]) -> Iterator[list[int]]:
        if "fails" in kinds:
            raise IndexError("Target 1000000 is out of bounds")
        yield list(range(len(kinds)))

    monkeypatch.setattr(NetworkOracle, "clipped_sum", careless(loud))
    result = replay_neighbors(on_network(dp_sgd(clip_norm=0.1), steps=1), seeds=1)
    assert any("ends well" in finding.promise for finding in result.findings), str(result)


def test_a_fixed_batch_has_the_record_last_or_not_at_all() -> None:
    assert FixedBatch(3, True).indices(5).tolist() == [0, 1, 2, 4, 3]
    assert FixedBatch(3, False).indices(5).tolist() == [0, 1, 2, 4]
    assert FixedBatch(0, True, 1).indices(5).tolist() == [1, 0]
    assert FixedBatch(0, False, 0).indices(5).tolist() == []


# ---------------------------------------------------------------------------------------------------
# persons with several rows


def test_whole_persons_are_neighbors() -> None:
    result = replay_neighbors(on_network(dp_sgd(clip_norm=0.1), steps=1, rows_per_person=3), seeds=1)
    assert result.passed and result.details["largest_share"] > 0.5, str(result)


def test_training_by_record_that_claims_persons_is_caught() -> None:
    """Twenty rows, each clipped by itself, move a sum by up to twenty times what is claimed."""
    subject = on_network(dp_sgd(clip_norm=0.1), steps=1, rows_per_person=20, protects="record")
    result = replay_neighbors(subject, seeds=1)
    assert any(finding.promise == MOVED for finding in result.findings), str(result)
    assert result.details["largest_share"] > 10
