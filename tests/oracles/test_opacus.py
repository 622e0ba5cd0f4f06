"""Plain DP-SGD equals Opacus': its materialized gradients, its ghost clipping, and its optimizer's step."""

import copy
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
grad_sample = pytest.importorskip("opacus.grad_sample")

from opacus.optimizers import DPOptimizer  # noqa: E402
from tests.contracts.replay import SilentNoise  # noqa: E402
from tests.oracles.networks import expected, private_sum, squared_error  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from sidelight.deep import PrivateStep  # noqa: E402
from sidelight.methods.dp_sgd import dp_sgd  # noqa: E402
from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook", "ignore:Using a non-full backward hook"
)  # how Opacus watches a first layer


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 6), nn.LayerNorm(6), nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, groups=2),
        nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def series() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 5, 3, dilation=2), nn.InstanceNorm1d(5, affine=True), nn.Flatten())


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2, bias=False))


TOKENS = torch.randint(0, 20, (6, 7), generator=torch.Generator().manual_seed(3))
MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor, float]] = {
    "mlp": (rows, normal(6, 5), 0.5),
    "convolutions": (images, normal(6, 2, 4, 4), 0.5),
    "series": (series, normal(6, 2, 9), 0.05),
    "embedding": (words, TOKENS, 0.1),
}


def made(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor], float]:
    torch.manual_seed(0)
    build, x, bound = MODELS[name]
    return build().double(), (x, normal(len(x))), bound


@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sum_is_that_of_opacus_gradients_one_by_one(name: str) -> None:
    model, batch, bound = made(name)
    got = private_sum(NetworkOracle(model, squared_error), batch, Flat(bound))
    wrapped = grad_sample.GradSampleModule(model, loss_reduction="sum")
    squared_error(wrapped(batch[0]), batch[1]).sum().backward()
    found = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], 1)
    torch.testing.assert_close(got, expected(found, Flat(bound)))
    lengths = found.norm(dim=1)
    assert (lengths > bound).any() and not torch.allclose(got, found.sum(0)), "nothing was clipped"


@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sum_is_that_of_opacus_ghost_clipping(name: str) -> None:
    model, batch, bound = made(name)
    got = private_sum(NetworkOracle(copy.deepcopy(model), squared_error), batch, Flat(bound))
    kind = grad_sample.GradSampleModuleFastGradientClipping
    ghost = kind(model, loss_reduction="sum", max_grad_norm=bound, use_ghost_clipping=True)
    losses = squared_error(ghost(batch[0]), batch[1])
    losses.sum().backward(retain_graph=True)
    factors = ghost.get_clipping_coef()  # bound / (norm + 1e-6)
    assert (factors < 1).any(), "nothing was clipped"
    ghost.disable_hooks()
    grads = torch.autograd.grad((factors * losses).sum(), list(ghost.parameters()))
    torch.testing.assert_close(got, torch.cat([g.flatten() for g in grads]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_private_step_leaves_the_gradient_of_opacus_optimizer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, and divided by the expected batch size, which is not that of the batch."""
    model, batch, bound = made(name)
    twin = copy.deepcopy(model)
    monkeypatch.setattr("sidelight.deep.step.Noise", SilentNoise)
    step = PrivateStep(
        model, squared_error, method=dp_sgd(clip_norm=bound), n_private=50, expected_batch_size=8,
        noise_multiplier=1.0, own_sampling=True,
    )  # fmt: skip
    step(batch)
    wrapped = grad_sample.GradSampleModule(twin, loss_reduction="mean")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=bound,
        expected_batch_size=8, loss_reduction="mean",
    )  # fmt: skip
    squared_error(wrapped(batch[0]), batch[1]).mean().backward()
    optimizer.pre_step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
