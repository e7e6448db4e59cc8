"""Describe in sentences what a file reveals to readers without its keys, and what it hides.

Every sentence is about the contents of the file, not about the reader. Keys only reveal more of
them, such as unencrypted bloom filters that an encrypted footer refers to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from modcrypt.errors import list_names
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.footer import take_mark
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, set_fields, unknown_fields
from modcrypt.parquet.verify.footer_view import FooterView
from modcrypt.parquet.verify.region_walk import RegionWalk
from modcrypt.pkmt1.key_info import KeyInfo
from modcrypt.report.text import format_count

_ALWAYS = ("sizes", "values", "codec", "encodings", "places")  # required parts of ColumnMetaData
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
"""Terms for what is visible of a column, in the order of output."""

_MAX_REASONS = 20
_MORE_THAN_NEEDED = {
    "statistics": "Statistics (least and greatest values, numbers of nulls)",
    "size statistics": "Size statistics (numbers of nulls, lengths of lists and of values)",
    "geospatial statistics": "Geospatial bounds",
    "key-value metadata": "Key-value metadata",
}

# Keys of the file's metadata whose values describe the data.
_REVEALING = {
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


def decode_text(value: bytes) -> str:
    """Return bytes from a file as text, with escapes for those that are not UTF-8."""
    return value.decode("utf-8", "backslashreplace")


def list_visible_parts(walk: RegionWalk, seen: Chunk) -> set[str]:
    """Return the terms of `VISIBLE` for what a reader without keys sees of a column chunk."""
    visible = {name for name in _INDEXES if seen.path in walk.unencrypted_parts.get(name, ())}
    if seen.path in walk.clear_levels:
        visible.add("levels")
    chunk = seen.stored
    offsets = (
        ("column index", chunk.column_index_offset),
        ("offset index", chunk.offset_index_offset),
    )
    indexes = {name for name, offset in offsets if offset is not None}
    if not seen.encrypted:
        visible |= {"pages"} | indexes
        if seen.metadata is not None and seen.metadata.bloom_filter_offset is not None:
            visible.add("bloom filter")
    if not walk.view.footer.plaintext_footer:
        return visible
    visible |= {"name", "type"}
    if indexes:
        visible.add("index places")
    if seen.has_own_key and chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata:
        visible.add("key metadata")
    if chunk.meta_data is not None:
        fields = set_fields(chunk.meta_data)
        visible.update(_ALWAYS)
        visible.update(term for name, term in _SOMETIMES.items() if name in fields)
    return visible


def describe_leaks(
    walk: RegionWalk, visible: Mapping[str, Sequence[str]], keys: Sequence[KeyInfo]
) -> Iterator[str]:
    """Yield sentences about what a reader without keys sees.

    `visible` has terms for what is visible of each column, by its path. `keys` are those whose key
    metadata is not encrypted.
    """
    view = walk.view
    if not view.footer.encrypted:
        yield "Everything: nothing in the file is encrypted, and nothing is authenticated."
        return
    yield (
        "The sizes of the file and of its modules: how many pages there are, and how well their "
        "values compress."
    )
    yield from _describe_crypto_metadata(view, keys)
    if view.footer.plaintext_footer:
        yield from _describe_visible_footer(view)
    if plain := dict.fromkeys(seen.path for seen in walk.plan.listed if not seen.encrypted):
        yield f"Plaintext columns, which nothing authenticates: {list_names(plain)}."
    if view.footer.plaintext_footer:
        yield from _describe_visible_columns(visible, plain)
    yield from _describe_unknown_fields(walk)
    yield from _describe_unencrypted(walk)


def _describe_crypto_metadata(view: FooterView, keys: Sequence[KeyInfo]) -> Iterator[str]:
    if prefix := view.footer.stored_prefix:
        yield (
            f"The AAD prefix, {decode_text(prefix[:200])!r}: it may name the file, the table or "
            "the partition."
        )
    if master_keys := dict.fromkeys(key.master_key_id for key in keys if key.master_key_id):
        yield f"The ids of master keys, in key metadata: {list_names(master_keys)}."
    if any(key.storage == "external" for key in keys):
        yield "That wrapped keys are stored in a key material file beside this one."
    if recipients := dict.fromkeys(id_ for key in keys for id_ in key.recipients):
        yield f"The ids of recipients, in key metadata: {list_names(recipients)}."
    if opaque := [key.size for key in keys if key.kind == "opaque"]:
        yield (
            f"Key metadata of {format_count(len(opaque), 'key')}, "
            f"{format_count(sum(opaque), 'byte')} in a format that modcrypt does not know: "
            "whatever it says about keys is readable."
        )


def _describe_visible_footer(view: FooterView) -> Iterator[str]:
    metadata = view.footer.metadata
    assert metadata is not None
    yield (
        f"The schema: names and types of {format_count(len(metadata.schema) - 1, 'field')}; "
        f"{format_count(metadata.num_rows, 'row')} in "
        f"{format_count(len(metadata.row_groups), 'row group')}."
    )
    entries = [decode_text(entry.key) for entry in metadata.key_value_metadata or ()]
    described = [f"{name} ({_REVEALING[name]})" if name in _REVEALING else name for name in entries]
    if described:
        yield f"Key-value metadata: {list_names(described)}."
    if metadata.created_by:
        yield f"The writer: {decode_text(metadata.created_by[:200])}."
    if any(row_group.sorting_columns for row_group in metadata.row_groups):
        yield "The columns by which rows are sorted."


_UNKNOWN = (
    "Fields that modcrypt does not know, perhaps statistics of any column, as newer kinds of "
    "footers have them"
)


def _describe_unknown_fields(walk: RegionWalk) -> Iterator[str]:
    """Yield where unknown fields are readable without keys of the columns they may describe."""
    view = walk.view
    if walk.unknown_fields:
        yield f"{_UNKNOWN}, in plaintext columns: {_format_counts(walk.unknown_fields)}."
    if not view.footer.plaintext_footer:
        crypto = decode("FileCryptoMetaData", view.footer.tail.data)[0]
        if counts := _count_unknown_fields(crypto):
            yield f"{_UNKNOWN}, before the encrypted footer: {_format_counts(counts)}."
    if view.footer.metadata is None or not (counts := _count_unknown_fields(view.footer.metadata)):
        return
    if view.footer.plaintext_footer:
        yield f"{_UNKNOWN}, in the footer: {_format_counts(counts)}."
    elif any(seen.has_own_key for seen in walk.plan.listed):
        yield f"{_UNKNOWN}, in a footer that the footer key opens: {_format_counts(counts)}."


def _count_unknown_fields(struct: ThriftStruct) -> Counter[str]:
    """Count a footer's unknown fields, except modcrypt's own note."""
    footer = copy(struct)
    take_mark(footer)
    return Counter(type(value).__name__ for value, _ in unknown_fields(footer))


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name} ({format_count(times, 'field')})" for name, times in sorted(counts.items())
    )


def _describe_visible_columns(
    visible: Mapping[str, Sequence[str]], plain: Mapping[str, None]
) -> Iterator[str]:
    """Yield sentences about encrypted columns that a plaintext footer describes."""
    encrypted = {path: parts for path, parts in visible.items() if path not in plain}
    if any("sizes" in parts for parts in encrypted.values()):
        yield (
            "For encrypted columns in each row group: sizes before and after compression, number "
            "of values, codec, encodings and positions."
        )
    for term, meaning in _MORE_THAN_NEEDED.items():
        if paths := [path for path, parts in encrypted.items() if term in parts]:
            yield f"{meaning} of encrypted columns, in the footer: {list_names(paths)}."
    if bloomed := [path for path, parts in encrypted.items() if "bloom filter place" in parts]:
        yield f"Which encrypted columns have bloom filters: {list_names(bloomed)}."


def _describe_unencrypted(walk: RegionWalk) -> Iterator[str]:
    """Yield which parts of encrypted columns are not encrypted."""
    for kind, meaning in (
        ("column index", "Unencrypted column indexes (least and greatest values of each page)"),
        ("offset index", "Unencrypted offset indexes (rows and size of each page)"),
        ("bloom filter", "Unencrypted bloom filters (anyone can test whether a value occurs)"),
    ):
        if paths := walk.unencrypted_parts.get(kind):
            yield f"{meaning}, of encrypted columns: {list_names(paths)}."
    if walk.clear_levels:
        yield (
            "Unencrypted levels of data pages V2: which values are null, lengths of lists; they "
            f"can be altered undetected: {list_names(walk.clear_levels)}, perhaps others."
        )
    elif walk.unframed:
        yield (
            "Pages that are not a sequence of modules, perhaps data pages V2 of parquet-java with "
            f"unencrypted levels: {list_names(walk.unframed)}."
        )


def describe_hidden(walk: RegionWalk) -> Iterator[str]:
    """Yield sentences about what the keys at hand do not open, and why."""
    view = walk.view
    if view.footer.metadata is None:
        yield ("The footer is encrypted: schema, number of rows, statistics, and column positions.")
    if walk.hidden_modules is not None:
        modules = format_count(walk.hidden_modules, "module")
        rest = f", {format_count(walk.hidden_rest, 'byte')} cannot" if walk.hidden_rest else ""
        yield f"The layout: {modules} can be distinguished by their lengths{rest}."
    locked = dict.fromkeys(
        seen.path for seen in walk.plan.listed if seen.encrypted and seen.key_works is False
    )
    if locked:
        yield f"Values, statistics and indexes of columns without a key: {list_names(locked)}."
    if view.state == "fault":
        yield "The footer does not authenticate with the given key."
    reasons = list(dict.fromkeys(view.reasons))
    yield from (f"Reason: {reason}" for reason in reasons[:_MAX_REASONS])
    if len(reasons) > _MAX_REASONS:
        yield f"Reason: {len(reasons) - _MAX_REASONS} more"
