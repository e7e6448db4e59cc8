"""AES keys that never show their bytes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from os import urandom
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeAlias, TypeVar

from modcrypt.keys.encoding import KEY_LENGTHS, decode_hex
from modcrypt.keys.invocations import InvocationCounter
from modcrypt.runtime.tracebacks import hide_frames

if TYPE_CHECKING:
    from os import PathLike

    from modcrypt.io.sources import Source

# Counters outlive their Key objects: a caller may build a new Key from the same bytes for every
# file. A keyed digest is the index, so no key bytes remain here. The first encryption makes the
# counter, so keys that only decrypt files leave nothing behind.
_digest_key = urandom(32)
_counters: dict[bytes, InvocationCounter] = {}


class Unpicklable:
    """A base class of objects with secrets, which stay in their process."""

    __slots__ = ()
    _advice = "pass a reference to it instead"

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        article = "an" if name[0] in "AEIOU" else "a"
        raise TypeError(f"{article} {name} can't be pickled or copied: {self._advice}")

    def __getstate__(self) -> NoReturn:  # the inherited one would return the slots
        self.__reduce__()


class Key(Unpicklable):
    """An AES key of 16, 24 or 32 bytes.

    Its value never appears in a repr, str, format or pickle, and keys compare in constant time. The
    repr contains a number that differs between keys, but means nothing outside the process.
    `invocations` is the number of encryptions with these key bytes in this process.

    Raises:
        ValueError: The key does not have 16, 24 or 32 bytes (PME 4).
    """

    __slots__ = ("_digest", "_value")

    @hide_frames
    def __init__(self, value: bytes | bytearray | memoryview) -> None:
        if isinstance(value, str) or not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"an AES key must be bytes, not {type(value).__name__}")
        self._value = bytes(value)
        if len(self._value) not in KEY_LENGTHS:
            raise ValueError(f"an AES key must have 16, 24 or 32 bytes, not {len(self._value)}")
        self._digest = hashlib.blake2b(self._value, key=_digest_key, digest_size=16).digest()

    @classmethod
    def generate(cls, length: int = 16) -> Key:
        """Return a fresh random key of `length` bytes."""
        return cls(urandom(length))

    @classmethod
    @hide_frames
    def from_hex(cls, text: str) -> Key:
        """Return the key of 32, 48 or 64 hex digits.

        Raises:
            ValueError: The text is something else; the message does not repeat it.
        """
        if (value := decode_hex(text.strip().encode("ascii", "replace"))) is None:
            raise ValueError("an AES key must have 32, 48 or 64 hex digits (the text is not shown)")
        return cls(value)

    @classmethod
    @hide_frames
    def from_file(cls, path: str | PathLike[str]) -> Key:
        """Return the key in a file: 16, 24 or 32 raw bytes, or their hex or base64 text.

        Raises:
            KeyNotFoundError: The file does not exist.
            KeyAccessDeniedError: The file may not be read.
            KeyRetrievalError: The file belongs to another user, or others may use it (its mode must
                be 0600 or stricter).
            KeyMaterialError: The file cannot be read, or contains no key; the message does not
                repeat its content.
        """
        from modcrypt.keys.sources import key_in_file

        return cls(key_in_file(path))

    @classmethod
    @hide_frames
    def from_env(cls, name: str) -> Key:
        """Return the key in an environment variable, as hex or base64 text.

        Child processes inherit variables; prefer `from_file` or a key service.

        Raises:
            KeyNotFoundError: The variable is not set.
            KeyMaterialError: The variable contains no key; the message does not repeat its value.
        """
        from modcrypt.keys.sources import key_in_variable

        return cls(key_in_variable(name))

    @property
    def invocations(self) -> int:
        """Number of encryptions with these key bytes in this process."""
        counter = _counters.get(self._digest)
        return 0 if counter is None else counter.count

    def is_zero(self) -> bool:
        """Return whether all bytes are zero, as in a key that was never set."""
        return not any(self._value)

    def __len__(self) -> int:
        """Return the length in bytes."""
        return len(self._value)

    def __repr__(self) -> str:
        # fsspec caches file systems by the repr of their options, so the reprs of different keys
        # must differ. The number is keyed with a secret of this process, and reveals only equality.
        return f"Key({len(self._value) * 8} bits, REDACTED, {self._digest.hex()[:16]})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        return hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._digest)


T = TypeVar("T")


class Secret(Unpicklable, Generic[T]):
    """A passphrase, PIN, token or key metadata, which only a call returns; its repr hides it."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __call__(self) -> T:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(REDACTED)"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)


KeyLike: TypeAlias = Key | bytes | str
"""The types that the API accepts as a key: text has hex digits."""


class FileKeys(Protocol):
    """The keys of one file."""

    def retrieve(self, key_metadata: bytes, column: str | None) -> KeyLike | None:
        """Return the key of a column, or of the footer; None if it is missing."""

    def check_kind(self, leaf: tuple[str, ...], kind: str) -> None:
        """Raise a PlaintextError if the caller does not accept how a column is encrypted."""

    def declares_plaintext(self, leaf: tuple[str, ...]) -> bool:
        """Return whether the caller expects a column to be plaintext."""


class FileKeyRetriever(Protocol):
    """A key retriever that needs the file: its key material, and its name for audit events."""

    def for_file(self, source: Source, lenient: bool) -> FileKeys:
        """Return the keys of an open file.

        A `lenient` retriever counts a column key to which access is denied as missing.
        """


KeyRetriever: TypeAlias = "Callable[[bytes], KeyLike | None] | FileKeyRetriever"
"""Function from the key metadata in a file to the key, or to None if the key is missing."""


@hide_frames
def as_key(value: KeyLike | bytearray | memoryview) -> Key:
    """Return `value` as a `Key`; raise ValueError if it does not have 16, 24 or 32 bytes."""
    if isinstance(value, str):
        return Key.from_hex(value)
    return value if isinstance(value, Key) else Key(value)


def key_bytes(key: Key) -> bytes:
    """Return the raw bytes; only `aead` and encoders of keys may call this."""
    return key._value


FINGERPRINT_LENGTH = 8
"""Length of a fingerprint in bytes: data keys are random, so it tells those of a lake apart."""


def fingerprint_key(key: Key) -> bytes:
    """Return a fingerprint of a random key, which reveals nothing of it and may be stored."""
    hashed = hashlib.blake2b(b"modcrypt data key", key=key._value, digest_size=FINGERPRINT_LENGTH)
    return hashed.digest()


def invocation_counter(key: Key) -> InvocationCounter:
    """Return the counter of the key's bytes; the first call makes it. Only `aead` calls this."""
    counter = _counters.get(key._digest)
    return _counters.setdefault(key._digest, InvocationCounter()) if counter is None else counter
