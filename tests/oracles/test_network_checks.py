"""What the network oracle does before it reads a record, and with records that the model cannot take."""

import os
from typing import Any

import pytest
import torch
from tests.oracles.networks import expected, gradients, private_sum, squared_error
from torch import Tensor, nn

from sidelight.clipping import Projection
from sidelight.deep.per_example import per_example
from sidelight.errors import AssumptionError
from sidelight.methods.parts import Flat
from sidelight.oracles.network import gradient_check
from sidelight.oracles.network.network_oracle import NetworkOracle


class Apart(nn.Module):
    """Subtracts the mean of its batch, in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training else x


def entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def labeled(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 5, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


def test_a_model_that_was_refused_is_refused_again() -> None:
    oracle = NetworkOracle(nn.Sequential(Apart(), nn.Linear(5, 2)), squared_error)
    for _ in range(3):
        with pytest.raises(AssumptionError, match="depends"):
            private_sum(oracle, (torch.ones(4, 5), torch.ones(4)), Flat(1.0))


def test_another_mode_is_checked_anew() -> None:
    model, batch = nn.Sequential(Apart(), nn.Linear(5, 2)), (torch.ones(4, 5), torch.ones(4))
    oracle = NetworkOracle(model.eval(), squared_error)
    private_sum(oracle, batch, Flat(1.0))
    model.train()
    with pytest.raises(AssumptionError, match="depends"):
        private_sum(oracle, batch, Flat(1.0))


def _printed(output: pytest.CaptureFixture[str]) -> set[float]:
    return set(map(float, output.readouterr().out.split()))


def _write(values: list[float]) -> None:
    """A list would be put back as it was, and what is printed or logged is withheld."""
    os.write(1, (" ".join(map(str, values)) + "\n").encode())


def test_the_check_shows_no_private_record_to_the_model(capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(Apart(), nn.Linear(5, 2)).eval()
    model.register_forward_pre_hook(lambda module, args: _write(args[0].flatten().tolist()))
    private = (torch.full((4, 5), 7.0), torch.full((4,), 7.0))
    NetworkOracle(model, squared_error).check(private)
    seen = _printed(capfd)
    assert seen and 7.0 not in seen
    public = (torch.tensor([[3.0], [4.0]]).expand(2, 5), torch.ones(2))
    NetworkOracle(model, squared_error, example=public).check(private)
    seen = _printed(capfd)
    assert {x for x in seen if abs(x) < 1e4} == {3.0, 4.0, -3000.0, -4000.0}  # of the trial, and hostile ones


def test_equal_rows_do_not_hide_that_records_are_mixed() -> None:
    """All public rows are the same, so their mean is any of them: others are invented."""
    model, same = nn.Sequential(Apart(), nn.Linear(5, 2)), (torch.ones(3, 5), torch.ones(3))
    for example in (same, (torch.ones(1, 5), torch.ones(1))):
        with pytest.raises(AssumptionError, match="depends"):
            NetworkOracle(model, squared_error, example=example).check(same)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_broadcasts_over_records_is_refused() -> None:
    """Outputs of shape (n, 1) and targets of shape (n,): MSELoss compares every output with every target."""
    loss = per_example(nn.MSELoss())
    oracle = NetworkOracle(nn.Linear(5, 1), loss)
    with pytest.raises(AssumptionError, match="depends"):
        oracle.check((torch.ones(4, 5), torch.ones(4)))
    with pytest.raises(AssumptionError, match="depends"):  # or a share of the batch
        NetworkOracle(nn.Linear(5, 1), lambda z, y: squared_error(z, y) / len(y)).check(
            (torch.ones(4, 5), torch.ones(4))
        )


class Largest(nn.Module):
    """In training, divides by the largest number of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().max() if self.training else x


@pytest.mark.parametrize("rows", [[1.0, 2.0], [2.0, 1.0]])
def test_a_record_that_another_overrules_is_found_in_either_place(rows: list[float]) -> None:
    example = (torch.tensor(rows)[:, None].expand(2, 5), torch.ones(2))
    oracle = NetworkOracle(nn.Sequential(Largest(), nn.Linear(5, 2)), squared_error, example=example)
    with pytest.raises(AssumptionError, match="depends"):
        oracle.check(example)


def test_the_check_leaves_the_random_state_alone() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Linear(5, 2))
    before = torch.get_rng_state()
    NetworkOracle(model, squared_error).check((torch.ones(4, 5), torch.ones(4)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("label", [17, -1])
def test_a_record_on_which_the_loss_fails_contributes_nothing(label: int) -> None:
    """cross_entropy would say "Target 17 is out of bounds": a private value, and that it exists."""
    oracle, (x, y) = NetworkOracle(classifier(), entropy), labeled(12)
    wrong = y.clone()
    wrong[[2, 7]] = label
    kept = torch.arange(12)[(torch.arange(12) != 2) & (torch.arange(12) != 7)]
    with pytest.raises(IndexError, match=str(label)):
        entropy(oracle.model(x), wrong)
    origin = torch.full((oracle.dimension,), 0.1).double()
    for metric in (None, Projection(torch.eye(oracle.dimension, 4).double())):
        want = private_sum(oracle, (x[kept], y[kept]), Flat(0.1), origin=origin, metric=metric)
        for micro_batch in (None, 1, 5):
            got = private_sum(
                oracle, (x, wrong), Flat(0.1), origin=origin, metric=metric, micro_batch=micro_batch
            )
            torch.testing.assert_close(got, want)
    nobody = private_sum(oracle, (x, torch.full_like(y, label)), Flat(0.1), origin=origin)
    assert not nobody.any()


def test_all_copies_of_a_failing_record_are_left_out() -> None:
    oracle, (x, y) = NetworkOracle(classifier(), entropy), labeled(12)
    wrong = y.clone()
    wrong[5] = 17  # the second copy of the third record
    kept = (torch.arange(12) != 4) & (torch.arange(12) != 5)
    want = private_sum(oracle, (x[kept], y[kept]), Flat(0.1), augmentations=2)
    torch.testing.assert_close(private_sum(oracle, (x, wrong), Flat(0.1), augmentations=2), want)


def test_a_word_that_is_not_in_the_table_contributes_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)).double()
    oracle, x = NetworkOracle(model, squared_error), torch.arange(24).view(8, 3) % 6
    y = torch.linspace(-1, 1, 8).double()
    want = private_sum(oracle, (x[1:], y[1:]), Flat(0.1))
    x[0, 1] = 99
    torch.testing.assert_close(private_sum(oracle, (x, y), Flat(0.1)), want)


def test_errors_that_tell_nothing_of_a_record_are_raised() -> None:
    oracle, batch = NetworkOracle(classifier(), entropy), labeled(6)
    oracle.check(batch)

    def full(outputs: Any, targets: Any) -> Tensor:
        raise MemoryError

    def allocator(outputs: Any, targets: Any) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    for loss, kind in ((full, MemoryError), (allocator, RuntimeError)):
        oracle.loss = loss
        with pytest.raises(kind):
            private_sum(oracle, batch, Flat(0.1))


def test_a_hook_that_is_put_on_a_weight_between_steps_is_refused() -> None:
    """A model that was not altered is not looked at again, but for what its state does not tell."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    oracle, batch = NetworkOracle(model, squared_error), (torch.randn(5, 3), torch.randn(5))
    oracle.clipped_sum(batch, clip=Flat(1.0), relation="add-or-remove-one")
    model[0].weight.register_hook(lambda gradient: None)
    with pytest.raises(AssumptionError, match="hook"):
        oracle.clipped_sum(batch, clip=Flat(1.0), relation="add-or-remove-one")


def test_lengths_of_gradients_are_taken_once_for_all_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each: a hundred parameters took longer than all passes of the examination."""
    taken: list[int] = []
    longest = gradient_check._longest

    def counted(gradients: Any) -> float:
        taken.append(len(gradients))
        return longest(gradients)

    monkeypatch.setattr(gradient_check, "_longest", counted)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(4, 4), nn.Tanh())))
    NetworkOracle(model, squared_error, pass_size=8).check((torch.randn(8, 3, 4), torch.randn(8)))
    assert taken and set(taken) == {16} and len(taken) < 32


@pytest.mark.parametrize("off, close", [(0.019, True), (0.021, False)])
def test_a_gradient_is_close_in_proportion_to_its_own_length(off: float, close: bool) -> None:
    expected = torch.ones(4)
    assert gradient_check._close(expected * (1 + off), expected, 0.0) == close
    assert gradient_check._close(expected * 2, expected, 1e4)  # rounding, beside one that is so much longer


def test_a_model_is_examined_once_before_the_first_sum() -> None:
    oracle, batch = NetworkOracle(classifier(), entropy), labeled(6)
    oracle.check(batch)
    route = oracle.route
    oracle.check_metric(None)
    private_sum(oracle, batch, Flat(1.0))
    assert oracle.route is route


class TimeToVector(nn.Module):
    """Time2Vec: bare parameters that are sliced along their own dimensions, beside the record."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5 * 7, 3)
        self.rate, self.shift = nn.Parameter(torch.randn(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        time = torch.linspace(0, 1, 5)[:, None] * self.rate + self.shift
        time = torch.cat([time[:, :1], time[:, 1:].sin()], dim=1)
        return self.head(torch.cat([x, time.expand(len(x), -1, -1)], dim=2).flatten(1))


def test_parameters_that_are_sliced_are_not_handed_out_by_row() -> None:
    torch.manual_seed(0)
    model = TimeToVector().double()
    x = torch.randn(6, 5, 4, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    found = private_sum(NetworkOracle(model, entropy, example=(x, y)), (x, y), Flat(1e6))
    wanted = torch.autograd.grad(entropy(model(x), y).sum(), list(model.parameters()))
    assert torch.allclose(found, torch.cat([g.reshape(-1) for g in wanted]), rtol=1e-6, atol=1e-9)


class Prototypes(nn.Module):
    """Scores by distances, of which PyTorch computes more than 25 in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.prototypes = nn.Linear(5, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.layer(x), self.prototypes)


@pytest.mark.parametrize("origin", [False, True])
def test_distances_to_prototypes_are_exact_by_layers_in_passes_of_any_size(origin: bool) -> None:
    torch.manual_seed(0)
    model, batch = Prototypes().double(), labeled(40)
    rows, oracle = gradients(model, entropy, batch), NetworkOracle(model, entropy)
    o = rows.mean(0) if origin else None
    for size in (8, 40, 64):
        got = private_sum(oracle, batch, Flat(0.3), origin=o, micro_batch=size)
        torch.testing.assert_close(got, expected(rows, Flat(0.3), o), rtol=1e-6, atol=1e-8)
        assert oracle.route.kind == "layers", oracle.route.reason
