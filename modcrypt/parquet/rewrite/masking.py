"""One column chunk decoded, its values hashed or set to null, and encoded again.

What stands around the values stays: rows, lists, groups, nulls. PyArrow decodes and encodes; the
pages that it makes take the place of the chunk's own.
"""

from __future__ import annotations

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
from modcrypt.io.storage import MemorySource
from modcrypt.keys import Key
from modcrypt.parquet.arrow.chunk_loading import load_chunks
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.crypto.file_plan import OpenFile, Plan
from modcrypt.parquet.crypto.footer import read_plain
from modcrypt.parquet.format.idl import ThriftStruct, copy, new
from modcrypt.parquet.format.modules import Part, Span, file_spans
from modcrypt.parquet.format.schema import Leaf, leaf_elements

__all__ = ["NULLS", "Mask", "MaskedChunk", "hashes", "mask_chunk"]


class Mask(NamedTuple):
    """What becomes of the values of a leaf.

    Attributes:
        values: gives as many values as it gets.
        gives_nulls: whether a required leaf becomes an optional one.
        empties_lists: Whether the innermost lists lose their values, so that `values` gets none.
    """

    values: Callable[[pa.Array], pa.Array]
    gives_nulls: bool
    empties_lists: bool = False


_CODECS = {0: "none", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4"}
"""CompressionCodec of the IDL to PyArrow's name; the others are not written any more."""


class MaskedChunk(NamedTuple):
    """A chunk's new pages, in plaintext, and what is known of them."""

    source: MemorySource
    span: Span
    metadata: ThriftStruct  # ColumnMetaData, its offsets those of `source`


def mask_chunk(
    file: OpenFile, column: int, mask: Mask, expected: Leaf, row_group: int
) -> MaskedChunk | None:
    """Decode a chunk, mask its values, encode it; None where no page is written for it.

    Args:
        file: which is open.
        column, row_group: ordinals in the file.
        mask: what becomes of the values.
        expected: the leaf as the new schema has it.

    Raises:
        UnsupportedFormatError: values of a type that can't be masked.
        ModcryptError: as `read_table`.
    """
    plan = _as_parquet_has_it(file.select([column], [row_group]))
    md = plan.chunks[row_group, column].meta_data
    name = ".".join(expected.path)
    buffer = load_chunks(file.source, plan, None).data
    decoder = Decoder(file.source.name, {"arrow_extensions_enabled": False})
    table = decoder.table(buffer)
    try:
        masked = pa.chunked_array(
            [_masked(array, mask) for array in table.column(0).chunks]
            or [_masked(table.column(0).combine_chunks(), mask)]
        )
    except (pa.ArrowException, NotImplementedError) as error:
        kind = type(error).__name__  # the text may hold values
        raise UnsupportedFormatError(f"column {name}: PyArrow can't mask it ({kind})") from None
    field = _masked_field(table.schema.field(0), masked.type, mask)
    rows = pa.Table.from_arrays([masked], schema=pa.schema([field]))
    out = io.BytesIO()
    pq.write_table(
        rows,
        out,
        compression=_CODECS.get(md.codec, "zstd"),
        row_group_size=rows.num_rows or None,
        store_schema=False,
    )
    written = _written(MemorySource(out.getvalue(), name), expected)
    if written is not None and mask.gives_nulls:
        # As the schema has it: PyArrow may write decimals and INT96 otherwise, nulls are alike.
        written.metadata.type = md.type
        # Of some types PyArrow tells no statistics, by which a look sees that it is done.
        nulls = new("Statistics", null_count=written.metadata.num_values)
        written.metadata.statistics = nulls
    return written


def _as_parquet_has_it(plan: Plan) -> Plan:
    """Leave Arrow's own schema out, so that a value's hash depends on nothing but the value.

    By that schema seconds are not the milliseconds that are stored, lists may be of a fixed size.
    """
    metadata = copy(plan.footer.metadata)
    metadata.key_value_metadata = None
    return replace(plan, footer=replace(plan.footer, metadata=metadata))


def _written(source: MemorySource, expected: Leaf) -> MaskedChunk | None:
    footer = read_plain(source)
    (leaf,) = leaf_elements(footer.metadata.schema)
    found = leaf.max_definition, leaf.max_repetition
    if found != (expected.max_definition, expected.max_repetition):
        raise UnsupportedFormatError(
            f"column {'.'.join(expected.path)}: Arrow has no groups like those around it, so its "
            "levels can't be kept; drop it, or make all of its top-level field null"
        )
    if len(footer.metadata.row_groups) > 1:  # whatever it is asked for
        raise UnsupportedFormatError(
            f"column {'.'.join(expected.path)}: PyArrow writes no row group of so many rows"
        )
    spans = file_spans(footer.metadata, footer.body_end, source)
    pages = [span for span in spans if span.part is Part.PAGES]
    if not pages:
        return None
    metadata = footer.metadata.row_groups[0].columns[0].meta_data
    metadata.path_in_schema = [name.encode() for name in expected.path]
    return MaskedChunk(source, pages[0], metadata)


# --- within Arrow's groups -----------------------------------------------------------------------


def _masked(array: Any, mask: Mask) -> Any:
    """Mask the only leaf of an array."""
    kind = array.type
    if pa.types.is_struct(kind):
        if kind.num_fields != 1:
            raise FormatError("a group of one leaf has several fields")
        inner = _masked(array.field(0), mask)
        field = _masked_field(kind.field(0), inner.type, mask)
        return pa.StructArray.from_arrays([inner], fields=[field], mask=array.is_null())
    if pa.types.is_list(kind):
        if mask.empties_lists and not pa.types.is_nested(kind.value_type):
            empty = pa.array([[]] * len(array), kind)
            return pc.if_else(array.is_null(), pa.scalar(None, kind), empty)
        inner = _masked(array.values, mask)
        field = _masked_field(kind.value_field, inner.type, mask)
        # As offsets with nulls: from_arrays takes a mask only where the array is no slice.
        offsets = pc.if_else(
            pa.concat_arrays([array.is_null(), pa.array([False])]), None, array.offsets
        )
        return pa.ListArray.from_arrays(offsets, inner, type=pa.list_(field))
    if pa.types.is_nested(kind):
        raise NotImplementedError
    return mask.values(array)


def _masked_field(field: Any, kind: Any, mask: Mask) -> Any:
    is_null = mask.gives_nulls and not pa.types.is_nested(kind)
    return pa.field(field.name, kind, field.nullable or is_null)


# --- what becomes of values ----------------------------------------------------------------------


HASH_LABEL = b"modcrypt mask hash v1"
"""The label that the key of hashes is derived with, so that it serves nothing else."""

NULLS = Mask(lambda array: pa.nulls(len(array), array.type), gives_nulls=True)
"""Puts nulls of the same type in the place of values."""


def hashes(key: Key) -> Mask:
    """Give a mask that puts HMAC-SHA-256, in hex, in the place of values.

    Its key is HKDF-SHA-256 of `key` without salt, with `HASH_LABEL` as info.

    Hashed is a value's text in UTF-8, of binary columns the bytes. Equal values have equal texts,
    whatever they are stored as: 7 as int32 and as int64, 7.5 and 7.50, 0.0 and -0.0, a moment in
    milliseconds and in nanoseconds; moments are in UTC, without saying so, as INT96 has them.
    """
    hashed = keyed_hash(key, HASH_LABEL)

    def values(array: pa.Array) -> pa.Array:
        distinct = pc.dictionary_encode(array)
        found = [None if value is None else hashed(value) for value in _texts(distinct.dictionary)]
        return pa.array(found, pa.string()).take(distinct.indices)

    return Mask(values, gives_nulls=False)


_exact = Context(prec=400)  # more digits than a decimal or a float has


def _number(value: Decimal) -> bytes:
    """Spell a number without an exponent, and without zeros that mean nothing."""
    return f"{_exact.normalize(value) if value else Decimal(0):f}".encode()


def _float_text(text: str) -> bytes:
    value = Decimal(text)
    return _number(value) if value.is_finite() else text.encode()


def _texts(array: pa.Array) -> list[bytes | None]:
    kind = array.type
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind):
        return list(array.cast(pa.large_binary()).to_pylist())
    if pa.types.is_large_binary(kind) or pa.types.is_null(kind):
        return list(array.to_pylist())
    if pa.types.is_decimal(kind):
        return [None if value is None else _number(value) for value in array.to_pylist()]
    if pa.types.is_float16(kind):
        array = array.cast(pa.float32())
    if pa.types.is_floating(kind):  # by the shortest text that means the same float
        texts = array.cast(pa.string()).to_pylist()
        return [None if text is None else _float_text(text) for text in texts]
    text = array.cast(pa.large_string())
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        text = pc.replace_substring_regex(text, r"(\.\d*?)0*Z?$", r"\1")
        text = pc.replace_substring_regex(text, r"[.Z]$", "")
    return list(text.cast(pa.large_binary()).to_pylist())
