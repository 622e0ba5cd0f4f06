"""Files that nobody would write on purpose: made by hand, and by changing good ones at random."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Case", "cases"]

_FIT = "fit private.csv --public public.csv --target sick --epsilon 1 --out new --ledger book.ledger"
COMMANDS = {  # what reads a file
    "private.csv": _FIT,
    "public.csv": _FIT,
    "schema.json": _FIT.replace("--target sick", "--schema schema.json"),
    "new.csv": "predict model new.csv --out predictions.csv",
    "model/model.json": "predict model new.csv --out predictions.csv",
    "model/weights.safetensors": "predict model new.csv --out predictions.csv",
    "model/privacy.json": "report model --out page.html",
    "facts.toml": "report model --facts facts.toml --out page.html",
    "book.ledger": "ledger show book.ledger",
}


@dataclass(frozen=True)
class Case:
    """A file of the world, what is done to it, and the command that reads it."""

    file: str
    what: str
    change: Callable[[Path], None]

    @property
    def command(self) -> str:
        return COMMANDS[self.file]


def cases(count: int, *, seed: int) -> Iterator[Case]:
    """Those made by hand first (or some of them), then random changes of every file in turn."""
    hand = list(_by_hand())
    if count < 2 * len(hand):
        hand = random.Random(seed).sample(hand, count // 2)
    yield from hand
    names = list(COMMANDS)
    for number in range(count - len(hand)):
        yield _random_case(names[number % len(names)], f"{seed} {number}")


# ---------------------------------------------------------------------------------------------------
# by hand


def _bytes(content: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(content)

    return change


def _instead(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _edited(edit: Callable[[str], str]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(edit(path.read_text()))

    return change


def _line(number: int, text: str) -> Callable[[Path], None]:
    def edit(content: str) -> str:
        lines = content.splitlines()
        lines[number] = text
        return "\n".join(lines) + "\n"

    return _edited(edit)


_ANY: dict[str, Callable[[Path], None]] = {
    "empty": _bytes(b""),
    "zero bytes": _bytes(b"\0" * 4096),
    "random bytes": _bytes(random.Random(1).randbytes(50_000)),
    "a gzip": _bytes(gzip.compress(b"a,b\n1,2\n" * 1000)),
    "UTF-16": _edited(lambda text: text),  # replaced below: written as bytes
    "a folder": _instead(lambda path: path.mkdir()),
    "a pipe": _instead(lambda path: os.mkfifo(path)),
    "a link to /dev/zero": _instead(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    "a link to nothing": _instead(lambda path: path.symlink_to("nowhere")),
    "not there": _instead(lambda path: None),
    "deep brackets": _bytes(b"[" * 200_000),
    "one long line": _bytes(b"x" * 3_000_000),
    "parquet's first bytes": _bytes(b"PAR1" + b"\xff" * 200 + b"PAR1"),
}
_TABLE: dict[str, Callable[[Path], None]] = {
    "a header over 131,072 characters": _line(0, "age,job,pay," + "s" * 140_000),
    "20,000 columns": _edited(lambda text: "\n".join(line + ",0" * 20_000 for line in text.splitlines()[:5])),
    "a column twice": _line(0, "age,age,pay,sick"),
    "no header": _edited(lambda text: text.split("\n", 1)[1]),
    "a header alone": _edited(lambda text: text.splitlines()[0] + "\n"),
    "a quote that stays open": _line(3, '41,"nurse,3.1,yes'),
    "a cell of 2 MB": _line(3, f"41,{'n' * 2_000_000},3.1,yes"),
    "more cells than columns": _line(3, "41,nurse,3.1,yes,9,9,9"),
    "fewer cells than columns": _line(3, "41"),
    "numbers beyond float64": _line(3, f"{'9' * 400},nurse,1e999,yes"),
    "NaN and infinity": _line(3, "nan,nurse,-inf,yes"),
    "a class that nobody knows": _line(3, "41,nurse,3.1,perhaps"),
    "carriage returns alone": _edited(lambda text: text.replace("\n", "\r")),
    "semicolons": _edited(lambda text: text.replace(",", ";")),
    "control characters": _line(3, "41,nu\x07r\x1bse,3.1,yes"),
    "one class": _edited(lambda text: text.replace("yes", "no")),
    "empty names": _line(0, ",,,"),
    "a byte that is not UTF-8": lambda path: _write(
        path, path.read_bytes().replace(b"nurse", b"n\xffrse", 3)
    ),
}
_JSON: dict[str, Callable[[Path], None]] = {
    "a list": _bytes(b"[1, 2, 3]"),
    "a number": _bytes(b"1e400"),
    "NaN": _bytes(b"NaN"),
    "null": _bytes(b"null"),
    "an empty object": _bytes(b"{}"),
    "a key twice": _edited(lambda text: text.replace("{", '{"format": 0, "format": 1, ', 1)),
    "300,000 entries": _edited(
        lambda text: text.rstrip()[:-1] + "," + ",".join(f'"k{i}": {i}' for i in range(300_000)) + "}"
    ),
    "another version": _edited(lambda text: text.replace('"version": 1', '"version": 99')),
    "half of it": _edited(lambda text: text[: len(text) // 2]),
}
_SCHEMA: dict[str, Callable[[Path], None]] = {
    "300,000 categories": _edited(
        lambda text: text.replace('"nurse"', ", ".join(f'"c{i}"' for i in range(300_000)) + ', "nurse"')
    ),
}
_ANY["UTF-16"] = lambda path: _write(path, path.read_bytes().decode("latin-1").encode("utf-16"))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _by_hand() -> Iterator[Case]:
    for file in COMMANDS:
        kinds = dict(_ANY)
        if file.endswith(".csv"):
            kinds |= _TABLE
        if file.endswith(".json"):
            kinds |= _JSON
        if file == "schema.json":
            kinds |= _SCHEMA
        for what, change in kinds.items():
            yield Case(file, what, change)


# ---------------------------------------------------------------------------------------------------
# at random


def _random_case(file: str, seed: str) -> Case:
    chance = random.Random(seed)
    kind = chance.choice(list(_RANDOM))

    def change(path: Path) -> None:
        path.write_bytes(_RANDOM[kind](path.read_bytes(), chance))

    return Case(file, f"random: {kind}", change)


def _flipped(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 3, 30))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def _repeated(content: bytes, chance: random.Random) -> bytes:
    low, high = sorted(chance.randrange(len(content)) for _ in range(2))
    return content[:high] + content[low:high] * chance.choice((1, 50)) + content[high:]


def _inserted(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    odd = chance.choice(
        (b'"', b"\n", b"\0", b",", b"{", b"]", b"-1e309", b"\xed\xa0\x80", b"\r", b"[" * 5000)
    )
    return content[:place] + odd + content[place:]


def _without(content: bytes, chance: random.Random) -> bytes:
    low, high = sorted(chance.randrange(len(content)) for _ in range(2))
    return content[:low] + content[high:]


def _shuffled(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    chance.shuffle(lines)
    return b"\n".join(lines)


_RANDOM: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bits flipped": _flipped, "cut off": _cut, "a part repeated": _repeated, "odd bytes inserted": _inserted,
    "a part missing": _without, "lines shuffled": _shuffled,
}  # fmt: skip
