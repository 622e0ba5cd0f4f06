"""Transformers as they come: a loss for each record, and a folder that says what was promised.

    trainer = Trainer(model, epsilon=2)             # the loss is that of the model's own head, by record
    trainer.fit(private, public)                    # items are dictionaries with 'labels'
    trainer.save_pretrained("model")                # weights, a model card, and the privacy card

A transformers model averages its loss over all tokens of a batch, so a long record takes weight from the
others and no record's influence is bounded. Here tokens are averaged within each record. `loss_of` finds the
loss by the model's head; transformers and peft themselves are not imported.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from sidelight.deep.per_example import scores_of
from sidelight.errors import InputError
from sidelight.files import write_text
from sidelight.oracles.network.batches import Losses
from sidelight.privacy.statement import PrivacyStatement
from sidelight.report.card import card_of

_CARDS = ("privacy.json", "README.md")
_IGNORED = -100  # a label that is not asked for: padding, or a word that was not hidden


# ---------------------------------------------------------------------------------------------------
# losses, one number per record


@dataclass(frozen=True)
class TokenLoss:
    """The mean cross-entropy over the tokens of each record that are asked for (label ≠ −100).

    Guarantee: what a record gives depends on that record alone; one without any asked token gives 0.
    Departs: transformers divides by the number of tokens in the batch, or by `num_items_in_batch`. That
    number changes with every record, so both mix records.

    Args:
        shift: the scores at a place are for the label of the next one, as in causal models whose labels are
            their input_ids.
    """

    shift: bool = False

    def __call__(self, outputs: object, labels: Tensor) -> Tensor:
        scores = _by_place(outputs, labels)
        scores, labels = (scores[:, :-1], labels[:, 1:]) if self.shift else (scores, labels)
        losses = nn.functional.cross_entropy(
            scores.reshape(-1, scores.shape[-1]), labels.reshape(-1), reduction="none", ignore_index=_IGNORED
        ).view(labels.shape)
        asked = labels != _IGNORED
        return (losses * asked).sum(1) / asked.sum(1).clamp(min=1)

    def tokens(self, labels: Tensor) -> Tensor:
        """How many tokens of each record are asked for."""
        return ((labels[:, 1:] if self.shift else labels) != _IGNORED).sum(1)


def _by_place(outputs: object, labels: Tensor) -> Tensor:
    """Scores for the places that have labels: a soft prompt comes before them."""
    scores = scores_of(outputs)
    if scores.dim() != 3 or labels.dim() != 2:
        raise InputError(
            f"a token loss takes scores for every place and word, and a label for every place; scores have "
            f"{scores.dim()} dimensions and labels {labels.dim()}. For one label per record: label_loss"
        )
    return scores[:, -labels.shape[1] :]


@dataclass(frozen=True)
class LabelLoss:
    """One label a record, as heads for whole texts have: a class, a number, or several yes-or-no labels."""

    kind: str | None = None  # of transformers' `problem_type`; None tells it by the labels

    def __call__(self, outputs: object, labels: Tensor) -> Tensor:
        scores = scores_of(outputs)
        if self.kind == "regression" or (self.kind is None and scores.shape[-1] == 1):
            return ((scores.reshape(len(scores), -1) - labels.reshape(len(scores), -1)) ** 2).mean(1)
        if self.kind == "multi_label_classification" or labels.is_floating_point():
            entropy = nn.functional.binary_cross_entropy_with_logits
            return entropy(scores, labels.to(scores.dtype), reduction="none").mean(1)
        return nn.functional.cross_entropy(scores, labels, reduction="none")


token_loss = TokenLoss()
next_token_loss = TokenLoss(shift=True)
label_loss = LabelLoss()

# The end of a class's name → its loss. transformers names heads so throughout.
_HEADS: tuple[tuple[str, Losses], ...] = (
    ("ForCausalLM", next_token_loss),
    ("LMHeadModel", next_token_loss),
    ("ForMaskedLM", token_loss),
    ("ForTokenClassification", token_loss),
    ("ForConditionalGeneration", token_loss),
    ("ForSequenceClassification", label_loss),
    ("ForImageClassification", label_loss),
    ("ForAudioClassification", label_loss),
)


def loss_of(model: object) -> Losses:
    """The loss of a transformers model's head, by record; InputError for other models and other heads."""
    base = getattr(model, "get_base_model", None)  # a model of peft holds one of transformers
    inner = base() if callable(base) else model
    names = [kind.__name__ for kind in type(inner).__mro__]
    for ending, loss in _HEADS:
        if hasattr(inner, "config") and any(name.endswith(ending) for name in names):
            kind = getattr(inner.config, "problem_type", None)
            return LabelLoss(kind) if loss is label_loss and kind is not None else loss
    raise InputError(
        f"a loss is missing, and {type(inner).__name__} does not bring one: pass loss=, such as "
        "torch.nn.CrossEntropyLoss(), or a function of outputs and targets that gives one number per record, "
        "such as next_token_loss, token_loss or label_loss of sidelight.deep"
    )


# ---------------------------------------------------------------------------------------------------
# saved as transformers saves, with a card


@runtime_checkable
class Saves(Protocol):
    """A model of transformers or peft, or a tokenizer."""

    def save_pretrained(self, save_directory: str) -> object: ...


class Trained(Protocol):
    """A trainer, as far as its folder needs it."""

    privacy_: PrivacyStatement

    @property
    def model_(self) -> nn.Module: ...


def save_model(trainer: Trained, folder: str | os.PathLike[str], *, tokenizer: object = None) -> Path:
    """Weights, README.md with the guarantee, and privacy.json (`sidelight report`), into a folder.

    Everything is written beside it first: a failure leaves the folder as it was. What is written is the
    released model and public facts; no checkpoint, and nothing else of the private records.
    """
    target = Path(folder)
    if not isinstance(getattr(trainer, "privacy_", None), PrivacyStatement):
        raise InputError("nothing was trained yet; call fit first")
    model = trainer.model_
    for name, one in (("the model", model), ("tokenizer", tokenizer)):
        if one is not None and not isinstance(one, Saves):
            raise InputError(
                f"{name} ({type(one).__name__}) has no save_pretrained, as those of transformers and peft "
                "have; torch.save(trainer.model_.state_dict(), file) saves any other model"
            )
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; pass a folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as beside:
        for one in (model, tokenizer):
            if isinstance(one, Saves):
                one.save_pretrained(beside)
        card_of(trainer).write(Path(beside) / "privacy.json")
        write_text(Path(beside) / "README.md", model_card(trainer.privacy_, model))
        target.mkdir(exist_ok=True)
        for card in _CARDS:  # of another model, which must not stand beside these weights for a moment
            (target / card).unlink(missing_ok=True)
        for file in sorted(Path(beside).iterdir(), key=lambda path: path.name in _CARDS):
            if file.is_dir() and (target / file.name).is_dir():
                shutil.rmtree(target / file.name)
            os.replace(file, target / file.name)  # the cards last: with them the folder is whole
    return target


def model_card(statement: PrivacyStatement, model: nn.Module) -> str:
    """The card that model hubs show, with what was promised and under which assumptions."""
    facts = statement.to_dict()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    rows = {
        "ε": _figure(facts["epsilon"]), "δ": _figure(facts["delta"]), "neighbors": facts["relation"],
        "unit": facts.get("unit", "record"), "method": facts["method"],
        "trained parameters": f"{trained:,} of {total:,}",
    }  # fmt: skip
    parts = [
        _front(model), f"# {type(model).__name__}, trained with differential privacy", _promise(facts),
        "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())]),
        "## Assumptions", "\n".join(f"- {line}" for line in facts["assumptions"]),
    ]  # fmt: skip
    if notes := facts.get("notes") or facts["details"].get("notes"):
        parts += ["## Notes", "\n".join(f"- {line}" for line in notes)]
    parts += [
        "`privacy.json` has the events that were charged; `sidelight report privacy.json` shows them to a "
        "reviewer. The guarantee is about the private records that were trained on here, and not about what "
        "the model had learned before."
    ]
    return "\n\n".join(parts) + "\n"


def _promise(facts: Mapping[str, object]) -> str:
    epsilon = facts["epsilon"]
    if epsilon in ("infinity", float("inf")):
        return "**This model is not private**: private records were used without protection."
    unit = facts.get("unit", "record")
    whose = "each record" if unit == "record" else f"each person, by {unit}, with all rows of theirs"
    removed = facts["relation"] == "add-or-remove-one"
    differs = "with and without any one of them" if removed else "whatever any one of them is replaced by"
    return (
        f"These weights are ({_figure(epsilon)}, {_figure(facts['delta'])})-differentially private for "
        f"{whose} of the private data: {differs}, the chance of any outcome differs by a factor of at most "
        "e^ε, but for δ."
    )


def _front(model: nn.Module) -> str:
    library = "peft" if hasattr(model, "peft_config") else "transformers"
    return f"---\nlibrary_name: {library}\ntags:\n- differential-privacy\n- sidelight\n---"


def _figure(value: object) -> str:
    """Four digits, rounded up: less would promise more than was accounted for."""
    if not (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).plus(Decimal(repr(value)))):.4g}"
