"""The outermost bytes of a Parquet file, plaintext or encrypted: magics, footer and its length.

    plaintext          PAR1 ... FileMetaData                     | u32 length | PAR1
    plaintext footer   PAR1 ... FileMetaData | nonce 12 | tag 16 | u32 length | PAR1   (PME 5.5)
    encrypted footer   PARE ... FileCryptoMetaData | footer module | u32 length | PARE   (PME 5.4)

The length counts all bytes between the last module and the length field.
"""

from __future__ import annotations

import errno
from hashlib import sha256
from typing import NamedTuple

from modcrypt.errors import FormatError, LimitError
from modcrypt.io.sources import Source

MAGIC_PLAINTEXT = b"PAR1"
MAGIC_ENCRYPTED = b"PARE"
_MAGIC_AGS1 = b"AGS1"
MAGIC_SIZE = 4
TAIL_SIZE = 8
SIGNATURE_SIZE = 28  # nonce and tag after a signed plaintext footer (PME 5.5)

MAX_FOOTER_SIZE = 512 << 20
"""Largest footer read, in bytes: well above the size for 10,000 columns in 100 row groups."""

_FIRST_READ = 8 << 10
_FIRST_REQUEST = 64 << 10  # for object stores, where a second request costs more than extra bytes


class Tail(NamedTuple):
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

    Raise FormatError if the file is not Parquet, is truncated, or starts and ends with different
    magics; and LimitError if the declared footer length exceeds the file or `MAX_FOOTER_SIZE`.
    """
    if (size := source.size) < MAGIC_SIZE + TAIL_SIZE:
        raise FormatError(f"{source.name}: {size} bytes are too few for a Parquet file")
    first = _FIRST_REQUEST if source.least_read else _FIRST_READ
    last = source.read_at(max(0, size - first), min(size, first))
    head = last[:MAGIC_SIZE] if size <= first else source.read_at(0, MAGIC_SIZE)
    magic = last[-MAGIC_SIZE:]
    if magic not in (MAGIC_PLAINTEXT, MAGIC_ENCRYPTED):
        if head == _MAGIC_AGS1:
            raise FormatError(
                f"{source.name} is an AGS1 stream, not a Parquet file; read it with modcrypt.ags1"
            )
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

    Raise LimitError if `data` is longer than the length field can express.
    """
    if len(data) >= 1 << 31:  # readers take the length as a signed 32-bit number
        raise LimitError(f"a footer of {len(data)} bytes does not fit the format's 31 bits")
    return data + len(data).to_bytes(4, "little") + magic


class FileIdentity(NamedTuple):
    """The identity of one version of a file; it can be pickled and reveals no content.

    A path may lead to another file when it is opened again. Decisions from the first opening (which
    task reads which row groups, which part of a dataset the file is) would then apply to a file
    that they do not fit, and authentication does not detect it: both versions are authentic.

    The footer identifies the version. It contains `aad_file_unique`, which is random for each file
    (PME 4.4), and a nonce if it is encrypted or signed (PME 5.4, 5.5), so no two versions have the
    same footer. Two versions of a plaintext file, which a caller may accept, could have equal
    footers, but this is unlikely. Comparing identities needs no key.
    """

    size: int  # size of the file in bytes
    # SHA-256 of the bytes between the modules and the closing length: the footer and its crypto
    # metadata, including `aad_file_unique`.
    footer: bytes

    @classmethod
    def of(cls, source: Source) -> FileIdentity:
        """Return the identity of an open Parquet file.

        Raise FormatError or LimitError if the file is not Parquet, or is truncated.
        """
        return cls.of_tail(read_tail(source), source)

    @classmethod
    def of_tail(cls, tail: Tail, source: Source) -> FileIdentity:
        """Return the identity of a file whose tail has been read."""
        return cls(source.size, sha256(tail.magic + tail.data).digest())

    def check(self, tail: Tail, source: Source) -> None:
        """Raise OSError if a file that was opened again is another version.

        The tail is the file's as opened now; later reads must use this tail.
        """
        if self.of_tail(tail, source) != self:
            raise OSError(
                errno.ESTALE,
                "file was replaced while it was being read, and parts of two versions do not fit "
                "together; read it again, and replace files only while nobody reads them",
                source.name,
            )
