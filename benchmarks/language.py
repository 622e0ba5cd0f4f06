"""Language models: a private step of ours and of Opacus against a plain one, side by side.

    python -m benchmarks.language [--rounds N] [--models 0 1] [--out docs/benchmarks/language.md]

A GPT-2-shaped model in plain PyTorch, transformers' own GPT-2, a BERT of the shape of MiniLM, and the same
with LoRA adapters of peft, which alone are trained. Opacus' fast gradient clipping (ghost clipping) is given
what it needs: no tied weights, and positions for each record; for adapters, whose gradients are small, Opacus
also writes them out (DP-SGD). transformers' models are left out where it is not installed (`make test-models`
brings it, in an environment of its own: `.venv-models/bin/python -m benchmarks.language`). Their texts are
padded: where all have one length, these models leave out the mask of their attention, which is a decision by
values of records, and so not for us. Steps take turns; times are medians of processor time on one thread.
Memory is the peak above the idle model and its data: what a step takes, and what is held from one step to the
next. Our oracle looks at the model anew at its first, second, fourth, eighth … call. These are not timed with
the others: what the first one takes, with the examination of the model, is given below each table. A model
that was measured is kept in build/language.json and not measured again: the command may be stopped at any
time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.memory import bytes_of_tensors, peak_above_rest
from benchmarks.models import Transformer
from benchmarks.steps import two_passes
from sidelight.deep import label_loss, next_token_loss
from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.privacy.release import BoundedSum

Step = Callable[[], object]
Loss = Callable[[Any, Any], Tensor]
GOAL = 1.3  # times a plain step
UNTIMED, MOST_ROUNDS = 4, 3  # calls before the clock; the fifth to the seventh are ordinary ones
MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # every tensor is unmapped when freed: what is left is alive
# Else every large tensor is mapped anew, page by page, in each step: for all alike.
SPEED = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000"}


@dataclass(frozen=True)
class Model:
    """A model, its records, and how it looks without tied weights."""

    name: str
    build: Callable[[bool], nn.Module]  # tied?
    records: int
    length: int
    words: int
    loss: Loss
    transformers: bool = False
    adapters: bool = False

    def batch(self) -> tuple[Any, Tensor]:
        words = torch.randint(2, self.words, (self.records, self.length))
        places = torch.arange(self.length).repeat(self.records, 1)
        lengths = torch.linspace(self.length // 2, self.length, self.records).long()[:, None]
        there = places < lengths if self.transformers else torch.ones_like(places, dtype=torch.bool)
        tokens = self.loss is next_token_loss
        labels = words.where(there, -100) if tokens else torch.randint(0, 2, (self.records,))
        if not self.transformers:
            return words, labels
        return {"input_ids": words * there, "attention_mask": there.long(), "position_ids": places}, labels


def _gpt2(tied: bool) -> nn.Module:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=8192, n_positions=64, n_embd=256, n_layer=4, n_head=4, use_cache=False, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _minilm(tied: bool) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, num_labels=2,
        intermediate_size=1536, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def _adapted(tied: bool) -> nn.Module:
    import peft

    targets = ["query", "value", "intermediate.dense"]
    adapted: nn.Module = peft.get_peft_model(_minilm(tied), peft.LoraConfig(r=8, target_modules=targets))
    return adapted


def _shaped(tied: bool) -> nn.Module:
    return Transformer(8192, 256, 4, 4, 64, classes=0, tied=tied)


def _small(tied: bool) -> nn.Module:
    return Transformer(64, 16, 2, 1, 8, classes=0, tied=tied)


SMALL = Model("GPT-2-shaped, one layer of 16, to try the command", _small, 4, 8, 64, next_token_loss)
MODELS = (
    Model("GPT-2-shaped, 4 layers of 256, plain PyTorch", _shaped, 16, 64, 8192, next_token_loss),
    Model("GPT2LMHeadModel, 4 layers of 256", _gpt2, 16, 64, 8192, next_token_loss, transformers=True),
    Model("BERT of MiniLM's shape, 6 layers of 384", _minilm, 16, 32, 30522, label_loss, transformers=True),
    Model("LoRA on that BERT: rank 8 on queries, values and the first dense layer", _adapted, 32, 32, 30522,
          label_loss, transformers=True, adapters=True),
)  # fmt: skip


def _call(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def plain(one: Model) -> Step:
    model, batch = one.build(True), one.batch()

    def step() -> None:
        one.loss(_call(model, batch[0]), batch[1]).mean().backward()
        model.zero_grad(set_to_none=True)

    return step


def ours(one: Model) -> Step:
    oracle, batch = NetworkOracle(one.build(True), one.loss, pass_size=one.records), one.batch()
    return lambda: oracle.clipped_sum(batch, clip=Flat(1.0), relation="add-or-remove-one")


def opacus_ghost(one: Model) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model: Any = GradSampleModuleFastGradientClipping(
        one.build(False), loss_reduction="sum", max_grad_norm=1.0, use_ghost_clipping=True
    )
    batch = one.batch()

    return two_passes(model, lambda: one.loss(_call(model, batch[0]), batch[1]))


def opacus_written_out(one: Model) -> Step:
    from opacus import GradSampleModule

    model: Any = GradSampleModule(one.build(False), loss_reduction="sum")
    batch, trained = one.batch(), [p for p in model.parameters() if p.requires_grad]

    def step() -> None:
        one.loss(_call(model, batch[0]), batch[1]).sum().backward()
        norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in trained], 1).norm(dim=1)
        factors = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for p in trained:
            torch.einsum("i,i...", factors, p.grad_sample)
        model.zero_grad(set_to_none=True)

    return step


STEPS: dict[str, Callable[[Model], Step]] = {"plain": plain, "sidelight": ours, "Opacus, ghost": opacus_ghost}
FOR_ADAPTERS = {"Opacus, DP-SGD": opacus_written_out}


def steps_of(one: Model) -> dict[str, Callable[[Model], Step]]:
    """Whose steps are compared."""
    return {**STEPS, **(FOR_ADAPTERS if one.adapters else {})}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=MOST_ROUNDS)
    parser.add_argument("--models", type=int, nargs="*", default=range(len(MODELS)))
    parser.add_argument("--out", type=Path, help="write the page to this Markdown file")
    parser.add_argument("--kept", type=Path, default=Path("build/language.json"), help="what was measured")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "STEP"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.rounds = min(options.rounds, MOST_ROUNDS)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.child:
        number, step = options.child
        print(json.dumps(_child(MODELS[int(number)], step, options.rounds)))
        return
    there = importlib.util.find_spec("transformers") is not None
    chosen = [number for number in options.models if there or not MODELS[number].transformers]
    kept: dict[str, str] = json.loads(options.kept.read_text()) if options.kept.exists() else {}
    for number in chosen:
        if MODELS[number].name not in kept:
            kept[MODELS[number].name] = section(number, options.rounds)
            options.kept.parent.mkdir(parents=True, exist_ok=True)
            options.kept.write_text(json.dumps(kept))
    parts = [kept[one.name] for one in MODELS if one.name in kept]
    text = "\n\n".join([_heading(options.rounds), *parts])
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def _child(one: Model, step: str, rounds: int) -> Any:
    torch.manual_seed(0)
    return times_of(one, rounds) if step == "times" else memory_of(one, step)


def memory_of(one: Model, step: str) -> list[float]:
    """The peak of a step, and of that what is held from one step to the next (MB)."""
    run = steps_of(one)[step](one)
    before = bytes_of_tensors()

    def used() -> None:
        found = run()
        if isinstance(found, BoundedSum):
            found._value.add_(0.0)  # as noise does: memory that nobody has written to counts as well

    peak = peak_above_rest(used, before=2)  # the third is an ordinary one, in which nothing is tried
    held = max(0, bytes_of_tensors() - before)
    return [(peak + held) / 2**20, held / 2**20]


def times_of(one: Model, rounds: int) -> dict[str, Any]:
    """Medians of each step (ms), what was refused, and our first step."""
    steps, refused, first = dict[str, Step](), dict[str, str](), 0.0
    for name, make in steps_of(one).items():
        try:
            steps[name] = make(one)
            start = time.process_time()
            steps[name]()
            if name == "sidelight":
                first = time.process_time() - start
                for _ in range(UNTIMED - 1):
                    steps[name]()
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
            steps.pop(name, None)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, run in steps.items():
            start = time.process_time()
            run()
            taken[name].append(time.process_time() - start)
    medians = {name: 1e3 * statistics.median(some) for name, some in taken.items()}
    return {"ms": medians, "refused": refused, "first": 1e3 * first}


def _run(number: int, step: str, rounds: int, environment: dict[str, str]) -> Any:
    command = [
        sys.executable,
        "-m",
        "benchmarks.language",
        "--child",
        str(number),
        step,
        "--rounds",
        str(rounds),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return json.loads(done.stdout.splitlines()[-1])


def section(number: int, rounds: int) -> str:
    """One model, measured: every step by itself for its memory, and all in turns for their times."""
    found = _run(number, "times", rounds, SPEED)
    memory = {name: _run(number, name, rounds, MEMORY) for name in found["ms"]}
    return table(MODELS[number], found, memory)


def table(one: Model, found: dict[str, Any], memory: dict[str, list[float]]) -> str:
    """The table of one model, and how it stands against the goals."""
    taken, needed = found["ms"], {name: peak for name, (peak, _) in memory.items()}
    lines = [
        f"## {one.name}", "",
        f"{one.records} records of {one.length} tokens{', padded' if one.transformers else ''}.", "",
        "| step | ms | × plain | peak MB | of it held | × plain |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for name, ms in taken.items():
        cells = [name, f"{ms:.0f}", f"{ms / taken['plain']:.2f}"]
        cells += [*(f"{value:.0f}" for value in memory[name]), f"{needed[name] / needed['plain']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- refused by {name}: {why}" for name, why in found["refused"].items())]
    more = (found["first"] - taken["sidelight"]) / taken["plain"]
    lines += [*_goals("time", taken), *_goals("memory", needed)]
    if memory["sidelight"][1] >= 1:
        rest = {name: peak - held for name, (peak, held) in memory.items()}
        lines += _goals("memory of a step alone", rest)
    return "\n".join([*lines, f"- the examination of the model, once: {more:.1f} plain steps"])


def _goals(what: str, found: dict[str, float]) -> list[str]:
    """How sidelight stands against a plain step, and against the best of Opacus, to two decimals."""
    checks = [("plain", found["plain"], GOAL)]
    peers = [value for name, value in found.items() if name.startswith("Opacus")]
    if peers:
        checks.append(("Opacus", min(peers), 1.0))
    lines = []
    for whom, value, goal in checks:
        ratio = round(found["sidelight"] / value, 2)
        word = "met" if ratio <= goal else "MISSED"
        lines.append(f"- {word}: {what}, sidelight / {whom} = {ratio:.2f} (goal {goal})")
    return lines


def _heading(rounds: int) -> str:
    from importlib.metadata import PackageNotFoundError, version

    versions = []
    for name in ("torch", "opacus", "transformers", "peft"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return (
        "# A private step of a language model\n\n"
        f"`python -m benchmarks.language`: {', '.join(versions)};\nmedians of {rounds} rounds of processor "
        f"time on one thread of {os.cpu_count()} cores. Random weights and words; losses by record.\n"
        "Opacus' ghost clipping refuses tied weights, so it runs with two tables instead of one. "
        "Padded texts have half to all of the tokens:\nwhere none is shorter, transformers leaves out the "
        "mask of its attention, a decision by values of records that sidelight does not\nlet it take.\n\n"
        "Memory is the peak above the idle model and its data. *Held* is what stays from one step to the "
        "next. sidelight keeps a copy of every\nfrozen weight and buffer of up to four million numbers, to "
        "put back what a model writes there when it sees a private record. Those\nof long frozen weights "
        "(42 MB on these adapters) are in a file without a name in the folder for temporary files, and are "
        "compared at\nevery step, a quarter of a megabyte at a time: they are in this table by their time, "
        "and where that folder is itself memory (tmpfs) they\nare memory. Goals are compared to two "
        "decimals.\n\n"
        "The examination comes before the first step, once for each form of records: a run of a few steps "
        "takes longer for it than for\nits steps."
    )


if __name__ == "__main__":
    main()
