"""PrivateStep: the private gradient in p.grad, charged first, and nothing else touched."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.replay import SilentNoise
from tests.deep.networks import blobs, gradients, loss, mlp
from torch import nn

from sidelight.deep import PrivateStep
from sidelight.errors import AssumptionError, BudgetExceeded, InputError, LedgerError
from sidelight.methods.coupling import coupling
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.ppsgd import ppsgd
from sidelight.oracles.network.state import HONEST_CODE
from sidelight.privacy import events
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Run

CLIP, B = 0.3, 10.0


def make(model: Any, *, method: Any = None, noise_multiplier: float = 1.0, **options: Any) -> PrivateStep:
    """Any batch will do for most tests here; those of `sample` are in test_given_batch.py."""
    return PrivateStep(
        model,
        loss,
        method=dp_sgd(clip_norm=CLIP) if method is None else method,
        n_private=100,
        expected_batch_size=B,
        noise_multiplier=noise_multiplier,
        random_state=3,
        **{"own_sampling": True, **options},
    )


def grads(model: Any) -> Any:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidelight.deep.step.Noise", SilentNoise)


def clipped(rows: Any, bound: float = CLIP) -> Any:
    return rows * (bound / rows.norm(dim=1).clamp(min=bound))[:, None]


@pytest.mark.usefixtures("silent")
def test_dp_sgd_equals_a_step_written_by_hand() -> None:
    model, batch = mlp(dtype=torch.float64), blobs(17, 1, torch.float64)
    make(model).step(batch)
    # 17 records came, 10 were expected: the divisor is the expectation.
    expected = clipped(gradients(model, batch)).sum(0) / B
    torch.testing.assert_close(grads(model), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("silent")
def test_dope_sgd_equals_a_step_written_by_hand() -> None:
    model, batch, public = mlp(dtype=torch.float64), blobs(17, 1, torch.float64), blobs(9, 2, torch.float64)
    make(model, method=dope_sgd(clip_norm=CLIP)).step(batch, public)
    origin = gradients(model, public).mean(0)
    expected = origin + clipped(gradients(model, batch) - origin).sum(0) / B
    torch.testing.assert_close(grads(model), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("silent")
def test_coupling_equals_a_step_written_by_hand() -> None:
    model, batch, public = mlp(dtype=torch.float64), blobs(17, 1, torch.float64), blobs(9, 2, torch.float64)
    make(model, method=coupling(weight=0.2, reduction="mean", gamma=0.01)).step(batch, public)
    rows, ahead = gradients(model, batch), gradients(model, public).mean(0)
    private = (rows / (rows.norm(dim=1) + 0.01)[:, None]).sum(0) / B
    torch.testing.assert_close(grads(model), 0.2 * ahead + 0.8 * private, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("silent")
def test_gradients_are_replaced_or_accumulated_as_asked() -> None:
    model, one, other = mlp(dtype=torch.float64), blobs(9, 1, torch.float64), blobs(9, 2, torch.float64)
    step = make(model)
    step.step(one)
    first = grads(model).clone()
    step.step(other)
    second = grads(model).clone()
    step.step(one, accumulate=True)
    torch.testing.assert_close(grads(model), first + second)
    step.step(one)
    torch.testing.assert_close(grads(model), first)


def test_noise_has_the_standard_deviation_that_was_accounted() -> None:
    model = nn.Linear(200, 100, bias=False)
    step = PrivateStep(
        model, lambda z, y: z.sum(1) * 0, n_private=50, expected_batch_size=10, noise_multiplier=2.0,
        method=dp_sgd(clip_norm=3.0), random_state=1, own_sampling=True,
    )  # fmt: skip
    entry = step.step((torch.zeros(4, 200), torch.zeros(4)))
    assert abs(float(model.weight.grad.std()) / (2.0 * 3.0 / 10) - 1) < 0.02
    assert entry["noise_multiplier"] == 2.0 and entry["clip_norm"] == 3.0


@pytest.mark.usefixtures("silent")
def test_microbatches_do_not_change_the_result() -> None:
    batch, found = blobs(23, 1, torch.float64), []
    for size in (None, 1, 7, 50):
        model = mlp(dtype=torch.float64)
        make(model, micro_batch=size).step(batch)
        found.append(grads(model))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-14)


def test_empty_batch_is_noise_and_costs_its_event() -> None:
    model = mlp()
    step = make(model, delta=1e-5)
    step.step((torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)))
    assert grads(model).isfinite().all() and float(grads(model).norm()) > 0
    assert sum(events.elementary(step.privacy_.plan).values()) == 1


def test_the_account_is_charged_before_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Telling(Noise):
        def normal(self, *args: Any, **options: Any) -> Any:
            log.append("noise")
            return super().normal(*args, **options)

    charge = Run.charge
    monkeypatch.setattr("sidelight.deep.step.Noise", Telling)
    monkeypatch.setattr(Run, "charge", lambda self, event: (log.append("charge"), charge(self, event))[1])
    make(mlp(), steps=3).step(blobs(8, 1))
    assert log == ["charge", "noise"]


def test_steps_beyond_the_plan_are_refused_and_leave_the_gradient() -> None:
    model = mlp()
    step = make(model, steps=2)
    for _ in range(2):
        step.step(blobs(8, 1))
    before = grads(model).clone()
    with pytest.raises(BudgetExceeded, match="2 steps"):
        step.step(blobs(8, 1))
    assert torch.equal(grads(model), before)


def test_a_budget_is_calibrated_and_stated() -> None:
    step = PrivateStep(
        mlp(), loss, n_private=100, expected_batch_size=B, epsilon=1.5, delta=1e-4, steps=20, random_state=1
    )
    step.step(blobs(len(step.sample()), 1))  # type: ignore[arg-type]
    assert 1.49 < step.privacy_.epsilon <= 1.5
    assert any("sample" in line for line in step.privacy_.assumptions)
    assert HONEST_CODE in step.privacy_.assumptions


def test_a_ledger_is_charged_with_the_whole_plan_at_the_first_step() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=2, delta=1e-4)
    options = dict(n_private=100, expected_batch_size=B, epsilon=1.5, delta=1e-4, steps=20, ledger=ledger)
    options |= {"own_sampling": True}
    with PrivateStep(mlp(), loss, **options) as step:
        assert not ledger.charges("people")
        step.step(blobs(8, 1))
        (charge,) = ledger.charges("people")
        assert sum(events.elementary(charge.plan).values()) == 20
        receipt = {"ledger": repr(ledger), "dataset": "people", "run": 1, "entry": charge.number}
        assert receipt.items() <= step.privacy_.ledger.items()
    with pytest.raises(LedgerError, match="finished"):
        step.step(blobs(8, 1))
    with pytest.raises(BudgetExceeded):
        PrivateStep(mlp(), loss, **{**options, "epsilon": 1.99}).step(blobs(8, 1))


def test_a_model_that_mixes_records_is_refused_before_the_charge() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=2, delta=1e-4)

    class Mixing(nn.Module):
        def forward(self, x: Any) -> Any:
            return x - x.mean(0)

    step = PrivateStep(
        nn.Sequential(nn.Linear(4, 3), Mixing()), loss, n_private=100, expected_batch_size=B, epsilon=1.5,
        delta=1e-4, steps=20, ledger=ledger, own_sampling=True,
    )  # fmt: skip
    for _ in range(2):
        with pytest.raises(AssumptionError, match="depends"):
            step.step(blobs(8, 1))
    assert not ledger.charges("people")


def test_the_model_is_not_wrapped() -> None:
    model = mlp()
    keys = list(model.state_dict())
    make(model).step(blobs(8, 1))
    assert list(model.state_dict()) == keys
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_samples_are_those_of_the_event() -> None:
    step = make(mlp(), own_sampling=False)
    sizes = [len(step.sample()) for _ in range(300)]
    assert abs(np.mean(sizes) - B) < 1 and 5 < np.var(sizes) < 14
    fixed = make(mlp(), relation="replace-one", own_sampling=False)
    assert {len(fixed.sample()) for _ in range(20)} == {10}
    with pytest.raises(InputError, match="fewer"):
        fixed.step(blobs(9, 1))
    with pytest.raises(InputError, match="10 records"):
        make(mlp(), relation="replace-one").step(blobs(9, 1))


def test_frozen_parameters_get_no_gradient() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    make(model).step(blobs(8, 1))
    assert model[0].weight.grad is None and model[2].weight.grad is not None


@pytest.mark.usefixtures("silent")
def test_augmentations_of_a_record_are_averaged_before_clipping() -> None:
    model, (x, y) = mlp(dtype=torch.float64), blobs(6, 1, torch.float64)
    copies = (x.repeat_interleave(2, 0), y.repeat_interleave(2))
    copies[0][1::2] += 0.3
    make(model, augmentations=2).step(copies)
    rows = gradients(model, copies).view(6, 2, -1).mean(1)
    torch.testing.assert_close(grads(model), clipped(rows).sum(0) / B, rtol=1e-12, atol=1e-14)


def test_a_mean_loss_is_converted_and_a_weighted_one_refused() -> None:
    model = mlp()
    plan: dict[str, Any] = {"n_private": 10, "expected_batch_size": 10, "noise_multiplier": 1.0}
    PrivateStep(model, nn.CrossEntropyLoss(), **plan).step(blobs(10, 1))
    with pytest.raises(InputError, match="reduction='none'"):
        PrivateStep(model, nn.CrossEntropyLoss(weight=torch.ones(3)), **plan)
    squares = PrivateStep(nn.Linear(4, 2), nn.MSELoss(), **plan)
    squares.step((torch.randn(10, 4), torch.randn(10, 2)))


def test_adaptive_parts_see_the_parameters_that_the_optimizer_made() -> None:
    model = mlp()
    step = PrivateStep(
        model, loss, method=ppsgd(clip_norm=1.0, clip_threshold=0.0, shrink=0.5, planned_steps=40),
        n_private=100, expected_batch_size=B, epsilon=2, delta=1e-4, steps=5, random_state=1,
        own_sampling=True,
    )  # fmt: skip
    bounds = [step.step(blobs(8, t), blobs(12, 50))["clip_norm"] for t in range(3)]
    assert bounds == [1.0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "epsilon, delta and steps"),
        ({"epsilon": 1, "noise_multiplier": 1}, "exclude"),
        ({"noise_multiplier": 0.0}, "positive"),
        ({"noise_multiplier": 1.0, "ledger": Ledger.in_memory()}, "pass steps"),
        ({"noise_multiplier": 1.0, "method": "only_public"}, "recipe"),
        ({"noise_multiplier": 1.0, "method": dope_sgd(start="warm", extended=True)}, "n_public"),
    ],
)
def test_bad_options_say_what_to_do(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        PrivateStep(mlp(), loss, n_private=10, expected_batch_size=5, **options)


def test_a_method_that_needs_public_records_asks_for_them() -> None:
    with pytest.raises(InputError, match="public"):
        make(mlp(), method=dope_sgd()).step(blobs(8, 1))
    with pytest.raises(InputError, match="no step"):
        _ = make(mlp()).privacy_


X, Y = blobs(30, 5)
NOT_BATCHES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing": (None, {}, "a batch is a pair"),
    "a tensor": (X, {}, "a batch is a pair"),
    "a dictionary": ({"x": X, "y": Y}, {}, "a batch is a pair"),
    "three tensors": ((X, Y, Y), {}, "a batch is a pair"),
    "arrays": ((X.numpy(), Y.numpy()), {}, "tensors with one row per record"),
    "unequal rows": ((X, Y[:9]), {}, "equally many"),
    "a part of a record": ((X, Y), {"augmentations": 7}, "augmentations=7"),
}


@pytest.mark.parametrize("what", NOT_BATCHES)
def test_what_is_no_batch_is_named_before_the_charge(what: str) -> None:
    batch, options, words = NOT_BATCHES[what]
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=2, delta=1e-4)
    plan: dict[str, Any] = {
        "n_private": 100,
        "expected_batch_size": B,
        "epsilon": 1.5,
        "delta": 1e-4,
        "steps": 2,
        "own_sampling": True,
    }
    step = PrivateStep(mlp(), loss, ledger=ledger, **plan, **options)
    with pytest.raises(InputError, match=words) as error:
        step.step(batch)
    assert "\n" not in str(error.value) and not ledger.charges("people")
    if not options:
        guided = PrivateStep(mlp(), loss, ledger=ledger, method=dope_sgd(), **plan)
        with pytest.raises(InputError, match=r"public|batch"):
            guided.step((X, Y), batch)
        with pytest.raises(InputError, match="RuntimeError"):
            guided.step((X, Y), (X[:, :2], Y))
    assert not ledger.charges("people")


@pytest.mark.parametrize("wrong", [{"example": 3}, {"identity": 3}, {"loss": 3}])
def test_an_argument_of_another_type_is_named(wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {
        "loss": loss,
        "n_private": 100,
        "expected_batch_size": B,
        "noise_multiplier": 1.0,
        **wrong,
    }
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must|batch is"):
        PrivateStep(mlp(), **options)


def test_a_batch_may_be_the_list_that_a_loader_gives() -> None:
    one, two = make(mlp(), example=list(blobs(6, 3))), make(mlp(), example=blobs(6, 3))
    one.step(list(blobs(8, 1)), list(blobs(8, 2)))  # type: ignore[arg-type]
    two.step(blobs(8, 1), blobs(8, 2))
    for p, q in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert p.grad is not None and torch.equal(p.grad, q.grad)


class Counted(nn.Module):
    """Divides by a number of the whole batch, as Hugging Face's num_items_in_batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any, items: Any = None) -> Any:
        return self.head(x) / (1 if items is None else items) * 1000


@pytest.mark.parametrize("extra", [40, 2.5, "secret", np.ones(3), True])
def test_a_batch_with_something_beside_its_rows_is_refused_in_one_line(extra: Any) -> None:
    """It would go to every record, and one record changes it: 9.7 C."""
    x, y = blobs(20, 1)
    step = make(Counted(), delta=1e-5)
    with pytest.raises(InputError, match="beside") as error:
        step.step(({"x": x, "items": extra}, y))
    assert "\n" not in str(error.value) and repr(extra) not in str(error.value)
    with pytest.raises(InputError, match="no step"):
        _ = step.privacy_
    step.step(({"x": x, "items": None}, y))
    assert all(p.grad is not None for p in step.model.parameters())


def test_relation_and_delta_are_the_ledgers_unless_given() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=4, delta=1e-4)
    plan = dict(n_private=100, expected_batch_size=8, steps=2, ledger=ledger, own_sampling=True)
    step = PrivateStep(mlp(), loss, epsilon=1, **plan)
    step(blobs(8, 1))
    assert (step.privacy_.relation, step.privacy_.delta) == ("replace-one", 1e-4)
    assert len(ledger.charges("people")) == 1
    again = PrivateStep(mlp(), loss, noise_multiplier=3.0, **plan)
    again(blobs(8, 1))
    assert again.privacy_.delta == 1e-4 and len(ledger.charges("people")) == 2
