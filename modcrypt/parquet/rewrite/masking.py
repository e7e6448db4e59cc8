"""Mask one column chunk: decode it, hash its values or set them to null, and encode it again.

The structure around the values stays: rows, lists, groups, nulls. PyArrow decodes and encodes; its
pages replace the chunk's own.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import replace
from decimal import Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from modcrypt.aead import keyed_hash
from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.io.sources import MemorySource
from modcrypt.keys import Key
from modcrypt.parquet.arrow.chunk_loading import load_chunks
from modcrypt.parquet.arrow.column_masks import make_mask
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.convert.encrypted_feed import MaskedChunk
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.format.idl import copy, new
from modcrypt.parquet.format.modules import Part, file_spans
from modcrypt.parquet.format.schema import Leaf, leaf_elements


class Mask(NamedTuple):
    """A function that replaces the values of a leaf, and its effects."""

    values: Callable[[pa.Array], pa.Array]  # returns as many values as it gets
    gives_nulls: bool  # a required leaf becomes an optional one
    empties_lists: bool = False  # the innermost lists lose their values: `values` gets none
    keeps_type: bool = False  # the values have the type of the leaf


_CODECS = {0: "none", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4"}
"""PyArrow's name of each CompressionCodec of the IDL; the others are obsolete."""


def mask_chunk(
    file: OpenFile, column: int, mask: Mask, expected: Leaf, row_group: int
) -> MaskedChunk | None:
    """Decode a chunk, mask its values and encode it; return None if it has no pages.

    `expected` is the leaf in the new schema. Raise UnsupportedFormatError if values of this type
    cannot be masked.
    """
    plan = _remove_arrow_schema(file.select([column], [row_group]))
    md = plan.chunks[row_group, column].meta_data
    name = ".".join(expected.path)
    loaded = load_chunks(file.source, plan, None)
    decoder = Decoder(file.source.name, {"arrow_extensions_enabled": False})
    table = decoder.decode_table(loaded)
    try:
        masked = pa.chunked_array(
            [_mask_array(array, mask) for array in table.column(0).chunks]
            or [_mask_array(table.column(0).combine_chunks(), mask)]
        )
    except (pa.ArrowException, NotImplementedError) as error:
        kind = type(error).__name__  # The message may contain values.
        raise UnsupportedFormatError(f"column {name}: PyArrow cannot mask it ({kind})") from None
    field = _mask_field(table.schema.field(0), masked.type, mask)
    rows = pa.Table.from_arrays([masked], schema=pa.schema([field]))
    out = io.BytesIO()
    pq.write_table(
        rows,
        out,
        compression=_CODECS.get(md.codec, "zstd"),
        row_group_size=rows.num_rows or None,
        store_schema=False,
    )
    source = MemorySource(out.getvalue(), name)
    if mask.keeps_type:
        _check_type(source, file, column)
    written = _read_masked_chunk(source, expected)
    if written is not None and mask.gives_nulls:
        # PyArrow may write another type for decimals and INT96, but nulls look the same.
        written.metadata.type = md.type
        # PyArrow omits statistics for some types, but later runs use them to see that it is done.
        nulls = new("Statistics", null_count=written.metadata.num_values)
        written.metadata.statistics = nulls
    return written


def _remove_arrow_schema(plan: ReadPlan) -> ReadPlan:
    """Remove Arrow's own schema, so that a value's hash depends only on the value."""
    # With that schema, PyArrow would read stored milliseconds as seconds, or lists as fixed-size
    # lists.
    metadata = copy(plan.footer.metadata)
    metadata.key_value_metadata = None
    return plan.replace(footer=replace(plan.footer, metadata=metadata))


def _check_type(source: MemorySource, file: OpenFile, column: int) -> None:
    """Raise UnsupportedFormatError if PyArrow has written a column in another physical type."""
    old, new = (
        metadata.schema[leaf_elements(metadata.schema)[at].element]
        for metadata, at in ((file.metadata, column), (read_plain(source).metadata, 0))
    )
    if (old.type, old.type_length) != (new.type, new.type_length):
        raise UnsupportedFormatError(
            f"column {source.name}: PyArrow writes its type in another form"
        )


def _read_masked_chunk(source: MemorySource, expected: Leaf) -> MaskedChunk | None:
    footer = read_plain(source)
    (leaf,) = leaf_elements(footer.metadata.schema)
    levels = leaf.max_definition, leaf.max_repetition
    if levels != (expected.max_definition, expected.max_repetition):
        raise UnsupportedFormatError(
            f"column {'.'.join(expected.path)}: Arrow has no groups like those around it, so its "
            "levels cannot be kept; drop it, or make all of its top-level field null"
        )
    if len(footer.metadata.row_groups) > 1:  # PyArrow limits the size that it is asked for.
        raise UnsupportedFormatError(
            f"column {'.'.join(expected.path)}: PyArrow cannot write a row group with so many rows"
        )
    spans, _ = file_spans(footer.metadata, footer.body_end, source)
    pages = [span for span in spans if span.part is Part.PAGES]
    if not pages:
        return None
    metadata = footer.metadata.row_groups[0].columns[0].meta_data
    metadata.path_in_schema = expected.names
    return MaskedChunk(source, pages[0], metadata)


def _mask_array(array: Any, mask: Mask) -> Any:
    kind = array.type
    if pa.types.is_struct(kind):
        if kind.num_fields != 1:
            raise FormatError("a group with one leaf has several fields")
        inner = _mask_array(array.field(0), mask)
        field = _mask_field(kind.field(0), inner.type, mask)
        return pa.StructArray.from_arrays([inner], fields=[field], mask=array.is_null())
    if pa.types.is_list(kind):
        if mask.empties_lists and not pa.types.is_nested(kind.value_type):
            empty = pa.array([[]] * len(array), kind)
            return pc.if_else(array.is_null(), pa.scalar(None, kind), empty)
        inner = _mask_array(array.values, mask)
        field = _mask_field(kind.value_field, inner.type, mask)
        # Use offsets with nulls, because from_arrays accepts no mask for a slice.
        offsets = pc.if_else(
            pa.concat_arrays([array.is_null(), pa.array([False])]), None, array.offsets
        )
        return pa.ListArray.from_arrays(offsets, inner, type=pa.list_(field))
    if pa.types.is_nested(kind):
        raise NotImplementedError
    return mask.values(array)


def _mask_field(field: Any, kind: Any, mask: Mask) -> Any:
    is_null = mask.gives_nulls and not pa.types.is_nested(kind)
    return pa.field(field.name, kind, field.nullable or is_null)


HASH_LABEL = b"modcrypt mask hash v1"
"""Label for deriving the key of hashes, so that the derived key serves no other purpose."""

NULLS = Mask(lambda array: pa.nulls(len(array), array.type), gives_nulls=True)
"""A mask that replaces values by nulls of the same type."""


def make_action_mask(action: str) -> Mask:
    """Return a mask that applies an action of Iceberg's read restrictions."""
    make = functools.cache(lambda kind: make_mask(action, kind, nullable=True))
    return Mask(lambda array: make(array.type)(array), gives_nulls=False, keeps_type=True)


def make_hash_mask(key: Key) -> Mask:
    """Return a mask that replaces values by their HMAC-SHA-256 in hex.

    Its key is HKDF-SHA-256 of `key` without salt, with `HASH_LABEL` as info.

    The hash is of a value's text in UTF-8, or of a binary value's bytes. Equal values have equal
    texts, however they are stored: 7 as int32 and as int64, 7.5 and 7.50, 0.0 and -0.0, a timestamp
    in milliseconds and in nanoseconds. Timestamps are in UTC, without a zone in the text, like
    those of INT96.
    """
    hash_value = keyed_hash(key, HASH_LABEL)

    def hash_values(array: pa.Array) -> pa.Array:
        distinct = pc.dictionary_encode(array)
        texts = [
            None if value is None else hash_value(value).hex()
            for value in _format_values(distinct.dictionary)
        ]
        return pa.array(texts, pa.string()).take(distinct.indices)

    return Mask(hash_values, gives_nulls=False)


_exact = Context(prec=400)  # more digits than a decimal or a float has


def _format_number(number: Decimal | str | None) -> bytes | None:
    """Format a number without an exponent and without insignificant zeros."""
    if number is None:
        return None
    value = Decimal(number)
    if not value.is_finite():
        return f"{number}".encode()
    return f"{_exact.normalize(value) if value else Decimal(0):f}".encode()


def _format_values(array: pa.Array) -> list[bytes | None]:
    kind = array.type
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind):
        return list(array.cast(pa.large_binary()).to_pylist())
    if pa.types.is_large_binary(kind) or pa.types.is_null(kind):
        return list(array.to_pylist())
    if pa.types.is_decimal(kind):
        return list(map(_format_number, array.to_pylist()))
    if pa.types.is_float16(kind):
        array = array.cast(pa.float32())
    if pa.types.is_floating(kind):  # PyArrow formats the shortest text of the same float.
        return list(map(_format_number, array.cast(pa.string()).to_pylist()))
    text = array.cast(pa.large_string())
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        text = pc.replace_substring_regex(text, r"(\.\d*?)0*Z?$", r"\1")
        text = pc.replace_substring_regex(text, r"[.Z]$", "")
    return list(text.cast(pa.large_binary()).to_pylist())
