"""Hadoop's checksum files, `.NAME.crc` beside `NAME`: CRC-32s of its blocks of 512 bytes.

Hadoop's local file system writes one beside each file. Once another program replaces the file, the
checksums are those of the old contents: an attacker can test guesses of the plaintext with them,
and Hadoop refuses to read the file.
"""

from __future__ import annotations

import posixpath
import re
import zlib

from modcrypt.io.places import Place
from modcrypt.io.publication import CHECKSUM_MAGIC
from modcrypt.io.sources import Source, open_source_at

CHECKSUM_NAME = re.compile(r"\.(.+)\.crc", re.DOTALL)
_HEADER = 8
MAX_BLOCK = 1 << 20
"""Largest block with a checksum of its own, in bytes; Hadoop's default is 512."""


def find_checked_file(place: Place) -> Place | None:
    """Return the file that a checksum file is about; None if the name is not that of one."""
    match = CHECKSUM_NAME.fullmatch(place.name)
    return None if match is None else place.beside(match[1])


def is_stale(checksums: Source, file: Source) -> bool:
    """Return whether Hadoop's checksums do not fit a file, by their number and those of its ends.

    A file without Hadoop's magic is another program's and never stale, so it is not removed.
    """
    header = checksums.read_at(0, min(_HEADER, checksums.size))
    if header[:4] != CHECKSUM_MAGIC:
        return False
    block = int.from_bytes(header[4:], "big")
    if len(header) < _HEADER or not 0 < block <= MAX_BLOCK:
        return True
    count = -(-file.size // block)
    if checksums.size != _HEADER + 4 * count:
        return True
    for number in {0, count - 1} if count else ():
        start = number * block
        computed = zlib.crc32(file.read_at(start, min(block, file.size - start)))
        if checksums.read_at(_HEADER + 4 * number, 4) != computed.to_bytes(4, "big"):
            return True
    return False


def remove_stale_checksum(file: Place) -> None:
    """Remove the checksum file beside a local file if it does not fit the file."""
    if file.filesystem is not None:  # Hadoop writes them only for local files
        return
    beside = file.beside(f".{posixpath.basename(file.path)}.crc")
    try:
        with open_source_at(beside) as checksums, open_source_at(file) as source:
            stale = is_stale(checksums, source)
    except OSError:
        return
    if stale:
        beside.remove()
