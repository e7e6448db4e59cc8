"""The signed list: a hash for each part of each column chunk, and commitments to the keys.

Each entry has 41 bytes, with little-endian numbers:

    row group (4) | column (4) | part (1) | hash (32)

Entries are in the order of their numbers. Parts are those of `modules.Part`; part 4 is a commitment
to a key, whose row group is `NO_ROW_GROUP`, and whose column is `FOOTER_KEY` for the footer key.
The hash of a part is SHA-256 of a prefix, the first 9 bytes of the entry, and the part's bytes as
they are in the file. A commitment is HMAC-SHA-256 of the file AAD under a key that HKDF derives.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, NamedTuple

from modcrypt.aead import keyed_hash
from modcrypt.keys import Key

COMMITMENT = 4
NO_ROW_GROUP = FOOTER_KEY = 0xFFFFFFFF

_PLACE = Struct("<IIB")
HASH_SIZE = 32
ENTRY_SIZE = _PLACE.size + HASH_SIZE

_LEAF_PREFIX = b"modcrypt-signature leaf\x00\x01"
_COMMITMENT_LABEL = b"modcrypt-signature commitment\x00\x01"


class LeafPlace(NamedTuple):
    """The subject of an entry of the list."""

    row_group: int
    column: int
    part: int


def start_leaf(place: LeafPlace) -> Any:
    """Return the hash of a part before its bytes are added."""
    return hashlib.sha256(_LEAF_PREFIX + _PLACE.pack(*place))


class LeafHasher:
    """A function that sees all bytes of a file in order, and hashes its parts.

    The thread that makes the file calls `begin` and `end` before it passes the bytes on, so the
    thread that writes them knows where parts begin and end.
    """

    def __init__(self) -> None:
        self._borders: deque[tuple[int, LeafPlace | None]] = deque()
        self._at = 0  # bytes seen so far
        self._digest: Any = None
        self._place: LeafPlace | None = None
        self._start = 0
        self._hashes: dict[LeafPlace, bytes] = {}

    def begin(self, place: LeafPlace, position: int) -> None:
        """Note that a part begins at a position, where the part before it ends."""
        self._borders.append((position, place))

    def end(self, position: int) -> None:
        """Note that a part ends at a position, and none begins."""
        self._borders.append((position, None))

    def __call__(self, data: memoryview) -> None:
        """Hash the next bytes of the file."""
        end = self._at + len(data)
        while self._at < end:
            self._pass_borders()
            stop = min(end, self._borders[0][0]) if self._borders else end
            size = stop - self._at
            if self._digest is not None:
                self._digest.update(data[:size])
            data, self._at = data[size:], stop

    def finish(self) -> dict[LeafPlace, bytes]:
        """Return the hashes of all parts, when all bytes of them have been seen."""
        self._pass_borders()
        self._change_part(None)
        return self._hashes

    def _pass_borders(self) -> None:
        while self._borders and self._borders[0][0] <= self._at:
            self._change_part(self._borders.popleft()[1])

    def _change_part(self, place: LeafPlace | None) -> None:
        if self._place is not None and self._at > self._start:  # a reader sees no empty part
            self._hashes[self._place] = self._digest.digest()
        self._place, self._start = place, self._at
        self._digest = None if place is None else start_leaf(place)


def commit_to_key(key: Key, file_aad: bytes) -> bytes:
    """Return a commitment to a key, which reveals nothing about it."""
    return keyed_hash(key, _COMMITMENT_LABEL)(file_aad)


def key_place(column: int | None) -> LeafPlace:
    """Return the place of the commitment to a column's key; None stands for the footer key."""
    return LeafPlace(NO_ROW_GROUP, FOOTER_KEY if column is None else column, COMMITMENT)


def commit_to_keys(
    keys: Iterable[tuple[int | None, Key]], file_aad: bytes
) -> dict[LeafPlace, bytes]:
    """Return the commitments to the keys of columns, and under None to the footer key."""
    return {key_place(column): commit_to_key(key, file_aad) for column, key in keys}


def encode_list(hashes: Mapping[LeafPlace, bytes]) -> bytes:
    """Return the list of some hashes."""
    return b"".join(_PLACE.pack(*place) + hashes[place] for place in sorted(hashes))


def find_hash(entries: memoryview, place: LeafPlace) -> bytes | None:
    """Return the hash of a place in a list; None if it has none.

    The list is searched, not decoded: a reader of one column of thousands needs few entries.
    """
    count = len(entries) // ENTRY_SIZE
    index = bisect_left(range(count), place, key=lambda n: _read_place(entries, n))
    if index == count or _read_place(entries, index) != place:
        return None
    return bytes(entries[index * ENTRY_SIZE + _PLACE.size : (index + 1) * ENTRY_SIZE])


def _read_place(entries: memoryview, index: int) -> LeafPlace:
    return LeafPlace(*_PLACE.unpack_from(entries, index * ENTRY_SIZE))
