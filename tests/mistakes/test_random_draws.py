"""Models that draw random numbers whatever their mode: correct, and neither refused nor slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.mistakes.tools import Loss, labeled  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.oracles.network.network_oracle import NetworkOracle  # noqa: E402


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encode(x).chunk(2, 1)
        latent = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.decode(latent), mean, spread


def elbo(outputs: Any, x: Tensor) -> Tensor:
    rebuilt, mean, spread = outputs
    kl = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1)
    return (rebuilt - x).square().sum(1) + kl


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 6))

    def forward(self, x: Tensor) -> Tensor:
        step, noise = torch.rand(len(x), 1), torch.randn_like(x)
        noisy = (1 - step).sqrt() * x + step.sqrt() * noise
        return self.net(torch.cat([noisy, step], 1)) - noise


class MaskedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = (torch.rand_like(x) < 0.5).to(x.dtype)
        return (self.net(x * (1 - hidden)) - x) * hidden


class AlwaysDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.dropout(self.first(x).relu(), 0.5)) - x


class TokenMasking(nn.Module):
    """Keeps a random subset of tokens per record, by the order of random numbers, as MAE does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(2, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.view(len(x), 3, 2))
        kept = torch.rand(len(x), 3).argsort(1)[:, :2, None].expand(-1, -1, 8)
        return self.head(tokens.gather(1, kept).mean(1)) - x


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.square().sum(1)


CASES: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "a VAE": (Vae, elbo),
    "diffusion": (Diffusion, squares),
    "a masked autoencoder": (MaskedAutoencoder, squares),
    "dropout in evaluation": (AlwaysDropout, squares),
    "masked tokens": (TokenMasking, squares),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_random_draws_in_any_mode_keep_the_fast_route(case: str, training: bool) -> None:
    torch.manual_seed(0)
    make, loss = CASES[case]
    x, example = labeled(20)[0], labeled(8, seed=2)[0]
    oracle = NetworkOracle(make().train(training), loss, example=(example, example), draw_seed=lambda: 5)

    def total(batch: Any) -> Tensor:
        found = oracle.clipped_sum(batch, clip=Flat(0.1), relation="add-or-remove-one")
        return found._value.clone()

    assert bool(total((x, x)).any())
    assert oracle.route.kind == "layers", oracle.route.reason
    far = x.clone()
    far[-1] = 1e6  # the last record: those before it keep their places, and so their random numbers
    moved = float((total((far, far)) - total((x, x))).norm())
    assert moved <= 0.2 * (1 + 1e-6)
    assert float((total((x, x)) - total((x[:-1], x[:-1]))).norm()) <= 0.1 * (1 + 1e-6)


def test_a_draw_shared_by_the_batch_takes_each_record_alone() -> None:
    class LayerDrop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                if torch.rand(()) < 0.5:
                    x = x + layer(x).tanh()
            return x

    torch.manual_seed(0)
    x = labeled(9)[0]
    oracle = NetworkOracle(LayerDrop(), squares, example=(x, x), draw_seed=lambda: 5)

    def total(batch: Any) -> Tensor:
        return oracle.clipped_sum(batch, clip=Flat(0.1), relation="add-or-remove-one")._value.clone()

    total((x, x))
    assert oracle.route.kind == "loop" and oracle.route.reason
    last = x[:-1], x[:-1]
    assert float((total((x, x)) - total(last)).norm()) <= 0.1 * (1 + 1e-6)
