"""Settings of Hugging Face's accelerate that would drop or rescale a private gradient after it was charged.

    model, optimizer = accelerator.prepare(model, optimizer)
    step = PrivateStep(model, loss, …)
    step(batch_of(private, step.sample()))          # in place of accelerator.backward(loss)

Its optimizers do nothing between synchronizations, and divide by the loss scale of float16. Neither shows in
a gradient; accelerate keeps both in states that all of its objects share. It is not imported here.
"""

from __future__ import annotations

import sys
from typing import Any

from sidelight.errors import InputError

__all__ = ["refuse_accelerated"]


def refuse_accelerated() -> None:
    """InputError where accelerate's optimizer would not take the step that is about to be charged."""
    states: Any = sys.modules.get("accelerate.state")
    if states is None:
        return
    if not states.GradientState._shared_state.get("sync_gradients", True):
        raise InputError(
            "inside accelerator.accumulate(...) accelerate leaves this optimizer step out, so it would be "
            "charged and lost: take whole batches with PrivateStep(micro_batch=...), without accumulate"
        )
    if states.AcceleratorState._shared_state.get("_mixed_precision") == "fp16":
        raise InputError(
            "mixed_precision='fp16' divides the private gradient by a loss scale that it never had; use "
            "Accelerator(mixed_precision='bf16') or none"
        )
