"""A script of Hugging Face's Trainer becomes private by its class: what it means, keeps and refuses.

`make test-models` runs this in an environment of its own.
"""

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
from sidelight.errors import InputError, PrivacyConditionError  # noqa: E402
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


def bert() -> Any:
    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=LENGTH, num_labels=2,
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


def optimizers() -> Any:
    return (torch.optim.SGD(bert().parameters(), lr=0.1), None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"args": {"label_smoothing_factor": 0.1}}, "label_smoothing"),
        ({"args": {"neftune_noise_alpha": 5.0}}, "neftune"),
        ({"args": {"auto_find_batch_size": True}}, "auto_find_batch_size"),
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
    trainer = kind(bert(), args, train_dataset=private, epsilon=2.0, ledger=ledger, dataset="texts", **more)
    with pytest.raises((InputError, PrivacyConditionError), match=words):
        trainer.train(resume_from_checkpoint=resume)
    assert ledger.remaining("texts") == before


def test_scores_on_private_records_are_refused_afterwards_too(tmp_path: Path) -> None:
    trainer = made(tmp_path)
    with pytest.raises(PrivacyConditionError, match="private records"):
        trainer.evaluate(trainer.train_dataset)
