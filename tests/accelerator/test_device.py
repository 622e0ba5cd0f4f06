"""Private training where the model is: exact sums, neighbors, noise, whole fits (`make test-cuda`).

On the processor the same tests run with all others, so that they are right where an accelerator is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.models import Transformer, WideBlock, next_token  # noqa: E402
from tests.accelerator.device import device  # noqa: E402
from tests.deep.networks import blobs, mlp, vector  # noqa: E402
from tests.deep.test_checkpoints import Cut, cut_after, make  # noqa: E402
from tests.oracles.networks import (  # noqa: E402
    assert_neighbors_are_near,
    expected,
    gradients,
    private_sum,
    squared_error,
)
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sidelight import AssumptionError, Ledger, PrivateStep, Trainer  # noqa: E402
from sidelight.clipping import Diagonal, Projection  # noqa: E402
from sidelight.methods.parts import Automatic, Flat  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402
from sidelight.privacy.noise import Noise  # noqa: E402

SINCE_2_9 = hasattr(torch.backends.cuda.matmul, "fp32_precision")
PRETEND = device().type not in ("cpu", "cuda")


class Bare(nn.Module):
    """Parameters that belong to no layer: the slower route."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.randn(5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scale)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = (
            nn.Embedding(9, 4),
            nn.LSTM(4, 5, batch_first=True),
            nn.Linear(5, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0][:, -1])


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    loss: Callable[..., Tensor] = squared_error
    tokens: bool = False

    def targets(self) -> Tensor:
        return torch.randint(0, 11, (7, 4)) if self.tokens else torch.randn(7)


CASES = {
    "layers": Case(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Dropout(0.0), nn.Linear(6, 3)),
        lambda: torch.randn(7, 5),
    ),
    "bare": Case(Bare, lambda: torch.randn(7, 5)),
    "embedding and LSTM": Case(Recurrent, lambda: torch.randint(0, 9, (7, 4))),
    "language model": Case(  # moving a model to the stand-in unties its weights; to CUDA it does not
        lambda: Transformer(11, 8, 2, 1, 4, classes=0, tied=not PRETEND),
        lambda: torch.randint(0, 11, (7, 4)), next_token, tokens=True,
    ),
    "convolutions": Case(
        lambda: nn.Sequential(WideBlock(16, 16, 1), nn.Flatten(), nn.Linear(256, 2)),
        lambda: torch.randn(7, 16, 4, 4),
    ),
}  # fmt: skip
HERE = [name for name in CASES if not (PRETEND and name in ("convolutions", "embedding and LSTM"))]


def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    case = CASES[name]
    model, inputs, targets = case.build().to(dtype), case.inputs(), case.targets()
    return model, tuple(x.to(dtype) if x.is_floating_point() else x for x in (inputs, targets))  # type: ignore[return-value]


def there(batch: Any) -> Any:
    return tuple(x.to(device()) for x in batch)


BY_NAME = [torch.backends.cuda.matmul, torch.backends.mkldnn] if SINCE_2_9 else []


@pytest.fixture(params=["flags", "names"] if SINCE_2_9 else ["flags"])
def fast_products(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a user may have asked of PyTorch: products of ten bits, as asked for before 2.9 and since."""
    if request.param == "flags":
        torch.set_float32_matmul_precision("high")
        yield
        torch.set_float32_matmul_precision("highest")
        return
    before = [(one, one.fp32_precision) for one in BY_NAME]
    for one in BY_NAME:
        one.fp32_precision = "tf32"
    yield
    for one, precision in before:
        one.fp32_precision = precision


@pytest.mark.parametrize("clip", [Flat(0.7), Automatic(1.0, 0.1)], ids=["flat", "automatic"])
@pytest.mark.parametrize("name", HERE)
def test_a_clipped_sum_is_that_of_gradients_taken_one_by_one(name: str, clip: Any) -> None:
    model, batch = made(name, torch.float64)
    rows = gradients(copy.deepcopy(model), CASES[name].loss, batch)  # on the processor
    oracle, p = NetworkOracle(model.to(device()), CASES[name].loss), rows.shape[1]
    origin, scale = rows.mean(0), torch.linspace(0.1, 1.5, p, dtype=rows.dtype)
    basis = torch.linalg.qr(torch.randn(p, 3, dtype=rows.dtype))[0]
    questions: list[tuple[dict[str, Any], Tensor]] = [
        ({}, expected(rows, clip)),
        ({"origin": origin}, expected(rows, clip, origin)),
        ({"origin": origin, "metric": Diagonal(scale)}, expected(rows, clip, origin, scale)),
        ({"metric": Projection(basis)}, expected(rows @ basis, clip)),
    ]
    for options, want in questions:
        for micro_batch in (None, 2):
            got = private_sum(oracle, there(batch), clip, micro_batch=micro_batch, **options)
            assert got.device.type == device().type
            torch.testing.assert_close(got.cpu(), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", HERE)
def test_a_record_moves_the_sum_by_its_bound_at_most(name: str, fast_products: None) -> None:
    model, batch = made(name, torch.float32)
    oracle = NetworkOracle(model.to(device()), CASES[name].loss)
    assert_neighbors_are_near(
        lambda some: private_sum(oracle, there(some), Flat(1e-3)).cpu().double(), batch, 1e-3 * (1 + 1e-5)
    )


def test_the_check_of_neighbors_sees_a_clip_that_is_too_long() -> None:
    class TooLong(Flat):
        def factors(self, norms: Any) -> Any:
            return 2 * super().factors(norms)

    model, batch = made("layers", torch.float32)
    oracle = NetworkOracle(model.to(device()), squared_error)
    with pytest.raises(AssertionError, match="moves the sum"):
        assert_neighbors_are_near(
            lambda some: private_sum(oracle, there(some), TooLong(1e-3)).cpu().double(), batch, 1e-3
        )


def test_single_precision_holds_under_fast_products(fast_products: None) -> None:
    model, batch = made("layers", torch.float32)
    want = expected(gradients(copy.deepcopy(model).double(), squared_error,
                              (batch[0].double(), batch[1].double())), Flat(0.7))  # fmt: skip
    got = private_sum(NetworkOracle(model.to(device()), squared_error), there(batch), Flat(0.7))
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-3, atol=1e-3)


def test_a_record_that_is_no_number_contributes_nothing() -> None:
    model, (x, y) = made("layers", torch.float64)
    oracle = NetworkOracle(model.to(device()), squared_error)
    spoiled = x.clone()
    spoiled[3] = math.nan
    others = [i for i in range(7) if i != 3]
    with_it = private_sum(oracle, there((spoiled, y)), Flat(0.7))
    without = private_sum(oracle, there((x[others], y[others])), Flat(0.7))
    torch.testing.assert_close(with_it, without, rtol=1e-12, atol=1e-12)


def test_noise_is_drawn_in_the_type_and_on_the_device_of_the_sum() -> None:
    for dtype in (torch.float32, torch.float64):
        like = torch.zeros(20_000, dtype=dtype, device=device())
        drawn = Noise().normal_like(like, std=2.0)
        assert drawn.device == like.device and drawn.dtype == dtype
        assert 1.9 < float(drawn.std()) < 2.1


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).to(device())


PRIVATE, PUBLIC = blobs(600, 1), blobs(60, 2)
METHODS = ["dope_sgd"] + ["dp_sgd", "ppsgd", "dpmd", "adamix", "coupling"] * (device().type != "cpu")


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_learns_where_the_model_is_and_is_charged(method: str) -> None:
    book = Ledger.in_memory()
    book.register("blobs", relation="add-or-remove-one", epsilon=8.0, delta=1e-5)
    trainer = Trainer(network(), nn.CrossEntropyLoss(), method=method, epsilon=8.0, delta=1e-5,
                      relation="add-or-remove-one", ledger=book, dataset="blobs")  # fmt: skip
    trainer.fit(TensorDataset(*PRIVATE), TensorDataset(*PUBLIC))
    assert all(p.device.type == device().type for p in trainer.model.parameters())
    x, y = there(blobs(300, 3))
    assert float((trainer.model(x).argmax(1) == y).double().mean()) > 0.6
    assert len(book.charges("blobs")) == 1 and trainer.privacy_.epsilon <= 8.0


def test_a_loop_of_ones_own_takes_batches_of_the_device() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = PrivateStep(model, nn.CrossEntropyLoss(), method="dp_sgd", noise_multiplier=1.0,
                       n_private=600, expected_batch_size=100)  # fmt: skip
    x, y = there(PRIVATE)
    for _ in range(3):
        drawn = torch.from_numpy(step.sample()).to(device())
        step((x[drawn], y[drawn]))
        optimizer.step()
    assert all(p.grad is not None and p.grad.device.type == device().type for p in model.parameters())


def test_a_run_that_is_continued_ends_as_one_that_was_not(tmp_path: Path) -> None:
    straight = make(mlp().to(device()), None).fit(TensorDataset(*PRIVATE))
    with pytest.raises(Cut):
        make(mlp().to(device()), tmp_path, optimizer=cut_after(4)).fit(TensorDataset(*PRIVATE))
    resumed = make(mlp(seed=9).to(device()), tmp_path).fit(TensorDataset(*PRIVATE), resume=True)
    torch.testing.assert_close(vector(resumed.model), vector(straight.model), rtol=1e-5, atol=1e-5)
    assert resumed.privacy_ == straight.privacy_


def test_a_model_that_mixes_records_is_refused_before_the_charge() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(device())
    book = Ledger.in_memory()
    book.register("blobs", relation="add-or-remove-one", epsilon=8.0, delta=1e-5)
    trainer = Trainer(model, nn.CrossEntropyLoss(), method="dp_sgd", epsilon=1.0, delta=1e-5,
                      relation="add-or-remove-one", ledger=book, dataset="blobs")  # fmt: skip
    with pytest.raises(AssumptionError, match="BatchNorm"):
        trainer.fit(TensorDataset(*PRIVATE))
    assert book.charges("blobs") == []
