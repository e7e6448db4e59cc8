"""A vault in memory, rows with subjects, and a policy for them."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from modcrypt.aead import ValueCipher
from modcrypt.errors import KeyNotFoundError
from modcrypt.subjects.vault import SubjectVault

POLICY = """
kms = "file:lake.keyring"
footer_key = "people"
subjects = "subjects.db"
subject_key = "customer_id"
subject_columns = ["name", "address.*"]
subject_dataset = "people"
"""
ADDRESS = pa.struct([("street", pa.string()), ("city", pa.string()), ("floor", pa.int16())])


def make_rows() -> pa.Table:
    streets = [{"street": f"{n} Main St", "city": "Oslo", "floor": n} for n in range(4)]
    return pa.table(
        {
            "customer_id": pa.array([1, 2, 1, 3], pa.int64()),
            "name": ["Ada", "Bob", "Ada", None],
            "born": pa.array([1, 2, 3, None], pa.date32()),
            "address": pa.array([*streets[:3], None], ADDRESS),
            "tags": pa.array([["a", None], [], None, ["b"]], pa.list_(pa.string())),
            "amount": [1.5, 2.5, 3.5, 4.5],
        }
    )


def fingerprints(vault: SubjectVault, references: Sequence[bytes], **options: bool) -> list[Any]:
    """Return something of each subject's data key that other keys lack; None if it is erased."""
    found = vault.ciphers(references, **options)
    return [cipher and hmac.digest(cipher._key, b"", "sha256").hex() for cipher in found]


class SampleVault(SubjectVault):
    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._known = {}
        self._data_keys: dict[bytes, bytes] = {}
        self._erased: set[bytes] = set()
        self.calls = 0  # of ciphers
        self.asked = 0  # number of references that were looked up

    @property
    def id(self) -> str:
        return hmac.digest(self._secret, b"id", "sha256").hex()

    def _refresh(self, *, writes: bool = False) -> None:
        pass

    def references(self, subjects: Sequence[bytes]) -> list[bytes]:
        return [hmac.digest(self._secret, subject, "sha256")[:16] for subject in subjects]

    def ciphers(
        self, references: Sequence[bytes], *, create: bool = False
    ) -> list[ValueCipher | None]:
        self.calls += 1
        self.asked += len(references)
        missing = {*references} - self._data_keys.keys()
        if create:
            assert not missing & self._erased
            self._data_keys |= {each: secrets.token_bytes(32) for each in missing}
        elif unknown := missing - self._erased:
            raise KeyNotFoundError(f"the vault does not know {len(unknown)} subjects")
        keys = map(self._data_keys.get, references)
        return [None if key is None else ValueCipher(key) for key in keys]

    def forget(self, *subjects: bytes) -> None:
        for reference in self.references(subjects):
            self._data_keys.pop(reference, None)
            self._erased.add(reference)
        self._known = {}
