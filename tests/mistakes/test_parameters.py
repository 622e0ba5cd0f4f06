"""Parameters that are used outside of the module that holds them, or that no optimizer ever sees."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.mistakes.tools import Loss, assert_exact, entropy, labeled
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.oracles.network.network_oracle import NetworkOracle

SMALL = 1e-3  # a share of the gradient that a comparison to 2 % does not see


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Decoder(nn.Module):
    """Adds what the encoder's weight, used as a function, makes of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x).tanh()
        back = nn.functional.linear(hidden, self.encoder.weight.T)
        return self.head(hidden) + SMALL * back[:, :3]


class Borrower(nn.Module):
    """Uses a parameter that its parent holds."""

    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        self._borrowed = [scale]

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + SMALL * self._borrowed[0])


class Lender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.child, self.head = Borrower(self.scale), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.child(x) * self.scale)


class WithToken(nn.Module):
    """Has a parameter with a leading dimension of 1, as class tokens and positions have."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.randn(1, 6)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + self.token).tanh())


class Penalized(WithToken):
    """Gives the penalty of its token beside the scores."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), self.token.square().sum()


def with_hook() -> nn.Module:
    model = perceptron()
    model[0].register_forward_hook(lambda layer, _, out: out + SMALL * layer.weight.sum())
    return model


def plain(model: nn.Module) -> Loss:
    return entropy


def by_attribute(model: nn.Module) -> Loss:
    first: Any = model[0] if isinstance(model, nn.Sequential) else model.head  # type: ignore[assignment]
    return lambda outputs, targets: entropy(outputs, targets) + SMALL * first.weight.square().sum()


def by_list(model: nn.Module) -> Loss:
    every = list(model.parameters())
    return lambda outputs, targets: (
        entropy(outputs, targets) + SMALL * torch.stack([p.square().sum() for p in every]).sum()
    )


def of_token(model: nn.Module) -> Loss:
    holder: Any = model
    return lambda outputs, targets: entropy(outputs, targets) + 0.1 * SMALL * holder.token.square().sum()


def of_outputs(model: nn.Module) -> Loss:
    return lambda outputs, targets: entropy(outputs[0], targets) + 0.1 * SMALL * outputs[1]


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Loss]]] = {
    "a penalty by attribute": (perceptron, by_attribute),
    "a penalty by a list of parameters": (perceptron, by_list),
    "a penalty on a token": (WithToken, of_token),
    "a penalty on a token in forward": (Penalized, of_outputs),
    "a weight of another module": (Decoder, plain),
    "a parameter of the parent": (Lender, plain),
    "a weight in a hook": (with_hook, plain),
}


@pytest.mark.parametrize("case", CASES)
def test_a_weight_used_outside_its_module_has_its_whole_gradient(case: str) -> None:
    torch.manual_seed(0)
    make, loss_of = CASES[case]
    model = make()
    loss, batch = loss_of(model), labeled(12)
    oracle = NetworkOracle(model, loss, example=labeled(8, seed=2))
    oracle.check(batch)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8.0)  # as weights grow, so does the share that was too small to be seen
    assert_exact(oracle, loss, batch)


def test_a_penalty_by_attribute_needs_no_loop() -> None:
    model = perceptron()
    oracle = NetworkOracle(model, by_attribute(model), example=labeled(8))
    oracle.check(labeled(4))
    assert oracle.route.kind == "vmap"


class Centers(nn.Module):
    """The loss of centers, which are parameters of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(3, 3))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return entropy(outputs, targets) + (outputs - self.centers[targets]).square().sum(1)


def test_a_parameter_of_the_loss_is_refused_by_name() -> None:
    with pytest.raises(AssumptionError, match="centers"):
        NetworkOracle(perceptron(), Centers(), example=labeled(8)).check(labeled(4))


def test_a_frozen_parameter_of_the_loss_is_accepted() -> None:
    model, loss, batch = perceptron(), Centers().requires_grad_(False), labeled(12)
    assert_exact(NetworkOracle(model, loss, example=labeled(8, seed=2)), loss, batch)


def test_a_loss_that_holds_the_model_is_accepted() -> None:
    model = perceptron()

    class Regularized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return entropy(outputs, targets) + 0.01 * self.model[0].weight.square().sum()

    loss = Regularized()
    assert_exact(NetworkOracle(model, loss, example=labeled(8, seed=2)), loss, labeled(12))


class Unregistered(nn.Module):
    """Holds layers in a plain list, where no optimizer finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = [nn.Linear(6, 6)], nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers[0](x).tanh())


def test_layers_in_a_plain_list_are_refused() -> None:
    with pytest.raises(AssumptionError, match="trained"):
        NetworkOracle(Unregistered(), entropy, example=labeled(8)).check(labeled(4))


class InputGradient(nn.Module):
    """Makes its input a leaf and differentiates by it: a leaf of a single pass is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        energy = self.energy(x).tanh()
        (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy + slope[:, :3]


def test_a_gradient_with_respect_to_the_input_is_accepted() -> None:
    torch.manual_seed(0)
    oracle = NetworkOracle(InputGradient(), entropy, example=labeled(8, seed=2))
    assert_exact(oracle, entropy, labeled(12))
