"""Encoders with weights: a row to the last bit the same, whatever is around its text. `make test-models`."""

import importlib.util
import json
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

for library in ("torch", "transformers", "tokenizers"):
    pytest.importorskip(library, reason=f"{library} is not installed; `make test-models` brings it")

import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from tests.features.test_encoders import HOSTILE  # noqa: E402

from sidelight.errors import InputError  # noqa: E402
from sidelight.features import (  # noqa: E402
    StaticEncoder,
    TransformerEncoder,
    encode_texts,
    encoders,
    open_encoder,
    tune_encoder,
)
from sidelight.features.encoders import PACKAGED  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "a", "good", "bad", "film", "long", "very", "one", "!"]


def tokenizer_file(path: Path) -> Path:
    vocabulary = {word: k for k, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=64)  # as packaged ones do; it must not reach a row
    made.save(str(path))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT, as `save_pretrained` writes it."""
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(path)
    tokenizer_file(path / "tokenizer.json")
    return path


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_OPENED", "_ALONE", "_REMEMBERED"):
        monkeypatch.setattr(encoders, name, {})
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        yield


def texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS[2:], k=draw.randint(1, 40))) for _ in range(count)]


def alone(encoder: encoders.Encoder, some: list[str], most: int | None = None) -> None:
    """Every row is the same, to the last bit: in any order, among hostile texts, and by itself."""
    whole = encode_texts(encoder, some)
    order = random.Random(1).sample(range(len(some)), len(some))
    mixed = encode_texts(encoder, [*HOSTILE, *(some[k] for k in order)])
    assert np.array_equal(mixed[len(HOSTILE) :], whole[order])
    for k in order[:most]:
        assert np.array_equal(encode_texts(encoder, [some[k]])[0], whole[k])
    lengths = np.linalg.norm(whole, axis=1)
    assert ((abs(lengths - 1) < 1e-5) | (lengths == 0)).all()


def test_a_transformer_keeps_texts_apart(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    encoder = TransformerEncoder(folder, max_tokens=20)
    capfd.readouterr()
    alone(encoder, texts(60))
    assert capfd.readouterr() == ("", "") and set(encoder._shapes.values()) == {True}


def test_hostile_texts_through_the_whole_fit_are_silent(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pd = pytest.importorskip("pandas")
    from sidelight.tables import fit_tables

    rng = np.random.default_rng(0)
    y = rng.choice(["good", "bad"], 400)
    frame = pd.DataFrame({"review": [f"a {one} {rng.choice(WORDS[5:])} film" for one in y], "stars": y})
    private, public = frame[80:].reset_index(drop=True).astype(object), frame[:80]
    hostile = private.copy()
    for place, value in enumerate([*HOSTILE, object(), b"\xff", 1 << 70, {"a": 1}]):
        hostile.at[3 * place, "review"] = value
    capfd.readouterr()
    encoder = TransformerEncoder(folder)
    models = [
        fit_tables(one, public, target="stars", text={"review": encoder}, epsilon=2, random_state=0)
        for one in (private, hostile)
    ]
    told = [(m.privacy_.to_dict()["events"], m.privacy_.assumptions, m.schema, m.data) for m in models]
    assert told[0] == told[1] and np.isfinite(models[1].estimator.coef_).all()
    assert encoder.sha256 in " ".join(models[0].privacy_.assumptions)
    assert capfd.readouterr() == ("", "")


def test_places_that_are_not_alike_are_given_one_text_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that rounds by the place in a block: planted, seen by the public block, and avoided."""
    honest = TransformerEncoder._pooled

    def rounded(self: TransformerEncoder, ids: np.ndarray) -> np.ndarray:
        rows = honest(self, ids)
        return rows + np.float32(1e-6) * np.arange(len(ids), dtype=np.float32)[:, None]

    monkeypatch.setattr(TransformerEncoder, "_pooled", rounded)
    encoder = TransformerEncoder(folder)
    alone(encoder, texts(20))
    assert set(encoder._shapes.values()) == {False}
    monkeypatch.setattr(TransformerEncoder, "_alike", lambda self, length: True)
    with pytest.raises(AssertionError):
        alone(encoder, texts(20))


def test_a_transformer_is_what_transformers_gives(folder: Path) -> None:
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    ids = torch.tensor([[2, 3, 5]])
    with torch.inference_mode():
        state = model(input_ids=ids).last_hidden_state.mean(dim=1)
    expected = torch.nn.functional.normalize(state)[0].numpy()
    assert encode_texts(TransformerEncoder(folder), ["a good film"])[0] == pytest.approx(expected, abs=1e-6)


def test_settings_and_weights_are_in_the_hash(folder: Path, tmp_path: Path) -> None:
    hashes = {TransformerEncoder(folder, max_tokens=k).sha256 for k in (8, 9)}
    hashes |= {TransformerEncoder(folder, max_tokens=8, dtype="bfloat16").sha256}
    assert len(hashes) == 3 and open_encoder(str(folder)).name == str(folder)
    with pytest.raises(InputError, match="safetensors"):
        TransformerEncoder(tmp_path)


def test_a_folder_with_an_adapter_is_refused_until_it_is_merged(folder: Path, tmp_path: Path) -> None:
    """transformers would load it, and the weights that it names, whatever the hash says."""
    peft = pytest.importorskip("peft")
    both, merged = tmp_path / "both", tmp_path / "merged"
    shutil.copytree(folder, both)
    base = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False)
    adapted = peft.get_peft_model(
        base, peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    )
    adapted.save_pretrained(both)
    with pytest.raises(InputError, match="merge_and_unload"):
        TransformerEncoder(both)
    shutil.copytree(folder, merged)
    adapted.merge_and_unload().save_pretrained(merged)
    encoder, plain = TransformerEncoder(merged), TransformerEncoder(folder)
    rows = [encode_texts(one, ["a good film"])[0] for one in (encoder, plain)]
    assert encoder.sha256 != plain.sha256 and abs(rows[0] - rows[1]).max() > 1e-5


def test_a_static_encoder_keeps_texts_apart(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 8)).astype(np.float16)
    save_file({"embedding.weight": vectors}, tmp_path / "w.safetensors")
    encoder = StaticEncoder(tmp_path / "w.safetensors", tokenizer_file(tmp_path / "t.json"))
    alone(encoder, texts(40))
    mean = vectors[[2, 3]].astype(np.float64).mean(axis=0)
    assert encode_texts(encoder, ["a good"])[0] == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)
    with pytest.raises(InputError, match="one matrix"):
        StaticEncoder(tmp_path / "t.json", tmp_path / "t.json")


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_encoders_keep_texts_apart_at_every_length(name: str) -> None:
    if importlib.util.find_spec(PACKAGED[name][0]) is None:  # its own code is not run, nor what it imports
        pytest.skip(f"{PACKAGED[name][0]} is not installed; `make test-models` brings it")
    some = [" ".join(["a good film"] * k) for k in range(1, 22)] + [
        " ".join(["dull"] * k) for k in range(1, 22)
    ]
    encoder = open_encoder(name)
    alone(encoder, some, most=6)
    near, far = (
        encode_texts(encoder, ["a wonderful movie", "I loved this film", "quarterly tax report"])[1:]
        @ (encode_texts(encoder, ["a wonderful movie"])[0])
    )
    assert near > far


# ---------------------------------------------------------------------------------------------------
# tuned on public texts


def labeled(count: int = 80) -> tuple[list[str], list[str]]:
    chosen = random.Random(0)
    labels = [chosen.choice(["liked", "not"]) for _ in range(count)]
    word = {"liked": "good", "not": "bad"}
    return [f"{chosen.choice(['a', 'one very'])} {word[label]} film" for label in labels], labels


def test_public_texts_pull_the_classes_apart(folder: Path, tmp_path: Path) -> None:
    texts, labels = labeled()
    tuned = tune_encoder(folder, texts, labels, tmp_path / "tuned", epochs=40, batch_size=4, max_tokens=16)

    def apart(encoder: TransformerEncoder) -> float:
        """How far the means of the classes are from each other; 2 at most, for rows of length 1."""
        rows, liked = encode_texts(encoder, texts), np.array(labels) == "liked"
        return float(np.linalg.norm(rows[liked].mean(0) - rows[~liked].mean(0)))

    assert apart(tuned) > 1 > 2 * apart(TransformerEncoder(folder, max_tokens=16))
    told = json.loads((tmp_path / "tuned" / "tuning.json").read_text())
    assert told["texts"] == 80 and told["classes"] == ["liked", "not"]
    assert np.array_equal(open_encoder(str(tmp_path / "tuned")).encode(texts[:3]), tuned.encode(texts[:3]))


def test_tuning_repeats_and_leaves_the_source_and_pytorch_alone(folder: Path, tmp_path: Path) -> None:
    texts, labels = labeled()
    before = TransformerEncoder(folder).sha256
    state = torch.random.get_rng_state()
    both = [tune_encoder(folder, texts, labels, tmp_path / name, epochs=2, random_state=3) for name in "ab"]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert both[0].sha256 == both[1].sha256 != before == TransformerEncoder(folder).sha256


def test_the_pooling_of_an_encoder_is_kept(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "first"
    shutil.copytree(folder, source)
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    tuned = tune_encoder(source, *labeled(), tmp_path / "tuned", epochs=1, dtype="bfloat16")
    assert tuned._first and (tmp_path / "tuned" / "1_Pooling" / "config.json").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": ["x"] * 80}, "two classes"),
        ({"labels": ["x", "y"]}, "each text needs one"),
        ({"labels": [None, *["x", "y"] * 39, "x"]}, "1 public labels are missing"),
        ({"texts": [3, *["a"] * 79]}, "text number 0 is int"),
        ({"texts": ["a"] * 4, "labels": ["x", "y"] * 2}, "at least 20"),
        ({"encoder": "wordllama"}, "only a transformer"),
        ({"epochs": 0}, "epochs"),
        ({"folder": "."}, "exists"),
    ],
)
def test_bad_public_texts_are_one_clear_error(
    folder: Path, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    texts, labels = labeled()
    options = {"encoder": folder, "texts": texts, "labels": labels, "folder": tmp_path / "new", **change}
    with pytest.raises(InputError, match=says):
        tune_encoder(**options)
    assert not (tmp_path / "new").exists()
