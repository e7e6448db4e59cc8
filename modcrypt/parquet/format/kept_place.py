"""The place of the module that restores a file byte for byte (`convert.restoration`).

A name in the list of added fields gives it: `restore1:START:SIZE:SHA-256`. The list is in an
encrypted footer, or in the key-value pairs of a plaintext one, so the footer's tag protects the
place, and the hash the module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from modcrypt.errors import FormatError, IntegrityError, LimitError, UnsupportedFormatError
from modcrypt.io.sources import Source
from modcrypt.parquet.format.framing import MAGIC_SIZE

MAX_KEPT = 256 << 20
"""Most bytes that are kept for one file, and that a module may have, compressed or not."""

_NAME, _VERSION = "restore", "restore1"

_MAX_DIGITS = 19


def name_place(module: bytes, position: int) -> str:
    """Return the name by which the list of added fields leads to the module at a position."""
    return f"{_VERSION}:{position}:{len(module)}:{hashlib.sha256(module).hexdigest()}"


class KeptPlace(NamedTuple):
    """The place of the module in a file, and its hash."""

    start: int
    end: int
    digest: str

    def read(self, source: Source) -> bytes:
        """Return the module; raise IntegrityError if it has another hash."""
        module = source.read_at(self.start, self.end - self.start)
        if hashlib.sha256(module).hexdigest() != self.digest:
            raise IntegrityError(
                f"{source.name}: bytes {self.start} to {self.end}, by which decryption restores "
                "every byte, were altered; to decrypt the rows without them, pass exact=False"
            )
        return module


def is_place(name: str) -> bool:
    """Return whether a name in the list of added fields is that of such a place."""
    return name.startswith(_NAME)


def find_place(names: Iterable[str], body_end: int) -> KeptPlace | None:
    """Return the place that a list of added fields names; None if it names none.

    Raises:
        UnsupportedFormatError: A newer version of modcrypt wrote it.
        FormatError: It is malformed, or lies outside of the modules, which end at `body_end`.
        LimitError: The module is too large.
    """
    for name in filter(is_place, names):
        version, *parts = name.split(":")
        if version != _VERSION:
            raise UnsupportedFormatError(
                f"a newer modcrypt wrote how to restore every byte of the file ({version[:20]}); "
                "update modcrypt, or to decrypt the rows without that, pass exact=False"
            )
        if len(parts) != 3 or not all(
            part.isdigit() and len(part) <= _MAX_DIGITS for part in parts[:2]
        ):
            raise FormatError("the place of the module that restores the file is malformed")
        start, size = int(parts[0]), int(parts[1])
        if size > MAX_KEPT:
            raise LimitError(f"the module that restores the file has more than {MAX_KEPT} bytes")
        if not MAGIC_SIZE <= start <= start + size <= body_end:
            raise FormatError("the module that restores the file lies outside of the modules")
        return KeptPlace(start, start + size, parts[2])
    return None
