"""What PrivateTrainer makes of each field of TrainingArguments: kept, refused, or without effect on training.

A field of a later transformers that is in none of these lists is refused if its value is not the default: it
may change training, and nobody has looked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sidelight.errors import InputError

__all__ = ["HARMLESS", "HONORED", "REFUSED", "epochs_ended", "refuse_arguments"]

# Training, evaluation, logs and checkpoints follow these as in transformers.
HONORED = frozenset((
    "output_dir", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs",
    "max_steps", "learning_rate", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "optim_args",
    "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "eval_strategy",
    "eval_steps", "eval_delay",
    "eval_on_start", "per_device_eval_batch_size", "logging_strategy", "logging_steps",
    "logging_first_step", "save_strategy", "save_steps", "save_total_limit", "metric_for_best_model",
    "greater_is_better", "dataloader_num_workers", "remove_unused_columns", "seed", "use_cpu", "no_cuda",
    "use_mps_device", "tf32", "use_cache", "report_to", "disable_tqdm", "log_level",
))  # fmt: skip

# They are about evaluation, logs, files, speed or the launcher, and change no private step.
HARMLESS = frozenset((
    "average_tokens_across_devices",  # each record's loss is a mean of its own
    "save_only_model",  # checkpoints hold nothing else here
    "prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps",
    "include_for_metrics", "include_inputs_for_metrics", "batch_eval_metrics", "log_on_each_node",
    "logging_dir", "logging_nan_inf_filter", "log_level_replica", "run_name", "project",
    "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "save_on_each_node",
    "save_safetensors", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy",
    "hub_always_push", "hub_revision", "ignore_data_skip", "full_determinism", "accelerator_config",
    "torch_empty_cache_steps", "gradient_checkpointing_kwargs", "torch_compile_backend",
    "torch_compile_mode", "liger_kernel_config", "dataloader_pin_memory", "dataloader_persistent_workers",
    "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order",
    "length_column_name", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers",
    "ddp_static_graph", "ddp_backend", "ddp_timeout", "fsdp_config", "skip_memory_metrics", "do_train",
    "do_eval", "do_predict", "local_rank", "resume_from_checkpoint",  # train(resume_from_checkpoint=) decides
    "overwrite_output_dir",
))  # fmt: skip

Refusal = tuple[Callable[[Any], bool], str]


def _given(value: Any) -> bool:
    return value is not None


def _is_one_of(*names: str) -> Callable[[Any], bool]:
    """Whether an option's name, or a part of it, is one of these."""
    return lambda value: any(name in str(getattr(value, "value", value)) for name in names)


def _is_not(*usual: Any) -> Callable[[Any], bool]:
    return lambda value: value not in usual


_BY_RECORD = "gradients are taken record by record here; leave it out"
REFUSED: dict[str, Refusal] = {
    "max_grad_norm": (
        lambda value: not value or value < 0,
        "every record's gradient is clipped; give a positive number",
    ),
    "fp16": (bool, "loss scaling depends on the whole batch; use bf16=True"),
    "fp16_full_eval": (bool, "it turns the weights into float16; leave it out"),
    "bf16_full_eval": (bool, "it turns the weights into bfloat16; leave it out"),
    "deepspeed": (bool, _BY_RECORD),
    "fsdp": (bool, _BY_RECORD),
    "parallelism_config": (_given, _BY_RECORD),
    "torch_compile": (bool, _BY_RECORD),
    "use_liger_kernel": (bool, "its losses are those of a whole batch; leave it out"),
    "gradient_checkpointing": (
        bool,
        "records in memory are set by per_device_train_batch_size; if one is too large, call "
        "model.gradient_checkpointing_enable({'use_reentrant': False}) yourself",
    ),
    "auto_find_batch_size": (bool, "the batch size is part of the plan; give it"),
    "neftune_noise_alpha": (_given, "its noise is not the plan's; leave it out"),
    "label_smoothing_factor": (bool, "it averages over the batch; pass loss=, one number per record"),
    "lr_scheduler_type": (
        _is_one_of("plateau", "greedy"),
        "it waits for scores, and the plan is made before there are any; choose another",
    ),
    "optim": (
        _is_one_of("lomo", "layerwise"),
        "it steps inside the backward pass, before a gradient is clipped and noised; choose another",
    ),
    "optim_target_modules": (_given, "optimizers that project gradients are not supported; leave it out"),
    "load_best_model_at_end": (bool, "the model that is released is the last one; leave it out"),
    "group_by_length": (bool, "batches are drawn at random, one record at a time; leave it out"),
    "train_sampling_strategy": (
        _is_not(None, "random"),
        "batches are drawn at random, one record at a time; leave it out",
    ),
    "data_seed": (
        _given,
        "batches are drawn by a generator that nobody can repeat; random_state= is for tests",
    ),
    "dataloader_drop_last": (bool, "batches are drawn at random, and there is no last one; leave it out"),
    "label_names": (
        _is_not(None, ["labels"]),
        "a record's targets are its 'labels'; rename them, or pass a data_collator that does",
    ),
    "include_num_input_tokens_seen": (
        _is_not(False, None, "no"),
        "the number of tokens in private records is not public; leave it out",
    ),
    "push_to_hub": (bool, "its pushes hold no privacy card; call save_model, and upload that folder"),
    "enable_jit_checkpoint": (bool, "pass checkpoints=, which a stopped run is continued from"),
    "restore_callback_states_from_checkpoint": (bool, "callbacks begin anew; leave it out"),
    "debug": (bool, "its hooks look at private records; leave it out"),
}


def refuse_arguments(args: Any) -> None:
    """InputError for the first field that would make training wrong, or be ignored although it matters."""
    for name, (wrong, why) in REFUSED.items():
        if hasattr(args, name) and wrong(getattr(args, name)):
            raise InputError(f"TrainingArguments({name}={_shown(getattr(args, name))}): {why}")
    known = HONORED | HARMLESS | REFUSED.keys()
    for field in dataclasses.fields(args):
        if field.init and field.name not in known and getattr(args, field.name) != _default(field):
            raise InputError(
                f"TrainingArguments({field.name}={_shown(getattr(args, field.name))}): this version of "
                "sidelight does not know what it changes; leave it out"
            )
    alone = getattr(args, "world_size", 1) == 1
    during = str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no" or args.eval_on_start
    if during and not alone:
        raise InputError(
            f"TrainingArguments(eval_strategy={_shown(args.eval_strategy)}): only the first of several ranks "
            "has the steps, so none can evaluate between them; call evaluate() on every rank afterwards"
        )


def _shown(value: Any) -> str:
    return repr(getattr(value, "value", value))


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def epochs_ended(step: int, *, batch: int, n: int) -> int:
    """How many epochs have ended after this step: an epoch is n/B steps, the mean number to see a record."""
    return step * batch // n
