"""Every method that networks take learns, within its budget, from the same files as linear models."""

from typing import Any

import pytest
import torch
from tests.deep.networks import blobs, loss, mlp

from sidelight.deep import LastLayer, PublicTraining, Trainer
from sidelight.deep.network_parts import last_layer_start
from sidelight.errors import AssumptionError, InputError, NotPrivateWarning, PrivacyWarning
from sidelight.methods.adamix import adamix
from sidelight.methods.coupling import coupling, weight_of_noise
from sidelight.methods.declare import get_method
from sidelight.methods.dope_sgd import Warm, dope_sgd
from sidelight.methods.dpmd import dpmd
from sidelight.methods.parts import Automatic, Ema
from sidelight.methods.ppsgd import GrowingBudget

PRIVATE, PUBLIC, TEST = blobs(600, 1), blobs(60, 2), blobs(300, 3)
STEPS = 25


def train(method: Any, **options: Any) -> Trainer:
    chosen = {
        "epsilon": 4,
        "delta": 1e-4,
        "expected_batch_size": 60,
        "steps": STEPS,
        "random_state": 1,
        **options,
    }
    return Trainer(mlp(), loss, method=method, **chosen).fit(PRIVATE, PUBLIC)


RECIPES = {
    "dp_sgd": get_method("dp_sgd"),
    "dope_sgd": get_method("dope_sgd"),
    "dope_sgd, limited": dope_sgd(origin_limit=0.1, start="cold", extended=True),
    "coupling": get_method("coupling"),
    "dpmd": dpmd(start="cold"),
    "adamix": adamix(rank=5),
    "adamix, last layer": adamix().with_parts(metric=LastLayer(8)),
    "adamix without projection": adamix().with_parts(metric=None),
    "adadps": get_method("adadps"),
    "sample_mechanism": get_method("sample_mechanism"),
    "ppsgd": get_method("ppsgd"),
    "only_private": get_method("only_private"),
    "full_private": get_method("full_private"),
    # Parts of four papers, in one recipe.
    "mixed": dope_sgd(finish=Ema(0.8)).with_parts(clip=Automatic(1.0, 0.1), noise=GrowingBudget()),
}


@pytest.mark.parametrize("method", RECIPES.values(), ids=RECIPES.keys())
def test_learns_within_its_budget(method: Any) -> None:
    trainer = train(method, warm_up=PublicTraining(5) if isinstance(method.start, Warm) else None)
    assert trainer.privacy_.epsilon <= 4 * (1 + 1e-6) and trainer.privacy_.method == method.name
    assert trainer.evaluate(TEST)["accuracy"] > 0.8  # at the start it is near a third


def test_only_public_reads_no_private_record() -> None:
    class Closed:
        def __len__(self) -> int:
            return 600

        def __getitem__(self, i: int) -> Any:
            raise AssertionError("a private record was read")

    trainer = Trainer(mlp(), loss, method="only_public", epsilon=1, steps=60, random_state=1)
    trainer.fit(Closed(), PUBLIC)
    assert trainer.privacy_.epsilon == 0 and trainer.evaluate(TEST)["accuracy"] > 0.8


def test_non_private_warns_and_states_no_guarantee() -> None:
    with pytest.warns(NotPrivateWarning):
        trainer = train("non_private")
    assert trainer.privacy_.epsilon == float("inf") and trainer.evaluate(TEST)["accuracy"] > 0.8


def test_the_weight_of_coupling_comes_from_public_estimates() -> None:
    trainer = train(coupling(bound=2.0))
    told = trainer.privacy_.details
    assert told["public_smoothness"] > 0 and told["public_start_loss"] > 0
    assert told["weight"] == weight_of_noise(
        smoothness=told["public_smoothness"], loss=told["public_start_loss"], bound=2.0, batch=60.0,
        noise_multiplier=told["noise_multiplier"], dimension=told["parameters"],
    )  # fmt: skip


def test_parts_that_need_a_linear_model_are_refused() -> None:
    with pytest.raises(AssumptionError, match="first-order"):
        train(dpmd(mirror="exact", start="cold"))
    with pytest.raises(InputError, match="linear model"):
        train(coupling(weight="theorem"))


def test_a_projection_has_as_many_coordinates_of_noise_as_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.deep.networks import Tape

    tape = Tape()
    monkeypatch.setattr("sidelight.methods.part_kinds.release", tape)
    train(adamix(rank=5), steps=2, warm_up=PublicTraining(5))
    assert [len(total) for total in tape.sums] == [5, 5]


def test_the_last_layer_alone_is_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.deep.networks import Tape

    tape = Tape()
    monkeypatch.setattr("sidelight.methods.part_kinds.release", tape)
    train(adamix().with_parts(metric=LastLayer(5)), steps=2, warm_up=PublicTraining(5))
    assert [len(total) for total in tape.sums] == [30 + 5, 30 + 5]  # 30 before, and 21 in the last layer
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 9))
    assert last_layer_start(model) == (36 + 20, list(model[2].parameters()))
    model[2].bias.requires_grad_(False)
    assert last_layer_start(model) == (36 + 20, [model[2].weight])
    model[2].weight = model[0].weight  # tied: the last parameters of its own are the layer before's
    assert last_layer_start(model) == (36, list(model[1].parameters()))
    with pytest.raises(InputError, match="at least 1"):
        train(adamix().with_parts(metric=LastLayer(0)), warm_up=PublicTraining(5))


@pytest.mark.parametrize("method", ["dope_sgd", "coupling"])
def test_weights_too_large_for_the_public_records_are_a_divergence(method: str) -> None:
    """They are finite themselves; the public gradient there is not."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5)), torch.nn.Linear(4, 3))
    trainer = Trainer(
        model, loss, method=method, epsilon=4, delta=1e-4, expected_batch_size=60, steps=4, random_state=1,
        warm_up=PublicTraining(0), validation=0.0,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=1e15),
    )  # fmt: skip
    with pytest.warns(PrivacyWarning, match="training diverged"):
        trainer.fit(PRIVATE, PUBLIC)
    assert all(weight.isfinite().all() for weight in trainer.model_.parameters())
