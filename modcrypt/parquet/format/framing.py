"""The outermost bytes of a Parquet file, plaintext or encrypted: magics, footer and its length.

    plaintext          PAR1 ... FileMetaData                     | u32 length | PAR1
    plaintext footer   PAR1 ... FileMetaData | nonce 12 | tag 16 | u32 length | PAR1   (PME 5.5)
    encrypted footer   PARE ... FileCryptoMetaData | footer module | u32 length | PARE   (PME 5.4)

The length counts all bytes between the last module and the length field.
"""

from __future__ import annotations

from dataclasses import dataclass

from modcrypt.errors import FormatError, LimitError
from modcrypt.io.sources import Source

MAGIC_PLAINTEXT = b"PAR1"
MAGIC_ENCRYPTED = b"PARE"
MAGIC_SIZE = 4
TAIL_SIZE = 8
SIGNATURE_SIZE = 28
"""Nonce and tag after a signed plaintext footer (PME 5.5)."""

MAX_FOOTER_SIZE = 512 << 20
"""Largest footer read, in bytes: well above the size for 10,000 columns in 100 row groups."""

_FIRST_READ = 8 << 10
_FIRST_REQUEST = 64 << 10  # for object stores, where a second request costs more than extra bytes


@dataclass(frozen=True, slots=True)
class Tail:
    """The magic, and the bytes between the last module and the length field with their offset."""

    magic: bytes
    start: int
    data: bytes

    @property
    def end(self) -> int:
        """Offset of the length field."""
        return self.start + len(self.data)


def read_tail(source: Source) -> Tail:
    """Read the end of a file and check both magics.

    Raises:
        FormatError: The file is not Parquet, is truncated, or starts and ends with different
            magics.
        LimitError: The declared footer length exceeds the file or `MAX_FOOTER_SIZE`.
    """
    size = source.size
    if size < MAGIC_SIZE + TAIL_SIZE:
        raise FormatError(f"{source.name}: {size} bytes are too few for a Parquet file")
    head = source.read_at(0, MAGIC_SIZE)
    first = _FIRST_REQUEST if source.least_read else _FIRST_READ
    last = source.read_at(max(0, size - first), min(size, first))
    magic = last[-MAGIC_SIZE:]
    if magic not in (MAGIC_PLAINTEXT, MAGIC_ENCRYPTED):
        raise FormatError(
            f"{source.name}: does not end in PAR1 or PARE: not a Parquet file, or truncated"
        )
    if head != magic:
        raise FormatError(f"{source.name}: ends in {magic.decode()}, but does not begin with it")
    length = int.from_bytes(last[-TAIL_SIZE:-MAGIC_SIZE], "little")
    start = size - TAIL_SIZE - length
    if start < MAGIC_SIZE or length > MAX_FOOTER_SIZE:
        raise LimitError(
            f"{source.name}: declares a footer of {length} bytes in a file of {size} "
            f"(at most {MAX_FOOTER_SIZE} are read)"
        )
    if length + TAIL_SIZE <= len(last):
        data = last[len(last) - TAIL_SIZE - length : -TAIL_SIZE]
    else:
        data = source.read_at(start, length)
    return Tail(magic, start, data)


def close_tail(data: bytes, magic: bytes) -> bytes:
    """Return the file's last bytes: `data`, its length and the magic.

    Raises:
        LimitError: `data` is longer than the length field can express.
    """
    if len(data) >= 1 << 31:  # readers take the length as a signed 32-bit number
        raise LimitError(f"a footer of {len(data)} bytes does not fit the format's 31 bits")
    return data + len(data).to_bytes(4, "little") + magic
