"""Hugging Face's Trainer, private: the script stays, the class and a budget change.

    trainer = PrivateTrainer(model, args, train_dataset=private, public_dataset=public, epsilon=2)
    trainer.train()
    trainer.save_model("model")                     # weights, a model card, and the privacy card

Only `train` differs. It hands the model, the records and what `TrainingArguments` say to sidelight's
`Trainer`, which draws Poisson batches, clips each record's gradient and charges the whole plan first.
Evaluation, saving, callbacks, logging and prediction remain those of transformers. Every argument is kept,
refused before the charge, or changes nothing (`hugging_face_arguments`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from sidelight.deep.checkpoint import Checkpoints
from sidelight.deep.hugging_face_arguments import epochs_ended, refuse_arguments
from sidelight.deep.language import loss_of
from sidelight.deep.trainer import Trainer
from sidelight.errors import InputError, PrivacyConditionError, warn_charged
from sidelight.files import write_text
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

_CLIP = 1.0  # max_grad_norm, where nothing is said
_UNUSED = (  # methods that a script may override, and that private training does not call
    "compute_loss", "training_step", "get_batch_samples", "create_optimizer", "create_scheduler",
    "create_optimizer_and_scheduler", "get_train_dataloader", "_get_train_sampler", "_inner_training_loop",
    "_prepare_inputs", "_prepare_input", "compute_loss_context_manager", "autocast_smart_context_manager",
)  # fmt: skip
_NEVER = ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")  # callbacks' moments
_INTERMEDIATE = """# A model from the middle of a private run

It is made of the first {step} of {steps} steps of a plan for ε = {epsilon:g}, all of which are charged. The
card of the whole run (privacy.json beside the final model) states ε, δ and every assumption.
"""


class PrivateTrainer(transformers.Trainer):  # type: ignore[misc]
    """`transformers.Trainer` whose `train` is differentially private for the records of `train_dataset`.

    Formal guarantee: that of `sidelight.Trainer`; `privacy_` states it after `train`. Models that are saved
    and scores that are logged on the way are computed from what was released.

    What the arguments mean here: per_device_train_batch_size × gradient_accumulation_steps × world size is
    the *expected* batch size B, of which per_device_train_batch_size records are held in memory at once; an
    epoch is n/B steps; num_train_epochs or max_steps, learning_rate, weight_decay, optim, warmup and
    lr_scheduler_type are kept; max_grad_norm clips each *record's* gradient; bf16 trains under autocast.

    Args:
        epsilon, delta, relation, ledger, dataset, random_state: as in `sidelight.Trainer`.
        public_dataset: records that need no protection; methods other than dp_sgd use them.
        method: a recipe or a name; None is dp_sgd(clip_norm=max_grad_norm).
        loss: (outputs, labels) → one number per record; None is that of the model's head.
        unit, persons, max_rows: what one unit of privacy is, as in `sidelight.Trainer`.
        checkpoints: a folder that must stay secret, written as often as models are saved:
            train(resume_from_checkpoint=True) continues from it, with the same noise and no new charge. The
            folders `checkpoint-…` hold models alone.
        hugging_face: everything else that transformers.Trainer takes.
    """

    privacy_: PrivacyStatement
    control: Any  # of transformers: what a callback asks for

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
        checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
        **hugging_face: Any,
    ) -> None:
        if args is not None:
            refuse_arguments(args)  # before a folder is made, or a hub is asked for one
        super().__init__(model, args, **hugging_face)
        self._given_optimizers = any(hugging_face.get("optimizers") or ())
        self._loss, self._public, self._persons = loss, public_dataset, persons
        self._method, self._folder = method, checkpoints
        self._settings: dict[str, Any] = {
            "epsilon": epsilon, "delta": delta, "relation": relation, "ledger": ledger, "dataset": dataset,
            "unit": unit, "max_rows": max_rows, "random_state": random_state,
        }  # fmt: skip
        self.private_: Trainer | None = None

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: object = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train privately; every call spends budget, unless it resumes from `checkpoints`."""
        if trial is not None:
            self.hyperparameter_search()
        resume = self._resumes(resume_from_checkpoint)
        self._refuse()
        self._begin_anew()
        steps = _Steps(self, ignore_keys_for_eval)
        self.private_ = self._private_trainer(steps)
        precision = torch.autocast(self.args.device.type, torch.bfloat16) if self.args.bf16 else nullcontext()
        self.is_in_train = True
        try:
            with precision:
                self.private_.fit(self.train_dataset, self._public, persons=self._persons, resume=resume)
            self.privacy_ = self.private_.privacy_
            steps.finish(stopped=self.private_.stopped_)
        finally:
            self.is_in_train = False
        found = {"epsilon": self.privacy_.epsilon, "delta": self.privacy_.delta}
        self.state.log_history.append({**found, "step": self.state.global_step})
        return transformers.trainer_utils.TrainOutput(self.state.global_step, math.nan, found)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **more: Any) -> dict[str, float]:
        """As transformers does; private records are refused, since a score on them is not charged."""
        self._refuse_private(self.eval_dataset if eval_dataset is None else eval_dataset)
        before = [(module, dict(vars(module))) for module in self.model.modules()]
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=devices):
                scores: dict[str, float] = super().evaluate(eval_dataset, *args, **more)
        finally:
            for module, attributes in before:  # the mode, and what accelerate marks
                vars(module).clear()
                vars(module).update(attributes)
        return scores

    def predict(self, test_dataset: Any, *args: Any, **more: Any) -> Any:
        """As transformers does; private records are refused, as in `evaluate`."""
        self._refuse_private(test_dataset)
        return super().predict(test_dataset, *args, **more)

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refused: every trial would be charged, and its choice too."""
        raise InputError(
            "a search over settings spends the budget in every trial, and nothing states the sum. Choose "
            "settings on public records, or with sidelight.Trainer(method='auto')"
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Weights with the guarantee: README.md and privacy.json beside them."""
        folder = Path(output_dir or self.args.output_dir)
        if self.private_ is not None and hasattr(self, "privacy_"):
            if self.args.should_save:
                self.private_.save_pretrained(folder, tokenizer=self.processing_class)
            return
        super().save_model(str(folder), _internal_call)
        if self.private_ is not None and self.args.should_save:
            known = {"step": self.state.global_step, "steps": self.state.max_steps}
            write_text(folder / "README.md", _INTERMEDIATE.format(epsilon=self.private_.epsilon, **known))

    def create_model_card(self, *args: Any, **more: Any) -> None:
        """Transformers' own card, unless that would replace the one with the guarantee."""
        if not hasattr(self, "privacy_"):
            super().create_model_card(*args, **more)

    # What transformers saves beside a model: states that would tell where noise comes from, or counts of
    # private tokens. A run is continued from `checkpoints`.

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None: ...

    def _save_scaler(self, output_dir: str) -> None: ...

    def _save_rng_state(self, output_dir: str) -> None: ...

    def store_flos(self) -> None: ...

    def _resumes(self, resume: str | bool | None) -> bool:
        """Whether to continue from `checkpoints`; InputError for a folder that holds no noise."""
        if not resume:
            return False
        mine = self._folder.path if isinstance(self._folder, Checkpoints) else self._folder
        if mine is None or (isinstance(resume, str) and Path(resume).resolve() != Path(mine).resolve()):
            raise InputError(
                "resume_from_checkpoint continues from PrivateTrainer(checkpoints=folder), which keeps the "
                "noise and the charge of the run; folders named checkpoint-… hold models alone"
            )
        return True

    def _refuse(self) -> None:
        """InputError for a set-up whose guarantee would be wrong, or whose meaning would be lost."""
        refuse_arguments(self.args)
        if self._method is not None and self.args.max_grad_norm != _CLIP:
            raise InputError(
                "max_grad_norm is that of dp_sgd: give method= its own clip_norm, and leave it out"
            )
        for name in _UNUSED:
            if getattr(type(self), name, None) is not getattr(transformers.Trainer, name, None):
                raise InputError(f"{name} is overridden, and not used: pass loss=, one number per record")
        for callback in self.callback_handler.callbacks:
            for name in _NEVER:
                if getattr(type(callback), name) is not getattr(transformers.TrainerCallback, name):
                    raise InputError(f"{type(callback).__name__}.{name} is never called: use on_step_end")
        if self.compute_loss_func is not None:
            raise InputError("compute_loss_func sees a whole batch: pass loss=, one number per record")
        if self._given_optimizers:
            raise InputError(
                "optimizers= are objects, and a plan needs to make them: use optim= and learning_rate=, or "
                "optimizer_cls_and_kwargs="
            )
        if self.train_dataset is None or isinstance(self.train_dataset, IterableDataset):
            raise InputError("train_dataset must be a dataset with a length, so that records can be drawn")
        self._refuse_packing()
        several = (
            self.eval_dataset.values() if isinstance(self.eval_dataset, Mapping) else [self.eval_dataset]
        )
        for one in several:
            self._refuse_private(one)

    def _refuse_packing(self) -> None:
        collator = self.data_collator
        flattens = type(collator).__name__ == "DataCollatorWithFlattening"
        columns = getattr(self.train_dataset, "column_names", None) or ()
        if flattens or getattr(collator, "padding_free", False) or "seq_lengths" in columns:
            raise InputError(
                "packing puts several records into one row, whose gradient nobody can tell apart: turn it off"
            )

    def _refuse_private(self, scored: Any) -> None:
        if scored is None or isinstance(scored, str) or self.train_dataset is None:
            return
        for one in scored.values() if isinstance(scored, Mapping) else [scored]:
            if shared_records(as_dataset(one, public=True), as_dataset(self.train_dataset)):
                raise PrivacyConditionError(
                    "evaluation on private records reveals something about them and is not charged: pass "
                    "public or test records"
                )

    def _begin_anew(self) -> None:
        """No card of an earlier run, and a new model where a script says how to make one."""
        if hasattr(self, "privacy_"):
            del self.privacy_
        if self.model_init is not None:
            transformers.set_seed(self.args.seed)
            self.model = self.model_wrapped = self.callback_handler.model = self.call_model_init()
            self._move_model_to_device(self.model, self.args.device)

    def _private_trainer(self, steps: _Steps) -> Trainer:
        """sidelight's, with what the arguments say."""
        args, n = self.args, record_count(as_dataset(self.train_dataset))
        batch = min(n, args.train_batch_size * args.gradient_accumulation_steps * max(1, args.world_size))
        count = args.max_steps if args.max_steps > 0 else max(1, math.ceil(args.num_train_epochs * n / batch))
        self.state = transformers.TrainerState(
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            max_steps=count, num_train_epochs=math.ceil(count * batch / n), train_batch_size=batch,
            stateful_callbacks=[
                one for one in (*self.callback_handler.callbacks, self.control)
                if isinstance(one, transformers.trainer_callback.ExportableState)
            ],
        )  # fmt: skip
        self.state.compute_steps(args, count)
        steps.batch, steps.n = batch, n
        return Trainer(
            self.model,
            loss_of(self.model) if self._loss is None else self._loss,
            method=dp_sgd(clip_norm=args.max_grad_norm) if self._method is None else self._method,
            expected_batch_size=batch,
            steps=count,
            optimizer=self._optimizer,
            scheduler=partial(
                _scheduler, kind=str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
                warmup=args.get_warmup_steps(count), steps=count, specific=args.lr_scheduler_kwargs,
            ),
            loading=Loading(
                collate=self._collate(),
                micro_batch=args.per_device_train_batch_size,
                workers=args.dataloader_num_workers,
            ),
            checkpoints=self._checkpoints(max(1, n // batch)),
            progress=False,
            observers=[steps],
            **self._settings,
        )  # fmt: skip

    def _collate(self) -> Callable[[list[Any]], object]:
        """The script's own, after the columns that the model has no use for are gone.

        That of transformers lists them in an order that differs between processes, which compare their code.
        """
        if not self.args.remove_unused_columns:
            return self.data_collator  # type: ignore[no-any-return]
        self._set_signature_columns_if_needed()
        return partial(_collated, collate=self.data_collator, columns=sorted(set(self._signature_columns)))

    def _checkpoints(self, epoch: int) -> Checkpoints | None:
        """As often as models are saved, where only a folder was given."""
        if self._folder is None or isinstance(self._folder, Checkpoints):
            return self._folder
        often = {"steps": int(self.state.save_steps), "epoch": epoch}
        strategy = str(getattr(self.args.save_strategy, "value", self.args.save_strategy))
        return Checkpoints(self._folder, every=often.get(strategy, 100))

    def _optimizer(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """The one that the arguments name, with transformers' choice of what is decayed."""
        kind, settings = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
            self.args, self.model
        )
        plain = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if not plain or {"params", "model", "optimizer_dict"} & settings.keys():
            raise InputError(
                f"optim={self.args.optim} looks into the model; choose another, such as adamw_torch"
            )
        names = set(self.get_decay_parameter_names(self.model))
        decayed = {id(p) for name, p in self.model.named_parameters() if name in names}
        groups: tuple[list[Any], list[Any]] = ([], [])
        for parameter in parameters:
            groups[id(parameter) not in decayed].append(parameter)
        decays = (self.args.weight_decay, 0.0)
        made: torch.optim.Optimizer = kind(
            [{"params": some, "weight_decay": w} for some, w in zip(groups, decays, strict=True) if some],
            **settings,
        )
        self.callback_handler.optimizer = made
        return made


def _collated(items: list[Any], *, collate: Callable[[list[Any]], object], columns: list[str]) -> object:
    kept = [
        {name: value for name, value in item.items() if name in columns} if isinstance(item, dict) else item
        for item in items
    ]
    return collate(kept)


def _scheduler(optimizer: torch.optim.Optimizer, *, kind: str, warmup: int, steps: int, specific: Any) -> Any:
    return transformers.get_scheduler(
        kind, optimizer, num_warmup_steps=warmup, num_training_steps=steps, scheduler_specific_kwargs=specific
    )


class _Steps(Observer):
    """Steps and epochs as transformers' callbacks see them, and the logs, scores and models they ask for.

    The last step waits for the end of the run: what is scored and saved then is the model that is released.
    """

    batch: int
    n: int

    def __init__(self, trainer: PrivateTrainer, ignored: list[str] | None) -> None:
        self._trainer, self._ignored = trainer, ignored
        self._begun, self._last = False, dict[str, object]()

    def on_plan(self) -> None:
        self._begin()  # before the charge: a callback or a score that fails costs nothing

    def on_step(self, step: int, entry: Mapping[str, object]) -> None:
        self._begin()  # a resumed run has no plan
        if step >= self._trainer.state.max_steps:
            self._last = dict(entry)
        else:
            self._after(step, entry, last=False)

    def finish(self, *, stopped: bool) -> None:
        """After the run: its last step, and the end."""
        trainer = self._trainer
        if self._last and not stopped:
            self._after(trainer.state.max_steps, self._last, last=True)
        if self._begun:
            self._tell("on_train_end")
        else:  # another rank than the first, which has the steps
            trainer.state.global_step = trainer.state.max_steps

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        self._tell("on_train_begin")
        if self._trainer.args.eval_on_start:
            self._trainer._evaluate(None, self._ignored, skip_scheduler=True)
        self._tell("on_epoch_begin")
        self._tell("on_step_begin")

    def _after(self, step: int, entry: Mapping[str, object], *, last: bool) -> None:
        trainer = self._trainer
        trainer.state.global_step, trainer.state.epoch = step, step * self.batch / self.n
        self._tell("on_step_end")
        self._act(entry)
        epochs = [epochs_ended(one, batch=self.batch, n=self.n) for one in (step - 1, step)]
        ended = epochs[1] > epochs[0]
        if ended or last:
            self._tell("on_epoch_end")
            self._act(entry)
        if trainer.control.should_training_stop and not last:
            warn_charged(
                "a callback asked to stop: the plan is charged as a whole, and training continues",
                RuntimeWarning,
            )
            trainer.control.should_training_stop = False
        for event in () if last else ("on_epoch_begin", "on_step_begin")[not ended :]:
            self._tell(event)

    def _tell(self, event: str) -> None:
        trainer = self._trainer
        tell: Callable[..., Any] = getattr(trainer.callback_handler, event)
        trainer.control = tell(trainer.args, trainer.state, trainer.control)

    def _act(self, entry: Mapping[str, object]) -> None:
        """What callbacks have asked for since the last time."""
        trainer = self._trainer
        if trainer.control.should_log:
            rates = trainer.callback_handler.optimizer.param_groups
            trainer.log({**numbers(entry), "learning_rate": float(rates[0]["lr"])})
        if trainer.control.should_evaluate and trainer.args.world_size == 1:
            metrics = trainer._evaluate(None, self._ignored, skip_scheduler=True)
            better = trainer._determine_best_metric(metrics=metrics, trial=None)
            if str(getattr(trainer.args.save_strategy, "value", trainer.args.save_strategy)) == "best":
                trainer.control.should_save = better
        if trainer.control.should_save:
            trainer._save_checkpoint(trainer.model, None)
            self._tell("on_save")
