"""Transformers in Trainer and PrivateStep, as they come: tiny ones with random weights.

`make test-models` runs this in an environment of its own.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

for library in ("torch", "transformers", "peft"):
    pytest.importorskip(library, reason=f"{library} is not installed; `make test-models` brings it")

import peft  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers as tf  # noqa: E402
from tests.docs.pages import ROOT  # noqa: E402
from tests.docs.test_examples import run_page, same_environment  # noqa: E402
from tests.private_values import value_of  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import Dataset, Subset  # noqa: E402

from sidelight import PrivateStep, Trainer  # noqa: E402
from sidelight.deep import Loading, NetworkOracle, label_loss, next_token_loss, token_loss  # noqa: E402
from sidelight.deep.language import loss_of  # noqa: E402
from sidelight.errors import AssumptionError, InputError  # noqa: E402
from sidelight.methods import dope_sgd, dp_sgd  # noqa: E402
from sidelight.methods.parts import Flat  # noqa: E402
from sidelight.oracles.network.layers import rule_for  # noqa: E402
from sidelight.report.card import Card  # noqa: E402

WORDS, LENGTH = 40, 8
PLAN: dict[str, Any] = {
    "epsilon": 2.0, "delta": 1e-4, "expected_batch_size": 12, "steps": 2, "random_state": 0,
    "progress": False,
}  # fmt: skip


def gpt2(**more: Any) -> Any:
    torch.manual_seed(0)
    config = tf.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=2, eos_token_id=3,
        use_cache=False, **more,
    )  # fmt: skip
    return tf.GPT2LMHeadModel(config)


def bert(kind: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    config = tf.BertConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16, **more,
    )  # fmt: skip
    return kind(config)


def lora(model: Any, **more: Any) -> Any:
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, **more)
    return peft.get_peft_model(model, config)


def texts(n: int, seed: int = 0) -> dict[str, Tensor]:
    """Sentences of 3 to 8 words, filled up with word 1; the labels are the words, as in causal models."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(5, WORDS, (n, LENGTH), generator=generator)
    there = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (n, 1), generator=generator)
    shown = words.where(there, torch.ones_like(words))
    return {"input_ids": shown, "attention_mask": there.long(), "labels": shown.where(there, -100)}


def labeled(n: int, seed: int = 0) -> dict[str, Tensor]:
    chosen = torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(seed + 1))
    return texts(n, seed) | {"labels": chosen}


# ---------------------------------------------------------------------------------------------------
# losses


def test_a_loss_is_that_of_transformers_for_each_record_alone() -> None:
    model, batch = gpt2().eval(), texts(5)
    inputs = {name: part for name, part in batch.items() if name != "labels"}
    with torch.no_grad():
        ours = next_token_loss(model(**inputs), batch["labels"])
        theirs = [model(**{name: part[i : i + 1] for name, part in batch.items()}).loss for i in range(5)]
    torch.testing.assert_close(ours, torch.stack(theirs))


def test_a_loss_of_hidden_words_and_of_labels_is_that_of_transformers() -> None:
    cases = (
        (bert(tf.BertForMaskedLM), texts(4)),
        (bert(tf.BertForTokenClassification, num_labels=WORDS), texts(4)),
        (bert(tf.BertForSequenceClassification, num_labels=3), labeled(4)),
    )
    for model, batch in cases:
        model.eval()
        loss, inputs = loss_of(model), {name: part for name, part in batch.items() if name != "labels"}
        with torch.no_grad():
            theirs = [model(**{k: part[i : i + 1] for k, part in batch.items()}).loss for i in range(4)]
            torch.testing.assert_close(loss(model(**inputs), batch["labels"]), torch.stack(theirs))


def test_a_record_without_tokens_gives_zero() -> None:
    scores, labels = torch.randn(2, 4, WORDS), torch.full((2, 4), -100)
    labels[1, 2] = 7
    assert token_loss(scores, labels)[0] == 0
    assert token_loss(scores, labels)[1] > 0
    assert token_loss.tokens(labels).tolist() == [0, 1]


def test_the_loss_is_found_by_the_head_and_through_an_adapter() -> None:
    assert loss_of(gpt2()) is next_token_loss
    assert loss_of(lora(gpt2(), task_type="CAUSAL_LM")) is next_token_loss
    assert loss_of(bert(tf.BertForSequenceClassification)) is label_loss
    with pytest.raises(InputError, match="pass loss="):
        Trainer(nn.Linear(2, 2), epsilon=1)
    with pytest.raises(InputError, match="BertModel"):
        loss_of(bert(tf.BertModel))


def _mean_over_the_batch(outputs: Any, labels: Tensor) -> Tensor:
    losses = nn.functional.cross_entropy(outputs.logits.transpose(1, 2), labels, reduction="none")
    return losses.sum(1) / (labels != -100).sum()


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (lambda outputs, labels: outputs.loss, "leave loss out"),
        (lambda outputs, labels: outputs.logits.mean(), "a mean over all tokens of a batch"),
        (lambda outputs, labels: token_loss(outputs, labels)[:, None], "each record's own positions"),
        (_mean_over_the_batch, "average tokens within each record"),
    ],
    ids=["of the outputs", "of a batch", "of places", "divided by all tokens"],
)
@pytest.mark.parametrize("public", [True, False], ids=["public", "placeholders"])
def test_a_loss_that_mixes_records_is_refused_with_what_to_pass(
    loss: Callable[[Any, Any], Tensor], what: str, public: bool
) -> None:
    trainer = Trainer(gpt2(), loss, method=dp_sgd(), **PLAN)
    with pytest.raises(AssumptionError, match=what):
        trainer.fit(texts(30), texts(8, 1) if public else None)
    assert not hasattr(trainer, "privacy_")


# ---------------------------------------------------------------------------------------------------
# training


def _checkpointed() -> Any:
    model = gpt2()
    model.gradient_checkpointing_enable()
    return model


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int, int], dict[str, Tensor]]]] = {
    "GPT-2, tied": (gpt2, texts),
    "gradient checkpointing": (_checkpointed, texts),
    "bfloat16": (lambda: gpt2().to(torch.bfloat16), texts),
    "LoRA": (lambda: lora(gpt2(), task_type="CAUSAL_LM"), texts),
    "labels of whole texts": (lambda: bert(tf.BertForSequenceClassification, num_labels=3), labeled),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_from_named_tensors_and_says_what_it_spent(name: str) -> None:
    build, records = MODELS[name]
    model = build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    frozen = {key for key, value in model.named_parameters() if not value.requires_grad}
    trainer = Trainer(model, method=dope_sgd(), **PLAN).fit(records(40, 0), records(16, 1))
    assert trainer.privacy_.epsilon <= 2
    scores = trainer.evaluate(records(10, 2))
    assert ("perplexity" in scores) == (records is texts)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in frozen)
    assert any(not torch.equal(after[key], before[key]) for key in before)


def test_only_the_head_is_trained_where_the_rest_is_frozen() -> None:
    model = bert(tf.BertForSequenceClassification, num_labels=3)
    model.bert.requires_grad_(False)
    before = {key: value.clone() for key, value in model.bert.state_dict().items()}
    trainer = Trainer(model, method=dp_sgd(), **PLAN).fit(labeled(40))
    assert all(torch.equal(value, before[key]) for key, value in model.bert.state_dict().items())
    assert trainer.predict(labeled(3)).shape == (3,)
    assert 0 <= trainer.evaluate(labeled(9, 3))["accuracy"] <= 1


def test_the_layers_of_gpt2_have_a_rule_unless_their_forward_is_anothers() -> None:
    from transformers.pytorch_utils import Conv1D

    class Doubled(Conv1D):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layers = [module for module in gpt2().modules() if isinstance(module, Conv1D)]
    assert layers and all(rule_for(layer) is not None for layer in layers)
    assert rule_for(Doubled(3, 2)) is None


def test_checkpointing_changes_no_number() -> None:
    batch = texts(12)
    inputs = {name: part for name, part in batch.items() if name != "labels"}
    sums = []
    for model in (gpt2().eval(), _checkpointed().eval()):
        oracle = NetworkOracle(model, next_token_loss, pass_size=12)
        found = oracle.clipped_sum((inputs, batch["labels"]), clip=Flat(0.5), relation="add-or-remove-one")
        sums.append(value_of(found))
    torch.testing.assert_close(sums[0], sums[1])


def test_a_record_more_moves_the_sum_by_the_clip_norm_at_most_whatever_its_length() -> None:
    """Neighbors: a record is added, all padding or full of words."""
    batch = texts(9)
    model = gpt2().eval()
    oracle = NetworkOracle(model, next_token_loss, pass_size=12)

    def total(rows: dict[str, Tensor]) -> Tensor:
        inputs = {name: part for name, part in rows.items() if name != "labels"}
        return value_of(
            oracle.clipped_sum((inputs, rows["labels"]), clip=Flat(0.5), relation="add-or-remove-one")
        )

    whole = total({name: part[:8] for name, part in batch.items()})
    for labels in (torch.full((1, LENGTH), -100), torch.full((1, LENGTH), 7), batch["labels"][8:]):
        more = {name: torch.cat([part[:8], part[8:]]) for name, part in batch.items()}
        more["labels"] = torch.cat([batch["labels"][:8], labels])
        moved = float((total(more) - whole).norm())
        assert moved <= 0.5 * (1 + 1e-5)
    assert moved > 0.1  # the last is an ordinary one


def test_a_step_of_ones_own_takes_named_tensors() -> None:
    model, records = gpt2(), texts(40)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = PrivateStep(
        model, n_private=40, expected_batch_size=10, epsilon=1, delta=1e-4, steps=2, random_state=0
    )
    for _ in range(2):
        places = step.sample()
        step({name: part[places] for name, part in records.items()})
        optimizer.step()
    assert step.privacy_.epsilon <= 1
    with pytest.raises(InputError, match="'labels'"):
        step({"input_ids": records["input_ids"]})


class Tokenized(Dataset[object]):
    """Lists of word numbers, as `datasets` gives them, with a column of text that nobody asked for."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, place: int) -> dict[str, object]:
        words = texts(1, place)["input_ids"][0]
        kept = [int(word) for word in words if word != 1]
        return {"input_ids": kept, "attention_mask": [1] * len(kept)}


def tokenizer() -> Any:
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w4")
    )
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="w1", unk_token="w4", mask_token="w3", eos_token="w2"
    )


@pytest.mark.parametrize("hidden", [False, True], ids=["next words", "hidden words"])
def test_collators_of_transformers_are_taken_as_they_are(hidden: bool) -> None:
    model = bert(tf.BertForMaskedLM) if hidden else gpt2()
    collate = tf.DataCollatorForLanguageModeling(tokenizer(), mlm=hidden)
    everything = Tokenized(60)
    trainer = Trainer(model, method=dp_sgd(), loading=Loading(collate=collate), **PLAN)
    trainer.fit(Subset(everything, range(40)), Subset(everything, range(40, 60)))
    assert trainer.privacy_.epsilon <= 2


def test_lists_of_numbers_are_rows_and_texts_are_left_out() -> None:
    class Padded(Dataset[object]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, place: int) -> dict[str, object]:
            row = {name: part[0].tolist() for name, part in texts(1, place).items()}
            return {**row, "text": "nobody reads this"}

    trainer = Trainer(gpt2(), method=dp_sgd(), **PLAN).fit(Padded())
    assert trainer.privacy_.details["private_records"] == 30


# ---------------------------------------------------------------------------------------------------
# saved


def test_a_saved_model_says_what_was_promised(tmp_path: Path) -> None:
    trainer = Trainer(gpt2(), method=dp_sgd(), **PLAN).fit(texts(40))
    folder = trainer.save_pretrained(tmp_path / "model", tokenizer=tokenizer())
    again = tf.AutoModelForCausalLM.from_pretrained(folder)
    batch = texts(3)
    with torch.no_grad():
        torch.testing.assert_close(
            again.eval()(batch["input_ids"]).logits, trainer.model.eval()(batch["input_ids"]).logits
        )
    card = (folder / "README.md").read_text()
    for words in (
        "| ε | 2",
        "| δ | 0.0001",
        "add-or-remove-one",
        "| unit | record",
        "dp_sgd",
        "differential-privacy",
    ):
        assert words in card
    assert all(line in card for line in trainer.privacy_.assumptions)
    assert Card.read(folder / "privacy.json").epsilon == pytest.approx(trainer.privacy_.epsilon)
    assert json.loads((folder / "tokenizer_config.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]  # nothing is left beside it


def test_an_adapter_is_saved_alone(tmp_path: Path) -> None:
    trainer = Trainer(lora(gpt2(), task_type="CAUSAL_LM"), method=dp_sgd(), **PLAN).fit(texts(40))
    folder = trainer.save_pretrained(tmp_path / "adapter")
    assert (folder / "adapter_model.safetensors").stat().st_size < 20_000
    assert "library_name: peft" in (folder / "README.md").read_text()
    assert "256 of" in (folder / "README.md").read_text()


def test_a_model_that_cannot_be_saved_so_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fit first"):
        Trainer(gpt2(), epsilon=1).save_pretrained(tmp_path / "early")
    plain = Trainer(nn.Linear(3, 2), nn.CrossEntropyLoss(), method=dp_sgd(), **PLAN)
    plain.fit((torch.randn(40, 3), torch.randint(0, 2, (40,))))
    with pytest.raises(InputError, match="save_pretrained"):
        plain.save_pretrained(tmp_path / "plain")
    assert list(tmp_path.iterdir()) == []


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with same_environment():
        run_page(ROOT / "docs/language.md", tmp_path, monkeypatch, capsys)
