"""What a file shows to those without its keys, and what it hides: in plain sentences.

Every sentence is about what stands in the file, whoever looks at it. Keys only let more of that be
told, such as that a writer left bloom filters in clear behind a sealed footer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from modcrypt.parquet.crypto.footer import take_mark
from modcrypt.parquet.crypto.key_info import KeyInfo
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, unknown_fields
from modcrypt.parquet.verify.footer_view import ChunkView, FooterView
from modcrypt.parquet.verify.region_walk import RegionWalk
from modcrypt.parquet.verify.writer_quirks import counted, listed

__all__ = ["VISIBLE", "tell_hidden", "tell_leaks", "text_of", "visible_parts"]

_ALWAYS = ("sizes", "values", "codec", "encodings", "places")  # of a ColumnMetaData
_SOMETIMES = {
    "statistics": "statistics",
    "encoding_stats": "encoding statistics",
    "size_statistics": "size statistics",
    "geospatial_statistics": "geospatial statistics",
    "key_value_metadata": "key-value metadata",
    "bloom_filter_offset": "bloom filter place",
}
_INDEXES = ("column index", "offset index", "bloom filter")
VISIBLE = (
    "name", "type", *_ALWAYS, *_SOMETIMES.values(), "index places", "key metadata", *_INDEXES,
    "levels", "pages",
)  # fmt: skip
"""Words for what is visible of a column, in the order in which they are given."""

_MORE_THAN_NEEDED = ("statistics", "size statistics", "geospatial statistics", "key-value metadata")

# Keys of the file's metadata whose values describe the data.
_TELLING = {
    "ARROW:schema": "the Arrow schema, with the metadata of its fields",
    "pandas": "names and types of a pandas frame, its index and perhaps values of it",
    "org.apache.spark.sql.parquet.row.metadata": "Spark's schema",
    "org.apache.spark.version": "the version of Spark",
    "iceberg.schema": "Iceberg's schema, with the ids of its fields",
    "parquet.avro.schema": "an Avro schema",
    "parquet.proto.class": "the name of a Protobuf class",
    "writer.model.name": "the kind of the writer",
    "modcrypt.masked": "which columns are null or hashed, and by which hash key, but not the key",
    "geo": "GeoParquet's metadata, bounds of the whole file among it",
}


def text_of(value: bytes) -> str:
    """Give text from a file, whatever its bytes are."""
    return value.decode("utf-8", "backslashreplace")


def visible_parts(view: FooterView, seen: ChunkView, walk: RegionWalk) -> set[str]:
    """Say what a reader without keys sees of a column chunk, in words of `VISIBLE`."""
    visible = {name for name in _INDEXES if seen.path in walk.in_clear.get(name, ())}
    if seen.path in walk.clear_levels:
        visible.add("levels")
    chunk = seen.chunk
    has_column_index = chunk.column_index_offset is not None
    has_offset_index = chunk.offset_index_offset is not None
    if seen.own is None:
        visible.add("pages")
        visible |= {"column index"} if has_column_index else set()
        visible |= {"offset index"} if has_offset_index else set()
        if seen.md is not None and seen.md.bloom_filter_offset is not None:
            visible.add("bloom filter")
    if view.sealed:
        return visible
    visible |= {"name", "type"}
    if has_column_index or has_offset_index:
        visible.add("index places")
    if seen.own and chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata:
        visible.add("key metadata")
    if chunk.meta_data is not None:
        there = chunk.meta_data.__dict__
        visible.update(_ALWAYS)
        visible.update(word for name, word in _SOMETIMES.items() if there.get(name) is not None)
    return visible


def tell_leaks(
    view: FooterView,
    chunks: Sequence[ChunkView],
    visible: Mapping[str, Sequence[str]],
    walk: RegionWalk,
    keys: Sequence[KeyInfo],
) -> Iterator[str]:
    """Say what somebody without keys sees.

    Args:
        visible: what is visible of each column, by its path.
        keys: those whose key metadata stands in clear.
    """
    if not view.encrypted:
        yield "Everything: nothing in the file is encrypted, and nothing is authenticated."
        return
    yield (
        "The sizes of the file and of its modules: how many pages there are, and how well their "
        "values compress."
    )
    yield from _of_crypto(view, keys)
    if not view.sealed:
        yield from _of_footer(view)
    plain = dict.fromkeys(seen.path for seen in chunks if seen.own is None)
    if plain:
        yield f"Plaintext columns, which nothing authenticates: {listed(plain)}."
    if not view.sealed:
        yield from _of_columns(visible, plain)
    yield from _unknown_fields(view, chunks, walk)
    yield from _in_clear(walk)


def _of_crypto(view: FooterView, keys: Sequence[KeyInfo]) -> Iterator[str]:
    if view.stored_prefix:
        yield (
            f"The AAD prefix, {text_of(view.stored_prefix[:200])!r}: it may name the file, the "
            "table or the partition."
        )
    master_keys = dict.fromkeys(one.master_key_id for one in keys if one.master_key_id)
    if master_keys:
        yield f"The ids of master keys, in key metadata: {listed(master_keys)}."
    if any(one.storage == "external" for one in keys):
        yield "That keys are wrapped in a file of key material beside this one."
    opaque = [one.size for one in keys if one.kind == "opaque"]
    if opaque:
        yield (
            f"Key metadata of {counted(len(opaque), 'key')}, {counted(sum(opaque), 'byte')} of no "
            "kind that modcrypt knows: whatever it says of keys is readable."
        )


def _of_footer(view: FooterView) -> Iterator[str]:
    metadata = view.metadata
    assert metadata is not None
    yield (
        f"The schema: names and types of {counted(len(metadata.schema) - 1, 'field')}; "
        f"{counted(metadata.num_rows, 'row')} in {counted(len(metadata.row_groups), 'row group')}."
    )
    entries = [text_of(entry.key) for entry in metadata.key_value_metadata or ()]
    told = [f"{name} ({_TELLING[name]})" if name in _TELLING else name for name in entries]
    if told:
        yield f"Key-value metadata: {listed(told)}."
    if metadata.created_by:
        yield f"The writer: {text_of(metadata.created_by[:200])}."
    if any(row_group.sorting_columns for row_group in metadata.row_groups):
        yield "By which columns rows are sorted."


_UNKNOWN = (
    "Fields that modcrypt does not know, perhaps statistics of any column, as newer kinds of "
    "footers have them"
)


def _unknown_fields(
    view: FooterView, chunks: Sequence[ChunkView], walk: RegionWalk
) -> Iterator[str]:
    """Say where unknown fields are seen without the keys of the columns that they may describe."""
    if walk.unknown_fields:
        yield f"{_UNKNOWN}, in plaintext columns: {_places(walk.unknown_fields)}."
    if view.sealed:
        crypto = decode("FileCryptoMetaData", view.tail.data)[0]
        if found := _found_in(crypto):
            yield f"{_UNKNOWN}, before the sealed footer: {_places(found)}."
    if view.metadata is None or not (found := _found_in(view.metadata)):
        return
    if not view.sealed:
        yield f"{_UNKNOWN}, in the footer: {_places(found)}."
    elif any(seen.own for seen in chunks):
        yield f"{_UNKNOWN}, in a footer that the footer key opens: {_places(found)}."


def _found_in(struct: ThriftStruct) -> Counter[str]:
    """Count a footer's unknown fields, but for modcrypt's own note."""
    footer = copy(struct)
    take_mark(footer)
    return Counter(type(value).__name__ for value, _ in unknown_fields(footer))


def _places(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({counted(times, 'field')})" for name, times in sorted(found.items()))


def _of_columns(visible: Mapping[str, Sequence[str]], plain: Mapping[str, None]) -> Iterator[str]:
    """Say what a plaintext footer tells of encrypted columns."""
    encrypted = {path: parts for path, parts in visible.items() if path not in plain}
    if any("sizes" in parts for parts in encrypted.values()):
        yield (
            "Of encrypted columns in each row group: sizes before and after compression, number "
            "of values, codec, encodings and where they lie."
        )
    for word in _MORE_THAN_NEEDED:
        paths = [path for path, parts in encrypted.items() if word in parts]
        if paths:
            yield f"{_MEANING[word]} of encrypted columns, in the footer: {listed(paths)}."
    bloomed = [path for path, parts in encrypted.items() if "bloom filter place" in parts]
    if bloomed:
        yield f"Which encrypted columns have bloom filters: {listed(bloomed)}."


_MEANING = {
    "statistics": "Statistics (least and greatest values, numbers of nulls)",
    "size statistics": "Size statistics (numbers of nulls, lengths of lists and of values)",
    "geospatial statistics": "Geospatial bounds",
    "key-value metadata": "Key-value metadata",
}


def _in_clear(walk: RegionWalk) -> Iterator[str]:
    """Say what of encrypted columns was not encrypted."""
    for word, meaning in (
        ("column index", "Column indexes in clear (least and greatest values of each page)"),
        ("offset index", "Offset indexes in clear (rows and size of each page)"),
        ("bloom filter", "Bloom filters in clear (anybody can test whether a value is there)"),
    ):
        if paths := walk.in_clear.get(word):
            yield f"{meaning}, of encrypted columns: {listed(paths)}."
    if walk.clear_levels:
        yield (
            "Levels of data pages V2 in clear, where values are null and how long lists are; they "
            f"can be altered unseen: {listed(walk.clear_levels)}, perhaps others."
        )
    elif walk.unframed:
        yield (
            "Pages that are no row of modules, perhaps parquet-java's data pages V2, whose levels "
            f"are in clear: {listed(walk.unframed)}."
        )


def tell_hidden(
    view: FooterView, chunks: Sequence[ChunkView], walk: RegionWalk, reasons: Sequence[str]
) -> Iterator[str]:
    """Say what the keys at hand leave closed, and why."""
    if view.metadata is None:
        yield (
            "The footer is sealed: schema, number of rows, statistics, and where each column lies."
        )
    if walk.hidden_modules is not None:
        told = counted(walk.hidden_modules, "module")
        rest = f", and {counted(walk.hidden_rest, 'byte')} can not" if walk.hidden_rest else ""
        yield f"What lies where: {told} can be told apart by the lengths{rest}."
    locked = dict.fromkeys(
        seen.path for seen in chunks if seen.own is not None and seen.opened is False
    )
    if locked:
        yield f"Values, statistics and indexes of columns without a key here: {listed(locked)}."
    if view.state == "fault":
        yield "The footer does not authenticate with the key given."
    yield from (f"Why: {reason}" for reason in dict.fromkeys(reasons))
