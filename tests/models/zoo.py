"""The models that people bring, small and with random weights: how each is built, its records and its loss.

Import once transformers, peft and timm are there (`make test-models`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import peft
import torch
import transformers as tf
from tests.models.stub_torchvision import import_timm
from torch import Tensor, nn
from torch.nn.utils import parametrizations

timm = import_timm()

Batch = tuple[Any, Any]
WORDS, LENGTH, CLASSES = 40, 6, 3
WIDE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass(frozen=True)
class Entry:
    """A model as a person would train it: `batch(n, seed)` makes records, `loss` one number for each."""

    name: str
    library: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    loss: Callable[[Any, Any], Tensor]

    def make(self) -> nn.Module:
        """The same random weights each time; those that start at zero are moved, so that they matter."""
        torch.manual_seed(0)
        model = self.build()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad and not bool(parameter.any()):
                    parameter.normal_(std=0.05)
        return model


# ---------------------------------------------------------------------------------------------------
# records


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sentences(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Words, and which of them are there: sentences of 3 to LENGTH words, filled up with word 1."""
    generator = _generator(seed)
    words = torch.randint(5, WORDS, (n, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (n, 1), generator=generator)
    there = torch.arange(LENGTH) < lengths
    return words.where(there, torch.ones_like(words)), there.long()


def classes(n: int, seed: int) -> Tensor:
    return torch.randint(0, CLASSES, (n,), generator=_generator(seed + 100))


def labeled_text(n: int, seed: int) -> Batch:
    words, there = sentences(n, seed)
    return {"input_ids": words, "attention_mask": there}, classes(n, seed)


def next_words(n: int, seed: int) -> Batch:
    words, there = sentences(n, seed)
    following = torch.cat([words[:, 1:].where(there[:, 1:] == 1, -100), words.new_full((n, 1), -100)], 1)
    return {"input_ids": words, "attention_mask": there}, following


def hidden_words(n: int, seed: int) -> Batch:
    """One word in three is hidden (as word 4), and asked for; in each sentence the second is."""
    words, there = sentences(n, seed)
    asked = (torch.rand(n, LENGTH, generator=_generator(seed + 7)) < 0.3) & (there == 1)
    asked[:, 1] = True
    shown = words.where(~asked, torch.full_like(words, 4))
    return {"input_ids": shown, "attention_mask": there}, words.where(asked, torch.full_like(words, -100))


def translations(n: int, seed: int) -> Batch:
    words, there = sentences(n, seed)
    answer, told = sentences(n, seed + 1)
    shown = torch.cat([torch.zeros(n, 1, dtype=torch.long), answer[:, :-1]], 1)
    inputs = {"input_ids": words, "attention_mask": there, "decoder_input_ids": shown}
    return inputs, answer.where(told == 1, torch.full_like(answer, -100))


def pictures(n: int, seed: int) -> Batch:
    return torch.rand(n, 3, 32, 32, generator=_generator(seed)), classes(n, seed)


def sounds(n: int, seed: int) -> Batch:
    return {"input_values": torch.randn(n, 400, generator=_generator(seed))}, classes(n, seed)


def vectors(n: int, seed: int) -> Batch:
    return torch.randn(n, 5, generator=_generator(seed)), classes(n, seed)


def steps(n: int, seed: int) -> Batch:
    return torch.randn(n, 4, 5, generator=_generator(seed)), classes(n, seed)


# ---------------------------------------------------------------------------------------------------
# losses, one number per record


def _scores(outputs: Any) -> Tensor:
    return outputs if isinstance(outputs, Tensor) else outputs.logits


def class_loss(outputs: Any, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(_scores(outputs), targets, reduction="none")


def word_loss(outputs: Any, targets: Tensor) -> Tensor:
    """The mean over the words of each record that are asked for."""
    scores = _scores(outputs)[:, -targets.shape[1] :]  # a soft prompt comes before the words
    losses = nn.functional.cross_entropy(scores.transpose(1, 2), targets, reduction="none")
    asked = targets != -100
    return (losses * asked).sum(1) / asked.sum(1).clamp(min=1)


# ---------------------------------------------------------------------------------------------------
# transformers


def _bert(kind: type, **more: Any) -> Callable[[], nn.Module]:
    return lambda: kind(
        tf.BertConfig(vocab_size=WORDS, max_position_embeddings=16, num_labels=CLASSES, **WIDE, **more)
    )


def _decoder(kind: type, config: type, **more: Any) -> Callable[[], nn.Module]:
    return lambda: kind(
        config(
            vocab_size=WORDS, num_key_value_heads=1, max_position_embeddings=16, pad_token_id=1,
            bos_token_id=2, eos_token_id=3, use_cache=False, **(WIDE | more),
        )
    )  # fmt: skip


def _gpt2() -> Any:
    return tf.GPT2LMHeadModel(
        tf.GPT2Config(
            vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=2, eos_token_id=3,
            use_cache=False,
        )
    )  # fmt: skip


def _distilbert() -> nn.Module:
    return tf.DistilBertForSequenceClassification(
        tf.DistilBertConfig(
            vocab_size=WORDS, max_position_embeddings=16, dim=16, n_layers=2, n_heads=2, hidden_dim=24,
            num_labels=CLASSES,
        )
    )  # fmt: skip


def _roberta() -> nn.Module:
    return tf.RobertaForSequenceClassification(
        tf.RobertaConfig(vocab_size=WORDS, max_position_embeddings=16, num_labels=CLASSES, **WIDE)
    )


def _opt(**more: Any) -> Callable[[], nn.Module]:
    return lambda: tf.OPTForCausalLM(
        tf.OPTConfig(
            vocab_size=WORDS, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=16, word_embed_proj_dim=16, use_cache=False, **more,
        )
    )  # fmt: skip


def _modernbert(kind: type, **more: Any) -> Callable[[], nn.Module]:
    return lambda: kind(
        tf.ModernBertConfig(
            vocab_size=WORDS, max_position_embeddings=16, pad_token_id=1, bos_token_id=2, eos_token_id=3,
            cls_token_id=2, sep_token_id=3, num_labels=CLASSES, local_attention=4,
            reference_compile=False, **WIDE, **more,
        )
    )  # fmt: skip


def _smollm2() -> nn.Module:
    """The shape of SmolLM2: a Llama with tied embeddings and grouped heads, here with checkpointing."""
    model: Any = _decoder(tf.LlamaForCausalLM, tf.LlamaConfig, tie_word_embeddings=True)()
    model.gradient_checkpointing_enable()
    return model


def _albert() -> nn.Module:
    return tf.AlbertForSequenceClassification(
        tf.AlbertConfig(
            vocab_size=WORDS, embedding_size=8, max_position_embeddings=16, num_labels=CLASSES, **WIDE
        )
    )


def _t5() -> nn.Module:
    return tf.T5ForConditionalGeneration(
        tf.T5Config(
            vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, use_cache=False,
            decoder_start_token_id=0,
        )
    )  # fmt: skip


def _vit() -> nn.Module:
    return tf.ViTForImageClassification(
        tf.ViTConfig(image_size=32, patch_size=16, num_labels=CLASSES, **WIDE)
    )


def _swin() -> nn.Module:
    return tf.SwinForImageClassification(
        tf.SwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[1, 2], num_heads=[1, 2], window_size=4,
            num_labels=CLASSES,
        )
    )  # fmt: skip


def _convnext(**more: Any) -> Callable[[], nn.Module]:
    return lambda: tf.ConvNextForImageClassification(
        tf.ConvNextConfig(hidden_sizes=[8, 12], depths=[1, 1], num_stages=2, num_labels=CLASSES, **more)
    )


def _wav2vec2(**more: Any) -> Callable[[], nn.Module]:
    return lambda: tf.Wav2Vec2ForSequenceClassification(
        tf.Wav2Vec2Config(
            conv_dim=[8, 8], conv_stride=[5, 4], conv_kernel=[10, 4], num_feat_extract_layers=2,
            num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=8,
            mask_time_length=2, num_labels=CLASSES, **WIDE, **more,
        )
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------
# peft, timm, torch


def _lora(**more: Any) -> Callable[[], nn.Module]:
    config = {"r": 2, "target_modules": ["c_attn"], "lora_dropout": 0.1, "fan_in_fan_out": True, **more}
    return lambda: peft.get_peft_model(_gpt2(), peft.LoraConfig(task_type="CAUSAL_LM", **config))


def _lora_bert() -> nn.Module:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.1)
    return peft.get_peft_model(_bert(tf.BertForSequenceClassification)(), config)


def _lora_minilm() -> nn.Module:
    """The shape of MiniLM, six layers of twelve heads, with adapters."""
    shape = {"num_hidden_layers": 6, "num_attention_heads": 12, "hidden_size": 24, "intermediate_size": 48}
    targets = ["query", "value", "intermediate.dense"]
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=targets)
    return peft.get_peft_model(
        tf.BertForSequenceClassification(
            tf.BertConfig(vocab_size=WORDS, max_position_embeddings=16, num_labels=CLASSES, **shape)
        ),
        config,
    )


def _lora_smollm2() -> nn.Module:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj", "up_proj"])
    return peft.get_peft_model(
        _decoder(tf.LlamaForCausalLM, tf.LlamaConfig, tie_word_embeddings=True)(), config
    )


def _head_alone() -> nn.Module:
    model: Any = _bert(tf.BertForSequenceClassification)()
    model.bert.requires_grad_(False)
    return model


def _ia3() -> nn.Module:
    config = peft.IA3Config(
        task_type="CAUSAL_LM", target_modules=["c_attn"], feedforward_modules=[], fan_in_fan_out=True
    )
    return peft.get_peft_model(_gpt2(), config)


def _prompt(kind: Any) -> Callable[[], nn.Module]:
    return lambda: peft.get_peft_model(_gpt2(), kind(num_virtual_tokens=2, task_type="CAUSAL_LM"))


def _timm(name: str, **more: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=CLASSES, **more)


def _mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(num_classes=CLASSES, img_size=32, patch_size=8, num_blocks=2, embed_dim=16, drop_rate=0.1)


def _normed(norm: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(norm(nn.Linear(5, 7)), nn.Tanh(), norm(nn.Linear(7, CLASSES)))


class Cells(nn.Module):
    """A loop over time, written by hand."""

    def __init__(self, cell: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = cell(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Recurrent(nn.Module):
    """torch's own recurrent layers."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer, self.head = (
            layer(5, 6, num_layers=2, dropout=0.2, batch_first=True),
            nn.Linear(6, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Blocks(nn.Module):
    """torch's own encoder blocks, and the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
        self.first, self.head = nn.Linear(5, 6), nn.Linear(6, CLASSES)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.first(x)).mean(1))


_MIXTRAL = _decoder(tf.MixtralForCausalLM, tf.MixtralConfig, num_local_experts=3)
_MODERN = _modernbert(tf.ModernBertForSequenceClassification)

# (name, how it is built, records, loss)
_TRANSFORMERS: list[tuple[str, Any, Any, Any]] = [
    ("GPT-2", _gpt2, next_words, word_loss),
    ("BERT, classes", _bert(tf.BertForSequenceClassification), labeled_text, class_loss),
    ("BERT, classes, the head alone", _head_alone, labeled_text, class_loss),
    ("BERT, hidden words", _bert(tf.BertForMaskedLM), hidden_words, word_loss),
    ("DistilBERT", _distilbert, labeled_text, class_loss),
    ("RoBERTa", _roberta, labeled_text, class_loss),
    ("Llama", _decoder(tf.LlamaForCausalLM, tf.LlamaConfig), next_words, word_loss),
    ("Qwen2", _decoder(tf.Qwen2ForCausalLM, tf.Qwen2Config), next_words, word_loss),
    ("Gemma", _decoder(tf.GemmaForCausalLM, tf.GemmaConfig, head_dim=8), next_words, word_loss),
    ("OPT", _opt(), next_words, word_loss),
    ("OPT, LayerDrop", _opt(layerdrop=0.5), next_words, word_loss),
    ("ModernBERT, classes", _MODERN, labeled_text, class_loss),
    ("ModernBERT, hidden words", _modernbert(tf.ModernBertForMaskedLM), hidden_words, word_loss),
    ("SmolLM2's shape, gradient checkpointing", _smollm2, next_words, word_loss),
    ("Qwen3", _decoder(tf.Qwen3ForCausalLM, tf.Qwen3Config, head_dim=8), next_words, word_loss),
    ("ALBERT", _albert, labeled_text, class_loss),
    ("T5", _t5, translations, word_loss),
    ("Mixtral", _MIXTRAL, next_words, word_loss),
    ("ViT", _vit, pictures, class_loss),
    ("Swin", _swin, pictures, class_loss),
    ("ConvNeXt", _convnext(), pictures, class_loss),
    ("ConvNeXt, stochastic depth", _convnext(drop_path_rate=0.5), pictures, class_loss),
    ("Wav2Vec2", _wav2vec2(), sounds, class_loss),
    ("Wav2Vec2, no time masks", _wav2vec2(apply_spec_augment=False), sounds, class_loss),
]
_PEFT: list[tuple[str, Any, Any, Any]] = [
    ("LoRA on GPT-2", _lora(), next_words, word_loss),
    ("LoRA on BERT, classes", _lora_bert, labeled_text, class_loss),
    ("LoRA on MiniLM's shape, dense layers too", _lora_minilm, labeled_text, class_loss),
    ("LoRA on SmolLM2's shape", _lora_smollm2, next_words, word_loss),
    ("DoRA on GPT-2", _lora(use_dora=True), next_words, word_loss),
    ("IA³ on GPT-2", _ia3, next_words, word_loss),
    ("prompt tuning of GPT-2", _prompt(peft.PromptTuningConfig), next_words, word_loss),
    ("prefix tuning of GPT-2", _prompt(peft.PrefixTuningConfig), next_words, word_loss),
]
_TIMM: list[tuple[str, Any, Any, Any]] = [
    ("ResNet", _timm("test_resnet"), pictures, class_loss),
    ("ResNet, group norm", _timm("test_resnet", norm_layer="groupnorm1"), pictures, class_loss),
    ("EfficientNet", _timm("test_efficientnet"), pictures, class_loss),
    ("EfficientNet, group norm", _timm("test_efficientnet", norm_layer="groupnorm1"), pictures, class_loss),
    ("Mixer", _mixer, pictures, class_loss),
]
_TORCH: list[tuple[str, Any, Any, Any]] = [
    ("weight norm", _normed(parametrizations.weight_norm), vectors, class_loss),
    ("spectral norm", _normed(parametrizations.spectral_norm), vectors, class_loss),
    ("orthogonal weights", _normed(parametrizations.orthogonal), vectors, class_loss),
    ("LSTM cell", lambda: Cells(nn.LSTMCell), steps, class_loss),
    ("GRU cell", lambda: Cells(nn.GRUCell), steps, class_loss),
    ("LSTM", lambda: Recurrent(nn.LSTM), steps, class_loss),
    ("TransformerEncoder", Blocks, steps, class_loss),
]
_LIBRARIES = {"transformers": _TRANSFORMERS, "peft": _PEFT, "timm": _TIMM, "torch": _TORCH}

ZOO = [
    Entry(name, library, build, batch, loss)
    for library, entries in _LIBRARIES.items()
    for name, build, batch, loss in entries
]
