"""What a private step costs beside a plain one, for models that are not written for speed.

    python -m benchmarks.routes [--rounds 5] [--only WORDS] [--page]

Processor time of one thread, the least of several rounds in which both take turns. A plain step is forward,
loss and backward of the same batch; a private one is the clipped sum. Noise and optimizer are in neither. The
examination runs once, before anything is charged; it is counted in plain steps, too.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from benchmarks.sections import write_section
from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle

GOAL = 4.0
PAGE = Path("docs/benchmarks/step.md")
CLASSES = 10


class Entry(NamedTuple):
    """A model, its loss, and how to make its inputs and targets."""

    name: str
    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    inputs: Tensor
    targets: Tensor


class Of(nn.Module):
    """A model of named parts and a function of them."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


entropy = nn.CrossEntropyLoss(reduction="none")


def mlp(first: nn.Module | None = None, inputs: int = 128, outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(
        first or nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)
    )


def asserting(m: Any, x: Tensor) -> Tensor:
    assert not torch.isnan(x).any()
    return m.body(x)


def dispatched(m: Any, x: Tensor) -> Tensor:
    out, chosen = torch.zeros_like(x), m.gate(x).argmax(1)
    for i, expert in enumerate(m.experts):
        out[chosen == i] = expert(x[chosen == i])
    return m.head(x + out)


def masked(m: Any, x: Tensor) -> Tensor:
    chosen = functional.one_hot(m.gate(x).argmax(1), len(m.experts)).to(x.dtype)
    mixed = sum(chosen[:, i, None] * expert(x) for i, expert in enumerate(m.experts))
    return m.head(x + mixed)


def experts() -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(128, 128) for _ in range(4))


def multi_label(z: Tensor, y: Tensor) -> Tensor:
    """Labels that are not known count for nothing."""
    losses = functional.binary_cross_entropy_with_logits(z, y.clamp(min=0), reduction="none")
    return (losses * (y >= 0)).sum(1) / (y >= 0).sum(1).clamp(min=1)


def ctc(z: Tensor, y: Tensor) -> Tensor:
    lengths = torch.full((len(z),), z.shape[1]), torch.full((len(z),), y.shape[1])
    return functional.ctc_loss(z.log_softmax(2).transpose(0, 1), y, *lengths, reduction="none")


def entries() -> Iterator[Entry]:
    """The models; larger ones are those of benchmarks.step."""
    x, y = torch.randn(256, 128), torch.randint(0, CLASSES, (256,))
    words, binary = torch.randint(0, 5000, (256, 32)), torch.randint(0, 2, (256,)).float()
    series = torch.randn(64, 40, 32)
    normed = parametrizations.weight_norm(nn.Linear(128, 256))
    layer = nn.TransformerEncoderLayer(64, 4, 256)
    yield Entry("MLP", mlp(), entropy, x, y)
    yield Entry(
        "embedding + MLP, BCEWithLogitsLoss",
        Of(lambda m, t: m.b(m.a(t).mean(1))[:, 0], a=nn.Embedding(5000, 64), b=mlp(inputs=64, outputs=1)),
        nn.BCEWithLogitsLoss(reduction="none"), words, binary,
    )  # fmt: skip
    yield Entry("assert not isnan(x).any()", Of(asserting, body=mlp()), entropy, x, y)
    yield Entry(
        "learned temperature", Of(lambda m, x: m.b(x) * m.t, b=mlp(), t=nn.Parameter(torch.ones(()))),
        entropy, x, y,
    )  # fmt: skip
    yield Entry(
        "TransformerEncoder, time first",
        Of(
            lambda m, x: m.b(m.t(m.a(x).transpose(0, 1)).mean(0)), a=nn.Linear(32, 64),
            t=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), b=nn.Linear(64, CLASSES),
        ),
        entropy, series, y[:64],
    )  # fmt: skip
    yield Entry(
        "masked loss, several labels", mlp(), multi_label, x, torch.randint(-1, 2, (256, CLASSES)).float()
    )
    yield Entry(
        "prototypes by cdist",
        Of(lambda m, x: -torch.cdist(m.a(x), m.p), a=mlp(outputs=64), p=nn.Parameter(torch.randn(10, 64))),
        entropy, x, y,
    )  # fmt: skip
    yield Entry(
        "Bilinear",
        Of(lambda m, x: m.b(m.a(x[:, :64], x[:, 64:]).relu()), a=nn.Bilinear(64, 64, 32), b=mlp(inputs=32)),
        entropy, x, y,
    )  # fmt: skip
    yield Entry(
        "GRU and CTC",
        Of(lambda m, x: m.b(m.a(x)[0]), a=nn.GRU(32, 64, batch_first=True), b=nn.Linear(64, 12)),
        ctc, series, torch.randint(1, 12, (64, 8)),
    )  # fmt: skip
    yield Entry("weight norm", mlp(normed), entropy, x, y)
    yield Entry(
        "cosine classifier",
        Of(
            lambda m, x: functional.linear(functional.normalize(m.a(x)), functional.normalize(m.w)),
            a=mlp(outputs=64), w=nn.Parameter(torch.randn(10, 64)),
        ),
        entropy, x, y,
    )  # fmt: skip
    gate, head = nn.Linear(128, 4), nn.Linear(128, CLASSES)
    yield Entry("experts by mask", Of(masked, gate=gate, experts=experts(), head=head), entropy, x, y)
    yield Entry("experts by index", Of(dispatched, gate=gate, experts=experts(), head=head), entropy, x, y)


def measured(entry: Entry, rounds: int) -> tuple[str, str, float, float]:
    """The route and its reason, the private step and the examination in plain steps."""
    model, batch = entry.model, (entry.inputs, entry.targets)
    few = entry.inputs[:8], entry.targets[:8]
    oracle = NetworkOracle(model, entry.loss, example=few, expected=len(entry.inputs))

    def plain() -> None:
        model.zero_grad()
        torch.autograd.backward(entry.loss(model(entry.inputs), entry.targets).mean())

    def private() -> None:
        oracle.clipped_sum(batch, clip=Flat(1.0), relation="add-or-remove-one")

    plain()
    examined = _seconds(lambda: oracle.check(batch))
    model.zero_grad()
    private()
    found = [(_seconds(plain), _seconds(private)) for _ in range(rounds)]
    least = min(one for one, _ in found)
    route = oracle.route
    return route.kind, route.reason, min(other for _, other in found) / least, examined / least


def _seconds(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


_TOP = """## Routes and their price

`python -m benchmarks.routes`, PyTorch {torch}, one thread: processor time of the clipped sum in plain steps
(forward, loss and backward of the same batch), without noise and optimizer, and of the examination, which
runs once before anything is charged. The goal is {goal:g} plain steps for a private one.

| model | route | private step | examination | why not faster |
| --- | --- | ---: | ---: | --- |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", action="store_true", help="write the section of docs/benchmarks/step.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    logging.getLogger("sidelight").setLevel(logging.ERROR)
    lines = []
    for entry in entries():
        if options.only in entry.name:
            kind, reason, step, examined = measured(entry, options.rounds)
            lines.append(f"| {entry.name} | {kind} | {step:.1f} | {examined:.0f} | {reason} |")
            print(lines[-1], flush=True)
    if options.page:
        text = _TOP.format(torch=torch.__version__, goal=GOAL) + "\n".join(lines) + "\n"
        write_section(PAGE, "routes", text)


if __name__ == "__main__":
    main()
