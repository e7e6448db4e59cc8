"""Check bloom filters that a writer left unencrypted, before they are encrypted.

Anyone can alter such a filter (arrow-rs writes them), and readers would trust an encrypted one. So
every value of the chunk is looked up in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from modcrypt.errors import FormatError
from modcrypt.parquet.arrow.chunk_loading import load_chunks
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.crypto.bloom_filters import bloom_hash, is_known_kind, may_hold
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.format.idl import copy, decode


def holds_all_values(file: OpenFile, row_group: int, column: int, data: bytes) -> bool:
    """Return whether a bloom filter holds all values of a chunk, which is decoded for it."""
    header, size = decode("BloomFilterHeader", data)
    if not is_known_kind(header):
        return False
    plan = _remove_logical_types(file.select([column], [row_group]))
    table = Decoder(file.source.name).decode_table(load_chunks(file.source, plan, None))
    bitset = data[size:]
    try:
        values = [value for chunk in table.column(0).chunks for value in _list_values(chunk)]
        return all(may_hold(header, bitset, [bloom_hash(value)]) for value in values)
    except (pa.ArrowException, NotImplementedError, FormatError):
        return False


def _remove_logical_types(plan: ReadPlan) -> ReadPlan:
    """Let PyArrow decode the physical values, of which bloom filters hold the hashes."""
    metadata = copy(plan.footer.metadata)
    metadata.key_value_metadata = None
    metadata.schema = [copy(element) for element in metadata.schema]
    for element in metadata.schema:
        if element.type is not None:
            element.logicalType = element.converted_type = None
    return plan.replace(footer=replace(plan.footer, metadata=metadata))


def _list_values(array: pa.Array) -> Iterator[bytes]:
    """Yield the plain encodings of the distinct values in an array of leaves, perhaps nested."""
    kind = array.type
    if pa.types.is_struct(kind) and kind.num_fields == 1:
        yield from _list_values(array.flatten()[0])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _list_values(array.flatten())
    elif pa.types.is_floating(kind) or pa.types.is_integer(kind):
        width = kind.bit_width // 8
        bits = pc.unique(array.view(pa.int32() if width == 4 else pa.int64()).drop_null())
        data = bits.to_numpy(zero_copy_only=False).tobytes()
        yield from (data[at : at + width] for at in range(0, len(data), width))
    elif pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        yield from pc.unique(array).drop_null().to_pylist()
    else:
        raise NotImplementedError
