"""Getting a published file: with progress, whole or not at all, and the same one as last time.

A checksum that the publisher (or a library that has long pinned the file) states is checked. Where none is
known, the first download is trusted and its SHA-256 is written to `checksums.json` beside the data; a later
download that differs is refused.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from sidelight.errors import InputError
from sidelight.files import write_text

__all__ = ["Checksums", "DownloadFailed", "Origin", "read", "sha256"]

_SECONDS = 30
_CHUNK = 1 << 16
_AGENT = "Mozilla/5.0 (compatible; sidelight)"  # some hosts refuse urllib's own name


class DownloadFailed(Exception):
    """The origin did not deliver the file. The text says why, in a few words."""


@dataclass(frozen=True)
class Origin:
    """A published file. `checksum` is "md5:…" or "sha256:…", or None: then the first download is trusted."""

    url: str
    checksum: str | None = None
    file: str = ""

    @property
    def name(self) -> str:
        """The name of the published file: the last part of its address, unless that says nothing."""
        return self.file or self.url.rsplit("/", 1)[-1]

    def verify(self, content: bytes) -> None:
        """That these are the bytes that were published."""
        if self.checksum is None:
            return
        kind, _, expected = self.checksum.partition(":")
        if hashlib.new(kind, content, usedforsecurity=False).hexdigest() != expected:
            raise InputError(
                f"{self.url} is not the file it was: its {kind} is not {expected}. Nothing was kept"
            )


@dataclass(frozen=True)
class Checksums:
    """`checksums.json` of a data folder: SHA-256 of what was downloaded, and of what was stored from it."""

    path: Path

    def check_download(self, origin: Origin, content: bytes) -> None:
        """The published checksum, or else that of the first download."""
        origin.verify(content)
        known = self._read()["downloads"].get(origin.url)
        if known is not None and known != hashlib.sha256(content).hexdigest():
            raise InputError(
                f"{origin.url} is not the file that was downloaded before (SHA-256 {known} in {self.path}). "
                "If its publisher changed it, remove that line. Nothing was kept"
            )

    def check_file(self, path: Path) -> None:
        """That a file which a download stored here is still what was stored. Other files are not checked."""
        known = self._read()["files"].get(path.name)
        if known is not None and known != sha256(path):
            raise InputError(
                f"{path} is damaged: its SHA-256 is not the one in {self.path}. Delete it, and it is "
                "downloaded again (or delete that line, if you replaced the file yourself)"
            )

    def record(self, path: Path, downloads: dict[str, bytes]) -> None:
        """Remember what was downloaded, and the file made of it."""
        stored = self._read()
        stored["files"][path.name] = sha256(path)
        for url, content in downloads.items():
            stored["downloads"][url] = hashlib.sha256(content).hexdigest()
        text = json.dumps(stored, indent=1, sort_keys=True) + "\n"
        write_text(self.path, text)

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            stored = json.loads(self.path.read_text())
            return {"downloads": dict(stored["downloads"]), "files": dict(stored["files"])}
        except (FileNotFoundError, NotADirectoryError):
            return {"downloads": {}, "files": {}}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path} cannot be read; repair or delete it") from error


def read(url: str, *, title: str) -> bytes:
    """The whole file, with a bar on a terminal."""
    request = urllib.request.Request(url, headers={"User-Agent": _AGENT})  # a constant of `sources`
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            expected = int(answer.headers.get("Content-Length") or 0)
            content = b"".join(_chunks(answer, expected, title))
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadFailed(f"the server answers {error.code}") from None
    except urllib.error.URLError as error:
        raise DownloadFailed(f"{error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadFailed("the connection broke") from error
    if expected and len(content) != expected:
        raise DownloadFailed(f"the connection broke after {len(content):,} of {expected:,} bytes")
    return content


def _chunks(answer: http.client.HTTPResponse, expected: int, title: str) -> Iterator[bytes]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=expected or None)
        while chunk := answer.read(_CHUNK):
            progress.update(task, advance=len(chunk))
            yield chunk


def sha256(path: Path) -> str:
    """Of a file, in pieces."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error})") from error
