"""Notes in the metadata of a column chunk, by which decryption restores a file.

They are key-value pairs: readers ignore them, and every reader's IDL knows the field.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from modcrypt.errors import FormatError
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, encode, new
from modcrypt.parquet.format.structs import ColumnChunk, ColumnMetaData

_HIDDEN_INDEX: Final = b"modcrypt.column_index"
_HIDDEN_STATISTICS: Final = b"modcrypt.statistics"
_ADDED: Final = b"modcrypt.added"
_HIDDEN: Final = (_HIDDEN_INDEX, _HIDDEN_STATISTICS, _ADDED)
"""Keys of the pairs in a chunk's metadata by which decryption restores a file: the place of a
column index and the Statistics that encryption hid from readers, who would lose rows by them, and
the names of fields that it added to a file without any encrypted column."""

_MAX_PLACE = 40
"""Longest place in decimal digits that is read from such a pair: two int64 and a colon."""


def find_hidden_index(md: ColumnMetaData) -> tuple[int, int] | None:
    """Return the offset and length of a column index that encryption hid from readers."""
    for pair in md.key_value_metadata or ():
        if pair.key == _HIDDEN_INDEX and len(pair.value or b"") <= _MAX_PLACE:
            offset, colon, length = (pair.value or b"").partition(b":")
            if colon and offset.isdigit() and length.isdigit():
                return int(offset), int(length)
    return None


def hide_index(chunk: ColumnChunk) -> None:
    """Hide a chunk's column index from readers; its place stays in the chunk's metadata."""
    place = b"%d:%d" % (chunk.column_index_offset, chunk.column_index_length)
    chunk.column_index_offset = chunk.column_index_length = None
    _add_pair(chunk.meta_data, _HIDDEN_INDEX, place)


def hide_bounds(md: ColumnMetaData, *, keep: bool) -> None:
    """Remove bounds and null counts from a chunk's statistics; `keep` lets decryption restore them.

    A null count that is wrong, without bounds, would make the chunk look like one of nulls.
    """
    statistics = md.statistics
    if statistics is None:
        return
    if keep:
        _add_pair(md, _HIDDEN_STATISTICS, encode(statistics).hex().encode())  # pairs are text
    md.statistics = copy(statistics, keep=("distinct_count",))


def note_added(md: ColumnMetaData | ThriftStruct, names: frozenset[str]) -> None:
    """Note the fields that encryption added to a file, in the metadata of its first chunk.

    A file without chunks has the note in its footer.
    """
    _add_pair(md, _ADDED, ",".join(sorted(names)).encode())


def find_added(md: ColumnMetaData | ThriftStruct) -> frozenset[str]:
    """Return the fields that such a note in a chunk's metadata or a footer names."""
    pairs = md.key_value_metadata or ()
    texts = (pair.value or b"" for pair in pairs if pair.key == _ADDED)
    return frozenset(name for text in texts for name in text.decode("ascii", "replace").split(","))


def _add_pair(md: ColumnMetaData | ThriftStruct, key: bytes, value: bytes) -> None:
    pair = new("KeyValue", key=key, value=value)
    md.key_value_metadata = [*(md.key_value_metadata or ()), pair]


def drop_hidden(md: ColumnMetaData | ThriftStruct, *, restore: bool = False) -> bool:
    """Remove the pairs about what is hidden, and return whether there were any.

    `restore` puts hidden statistics back.
    """
    pairs = md.key_value_metadata or ()
    for pair in pairs if restore else ():
        if pair.key == _HIDDEN_STATISTICS:
            with suppress(FormatError, ValueError):
                md.statistics = decode("Statistics", bytes.fromhex((pair.value or b"").decode()))[0]
    others = [pair for pair in pairs if pair.key not in _HIDDEN]
    if len(others) == len(pairs):
        return False
    md.key_value_metadata = others or None
    return True
