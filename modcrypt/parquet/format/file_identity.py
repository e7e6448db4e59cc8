"""The identity of a file's version, which proves that a file opened again is the same version.

A path may lead to another file when it is opened again. Decisions from the first opening (which
task reads which row groups, which part of a dataset the file is) would then apply to a file that
they do not fit, and authentication does not detect it: both versions are authentic.

The footer identifies the version. It contains `aad_file_unique`, which is random for each file (PME
4.4), and a nonce if it is encrypted or signed (PME 5.4, 5.5), so no two versions have the same
footer. Two versions of a plaintext file, which a caller may accept, could have equal footers, but
this is unlikely. Comparing identities needs no key.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from hashlib import sha256

from modcrypt.io.sources import Source
from modcrypt.parquet.format.framing import Tail, read_tail


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The identity of one version of a file; it can be pickled and reveals no content.

    Attributes:
        size: Size of the file in bytes.
        footer: SHA-256 of the bytes between the modules and the closing length: the footer and
            its crypto metadata, including `aad_file_unique`.
    """

    size: int
    footer: bytes

    @classmethod
    def of(cls, source: Source) -> FileIdentity:
        """Return the identity of an open Parquet file.

        Raises:
            FormatError, LimitError: The file is not Parquet, or is truncated.
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
