"""The identity of a file's version: what shows that a file opened again is the same one.

A name may lead to another file by the time it is opened again. Whatever was decided by the first
look (which task reads which row groups, which part of a dataset a file is) would then be applied
to a file that it does not fit, and no module tells: both versions are authentic.

The footer says which version it is. It has the file's `aad_file_unique`, drawn for each file (PME
4.4), and a nonce of its own where it is encrypted or signed (PME 5.4, 5.5), so no two versions
have one. Of a plaintext file, which a caller may accept, it is merely unlikely that two do. Nobody
needs a key to compare them.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from hashlib import sha256

from modcrypt.io.storage import Source
from modcrypt.parquet.format.framing import Tail, read_tail

__all__ = ["FileIdentity"]


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which version of a file this is; pickles, and holds nothing of its contents.

    Attributes:
        size: Bytes of the file.
        footer: SHA-256 of what stands between the modules and the closing length: the footer,
            and what says how it is encrypted, `aad_file_unique` included.
    """

    size: int
    footer: bytes

    @classmethod
    def of(cls, source: Source) -> FileIdentity:
        """Return the identity of an open Parquet file.

        Raises:
            FormatError, LimitError: it is no Parquet file, or was cut short.
        """
        return cls.of_tail(read_tail(source), source)

    @classmethod
    def of_tail(cls, tail: Tail, source: Source) -> FileIdentity:
        """Return the identity of a file whose tail was read already."""
        return cls(source.size, sha256(tail.magic + tail.data).digest())

    def check(self, tail: Tail, source: Source) -> None:
        """Check that a file opened again is the same one.

        Args:
            tail: Its tail. What is read afterwards must come from this one.
            source: The file.

        Raises:
            OSError: It is another one.
        """
        if self.of_tail(tail, source) != self:
            raise OSError(
                errno.ESTALE,
                "file was replaced while it was being read, and parts of two versions do not go "
                "together; read it again, and replace files only while nobody reads them",
                source.name,
            )
