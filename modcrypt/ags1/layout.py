"""Where what lies in an AGS1 stream: header and block arithmetic, no cipher and no IO.

    "AGS1" | block length (4, little-endian) | block 0 | block 1 | ... | last block
    block:   nonce (12) | ciphertext | tag (16)

Every block but the last holds `block length` bytes of plaintext (AGS1 "File structure"). An
empty stream has one empty block, so that its key and AAD can be authenticated; a stream of whole
blocks has no empty one after them, but see `Layout.ends_empty`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from modcrypt.aad import MAX_BLOCK_INDEX
from modcrypt.aead import BLOCK_OVERHEAD
from modcrypt.errors import FormatError, LimitError, PlaintextError, TruncationError

__all__ = [
    "DEFAULT_BLOCK_LENGTH",
    "HEADER_SIZE",
    "MAX_BLOCK_LENGTH",
    "MIN_LENGTH",
    "Layout",
    "check_block_length",
    "encrypted_length",
    "make_header",
    "parse_header",
]

MAGIC = b"AGS1"
HEADER_SIZE = 8
MIN_LENGTH = HEADER_SIZE + BLOCK_OVERHEAD
"""Bytes of the shortest stream: the header and one empty block."""

DEFAULT_BLOCK_LENGTH = 1 << 20
"""Bytes of plaintext in a block: the only length that Iceberg's Java reads or writes."""

MAX_BLOCK_LENGTH = 64 << 20
"""The longest block that is read or written: one is held in memory whole."""

_HEADER = Struct("<4si")
# What Iceberg keeps in these places when it does not encrypt.
_PLAINTEXT_MAGICS = {b"Obj\x01": "Avro", b"PFA1": "Puffin", b"PAR1": "Parquet"}


def check_block_length(block_length: int) -> None:
    """Check the block length of a stream to be written.

    Raises:
        TypeError: it is no int.
        ValueError: not in 1..`MAX_BLOCK_LENGTH`.
    """
    if not isinstance(block_length, int):
        raise TypeError(f"a block length is an int, not {type(block_length).__name__}")
    if not 1 <= block_length <= MAX_BLOCK_LENGTH:
        raise ValueError(f"a block length is in 1..{MAX_BLOCK_LENGTH}, not {block_length}")


def make_header(block_length: int) -> bytes:
    """Give the first 8 bytes of a stream."""
    return _HEADER.pack(MAGIC, block_length)


def parse_header(header: bytes, name: str) -> int:
    """Give the block length that the first 8 bytes declare.

    Raises:
        PlaintextError: they are those of a plaintext Avro, Puffin or Parquet file.
        FormatError: no AGS1 stream, or no possible block length.
        LimitError: the block length passes `MAX_BLOCK_LENGTH`.
        TruncationError: fewer than 8 bytes, as far as they go those of a stream.
    """
    magic = header[: len(MAGIC)]
    if magic in _PLAINTEXT_MAGICS:
        raise PlaintextError(
            f"{name}: begins as a plaintext {_PLAINTEXT_MAGICS[magic]} file, not as AGS1"
        )
    if magic != MAGIC[: len(magic)]:
        raise FormatError(f"{name}: does not begin with {MAGIC!r}: no AGS1 stream")
    if len(header) < HEADER_SIZE:
        raise TruncationError(f"{name}: ends within the header, after {len(header)} bytes")
    block_length: int = _HEADER.unpack(header)[1]
    if block_length < 1:
        raise FormatError(f"{name}: declares blocks of {block_length} bytes")
    if block_length > MAX_BLOCK_LENGTH:
        raise LimitError(
            f"{name}: declares blocks of {block_length} bytes; at most {MAX_BLOCK_LENGTH} are read"
        )
    return block_length


def encrypted_length(plaintext_length: int, block_length: int = DEFAULT_BLOCK_LENGTH) -> int:
    """Give the length in bytes of the stream that holds so many bytes of plaintext."""
    blocks = max(1, -(-plaintext_length // block_length))
    return HEADER_SIZE + plaintext_length + BLOCK_OVERHEAD * blocks


@dataclass(frozen=True, slots=True)
class Layout:
    """A stream's blocks, from its block length and the length of all of it."""

    block_length: int
    encrypted_length: int
    blocks: int
    plaintext_length: int

    @classmethod
    def of(cls, block_length: int, encrypted_length: int, name: str) -> Layout:
        """Work out the blocks.

        Raises:
            TruncationError: the stream ends within its header, or within the nonce or tag of its
                last block, or has none (AGS1 "File structure": "readers must reject it").
            LimitError: more blocks than their index can number.
        """
        whole, rest = divmod(encrypted_length - HEADER_SIZE, block_length + BLOCK_OVERHEAD)
        if encrypted_length < MIN_LENGTH or 0 < rest < BLOCK_OVERHEAD:
            raise TruncationError(
                f"{name}: {encrypted_length} bytes can't be an AGS1 stream in blocks of "
                f"{block_length}: the last block needs at least {BLOCK_OVERHEAD}; cut short, or "
                "bytes were appended"
            )
        blocks = whole + (rest > 0)
        if blocks - 1 > MAX_BLOCK_INDEX:
            raise LimitError(f"{name}: {blocks} blocks are more than their index can number")
        plaintext_length = encrypted_length - HEADER_SIZE - BLOCK_OVERHEAD * blocks
        return cls(block_length, encrypted_length, blocks, plaintext_length)

    @property
    def ends_empty(self) -> bool:
        """Whether the last block is empty.

        It is the only one of an empty stream. After a whole block no writer makes one ("empty only
        when the whole plaintext stream is empty"), and Java's reader ignores it; one that
        authenticates was made by a holder of the key and changes nothing.
        """
        return self.plaintext_length == (self.blocks - 1) * self.block_length

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Give start and end of the blocks [first, stop) in the stream."""
        size = self.block_length + BLOCK_OVERHEAD
        return HEADER_SIZE + first * size, min(HEADER_SIZE + stop * size, self.encrypted_length)

    def plaintext_span(self, index: int) -> tuple[int, int]:
        """Give start and end of a block's plaintext."""
        start = index * self.block_length
        return start, min(start + self.block_length, self.plaintext_length)
