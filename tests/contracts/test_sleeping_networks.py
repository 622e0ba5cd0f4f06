"""Networks whose trial rows show nothing: what they do later stays within the bound, or is refused."""

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.sleeping_networks import (
    ASLEEP,
    KEEPING,
    KEPT,
    LOG,
    RARE,
    READ,
    SWITCHED,
    Net,
    Rare,
    Reads,
    Stretching,
    rows,
    squares,
)
from tests.private_values import value_of
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook

from sidelight.clipping import Diagonal
from sidelight.errors import AssumptionError, SidelightError
from sidelight.methods.parts import Automatic, Flat
from sidelight.oracles.network.network_oracle import NetworkOracle

X, Y = rows(40)


def total(oracle: NetworkOracle, batch: Any, seed: int = 0, bound: float = 1.0, **more: Any) -> Tensor:
    oracle.draw_seed = lambda: seed
    found = oracle.clipped_sum(batch, clip=Flat(bound), relation="add-or-remove-one", **more)
    return value_of(found).clone()


def one_more(value: float, y: float = 1e6) -> Any:
    return torch.cat([X, torch.full((1, 4), value)]), torch.cat([Y, torch.tensor([y])])


def moves(oracle: NetworkOracle, batch: Any, other: Any, **more: Any) -> float:
    return float((total(oracle, other, **more) - total(oracle, batch, **more)).norm())


@pytest.mark.parametrize("what", SWITCHED)
def test_what_is_changed_between_steps_is_examined_again(what: str) -> None:
    make, loss, switch = SWITCHED[what]
    model, loss = make(), copy.copy(loss)
    oracle = NetworkOracle(model, loss, example=rows(8, 2))
    try:
        total(oracle, (X, Y))  # a gate that is closed now may be refused at once
        switch(model, loss)
        moved = moves(oracle, (X, Y), one_more(1e4))
    except AssumptionError:
        return
    assert moved <= 1, f"one record moves the sum by {moved:.3g} C"


def test_a_counter_of_the_owner_does_not_cost_the_fast_route() -> None:
    model = Net()
    oracle = NetworkOracle(model, squares, example=rows(8, 2))
    for step in range(3):
        model.step = step
        total(oracle, (X, Y))
        assert oracle.route.kind == "layers"


class Around(Net):
    """From some time on it uses a weight without its layer."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b((h + nn.functional.linear(x, self.a.weight) if self.center else h).tanh())[:, 0]


def test_a_weight_that_is_used_otherwise_later_has_its_whole_gradient() -> None:
    model, changed = Around(), Around()
    oracle = NetworkOracle(model, squares, example=rows(8, 2))
    total(oracle, (X, Y))
    model.center = changed.center = True
    anew = total(NetworkOracle(changed, squares, example=rows(8, 2)), (X, Y))
    assert torch.allclose(total(oracle, (X, Y)), anew, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("what", ASLEEP)
def test_mixing_that_trial_rows_do_not_show_is_found(what: str, public: bool) -> None:
    oracle = NetworkOracle(Net(ASLEEP[what]).train(), squares, example=rows(8, 2) if public else None)
    try:
        oracle.check((X, Y))
    except AssumptionError as refused:
        assert "\n" not in str(refused)
        return
    for seed in range(20 if "shuf" in what else 1):
        for value in (1e3, 1e9):
            moved = moves(oracle, (X, Y), one_more(value), seed=7919 * seed)
            assert moved <= 1, f"one record moves the sum by {moved:.3g} C"


@pytest.mark.parametrize("what", READ)
def test_no_record_reads_another_by_an_index_beyond_its_own(what: str) -> None:
    def records(n: int) -> Any:
        source = torch.Generator().manual_seed(n)
        words, at = torch.randn(n, 6, 5, generator=source), torch.randint(0, 6, (n,), generator=source)
        return (words, at), 10 * torch.randn(n, generator=source)

    oracle = NetworkOracle(Reads(READ[what]), squares, example=records(8))
    (words, at), y = records(41)
    at = torch.arange(40, -1, -1) * 6  # each reads the first word of the last
    other = words.clone()
    other[40] *= -50
    moved = moves(oracle, ((words, at), y), ((other, at), y))
    assert moved <= 2, f"one record's content moves the sum by {moved:.3g} C"
    assert moves(oracle, ((words, at), y), ((words[:40], at[:40]), y[:40])) <= 1


def test_a_pass_is_examined_with_all_rows_of_its_augmentations() -> None:
    def ghost(x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > 16 else x

    oracle = NetworkOracle(Net(ghost), squares, example=rows(8, 2), pass_size=8)
    with pytest.raises(AssumptionError):
        oracle.check((X, Y), augmentations=4)
    with pytest.raises(AssumptionError):
        total(oracle, (X, Y), augmentations=4)


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("what", KEEPING)
def test_what_a_model_keeps_is_refused_whenever_it_is_kept(what: str, branch: bool) -> None:
    """Forward or backward, and on every route: a branch by values leads to the one record by record."""

    def loss(o: Tensor, y: Tensor) -> Tensor:
        return squares(o, y) if not branch or (o < 1e9).all() else 2 * squares(o, y)

    KEPT.clear()
    LOG.clear()
    with pytest.raises(AssumptionError) as refused:
        NetworkOracle(KEEPING[what](), loss, example=rows(8, 2)).check((X, Y))
    assert "\n" not in str(refused.value)
    assert not KEPT and not LOG


@pytest.mark.parametrize("what", RARE)
def test_a_change_for_a_rare_record_is_undone_in_silence(what: str) -> None:
    model = Rare(RARE[what]).train()
    oracle = NetworkOracle(model, squares, example=rows(8, 2))
    oracle.check((X, Y))
    weights = [p.detach().clone() for p in model.parameters()]
    far = (torch.cat([torch.full((1, 4), 1e6), X]), torch.cat([Y[:1], Y]))  # first, so that others come after
    moved = moves(oracle, (X, Y), far)
    assert moved <= 1, f"one record moves the sum by {moved:.3g} C"
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert all(p.requires_grad for p in model.parameters()) and model.training
    assert model.outliers == 0 and model.meter.value == 0


def test_lengths_of_private_records_leave_no_trace_in_the_model() -> None:
    def run(*batches: Any) -> tuple[Tensor, int]:
        model = Stretching()
        oracle = NetworkOracle(model, squares)
        return [total(oracle, batch) for batch in batches][-1], model.longest

    x, y = torch.randn(40, 8), torch.randn(40)
    alone, after = run((x, y), (x, y)), run((x, y), (torch.randn(1, 30), y[:1]), (x, y))
    assert torch.equal(alone[0], after[0]) and alone[1] == after[1] == 8


def test_gradients_of_the_owner_stay_in_their_place() -> None:
    model = Net()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    held = [p.grad for p in model.parameters()]
    total(NetworkOracle(model, squares), (X, Y))
    assert all(
        p.grad is g and bool((p.grad == 1).all()) for p, g in zip(model.parameters(), held, strict=True)
    )


@pytest.mark.parametrize("bound", [1.0, 1e-3, 1e-5, 1e-7])
def test_a_factor_too_small_for_its_type_is_rounded_down(bound: float) -> None:
    model = nn.Sequential(nn.Linear(8, 3))
    nn.init.zeros_(model[0].bias)

    def loss(o: Tensor, y: Tensor) -> Tensor:
        return ((o - y) ** 2).sum(1)

    oracle = NetworkOracle(model, loss, pass_size=2)
    for exponent in torch.linspace(18.2, 18.9, 60).tolist():
        value = total(oracle, (torch.full((1, 8), 10**exponent), torch.zeros(1, 3)), bound=bound)
        assert float(value.double().norm()) <= bound


@pytest.mark.parametrize("clip", [Flat(1e-3), Automatic(1.0, 0.0), Automatic(1.0, 0.01)])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_factor_whose_square_underflows_counts_for_what_it_multiplies(
    clip: Any, steps: int, scaled: bool
) -> None:
    """The gradient is an outer product: 10⁻²³, whose square is nothing in float32, times 10¹⁸."""
    model = nn.Linear(300, 200, bias=False)
    oracle = NetworkOracle(model, lambda o, y: (o * y).flatten(1).sum(1), pass_size=2)
    metric = Diagonal(torch.ones(model.weight.numel())) if scaled else None
    batch = torch.full((1, steps, 300), 8e17), torch.full((1, steps, 200), 2e-23)
    if steps == 1:
        batch = batch[0][:, 0], batch[1][:, 0]
    value = value_of(oracle.clipped_sum(batch, clip=clip, relation="add-or-remove-one", metric=metric))
    assert 0 < float(value.double().norm()) <= clip.bound


class Named(nn.Module):
    """A model that centers the batch if its rows come under the other name."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor | None = None, scaled: Tensor | None = None) -> Tensor:
        return self.net(x if scaled is None else 4 * (scaled - scaled.mean(0)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("named", [False, True])
def test_a_batch_of_other_names_or_places_is_examined_again(named: bool) -> None:
    def batch(x: Any, y: Tensor, name: str) -> Any:
        return ({name: x} if named else (x, None) if name == "x" else (None, x)), y

    oracle = NetworkOracle(Named(), squares)
    total(oracle, batch(X, Y, "x"))
    with pytest.raises(AssumptionError, match="depends"):
        total(oracle, batch(X, Y, "scaled"))


def test_public_rows_in_a_tuple_check_batches_in_a_list() -> None:
    class Two(Net):
        def forward(self, x: Tensor, z: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x + z)

    x, y = rows(8, 2)
    oracle = NetworkOracle(Two(), squares, example=((x, x), y), pass_size=64)
    assert total(oracle, ([X, X], Y)).isfinite().all()


def _conditional(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 1e4, lambda x: x * 2.0, lambda x: x * 1.0, (x,))  # type: ignore[no-any-return]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.a = nn.Embedding(9, 4, sparse=True), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.e(x.long().clamp(0, 8)[:, :3]).flatten(1))[:, 0]


def _made_for_inference() -> nn.Module:
    with torch.inference_mode():
        return Net()


class Counting(nn.Module):
    """Compiled, it holds its counter where Python does not look."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.seen = nn.Linear(4, 1), 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += int((x[:, 0] > 1).sum())
        return self.a(x)[:, 0]


def test_what_a_hook_of_all_modules_keeps_is_refused() -> None:
    seen: list[float] = []
    handle = register_module_forward_hook(lambda module, args, out: seen.append(float(out.mean())))
    try:
        with pytest.raises(AssumptionError, match="during"):
            total(NetworkOracle(Net(), squares), (X, Y))
    finally:
        handle.remove()
    assert not seen


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_an_old_norm_is_refused_with_the_name_of_the_new_one(norm: Any) -> None:
    model = Net()
    model.a = norm(model.a)
    with pytest.raises(AssumptionError, match="parametrizations"):
        NetworkOracle(model, squares).check((X, Y))


@pytest.mark.parametrize("bad", [7, -1])
def test_one_hot_keeps_the_fast_route_and_a_class_that_does_not_exist_is_null(bad: int) -> None:
    torch.manual_seed(0)
    labels = torch.arange(len(X)) % 3
    oracle = NetworkOracle(
        nn.Linear(4, 3), lambda o, y: (o.softmax(1) - functional.one_hot(y, 3)).square().sum(1)
    )
    found = total(oracle, (X, labels.index_fill(0, torch.tensor([len(X) - 1]), bad)))
    assert oracle.route.kind == "layers"
    assert torch.equal(found, total(oracle, (X[:-1], labels[:-1])))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_scripted_model_keeps_no_number_of_a_record() -> None:
    model: Any = torch.jit.script(Counting())
    with pytest.raises(AssumptionError, match=r"torch\.jit"):
        total(NetworkOracle(model, squares), (X, Y))
    assert model.seen == 0


@pytest.mark.parametrize("make", [Words, lambda: Net(_conditional), _made_for_inference])
def test_what_cannot_be_examined_is_refused_in_one_line(make: Any) -> None:
    try:
        NetworkOracle(make(), squares, example=rows(8, 2)).check((X, Y))
    except SidelightError as refused:
        assert "\n" not in str(refused)


class Bare(nn.Module):
    """A parameter of a module's own, whose gradient is asked for in a private pass."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def test_a_hook_of_a_parameter_sees_no_private_gradient() -> None:
    """As wandb.watch has them."""
    seen: list[float] = []
    model = Bare()
    oracle = NetworkOracle(model, squares, example=rows(8, 2))
    total(oracle, (X, Y))
    model.w.register_hook(lambda g: seen.append(float(g.norm())))  # type: ignore[no-untyped-call]
    with pytest.raises(AssumptionError, match="hook"):
        total(oracle, (1e3 * X, Y))
    assert max(seen, default=0.0) < 1e3


def test_generators_of_the_caller_go_on_where_they_were() -> None:
    """Python and NumPy gave the numbers after the first call again, after every later one."""
    oracle = NetworkOracle(Net(), squares, example=rows(8, 2))
    drawn = set()
    for _ in range(3):
        total(oracle, (X, Y))
        drawn.add((random.random(), np.random.rand()))
    assert len(drawn) == 3
