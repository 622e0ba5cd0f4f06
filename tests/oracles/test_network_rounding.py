"""No clipped record is longer than its bound: checked in float64 on the very numbers that are added up."""

import itertools
from collections.abc import Callable

import pytest
import torch
from tests.oracles.networks import private_sum, squared_error
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from sidelight.clipping import Clip, Diagonal, Projection
from sidelight.deep.per_example import per_example
from sidelight.methods.parts import Automatic, Flat
from sidelight.oracles.network import pieces
from sidelight.oracles.network.flat import RunningSum, _Norms, _Projected
from sidelight.oracles.network.module_calls import Computed
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.normed_pieces import TangentOuter
from sidelight.oracles.network.passes import records_a_pass
from sidelight.oracles.network.pieces import ClipCenter, Convolution, Outer, Piece, Rows, Sparse, Squares
from sidelight.oracles.network.shared_pieces import Sum


def exact(piece: Piece) -> Tensor:
    """The rows of a piece, from the same numbers, in float64."""
    if isinstance(piece, Sum):
        return torch.stack([exact(part) for part in piece.pieces]).sum(0)
    if isinstance(piece, Convolution):
        parts = piece.slopes.double(), piece.image.double(), piece.shape, piece.move, piece.count
        return Convolution(*parts).rows(0, piece.count)
    if isinstance(piece, TangentOuter):
        return TangentOuter(piece.left.double(), piece.right.double(), piece.unit.double()).rows(
            0, piece.count
        )
    if isinstance(piece, Outer):
        return Outer(piece.left.double(), piece.right.double(), piece.shape).rows(0, piece.count)
    assert isinstance(piece, Rows | Sparse | Computed)
    return piece.rows(0, piece.count).double()


def longest(
    oracle: NetworkOracle,
    batch: tuple[Tensor, Tensor],
    clip: Clip,
    origin: Tensor | None,
    patch: pytest.MonkeyPatch,
    metric: Diagonal | Projection | None = None,
) -> float:
    """max_i ‖c_i·M(g_i − o)‖ / bound, of the factors and the pieces that the oracle really sums."""
    found = []
    add, add_projected = _Norms.add, _Projected.add

    def spy(self: _Norms, factors: Tensor, total: RunningSum) -> None:
        squares = torch.zeros(len(factors), dtype=torch.float64)
        for parameter, piece in self._pieces:
            start = self._question.around[parameter].origin
            scale = self._question.around[parameter].scale
            rows = exact(piece) - (0 if start is None else start.double().flatten())
            rows = rows if scale is None else rows * scale.double().flatten()
            squares += rows.square().sum(1)
        found.append(float((factors.double() * squares.sqrt()).max()) / clip.bound)
        add(self, factors, total)

    def spy_projected(self: _Projected, factors: Tensor, total: RunningSum) -> None:
        found.append(float((factors.double() * self._values.norm(dim=1)).max()) / clip.bound)
        add_projected(self, factors, total)

    with patch.context() as context:
        context.setattr(_Norms, "add", spy)
        context.setattr(_Projected, "add", spy_projected)
        private_sum(oracle, batch, clip, origin=origin, metric=metric)
    return max(found)


class Tied(nn.Module):
    def __init__(self, words: int = 50) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, 8), nn.Linear(8, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x)))  # type: ignore[no-any-return]


class Twice(nn.Module):
    """The same layer two times: pieces that are added up."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "Linear": (lambda: nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 3)), torch.randn(16, 60)),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Linear(60, 40)), nn.ReLU(), nn.Linear(40, 3)),
        torch.randn(16, 60),
    ),
    "Linear-sequence": (
        lambda: nn.Sequential(nn.Linear(60, 40), nn.Tanh(), nn.Linear(40, 30)),
        torch.randn(16, 9, 60),
    ),
    "Conv2d-gram": (lambda: nn.Sequential(nn.Conv2d(8, 30, 3)), torch.randn(16, 8, 5, 5)),
    "Conv2d-transient": (lambda: nn.Sequential(nn.Conv2d(8, 9, 3, padding=1)), torch.randn(16, 8, 5, 5)),
    "Conv2d-rows": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3)), torch.randn(16, 2, 12, 12)),
    "Tied": (Tied, torch.randint(0, 50, (16, 6))),
    "LSTM": (lambda: nn.LSTM(20, 12, batch_first=True), torch.randn(16, 5, 20)),
    "LayerNorm": (lambda: nn.Sequential(nn.LayerNorm(60), nn.Linear(60, 3)), torch.randn(16, 60)),
    "Embedding": (lambda: nn.Sequential(nn.Embedding(50, 8), nn.Tanh()), torch.randint(0, 50, (16, 6))),
    "Conv1d-twice": (lambda: Twice(nn.Conv1d(6, 6, 3, padding=1)), torch.randn(16, 6, 7)),
    "attention": (
        lambda: nn.TransformerEncoderLayer(12, 2, 20, dropout=0.0, batch_first=True),
        torch.randn(16, 5, 12),
    ),
    "fallback": (lambda: nn.Sequential(nn.Linear(30, 9), nn.PReLU(9)), torch.randn(16, 30)),
}


def one_gradient(oracle: NetworkOracle, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The gradient of the first record, as the oracle computes it."""
    return private_sum(oracle, (batch[0][:1], batch[1][:1]), Flat(1e30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_no_clipped_record_is_longer_than_the_bound(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    build, x = MODELS[name]
    model = build().to(dtype)
    batch = (x.to(dtype) if x.is_floating_point() else x, torch.randn(len(x)).to(dtype))
    oracle = NetworkOracle(model, squared_error)
    near = one_gradient(oracle, batch)
    size = float(near.double().norm())
    for origin in (None, near, 0.999 * near, 1e4 * torch.randn_like(near)):
        for clip in (Flat(size), Flat(1e-3 * size), Flat(1e-9 * size), Automatic(1.0, 1e-6 * size)):
            assert longest(oracle, batch, clip, origin, monkeypatch) <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_no_clipped_record_is_longer_than_the_bound_under_a_metric(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    build, x = MODELS[name]
    model = build().to(dtype)
    batch = (x.to(dtype) if x.is_floating_point() else x, torch.randn(len(x)).to(dtype))
    oracle = NetworkOracle(model, squared_error)
    near = one_gradient(oracle, batch)
    size = float(near.double().norm())
    scale = torch.logspace(-4, 4, near.numel())[torch.randperm(near.numel())]  # as AdaDPS: 1/√v
    basis = torch.linalg.qr(torch.randn(near.numel(), 3, dtype=torch.float64))[0]
    for metric in (Diagonal(scale), Projection(basis)):
        for origin in (None, near, 1e3 * torch.randn_like(near)):
            for clip in (Flat(size), Flat(1e-7 * size)):
                assert longest(oracle, batch, clip, origin, monkeypatch, metric) <= 1.0


@pytest.mark.parametrize("name", ["Linear", "Linear-sequence", "Conv2d-gram", "Tied"])
def test_contract_catches_norms_without_slack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with norms taken as they come out of the difference of squares."""
    build, x = MODELS[name]
    right = _Norms.squares

    def bare(self: _Norms) -> Squares:
        found = right(self)
        return found._replace(slack=torch.zeros_like(found.slack))

    monkeypatch.setattr(_Norms, "squares", bare)
    found = 0.0
    for seed in range(60):  # how a sum rounds differs between machines
        if found > 1.0:
            break
        torch.manual_seed(seed)
        batch = (x, torch.randn(len(x)))
        oracle = NetworkOracle(build(), squared_error)
        near = one_gradient(oracle, batch)
        found = max(
            found, longest(oracle, batch, Flat(1e-9 * float(near.norm())), 0.999999 * near, monkeypatch)
        )
    assert found > 1.0


def test_a_gradient_along_a_normed_weight_is_no_longer_than_its_norm_says() -> None:
    """Nearly all of it is taken away, so that little but rounding is left."""
    torch.manual_seed(0)
    unit = functional.normalize(torch.randn(1, 64), dim=1)
    piece = TangentOuter(torch.randn(5, 40), 1e3 * unit + 1e-4 * torch.randn(5, 64), unit.expand(40, 64))
    norms = piece.squares(ClipCenter()).roots()
    assert (exact(piece).norm(dim=1) < 0.01 * norms).all()  # what is left is far below what can be told
    for factors in torch.diag(1 / norms):
        total = torch.zeros(40, 64)
        piece.add_weighted(factors, total)
        assert total.norm() <= 1


def test_slack_costs_next_to_nothing_away_from_the_origin() -> None:
    torch.manual_seed(0)
    large = {
        "Tied": (lambda: Tied(3000), torch.randint(0, 3000, (4, 20))),
        "Linear": (lambda: nn.Sequential(nn.Linear(3000, 300), nn.Linear(300, 3000)), torch.randn(4, 3000)),
    }
    for build, x in (*MODELS.values(), *large.values()):
        oracle, batch = NetworkOracle(build(), squared_error), (x, torch.randn(len(x)))
        exact_oracle = NetworkOracle(oracle.model.double(), squared_error)
        wide = (x.double() if x.is_floating_point() else x, batch[1].double())
        origin = exact_oracle.mean_gradient(wide)
        true = exact_oracle.norms(wide, origin=origin)
        oracle.model.float()
        assert (oracle.norms(batch, origin=origin) / true - 1).abs().max() < 1e-3


def test_a_sum_around_a_large_origin_keeps_one_record_visible() -> None:
    """Σ c·g is 10⁹ times what is left of it: in float32 the record would drown in the rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 3))
    oracle, batch = NetworkOracle(model, squared_error), (torch.randn(16, 60), torch.randn(16))
    origin = 1e5 * torch.randn(oracle.dimension)
    whole = private_sum(oracle, batch, Flat(1.0), origin=origin)
    less = private_sum(oracle, (batch[0][1:], batch[1][1:]), Flat(1.0), origin=origin)
    assert float((whole - less).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("clip", [Flat(1.0), Automatic(1.0, 0.01)], ids=["flat", "automatic"])
def test_an_inner_product_that_overflows_is_no_short_norm(clip: Clip, sign: int) -> None:
    """‖g‖² − 2⟨g, o⟩ + ‖o‖² is −∞ for a record of 3·10¹⁸: it was taken for 0, and not clipped."""
    torch.manual_seed(0)
    oracle = NetworkOracle(nn.Linear(8, 8, bias=False), lambda outputs, y: (outputs - y).square().sum(1))
    x, y, origin = torch.randn(4, 8), torch.zeros(4, 8), torch.full((64,), 10.0 * sign)
    x[3] = 3e18
    whole = private_sum(oracle, (x, y), clip, origin=origin)
    less = private_sum(oracle, (x[:3], y[:3]), clip, origin=origin)
    assert float((whole - less).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_record_at_an_origin_of_any_length_stays_within_the_bound(dtype: torch.dtype) -> None:
    """Σ c·g − (Σ c)·o of numbers that are 10¹⁷ times C: not even float64 holds their difference."""
    oracle = NetworkOracle(nn.Linear(2, 2, bias=False).to(dtype), lambda outputs, y: outputs.sum(1) * y)
    x, y = torch.ones(7, 2, dtype=dtype), torch.full((7,), -1e17, dtype=dtype)
    y[6] = 1e17
    origin = oracle.mean_gradient((x[6:], y[6:]))
    whole = private_sum(oracle, (x, y), Flat(1.0), origin=origin)
    less = private_sum(oracle, (x[:6], y[:6]), Flat(1.0), origin=origin)
    assert float((whole - less).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("small", [0.0, 1e-36])
def test_what_overflows_before_it_is_scaled_does_not_spoil_the_sum(small: float) -> None:
    oracle = NetworkOracle(nn.LayerNorm(4), lambda outputs, y: (outputs * y).sum(1))
    x, y = torch.tensor([[-1.0, 1, -1, 1]] * 2), torch.full((2, 4), 1e-3)
    y[:, 0] = 3e38  # each of the two is finite, their sum is not
    scale = torch.tensor([small, 1, 1, 1, small, 1, 1, 1])
    found = private_sum(oracle, (x, y), Flat(1000.0), metric=Diagonal(scale))
    assert float(found.norm()) <= 2000


def test_growth_covers_the_worst_order_of_a_sum() -> None:
    values = torch.full((1, 4096), 0.1)
    total = torch.zeros(())
    for value in values[0]:
        total = total + value * value
    error = abs(float(total.double() - values.double().square().sum()))
    assert error <= pieces.growth(4096, torch.float32) * float(values.double().square().sum())
    assert pieces.growth(2**25, torch.float32) == float("inf")
    assert pieces.ClipCenter.at(None, None).length == 0.0


class Weighed(nn.Module):
    """⟨w, x⟩: the gradient of a record is its row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(1, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(torch.ones_like(x[:, :1])) * x).sum(1)  # type: ignore[no-any-return]


def rows_sum(oracle: NetworkOracle, x: Tensor, clip: Clip, **options: object) -> Tensor:
    return private_sum(oracle, (x, torch.zeros(len(x))), clip, **options).double()


def as_it_is(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs


@pytest.mark.parametrize("length", [1e-3, 1.0])
def test_a_normalized_record_near_a_short_origin_does_not_round_the_others(length: float) -> None:
    """Its factor is 2²⁰ C/‖o‖, so Σ c·g is as large; 1.7 to 2 C where C was declared, in float32."""
    generator = torch.Generator().manual_seed(0)
    origin, others = torch.randn(100, generator=generator), torch.randn(4000, 100, generator=generator)
    origin *= length / origin.norm()
    others *= 3 * length / others.norm(dim=1, keepdim=True)
    oracle, clip = NetworkOracle(Weighed(100), as_it_is), Automatic(1.0, 0.0)
    one = torch.cat([(1 + 2.0**-20) * origin[None], others])
    moved = rows_sum(oracle, one, clip, origin=origin) - rows_sum(oracle, others, clip, origin=origin)
    assert float(moved.norm()) <= 1.001


def first_output(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs[:, 0]


def test_where_passes_end_does_not_decide_how_a_long_sum_is_rounded() -> None:
    """One record in front moves the end of every pass. Of these records each pass of the whole sum ends just
    above half a unit in the last place, and without the first record at a whole one: 3 C in float32."""
    size, passes = 512, 585  # up to 2¹⁸
    table = torch.full((passes, size), 0.875)
    more = 2.0**-7 + 2.0**-10  # half of a unit in the last place from 2¹⁷ to 2¹⁸, and a little
    table[::2, 0] += more
    table[1::2, 500] += more
    x = torch.cat([table.reshape(-1, 1), torch.zeros(passes * size, 15)], 1)
    oracle = NetworkOracle(nn.Linear(16, 16, bias=False), first_output, pass_size=size)
    moved = rows_sum(oracle, x, Flat(1.0)) - rows_sum(oracle, x[1:], Flat(1.0))
    assert float(moved.norm()) <= 1.02  # the whole is rounded to float32 once


@pytest.mark.parametrize("records", [5, 8, 21, 300, 2000, 5000, 10_300])
def test_a_place_at_the_end_of_a_pass_does_not_change_the_last_bit_of_a_score(records: int) -> None:
    """Kernels take the rows left over at the end in another order. Of passes of 498 rows the 497th had
    another last bit; records at the kink of a loss there moved the sum by 19 C when one came in front."""
    generator, size = torch.Generator().manual_seed(0), records_a_pass(records)
    layer = nn.Linear(300, 1, bias=False)
    for _ in range(20):
        row = torch.randn(1, 300, generator=generator)
        assert len(layer(row.repeat(size, 1)).unique()) == 1


@pytest.mark.parametrize("size", [4, 8, 20, 32, 96, 512])
def test_a_place_in_a_pass_does_not_change_a_bit_of_a_row(size: int) -> None:
    """Without MKL_CBWR, layers of 4 to 16 outputs and 5, 7 or 30 inputs had others on some processors."""
    generator = torch.Generator().manual_seed(0)
    changed = []
    for inputs, outputs in itertools.product(
        (1, 5, 7, 8, 13, 30, 33, 64, 300), (1, 2, 4, 5, 8, 10, 16, 33, 64)
    ):
        weight = torch.randn(outputs, inputs, generator=generator)
        row, slope = (torch.randn(1, n, generator=generator).repeat(size, 1) for n in (inputs, outputs))
        for found in (torch.nn.functional.linear(row, weight), slope @ weight):
            if not torch.equal(found, found[:1].expand_as(found)):
                changed.append((inputs, outputs))
    assert not changed


@pytest.mark.parametrize(
    "name", ["softplus", "sigmoid", "elu", "gelu", "silu", "mish", "tanh", "log_softmax"]
)
def test_a_place_in_a_pass_does_not_change_a_bit_of_an_activation(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for size, width in itertools.product((32, 96), (1, 3, 7, 10, 33)):
        row = torch.randn(1, width, generator=generator).repeat(size, 1)
        found = getattr(torch.nn.functional, name)(row, **({"dim": 1} if "softmax" in name else {}))
        assert torch.equal(found, found[:1].expand_as(found))


@pytest.mark.parametrize(
    ("count", "bound", "spread"), [(667, 0.1, 0.01), (2003, 0.3, 0.01), (8192, 0.3, 1.0)]
)
@pytest.mark.parametrize("layers", [(512, 480), (512, 544)], ids=["narrow", "wide"])
def test_a_record_that_contributes_nothing_moves_no_sum(
    layers: tuple[int, int], count: int, bound: float, spread: float
) -> None:
    """One more record must not send the others another way, whose norms are rounded more or less."""
    (width, hidden), source = layers, torch.Generator().manual_seed(5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 4))
    ours = NetworkOracle(model, per_example(nn.CrossEntropyLoss()), pass_size=512)
    center = torch.randn(1, width, generator=source)
    public = center + spread * torch.randn(192, width, generator=source)
    origin = ours.mean_gradient((public, torch.zeros(192, dtype=torch.long)))
    x = (center + 0.05 * torch.randn(1, width, generator=source)).expand(count + 1, width)
    y = torch.zeros(count + 1, dtype=torch.long)
    y[-1] = 4  # no such class
    before = private_sum(ours, (x[:-1], y[:-1]), Flat(bound), origin=origin).double().clone()
    after = private_sum(ours, (x, y), Flat(bound), origin=origin).double()
    assert float((after - before).norm()) <= 0.02 * bound
