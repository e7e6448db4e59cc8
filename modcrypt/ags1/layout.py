"""The layout of an AGS1 stream: arithmetic on header and blocks, without ciphers or IO.

    "AGS1" | block length (4, little-endian) | block 0 | block 1 | ... | last block
    block:   nonce (12) | ciphertext | tag (16)

Every block but the last contains `block length` bytes of plaintext (AGS1 "File structure"). An
empty stream has one empty block, which authenticates its key and AAD. A stream of whole blocks does
not end with an empty one, but see `Layout.ends_empty`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from modcrypt.aad import MAX_BLOCK_INDEX
from modcrypt.aead import BLOCK_OVERHEAD
from modcrypt.errors import FormatError, LimitError, PlaintextError, TruncationError

MAGIC = b"AGS1"
HEADER_SIZE = 8
MIN_LENGTH = HEADER_SIZE + BLOCK_OVERHEAD
"""Size in bytes of the shortest stream: the header and one empty block."""

DEFAULT_BLOCK_LENGTH = 1 << 20
"""Default size in bytes of a block's plaintext, the only one that Iceberg's Java supports."""

MAX_BLOCK_LENGTH = 64 << 20
"""The longest block that is read or written: memory must hold a whole one."""

_HEADER = Struct("<4si")
# Formats of the same files where Iceberg does not encrypt.
_PLAINTEXT_MAGICS = {b"Obj\x01": "Avro", b"PFA1": "Puffin", b"PAR1": "Parquet"}


def check_block_length(block_length: int) -> None:
    """Raise unless the block length of a new stream is an int in 1..`MAX_BLOCK_LENGTH`."""
    if not isinstance(block_length, int):
        raise TypeError(f"block length must be an int, not {type(block_length).__name__}")
    if not 1 <= block_length <= MAX_BLOCK_LENGTH:
        raise ValueError(f"block length must be in 1..{MAX_BLOCK_LENGTH}, not {block_length}")


def make_header(block_length: int) -> bytes:
    """Return the first 8 bytes of a stream."""
    return _HEADER.pack(MAGIC, block_length)


def parse_header(header: bytes, name: str) -> int:
    """Return the block length that the first 8 bytes declare."""
    magic = header[: len(MAGIC)]
    if magic in _PLAINTEXT_MAGICS:
        raise PlaintextError(
            f"{name}: begins as a plaintext {_PLAINTEXT_MAGICS[magic]} file, not as an AGS1 stream"
        )
    if magic != MAGIC[: len(magic)]:
        raise FormatError(f"{name}: not an AGS1 stream: does not begin with {MAGIC!r}")
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
    """Return the length in bytes of the stream for a plaintext of the given length."""
    blocks = max(1, -(-plaintext_length // block_length))
    return HEADER_SIZE + plaintext_length + BLOCK_OVERHEAD * blocks


@dataclass(frozen=True, slots=True)
class Layout:
    """The blocks of a stream, computed from its block length and its whole length."""

    block_length: int
    encrypted_length: int
    blocks: int
    plaintext_length: int

    @classmethod
    def of(cls, block_length: int, encrypted_length: int, name: str) -> Layout:
        """Return the layout of a stream.

        Raises:
            TruncationError: The stream ends within its header, or within the nonce or tag of its
                last block, or has no block (AGS1 "File structure": "readers must reject it").
            LimitError: The stream has more blocks than their index can number.
        """
        whole, rest = divmod(encrypted_length - HEADER_SIZE, block_length + BLOCK_OVERHEAD)
        if encrypted_length < MIN_LENGTH or 0 < rest < BLOCK_OVERHEAD:
            raise TruncationError(
                f"{name}: {encrypted_length} bytes cannot be an AGS1 stream in blocks of "
                f"{block_length}: the last block needs at least {BLOCK_OVERHEAD}; the stream was "
                "cut short, or bytes were appended"
            )
        blocks = whole + (rest > 0)
        if blocks - 1 > MAX_BLOCK_INDEX:
            raise LimitError(f"{name}: {blocks} blocks are more than their index can number")
        plaintext_length = encrypted_length - HEADER_SIZE - BLOCK_OVERHEAD * blocks
        return cls(block_length, encrypted_length, blocks, plaintext_length)

    @property
    def ends_empty(self) -> bool:
        """True if the last block is empty.

        An empty stream has only this block. No writer adds one after a whole block ("empty only
        when the whole plaintext stream is empty"), and Java's reader ignores it. If it
        authenticates, a holder of the key added it, and it does not change the plaintext.
        """
        return self.plaintext_length == (self.blocks - 1) * self.block_length

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Return start and end of the blocks [first, stop) in the stream."""
        size = self.block_length + BLOCK_OVERHEAD
        return HEADER_SIZE + first * size, min(HEADER_SIZE + stop * size, self.encrypted_length)

    def plaintext_span(self, index: int) -> tuple[int, int]:
        """Return start and end of a block in the plaintext."""
        start = index * self.block_length
        return start, min(start + self.block_length, self.plaintext_length)
