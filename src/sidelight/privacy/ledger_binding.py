"""What binds a dataset of a ledger to its records, and what a run must show to be charged to it.

The first run that shows an `Identity` binds the dataset to it: the binding is part of the entry that holds
the charge, so one cannot be written without the other. Later runs must agree with a binding, or are refused
before anything is written. `Ledger.rebind` lets the next run add a binding: the same records in another form,
or a table that grew.

Contents are compared only if the owner registered the dataset with `fingerprint=True`. A binding then holds
HMAC-SHA256(key, digest of the contents), with a key of its own. That a run is refused tells whoever started
it that the contents are others; this is what the owner agreed to, and no part of a guarantee. Key and hash
are in the same file: a ledger belongs to the owner of the data, and an export shows neither.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from sidelight.arrays import Json
from sidelight.errors import DatasetMismatch, InputError
from sidelight.privacy.identity import Identity

__all__ = ["Binding", "Evidence", "mismatch"]

_CONTENTS = "keyed fingerprint"


@dataclass(frozen=True)
class Binding:
    """Facts and, if the owner agreed, a keyed hash of the contents."""

    identity: Identity
    key: str | None = field(default=None, repr=False)
    mac: str | None = field(default=None, repr=False)

    @classmethod
    def new(cls, identity: Identity, *, fingerprint: bool) -> Binding:
        if not fingerprint or identity.digest is None:
            return cls(identity)
        key = secrets.token_hex(32)
        return cls(identity, key, _mac(key, identity.digest))

    def same_contents(self, identity: Identity) -> bool:
        """Whether both have contents that can be compared, and they are equal."""
        if self.key is None or self.mac is None or identity.digest is None:
            return False
        return hmac.compare_digest(self.mac, _mac(self.key, identity.digest))

    def describe(self) -> str:
        return f"{self.identity.describe()}, {_CONTENTS}: {'no' if self.mac is None else 'yes'}"

    def to_body(self) -> Json:
        return {"facts": self.identity.facts(), "key": self.key, "mac": self.mac}

    @classmethod
    def from_body(cls, body: Json) -> Binding:
        return cls(Identity.from_facts(body["facts"]), body["key"], body["mac"])


@dataclass(frozen=True)
class Evidence:
    """What one run showed: the facts that were compared, and the binding that it added, if it did."""

    checked: tuple[str, ...]
    binds: Binding | None = None

    def describe(self) -> str:
        """In words, for receipts and reports."""
        if self.binds is not None:
            return f"this run bound the dataset to {self.binds.describe()}"
        return f"compared with earlier runs: {', '.join(self.checked)}"

    def to_body(self) -> Json:
        return {
            "checked": list(self.checked),
            "binds": None if self.binds is None else self.binds.to_body(),
        }

    @classmethod
    def from_body(cls, body: Json | None) -> Evidence | None:
        if body is None:
            return None
        if not all(isinstance(name, str) for name in body["checked"]):
            raise InputError("names of facts are texts")
        added = body["binds"]
        return cls(tuple(body["checked"]), None if added is None else Binding.from_body(added))


def compared(
    binding: Binding, identity: Identity, *, any_size: bool, fingerprint: bool
) -> Evidence | list[str]:
    """What was compared, if the records agree with a binding; otherwise a list of the differences."""
    differences = binding.identity.differences(identity, any_size=any_size)
    names = binding.identity.compared(identity, any_size=any_size)
    if fingerprint and binding.mac is not None:
        if not binding.same_contents(identity):
            differences = differences or ["other contents, though columns and number of records are the same"]
        names = (*names, _CONTENTS)
    return differences or Evidence(names)


def mismatch(name: str, differences: list[str]) -> DatasetMismatch:
    return DatasetMismatch(
        f"these are not the records of dataset {name!r}: {'; '.join(differences)}. Nothing was charged. "
        "Charge them to a dataset of their own. If they are the same records in another form, or the table "
        f"grew, `sidelight ledger rebind LEDGER --name {name}` (in Python ledger.rebind({name!r})) accepts "
        "the next run as it is"
    )


def _mac(key: str, digest: bytes) -> str:
    return hmac.new(bytes.fromhex(key), digest, hashlib.sha256).hexdigest()
