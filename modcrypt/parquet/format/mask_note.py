"""The note of masked columns in a file's footer: the key-value pair `modcrypt.masked`.

    {"null": [["zip"]], "hashed": [{"column": ["address", "street"], "key": "5f0c1d9a3e6b7788"}],
     "masked": [{"column": ["name"], "action": "mask-alphanum"}]}

A hash looks like any other text, so only this note prevents hashing it again. Columns are leaves,
given by their paths because names may contain dots. A hash key is identified by the beginning of an
HMAC under a key that is derived from it for this purpose alone; without the hash key it is useless.
The note does not mention columns that were removed from the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any, NamedTuple, TypeAlias

from modcrypt.aead import keyed_hash
from modcrypt.errors import FormatError
from modcrypt.keys import Key
from modcrypt.parquet.format.idl import ThriftStruct, new

PAIR = b"modcrypt.masked"

_CHECK_LABEL = b"modcrypt mask check v1"  # separates checks from hashes of values
_CHECK_DIGITS = 16
_CHECK = rf"[0-9a-f]{{{_CHECK_DIGITS}}}"

Path: TypeAlias = tuple[str, ...]


class MaskNote(NamedTuple):
    """The leaves of a file that were masked."""

    nulls: frozenset[Path] = frozenset()  # leaves that were set to null
    # Leaves that were hashed, each with the check value of the key; a leaf that was hashed with
    # several keys has one entry for each.
    hashed: frozenset[tuple[Path, str]] = frozenset()
    # Leaves that were masked by read restrictions, each with the action.
    masked: frozenset[tuple[Path, str]] = frozenset()

    def merge(self, other: MaskNote) -> MaskNote:
        """Return the note of a file that was masked twice."""
        return MaskNote(
            self.nulls | other.nulls, self.hashed | other.hashed, self.masked | other.masked
        )

    def restrict_to(self, present: Container[Path]) -> MaskNote:
        """Return the note with only the leaves that are present."""
        nulls = frozenset(path for path in self.nulls if path in present)
        hashed, masked = (
            frozenset(entry for entry in entries if entry[0] in present)
            for entries in (self.hashed, self.masked)
        )
        return MaskNote(nulls, hashed, masked)

    def lacks(self, other: MaskNote) -> list[str]:
        """Return the names of columns that `other` masks in a way in which this note does not."""
        others = (other.hashed - self.hashed) | (other.masked - self.masked)
        paths = (other.nulls - self.nulls) | {path for path, _ in others}
        return sorted(".".join(path) for path in paths)

    def encode(self) -> bytes | None:
        """Encode the note as JSON; return None if no column is masked."""
        if not (self.nulls or self.hashed or self.masked):
            return None
        note: dict[str, Any] = {
            "null": sorted(self.nulls),
            "hashed": [{"column": path, "key": check} for path, check in sorted(self.hashed)],
        }
        if self.masked:
            note["masked"] = [
                {"column": path, "action": action} for path, action in sorted(self.masked)
            ]
        return json.dumps(note).encode()


def hash_key_check(key: Key) -> str:
    """Return a check value that identifies a hash key without revealing anything about it."""
    return keyed_hash(key, _CHECK_LABEL)(b"").hex()[:_CHECK_DIGITS]


def read_note(metadata: ThriftStruct) -> MaskNote:
    """Return the note of a footer; an empty note if the footer has none.

    Raise FormatError if the note exists, but cannot be decoded.
    """
    note = MaskNote()
    for pair in metadata.key_value_metadata or ():
        if pair.key == PAIR:
            note = note.merge(_parse_mask_note(pair.value or b""))
    return note


def put_note(metadata: ThriftStruct, note: MaskNote) -> None:
    """Put a note into a footer, replacing an earlier one."""
    pairs = [pair for pair in metadata.key_value_metadata or () if pair.key != PAIR]
    if (value := note.encode()) is not None:
        pairs.append(new("KeyValue", key=PAIR, value=value))
    metadata.key_value_metadata = pairs or None


def drop_missing_columns(value: bytes, present: Container[Path]) -> bytes | None:
    """Return the pair's value without removed leaves; None if it is empty or cannot be decoded."""
    try:
        return _parse_mask_note(value).restrict_to(present).encode()
    except FormatError:
        return None


def _parse_mask_note(value: bytes) -> MaskNote:
    try:
        about = json.loads(value)
        nulls = frozenset(_parse_path(path) for path in about["null"])
        hashed = frozenset(
            (_parse_path(entry["column"]), _parse_key_check(entry["key"]))
            for entry in about["hashed"]
        )
        masked = frozenset(
            (_parse_path(entry["column"]), str(entry["action"]))
            for entry in about.get("masked", ())
        )
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(
            f"the footer's key-value pair {PAIR.decode()} cannot be decoded, so modcrypt cannot "
            "determine which columns are masked"
        ) from None
    return MaskNote(nulls, hashed, masked)


def _parse_path(value: object) -> Path:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("not a path")
    return tuple(value)


def _parse_key_check(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_CHECK, value):
        raise ValueError("not the check value of a key")
    return value
