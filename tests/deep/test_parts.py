"""The public guide, finishes and ensembles, and which records two datasets share."""

from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.deep.networks import Listed, blobs, gradients, loss, mlp, vector
from torch import nn
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from sidelight.clipping import Diagonal
from sidelight.deep import (
    Ensemble,
    Loading,
    MajorityVote,
    MeanLogits,
    NetworkGuide,
    PrivateStep,
    Trainer,
)
from sidelight.deep.network_parts import EnsembleWeights
from sidelight.errors import InputError
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.part_kinds import MetricRule, MetricState, Mix, MixState
from sidelight.methods.parts import Automatic, Ema, MeanLast, MeanLastHalf, TailState, WindowState
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.ledger import Ledger
from sidelight.problems.dataset_overlap import repeats_a_record, shared_records
from sidelight.problems.datasets import Records, as_dataset
from sidelight.problems.flat_parameters import read, write

CPU = torch.device("cpu")


def guide_of(model: Any, data: Any, **options: Any) -> NetworkGuide:
    guide = NetworkGuide(NetworkOracle(model, loss), Records(TensorDataset(*data), Loading(), CPU), **options)
    guide.draw(0)
    return guide


def test_the_guide_answers_as_gradients_one_by_one_do() -> None:
    model, data = mlp(dtype=torch.float64), blobs(12, 1, torch.float64)
    guide, rows = guide_of(model, data, micro_batch=5), gradients(model, data)
    w = read(model) * 1.0
    torch.testing.assert_close(guide.mean_gradient(w), rows.mean(0))
    torch.testing.assert_close(guide.gradients(w), rows)
    scale, origin = torch.rand_like(w) + 0.5, rows[3]
    norms = guide.gradient_norms(w, metric=Diagonal(scale), origin=origin)
    np.testing.assert_allclose(norms, (scale * (rows - origin)).norm(dim=1), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        assert guide.mean_loss(w) == pytest.approx(float(loss(model(data[0]), data[1]).mean()))


def test_smoothness_is_the_top_eigenvalue_of_the_hessian() -> None:
    model, data = nn.Linear(4, 3).double(), blobs(50, 1, torch.float64)
    found = guide_of(model, data).smoothness(iterations=200)

    def mean(w: Any, b: Any) -> Any:
        return loss(data[0] @ w.T + b, data[1]).mean()

    blocks = torch.func.jacrev(torch.func.jacrev(mean, argnums=(0, 1)), argnums=(0, 1))(
        model.weight.detach(), model.bias.detach()
    )
    rows = [torch.cat([blocks[i][j].reshape(n, -1) for j in range(2)], 1) for i, n in ((0, 12), (1, 3))]
    assert found == pytest.approx(float(torch.linalg.eigvalsh(torch.cat(rows)).abs().max()), rel=1e-4)


def test_held_out_records_are_what_the_loss_is_of() -> None:
    model, apart = mlp(), blobs(20, 9)
    guide = guide_of(model, blobs(30, 1), held_out=Records(TensorDataset(*apart), Loading(), CPU))
    with torch.no_grad():
        assert guide.mean_loss(read(model)) == pytest.approx(float(loss(model(apart[0]), apart[1]).mean()))


def test_public_batches_depend_on_seed_and_step_alone() -> None:
    model, data = mlp(), blobs(100, 1)
    one, two = guide_of(model, data, batch_size=10, seed=4), guide_of(model, data, batch_size=10, seed=4)
    one.draw(7)
    two.draw(3)
    assert not torch.equal(one.batch[0], two.batch[0])
    two.draw(7)
    assert torch.equal(one.batch[0], two.batch[0]) and len(one.batch[0]) == 10


def test_too_many_gradients_are_refused_with_a_way_out() -> None:
    guide = guide_of(nn.Linear(1000, 1000), (torch.zeros(300, 1000), torch.zeros(300, dtype=torch.long)))
    with pytest.raises(InputError, match="freeze"):
        guide.gradients(read(guide.oracle.model))


def majority_vote(logits: Any) -> Any:
    """The class that most models choose; ties go to the tied class of larger mean output."""
    votes = np.eye(logits.shape[-1])[logits.argmax(axis=-1)].sum(axis=0)
    leading = votes == votes.max(axis=-1, keepdims=True)
    return np.where(leading, logits.mean(axis=0), -np.inf).argmax(axis=-1)


def test_the_mean_of_the_last_half_needs_no_window() -> None:
    iterates = [torch.randn(5, dtype=torch.float64) for _ in range(7)]
    running, window = TailState(7 - 3), WindowState(3)
    for w in iterates:
        running.add(w)
        window.add(w)
    torch.testing.assert_close(running.result(iterates[0]), window.result(None))
    start = torch.ones(5)
    assert TailState(4).result(start) is start
    early = TailState(4)
    early.add(iterates[0])
    early.add(iterates[1])
    assert torch.equal(early.result(start), iterates[1])


@pytest.mark.parametrize("rule", [MeanLast(3), MeanLastHalf(), Ema(0.6)])
def test_means_are_written_into_the_model(rule: Any) -> None:
    model = mlp()
    start, kept = vector(model), list[Any]()

    class Watching:
        def step(self) -> None:
            kept.append(vector(model))

    trainer = Trainer(
        model, loss, method=dp_sgd(finish=rule), epsilon=3, delta=1e-4, steps=6, expected_batch_size=20,
        random_state=1, scheduler=lambda _: Watching(),
    )  # fmt: skip
    trainer.fit(blobs(200, 1))
    mean = {
        MeanLast: lambda: torch.stack(kept[-3:]).mean(0),
        MeanLastHalf: lambda: torch.stack(kept[-3:]).mean(0),
        Ema: lambda: reduce(lambda e, w: 0.6 * e + 0.4 * w, kept, 0 * start) / (1 - 0.6**6),
    }[type(rule)]()
    torch.testing.assert_close(vector(model), mean)


@pytest.mark.parametrize("rule", [MeanLogits(4), MajorityVote(4)])
def test_ensembles_answer_as_their_members_together(rule: Any) -> None:
    trainer = Trainer(mlp(), loss, method=dp_sgd(finish=rule), epsilon=3, delta=1e-4, steps=6,
                      expected_batch_size=20, random_state=1)  # fmt: skip
    trainer.fit(blobs(200, 1))
    x, model, logits = blobs(300, 3)[0], mlp(), []
    for member in trainer.model_.members:
        write(model, member)
        logits.append(model(x).detach().numpy())
    mean = rule.vote == "mean"
    expected = np.mean(logits, axis=0).argmax(1) if mean else majority_vote(np.array(logits))
    np.testing.assert_array_equal(trainer.predict(x), expected)
    assert len(logits) == 4 and isinstance(trainer.model_, Ensemble)


@pytest.mark.parametrize("rule", [MeanLogits(4), MajorityVote(3), MeanLast(3), MeanLastHalf(), Ema(0.6)])
def test_what_comes_out_is_saved_and_deployed_as_a_module(rule: Any, tmp_path: Path) -> None:
    """Tensors by their names, in safetensors, and back in another process' copy of the model."""
    method = dope_sgd(finish=rule)
    trainer = Trainer(mlp(), loss, method=method, epsilon=3, delta=1e-4, steps=6, expected_batch_size=20,
                      random_state=1)  # fmt: skip
    trainer.fit(blobs(200, 1), blobs(40, 2))
    save_file(trainer.model_.state_dict(), tmp_path / "model.safetensors")
    several = isinstance(rule, MeanLogits)
    fresh = Ensemble.empty(mlp(seed=5), rule.n, vote=rule.vote) if several else mlp(seed=5)
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x = blobs(50, 3)[0]
    assert torch.equal(fresh(x), trainer.model_(x)) and not torch.equal(mlp(seed=5)(x), fresh(x))
    assert isinstance(trainer.model_, nn.Module) and fresh(x).shape == (50, 3)


def test_a_tied_vote_goes_to_the_larger_mean_output() -> None:
    model = nn.Linear(1, 3, bias=False)
    members = [torch.tensor([5.0, 0, 1]), torch.tensor([0.0, 1, 0.9])]
    outputs = Ensemble(model, EnsembleWeights(members, "majority"))(torch.ones(1, 1))
    assert int(outputs.argmax()) == int(majority_vote(torch.stack(members)[:, None].numpy())[0]) == 0


def test_an_ensemble_leaves_frozen_parameters_alone() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    ensemble = Ensemble(model, EnsembleWeights([read(model)], "mean"))
    x = blobs(5, 1)[0]
    assert torch.equal(ensemble(x), model(x))


def test_shared_records_are_found_through_subsets_and_views() -> None:
    base, other = TensorDataset(*blobs(50, 1)), Listed(blobs(50, 2))
    assert shared_records(base, Subset(base, [3]))
    assert not shared_records(Subset(base, [1, 2]), Subset(base, [3]))
    assert shared_records(Subset(Subset(base, [5, 6, 7]), [2]), Subset(base, [7]))
    assert shared_records(ConcatDataset([other, base]), Subset(base, [9]))
    assert not shared_records(ConcatDataset([other, Subset(base, [1])]), Subset(base, [9]))
    assert shared_records(ConcatDataset([base, other]), Subset(other, [0]))
    view = TensorDataset(base.tensors[0][10:20], base.tensors[1][10:20])
    assert shared_records(view, Subset(base, [19])) and not shared_records(view, Subset(base, [20]))


def test_shared_records_are_found_in_named_tensors() -> None:
    """Each call makes a dataset of the same tensors anew, as fit and evaluate do."""
    ids = torch.arange(60).reshape(20, 3)
    named = {"input_ids": ids, "attention_mask": torch.ones(1, 3).expand(20, 3), "labels": ids}
    half = {name: part[10:] for name, part in named.items()}
    assert shared_records(as_dataset(named), as_dataset(dict(named)))
    assert shared_records(as_dataset(named), as_dataset(half))
    assert shared_records(Subset(as_dataset(named), [3]), Subset(as_dataset(named), [3]))
    assert not shared_records(Subset(as_dataset(named), [3]), as_dataset(half))
    assert not repeats_a_record(Subset(as_dataset(named), [3, 4]))
    assert repeats_a_record(Subset(as_dataset(named), [3, 3]))


def test_records_must_be_pairs_by_number() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([])

    with pytest.raises(InputError, match="map-style"):
        Records(Stream(), Loading(), CPU)
    with pytest.raises(InputError, match="collate"):
        Records(TensorDataset(torch.zeros(3, 1)), Loading(), CPU).fetch([0])


class Strange:
    """A linear map that no bound is known for."""

    def apply(self, vector: Any) -> Any:
        return vector

    def lift(self, vector: Any) -> Any:
        return vector


class StrangeState(MetricState):
    def at(self, step: int, params: Any, public_gradient: Any) -> Any:
        return Strange()


@dataclass(frozen=True)
class StrangeRule(MetricRule):
    def begin(self, setting: Any, params: Any) -> MetricState:
        return StrangeState()


class AddsState(MixState):
    def mix(self, params: Any, direction: Any, public_gradient: Any, *, step: int, step_size: float) -> Any:
        return direction + public_gradient


class ShrinksState(MixState):
    def mix(self, params: Any, direction: Any, public_gradient: Any, *, step: int, step_size: float) -> Any:
        return direction.sum()


@dataclass(frozen=True)
class Mixes(Mix):
    state: type[MixState] = AddsState

    def begin(self, setting: Any, params: Any, *, noise_multiplier: float, bound: float) -> MixState:
        return self.state()


@pytest.mark.parametrize("face", ["trainer", "step"])
@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"metric": StrangeRule()}, "not Strange"),
        ({"mix": Mixes()}, "needs_gradient = True"),
        ({"mix": Mixes(ShrinksState)}, "one number for each parameter"),
        ({"clip": Automatic(1.0, 0.0)}, "gamma > 0"),
    ],
)
def test_a_part_that_fails_in_a_step_is_refused_before_the_charge(parts: Any, match: str, face: str) -> None:
    ledger, (x, y) = Ledger.in_memory(), blobs(40, 1)
    ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    options: Any = {
        "method": dp_sgd(steps=2).with_parts(**parts), "epsilon": 1.0, "delta": 1e-5, "ledger": ledger,
        "dataset": "people",
    }  # fmt: skip
    with pytest.raises(InputError, match=match) as refused:
        if face == "trainer":
            Trainer(mlp(), loss, progress=False, **options).fit(TensorDataset(x, y))
        else:
            PrivateStep(mlp(), loss, n_private=40, expected_batch_size=40, steps=2, **options)((x, y))
    assert "\n" not in str(refused.value) and not ledger.charges("people")


def test_a_dataset_with_columns_is_a_dataset_and_a_frame_is_none() -> None:
    class Named(TensorDataset):
        columns = ("inputs", "labels")

    dataset = Named(torch.zeros(3, 2), torch.zeros(3))
    assert as_dataset(dataset) is dataset
    with pytest.raises(InputError, match="dataset"):
        as_dataset(pytest.importorskip("pandas").DataFrame({"a": [1.0]}))


@pytest.mark.parametrize("micro_batch", [None, 7])
def test_weighted_gradients_are_those_of_the_records(micro_batch: int | None) -> None:
    model, data = mlp(), blobs(20, 1)
    guide = NetworkGuide(NetworkOracle(model, loss), micro_batch=micro_batch)
    guide.show(data)
    weights = torch.linspace(0, 1, 20)
    expected = (weights[:, None] * gradients(model, data)).mean(0)
    torch.testing.assert_close(guide.weighted_gradient(vector(model), weights.double().numpy()), expected)
