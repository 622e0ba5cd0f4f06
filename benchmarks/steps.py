"""One training step by each method: what `benchmarks.step` measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import Batch, Case
from sidelight.methods.parts import Automatic, Flat
from sidelight.oracles.network.network_oracle import NetworkOracle

__all__ = ["STEPS", "Step"]

Step = Callable[[], None]
CLIP = 1.0


def _plain(model: nn.Module, case: Case, batch: Batch) -> Step:
    def step() -> None:
        case.loss(model(batch[0]), batch[1]).mean().backward()
        model.zero_grad(set_to_none=True)  # the optimizer has used them

    return step


def plain(case: Case, private: Batch, public: Batch) -> Step:
    """Forward and backward over the private batch."""
    return _plain(case.build(), case, private)


def plain_both(case: Case, private: Batch, public: Batch) -> Step:
    """Forward and backward over the private and the public batch together."""
    both = (torch.cat([private[0], public[0]]), torch.cat([private[1], public[1]]))
    return _plain(case.build(), case, both)


def plain_public(case: Case, private: Batch, public: Batch) -> Step:
    """Forward and backward over the public batch."""
    return _plain(case.build(), case, public)


def _oracle(case: Case) -> NetworkOracle:
    """Passes of the whole batch, or of half a large one, as for a batch whose size is fixed."""
    size = case.private if case.private < 256 else -(-case.private // 2)
    return NetworkOracle(case.build(), case.loss, pass_size=size)


def dp_sgd(case: Case, private: Batch, public: Batch) -> Step:
    """Σ clip(g)."""
    oracle = _oracle(case)
    return lambda: _ignore(oracle.clipped_sum(private, clip=Flat(CLIP), relation="add-or-remove-one"))


def dope_sgd(case: Case, private: Batch, public: Batch) -> Step:
    """Σ clip(g − o), with o the gradient of the public batch."""
    oracle = _oracle(case)

    def step() -> None:
        origin = oracle.mean_gradient(public)
        _ignore(oracle.clipped_sum(private, clip=Flat(CLIP), relation="add-or-remove-one", origin=origin))

    return step


def coupling(case: Case, private: Batch, public: Batch) -> Step:
    """Σ g/(‖g‖ + γ), and the gradient of the public batch."""
    oracle = _oracle(case)

    def step() -> None:
        _ignore(oracle.mean_gradient(public))
        _ignore(oracle.clipped_sum(private, clip=Automatic(CLIP, 0.01), relation="add-or-remove-one"))

    return step


def opacus_ghost(case: Case, private: Batch, public: Batch) -> Step:
    """Opacus' ghost clipping: two backward passes. It refuses tied weights, so it gets the model without."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model: Any = GradSampleModuleFastGradientClipping(
        (case.untied or case.build)(), loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )

    return two_passes(model, lambda: case.loss(model(private[0]), private[1]))


def two_passes(model: Any, losses_of: Callable[[], Tensor]) -> Step:
    """A step of Opacus' ghost clipping: the norms, and then the sum of losses times factors."""

    def step() -> None:
        model.enable_hooks()
        losses = losses_of()
        losses.sum().backward(retain_graph=True)
        factors = model.get_clipping_coef()
        model.disable_hooks()
        model.zero_grad(set_to_none=True)
        (factors * losses).sum().backward()
        model.zero_grad(set_to_none=True)

    return step


def _materialised(case: Case, private: Batch) -> tuple[nn.Module, Callable[[list[Tensor] | None], None]]:
    """Opacus' per-example gradients, moved to an origin, clipped and summed as its optimizer does it."""
    from opacus.grad_sample import GradSampleModule

    model = GradSampleModule((case.untied or case.build)(), loss_reduction="sum")

    def run(origin: list[Tensor] | None) -> None:
        case.loss(model(private[0]), private[1]).sum().backward()
        rows: list[Tensor] = [p.grad_sample for p in model.parameters()]  # type: ignore[attr-defined]
        for i, row in enumerate(rows):
            if origin is not None:
                row.sub_(origin[i])
        norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
        factors = (CLIP / (norms + 1e-6)).clamp(max=1)
        for p, row in zip(model.parameters(), rows, strict=True):
            p.grad = torch.einsum("i,i...->...", factors, row)
            p.grad_sample = None  # type: ignore[attr-defined]
        model.zero_grad(set_to_none=True)

    return model, run


def opacus_flat(case: Case, private: Batch, public: Batch) -> Step:
    """Opacus' materialised gradients, clipped."""
    _, run = _materialised(case, private)
    return lambda: run(None)


def opacus_dope(case: Case, private: Batch, public: Batch) -> Step:
    """DOPE-SGD written by hand on Opacus' materialised gradients."""
    model, run = _materialised(case, private)

    def step() -> None:
        model.disable_hooks()
        losses = case.loss(model(public[0]), public[1])
        origin = torch.autograd.grad(losses.mean(), list(model.parameters()))
        model.enable_hooks()
        run(list(origin))

    return step


def _ignore(_: object) -> None:
    return None


# name → (how to build it, the plain step over the same examples)
STEPS: dict[str, tuple[Callable[[Case, Batch, Batch], Step], str]] = {
    "plain": (plain, "plain"),
    "plain, with public": (plain_both, "plain, with public"),
    "plain, public alone": (plain_public, "plain, with public"),
    "dp_sgd": (dp_sgd, "plain"),
    "dope_sgd": (dope_sgd, "plain, with public"),
    "coupling": (coupling, "plain, with public"),
    "Opacus ghost, DP-SGD": (opacus_ghost, "plain"),
    "Opacus flat, DP-SGD": (opacus_flat, "plain"),
    "Opacus flat, DOPE by hand": (opacus_dope, "plain, with public"),
}
