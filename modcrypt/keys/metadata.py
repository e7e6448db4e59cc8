"""Iceberg's standard key metadata: the data key, AAD prefix and trusted length of a file.

    0x01 | key length, key | 0, or 2, prefix length, prefix | 0, or 2, file length

A version byte precedes an Avro datum `{bytes, union{null, bytes}, union{null, long}}`; lengths and
union indexes are zigzag varints. **The key is not encrypted**: the bytes are a secret. Store them
only within an encrypted file, or encrypted by a KMS.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from operator import index
from typing import SupportsIndex

from modcrypt.errors import FormatError
from modcrypt.keys import Key, KeyLike, as_key, key_bytes
from modcrypt.keys.encoding import KEY_LENGTHS
from modcrypt.runtime.tracebacks import hide_frames

VERSION = 1
PREFIX_LENGTH = 16  # length in bytes of a generated AAD prefix, as in Iceberg
MAX_VARINT = 10
"""Length limit of an encoded Avro long, in bytes."""

_LONGS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardKeyMetadata:
    """The key metadata that Iceberg stores for one encrypted file.

    Its repr hides the values, and it can't be pickled.

    Args:
        key: Data key (DEK) of the file: 16, 24 or 32 bytes.
        aad_prefix: Beginning of the file's AADs; None and empty mean the same.
        file_length: Trusted length of the encrypted file in bytes; None if it is not known. As in
            Java, a negative length can be stored, but no file has one.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The key does not have an AES key length, or the file length is not an int64.
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
        """Return a random key of `key_length` bytes and AAD prefix of 16 bytes for one new file."""
        prefix = secrets.token_bytes(PREFIX_LENGTH)
        return cls(key=Key.generate(key_length), aad_prefix=prefix)

    def with_length(self, file_length: int) -> StandardKeyMetadata:
        """Return a copy with the length of the written file."""
        return replace(self, file_length=file_length)

    @hide_frames
    def encode(self) -> bytes:
        """Return the bytes that Iceberg stores as `key_metadata`; their key is not encrypted."""
        absent, present = encode_long(0), encode_long(1)
        prefix, length = self.aad_prefix, self.file_length
        parts = [
            bytes((VERSION,)),
            _with_length(key_bytes(self.key)),
            absent if prefix is None else present + _with_length(prefix),
            absent if length is None else present + encode_long(length),
        ]
        return b"".join(parts)

    @classmethod
    @hide_frames
    def decode(cls, data: bytes | bytearray | memoryview) -> StandardKeyMetadata:
        """Decode the result of `encode`; messages never repeat its bytes.

        Raises:
            FormatError: The version is unknown, bytes are missing or left over, the key does
                not have an AES key length, or a number does not have Avro's shortest encoding.
        """
        reader = _Reader(bytes(memoryview(data)))  # bytes(5) would be five zeros
        if reader.take(1) != bytes((VERSION,)):
            raise FormatError(f"standard key metadata: version is not {VERSION}")
        key = reader.read_bytes()
        if len(key) not in KEY_LENGTHS:
            raise FormatError(f"standard key metadata: a key of {len(key)} bytes is not an AES key")
        aad_prefix = reader.read_bytes() if reader.read_presence() else None
        file_length = reader.read_varint() if reader.read_presence() else None
        if reader.at != len(reader.data):
            raise FormatError("standard key metadata: bytes follow the last field")
        return cls(key=key, aad_prefix=aad_prefix, file_length=file_length)

    def __repr__(self) -> str:
        return f"StandardKeyMetadata({self.key!r}, file_length={self.file_length}, REDACTED)"


def as_prefix(value: bytes | bytearray | memoryview) -> bytes:
    """Return an AAD prefix as bytes; raise TypeError if it has the wrong type, such as str."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"an AAD prefix must be bytes, not {type(value).__name__}")
    return bytes(value)


def _long(value: SupportsIndex) -> int:
    number = index(value)  # accepts NumPy integers, too
    if isinstance(value, bool) or number not in _LONGS:
        raise ValueError("file length must be a 64-bit int")
    return number


def encode_long(value: int) -> bytes:
    """Encode a long as Avro does: zigzag, seven bits a byte, the lowest first."""
    rest = value << 1 if value >= 0 else (~value << 1) | 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _with_length(data: bytes) -> bytes:
    return encode_long(len(data)) + data


@dataclass(slots=True)
class _Reader:
    """A reader of an Avro datum; checks every length against the bytes that exist."""

    data: bytes = field(repr=False)
    at: int = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise FormatError("standard key metadata: cut short, or contains a wrong length")
        self.at += size
        return self.data[self.at - size : self.at]

    def read_varint(self) -> int:
        value, start = 0, self.at
        for shift in range(0, 7 * MAX_VARINT, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                number = value >> 1 ^ -(value & 1)
                if number in _LONGS and encode_long(number) == self.data[start : self.at]:
                    return number
                break
        raise FormatError("standard key metadata: a number does not have Avro's encoding")

    def read_bytes(self) -> bytes:
        return self.take(self.read_varint())

    def read_presence(self) -> bool:
        branch = self.read_varint()
        if branch not in (0, 1):
            raise FormatError("standard key metadata: unknown branch of a union")
        return branch == 1
