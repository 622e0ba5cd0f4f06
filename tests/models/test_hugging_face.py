"""A script of Hugging Face's Trainer becomes private by its class: what it means, keeps and refuses.

`make test-models` runs this in an environment of its own.
"""

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for library in ("torch", "transformers", "peft", "accelerate"):
    pytest.importorskip(library, reason=f"{library} is not installed; `make test-models` brings it")

import peft  # noqa: E402
import torch  # noqa: E402
import transformers as tf  # noqa: E402
from torch.utils.data import Dataset, IterableDataset  # noqa: E402

from sidelight import Ledger, Trainer  # noqa: E402
from sidelight.deep import Loading, label_loss  # noqa: E402
from sidelight.deep.hugging_face import PrivateTrainer  # noqa: E402
from sidelight.deep.hugging_face_arguments import (  # noqa: E402
    HARMLESS,
    HONORED,
    REFUSED,
    refuse_arguments,
)
from sidelight.errors import InputError, PrivacyConditionError, PrivacyWarning  # noqa: E402
from sidelight.methods import dp_sgd  # noqa: E402

WORDS, LENGTH, N = 30, 6, 80


class Texts(Dataset[dict[str, Any]]):
    def __init__(self, n: int, seed: int) -> None:
        drawn = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(2, WORDS, (n, LENGTH), generator=drawn)
        self.labels = (self.ids[:, 0] > WORDS // 2).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": self.ids[row].tolist(), "label": int(self.labels[row]), "row": row}


def bert(**more: Any) -> Any:
    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=LENGTH, num_labels=2, **more,
    )  # fmt: skip
    return tf.BertForSequenceClassification(config)


def arguments(folder: Path, **more: Any) -> Any:
    usual: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
        "max_steps": 3, "learning_rate": 1e-2, "weight_decay": 0.1, "logging_steps": 1, "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "save_strategy": "no",
    }  # fmt: skip
    return tf.TrainingArguments(**{**usual, **more})


def made(folder: Path, model: Any = None, **more: Any) -> PrivateTrainer:
    kept = {name: more.pop(name) for name in ("eval_strategy", "eval_steps", "max_grad_norm") if name in more}
    usual: dict[str, Any] = {"train_dataset": Texts(N, 1), "epsilon": 2.0, "delta": 1e-4, "random_state": 0}
    return PrivateTrainer(model or bert(), more.pop("args", arguments(folder, **kept)), **{**usual, **more})


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Counting(tf.TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.scores: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self.scores.append(metrics)


def test_a_script_trains_privately_with_its_callbacks_and_scores(tmp_path: Path) -> None:
    counting = Counting()
    trainer = made(
        tmp_path, eval_strategy="steps", eval_steps=2, eval_dataset=Texts(20, 2), callbacks=[counting]
    )
    before = weights(trainer.model)
    trainer.train()
    assert (weights(trainer.model) != before).any() and trainer.privacy_.epsilon <= 2
    assert counting.steps == [1, 2, 3] and len(counting.scores) == 2 and "eval_loss" in counting.scores[0]
    trainer.save_model(str(tmp_path / "out"))
    assert {"README.md", "privacy.json", "config.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    tf.BertForSequenceClassification.from_pretrained(tmp_path / "out")


def test_the_arguments_mean_what_they_say(tmp_path: Path) -> None:
    """sidelight's Trainer charges the same with a batch of 8 · 2, AdamW, linear decay and a clip of 0.5."""
    trainer = made(tmp_path, max_grad_norm=0.5)
    trainer.train()
    model = bert()

    def adamw(parameters: Any) -> torch.optim.Optimizer:
        several = list(parameters)
        groups = [
            {"params": [p for p in several if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in several if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=1e-2)

    own = Trainer(
        model, label_loss, method=dp_sgd(clip_norm=0.5), epsilon=2, delta=1e-4, steps=3,
        expected_batch_size=16, random_state=0, progress=False, optimizer=adamw,
        scheduler=lambda optimizer: tf.get_linear_schedule_with_warmup(optimizer, 0, 3),
        loading=Loading(collate=without_rows),
    )  # fmt: skip
    own.fit(Texts(N, 1))
    assert trainer.privacy_.to_dict()["events"] == own.privacy_.to_dict()["events"]


def without_rows(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.tensor([item["input_ids"] for item in items]),
        "labels": torch.tensor([item["label"] for item in items]),
    }


class Asking(tf.TrainerCallback):  # type: ignore[misc]
    """Asks for a score after every step, or for none."""

    def __init__(self, asks: bool) -> None:
        self.asks, self.scores = asks, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_evaluate = self.asks

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.scores += 1


def test_a_score_during_training_changes_nothing(tmp_path: Path) -> None:
    found = []
    for asking in (Asking(False), Asking(True)):
        trainer = made(tmp_path, eval_dataset=Texts(20, 2), callbacks=[asking])
        trainer.train()
        assert asking.scores == 3 * asking.asks
        found.append(weights(trainer.model))
    assert torch.equal(*found)


def test_lora_trains_the_adapter_alone_and_saves_it(tmp_path: Path) -> None:
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["query"], modules_to_save=["classifier"]
    )
    model = peft.get_peft_model(bert(), config)
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    trainer = made(tmp_path, model)
    trainer.train()
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)
    trainer.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_config.json").exists()


class OwnLoss(PrivateTrainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return model(**inputs).loss


class Stream(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Any:
        return iter(Texts(N, 1))


class BeforeTheStep(tf.TrainerCallback):  # type: ignore[misc]
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        raise AssertionError("a private step has no such moment")


WRONG: dict[str, Any] = {
    "label_smoothing_factor": 0.1, "neftune_noise_alpha": 5.0, "auto_find_batch_size": True,
    "max_grad_norm": 0.0, "gradient_checkpointing": True, "dataloader_drop_last": True, "data_seed": 3,
    "bf16_full_eval": True, "torch_compile": True, "use_liger_kernel": True, "push_to_hub": True,
    "train_sampling_strategy": "group_by_length",
    "include_num_input_tokens_seen": "all", "label_names": ["starts", "ends"], "optim": "adalomo",
    "debug": "underflow_overflow", "optim_target_modules": ["query"],
}  # fmt: skip


def optimizers() -> Any:
    return (torch.optim.SGD(bert().parameters(), lr=0.1), None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"args": {name: value}}, name) for name, value in WRONG.items()),
        ({"method": dp_sgd(clip_norm=0.5), "args": {"max_grad_norm": 0.5}}, "max_grad_norm"),
        ({"data_collator": tf.DataCollatorWithFlattening()}, "packing"),
        ({"callbacks": [BeforeTheStep()]}, "on_pre_optimizer_step"),
        ({"compute_loss_func": lambda outputs, labels, **_: outputs.logits.mean()}, "compute_loss_func"),
        ({"optimizers": optimizers}, "optimizers"),
        ({"train_dataset": Stream()}, "length"),
        ({"kind": OwnLoss}, "compute_loss"),
        ({"eval_dataset": "private"}, "private records"),
        ({"resume": True}, "resume_from_checkpoint"),
    ],
)
def test_what_is_not_private_is_refused_before_the_charge(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    more = dict(settings)
    kind, resume = more.pop("kind", PrivateTrainer), more.pop("resume", None)
    private = more.pop("train_dataset", Texts(N, 1))
    if more.get("eval_dataset") == "private":
        more["eval_dataset"] = private
    if callable(more.get("optimizers")):
        more["optimizers"] = more["optimizers"]()
    args = arguments(tmp_path, **more.pop("args", {}))
    ledger = Ledger.create(tmp_path / "book.ledger")
    ledger.register("texts", relation="add-or-remove-one", epsilon=3.0, delta=1e-4)
    before = ledger.remaining("texts")
    more |= {"train_dataset": private, "epsilon": 2.0, "ledger": ledger, "dataset": "texts"}
    with pytest.raises((InputError, PrivacyConditionError), match=words):
        kind(bert(), args, **more).train(resume_from_checkpoint=resume)
    assert ledger.remaining("texts") == before


def test_scores_on_private_records_are_refused_afterwards_too(tmp_path: Path) -> None:
    trainer = made(tmp_path)
    with pytest.raises(PrivacyConditionError, match="private records"):
        trainer.evaluate(trainer.train_dataset)
    with pytest.raises(PrivacyConditionError, match="private records"):
        trainer.predict(trainer.train_dataset)
    with pytest.raises(InputError, match="search"):
        trainer.hyperparameter_search(n_trials=2)
    with pytest.raises(InputError, match="search"):
        trainer.train(trial=object())


def test_every_argument_is_kept_refused_or_without_effect() -> None:
    lists = {"kept": HONORED, "without effect": HARMLESS, "refused": frozenset(REFUSED)}
    found = {
        field.name: [name for name, some in lists.items() if field.name in some]
        for field in dataclasses.fields(tf.TrainingArguments)
        if field.init
    }
    assert {name: where for name, where in found.items() if len(where) != 1} == {}


def test_an_argument_that_is_not_known_is_refused_unless_it_has_its_default(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Later(tf.TrainingArguments):  # type: ignore[misc]
        sharper_gradients: bool = False

    refuse_arguments(Later(str(tmp_path), use_cpu=True, report_to=[]))
    with pytest.raises(InputError, match="sharper_gradients"):
        refuse_arguments(Later(str(tmp_path), use_cpu=True, report_to=[], sharper_gradients=True))


class Moments(tf.TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def note(self, name: str, state: Any) -> None:
        self.seen.append((name, state.global_step))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("epoch begins", state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("epoch ends", state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("scored", state)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("saved", state)


def test_models_are_scored_and_saved_by_epoch(tmp_path: Path) -> None:
    """80 records in batches of 16: an epoch is five steps."""
    moments = Moments()
    args = arguments(
        tmp_path, max_steps=-1, num_train_epochs=2, eval_strategy="epoch", save_strategy="epoch",
        save_total_limit=1, eval_on_start=True,
    )  # fmt: skip
    trainer = made(tmp_path, args=args, eval_dataset=Texts(20, 2), callbacks=[moments])
    trainer.train()
    assert moments.seen == [
        ("scored", 0), ("epoch begins", 0), ("epoch ends", 5), ("scored", 5), ("saved", 5),
        ("epoch begins", 5), ("epoch ends", 10), ("scored", 10), ("saved", 10),
    ]  # fmt: skip
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-10"]


def test_models_on_the_way_say_what_they_are_and_hold_no_state_of_the_noise(tmp_path: Path) -> None:
    trainer = made(tmp_path, args=arguments(tmp_path, save_strategy="steps", save_steps=2))
    trainer.train()
    middle, last = tmp_path / "checkpoint-2", tmp_path / "checkpoint-3"
    assert "2 of 3 steps" in (middle / "README.md").read_text()
    assert not (middle / "privacy.json").exists() and (last / "privacy.json").exists()
    names = {path.name for folder in (middle, last) for path in folder.iterdir()}
    assert not {"optimizer.pt", "scheduler.pt", "rng_state.pth"} & names
    saved = tf.BertForSequenceClassification.from_pretrained(last)
    assert torch.equal(weights(saved), weights(trainer.model))


class Stops(tf.TrainerCallback):  # type: ignore[misc]
    """A process that ends after its second step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            signal.raise_signal(signal.SIGINT)


def test_a_run_is_continued_with_its_noise(tmp_path: Path) -> None:
    def run(folder: str, *callbacks: Any) -> PrivateTrainer:
        args = arguments(tmp_path / folder, save_strategy="steps", save_steps=2, max_steps=4)
        return made(tmp_path, args=args, callbacks=list(callbacks), checkpoints=tmp_path / folder / "secret")

    whole = run("whole")
    whole.train()
    with pytest.warns(PrivacyWarning, match="stopped"):
        run("parts", Stops()).train()
    moments = Counting()
    again = run("parts", moments)
    again.train(resume_from_checkpoint=True)
    assert moments.steps == [3, 4] and again.privacy_.epsilon == whole.privacy_.epsilon
    assert torch.equal(weights(again.model), weights(whole.model))
    with pytest.raises(InputError, match="models alone"):
        again.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-4"))


class Ragged(Texts):
    """Texts of different lengths, as a tokenizer gives them; or filled up to the longest beforehand."""

    def __init__(self, n: int, seed: int, *, filled: bool) -> None:
        super().__init__(n, seed)
        self.filled = filled

    def __getitem__(self, row: int) -> dict[str, Any]:
        long = LENGTH - row % 3
        ids, missing = self.ids[row, :long].tolist(), LENGTH - long if self.filled else 0
        mask = [1] * long + [0] * missing
        return {"input_ids": ids + [0] * missing, "attention_mask": mask, "label": int(self.labels[row])}


def pads(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """To the longest of the batch."""
    longest = max(len(item["input_ids"]) for item in items)
    padded = {
        name: torch.tensor([item[name] + [0] * (longest - len(item[name])) for item in items])
        for name in ("input_ids", "attention_mask")
    }
    return {**padded, "labels": torch.tensor([item["label"] for item in items])}


def test_padding_to_the_longest_of_a_batch_changes_no_gradient(tmp_path: Path) -> None:
    found = []
    for filled in (False, True):
        config = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = bert(**config)
        trainer = made(
            tmp_path, model, train_dataset=Ragged(N, 1, filled=filled), data_collator=pads,
            args=arguments(
                tmp_path, optim="sgd", remove_unused_columns=False, per_device_train_batch_size=N,
                max_steps=1, learning_rate=1.0, weight_decay=0.0, max_grad_norm=0.1,
            ),
            epsilon=500.0,  # little noise, and every record in the step
        )  # fmt: skip
        start = weights(model)
        trainer.train()
        found.append(weights(trainer.model) - start)
    assert 0 < (found[0] - found[1]).abs().max() < 0.05 * found[0].abs().max()


def test_two_ranks_share_a_batch_and_end_with_one_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    script = str(Path(__file__).with_name("hugging_face_ranks.py"))
    done = subprocess.run([*command, script, str(tmp_path)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2))
    assert torch.equal(first["weights"], second["weights"]) and first["epsilon"] == second["epsilon"] <= 2
    assert first["batch"] == second["batch"] == 32  # 8 records at a time, 2 of them accumulated, 2 ranks
    assert (tmp_path / "out" / "privacy.json").exists() and "eval_loss" in first["scores"]
