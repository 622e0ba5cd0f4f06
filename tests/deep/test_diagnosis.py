"""What noise leaves of a gradient, on public records: against simulations, and where the answer is known."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.deep.networks import blobs, gradients, loss, mlp, vector
from torch import Tensor, nn

from sidelight import diagnose
from sidelight.deep import PublicTraining, gradient_points
from sidelight.deep.gradient_points import at_point, plan_for, step_size_for, use_of
from sidelight.errors import InputError, SidelightError
from sidelight.methods.adadps import adadps
from sidelight.methods.adamix import adamix
from sidelight.methods.dope_sgd import Warm, dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.oracles.network.network_oracle import NetworkOracle

BRIEF = PublicTraining(steps=20, batch_size=32)
PLAN = plan_for(2000, 51, epsilon=1.0, delta=1e-5, relation="add-or-remove-one", batch=50, steps=20)
STRETCH = 2  # steps: a tenth of the plan's


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def clipped(rows: Tensor, bound: float) -> Tensor:
    return rows * (bound / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)


def test_cosines_are_those_of_simulated_releases() -> None:
    """Against sampled batches with noise, on so many records that their mean is known."""
    model, public, others = mlp(), blobs(400, 1), blobs(4000, 2)
    found = at_point(NetworkOracle(model, loss), public, others, PLAN, where="here", loss=0.0)
    rows, mean = gradients(model, others), gradients(model, others).mean(0)
    assert found.target == "mean"
    assert found.public == pytest.approx(cosine(gradients(model, public).mean(0), mean), abs=0.02)
    generator = torch.Generator().manual_seed(0)

    def simulated(count: int, origin: Tensor, bound: float) -> float:
        seen = []
        for _ in range(100):
            total = torch.zeros_like(mean)
            for _ in range(count):
                batch = rows[torch.rand(len(rows), generator=generator) < PLAN.batch / len(rows)]
                noise = PLAN.noise * bound * torch.randn(len(mean), generator=generator)
                total += origin + clipped(batch - origin, bound).sum(0) / PLAN.batch + noise
            seen.append(cosine(total, mean))
        return float(torch.tensor(seen).mean())

    zero = torch.zeros_like(mean)
    assert found.one_step == pytest.approx(simulated(1, zero, 1.0), abs=0.06)
    assert found.released == pytest.approx(simulated(STRETCH, zero, 1.0), abs=0.05)
    guide = gradients(model, public).mean(0)
    origin = guide * min(1.0, 0.5 / float(guide.norm()))
    assert found.around == pytest.approx(simulated(STRETCH, origin, found.origin_clip), abs=0.05)
    assert found.mixed is not None and found.released is not None
    assert found.mixed >= max(found.released, found.public or 0) - 1e-6


def test_concentration_is_the_median_of_lengths_around_the_public_gradient() -> None:
    model, public, others = mlp(), blobs(100, 1), blobs(320, 2)
    found = at_point(NetworkOracle(model, loss), public, others, PLAN, where="here", loss=0.0, clip_norm=1e-9)
    rows, guide = gradients(model, others), gradients(model, public).mean(0)
    ratios = (rows - guide).norm(dim=1) / rows.norm(dim=1)  # clipped to the same length, all weigh the same
    assert found.around_public == pytest.approx(float(ratios.median()), rel=5e-3)
    assert found.clipped_share == 1.0


def test_records_that_are_alike_need_a_small_clip_around_the_public_gradient() -> None:
    torch.manual_seed(0)
    x = torch.ones(200, 4) + 0.05 * torch.randn(200, 4)
    model = nn.Linear(4, 1)

    def far(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.3 * (outputs[:, 0] - targets).abs()

    batch = x, torch.full((200,), 100.0)
    found = at_point(NetworkOracle(model, far), batch, batch, PLAN, where="here", loss=0.0)
    assert found.around_public < 0.15 and found.origin_clip == pytest.approx(found.origin_clip, abs=0.2)
    assert found.around is not None and found.one_step is not None and found.around > found.one_step
    assert "lets C" in found.words


def test_noise_without_a_common_gradient_is_not_taken_for_one() -> None:
    x, y = torch.randn(320, 4), torch.randint(0, 3, (320,))
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    both = torch.cat([x, -x]), torch.cat([y, y])  # every record has its opposite, but for the bias
    model.bias.requires_grad_(False)
    order = torch.arange(640).reshape(2, 320).T.reshape(-1)
    found = at_point(
        NetworkOracle(model, loss), (x, y), (both[0][order], both[1][order]), PLAN, where="here", loss=0.0
    )
    assert found.target == "not seen" and found.released is None
    assert found.method == "dp_sgd" and "no common gradient" in found.words


def test_a_larger_budget_leaves_more_of_the_gradient() -> None:
    cosines = []
    for epsilon in (0.1, 1.0, 10.0):
        found = diagnose(mlp(), loss, blobs(200, 1), n=500, epsilon=epsilon, delta=1e-5, warm_up=BRIEF)
        cosines.append(found.points[0].one_step)
        assert found.points[0].public == pytest.approx(found.points[0].public)
    assert cosines[0] < cosines[1] < cosines[2]  # type: ignore[operator]


def test_the_model_and_random_numbers_are_left_as_they_were() -> None:
    model = mlp().eval()
    before, state = vector(model).clone(), torch.get_rng_state()
    found = diagnose(model, loss, blobs(200, 1), n=2000, epsilon=1, warm_up=BRIEF)
    assert torch.equal(vector(model), before) and torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in model.modules())
    again = diagnose(model, loss, blobs(200, 1), n=2000, epsilon=1, warm_up=BRIEF)
    assert found.to_dict() == again.to_dict()


def test_it_says_where_to_begin_and_what_to_take() -> None:
    found = diagnose(mlp(), loss, blobs(300, 1), n=2000, epsilon=1)
    assert [point.where for point in found.points][::2] == ["start", "warm start"]
    assert found.best is found.points[-1] and found.words.startswith("Begin at a warm start")
    assert found.method in ("dp_sgd", "coupling", "dope_sgd", "only_public")
    assert json.loads(json.dumps(found.to_dict()))["method"] == found.method
    text = str(found)
    assert "noise multiplier" in text and "cosine: public gradient" in text and found.words in text


def test_the_named_method_is_the_one_with_most_progress() -> None:
    point = diagnose(mlp(), loss, blobs(300, 1), n=2000, epsilon=1, warm_up=BRIEF).points[0]
    known = replace(point, public=0.5, released=0.6, around=0.61, mixed=0.62)
    assert known.method == "dp_sgd"  # the plainer one, where others are hardly better
    assert replace(known, mixed=0.8).method == "coupling"
    assert replace(known, around=0.8).method == "dope_sgd"
    assert replace(known, public=0.9, mixed=0.9).method == "only_public"


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"n": 1.5}, {"epsilon": -1}, {"steps": 0}, {"relation": "other"}, {"warm_up": 3}]
)
def test_bad_settings_are_one_clear_error(wrong: dict[str, object]) -> None:
    settings: dict[str, object] = {"n": 2000, "epsilon": 1.0, **wrong}
    with pytest.raises(SidelightError, match=next(iter(wrong))):
        diagnose(mlp(), loss, blobs(200, 1), **settings)  # type: ignore[arg-type]


def test_few_public_records_are_refused() -> None:
    with pytest.raises(InputError, match="splits"):
        diagnose(mlp(), loss, blobs(40, 1), n=2000, epsilon=1)


def test_a_diagnosis_that_forgets_the_noise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation sees the fault that it is there for."""
    monkeypatch.setattr(gradient_points.RealPlan, "noise", property(lambda plan: 0.0))
    model, others = mlp(), blobs(4000, 2)
    found = at_point(NetworkOracle(model, loss), blobs(400, 1), others, PLAN, where="here", loss=0.0)
    assert found.one_step == pytest.approx(found.released, abs=0.1)  # nothing left to average out


def test_few_records_have_more_steps_where_the_noise_allows_longer_ones_than_are_stable() -> None:
    def steps(epsilon: float, **given: Any) -> int:
        how: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-5, "relation": "add-or-remove-one", **given}
        return plan_for(800, 10_000, **how).steps

    assert steps(16, public="none") == 100 and steps(2, public="none") == 50
    assert steps(16, public="path") == 50 and steps(16, public="none", steps=30) == 30


def test_the_noise_of_all_steps_moves_each_parameter_a_fixed_distance() -> None:
    plan = plan_for(20_000, 50_000, epsilon=0.5, delta=1e-5, relation="add-or-remove-one")
    size = step_size_for(plan, public="mixed")
    assert 0.25 < size < 12 and size * plan.noise * plan.steps**0.5 == pytest.approx(0.14)
    quiet = plan_for(10**7, 10, epsilon=8.0, delta=1e-5, relation="add-or-remove-one")
    uses = ("none", "mixed", "origin", "scaled")
    path = step_size_for(quiet, public="path")
    none, mixed, origin, scaled = (step_size_for(quiet, public=use) for use in uses)
    assert 12 > path > none == mixed == 6 and origin == scaled == 3 and quiet.batch < 10**7 / 8
    longest = plan_for(10**7, 10, epsilon=8.0, delta=1e-5, relation="add-or-remove-one", batch=10**6)
    assert step_size_for(longest, public="path") == 12
    fixed = (dp_sgd(clip_norm=1.0), dp_sgd(clip_norm=1.0).with_parts(start=Warm()), dope_sgd(clip_norm=1.0))
    assert [use_of(recipe) for recipe in (*fixed, adamix())] == list(uses)
    assert use_of(adadps()) == "scaled"
