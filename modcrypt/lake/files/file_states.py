"""The state of a file, compared with the declaration of its dataset, and the uses of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from modcrypt.keys import invocations

State: TypeAlias = Literal[
    "declared", "compromised", "rewrapped", "unknown-age", "former-recipient", "plaintext",
    "other-policy", "old-keys", "other-keys", "misplaced", "unreadable", "erased", "not-erased",
]  # fmt: skip

STATES: Mapping[State, str] = {
    "declared": "as declared",
    "compromised": "under a compromised key",
    "rewrapped": "rewrapped, data keys unchanged since the leak",
    "unknown-age": "with data keys of unknown age",
    "former-recipient": "open to a former recipient",
    "plaintext": "plaintext",
    "other-policy": "under another policy",
    "old-keys": "under older keys",
    "other-keys": "under keys that are not declared",
    "misplaced": "with the AAD prefix of another place",
    "unreadable": "unreadable",
    "erased": "erased",
    "not-erased": "declared as erased, but open",
}
"""The states of a file, with their names for people."""

EXPOSED: tuple[State, ...] = ("compromised", "rewrapped", "unknown-age", "former-recipient")
"""The states of files that a compromised key or a former recipient opens or may open, the worst
first."""

DECLARED: tuple[State, ...] = ("declared", "erased")  # the states of files that are as they must be


class KeyUse(NamedTuple):
    """A key that a file needs.

    Attributes:
        column: Dotted name of the column; None for the footer.
        master_key_id: Id of the master key that wraps it; None if its key metadata is not PKMT1.
        version: Version of the master key, if the wrapped key states it.
        kek_id: Id of its KEK in hex, or `recipient:ID` for the key of a recipient; None in single
            wrapping.
    """

    column: str | None
    master_key_id: str | None = None
    version: str | None = None
    kek_id: str | None = None


@dataclass(frozen=True, slots=True)
class KnownWraps:
    """The known number of keys that a key has wrapped.

    Attributes:
        master_key_id: Id of the master key.
        version: Version of the master key; None if it is unknown.
        kek_id: Id of the KEK in hex that wraps, under the master key; None for the master key.
        count: Number of keys that are seen to have been wrapped.
    """

    master_key_id: str
    version: str | None
    kek_id: str | None
    count: int

    @property
    def name(self) -> str:
        """The key that wraps, for messages."""
        if self.kek_id is not None:
            return f"KEK {self.kek_id}"
        version = "" if self.version is None else f"@{self.version}"
        return f"{self.master_key_id}{version}"

    def describe(self) -> str:
        """Return a sentence with what to do."""
        how = f"add a version: modcrypt keys rotate --kms URI --key {self.master_key_id}"
        if self.kek_id is not None:
            how = "make new data keys for its files, or rotate the KEKs of its table"
        return (
            f"{self.name} has wrapped {self.count:,} keys or more; AES-GCM with random nonces "
            f"allows {invocations.INVOCATION_LIMIT:,}: {how}"
        )


def name_recipient(id_: bytes) -> str:
    """Return the name of the key of a recipient among keys: `recipient:ID`."""
    return f"recipient:{id_.hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file, compared with the declaration.

    Attributes:
        path: Path inside the dataset.
        state: One of `STATES`.
        reason: For "unreadable", "disabled", "denied", "unavailable", "destroyed" or another error
            code; otherwise an error code, if an error showed the state.
        message: The difference, in words.
        size: Size in bytes.
        rows: Number of rows; None if the footer could not be read.
        columns: Number of leaf columns; None as for `rows`.
        encrypted_columns: Number of encrypted leaf columns; None as for `rows`.
        keys: Keys that the file needs, as far as they are known.
        verified: Whether `verify` found the file correct, and it has not changed since.
        data_keys: Fingerprints of its data keys, in one string.
    """

    path: str
    state: State
    reason: str = ""
    message: str = ""
    size: int = 0
    rows: int | None = None
    columns: int | None = None
    encrypted_columns: int | None = None
    keys: tuple[KeyUse, ...] = ()
    verified: bool = False
    data_keys: bytes = field(default=b"", repr=False)

    @property
    def is_declared(self) -> bool:
        """True if the file is as declared: erased files are, too."""
        return self.state in DECLARED

    def __getstate__(self) -> tuple[Any, ...]:
        return _list_values(self)  # what is generated takes longer than to write a state

    def fields(self) -> dict[str, Any]:
        """Return the attributes as values for JSON."""
        hidden = ("path", "keys", "data_keys")
        names = (name for name in self.__slots__ if name not in hidden)
        fields = {name: getattr(self, name) for name in names}
        return {"file": self.path, **fields, "keys": [key._asdict() for key in self.keys]}


_list_values = attrgetter(*FileState.__slots__)
