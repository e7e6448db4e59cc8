"""Iceberg's standard key metadata: a data key, an AAD prefix and a file's length in a few bytes.

    0x01 | key length, key | 0, or 2, prefix length, prefix | 0, or 2, file length

That is a version byte and an Avro datum `{bytes, union{null, bytes}, union{null, long}}`; lengths
and union indexes are zigzag varints. **The key is in the clear**: the bytes are a secret, and
are to be kept where only an encrypted file around them, or a KMS, gives them out.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from operator import index
from typing import SupportsIndex

from modcrypt.errors import FormatError
from modcrypt.keys import KEY_LENGTHS, Key, KeyLike, as_key, key_bytes
from modcrypt.tracebacks import hide_frames

__all__ = ["StandardKeyMetadata", "as_prefix"]

VERSION = 1
PREFIX_LENGTH = 16
"""Bytes of a generated AAD prefix, as Iceberg has them."""
MAX_VARINT = 10
"""Bytes of the longest Avro long."""

_LONGS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardKeyMetadata:
    """What Iceberg keeps for one encrypted file.

    Never shows its values, and can't be pickled.

    Args:
        key: the file's data key (DEK): 16, 24 or 32 bytes.
        aad_prefix: what the AADs of the file begin with; None and empty mean the same.
        file_length: the trusted length of the encrypted file in bytes; None if it is not known.
            A negative one can be told, as Java can, but no file has it.

    Raises:
        TypeError: one of them is of another kind.
        ValueError: a key of another size, or a length that no int64 holds.
    """

    key: Key
    aad_prefix: bytes | None = None
    file_length: int | None = None

    @hide_frames
    def __init__(
        self, *, key: KeyLike, aad_prefix: bytes | None = None, file_length: int | None = None
    ) -> None:
        object.__setattr__(self, "key", as_key(key))
        object.__setattr__(
            self, "aad_prefix", None if aad_prefix is None else as_prefix(aad_prefix)
        )
        object.__setattr__(self, "file_length", None if file_length is None else _long(file_length))

    @classmethod
    def generate(cls, key_length: int = 16) -> StandardKeyMetadata:
        """Make a fresh random key of `key_length` bytes and AAD prefix of 16, for one new file."""
        prefix = secrets.token_bytes(PREFIX_LENGTH)
        return cls(key=Key.generate(key_length), aad_prefix=prefix)

    def with_length(self, file_length: int) -> StandardKeyMetadata:
        """Give the same with the length of the file that was written."""
        return replace(self, file_length=file_length)

    @hide_frames
    def encode(self) -> bytes:
        """Give the bytes that Iceberg stores as `key_metadata`. They hold the key in the clear."""
        parts = [bytes((VERSION,)), _sized(key_bytes(self.key))]
        parts.append(
            _varint(0) if self.aad_prefix is None else _varint(1) + _sized(self.aad_prefix)
        )
        parts.append(
            _varint(0) if self.file_length is None else _varint(1) + _varint(self.file_length)
        )
        return b"".join(parts)

    @classmethod
    @hide_frames
    def decode(cls, data: bytes | bytearray | memoryview) -> StandardKeyMetadata:
        """Read what `encode` gives, and nothing else; no message repeats any of it.

        Raises:
            FormatError: another version, cut short, bytes left over, a key that is none of AES,
                or numbers that are not spelt as short as Avro spells them.
        """
        reader = _Reader(bytes(data))
        if reader.take(1) != bytes((VERSION,)):
            raise FormatError(f"standard key metadata: the version is not {VERSION}")
        key = reader.sized()
        if len(key) not in KEY_LENGTHS:
            raise FormatError(f"standard key metadata: a key of {len(key)} bytes is none of AES")
        aad_prefix = reader.sized() if reader.present() else None
        file_length = reader.varint() if reader.present() else None
        reader.end()
        return cls(key=key, aad_prefix=aad_prefix, file_length=file_length)

    def __repr__(self) -> str:
        return f"StandardKeyMetadata({self.key!r}, file_length={self.file_length}, REDACTED)"


def as_prefix(value: bytes | bytearray | memoryview) -> bytes:
    """Give an AAD prefix as bytes.

    Raises:
        TypeError: it is of another kind, such as a str.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"an AAD prefix is bytes, not {type(value).__name__}")
    return bytes(value)


def _long(value: SupportsIndex) -> int:
    number = index(value)  # of numpy, too
    if isinstance(value, bool) or number not in _LONGS:
        raise ValueError("a file length is an int of 64 bits")
    return number


def _varint(value: int) -> bytes:
    """Spell a long as Avro does: zigzag, seven bits a byte, the lowest first."""
    rest = value << 1 if value >= 0 else (~value << 1) | 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


@dataclass(slots=True)
class _Reader:
    """Takes an Avro datum apart; every length is held against the bytes that exist."""

    data: bytes = field(repr=False)
    at: int = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise FormatError("standard key metadata: cut short, or a length is wrong")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value, start = 0, self.at
        for shift in range(0, 7 * MAX_VARINT, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                number = value >> 1 ^ -(value & 1)
                if number in _LONGS and _varint(number) == self.data[start : self.at]:
                    return number
                break
        raise FormatError("standard key metadata: a number that Avro does not spell like that")

    def sized(self) -> bytes:
        return self.take(self.varint())

    def present(self) -> bool:
        branch = self.varint()
        if branch not in (0, 1):
            raise FormatError("standard key metadata: no such branch of a union")
        return branch == 1

    def end(self) -> None:
        if self.at != len(self.data):
            raise FormatError("standard key metadata: bytes are left over")
