"""Column chunks of nulls for columns whose key is missing: one page of levels without values."""

from __future__ import annotations

from itertools import takewhile

from modcrypt.parquet.format.idl import ThriftStruct, encode, new, varint
from modcrypt.parquet.format.page_header import DATA_PAGE, UNCOMPRESSED
from modcrypt.parquet.format.schema import leaf_elements, make_optional

_PLAIN, _RLE = 0, 3  # Encoding


def put_nulls(metadata: ThriftStruct, columns: list[int], at: int) -> bytes:
    """Replace the chunks of whole top-level fields by chunks of nulls, and return the pages' bytes.

    Changes the schema and the row groups of the FileMetaData. `columns` are all leaves of these
    fields; the pages will be written at the offset `at`.
    """
    if not columns:
        return b""
    leaves = leaf_elements(metadata.schema)
    metadata.schema = list(metadata.schema)
    for field in {leaves[c].field for c in columns}:
        make_optional(metadata.schema, field)
    leaves = leaf_elements(metadata.schema)
    pages = bytearray()
    for row_group in metadata.row_groups:
        for c in columns:
            leaf = leaves[c]
            # A data page V1 whose rows are null at the outermost possible level.
            levels = _encode_zero_levels(row_group.num_rows, leaf.max_repetition)
            levels += _encode_zero_levels(row_group.num_rows, leaf.max_definition)
            data = encode_page_header(row_group.num_rows, len(levels), len(levels)) + levels
            start = at + len(pages)
            md = new(
                "ColumnMetaData", type=metadata.schema[leaf.element].type, encodings=[_PLAIN, _RLE],
                path_in_schema=leaf.names, codec=UNCOMPRESSED, num_values=row_group.num_rows,
                total_uncompressed_size=len(data), total_compressed_size=len(data),
                data_page_offset=start, statistics=new("Statistics", null_count=row_group.num_rows),
            )  # fmt: skip
            row_group.columns[c] = new("ColumnChunk", file_offset=start, meta_data=md)
            pages += data
        _adapt_row_group(row_group, columns)
    return bytes(pages)


def _adapt_row_group(row_group: ThriftStruct, columns: list[int]) -> None:
    """Correct the sizes, and end the sort order before the first column of nulls."""
    mds = [chunk.meta_data for chunk in row_group.columns if chunk.meta_data is not None]
    row_group.total_byte_size = sum(md.total_uncompressed_size for md in mds)
    if row_group.total_compressed_size is not None:
        row_group.total_compressed_size = sum(md.total_compressed_size for md in mds)
    known = takewhile(lambda s: s.column_idx not in columns, row_group.sorting_columns or ())
    row_group.sorting_columns = list(known) or None


def encode_page_header(values: int, uncompressed_size: int, compressed_size: int) -> bytes:
    """Return the header of a data page V1 with plain values."""
    kind = new(
        "DataPageHeader", num_values=values, encoding=_PLAIN, definition_level_encoding=_RLE,
        repetition_level_encoding=_RLE,
    )  # fmt: skip
    header = new(
        "PageHeader", type=DATA_PAGE, uncompressed_page_size=uncompressed_size,
        compressed_page_size=compressed_size, data_page_header=kind,
    )  # fmt: skip
    return encode(header)


def _encode_zero_levels(count: int, highest: int) -> bytes:
    """Encode `count` levels of 0 as one RLE run, after its length as in data pages V1."""
    if not highest:
        return b""
    run = varint(count << 1) + bytes((highest.bit_length() + 7) // 8)
    return len(run).to_bytes(4, "little") + run
