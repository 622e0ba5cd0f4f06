"""What network tests share: per-record gradients by torch.func, and the sums they should lead to."""

from collections.abc import Callable
from typing import Any

import torch
from tests.private_values import value_of
from torch import Tensor, nn

from sidelight.clipping import Clip, Diagonal, Projection
from sidelight.oracles.network.batches import Batch, row_count, take
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.events import Relation

RELATION: Relation = "add-or-remove-one"
torch.set_num_threads(1)  # small products: threads would only wait for each other


def squared_error(outputs: Any, targets: Tensor) -> Tensor:
    """One number a record, from outputs of any shape."""
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    return ((first.flatten(1) - targets[:, None]) ** 2).mean(1)


def gradients(model: nn.Module, loss: Callable[..., Tensor], batch: Batch, augmentations: int = 1) -> Tensor:
    """One row a record, by torch.func."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def mean_loss(values: dict[str, Tensor], rows: Batch) -> Tensor:
        inputs = rows[0] if isinstance(rows[0], tuple) else (rows[0],)
        return loss(torch.func.functional_call(model, values, inputs), rows[1]).mean()

    found = []
    for i in range(row_count(batch) // augmentations):
        rows = take(batch, slice(i * augmentations, (i + 1) * augmentations))
        parts = torch.func.grad(mean_loss)(parameters, rows)
        found.append(torch.cat([parts[name].flatten() for name in parameters]))
    return torch.stack(found)


def expected(rows: Tensor, clip: Clip, origin: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    moved = rows if origin is None else rows - origin
    moved = moved if scale is None else moved * scale
    return (clip.factors(moved.norm(dim=1))[:, None] * moved).sum(0)


def private_sum(oracle: NetworkOracle, batch: Batch, clip: Clip, **options: Any) -> Tensor:
    """The value inside the BoundedSum, which only tests may look at."""
    value: Tensor = value_of(oracle.clipped_sum(batch, clip=clip, relation=RELATION, **options))
    return value


def assert_sums_agree(
    model: nn.Module,
    batch: Batch,
    clip: Clip,
    *,
    loss: Callable[..., Tensor] = squared_error,
    augmentations: int = 1,
) -> None:
    """Around no origin, a near one and a far one; without a metric, under a diagonal one (near: whole and in
    parts) and projected on three directions."""
    rows = gradients(model, loss, batch, augmentations)
    oracle, p = NetworkOracle(model, loss), rows.shape[1]
    assert oracle.dimension == p
    near, far = rows.mean(0), torch.linspace(-3, 3, p, dtype=rows.dtype)
    for origin in (None, near, far):
        for scale in (None, torch.linspace(0.1, 1.5, p, dtype=rows.dtype)):
            metric = None if scale is None else Diagonal(scale)
            want = expected(rows, clip, origin, scale)
            for micro_batch in (None, 2) if origin is near else (None,):
                options: dict[str, Any] = {
                    "origin": origin,
                    "metric": metric,
                    "augmentations": augmentations,
                }
                got = private_sum(oracle, batch, clip, micro_batch=micro_batch, **options)
                torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9 * clip.bound)
        basis = _basis(p, rows.dtype)
        moved = rows if origin is None else rows - origin
        options = {"origin": origin, "metric": Projection(basis), "augmentations": augmentations}
        want, got = expected(moved @ basis, clip), private_sum(oracle, batch, clip, **options)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9 * clip.bound)


def _basis(p: int, dtype: torch.dtype) -> Tensor:
    """Three orthonormal directions (one, for a model of fewer parameters)."""
    waves = [torch.sin((k + 1) * torch.arange(p, dtype=dtype) + k) for k in range(3 if p > 3 else 1)]
    return torch.linalg.qr(torch.stack(waves, 1))[0]


def assert_neighbors_are_near(sum_of: Callable[[Batch], Tensor], batch: Batch, bound: float) -> None:
    """Taking any record away moves the sum by the bound at most."""
    whole, count = sum_of(batch), row_count(batch)
    for i in range(count):
        others = torch.arange(count) != i
        moved = float((whole - sum_of(take(batch, others))).norm())
        assert moved <= bound * (1 + 1e-6), f"record {i} moves the sum by {moved / bound:.3f} bounds"
