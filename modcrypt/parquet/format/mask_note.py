"""What a file says of its masked columns: the pair `modcrypt.masked` among its footer's.

    {"null": [["zip"]], "hashed": [{"column": ["address", "street"], "key": "5f0c1d9a3e6b7788"}]}

A hash is a text like any other: nothing else tells that hashing it would hash a hash. Columns are
leaves, by their paths, as names may have dots. A key is told by the beginning of an HMAC under one
derived from it for just that, which is of no use without the key. Of columns that are gone nothing
is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias

from modcrypt.aead import keyed_hash
from modcrypt.errors import FormatError
from modcrypt.keys import Key
from modcrypt.parquet.format.idl import ThriftStruct, new

__all__ = ["PAIR", "MaskNote", "hash_key_check", "kept_note", "put_note", "read_note"]

PAIR = b"modcrypt.masked"

_CHECK_LABEL = b"modcrypt mask check v1"  # no value's hash is one with this label
_CHECK_DIGITS = 16
_CHECK = re.compile(rf"[0-9a-f]{{{_CHECK_DIGITS}}}")

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MaskNote:
    """Which leaves were masked.

    Attributes:
        nulls: set to null.
        hashed: hashed, each with the check of the key; with several keys, one after the other.
    """

    nulls: frozenset[Path] = frozenset()
    hashed: frozenset[tuple[Path, str]] = frozenset()

    def merged(self, other: MaskNote) -> MaskNote:
        """Give the note of a file that was masked twice."""
        return MaskNote(self.nulls | other.nulls, self.hashed | other.hashed)

    def of(self, there: Container[Path]) -> MaskNote:
        """Give what is said of the leaves that are there."""
        nulls = frozenset(path for path in self.nulls if path in there)
        return MaskNote(nulls, frozenset(one for one in self.hashed if one[0] in there))

    def lacks(self, other: MaskNote) -> list[str]:
        """Name the columns that are masked there in a way in which they are not here."""
        paths = (other.nulls - self.nulls) | {path for path, _ in other.hashed - self.hashed}
        return sorted(".".join(path) for path in paths)

    def encode(self) -> bytes | None:
        """Spell it; None where there is nothing to say."""
        if not (self.nulls or self.hashed):
            return None
        hashed = [{"column": path, "key": check} for path, check in sorted(self.hashed)]
        return json.dumps({"null": sorted(self.nulls), "hashed": hashed}).encode()


def hash_key_check(key: Key) -> str:
    """Tell a hash key from others, and nothing of what it is."""
    return keyed_hash(key, _CHECK_LABEL)(b"")[:_CHECK_DIGITS]


def read_note(metadata: ThriftStruct) -> MaskNote:
    """Read the note of a footer; an empty one where there is none.

    Raises:
        FormatError: it is there, and can't be read.
    """
    found = MaskNote()
    for pair in metadata.key_value_metadata or ():
        if pair.key == PAIR:
            found = found.merged(_decode(pair.value or b""))
    return found


def put_note(metadata: ThriftStruct, note: MaskNote) -> None:
    """Put a note into a footer, in the place of the one that is there."""
    pairs = [pair for pair in metadata.key_value_metadata or () if pair.key != PAIR]
    if (value := note.encode()) is not None:
        pairs.append(new("KeyValue", key=PAIR, value=value))
    metadata.key_value_metadata = pairs or None


def kept_note(value: bytes, there: Container[Path]) -> bytes | None:
    """Give the pair's value without leaves that are gone; None where nothing is left to say."""
    try:
        return _decode(value).of(there).encode()
    except FormatError:
        return None


def _decode(value: bytes) -> MaskNote:
    try:
        about = json.loads(value)
        nulls = frozenset(_path(one) for one in about["null"])
        hashed = frozenset((_path(one["column"]), _check(one["key"])) for one in about["hashed"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(
            f"the footer's pair {PAIR.decode()} can't be read, so it can't be told which columns "
            "are masked"
        ) from None
    return MaskNote(nulls, hashed)


def _path(value: object) -> Path:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("no path")
    return tuple(value)


def _check(value: object) -> str:
    if not isinstance(value, str) or not _CHECK.fullmatch(value):
        raise ValueError("no check of a key")
    return value
