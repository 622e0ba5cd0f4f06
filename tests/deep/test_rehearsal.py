"""What can fail on public things fails before the charge, in one line."""

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deep.networks import blobs, loss, mlp, vector
from torch import nn
from torch.optim import SGD, Adagrad, Adam, RMSprop, SparseAdam, lr_scheduler
from torch.utils.data import Dataset, TensorDataset, random_split

from sidelight.deep import Checkpoints, PrivateStep, PublicTraining, Trainer
from sidelight.deep.rehearsal import rehearse, relative_rates
from sidelight.errors import InputError, SidelightError
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.observers import Callback, Observer
from sidelight.privacy.ledger import Ledger

STEPS = 6
PRIVATE, PUBLIC = blobs(60, 1), blobs(40, 2)
LABELS = PUBLIC[1].clone()
LABELS[33] = 9


class OneIsGone(Dataset[Any]):
    """A dataset of files of which one was deleted."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __len__(self) -> int:
        return len(PUBLIC[0])

    def __getitem__(self, i: int) -> Any:
        if i == self.at:
            raise OSError("no such file")
        return PUBLIC[0][i], PUBLIC[1][i]


class NeedsClosure(SGD):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return closure()


class OnlySteps:
    def step(self) -> None: ...


class AsksForEpochs:
    """As schedulers of timm do."""

    def step(self, epoch: int, metric: Any = None) -> None: ...


class BadPlan(Observer):
    def on_plan(self) -> None:
        raise OSError("no route to host")


class DropsItsInputs(nn.Module):
    """Whatever comes in is multiplied by a mask that is zero everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.last(x * (x > 1e9))


def no_way_back() -> nn.Module:
    """Scores are cut off where all of them are, so that no gradient comes through."""
    return nn.Sequential(mlp(), nn.Hardtanh(50, 60))


def last_layer_of_zeros() -> nn.Module:
    model = mlp()
    for parameter in model[2].parameters():  # type: ignore[index]
        nn.init.zeros_(parameter)
    return model


ODD = PUBLIC[0].clone()
ODD[33] = float("nan")


def sgd(parameters: Any) -> Any:
    return SGD(parameters, lr=0.1)


FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "a schedule shorter than the plan": (
        {"optimizer": sgd, "scheduler": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=3)},
        "OneCycleLR fails at step 4 of 6",
    ),
    "an optimizer of sparse gradients": (
        {"optimizer": lambda p: SparseAdam(p, lr=0.1)}, "SparseAdam fails at step 1",
    ),
    "an optimizer that asks for the loss": (
        {"optimizer": lambda p: NeedsClosure(p, lr=0.1)}, "NeedsClosure fails at step 1",
    ),
    "a schedule that fails late": (
        {"scheduler": lambda o: lr_scheduler.LambdaLR(o, lambda k: [1, 1, 1, 1][k])},
        "LambdaLR fails at step 4",
    ),
    "a schedule that is not finite": (
        {"scheduler": lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 if k < 5 else float("nan"))},
        "not finite",
    ),
    "a schedule that asks for the epoch": ({"scheduler": lambda o: AsksForEpochs()}, "no other argument"),
    "an optimizer that cannot be made": ({"optimizer": lambda p: SGD(p, lr=-1)}, "optimizer= fails"),
    "a schedule that cannot be made": ({"scheduler": lambda o: lr_scheduler.StepLR(o)}, "scheduler= fails"),
    "an optimizer of something else": (
        {"optimizer": lambda p: SGD([nn.Parameter(torch.zeros(2))], lr=1.0)}, "other parameters",
    ),
    "validation of another shape": (
        {"validation": TensorDataset(torch.randn(9, 5), torch.zeros(9).long())}, "validation=",
    ),
    "a validation label that does not exist": (
        {"validation": TensorDataset(blobs(40, 3)[0], LABELS)}, "validation=",
    ),
    "a validation record that is gone": ({"validation": OneIsGone(37)}, "no such file"),
    "a public record that is gone": (
        {"public": OneIsGone(37), "method": dope_sgd(), "validation": 0, "public_batch_size": 8},
        "no such file",
    ),
    "a public label that does not exist": (
        {"public": (PUBLIC[0], LABELS), "method": dope_sgd(), "validation": 0, "public_batch_size": 8},
        "public dataset",
    ),
    "a public record whose loss is not finite": (
        {"public": (ODD, PUBLIC[1]), "validation": 0}, "not finite on 1 of 40",
    ),
    "a model that drops its inputs": ({"model": DropsItsInputs()}, "same output"),
    "a model that drops its inputs, and auto": ({"model": DropsItsInputs(), "method": "auto"}, "same output"),
    "a last activation without a gradient": ({"model": no_way_back()}, "same output"),
    "public_augment that changes the shape": (
        {"method": dope_sgd(), "public_augment": lambda x: x[:, :2]}, "public_augment=",
    ),
    "augment that changes the shape": ({"augment": lambda x: x[:, :2], "public": None}, "two rows"),
    "checkpoints that cannot be written": ({"checkpoints": os.devnull}, "cannot be written"),
    "a state that no checkpoint holds": (
        {"checkpoints": "here", "optimizer": lambda p: SGD([{"params": p, "tag": object()}], lr=0.1)},
        "a checkpoint cannot hold",
    ),
    "a scheduler without a state": (
        {"checkpoints": "here", "scheduler": lambda o: OnlySteps()}, "a checkpoint cannot be written",
    ),
    "a warm start with an optimizer of sparse gradients": (
        {"warm_up": PublicTraining(steps=4, optimizer=lambda p: SparseAdam(p)), "method": dope_sgd()},
        "SparseAdam fails at step 1 of 4",
    ),
    "a warm start with a schedule that is too short": (
        {"warm_up": PublicTraining(steps=4, scheduler=lambda o: lr_scheduler.OneCycleLR(o, 1, total_steps=2)),
         "method": dope_sgd()},
        "OneCycleLR fails at step 3 of 4",
    ),
    "a warm start that augments to another shape": (
        {"warm_up": PublicTraining(steps=4, augment=lambda x: x[:, :2]), "method": dope_sgd()}, "augment=",
    ),
    "public records alone, and an optimizer of sparse gradients": (
        {"method": "only_public", "optimizer": lambda p: SparseAdam(p)}, "SparseAdam fails",
    ),
    "public records alone, and a label that does not exist": (
        {"method": "only_public", "public": (PUBLIC[0], LABELS)}, "public dataset|validation=",
    ),
    "an observer that fails at once": ({"observers": [BadPlan()]}, "BadPlan"),
}  # fmt: skip


def trainer(**options: Any) -> Trainer:
    plan = {"epsilon": 2, "delta": 1e-4, "steps": STEPS, "expected_batch_size": 20, "progress": False}
    return Trainer(options.pop("model", mlp()), loss, **{"method": dp_sgd(), **plan, **options})


def ledger_of_people() -> Ledger:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    return ledger


@pytest.mark.parametrize("what", FAILING)
def test_what_would_fail_in_the_run_is_refused_before_the_charge(what: str, tmp_path: Path) -> None:
    options, words = FAILING[what]
    options = dict(options)
    public = options.pop("public", PUBLIC)
    if options.get("checkpoints") == "here":
        options["checkpoints"] = Checkpoints(tmp_path, every=2)
    ledger = ledger_of_people()
    with pytest.raises(SidelightError, match=words) as error:
        trainer(ledger=ledger, **options).fit(PRIVATE, public)
    assert "\n" not in str(error.value) and not ledger.charges("people")


@pytest.mark.parametrize("method", [dp_sgd(), dope_sgd()])
def test_a_last_layer_that_begins_at_zero_is_no_constant_output(method: Any) -> None:
    model = last_layer_of_zeros()
    assert trainer(model=model, method=method).fit(PRIVATE, PUBLIC).history_


def test_public_records_that_are_alike_say_nothing_about_the_model() -> None:
    same = (PUBLIC[0][:1].expand(40, 4).clone(), PUBLIC[1])
    assert trainer(model=last_layer_of_zeros()).fit(PRIVATE, same).history_


def test_an_augmentation_may_lead_to_the_shape_that_the_model_takes() -> None:
    wide = torch.cat([PRIVATE[0], torch.zeros(60, 2)], 1)
    assert trainer(augment=lambda x: x[:, :4]).fit((wide, PRIVATE[1])).history_


def test_numbers_of_numpy_go_into_a_checkpoint(tmp_path: Path) -> None:
    made = trainer(checkpoints=Checkpoints(tmp_path, every=2), optimizer=lambda p: SGD(p, lr=np.float32(0.1)))
    assert len(made.fit(PRIVATE).history_) == STEPS


# ---------------------------------------------------------------------------------------------------
# the rehearsal changes nothing


class Remembers(SGD):
    """Keeps something beside its groups and its state, as optimizers of other libraries do."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.taken = [0]

    def step(self, closure: Any = None) -> Any:
        self.taken[0] += 1
        return super().step(closure)


MAKERS: dict[str, Any] = {
    "SGD": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: Adam(p, lr=0.1),
    "Adagrad": lambda p: Adagrad(p, lr=0.1),
    "RMSprop": lambda p: RMSprop(p, lr=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "groups": lambda p: SGD([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], lr=0.2),
    "with an attribute": lambda p: Remembers(p, lr=0.1),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("used", [False, True])
def test_a_rehearsal_leaves_everything_as_it_was(name: str, used: bool) -> None:
    model = mlp()
    optimizer = MAKERS[name](list(model.parameters()))
    scheduler = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1), lr_scheduler.CosineAnnealingLR(optimizer, 50)], [5]
    )
    if used:  # after training on public records, say
        loss(model(PUBLIC[0]), PUBLIC[1]).mean().backward()
        optimizer.step()
    before, weights = copy.deepcopy([optimizer.state_dict(), scheduler.state_dict()]), vector(model).clone()
    random = torch.get_rng_state()
    assert rehearse(optimizer, scheduler, steps=40)[0] is not optimizer
    torch.testing.assert_close([optimizer.state_dict(), scheduler.state_dict()], before, rtol=0, atol=0)
    assert torch.equal(vector(model), weights) and torch.equal(torch.get_rng_state(), random)
    if isinstance(optimizer, Remembers):
        assert optimizer.taken == [int(used)]


class Lookahead(torch.optim.Optimizer):
    """Keeps slow weights beside the state of another optimizer."""

    def __init__(self, parameters: Any) -> None:
        self.fast = Adam(parameters, lr=0.1)
        self.defaults, self.param_groups, self.state = (
            self.fast.defaults,
            self.fast.param_groups,
            self.fast.state,
        )
        self.slow, self.taken = [p.detach().clone() for p in parameters], 0

    def step(self, closure: Any = None) -> Any:
        self.fast.step()
        self.taken += 1
        for parameter, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            if self.taken % 2 == 0:
                parameter.data.copy_(slow.add_(parameter.detach() - slow, alpha=0.5))


class Relative(SGD):
    """A step as long as the weights, whatever the gradient: 0 is no gradient for it."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(parameter.grad, alpha=-0.01 / float(parameter.grad.norm()))


class FailsLate(Relative):
    def step(self, closure: Any = None) -> Any:
        super().step()
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken == 1:
            raise RuntimeError("not this either")


@pytest.mark.parametrize("make", [Lookahead, lambda p: Relative(p, lr=0.1)])
def test_an_optimizer_that_fails_on_small_zeros_alone_is_not_refused(make: Any) -> None:
    assert len(trainer(optimizer=make).fit(PRIVATE).history_) == STEPS


def test_an_optimizer_that_fails_in_full_size_too_is_refused() -> None:
    with pytest.raises(InputError, match="FailsLate"):
        trainer(optimizer=lambda p: FailsLate(p, lr=0.1)).fit(PRIVATE)


RATES = iter([1.0] * (STEPS + 1))


def _rates_of_a_closure(optimizer: Any) -> Any:
    rates, calls = iter([1.0] * (STEPS + 2)), [0]  # both schedulers begin with one

    def rate(_: int) -> float:
        calls[0] += 1
        assert calls[0] <= STEPS + 2
        return next(rates)

    return lr_scheduler.SequentialLR(optimizer, [lr_scheduler.LambdaLR(optimizer, rate)], [])


@pytest.mark.parametrize(
    "make", [_rates_of_a_closure, lambda o: lr_scheduler.LambdaLR(o, lambda _: next(RATES))]
)
def test_a_rehearsal_uses_up_nothing_that_a_schedule_reads_from(make: Any) -> None:
    assert len(trainer(optimizer=sgd, scheduler=make).fit(PRIVATE).history_) == STEPS


def test_a_dataset_may_keep_the_parts_that_it_was_split_into() -> None:
    data = TensorDataset(*PRIVATE)
    data.whole = KeepsParts(data)  # type: ignore[attr-defined]
    assert trainer().fit(data.whole.first).history_
    with pytest.raises(SidelightError, match="split off"):
        trainer(validation=data.whole.second).fit(data.whole.first)


class KeepsParts(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data
        self.first, self.second = random_split(self, [40, 20])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Any:
        return self.data[i]


def test_a_rehearsal_takes_the_rates_of_the_run() -> None:
    optimizer = SGD(mlp().parameters(), lr=1.0)
    found, schedule = rehearse(optimizer, lr_scheduler.StepLR(optimizer, 2, gamma=0.5), steps=5)
    assert found.param_groups[0]["lr"] == 0.25 and schedule is not None
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_a_loop_of_ones_own_rehearses_its_optimizer() -> None:
    model = mlp()
    step = PrivateStep(model, loss, n_private=60, expected_batch_size=20, epsilon=1, delta=1e-4, steps=STEPS)
    optimizer = Adam(model.parameters(), lr=0.1)
    assert step.rehearse(optimizer, lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)) is step
    with pytest.raises(InputError, match="OneCycleLR"):
        step.rehearse(optimizer, lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2))
    with pytest.raises(InputError, match="SparseAdam fails"):
        step.rehearse(SparseAdam(model.parameters()))
    with pytest.raises(InputError, match="optimizer must"):
        step.rehearse(model)  # type: ignore[arg-type]


def test_a_public_batch_that_fails_late_is_refused_before_the_charge() -> None:
    ledger = ledger_of_people()
    step = PrivateStep(
        mlp(), loss, method=dope_sgd(), n_private=60, expected_batch_size=None, epsilon=1, delta=1e-4,
        steps=2, ledger=ledger,
    )  # fmt: skip
    with pytest.raises(InputError, match="public records"):
        step(PRIVATE, (PUBLIC[0], LABELS))
    assert not ledger.charges("people")


# ---------------------------------------------------------------------------------------------------
# observers after the charge


class Unreachable(Observer):
    def on_finish(self, statement: Any) -> None:
        raise OSError("no route to host")


def typo(step: int, line: Mapping[str, Any]) -> None:
    print(line["lost"])


@pytest.mark.parametrize("observer", [Callback(typo), Unreachable()])
def test_an_observer_that_fails_after_the_charge_costs_neither_budget_nor_model(observer: Observer) -> None:
    heard: list[int] = []
    made = trainer(observers=[observer, Callback(lambda step, line: heard.append(step))])
    with pytest.warns(RuntimeWarning, match=type(observer).__name__):
        made.fit(PRIVATE)
    assert heard == list(range(1, STEPS + 1)) and len(made.history_) == STEPS and made.privacy_.epsilon <= 2


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 - step / 4), (1.0, 0.75, 0.5, 0.25)),
        (lambda o: lr_scheduler.StepLR(o, 2), (1.0, 1.0, 0.1, 0.1)),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: step / 3), (0.0, 1 / 3, 2 / 3, 1.0)),
        (lambda o: None, ()),
        (lambda o: OnlySteps(), ()),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o), ()),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=3), ()),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: float("nan") if step else 1.0), ()),
    ],
)
def test_step_sizes_are_known_beforehand_or_taken_for_equal(schedule: Any, rates: tuple[float, ...]) -> None:
    optimizer = SGD(mlp().parameters(), lr=0.3)
    made = schedule(optimizer)
    before = optimizer.param_groups[0]["lr"]
    assert relative_rates(optimizer, made, 4) == pytest.approx(rates)
    assert optimizer.param_groups[0]["lr"] == before
    assert getattr(made, "last_epoch", 0) == 0
