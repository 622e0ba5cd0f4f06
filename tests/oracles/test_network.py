"""The network oracle as a whole: what it promises about models, batches and neighbors."""

from typing import Any

import pytest
import torch
from tests.oracles.networks import (
    assert_neighbors_are_near,
    assert_sums_agree,
    expected,
    gradients,
    private_sum,
    squared_error,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sidelight.clipping import Diagonal, Features, Projection
from sidelight.errors import AssumptionError, InputError, RelationError
from sidelight.methods.parts import Automatic, Flat
from sidelight.oracles.network.flat import RunningSum, TailProjection, _Norms
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.pieces import Squares
from sidelight.oracles.network.shared_pieces import Tied


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def tokens(words: int, *shape: int) -> Tensor:
    return torch.randint(0, words, shape, generator=torch.Generator().manual_seed(3))


def small(*, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)).double()


class Language(nn.Module):
    """Tied embeddings, positions that are looked up once for all records, and a layer called twice."""

    def __init__(self, words: int = 60, width: int = 4, *, tied: bool = True, leading: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(3, width)
        self.layer, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.leading = leading
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(3)[None] if self.leading else torch.arange(3)
        x = self.words(x) + self.places(places)
        return self.head(self.layer(torch.tanh(self.layer(self.norm(x)))))


class Bare(nn.Module):
    """Parameters that belong to no layer: the fallback."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(normal(5)), nn.Parameter(normal(3, 5))
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scale + self.shift) * self.scale


class Vision(nn.Module):
    """A class token and positions, as in a vision transformer, with dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.places = nn.Parameter(normal(1, 1, 5)), nn.Parameter(normal(1, 4, 5))
        self.linear, self.dropout = nn.Linear(5, 5), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.linear(x)], 1)
        return self.linear(self.dropout(x + self.places))


class Pair(nn.Module):
    """Two inputs, and a parameter that meets both."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(2, 3, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("ni,oij,nj->no", x, self.weight, y)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(5, 5), nn.Linear(5, 2), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)  # type: ignore[no-any-return]

    def inner(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Any, Tensor]] = {
    "tied": (Language, tokens(60, 4, 3)),
    "tied-leading-places": (lambda: Language(leading=True), tokens(60, 4, 3)),
    "tied-few-words": (lambda: Language(5), tokens(5, 4, 3)),
    "untied": (lambda: Language(tied=False), tokens(60, 4, 3)),
    "bare": (Bare, normal(4, 3, 5)),
    "vision": (lambda: Vision().eval(), normal(4, 3, 5)),
    "two-inputs": (Pair, (normal(4, 3), normal(4, 4))),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_models_clipped_sum_is_that_of_torch_func(name: str) -> None:
    torch.manual_seed(0)
    build, x = MODELS[name]
    model = build().double()
    assert_sums_agree(model, (x, normal(4)), Flat(0.05))
    assert_sums_agree(model, (x, normal(4)), Automatic(1.0, 0.1), augmentations=2)


def test_gradient_checkpointing_changes_nothing() -> None:
    model, batch = Checkpointed().double(), (normal(4, 5), normal(4))
    origin = torch.full((42,), 0.1)
    got = private_sum(NetworkOracle(model, squared_error), batch, Flat(0.05), origin=origin)
    plain = nn.Sequential(model.first, nn.Sequential(model.first, nn.Tanh(), model.second))
    torch.testing.assert_close(
        got, private_sum(NetworkOracle(plain, squared_error), batch, Flat(0.05), origin=origin)
    )


def test_frozen_parameters_have_no_place_in_the_sum() -> None:
    model = small()
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    assert NetworkOracle(model, squared_error).dimension == 14
    assert_sums_agree(model, (normal(4, 5), normal(4)), Flat(0.05))


def test_a_parameter_without_part_in_the_loss_still_has_its_share_of_the_origin() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(5, 2), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    model, batch = Unused().double(), (normal(4, 5), normal(4))
    rows = torch.cat([gradients(model.used, squared_error, batch), torch.zeros(4, 12).double()], 1)
    origin = torch.linspace(-2, 2, 24).double()
    got = private_sum(NetworkOracle(model, squared_error), batch, Flat(0.1), origin=origin)
    torch.testing.assert_close(got, expected(rows, Flat(0.1), origin))


def test_projection_clips_a_few_coordinates() -> None:
    model, batch = small(), (normal(6, 5), normal(6))
    model[0].requires_grad_(False)  # AdaMix: the last layer alone
    oracle, rows = NetworkOracle(model, squared_error), gradients(model, squared_error, batch)
    basis, _ = torch.linalg.qr(normal(rows.shape[1], 3))
    origin = rows.mean(0)
    want = expected((rows - origin) @ basis, Flat(0.05))
    got = private_sum(oracle, batch, Flat(0.05), origin=origin, metric=Projection(basis), micro_batch=4)
    torch.testing.assert_close(got, want)
    with pytest.raises(InputError, match="freeze"):
        private_sum(oracle, batch, Flat(0.05), metric=Projection(normal(40, 3)))
    with pytest.raises(InputError, match="Diagonal"):
        private_sum(oracle, batch, Flat(0.05), metric=Features(normal(2, 2)))


@pytest.mark.parametrize("start", [0, 42, 56])
def test_a_projection_of_the_last_parameters_leaves_the_others(start: int) -> None:
    model, batch = small(), (normal(6, 5), normal(6))
    oracle, rows = NetworkOracle(model, squared_error), gradients(model, squared_error, batch)
    basis = torch.linalg.qr(normal(58 - start, 2))[0]
    metric, near = TailProjection(basis, start), rows.mean(0)
    for origin in (None, near, torch.linspace(-3, 3, 58).double()):
        moved = rows if origin is None else rows - origin
        moved = torch.cat([moved[:, :start], moved[:, start:] @ basis], 1)
        torch.testing.assert_close(
            torch.stack([metric.apply(r) for r in rows - near]),
            torch.cat([(rows - near)[:, :start], (rows - near)[:, start:] @ basis], 1),
        )
        for clip in (Flat(0.05), Automatic(1.0, 0.1)):
            for micro_batch in (None, 4):
                got = private_sum(oracle, batch, clip, origin=origin, metric=metric, micro_batch=micro_batch)
                torch.testing.assert_close(got, expected(moved, clip), rtol=1e-9, atol=1e-10)
        norms = oracle.norms(batch, origin=origin, metric=metric)
        assert (norms >= moved.norm(dim=1)).all()
    for wrong in (TailProjection(basis, start + 1), TailProjection(normal(58 - start + 1, 2), start)):
        with pytest.raises(InputError, match="each number"):
            private_sum(oracle, batch, Flat(0.05), metric=wrong)


def test_norms_are_upper_bounds_of_torch_funcs() -> None:
    model, batch = small(), (normal(6, 5), normal(6))
    rows = gradients(model, squared_error, batch)
    norms = NetworkOracle(model, squared_error).norms(batch, origin=rows[0], metric=Diagonal(torch.ones(58)))
    true = (rows - rows[0]).norm(dim=1)
    assert (norms >= true).all()
    torch.testing.assert_close(norms, true, rtol=1e-6, atol=1e-6)


def test_mean_gradient_is_the_mean_of_the_records() -> None:
    model, batch = small(), (normal(6, 5), normal(6))
    mean = NetworkOracle(model, squared_error).mean_gradient(batch)
    torch.testing.assert_close(mean, gradients(model, squared_error, batch).mean(0))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("metric", [None, Projection(normal(58, 3))])
def test_an_empty_batch_gives_zeros(metric: Any) -> None:
    oracle = NetworkOracle(small(), squared_error)
    empty = (torch.zeros(0, 5).double(), torch.zeros(0).double())
    found = private_sum(oracle, empty, Flat(1.0), origin=torch.ones(58), metric=metric)
    assert found.shape == ((58,) if metric is None else (3,)) and not found.any()
    assert oracle.norms(empty).shape == (0,)
    assert not oracle.mean_gradient(empty).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_a_record_without_finite_gradient_contributes_nothing_and_spoils_nothing(bad: float) -> None:
    oracle, (x, y) = NetworkOracle(small(), squared_error), (normal(6, 5), normal(6))
    spoiled = x.clone()
    spoiled[2, 0] = bad
    want = private_sum(oracle, (x[torch.arange(6) != 2], y[torch.arange(6) != 2]), Flat(0.1))
    for micro_batch in (1, 4, 6):
        got = private_sum(oracle, (spoiled, y), Flat(0.1), micro_batch=micro_batch)
        torch.testing.assert_close(got, want)
    assert not private_sum(oracle, (torch.full_like(x, bad), y), Flat(0.1)).any()


def test_micro_batches_do_not_change_the_result() -> None:
    assert_micro_batches_agree(NetworkOracle(small(), squared_error))


def assert_micro_batches_agree(oracle: NetworkOracle) -> None:
    batch, origin = (normal(12, 5), normal(12)), torch.full((58,), 0.1)
    want = private_sum(oracle, batch, Flat(0.1), origin=origin, augmentations=2)
    for micro_batch in (1, 2, 4, 5, 100):
        got = private_sum(oracle, batch, Flat(0.1), origin=origin, augmentations=2, micro_batch=micro_batch)
        torch.testing.assert_close(got, want)


def test_contract_catches_a_micro_batch_that_clips_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _Norms.add

    def twice(self: _Norms, factors: Tensor, total: RunningSum) -> None:
        right(self, factors, total)
        total.value *= (0.1 / total.value.norm()).clamp(max=1)

    monkeypatch.setattr(_Norms, "add", twice)
    with pytest.raises(AssertionError):
        assert_micro_batches_agree(NetworkOracle(small(), squared_error))


def language_sum(batch: tuple[Tensor, Tensor]) -> Tensor:
    torch.manual_seed(0)
    oracle = NetworkOracle(Language(60, tied=True).double(), squared_error)
    return private_sum(oracle, batch, Flat(0.05), origin=torch.full((oracle.dimension,), 0.001))


def test_neighboring_data_moves_the_sum_at_most_by_its_sensitivity() -> None:
    assert_neighbors_are_near(language_sum, (tokens(60, 8, 3), normal(8)), 0.05)


def test_contract_catches_a_tied_weight_whose_cross_term_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    none = torch.zeros((), dtype=torch.float64)
    monkeypatch.setattr(Tied, "cross", lambda self: Squares(none, none))
    with pytest.raises(AssertionError, match="moves"):
        assert_neighbors_are_near(language_sum, (tokens(60, 8, 3), normal(8)), 0.05)


def test_contract_catches_an_origin_inside_the_sum() -> None:
    oracle, origin = NetworkOracle(small(), squared_error), torch.full((58,), 0.5).double()

    def added_for_each_record(batch: tuple[Tensor, Tensor]) -> Tensor:
        return private_sum(oracle, batch, Flat(0.1), origin=origin) + len(batch[0]) * origin

    with pytest.raises(AssertionError, match="moves"):
        assert_neighbors_are_near(added_for_each_record, (normal(6, 5), normal(6)), 0.1)


def test_replace_one_doubles_the_sensitivity() -> None:
    oracle, batch = NetworkOracle(small(), squared_error), (normal(6, 5), normal(6))
    assert oracle.clipped_sum(batch, clip=Flat(0.1), relation="add-or-remove-one").sensitivity == 0.1
    assert oracle.clipped_sum(batch, clip=Flat(0.1), relation="replace-one").sensitivity == 0.2
    with pytest.raises(RelationError):
        oracle.clipped_sum(batch, clip=Flat(0.1), relation="neighbors")  # type: ignore[arg-type]


def test_autocast_gives_the_same_sum_to_its_precision() -> None:
    model, batch = small().float(), (normal(8, 5).float(), normal(8).float())
    want = private_sum(NetworkOracle(model, squared_error), batch, Flat(0.1))
    with torch.autocast("cpu", torch.bfloat16):
        got = private_sum(NetworkOracle(model, lambda z, y: squared_error(z.float(), y)), batch, Flat(0.1))
    assert got.dtype == torch.float32
    assert 0 < float((got - want).norm()) < 0.02 * float(want.norm())


def test_dropout_draws_one_mask_for_norms_and_sum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(20, 3)).double()
    oracle, batch = NetworkOracle(model, squared_error), (normal(1, 20), normal(1))
    lengths = [float(private_sum(oracle, batch, Automatic(1.0, 0.0)).norm()) for _ in range(20)]
    assert max(lengths) <= 1.0 and min(lengths) > 1 - 1e-6


def test_the_model_is_left_as_it_was() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 4, batch_first=True), "vision": Vision()}).double().train()

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        raise KeyError("the loss failed")

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            return self.parts["lstm"](x)[0].sum(-1) + self.parts["vision"](x)[:, 1:].sum(-1)  # type: ignore

    whole, batch = Both(), (normal(4, 3, 5), normal(4))
    before = {name: (id(m), dict(m.__dict__["_parameters"]), m.training) for name, m in whole.named_modules()}
    keys = list(whole.state_dict())
    private_sum(NetworkOracle(whole, squared_error), batch, Flat(1.0))
    with pytest.raises(AssumptionError, match="example="):
        private_sum(NetworkOracle(whole, loss), batch, Flat(1.0))
    oracle = NetworkOracle(whole, squared_error)
    private_sum(oracle, batch, Flat(1.0))
    oracle.loss = loss
    with pytest.raises(AssumptionError, match="not private"):
        private_sum(oracle, batch, Flat(1.0))
    after = {name: (id(m), dict(m.__dict__["_parameters"]), m.training) for name, m in whole.named_modules()}
    assert before == after and keys == list(whole.state_dict())
    for module in whole.modules():
        assert "forward" not in module.__dict__
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._backward_hooks


class Mixing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.detach().mean(0)
        return x


class MixingInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training else x


def test_models_that_break_the_assumption_are_refused() -> None:
    batch = (torch.ones(4, 5), torch.ones(4))
    with pytest.raises(AssumptionError, match="depends"):
        mixing = nn.Sequential(MixingInTraining(), nn.Linear(5, 2), nn.Dropout(0.5))
        private_sum(NetworkOracle(mixing, squared_error), batch, Flat(1.0))
    with pytest.raises(AssumptionError, match="depends"):
        private_sum(NetworkOracle(nn.Sequential(Mixing(5, 2)), squared_error), batch, Flat(1.0))
    with pytest.raises(AssumptionError, match="buffer"):
        private_sum(
            NetworkOracle(nn.Sequential(Remembering(), nn.Linear(5, 2)), squared_error), batch, Flat(1.0)
        )
    with pytest.raises(AssumptionError, match="one number"):
        private_sum(NetworkOracle(small().float(), lambda z, y: squared_error(z, y).mean()), batch, Flat(1.0))
    with pytest.raises(AssumptionError, match="use_reentrant"):
        private_sum(NetworkOracle(Checkpointed(reentrant=True), squared_error), batch, Flat(1.0))


def test_bad_arguments_are_named() -> None:
    oracle, batch = NetworkOracle(small(), squared_error), (normal(6, 5), normal(6))
    with pytest.raises(InputError, match="vector of 58"):
        private_sum(oracle, batch, Flat(1.0), origin=torch.ones(57))
    with pytest.raises(InputError, match="vector of 58"):
        private_sum(oracle, batch, Flat(1.0), origin=torch.full((58,), float("nan")))
    with pytest.raises(InputError, match="augmentations=4"):
        private_sum(oracle, batch, Flat(1.0), augmentations=4)
    with pytest.raises(InputError, match="micro_batch"):
        private_sum(oracle, batch, Flat(1.0), micro_batch=0)
    with pytest.raises(InputError, match="per record"):
        private_sum(oracle, (normal(6, 5), normal(5)), Flat(1.0))
    with pytest.raises(InputError, match="trainable"):
        NetworkOracle(nn.ReLU(), squared_error)


class Deciding(nn.Module):
    """Decides by values, so its records are taken one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = [row if float(row.sum()) > 0 else 2 * row for row in self.linear(x)]
        return torch.stack(rows)


def test_a_loss_that_fails_for_all_is_noticed_where_records_are_taken_one_by_one() -> None:
    oracle, batch = NetworkOracle(Deciding().double(), squared_error), (normal(4, 5), normal(4))
    private_sum(oracle, batch, Flat(1.0))
    assert oracle.route.kind == "loop"

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        raise KeyError("the loss failed")

    oracle.loss = loss
    with pytest.raises(AssumptionError, match="not private"):
        private_sum(oracle, batch, Flat(1.0))
