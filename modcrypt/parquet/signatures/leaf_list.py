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
    """What an entry of the list is about."""

    row_group: int
    column: int
    part: int


def start_leaf(place: LeafPlace) -> Any:
    """Return the hash of a part before its bytes are added."""
    return hashlib.sha256(_LEAF_PREFIX + _PLACE.pack(*place))


def hash_leaf(place: LeafPlace, data: bytes | memoryview) -> bytes:
    """Return the hash of a part."""
    digest = start_leaf(place)
    digest.update(data)
    out: bytes = digest.digest()
    return out


def commit_to_key(key: Key, file_aad: bytes) -> bytes:
    """Return a commitment to a key, which reveals nothing about it."""
    return bytes.fromhex(keyed_hash(key, _COMMITMENT_LABEL)(file_aad))


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
