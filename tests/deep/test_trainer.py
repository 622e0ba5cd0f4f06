"""Trainer: the budget, the order of charge and reading, what it refuses, and what comes out."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deep.networks import Listed, Tape, blobs, loss, mlp, vector
from tests.private_values import value_of
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sidelight.deep import Loading, PublicTraining, Trainer
from sidelight.deep.language import model_card
from sidelight.errors import (
    AssumptionError,
    BudgetExceeded,
    InputError,
    PrivacyConditionError,
    PrivacyWarning,
)
from sidelight.methods.coupling import coupling
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.observers import TrainingProgress
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.state import HONEST_CODE
from sidelight.privacy import accountants, events
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.release import BoundedSum
from sidelight.privacy.statement import PrivacyStatement

PRIVATE, PUBLIC, TEST = blobs(200, 1), blobs(60, 2), blobs(200, 3)


def make(model: Any = None, **options: Any) -> Trainer:
    chosen = {
        "epsilon": 3,
        "delta": 1e-4,
        "expected_batch_size": 20,
        "steps": 6,
        "random_state": 1,
        "health_check": False,  # it would be one more release (tests/deep/test_network_health.py)
        **options,
    }
    return Trainer(mlp() if model is None else model, loss, **chosen)


def test_a_fit_spends_what_it_says() -> None:
    trainer = make(method=dp_sgd(clip_norm=1.0)).fit(PRIVATE)
    statement = trainer.privacy_
    assert statement.epsilon <= 3 and statement.delta == 1e-4 and statement.method == "dp_sgd"
    z = statement.details["noise_multiplier"]
    planned = events.repeat(events.poisson(0.1, z), 6)
    assert events.elementary(statement.plan) == events.elementary(planned)
    assert accountants.epsilon(planned, delta=1e-4, relation="add-or-remove-one") == statement.epsilon
    assert len(trainer.history_) == 6 and not trainer.stopped_
    assert any("seed" in line for line in statement.assumptions)
    assert HONEST_CODE in statement.assumptions


def test_a_method_without_settings_takes_the_plan_of_auto() -> None:
    """Batch, steps and decay: it took 64 steps of size 0.5 on all records."""
    private = blobs(3000, 1)
    options = {"expected_batch_size": None, "steps": None, "validation": 0.0}
    alone = make(**options).fit(private).privacy_
    for method in (dp_sgd(), coupling()):
        named = make(method=method, **options).fit(private, PUBLIC)
        assert {name: named.privacy_.details[name] for name in ("steps", "expected_batch_size")} == {
            "steps": alone.details["steps"],
            "expected_batch_size": 512,
        }
        size, whole = named.privacy_.details["step_size"], alone.details["step_size"]
        assert size == pytest.approx(whole if method.name == "dp_sgd" else 0.7 * whole)
        assert (
            named.privacy_.epsilon == pytest.approx(alone.epsilon, rel=1e-3)
            and len(named.history_) == alone.details["steps"]
        )


def test_what_a_method_or_the_user_says_is_kept() -> None:
    private = blobs(3000, 1)
    plan = make(method=dp_sgd(step_size=0.1), expected_batch_size=300, steps=None).fit(private).privacy_
    assert plan.details["expected_batch_size"] == 300 and "step_size" not in plan.details
    rates: list[float] = []

    def seen(optimizer: torch.optim.Optimizer) -> Any:
        rates.append(optimizer.param_groups[0]["lr"])
        return torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)

    make(method=dp_sgd(step_size=0.1, steps=3), steps=None, scheduler=seen).fit(private)
    assert rates == [0.1]


def test_steps_that_are_left_open_become_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = torch.optim.SGD.step

    def heard(self: torch.optim.SGD, *args: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args)

    monkeypatch.setattr(torch.optim.SGD, "step", heard)
    chosen = make(method="dp_sgd", steps=None).fit(PRIVATE).privacy_.details
    first, steps = chosen["step_size"], chosen["steps"]
    assert len(rates) == steps and rates[0] == first and sorted(rates, reverse=True) == rates
    assert rates[steps // 2] == pytest.approx(first / 2, rel=0.1) and rates[-1] < 0.01 * first
    rates.clear()
    first = make(method="dp_sgd", steps=4).fit(PRIVATE).privacy_.details["step_size"]
    assert rates[:3] == [
        first,
        pytest.approx(0.854 * first, rel=1e-3),
        pytest.approx(first / 2),
    ]  # given or not
    rates.clear()
    assert "step_size" not in make(method=dp_sgd(step_size=0.1), steps=3).fit(PRIVATE).privacy_.details
    assert rates == [0.1] * 3


def test_repr_says_the_budget_and_what_was_spent() -> None:
    trainer = make(method="dp_sgd")
    assert repr(trainer) == (
        "Trainer(Sequential) [ε = 3, δ = 0.0001, the default relation, dp_sgd: nothing spent yet]"
    )
    said = repr(trainer.fit(PRIVATE))
    assert said.startswith("Trainer(Sequential) [ε = 3, δ = 0.0001, add-or-remove-one, dp_sgd: spent ε = ")
    assert trainer.privacy_.epsilon <= float(said.rpartition("= ")[2].rstrip("]")) <= 3


def test_epochs_are_passes_over_the_records() -> None:
    assert len(make(steps=None, epochs=0.5).fit(PRIVATE).history_) == 5
    with pytest.raises(InputError, match="not both"):
        make(epochs=1).fit(PRIVATE)


def test_the_plan_is_charged_before_a_record_is_read(capfd: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    private = Listed(PRIVATE, on_fetch=lambda _: os.write(1, b"%d\n" % len(ledger.charges("people"))))
    make(ledger=ledger, method=dope_sgd()).fit(private, PUBLIC)
    assert set(capfd.readouterr().out.split()) == {"1"}


def test_a_budget_that_is_spent_stops_before_anything_is_read() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=2, delta=1e-4)
    private, model = Listed(PRIVATE), mlp()
    before = vector(model)
    with pytest.raises(BudgetExceeded):
        make(model, ledger=ledger).fit(private)
    assert private.fetched == 0 and torch.equal(vector(model), before) and not ledger.charges("people")


def test_a_filter_ends_the_run_within_its_budget() -> None:
    trainer = make(method="ppsgd", steps=500).fit(PRIVATE, PUBLIC)
    assert 1 <= len(trainer.history_) < 500 and trainer.privacy_.epsilon <= 3 * (1 + 1e-9)


@pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("same_noise")
def test_workers_and_microbatches_do_not_change_the_result() -> None:
    found = []
    for private, loading in [
        (TensorDataset(*PRIVATE), Loading()),
        (Listed(PRIVATE), Loading()),
        (Listed(PRIVATE), Loading(workers=2, micro_batch=7)),
        (TensorDataset(*PRIVATE), Loading(micro_batch=1)),
    ]:
        model = mlp()
        make(model, method=dope_sgd(clip_norm=0.5), loading=loading).fit(private, PUBLIC)
        found.append(vector(model))
    assert torch.equal(found[0], found[1])
    for other in found[2:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


def test_empty_batches_train_on_noise_alone() -> None:
    trainer = make(expected_batch_size=0.2).fit(PRIVATE)
    assert vector(trainer.model).isfinite().all() and len(trainer.history_) == 6


def test_a_record_that_is_not_finite_changes_nothing_else() -> None:
    x = PRIVATE[0].clone()
    x[:3] = float("nan")
    assert vector(make(expected_batch_size=150).fit((x, PRIVATE[1])).model).isfinite().all()


def test_scores_on_private_records_are_refused() -> None:
    base = TensorDataset(*blobs(300, 5))
    private, test = Subset(base, range(200)), Subset(base, range(200, 300))
    trainer = make().fit(private)
    assert set(trainer.evaluate(test)) == {"loss", "accuracy"}
    for data in (private, Subset(base, [199, 200]), base, (base.tensors[0][:50], base.tensors[1][:50])):
        with pytest.raises(PrivacyConditionError, match="public or test"):
            trainer.evaluate(data)
    with pytest.raises(PrivacyConditionError, match="validation"):
        make(validation=Subset(base, [0, 1])).fit(private)
    with pytest.raises(InputError, match="both datasets"):
        make(method=dope_sgd()).fit(private, Subset(base, [150, 250]))


class Wrapped(torch.utils.data.Dataset[Any]):
    """A transform of another dataset, as everybody writes it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        x, y = self.inner[i]
        return x + 0, y


def base_of() -> TensorDataset:
    return TensorDataset(*blobs(300, 5))


def halves(base: Any) -> tuple[Any, Any]:
    return Subset(base, range(200)), Subset(base, range(200, 300))


def slices(x: Any, y: Any) -> tuple[Any, Any]:
    return (x[:200], y[:200]), TensorDataset(x[200:], y[200:])


SPLITS: dict[str, Any] = {
    "random_split": lambda: torch.utils.data.random_split(base_of(), [200, 100]),
    "subset of a subset": lambda: halves(Subset(base_of(), range(300))),
    "concatenation": lambda: halves(ConcatDataset([TensorDataset(*blobs(100, 8)), base_of()])),
    "slices of tensors": lambda: slices(*blobs(300, 5)),
    "items": lambda: halves(Listed(blobs(300, 5))),
    "each wrapped": lambda: tuple(map(Wrapped, halves(base_of()))),
    "one wrapped": lambda: (lambda one, other: (one, Wrapped(other)))(*halves(Wrapped(base_of()))),
}


@pytest.mark.parametrize("kind", SPLITS)
@pytest.mark.parametrize("method", [dope_sgd(), "auto", "only_public"], ids=str)
def test_a_part_of_the_private_dataset_is_no_validation_unless_it_is_public(kind: str, method: Any) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=50, delta=1e-4)
    private, held = SPLITS[kind]()
    options: dict[str, Any] = {"method": method, "validation": held, "ledger": ledger}
    if method == "auto":
        options |= {"expected_batch_size": 100, "steps": 4}
    for public in (None, PUBLIC):
        if public is None and method == "only_public":
            continue
        with pytest.raises(PrivacyConditionError, match="split off"):
            make(**options).fit(private, public)
    assert not ledger.charges("people")
    declared: Any = ConcatDataset([TensorDataset(*PUBLIC), held])
    trainer = make(**options).fit(private, declared)
    assert trainer.privacy_.details["public_records"] == len(PUBLIC[0])  # what is scored is not learned from
    assert trainer.privacy_.details["public_records_held_out"] == len(held)


def test_one_dataset_may_be_split_into_private_and_public_records() -> None:
    base = base_of()
    private, public = Subset(base, range(200)), Subset(base, range(200, 300))
    trainer = make(method=dope_sgd(), validation=0.2).fit(private, public)
    assert trainer.privacy_.details["public_records"] == 80
    inside = make(method=dope_sgd(), validation=Subset(base, range(280, 300))).fit(private, public)
    assert inside.privacy_.details["public_records"] == 80
    with pytest.raises(PrivacyConditionError, match="private records"):
        make(validation=Subset(base, [199, 200])).fit(private, public)
    with pytest.raises(InputError, match="every public"):
        make(method=dope_sgd(), validation=public).fit(private, public)


def test_validation_scores_are_of_public_records_set_apart() -> None:
    trainer = make(method=dope_sgd(), validation=0.5).fit(PRIVATE, PUBLIC)
    assert "validation_accuracy" in trainer.history_[-1]
    assert trainer.privacy_.details["public_records"] == 30
    few = TEST[0][:30], TEST[1][:30]  # too few for a temperature
    other = make(validation=TensorDataset(*few)).fit(PRIVATE)
    assert other.history_[-1]["validation_loss"] == pytest.approx(other.evaluate(few)["loss"])


def test_history_tells_what_a_report_shows_and_nothing_private() -> None:
    """The keys of linear models, and the public loss, which came with the public gradient."""
    plain = make(method=dp_sgd(clip_norm=0.5)).fit(PRIVATE).history_
    assert plain[0].pop("route") == "layers"
    assert {tuple(entry) for entry in plain} == {
        ("step", "spent", "noise_multiplier", "clip_norm", "noise_std")
    }
    guided = make(method=dope_sgd(clip_norm=0.5, start="cold"), validation=0.0, public_batch_size=60)
    first = guided.fit(PRIVATE, PUBLIC).history_[0]
    model = mlp()
    want = loss(model(PUBLIC[0]), PUBLIC[1]).mean()
    assert first["public_loss"] == pytest.approx(want.item(), rel=1e-5)
    gradient = torch.autograd.grad(want, list(model.parameters()))
    assert first["public_gradient_norm"] == pytest.approx(
        float(torch.cat([g.flatten() for g in gradient]).norm()), rel=1e-4
    )
    assert first["noise_std"] == pytest.approx(first["noise_multiplier"] * 0.5 / 20)
    adaptive = make(method="ppsgd", validation=0.0).fit(PRIVATE, PUBLIC).history_
    assert all("public_loss" in entry for entry in adaptive)
    assert [key for key in adaptive[0] if key.endswith("_left")], "what a filter has left"


def test_warm_up_trains_on_public_records_first() -> None:
    warm = PublicTraining(steps=60, batch_size=30, augment=lambda x: x + 0.01 * torch.randn_like(x))
    model = mlp()
    trainer = make(model, method=dp_sgd(clip_norm=1e-6), warm_up=warm, steps=1).fit(PRIVATE, PUBLIC)
    assert trainer.evaluate(TEST)["accuracy"] > 0.85
    with pytest.raises(InputError, match="public"):
        make(warm_up=warm).fit(PRIVATE)


def test_extended_samples_the_larger_pool() -> None:
    trainer = make(method=dope_sgd(start="warm", extended=True), validation=0.0).fit(PRIVATE, PUBLIC)
    assert trainer.privacy_.details["sampling_probability"] == pytest.approx(20 / 260)
    full = make(method="full_private").fit(PRIVATE, PUBLIC)
    assert full.privacy_.details["sampling_probability"] == pytest.approx(20 / 260)


def test_optimizer_and_scheduler_are_the_users() -> None:
    made: list[Any] = []

    def optimizer(parameters: Any) -> Any:
        made.append(torch.optim.Adam(parameters, lr=0.1))
        return made[0]

    make(optimizer=optimizer, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)).fit(PRIVATE)
    assert made[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)


@pytest.mark.usefixtures("same_noise")
def test_autocast_around_a_fit_trains_in_half_the_precision(capfd: pytest.CaptureFixture[str]) -> None:
    model = mlp()  # a model that fills a list is refused, and what it logs or prints withheld
    model[0].register_forward_hook(lambda *of: (os.write(1, f"{of[2].dtype}\n".encode()), None)[1])
    with torch.autocast("cpu", torch.bfloat16):
        make(model, method=dope_sgd(clip_norm=0.5)).fit(PRIVATE, PUBLIC)
    other = make(method=dope_sgd(clip_norm=0.5)).fit(PRIVATE, PUBLIC)
    assert "torch.bfloat16" in capfd.readouterr().out and vector(model).dtype == torch.float32
    torch.testing.assert_close(vector(model), vector(other.model), rtol=0.01, atol=0.01)


def test_frozen_parameters_stay_and_are_not_in_the_noise() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    frozen, trained = model[0].weight.clone(), model[2].weight.clone()
    trainer = make(model, method=dope_sgd()).fit(PRIVATE, PUBLIC)
    assert torch.equal(model[0].weight, frozen) and not torch.equal(model[2].weight, trained)
    assert trainer.privacy_.details["parameters"] == 21


ADAM = torch.optim.Adam(nn.Linear(2, 2).parameters())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epsilon": "much"}, "epsilon must be a positive number"),
        ({"delta": "little"}, "delta must be a positive number"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"public_batch_size": 0}, "public_batch_size"),
        ({"augmentations": 1.5}, "augmentations must be a whole number"),
        ({"random_state": -1}, "random_state"),
        ({"augment": 3}, "augment must be a function"),
        ({"optimizer": "Adam"}, "optimizer must be a function that makes one"),
        ({"optimizer": ADAM}, r"lambda parameters: torch.optim.Adam\(parameters, ...\), not Adam"),
        (
            {"scheduler": torch.optim.lr_scheduler.StepLR(ADAM, 10)},
            r"lambda optimizer: torch.optim.lr_scheduler.StepLR\(optimizer, ...\), not StepLR",
        ),
        ({"validation": 1.5}, "share in"),
        ({"model": nn.ReLU()}, "no trainable parameters"),
    ],
)
def test_bad_settings_are_named_before_anything_is_charged(options: dict[str, Any], match: str) -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    with pytest.raises(InputError, match=match):
        make(ledger=ledger, **options).fit(PRIVATE, PUBLIC)
    assert not ledger.charges("people")


def test_methods_without_checkpoints_are_not_resumed() -> None:
    with pytest.raises(InputError, match="only_public"):
        make(method="only_public").fit(PRIVATE, PUBLIC, resume=True)


def test_bad_data_is_named() -> None:
    for data, match in (
        ((PRIVATE[0].numpy(), PRIVATE[1].numpy()), "pair of tensors"),
        ((PRIVATE[0], PRIVATE[1][:5]), "equally many rows"),
        ((PRIVATE[0][:0], PRIVATE[1][:0]), "no private records"),
        (None, "map-style"),
    ):
        with pytest.raises(InputError, match=match):
            make().fit(data)
    with pytest.raises(AssumptionError, match="IndexError"):  # of a public record
        make(method=dope_sgd()).fit(PRIVATE, (PUBLIC[0], PUBLIC[1] + 5))


def test_predict_gives_classes() -> None:
    trainer = make(method="only_public", steps=50).fit(PRIVATE, PUBLIC)
    accuracy = float((trainer.predict(TEST[0]) == TEST[1]).double().mean())
    assert accuracy == pytest.approx(trainer.evaluate(TEST)["accuracy"]) and accuracy > 0.85


def test_progress_shows_the_epsilon_spent(capsys: pytest.CaptureFixture[str]) -> None:
    make(progress=True, validation=TensorDataset(*TEST)).fit(PRIVATE)
    shown = capsys.readouterr().err
    assert "ε " in shown and "loss " in shown


def test_the_progress_bar_is_there_before_the_first_step() -> None:
    with TrainingProgress(True) as bar:
        assert bar._bar is not None and bar._bar.tasks[0].description == "public records and plan"
        assert bar._bar.tasks[0].total is None


def test_methods_of_linear_models_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="rsgd_ar"):
        make(method="rsgd_ar").fit(PRIVATE)
    with pytest.raises(InputError, match="linear model"):
        make(method="public_whitening").fit(PRIVATE, PUBLIC)
    with pytest.raises(InputError, match="public dataset"):
        make(method="dope_sgd").fit(PRIVATE)


def test_models_that_mix_records_are_refused_before_the_charge() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.raises(AssumptionError, match="replace_batch_norm"):
        make(model, ledger=ledger).fit(PRIVATE)
    assert not ledger.charges("people")


def test_norms_that_were_frozen_stay_frozen() -> None:
    """The way out for a pre-trained model: its averages are not of private records, and stay as they are."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.Linear(6, 3))
    model(PUBLIC[0])  # averages of public records
    mean, scale = model[1].running_mean.clone(), model[1].weight.detach().clone()
    model[1].eval()
    make(model, method=dope_sgd()).fit(PRIVATE, PUBLIC)
    assert not model[1].training and model[2].training
    assert torch.equal(model[1].running_mean, mean) and not torch.equal(model[1].weight, scale)
    model.eval()
    make(model, method=dope_sgd()).fit(PRIVATE, PUBLIC)
    assert model[2].training and torch.equal(model[1].running_mean, mean)
    with pytest.raises(AssumptionError, match=r"replace_batch_norm|eval"):
        make(model.train()).fit(PRIVATE)


class Mixing(nn.Module):
    """Subtracts the mean of its batch: no layer is at fault, and no record stands alone."""

    def forward(self, x: Any) -> Any:
        return x - x.mean(0)


@pytest.mark.parametrize("kind", ["tensors", "subset", "validation", "public", "one by one"])
def test_a_model_that_mixes_records_costs_nothing(kind: str) -> None:
    """Before the charge, with the shape of tensors or public records; else the charge is given back."""
    ledger = Ledger.in_memory()
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    listed = Listed(PRIVATE)
    private: Any = {"tensors": PRIVATE, "subset": Subset(TensorDataset(*PRIVATE), range(150))}.get(
        kind, listed
    )
    options: dict[str, Any] = {"validation": TensorDataset(*TEST)} if kind == "validation" else {}
    model = nn.Sequential(nn.Linear(4, 6), Mixing(), nn.Linear(6, 3))
    with pytest.raises(AssumptionError, match=r"batch|depends"):
        make(model, ledger=ledger, **options).fit(private, PUBLIC if kind == "public" else None)
    assert ledger.remaining("people") == pytest.approx(5)
    assert len(ledger.charges("people")) == (kind == "one by one")
    looked_at = 64 if kind == "one by one" else 0
    assert listed.fetched == looked_at, "the usual shape is read off a few records, after the charge"


@pytest.mark.usefixtures("same_noise")
def test_a_record_on_which_the_loss_fails_ends_nothing() -> None:
    x, y = PRIVATE[0].clone(), PRIVATE[1].clone()
    y[:5] = 17
    trainer = make(expected_batch_size=None, steps=2).fit((x, y))
    x[:5] = float("nan")
    other = make(expected_batch_size=None, steps=2).fit((x, PRIVATE[1]))
    torch.testing.assert_close(vector(trainer.model), vector(other.model))


def test_a_careless_delta_warns() -> None:
    with pytest.warns(PrivacyWarning, match="1/n"):
        make(delta=0.01, expected_batch_size=None).fit(PRIVATE)
    assert make(delta=None, expected_batch_size=None).fit(PRIVATE).privacy_.delta == 1e-5


# ---------------------------------------------------------------------------------------------------
# the neighbor contract: a run with a record and one without it, asked the same questions


def record(
    monkeypatch: pytest.MonkeyPatch, batch: list[int], like: Tape | None = None, **options: Any
) -> Any:
    tape = Tape(like)
    model = mlp(dtype=torch.float64)
    monkeypatch.setattr("sidelight.methods.part_kinds.release", tape)
    monkeypatch.setattr("sidelight.privacy.events.Poisson.indices", lambda *_: torch.tensor(batch).numpy())
    private, public = blobs(40, 1, torch.float64), blobs(30, 2, torch.float64)
    # The record in question is far out, and labeled wrongly.
    private[0][7], private[1][7] = -50 * private[0][7], 2
    chosen: dict[str, Any] = {"method": dope_sgd(clip_norm=0.1), "steps": 3, **options}
    trainer = make(model, **chosen).fit(private, public)
    return tape, vector(model), trainer


def contract(monkeypatch: pytest.MonkeyPatch, **options: Any) -> float:
    """A record moves no sum beyond the sensitivity, and nothing outside of the sums at all."""
    here, w, trainer = record(monkeypatch, [3, 7, 11, 20], **options)
    there, other, neighbor = record(monkeypatch, [3, 11, 20], like=here, **options)
    share = here.largest_share(there)
    assert share <= 1 + 1e-9, f"one record moved a private sum by {share:.6g} times its sensitivity"
    assert torch.equal(w, other) and trainer.history_ == neighbor.history_
    return share


@pytest.mark.parametrize("method", ["dope_sgd", "coupling", "adadps"])
def test_neighboring_data_moves_the_sum_at_most_by_its_sensitivity(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    options = {} if method == "dope_sgd" else {"method": method, "warm_up": PublicTraining(steps=2)}
    assert contract(monkeypatch, **options) > 0.5


def test_augmented_records_keep_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    contract(monkeypatch, augmentations=3, augment=lambda x: x * 1.1)


def test_contract_catches_an_origin_inside_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NetworkOracle.clipped_sum

    def faulty(self: Any, batch: Any, *, origin: Any, **options: Any) -> BoundedSum:
        total = honest(self, batch, origin=origin, **options)
        value = value_of(total) + len(batch[1]) * origin
        return BoundedSum(value, sensitivity=total.sensitivity, relation=total.relation)

    monkeypatch.setattr(NetworkOracle, "clipped_sum", faulty)
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(monkeypatch)


def test_contract_catches_augmentations_that_are_clipped_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NetworkOracle.clipped_sum

    def faulty(self: Any, batch: Any, *, augmentations: int, **options: Any) -> BoundedSum:
        return honest(self, batch, augmentations=1, **options)

    monkeypatch.setattr(NetworkOracle, "clipped_sum", faulty)
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(monkeypatch, augmentations=3)


def test_contract_catches_a_divisor_that_is_the_realised_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NetworkOracle.clipped_sum

    def faulty(self: Any, batch: Any, **options: Any) -> BoundedSum:
        total = honest(self, batch, **options)
        value = value_of(total) * 20 / len(batch[1])
        return BoundedSum(value, sensitivity=total.sensitivity, relation=total.relation)

    monkeypatch.setattr(NetworkOracle, "clipped_sum", faulty)
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(monkeypatch)


def test_only_public_states_the_relation_and_delta_of_the_ledger_and_charges_nothing() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation="replace-one", epsilon=2, delta=1e-4)
    trainer = Trainer(mlp(), loss, method="only_public", epsilon=1, ledger=ledger).fit(PRIVATE, PUBLIC)
    assert (trainer.privacy_.relation, trainer.privacy_.delta) == ("replace-one", 1e-4)
    assert trainer.privacy_.epsilon == 0 and not ledger.charges("people")


# ---------------------------------------------------------------------------------------------------
# the card of a saved model


class Saved(nn.Linear):
    """A layer that is saved as a model of transformers is."""

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "model.safetensors").write_bytes(b"weights")
        (Path(folder) / "parts").mkdir()
        (Path(folder) / "parts" / "more").write_bytes(b"weights")


def statement(**facts: Any) -> PrivacyStatement:
    given: dict[str, Any] = {"epsilon": 1.234449, "delta": 1e-5, "relation": "add-or-remove-one"}
    return PrivacyStatement(**{**given, "method": "dp_sgd", "plan": events.gaussian(4.0), **facts})


def test_a_card_promises_what_the_statement_does_and_no_less_epsilon() -> None:
    model = Saved(2, 1)
    assert "| ε | 1.235 |" in model_card(statement(), model) and "| δ | 1e-05 |" in model_card(
        statement(), model
    )
    assert "with and without any one" in model_card(statement(), model)
    replaced = model_card(statement(relation="replace-one", unit="patient"), model)
    assert "whatever any one of them is replaced by" in replaced and "with and without" not in replaced
    assert "each person, by patient, with all rows of theirs" in replaced


def test_no_card_stands_beside_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two files: weights of this run, and the card of the one before."""
    trainer = Trainer(Saved(3, 2), nn.CrossEntropyLoss(), method=dp_sgd(), epsilon=2, delta=1e-4, steps=2)
    trainer.fit((torch.randn(40, 3), torch.randint(0, 2, (40,))))
    folder = trainer.save_pretrained(tmp_path / "model")
    trainer.save_pretrained(folder)  # again, over what is there
    assert (folder / "README.md").exists() and (folder / "privacy.json").exists()

    whole = os.replace

    def killed(source: Any, target: Any) -> None:
        if Path(target).parent == folder:
            raise KeyboardInterrupt
        whole(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.save_pretrained(folder)
    assert not (folder / "README.md").exists() and not (folder / "privacy.json").exists()


@pytest.mark.parametrize(
    "method", ["only_public", "auto", dope_sgd(clip_norm=1.0)], ids=["only_public", "auto", "dope_sgd"]
)
def test_a_statement_counts_every_public_record(method: Any) -> None:
    """Those that are set apart, too."""
    details = make(method=method, validation=0.25).fit(PRIVATE, PUBLIC).privacy_.details
    assert (details["public_records"], details["public_records_held_out"]) == (45, 15)
