"""PyTorch's own layers in a row: the closed form gives what the general route gives, and knows its limits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

from sidelight.clipping import Clip, Diagonal  # noqa: E402
from sidelight.methods.parts import Automatic, Flat  # noqa: E402
from sidelight.oracles.network.closed_forms import LOSSES as LOSS_FORMS  # noqa: E402
from sidelight.oracles.network.flat import per_example  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402

N, WIDTH, CLASSES, SIZE = 70, 12, 3, 32
Batch = tuple[Tensor, Tensor]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "relu in place": lambda: nn.ReLU(inplace=True), "tanh": nn.Tanh, "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU, "gelu by tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU,
    "leaky": lambda: nn.LeakyReLU(0.2), "elu": lambda: nn.ELU(0.7), "identity": nn.Identity,
}  # fmt: skip


def stack(activation: Callable[[], nn.Module] = nn.ReLU, hidden: int = 16, **more: Any) -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(hidden, 8), activation())
    first = nn.Linear(WIDTH, hidden, **more)
    return nn.Sequential(nn.Flatten(), first, activation(), inner, nn.Linear(8, CLASSES))


def records(n: int = N, *, dtype: torch.dtype = torch.float32, classes: bool = True) -> Batch:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, WIDTH // 3, generator=source, dtype=dtype)
    y = torch.randint(0, CLASSES, (n,), generator=source)
    return x, y if classes else torch.rand(n, CLASSES, generator=source, dtype=dtype)


def oracle(model: nn.Module, loss: Any = None) -> NetworkOracle:
    return NetworkOracle(model, per_example(nn.CrossEntropyLoss() if loss is None else loss), pass_size=SIZE)


def total(of: NetworkOracle, batch: Batch, clip: Clip | None = None, **more: Any) -> Tensor:
    found = of.clipped_sum(batch, clip=clip or Flat(0.3), relation="add-or-remove-one", **more)
    return found._value.clone()


def by_stack(of: NetworkOracle, batch: Batch) -> bool:
    return of._stack_for(batch, None, 1) is not None


def general(model: nn.Module, loss: Any = None) -> NetworkOracle:
    """The same without a stack."""
    made = oracle(model, loss)
    made._present_stack = lambda: None  # type: ignore[method-assign]
    return made


def close(one: Tensor, other: Tensor, *, within: float = 2e-6) -> bool:
    return float((one - other).norm()) <= within * float(other.norm())


def _compare(model: nn.Module, batch: Batch, loss: Any = None, *, within: float = 2e-6) -> None:
    """Sums with and without an origin and a metric, for two clips; and the mean gradient."""
    ours, other = oracle(model, loss), general(model, loss)
    assert by_stack(ours, batch)
    source = torch.Generator().manual_seed(2)
    origin = 0.1 * torch.randn(ours.dimension, generator=source).to(batch[0].dtype)
    metric = Diagonal(torch.rand(ours.dimension, generator=source).to(batch[0].dtype))
    for more in ({}, {"origin": origin}, {"origin": 1000 * origin}, {"metric": metric}):
        for clip in (Flat(0.3), Automatic(1.0, 0.01)):
            found = total(ours, batch, clip, **more), total(other, batch, clip, **more)
            # Around an origin the routes have other bounds on the rounding of norms, and so other factors.
            assert close(*found, within=1e-4 if "origin" in more else within), more
    (loss_a, mean_a), (loss_b, mean_b) = ours.loss_and_gradient(batch), other.loss_and_gradient(batch)
    assert loss_a == pytest.approx(loss_b, rel=1e-6) and close(mean_a, mean_b)


# ---------------------------------------------------------------------------------------------------
# the same sums


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_sums_are_those_of_the_general_route(activation: str) -> None:
    _compare(stack(ACTIVATIONS[activation]), records())


@pytest.mark.parametrize("hidden", [16, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_for_narrow_and_wide_layers_in_both_precisions(hidden: int, dtype: torch.dtype) -> None:
    _compare(stack(hidden=hidden, bias=False).to(dtype), records(dtype=dtype))


@pytest.mark.parametrize("loss", [nn.MSELoss, nn.BCEWithLogitsLoss])
def test_for_losses_with_several_targets(loss: Callable[[], nn.Module]) -> None:
    within = 1e-4 if loss is nn.BCEWithLogitsLoss else 2e-6  # whose general route has other norms' bounds
    _compare(stack(), records(classes=False), loss(), within=within)


def test_frozen_layers_have_no_part() -> None:
    model = stack()
    model[1].requires_grad_(False)
    model[3][0].bias.requires_grad_(False)
    _compare(model, records())


def test_an_empty_batch_gives_zeros() -> None:
    ours = oracle(stack())
    assert torch.equal(total(ours, records(0)), torch.zeros(ours.dimension))


# ---------------------------------------------------------------------------------------------------
# a record is alone


def test_odd_records_contribute_what_they_do_on_the_general_route() -> None:
    x, y = records()
    x[5], x[6], x[7, 0, 0] = torch.nan, 1e30, torch.inf
    y[8], y[9], y[10] = 9, -100, -5  # no class, the class that is ignored, no class
    ours, other, origin = oracle(stack()), general(stack()), torch.full((stack_size(),), 0.01)
    for more in ({}, {"origin": origin}):
        assert close(total(ours, (x, y), **more), total(other, (x, y), **more), within=1e-4)


def stack_size() -> int:
    return sum(p.numel() for p in stack().parameters())


def _alone(ours: NetworkOracle, place: int, batch: Batch, **more: Any) -> Tensor:
    """What the first record contributes from this place of a pass, all others of which contribute nothing."""
    x, y = batch[0][:SIZE].clone(), batch[1][:SIZE].clone()
    x[place], y[place] = batch[0][0], batch[1][0]
    spoiled = torch.arange(SIZE) != place
    if y.is_floating_point():
        x[spoiled] = torch.nan
    else:
        y[spoiled] = 9
    return total(ours, (x, y), **more)


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("hidden", [16, 700])
def test_a_place_does_not_change_a_bit_of_what_a_record_contributes(hidden: int, classes: bool) -> None:
    ours = oracle(stack(hidden=hidden), None if classes else nn.MSELoss())
    origin = torch.full((ours.dimension,), 0.01)
    batch = records(classes=classes)
    assert by_stack(ours, batch)
    for more in ({}, {"origin": origin}):
        wanted = _alone(ours, 0, batch, **more)
        assert float(wanted.norm()) > 0.1
        assert all(torch.equal(_alone(ours, i, batch, **more), wanted) for i in range(1, SIZE))


def test_no_contribution_is_longer_than_the_bound() -> None:
    ours, (x, y) = oracle(stack()), records()
    for origin in (None, torch.full((ours.dimension,), 0.01), torch.full((ours.dimension,), 30.0)):
        for factor in (1e-20, 1e-3, 1.0, 1e4, 1e15):
            lengths = [
                float(total(ours, (factor * x[i : i + 1], y[i : i + 1]), origin=origin).double().norm())
                for i in range(8)
            ]
            assert max(lengths) <= 0.3


def test_nothing_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    x, y = records()
    x[0], x[1], y[2] = torch.inf, 1e38, 77
    total(oracle(stack()), (x, y), origin=torch.full((stack_size(),), 0.01))
    assert not recwarn.list


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.BCEWithLogitsLoss])
def test_the_last_bit_of_a_score_does_not_turn_a_normalised_slope(loss: Any) -> None:
    """Of a sure record p − 1 is 0 or an ulp: normalised, it was all or nothing by the last bit of a score."""
    scores = torch.zeros(2000, CLASSES)
    scores[:, 0] = torch.linspace(15, 18, 2000)
    targets = torch.zeros(2000, dtype=torch.int64)
    if loss is nn.BCEWithLogitsLoss:
        scores, targets = scores[:, :1], torch.ones(2000, 1)
    form = LOSS_FORMS[loss].make(loss(reduction="none"))
    found = nn.functional.normalize(form.slopes(scores, targets).rows, eps=1e-30)
    expected = torch.tensor([-2.0, 1.0, 1.0] if scores.shape[1] > 1 else [-1.0])
    assert float((found - expected / expected.norm()).abs().max()) < 1e-4


def test_sure_public_rows_do_not_send_a_stack_away() -> None:
    """Autograd's slopes of these are rounding, and not to be compared with."""
    model, (x, y) = stack(), records()
    with torch.no_grad():
        model[-1].weight.mul_(200)
        scores = model(x)
    y = scores.argmax(1)
    least = (scores.topk(2).values @ torch.tensor([1.0, -1.0])).argsort()
    places = torch.cat([least[:1], least[-5:]])
    ours = NetworkOracle(
        model, per_example(nn.CrossEntropyLoss()), pass_size=SIZE, example=(x[places], y[places])
    )
    assert by_stack(ours, (x, y))


# ---------------------------------------------------------------------------------------------------
# what it does not know


class _Own(nn.Linear):
    """The same forward, of another class."""


class _OwnLoss(nn.CrossEntropyLoss):
    pass


def _hooked(model: nn.Sequential) -> None:
    model[1].register_forward_hook(lambda module, inputs, output: output * 2)


def _parameter_hook(model: nn.Sequential) -> None:
    model[3][0].weight.register_hook(lambda grad: grad)


def _other_forward(model: nn.Sequential) -> None:
    layer = model[1]
    layer.forward = lambda x: 2 * nn.functional.linear(x, layer.weight, layer.bias)


def _buffer(model: nn.Sequential) -> None:
    model[1].register_buffer("seen", torch.zeros(1))


def _shared(model: nn.Sequential) -> None:
    model.append(nn.Linear(CLASSES, CLASSES)).append(nn.Linear(CLASSES, CLASSES))
    model[-1].weight = model[-2].weight


def _twice(model: nn.Sequential) -> None:
    model.append(nn.Linear(CLASSES, CLASSES)).append(model[-1])


def _parametrized(model: nn.Sequential) -> None:
    parametrizations.weight_norm(model[1])


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "a hook": _hooked,
    "another forward": _other_forward,
    "a buffer": _buffer,
    "a shared weight": _shared,
    "a layer twice": _twice,
    "a parametrized weight": _parametrized,
    "a subclass": lambda model: model.append(_Own(CLASSES, CLASSES)),
    "another class": lambda model: setattr(model[1], "__class__", _Own),
    "dropout": lambda model: model.append(nn.Dropout(0.0)),
    "an attribute": lambda model: setattr(model[1], "note", 1),
    "a convolution": lambda model: model.insert(0, nn.Conv1d(3, 3, 1)),
    "a flattening of its own": lambda model: model.insert(0, nn.Flatten(2)),
    "a compiled call": lambda model: model.compile(backend="eager"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("later", [False, True])
def test_what_is_not_known_takes_the_general_route(change: str, later: bool) -> None:
    """Also what is added after the first step."""
    model, batch = stack(), records()
    ours = oracle(model)
    if later:
        assert by_stack(ours, batch)
        total(ours, batch)
    CHANGES[change](model)
    ours = ours if later else oracle(model)
    assert not by_stack(ours, batch)
    assert torch.equal(total(ours, batch), total(general(model), batch))


def test_a_hook_on_a_parameter_is_refused_as_ever() -> None:
    model, batch = stack(), records()
    ours = oracle(model)
    total(ours, batch)
    _parameter_hook(model)
    assert not by_stack(ours, batch)
    with pytest.raises(Exception, match="has a hook"):
        total(ours, batch)


def test_a_hook_of_all_modules_takes_the_general_route() -> None:
    model, batch = stack(), records()
    ours = oracle(model)
    total(ours, batch)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not by_stack(ours, batch)
    finally:
        handle.remove()
    assert by_stack(ours, batch)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(nn.functional, "linear"), (nn.functional, "relu"), (nn.functional, "cross_entropy"),
     (nn.Linear, "__call__"), (nn.Module, "_call_impl"), (nn.Sequential, "__iter__")],
)  # fmt: skip
def test_a_function_of_pytorch_that_was_replaced_takes_the_general_route(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, batch, usual = oracle(stack()), records(), getattr(owner, name)
    assert by_stack(ours, batch)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda *args, **more: usual(*args, **more))
        assert not by_stack(ours, batch)
    assert by_stack(ours, batch)


def test_what_is_trained_may_change_between_steps() -> None:
    model, batch = stack(), records()
    ours = oracle(model)
    whole = total(ours, batch)
    model[1].weight.requires_grad_(False)
    assert by_stack(ours, batch) and len(total(ours, batch)) == len(whole) - 16 * WIDTH
    assert close(total(ours, batch), total(general(model), batch))
    model[1].weight.requires_grad_(True)
    assert torch.equal(total(ours, batch), whole)
    with torch.no_grad():
        model[1].weight.mul_(2)  # as an optimizer moves it
    assert close(total(ours, batch), total(general(model), batch))
    model[1].weight = nn.Parameter(torch.randn(16, WIDTH))
    assert close(total(ours, batch), total(general(model), batch))
    model.double()
    double = batch[0].double(), batch[1]
    assert by_stack(ours, double) and close(total(ours, double), total(general(model), double))


LOSSES: dict[str, Callable[[], Any]] = {
    "class weights": lambda: nn.CrossEntropyLoss(weight=torch.rand(CLASSES), reduction="none"),
    "smoothed labels": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "a class that is ignored": lambda: nn.CrossEntropyLoss(ignore_index=1),
    "a subclass": _OwnLoss,
    "a function": lambda: functools.partial(nn.functional.cross_entropy, reduction="none"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_other_losses_take_the_general_route(loss: str) -> None:
    made = LOSSES[loss]()
    assert not by_stack(oracle(stack(), made), records())
    total(oracle(stack(), made), records())


def test_other_forms_of_records_take_the_general_route() -> None:
    ours, (x, y) = oracle(stack()), records()
    for batch in ((x.double(), y), (x, y.int()), ([x], y), (x.long(), y), (x, torch.rand(N, CLASSES))):
        assert not by_stack(ours, batch)
    assert not by_stack(oracle(nn.Sequential(nn.Linear(4, CLASSES))), (x, y))  # a layer at several places
    assert ours._stack_for((x, y), None, 2) is None  # two rows a record


def test_autocast_and_modes_take_the_general_route() -> None:
    ours, batch = oracle(stack()), records()
    assert by_stack(ours, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not by_stack(ours, batch)
    with torch.overrides.BaseTorchFunctionMode():
        assert not by_stack(ours, batch)
    assert by_stack(ours, batch)


def test_a_stack_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared with plain gradients before it is used."""
    from sidelight.oracles.network import stack as module

    ours, batch, right = oracle(stack()), records(), module.Stack.forward_and_back

    def wrong(self: Any, batch: Any) -> Any:
        found = right(self, batch)
        return found._replace(lefts=[1.1 * left for left in found.lefts])

    monkeypatch.setattr(module.Stack, "forward_and_back", wrong)
    assert not by_stack(ours, batch)
    assert torch.equal(total(ours, batch), total(general(stack()), batch))
    assert torch.equal(ours.mean_gradient(batch), general(stack()).mean_gradient(batch))
