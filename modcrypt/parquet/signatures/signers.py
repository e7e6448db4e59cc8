"""The interfaces of signing keys, verifying keys and seals that Parquet files rely on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from modcrypt.io.places import Place, Root

MAX_VERIFYING_KEYS = 64
"""Largest number of verifying keys that a reader accepts signatures of."""


class Verifier(Protocol):
    """A verifying key: the public key of a writer."""

    @property
    def scheme(self) -> str:
        """Name of the signature scheme."""

    @property
    def hex_id(self) -> str:
        """Id of the key, 16 bytes in hex."""

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return whether the key made a signature of a message."""


class Signer(Protocol):
    """A signing key: the private key of a writer."""

    @property
    def verifier(self) -> Verifier:
        """The verifying key."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""


class SealedFooter(NamedTuple):
    """The statement of a dataset's seal about the footer of one of its files."""

    sha256: str | None  # hash of the end of the file in hex; None if the file was not Parquet
    known: bool  # whether the seal names the file

    def find_fault(self, end: bytes) -> str | None:
        """Return why a file with this end, its footer and the bytes after it, is not the one."""
        if not self.known:
            return "the seal of the dataset does not name it"
        same = self.sha256 is not None and hash_footer(end) == self.sha256
        return None if same else "it is not the file that was sealed"


class DatasetSeal(Protocol):
    """The requirement that files are those of a dataset's seal."""

    def with_root(self, root: Root) -> DatasetSeal:
        """Return the requirement for the dataset in a folder, unless it names one."""

    def for_file(self, place: Place | None) -> SealedFooter:
        """Return the statement of the seal about a file."""

    def check_complete(self, folder: Place, paths: Iterable[str]) -> None:
        """Raise IntegrityError if sealed files below a folder are not among these paths."""

    def find_missing(self, folder: Place, paths: Iterable[str]) -> list[str]:
        """Return the sealed files below a folder that are not among these paths inside it."""


def hash_footer(end: bytes) -> str:
    """Return the hash of the end of a file: its footer, the footer's length and the magic."""
    return hashlib.sha256(end).hexdigest()


def check_signer(key: Signer | None) -> None:
    """Raise TypeError unless the key can sign; None means that files are not signed."""
    if key is not None and not (hasattr(key, "sign") and hasattr(key, "verifier")):
        raise TypeError(f"signing_key must be a SigningKey, not {type(key).__name__}")


def list_verifiers(keys: Verifier | Iterable[Verifier]) -> tuple[Verifier, ...]:
    """Return the verifying keys that a caller names; none if signatures are not required.

    Raise ValueError if there are too many, and TypeError if something is not a verifying key.
    """
    given: tuple[Any, ...] = tuple(keys) if isinstance(keys, Iterable) else (keys,)
    for key in given:
        if not (hasattr(key, "verify") and hasattr(key, "hex_id")):
            raise TypeError(f"signed_by takes VerifyingKey objects, not {type(key).__name__}")
    if len(given) > MAX_VERIFYING_KEYS:
        raise ValueError(f"signed_by takes at most {MAX_VERIFYING_KEYS} keys, not {len(given)}")
    return given
