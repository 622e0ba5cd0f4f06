"""A model, its loss and rows that are not private: how trial passes and private ones are run."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from sidelight.oracles.network.batches import Batch, Losses, call, copied, row_count, seed_torch
from sidelight.oracles.network.branches import Answers, OtherBranch, StaticCalls
from sidelight.oracles.network.flat import evaluating, parameters_of
from sidelight.oracles.network.routes import Wiring
from sidelight.oracles.network.state import CodeState

SEED = 0x5EED_0F_7121A1  # which no model sets by itself: that is noticed by the state it leads to
_DRAWN = 16_381  # numbers by which weights are moved; a prime, so that no two rows are moved alike
FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)


@dataclass(frozen=True)
class Route:
    """How per-record gradients are taken, and why by no faster way.

    static: the model decides by values of records (`if mask.all()`), but not while it is being compiled;
        so it is told that it is (`as_if_compiling`), and calls that do so themselves are replaced.
    answers: the branches that it takes by values of records (branches.py).
    """

    kind: Literal["layers", "vmap", "loop"]
    wiring: Wiring = field(default_factory=Wiring)
    static: bool = False
    answers: tuple[bool, ...] = ()
    reason: str = ""

    @contextlib.contextmanager
    def branching(self) -> Iterator[None]:
        """Branches by values of records are taken as in the trial; OtherBranch if some may want others."""
        with as_if_compiling() if self.static else contextlib.nullcontext():
            if not self.answers:
                yield
                return
            with Answers(self.answers) as mode:
                yield
            if not mode.sure:
                raise OtherBranch


@dataclass(frozen=True)
class ModelTrial:
    """A model, its loss, and rows that are not private.

    whole: as many rows as a pass has.
    before: what the model and the loss held before the trial. Private passes start from it.
    route: whose branches are taken, if it is known.
    """

    model: nn.Module
    loss: Losses
    rows: Batch
    whole: Batch
    before: CodeState
    route: Route = field(default_factory=lambda: Route("layers"))

    @property
    def count(self) -> int:
        return row_count(self.whole)

    def losses(self, batch: Batch) -> Tensor:
        """Of a copy, since a model may write into its input, and a loss into its targets."""
        inputs, targets = copied(batch)
        with self.route.branching():
            return self.loss(call(self.model, inputs), targets)

    def one_a_row(self, batch: Batch) -> Tensor | None:
        """One loss per row (float64, on the CPU); None if that is not what comes."""
        with torch.enable_grad():
            losses = self.losses(batch)
        if not isinstance(losses, Tensor) or losses.shape != (row_count(batch),):
            return None
        return losses.detach().double().cpu()

    def seeded(self, batch: Batch) -> Tensor | None:
        """The same, from one state of random numbers."""
        with from_seed(self.model):
            return self.one_a_row(batch)

    def attempted(self, batch: Batch) -> Tensor | None:
        """The same, None if the model fails or gives no numbers, as by a variance below zero."""
        try:
            losses = self.seeded(batch)
        except Exception:
            return None
        return losses if losses is not None and bool(losses.isfinite().all()) else None


@contextlib.contextmanager
def perturbed(model: nn.Module) -> Iterator[None]:
    """Weights and buffers as training may make them: gates that are closed at first are open inside.

    They are written through `.data`, which counts as no change, and put back.
    """
    source = torch.Generator().manual_seed(SEED % 2**31)
    held = [x for x in (*model.parameters(), *model.buffers()) if x.is_floating_point() and x.numel()]
    before = [x.detach().clone() for x in held]
    try:
        for x in held:
            some = torch.randn(min(x.numel(), _DRAWN), generator=source)  # and over again: draws take long
            noise = some.repeat(-(-x.numel() // _DRAWN))[: x.numel()].view(x.shape).to(x)
            if isinstance(x, nn.Parameter):
                size = float(torch.linalg.vector_norm(x.detach())) / math.sqrt(x.numel())
                least = 0.3 / math.sqrt(x.numel() / x.shape[0]) if x.dim() > 1 else 0.1
                x.data.add_(noise, alpha=max(0.5 * size, least))
            else:  # a variance stays positive, a mask a mask
                x.data.mul_(1 + 0.2 * noise.abs())
        yield
    finally:
        for x, copy in zip(held, before, strict=True):
            x.data.copy_(copy)


@contextlib.contextmanager
def as_if_compiling() -> Iterator[None]:
    """Libraries ask torch.compiler.is_compiling() before they branch on values; answer yes."""
    flag = "_is_compiling_flag"
    before = getattr(torch.compiler, flag, False)
    setattr(torch.compiler, flag, True)
    try:
        with StaticCalls():  # PyTorch's own do not ask
            yield
    finally:
        setattr(torch.compiler, flag, before)


def _devices(model: nn.Module) -> list[torch.device]:
    device = parameters_of(model)[0].device
    return [device] if device.type == "cuda" else []


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever is drawn inside has no influence on what is drawn afterwards."""
    devices, state = _devices(model), torch.default_generator.get_state()
    others = [torch.cuda.get_rng_state(device) for device in devices]
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        for device, other in zip(devices, others, strict=True):
            torch.cuda.set_rng_state(other, device)


@contextlib.contextmanager
def from_seed(model: nn.Module, seed: int = SEED) -> Iterator[None]:
    with untouched(model):
        seed_torch(seed)
        yield


def eagerly() -> contextlib.AbstractContextManager[None]:
    """Compiled modules and functions run as they are written, so that their layers can be watched.

    Nothing is compiled where nobody has imported the compiler, which takes a second.
    """
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


@contextlib.contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """No dropout, no autocast; random states and modes are left as they were."""
    device = next(model.parameters()).device
    with (
        evaluating(model),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.backends.cudnn.flags(enabled=False),  # its RNNs have no gradient in this mode
    ):
        yield


@contextlib.contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout layers draw nothing inside; all others stay in their mode."""
    kinds = nn.modules.dropout._DropoutNd
    held = [module for module in model.modules() if isinstance(module, kinds) and module.training]
    try:
        for module in held:
            module.training = False
        yield
    finally:
        for module in held:
            module.training = True
