"""Private records choose between a network and its start: bounded, charged, and with the right answer."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from tests.deep.networks import Listed, blobs, loss, mlp, vector
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sidelight.deep import Loading, PublicTraining, Trainer, paid_choice
from sidelight.deep.paid_choice import (
    CLIP,
    COMPARED,
    SCALES,
    WAY,
    PaidChoice,
    between,
    crossing,
    planned,
    surprises,
)
from sidelight.deep.private_records import PrivateAugment, PrivateRecords, RecordBatches
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy import events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import share_of
from sidelight.problems.network import NetworkProblem

PRIVATE, PUBLIC = blobs(900, 1), blobs(100, 2)
FAR = 2 * torch.randn(len(vector(mlp(1))), generator=torch.Generator().manual_seed(3))  # another network
HOW: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-4, "relation": "add-or-remove-one"}


def problem(records: tuple[Tensor, Tensor], model: nn.Module) -> NetworkProblem:
    dataset = TensorDataset(*records)
    rows = PrivateRecords(dataset, Loading(), torch.device("cpu"))
    augment = PrivateAugment(None, 1, dataset=dataset)
    rows.prepare(None)
    rows.forget()
    batches = RecordBatches(rows, rows.learn(), augment=augment, draw_seed=lambda: 5)
    oracle = NetworkOracle(model, loss, example=PUBLIC, pass_size=64, draw_seed=lambda: 5)
    return NetworkProblem(oracle, n=len(records[1]), batches=batches)


def asked(
    records: tuple[Tensor, Tensor], *, scale: float = 30.0, of: str = "scale", loss: Any = loss
) -> tuple[Tensor, float]:
    """A sum before its noise: of a network that is very sure of itself, or of the way to it."""
    model = mlp(1)
    where = problem(records, model)
    choice = planned(problem(PRIVATE, mlp(1)), PUBLIC, **HOW)
    assert isinstance(choice, PaidChoice) and choice.scale is not None
    asks, start = getattr(choice, of), vector(model)
    if of == "scale":
        asks.place(model, scale * start, FAR, (0.0,))
    else:
        asks.place(model, start, FAR, (0.0, *WAY))
    total = asks.total(where, "add-or-remove-one")
    return torch.as_tensor(share_of(total)), total.sensitivity


def neighbors() -> list[tuple[Tensor, Tensor]]:
    """With one record more: an odd one, one far away, one of a class that there is not, one that is NaN."""
    odd = ((50.0, 0), (-400.0, 2), (1.0, 17), (float("nan"), 1))
    return [
        (torch.cat([torch.full((1, 4), x), PRIVATE[0]]), torch.cat([torch.tensor([y]), PRIVATE[1]]))
        for x, y in odd
    ]


def furthest(of: str) -> float:
    """How far a record moves the vector, in units of the sensitivity that is claimed."""
    base, sensitivity = asked(PRIVATE, of=of)
    return max(float((asked(one, of=of)[0] - base).norm()) / sensitivity for one in neighbors())


@pytest.mark.parametrize("of", ["network", "scale"])
def test_a_record_moves_the_vector_at_most_by_its_sensitivity(of: str) -> None:
    base, sensitivity = asked(PRIVATE, of=of)
    claimed, length = {"network": (1.0, len(WAY)), "scale": (CLIP, len(SCALES))}[of]
    assert sensitivity == claimed and base.shape == (length,) and base.norm() > sensitivity
    assert 0.1 < furthest(of) <= 1 + 1e-5


@pytest.mark.parametrize("of", ["network", "scale"])
def test_a_vector_that_is_not_clipped_is_found_out(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above sees the faults that it is there for: no clip, and a clip of another length."""
    monkeypatch.setattr(paid_choice, "_LIMIT", 1e9)
    honest = paid_choice.surprises
    monkeypatch.setattr(paid_choice, "surprises", lambda *args: [3 * one for one in honest(*args)])
    assert furthest(of) <= 1 + 1e-5  # the clip holds alone
    monkeypatch.setattr(paid_choice.Flat, "factors", lambda _, norms: torch.ones_like(norms))
    assert furthest(of) > 1


def test_records_that_cannot_be_used_add_nothing() -> None:
    base, _ = asked(PRIVATE)
    broken, nan = neighbors()[2:]
    for one in (broken, nan):
        assert torch.equal(asked(one)[0], base)


def test_the_sums_are_of_surprises_and_of_right_answers() -> None:
    found, _ = asked(PRIVATE, scale=1.05)
    right, _ = asked(PRIVATE, of="network")
    model = mlp(1)
    x, y = PRIVATE

    def scores(params: Tensor) -> Tensor:
        torch.nn.utils.vector_to_parameters(params, model.parameters())
        with torch.no_grad():
            return model(x).detach()

    start = vector(model)
    z = scores(1.05 * start)
    rows, span = range(len(y)), z.max(1).values - z.min(1).values
    expected = torch.stack([(torch.softmax(s * z, 1) * z).sum(1) for s in SCALES], dim=1)
    surprise = (z[rows, y][:, None] - expected) / span[:, None]
    assert float(surprise.norm(dim=1).max()) <= CLIP  # none is clipped
    assert torch.allclose(found.float(), surprise.sum(0), rtol=1e-3, atol=1e-3)
    first = (scores(start).argmax(1) == y).float()
    points = [scores(between(start, FAR, way)) for way in WAY]
    more = torch.stack([(one.argmax(1) == y).float() - first for one in points], dim=1)
    more /= more.norm(dim=1, keepdim=True).clamp(min=1)
    assert torch.allclose(right.float(), more.sum(0), rtol=1e-3) and float(more.abs().sum()) > 10


def make(model: nn.Module | None = None, **options: Any) -> Trainer:
    chosen: dict[str, Any] = {"epsilon": 4, "delta": 1e-4, "steps": 12, "expected_batch_size": 100}
    chosen |= {"random_state": 1, "warm_up": PublicTraining(steps=8), "progress": False, **options}
    return Trainer(mlp() if model is None else model, loss, **chosen)


def test_it_is_one_release_of_the_plan_and_charged_with_it() -> None:
    trainer = make().fit(PRIVATE, PUBLIC)
    details: Any = trainer.privacy_.details
    parts: Any = trainer.privacy_.to_dict()["events"]
    z = details[COMPARED]["noise_multiplier"]
    found = [events.from_json(one) for one in (parts if isinstance(parts, list) else [parts])]
    counts = events.elementary(events.compose(*found))
    assert counts[events.gaussian(z)] == 2 and trainer.privacy_.epsilon <= 4
    said: Any = trainer.history_[-1][COMPARED]
    assert said["error"] == pytest.approx(z / 900) and said["scale_error"] == pytest.approx(z * CLIP / 900)


def test_the_last_layer_is_scaled_as_private_records_prefer() -> None:
    sure = mlp()
    with torch.no_grad():
        sure[2].weight *= 40  # type: ignore[operator]
    trainer = make(sure, warm_up=PublicTraining(steps=0), steps=2, epsilon=8).fit(PRIVATE, PUBLIC)
    found: Any = trainer.privacy_.details[COMPARED]
    assert found["scale"] < 1 and "last layer times" in str(trainer.privacy_).splitlines()[0]


class Free:
    """An account that admits everything."""

    def charge(self, event: events.Event) -> None: ...


def test_a_start_that_is_not_sure_enough_loses_by_nothing_but_its_scale() -> None:
    """The start is right and smoothed; a worse network that is surer must not be returned for that."""
    right, worse = mlp(), mlp()
    with torch.no_grad():
        fitted = (
            make(right, warm_up=PublicTraining(steps=200), steps=2, epsilon=8).fit(PRIVATE, PUBLIC).model_
        )
        worse.load_state_dict(fitted.state_dict())
        right.load_state_dict(fitted.state_dict())
        right[2].weight /= 4  # type: ignore[operator]
        right[2].bias /= 4  # type: ignore[operator]
        worse[2].bias += torch.tensor([3.0, 0.0, 0.0])[: len(worse[2].bias)]  # type: ignore[operator, arg-type]
    choice = planned(problem(PRIVATE, right), PUBLIC, **HOW)
    assert isinstance(choice, PaidChoice)
    where = problem(PRIVATE, right)
    found = choice.choose(
        where, vector(right), vector(worse), relation="add-or-remove-one", account=Free(), noise=Noise(1)
    )
    assert found["returned"] == "start" and found["scale"] > 1 and found["gain"] <= 0


def test_where_the_plan_has_no_room_the_statement_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidelight.deep.prepare.plan_with_side_release", lambda *_, **__: None)
    trainer = make().fit(PRIVATE, PUBLIC)
    found: Any = trainer.privacy_.details[COMPARED]
    assert "has no room" in found["skipped"] and "has no room" in str(trainer.privacy_).splitlines()[0]


@pytest.mark.parametrize("why", ["noise", "outputs", "copies"])
def test_where_it_cannot_be_made_the_statement_says_why(why: str) -> None:
    model = mlp()
    if why == "copies":
        model.register_buffer("secret", torch.zeros(1))
        type(model).__deepcopy__ = _refused  # type: ignore[attr-defined]
    try:
        records = (PRIVATE[0][:300], PRIVATE[1][:300]) if why == "noise" else PRIVATE
        trainer = make(Pairs(model) if why == "outputs" else model, epsilon=2 if why == "noise" else 4)
        if why == "outputs":
            trainer.loss = lambda outputs, targets: loss(outputs["scores"], targets)
        found: Any = trainer.fit(records, PUBLIC).privacy_.details[COMPARED]
    finally:
        if why == "copies":
            del type(model).__deepcopy__  # type: ignore[attr-defined]
    said = {"noise": "its noise would hide", "outputs": "more than scores", "copies": "cannot be compared"}
    assert said[why] in found["skipped"] and "gains" not in found


@pytest.mark.parametrize(("means", "scale"), [
    ((0.3, 0.1, -0.1, -0.2), math.sqrt(0.5)), ((0.2, -0.1, -0.2, -0.3), 0.25 * 2 ** (2 / 3)),
    ((-0.1, -0.2, -0.3, -0.4), 0.25), ((0.4, 0.3, 0.2, 0.1), 2.0), ((0.1, 0.3, -0.2, -0.2), math.sqrt(0.5)),
])  # fmt: skip
def test_the_scale_is_where_the_means_cross_zero(means: tuple[float, ...], scale: float) -> None:
    assert crossing(means) == pytest.approx(scale)


@pytest.mark.parametrize("right_scale", [0.4, 1.0, 1.5])
def test_the_scale_is_the_one_whose_probabilities_are_right(right_scale: float) -> None:
    """Also of scores with sure and wrong guesses, which a clip of losses would not hear."""
    made = torch.Generator().manual_seed(1)
    z = 4 * torch.randn(40_000, 5, generator=made)
    y = torch.multinomial(torch.softmax(right_scale * z, dim=1), 1, generator=made)[:, 0]
    means = torch.stack(surprises([z], y), dim=1).mean(0)
    assert crossing(means.tolist()) == pytest.approx(right_scale, rel=0.25)
    assert all(float(one.abs().max()) <= 1 for one in surprises([z], y))


class Named(NamedTuple):
    """An output with named parts, as those of transformers."""

    logits: Tensor


class Inside(nn.Module):
    """A network that gives named parts, and has a frozen body."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.body, self.inner = nn.Linear(4, 4).requires_grad_(False), inner

    def forward(self, x: Tensor) -> Named:
        return Named(self.inner(x + 0.01 * self.body(x)))


def test_outputs_with_logits_are_compared_and_a_frozen_part_is_not_copied() -> None:
    model = Inside(mlp())
    trainer = make(model)
    trainer.loss = lambda outputs, targets: loss(outputs.logits, targets)
    found: Any = trainer.fit(PRIVATE, PUBLIC).privacy_.details[COMPARED]
    assert len(found["gains"]) == len(WAY) and len(found["scales"]) == len(SCALES)
    copied = paid_choice._frozen_copy(model)
    mine, own = dict(model.named_parameters()), dict(copied.named_parameters())
    same = {name for name in mine if mine[name].data_ptr() == own[name].data_ptr()}
    assert same == {"body.weight", "body.bias"} and model.inner[0].weight.requires_grad  # type: ignore[index]


def _refused(self: nn.Module, memo: Any) -> nn.Module:
    raise TypeError("no copies")


class Pairs(nn.Module):
    """Scores in a dictionary."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.inner(x)}


def test_a_run_whose_plan_is_tried_reads_no_private_record_for_it() -> None:
    private = Listed(PRIVATE)
    assert isinstance(planned(problem(PRIVATE, mlp()), PUBLIC, **HOW), PaidChoice)
    assert private.fetched == 0
