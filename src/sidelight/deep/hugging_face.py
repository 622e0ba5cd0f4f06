"""Hugging Face's Trainer, private: the script stays, the class and a budget change.

    trainer = PrivateTrainer(model, args, train_dataset=private, public_dataset=public, epsilon=2)
    trainer.train()
    trainer.save_model("model")                     # weights, a model card, and the privacy card

Only `train` differs. It hands the model, the records and what `TrainingArguments` say to sidelight's
`Trainer`, which draws Poisson batches, clips each record's gradient and charges the whole plan first.
Evaluation, callbacks, logging and prediction remain those of transformers. A set-up whose guarantee would be
wrong is refused before the charge: a loss over the whole batch, float16 gradients, records grouped by length.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch.utils.data import Dataset, IterableDataset

from sidelight.deep.language import loss_of
from sidelight.deep.trainer import Trainer
from sidelight.errors import InputError, PrivacyConditionError, warn_charged
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.observers import numbers
from sidelight.oracles.network.batches import Losses
from sidelight.privacy.events import Relation
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.observer import Observer
from sidelight.privacy.statement import PrivacyStatement
from sidelight.problems.dataset_overlap import shared_records
from sidelight.problems.datasets import Loading, as_dataset, record_count

try:
    import transformers
except ImportError:
    raise InputError(
        "PrivateTrainer is a transformers.Trainer: install transformers and accelerate"
    ) from None

__all__ = ["PrivateTrainer"]

_FORBIDDEN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "fp16": (bool, "loss scaling depends on the whole batch; use bf16=True"),
    "deepspeed": (bool, "gradients are taken record by record here; leave it out"),
    "fsdp": (bool, "gradients are taken record by record here; leave it out"),
    "torch_compile": (bool, "gradients are taken record by record here; leave it out"),
    "auto_find_batch_size": (bool, "the batch size is part of the plan; give it"),
    "neftune_noise_alpha": (lambda value: value is not None, "its noise is not the plan's; leave it out"),
    "label_smoothing_factor": (bool, "it averages over the batch; pass loss=, one number per record"),
    "load_best_model_at_end": (bool, "the model that is released is the last one; leave it out"),
    "group_by_length": (bool, "batches are drawn at random, one record at a time; leave it out"),
}


class PrivateTrainer(transformers.Trainer):  # type: ignore[misc]
    """`transformers.Trainer` whose `train` is differentially private for the records of `train_dataset`.

    Formal guarantee: that of `sidelight.Trainer`; `privacy_` states it after `train`.

    What the arguments mean here: per_device_train_batch_size × gradient_accumulation_steps × world size is
    the *expected* batch size, of which per_device_train_batch_size records are held in memory at once;
    num_train_epochs or max_steps, learning_rate, weight_decay, optim, warmup and lr_scheduler_type are kept;
    max_grad_norm clips each *record's* gradient; bf16 trains under autocast.

    Args:
        epsilon, delta, relation, ledger, dataset, random_state: as in `sidelight.Trainer`.
        public_dataset: records that need no protection; methods other than dp_sgd use them.
        method: a recipe or a name; None is dp_sgd(clip_norm=max_grad_norm).
        loss: (outputs, labels) → one number per record; None is that of the model's head.
        unit, persons, max_rows: what one unit of privacy is, as in `sidelight.Trainer`.
        hugging_face: everything else that transformers.Trainer takes.
    """

    privacy_: PrivacyStatement
    control: Any  # of transformers: what a callback asks for
    expected: ClassVar[tuple[str, ...]] = ("compute_loss", "training_step", "get_batch_samples")

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        epsilon: float,
        delta: float | None = None,
        relation: Relation | None = None,
        public_dataset: Dataset[object] | None = None,
        method: Any = None,
        loss: Losses | None = None,
        unit: Any = "record",
        persons: Any = None,
        max_rows: int = 8,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
        **hugging_face: Any,
    ) -> None:
        super().__init__(model, args, **hugging_face)
        self._given_optimizers = any(hugging_face.get("optimizers") or ())
        self._loss, self._public, self._persons = loss, public_dataset, persons
        self._settings: dict[str, Any] = {
            "epsilon": epsilon, "delta": delta, "relation": relation, "ledger": ledger, "dataset": dataset,
            "unit": unit, "max_rows": max_rows, "random_state": random_state,
            "method": dp_sgd(clip_norm=self.args.max_grad_norm or 1.0) if method is None else method,
        }  # fmt: skip
        self.private_: Trainer | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, **_: Any) -> Any:
        """Train privately; every call spends budget."""
        self._refuse(resume_from_checkpoint)
        self.private_ = self._private_trainer()
        precision = torch.autocast(self.args.device.type, torch.bfloat16) if self.args.bf16 else nullcontext()
        with precision:
            self.private_.fit(self.train_dataset, self._public, persons=self._persons)
        self.privacy_ = self.private_.privacy_
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        found = {"epsilon": self.privacy_.epsilon, "delta": self.privacy_.delta}
        self.state.log_history.append({**found, "step": self.state.global_step})
        return transformers.trainer_utils.TrainOutput(self.state.global_step, math.nan, found)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **more: Any) -> dict[str, float]:
        """As transformers does; private records are refused, since a score on them is not charged."""
        self._refuse_private(self.eval_dataset if eval_dataset is None else eval_dataset)
        before = [(module, dict(vars(module))) for module in self.model.modules()]
        try:
            scores: dict[str, float] = super().evaluate(eval_dataset, *args, **more)
        finally:
            for module, attributes in before:  # the mode, and what accelerate marks
                vars(module).clear()
                vars(module).update(attributes)
        return scores

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Weights with the guarantee: README.md and privacy.json beside them."""
        if self.private_ is None or not hasattr(self, "privacy_"):
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self.private_.save_pretrained(output_dir or self.args.output_dir, tokenizer=self.processing_class)

    def _refuse(self, resume: object) -> None:
        """InputError for a set-up whose guarantee would be wrong, or whose meaning would be lost."""
        if resume:
            raise InputError(
                "resume_from_checkpoint is not private here: its noise would be drawn anew. Use "
                "sidelight.Trainer(checkpoints=...), which continues without a new charge"
            )
        for name, (wrong, why) in _FORBIDDEN.items():
            if wrong(getattr(self.args, name, None)):
                raise InputError(f"TrainingArguments({name}={getattr(self.args, name)!r}): {why}")
        for name in self.expected:
            if getattr(type(self), name, None) is not getattr(transformers.Trainer, name, None):
                raise InputError(f"{name} is overridden, and not used: pass loss=, one number per record")
        if self.compute_loss_func is not None:
            raise InputError("compute_loss_func sees a whole batch: pass loss=, one number per record")
        if self._given_optimizers:
            raise InputError(
                "optimizers= are objects, and a plan needs to make them: use optim= and learning_rate="
            )
        if self.train_dataset is None or isinstance(self.train_dataset, IterableDataset):
            raise InputError("train_dataset must be a dataset with a length, so that records can be drawn")
        several = (
            self.eval_dataset.values() if isinstance(self.eval_dataset, Mapping) else [self.eval_dataset]
        )
        for one in several:
            self._refuse_private(one)

    def _refuse_private(self, scored: Any) -> None:
        if scored is None or isinstance(scored, str) or self.train_dataset is None:
            return
        if shared_records(as_dataset(scored, public=True), as_dataset(self.train_dataset)):
            raise PrivacyConditionError(
                "evaluation on private records reveals something about them and is not charged: pass "
                "public or test records"
            )

    def _private_trainer(self) -> Trainer:
        """sidelight's, with what the arguments say."""
        args, n = self.args, record_count(as_dataset(self.train_dataset))
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size)
        batch = min(batch, n)
        steps = args.max_steps if args.max_steps > 0 else max(1, math.ceil(args.num_train_epochs * n / batch))
        self.state.max_steps, self.state.num_train_epochs = steps, math.ceil(steps * batch / n)
        self.state.compute_steps(args, steps)
        return Trainer(
            self.model,
            loss_of(self.model) if self._loss is None else self._loss,
            expected_batch_size=batch,
            steps=steps,
            optimizer=self._optimizer,
            scheduler=lambda optimizer: transformers.get_scheduler(
                args.lr_scheduler_type,
                optimizer,
                num_warmup_steps=args.get_warmup_steps(steps),
                num_training_steps=steps,
                scheduler_specific_kwargs=args.lr_scheduler_kwargs,
            ),
            loading=Loading(
                collate=self._get_collator_with_removed_columns(self.data_collator),
                micro_batch=args.per_device_train_batch_size,
                workers=args.dataloader_num_workers,
            ),
            progress=False,
            observers=[_Callbacks(self, batch / n)],
            **self._settings,
        )

    def _optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """The one that the arguments name; biases and norms are not decayed, as in transformers."""
        kind, settings = transformers.Trainer.get_optimizer_cls_and_kwargs(self.args, self.model)
        several = list(parameters)
        groups = [
            {"params": [p for p in several if p.dim() > 1], "weight_decay": self.args.weight_decay},
            {"params": [p for p in several if p.dim() <= 1], "weight_decay": 0.0},
        ]
        made: torch.optim.Optimizer = kind([group for group in groups if group["params"]], **settings)
        return made


class _Callbacks(Observer):
    """Passes steps on to transformers' callbacks: logs of public numbers, evaluations, saved models."""

    def __init__(self, trainer: PrivateTrainer, epochs_per_step: float) -> None:
        self._trainer, self._share = trainer, epochs_per_step

    def on_start(self, *, method: str, epsilon: float, releases: int) -> None:
        hugging = self._trainer
        hugging.control = hugging.callback_handler.on_train_begin(
            hugging.args, hugging.state, hugging.control
        )

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        hugging = self._trainer
        args, state, handler = hugging.args, hugging.state, hugging.callback_handler
        state.global_step += 1
        state.epoch = state.global_step * self._share
        control = hugging.control = handler.on_step_end(args, state, hugging.control)
        if control.should_log:
            hugging.log(numbers(entry))
            control.should_log = False
        if control.should_evaluate:
            hugging.evaluate()
            control.should_evaluate = False
        if control.should_training_stop and state.global_step < state.max_steps:
            warn_charged(
                "a callback asked to stop: the plan is charged as a whole, and training continues",
                RuntimeWarning,
            )
            control.should_training_stop = False
