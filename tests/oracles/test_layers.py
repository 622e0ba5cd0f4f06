"""Every layer rule against torch.func, in float64."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tests.oracles.networks import assert_sums_agree, expected, gradients, private_sum, squared_error
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from sidelight.deep.batch_norm import replace_batch_norm
from sidelight.errors import AssumptionError
from sidelight.methods.parts import Automatic, Flat
from sidelight.oracles.network import layers
from sidelight.oracles.network.layers import Use, rule_for
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.normed_pieces import TangentOuter
from sidelight.oracles.network.pieces import (
    ClipCenter,
    Convolution,
    Outer,
    Piece,
    Rows,
    Sparse,
    WindowGeometry,
)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def whole(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(7))


def chain(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


def of_fixed_length(layer: nn.Module) -> nn.Module:
    normed: Any = weight_norm(layer)
    normed.parametrizations.weight.original0.requires_grad_(False)
    return cast("nn.Module", normed)


def convolutions() -> dict[str, tuple[Callable[[], nn.Module], Tensor]]:
    shapes: dict[Any, tuple[int, ...]] = {nn.Conv1d: (9,), nn.Conv2d: (7, 6), nn.Conv3d: (5, 4, 5)}
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "stride": {"stride": 2},
        "padding": {"padding": 1, "bias": False},
        "same": {"padding": "same", "kernel_size": 4, "dilation": 2},
        "dilation": {"dilation": 2, "padding": 2},
        "groups": {"groups": 2, "stride": 2, "padding": 1},
        "depthwise": {"groups": 4},
        "circular": {"padding": 1, "padding_mode": "circular"},
        "reflect": {"padding": 1, "padding_mode": "reflect", "stride": 2},
        "replicate": {"padding": "same", "padding_mode": "replicate"},
    }
    cases = {}
    for kind, shape in shapes.items():
        for name, option in options.items():
            arguments = {"kernel_size": 3, **option}
            build = lambda kind=kind, arguments=arguments: chain(kind(4, 8, **arguments), nn.Tanh())  # noqa: E731
            cases[f"{kind.__name__}-{name}"] = (build, normal(4, 4, *shape))
    return cases


LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "Linear": (lambda: chain(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 2)), normal(6, 5)),
    "Linear-3d": (
        lambda: chain(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 2, bias=False)),
        normal(4, 3, 5),
    ),
    "Linear-4d-gram": (lambda: chain(nn.Linear(30, 20), nn.Tanh()), normal(4, 2, 3, 30)),
    "Linear-4d-rows": (lambda: chain(nn.Linear(3, 2), nn.Tanh()), normal(4, 3, 3, 3)),
    "Linear-flattened": (
        lambda: chain(nn.Flatten(0, 1), nn.Linear(5, 7), nn.Unflatten(0, (-1, 3))),
        normal(4, 3, 5),
    ),
    **convolutions(),
    "Conv2d-gram": (lambda: chain(nn.Conv2d(4, 40, 3), nn.ReLU(), nn.Conv2d(40, 30, 3)), normal(4, 4, 6, 6)),
    "Conv2d-one-pixel": (lambda: chain(nn.Conv2d(4, 9, 3)), normal(4, 4, 3, 3)),
    "Embedding": (lambda: chain(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(20, 2)), whole(11, 6, 5)),
    "Embedding-repeats": (lambda: chain(nn.Embedding(3, 4), nn.Tanh()), whole(3, 6, 9)),
    "Embedding-padding": (lambda: chain(nn.Embedding(5, 4, padding_idx=1), nn.Tanh()), whole(5, 6, 9)),
    "weight norm": (lambda: chain(weight_norm(nn.Linear(5, 8)), nn.Tanh()), normal(4, 5)),
    "weight norm-frozen length": (lambda: chain(of_fixed_length(nn.Linear(5, 8)), nn.Tanh()), normal(4, 5)),
    "LayerNorm": (lambda: chain(nn.LayerNorm(5), nn.Tanh()), normal(4, 3, 5)),
    "LayerNorm-2d": (lambda: chain(nn.LayerNorm((3, 5)), nn.Tanh()), normal(4, 3, 5)),
    "LayerNorm-no-bias": (lambda: chain(nn.LayerNorm(5, bias=False), nn.Tanh()), normal(4, 5)),
    "RMSNorm": (lambda: chain(nn.RMSNorm(5), nn.Tanh()), normal(4, 3, 5)),
    "GroupNorm": (lambda: chain(nn.GroupNorm(2, 6), nn.Tanh()), normal(4, 6, 3, 2)),
    "InstanceNorm1d": (lambda: chain(nn.InstanceNorm1d(6, affine=True), nn.Tanh()), normal(4, 6, 3)),
    "InstanceNorm2d": (lambda: chain(nn.InstanceNorm2d(6, affine=True), nn.Tanh()), normal(4, 6, 3, 2)),
    "BatchNorm-frozen": (lambda: chain(nn.BatchNorm2d(6), nn.Tanh()).eval(), normal(4, 6, 3, 2)),
    "PReLU-fallback": (lambda: chain(nn.Linear(5, 3), nn.PReLU(3)), normal(4, 5)),
    "ConvTranspose-fallback": (lambda: chain(nn.ConvTranspose1d(2, 3, 3)), normal(4, 2, 5)),
    "RNN": (lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True), normal(4, 5, 3)),
    "LSTM": (lambda: nn.LSTM(3, 4, batch_first=True), normal(4, 5, 3)),
    "LSTM-deep": (lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), normal(4, 3, 3)),
    "GRU": (lambda: nn.GRU(3, 4, batch_first=True), normal(4, 5, 3)),
    "GRU-deep": (lambda: nn.GRU(3, 4, 2, bias=False, bidirectional=True, batch_first=True), normal(4, 3, 3)),
}


class Attending(nn.Module):
    """Attention of a sequence to itself or to a projection of itself, with its masks."""

    def __init__(
        self, *, cross: bool = False, weights: bool = False, first: bool = True, **options: Any
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=first, **options)
        self.linear, self.cross, self.weights, self.first = nn.Linear(8, 8), cross, weights, first

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        padding = torch.arange(4)[None].expand(len(x), 4) > 2
        causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
        if not self.first:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        key, value = (y, y[..., : self.attention.vdim]) if self.cross else (y, y)
        masks = {"attn_mask": causal} if self.first else {"key_padding_mask": padding}
        found = self.attention(x if self.cross else y, key, value, need_weights=self.weights, **masks)[0]
        return found if self.first else found.transpose(0, 1)


ATTENTION = {
    "self": lambda: Attending(),
    "self-weights": lambda: Attending(weights=True),
    "sequence-first": lambda: Attending(first=False),
    "cross": lambda: Attending(cross=True),
    "cross-narrow": lambda: Attending(cross=True, vdim=4, kdim=8, bias=False),
    "encoder-layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layers_clipped_sum_is_that_of_torch_func(name: str) -> None:
    torch.manual_seed(0)
    build, x = LAYERS[name]
    model, batch = build().double(), (x, normal(len(x)))
    assert_sums_agree(model, batch, Flat(0.1))
    assert_sums_agree(model, batch, Automatic(1.0, 0.1), augmentations=2)


@pytest.mark.parametrize("name", ATTENTION)
def test_attentions_clipped_sum_is_that_of_torch_func(name: str) -> None:
    torch.manual_seed(0)
    batch = (normal(4, 4, 8), normal(4))
    assert_sums_agree(ATTENTION[name]().double(), batch, Flat(0.1))
    assert_sums_agree(ATTENTION[name]().double(), batch, Flat(0.1), augmentations=2)


PIECES: dict[str, Callable[[], Piece]] = {
    "Outer-one": lambda: Outer(normal(5, 1, 3), normal(5, 1, 4), torch.Size((3, 4))),
    "Outer-gram": lambda: Outer(normal(5, 2, 7), normal(5, 2, 6), torch.Size((7, 6))),
    "Outer-rows": lambda: Outer(normal(5, 9, 2), normal(5, 9, 3), torch.Size((2, 3))),
    "Convolution": lambda: Convolution(
        normal(5, 6, 2, 2),
        normal(5, 4, 4, 4),
        torch.Size((6, 2, 3, 3)),
        WindowGeometry((1, 1), (0, 0), (1, 1), 2),
        5,
    ),
    "TangentOuter": lambda: TangentOuter(
        normal(5, 7), normal(5, 6), functional.normalize(normal(7, 6), dim=1)
    ),
    "Sparse": lambda: Sparse(whole(9, 5, 6), normal(5, 6, 2), torch.Size((9, 2))),
    "Rows": lambda: Rows(normal(5, 12), torch.Size((3, 4))),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", PIECES)
def test_norms_of_a_piece_are_those_of_its_rows(name: str, scaled: bool) -> None:
    piece = PIECES[name]()
    scale = normal(*piece.shape).abs() if scaled else None
    for origin in (None, normal(*piece.shape)):
        around = ClipCenter.at(origin, scale)
        rows = piece.rows(0, 5) - (0 if origin is None else origin.flatten())
        norms = (rows if scale is None else rows * scale.flatten()).square().sum(1)
        squares = piece.squares(around)
        torch.testing.assert_close(squares.value, norms)
        assert (squares.slack > 0).all() and (squares.slack < 1e-9).all()
        assert (norms <= squares.value + squares.slack).all()


def test_a_new_rule_is_used_and_a_subclass_with_its_own_forward_has_none() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    calls = []

    def scale(layer: Scale, x: Tensor) -> list[Use]:
        calls.append(layer)
        return [Use(layer.weight, lambda grad, count: Rows(grad * x, layer.weight.shape))]

    layers.rule(Scale)(scale)
    try:
        assert_sums_agree(chain(Scale(), nn.Tanh()).double(), (normal(4, 5), normal(4)), Flat(0.1))
    finally:
        layers._RULES.pop(Scale)
    assert calls
    assert rule_for(Other(3, 3)) is None
    assert_sums_agree(chain(Other(5, 3), nn.Tanh()).double(), (normal(4, 5), normal(4)), Flat(0.1))


def test_a_wrong_rule_is_found_out_and_not_used() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layers.rule(Doubled)(lambda layer, x: layers.linear_uses(x, layer.weight, layer.bias))
    try:
        oracle, batch = NetworkOracle(chain(Doubled(3, 2)), squared_error), (torch.ones(4, 3), torch.ones(4))
        torch.testing.assert_close(
            private_sum(oracle, batch, Flat(1.0)),
            expected(gradients(oracle.model, squared_error, batch), Flat(1.0)),
            rtol=1e-4,
            atol=1e-4,
        )
        assert oracle.route.kind == "vmap"
    finally:
        layers._RULES.pop(Doubled)


REFUSED: dict[str, tuple[nn.Module, Tensor, str]] = {
    "BatchNorm": (nn.BatchNorm1d(3), torch.ones(4, 3), "replace_batch_norm"),
    "BatchNorm-without-averages": (
        nn.BatchNorm1d(3, track_running_stats=False).eval(),
        torch.ones(4, 3),
        "others",
    ),
    "InstanceNorm": (
        nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        torch.ones(4, 3, 2),
        "buffers",
    ),
    "Embedding-max-norm": (nn.Embedding(3, 2, max_norm=1.0), torch.ones(4, 3).long(), "max_norm=None"),
    "Embedding-by-count": (
        nn.Embedding(3, 2, scale_grad_by_freq=True),
        torch.ones(4, 3).long(),
        "freq=False",
    ),
    "LSTM-proj": (nn.LSTM(3, 4, proj_size=2, batch_first=True), torch.ones(4, 2, 3), "Linear layer after it"),
    "LSTM-no-batch": (nn.LSTM(3, 4), torch.ones(4, 3), "depends on the others"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradient_by_record_is_refused_with_the_way_out(name: str) -> None:
    layer, x, way_out = REFUSED[name]
    oracle = NetworkOracle(chain(layer), squared_error, example=(x, torch.ones(4)))
    with pytest.raises(AssumptionError, match=way_out):
        private_sum(oracle, (x, torch.ones(4)), Flat(1.0))


def test_batch_norm_is_replaced_by_group_norm() -> None:
    model = chain(nn.Conv2d(3, 6, 3), chain(nn.BatchNorm2d(6), nn.ReLU()), nn.Flatten(), nn.LazyLinear(2))
    model(torch.ones(2, 3, 4, 4))
    nn.init.constant_(model[1][0].weight, 0.5)
    changed = replace_batch_norm(model, groups=4)
    norm = changed[1][0]
    assert isinstance(norm, nn.GroupNorm) and norm.num_groups == 3 and norm.weight[0].item() == 0.5
    assert isinstance(model[1][0], nn.BatchNorm2d), "the original is untouched"
    assert set(changed.state_dict()) <= set(model.state_dict())
    assert_sums_agree(changed.double(), (normal(4, 3, 4, 4), normal(4)), Flat(0.1))
    assert isinstance(replace_batch_norm(nn.BatchNorm1d(4)), nn.GroupNorm)
